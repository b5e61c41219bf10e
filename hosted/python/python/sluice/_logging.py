"""The engine's log in Python's `logging`: the logger `sluice`."""

from __future__ import annotations

import logging
import re
import sys

LOGGER = logging.getLogger("sluice")

# What the line is about may come first: `model "name": warning: …`.
_WARNING = re.compile(r'^(\w+ "(?:[^"\\]|\\.)*": )?warning: ')


def log(line: str) -> None:
    """Logs a line of the engine: warnings as such, requests and their times as INFO."""
    if _WARNING.match(line):
        LOGGER.warning("%s", _WARNING.sub(r"\1", line))
    else:
        LOGGER.info("%s", line)


def tell(text: str) -> None:
    """Logs what may take minutes; a notebook shows it, too."""
    LOGGER.info("%s", text)
    if is_notebook():
        print(text, file=sys.stderr)


def is_terminal() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def is_notebook() -> bool:
    """Whether this is a notebook, whose cells show what is written to stderr."""
    return "ipykernel" in sys.modules
