"""Embeddings as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice._client import Client
from sluice._native import Model


def embed(
    client: Client,
    model: Model,
    texts: str | Sequence[str] | Sequence[Sequence[int]],
    *,
    normalize: bool,
    truncate: bool,
    adapter: str | None = None,
) -> tuple[NDArray[np.float32], int]:
    """The embeddings of texts, float32 (n_texts, n_embd), and how many tokens they have."""
    each: Sequence[str | Sequence[int]] = [texts] if isinstance(texts, str) else texts
    tokens = [model.encode(text) if isinstance(text, str) else list(map(index, text)) for text in each]
    if truncate:
        n_ctx = int(client.get("/props")["default_generation_settings"]["n_ctx"])
        tokens = [text[:n_ctx] for text in tokens]
    if not tokens:
        return np.empty((0, model.n_embd), np.float32), 0
    body: dict[str, Any] = {"input": tokens, "embd_normalize": 2 if normalize else -1}
    if adapter is not None:
        body["model"] = adapter
    return client.embed(body)
