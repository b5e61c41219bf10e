"""Embeddings as arrays."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice._client import Client
from sluice._native import Model

TEXTS_MAX = 2048
"""Texts of one request."""


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
    each = [texts] if isinstance(texts, str) else list(texts)
    tokens = [model.encode(text) if isinstance(text, str) else list(text) for text in each]
    if truncate:
        n_ctx = int(client.get("/props")["default_generation_settings"]["n_ctx"])
        tokens = [text[:n_ctx] for text in tokens]
    vectors = np.empty((len(tokens), model.n_embd), np.float32)
    count = 0
    for first in range(0, len(tokens), TEXTS_MAX):
        body: dict[str, Any] = {
            "input": tokens[first : first + TEXTS_MAX],
            "encoding_format": "base64",
            "embd_normalize": 2 if normalize else -1,
        }
        if adapter is not None:
            body["model"] = adapter
        reply = client.post("/v1/embeddings", body)
        count += reply["usage"]["prompt_tokens"]
        for item in reply["data"]:
            raw = base64.b64decode(item["embedding"])
            vectors[first + item["index"]] = np.frombuffer(raw, dtype="<f4")
    return vectors, count
