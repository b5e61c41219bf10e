"""Runs a program for residue-protocol unchanged: `python -m sluice.residue SCRIPT.py ARGUMENTS`."""

import runpy
import sys
from pathlib import Path

from sluice.residue import install

USAGE = "usage: python -m sluice.residue SCRIPT.py [ARGUMENTS] | -m MODULE [ARGUMENTS]"


def main() -> None:
    """Installs the names, then runs the program of the command line."""
    arguments = sys.argv[1:]
    install()
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        sys.argv = arguments[1:]
        sys.path[0] = str(Path.cwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments and not arguments[0].startswith("-"):
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        sys.exit(USAGE)


if __name__ == "__main__":
    main()
