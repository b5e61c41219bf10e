"""Embeddings as arrays."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice import _prompts
from sluice._client import Client, RequestError
from sluice._native import Model

AT_ONCE = 2048
"""Most texts of a request: what is written of one is held in memory, and Ctrl-C waits for it."""


def embed(
    client: Client,
    model: Model,
    texts: object,
    *,
    normalize: bool,
    truncate: bool,
    adapter: str | None = None,
    kind: str = "texts",
) -> tuple[NDArray[np.float32], list[int]]:
    """The embeddings of texts, float32 (n_texts, n_embd), and how many tokens each has.

    Of kind `scores` they are (n_texts, 1), and marks in texts are marks. Of kind `tokens` there is one for each token
    of all texts.

    Raises:
        TypeError, ValueError: A text is something else; the message has its index.
    """
    ranks = kind == "scores"
    each = [texts] if isinstance(texts, str) else _prompts.items(texts)
    if each is None:
        raise TypeError(f"input is {_prompts.shown(texts)}, expected a string or a list of strings")
    try:
        tokens = [
            model.encode(text, parse_special=ranks)
            if isinstance(text, str)
            else _prompts.tokens(f"input[{at}]", text, model.n_vocab)
            for at, text in enumerate(each)
        ]
    except ValueError as error:
        raise RequestError(str(error), param="input") from None
    if truncate:
        n_ctx = client.n_ctx()
        tokens = [text[:n_ctx] for text in tokens]
    if not tokens:
        return np.empty((0, 1 if ranks else model.n_embd), np.float32), []
    parts = [
        client.embed(tokens[start : start + AT_ONCE], kind, normalize=normalize, model=adapter)
        for start in range(0, len(tokens), AT_ONCE)
    ]
    vectors = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return vectors, [len(text) for text in tokens]


def of_each(vectors: NDArray[np.float32], lengths: list[int], pooled: bool) -> list[Any]:
    """The vectors of each text as Python's numbers: a list; without pooling a list for each token."""
    if pooled:
        return list(vectors.tolist())
    ends = accumulate(lengths)
    return [vectors[end - length : end].tolist() for length, end in zip(lengths, ends, strict=True)]
