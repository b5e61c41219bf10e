"""The program `sluice`, as installed by the wheel."""

import signal
import sys

from sluice import _native


def main() -> None:
    """Runs the command line, and exits with the program's exit code."""
    # The program handles Ctrl-C itself, and a reader that closes the pipe is not an error.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native.main(["sluice", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
