"""The interface of the package residue-protocol 4.2.4, implemented by this package's gate.

    import sluice.residue
    sluice.residue.install()

    from residue.core import AsyncObserver

After `install`, programs for that package run unchanged. `python -m sluice.residue SCRIPT.py` installs it and runs a
script, `python -m sluice.residue -m MODULE` a module.

Names, arguments and formulas are those of 4.2.4. Differences: dense batches are computed instead of made up; nothing
is lost without being counted; lengths, strides and shapes are all respected; and reported measures are read back
from the kernel.
"""

import sys

from sluice.residue import core
from sluice.residue.core import AsyncObserver, print_isolation_report

__version__ = "4.2.4"
__all__ = ["AsyncObserver", "print_isolation_report"]


def install() -> None:
    """Provides this package under the names `residue` and `residue.core`, for subsequent imports.

    It takes precedence over an installed residue-protocol. Earlier imports of that package are not affected.
    """
    sys.modules["residue"] = sys.modules[__name__]
    sys.modules["residue.core"] = core
