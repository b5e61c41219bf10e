"""How far a batch is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from sluice._logging import is_notebook, is_terminal


@contextmanager
def progress(wanted: bool | Callable[..., Any], total: int) -> Iterator[Callable[[], Any]]:
    """Gives a function that moves a bar by one, if a bar is wanted, somebody sees it, and `tqdm` is there."""
    if callable(wanted):
        bar = wanted(total=total, desc="Processed prompts")
    elif wanted and (is_terminal() or is_notebook()) and find_spec("tqdm") is not None:
        # In notebooks the browser draws it, if ipywidgets is there.
        bar = import_module("tqdm.auto").tqdm(total=total, desc="Processed prompts")
    else:
        yield lambda: None
        return
    try:
        yield lambda: bar.update(1)
    finally:
        bar.close()
