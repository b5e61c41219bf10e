import base64
from pathlib import Path

import numpy as np
import pytest
import sluice

FIXTURES = Path(__file__).resolve().parents[3] / "tests/fixtures"
TEXTS = ["A cat sat.", "A dog ran.", "Once upon a time there was a little boat."]


def over_json(llama, texts, **fields):
    """The vectors as the route gives them to clients of HTTP."""
    body = {"input": texts, "encoding_format": "base64", **fields}
    data = llama.client.post("/v1/embeddings", body)["data"]
    return np.array([np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in data])


def same_bits(found, expected):
    assert (found.dtype, found.shape) == (np.float32, expected.shape)
    assert found.tobytes() == expected.tobytes()


def test_arrays_have_the_bits_of_the_route(llama):
    same_bits(llama.embed_array(TEXTS), over_json(llama, TEXTS))
    raw = over_json(llama, TEXTS, embd_normalize=-1)
    same_bits(llama.embed_array(TEXTS, normalize=False), raw)
    # Python's numbers are those floats, not their texts read again.
    assert llama.embed(TEXTS) == raw.tolist()
    assert llama.embed(TEXTS[0]) == raw[0].tolist()
    made = llama.create_embedding(TEXTS)
    assert [item["embedding"] for item in made["data"]] == raw.tolist()
    assert [item["index"] for item in made["data"]] == [0, 1, 2]
    assert made["usage"]["prompt_tokens"] == sum(len(llama.tokenize(text.encode())) for text in TEXTS)


def test_arrays_are_the_memory_that_the_engine_wrote(llama):
    array = llama.embed_array(TEXTS)
    # Rows over the engine's buffer, from its first byte: none of it is numpy's own memory.
    floats = array.base
    assert (floats.shape, floats.ctypes.data) == ((array.size,), array.ctypes.data)
    assert not array.flags.owndata and not floats.flags.owndata
    assert type(floats.base).__name__ == "PySliceContainer"
    assert array.flags.c_contiguous and array.flags.writeable
    kept = array.copy()
    llama.embed_array(["Another text."])
    same_bits(array, kept)
    array[0] = 0
    same_bits(llama.embed_array(TEXTS), kept)


def test_texts_may_be_tokens_and_many(llama):
    tokens = [llama.tokenize(text.encode()) for text in TEXTS]
    same_bits(llama.embed_array([np.array(text, np.uint32) for text in tokens]), llama.embed_array(TEXTS))
    # More than a request over HTTP may have.
    many = llama.embed_array([[5 + i % 7] for i in range(2100)])
    assert many.shape == (2100, llama.n_embd())
    same_bits(many[7:14], many[2093:2100])
    assert llama.embed_array([]).shape == (0, llama.n_embd())
    for texts, word in (([[]], "empty"), ([[4096]], "4096"), ([[5] * 5000], "context")):
        with pytest.raises(sluice.RequestError, match=word):
            llama.embed_array(texts, truncate=False)
    assert llama.embed_array([[5] * 5000]).shape == (1, llama.n_embd())
