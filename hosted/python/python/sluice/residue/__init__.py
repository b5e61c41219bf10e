"""What the package residue-protocol 4.2.4 offers, on the gate of this package.

    import sluice.residue
    sluice.residue.install()

    from residue.core import AsyncObserver

After `install` programs for that package run as they are. `python -m sluice.residue SCRIPT.py` installs and runs a
script, `python -m sluice.residue -m MODULE` a module.

Names, arguments and formulas are those of 4.2.4. What differs: dense batches are computed, not made up; nothing is
lost without being counted; lengths, strides and shapes are all read right; and what is reported is what was read
back from the kernel.
"""

import sys

from sluice.residue import core
from sluice.residue.core import AsyncObserver, print_isolation_report

__version__ = "4.2.4"
__all__ = ["AsyncObserver", "print_isolation_report"]


def install() -> None:
    """Puts this package under the names `residue` and `residue.core`, for imports from now on.

    It goes before an installed residue-protocol. What a program has imported from that before, it keeps.
    """
    sys.modules["residue"] = sys.modules[__name__]
    sys.modules["residue.core"] = core
