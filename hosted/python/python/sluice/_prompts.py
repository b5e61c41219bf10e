"""Prompts as they are given: texts, tokens, and lists, arrays, columns and iterators of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any


def items(given: Any) -> list[Any] | None:
    """The items of a list, an array, a column or an iterator; None if it is anything else, such as a text or a set."""
    if isinstance(given, (str, bytes, bytearray, memoryview, Mapping, Set)):
        return None
    if hasattr(given, "columns"):
        raise TypeError("a table is not a list of prompts: give one of its columns, such as table['text']")
    if hasattr(given, "tolist"):
        # Items of numpy's and pandas' types become Python's.
        given = given.tolist()
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else None


def is_integer(value: Any) -> bool:
    """Whether it is an integer, of Python's or another type."""
    # Arrays have `__index__`, too.
    return hasattr(value, "__index__") and not isinstance(value, bool) and not hasattr(value, "__len__")


def tokens(name: str, given: Any, n_vocab: int) -> list[int]:
    """A list of token ids, which errors call `name`.

    Raises:
        TypeError, ValueError: It is something else, or a token is not in the vocabulary.
    """
    found = items(given)
    if found is None:
        raise TypeError(f"{name} is {shown(given)}, expected a string or a list of token ids")
    for at, value in enumerate(found):
        if not is_integer(value):
            raise TypeError(f"{name}[{at}] is {shown(value)}, expected an integer")
        if not 0 <= value < n_vocab:
            raise ValueError(f"{name}[{at}] is {value}, which is outside the vocabulary")
    return list(map(int, found))


def shown(value: object) -> str:
    """A value in an error."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}… ({type(value).__name__})"


SHOWN_CHARS = 60
