import base64
import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import sluice

FIXTURES = Path(__file__).resolve().parents[3] / "tests/fixtures"
TEXTS = ["A cat sat.", "A dog ran.", "Once upon a time there was a little boat."]


@pytest.fixture(scope="module")
def address(tale):
    """A server's address."""
    command = [sys.executable, "-m", "sluice", "serve", "-m", str(tale), "-c", "2048", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        yield next(re.search(r"http://\S+", line) for line in server.stderr if "listening" in line)[0]
        server.terminate()


def over_json(address, texts, **fields):
    """The vectors as the route gives them to clients of HTTP."""
    body = {"input": texts, "encoding_format": "base64", **fields}
    request = urllib.request.Request(f"{address}/v1/embeddings", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as reply:
        data = json.load(reply)["data"]
    return np.array([np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in data])


def same_bits(found, expected):
    assert (found.dtype, found.shape) == (np.float32, expected.shape)
    assert found.tobytes() == expected.tobytes()


def test_arrays_have_the_bits_of_the_route(llama, address):
    same_bits(llama.embed_array(TEXTS), over_json(address, TEXTS))
    raw = over_json(address, TEXTS, embd_normalize=-1)
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


def test_without_pooling_each_token_has_a_vector(tale, llama):
    lengths = [len(llama.tokenize(text.encode())) for text in TEXTS]
    with sluice.Llama(tale, n_ctx=2048, pooling_type=0) as unpooled:
        all_tokens = unpooled.embed_array(TEXTS, normalize=False)
        assert all_tokens.shape == (sum(lengths), llama.n_embd())
        lists, count = unpooled.embed(TEXTS, return_count=True)
        assert count == sum(lengths)
        assert [len(vectors) for vectors in lists] == lengths
        assert [vector for vectors in lists for vector in vectors] == all_tokens.tolist()
        assert unpooled.embed(TEXTS[1]) == lists[1]
        lengths_of_1 = np.linalg.norm(np.array(unpooled.embed(TEXTS[1], normalize=True)), axis=1)
        assert np.allclose(lengths_of_1, 1, atol=1e-5)
        # Their mean is what is had with pooling, and their last row what that reads.
        mean = np.mean(np.array(lists[0]), axis=0)
        assert np.allclose(mean, llama.embed(TEXTS[0]), rtol=1e-5, atol=1e-6)
        made = unpooled.create_embedding(TEXTS)["data"]
        assert [item["embedding"] for item in made] == lists
    with sluice.Llama(tale, n_ctx=2048, pooling_type=3) as last:
        assert last.embed(TEXTS) == [vectors[-1] for vectors in lists]


def test_ranks_are_those_of_rerank(tale):
    query, documents = "a question", ["a b c", "some other words", "c b a"]
    with sluice.Llama(FIXTURES / "embed/bert-rank.gguf", n_ctx=0, pooling_type=4) as ranker:
        results = ranker.rerank(query, documents)["results"]
        expected = {result["index"]: result["relevance_score"] for result in results}
        first = ranker.tokenize(query.encode())
        # As the file asks for: one mark between both, none behind them.
        pairs = [first + ranker.tokenize(document.encode())[1:-1] for document in documents]
        scores = ranker.embed(pairs)
        assert scores == [[expected[i]] for i in range(3)]
        # A score has no length to be made 1.
        assert ranker.embed_array(pairs).tolist() == scores
        assert ranker.embed_array([]).shape == (0, 1)
        assert ranker.create_embedding(["a b c"])["data"][0]["embedding"] == ranker.embed("a b c")
    with pytest.raises(ValueError, match=r"pooling_type is 4 \(rank\)"):
        sluice.Llama(tale, n_ctx=256, pooling_type=4)
    with pytest.raises(ValueError, match="pooling_type is 7"):
        sluice.Llama(tale, n_ctx=256, pooling_type=7)


def test_scores_keep_to_max_model_len():
    path, query = FIXTURES / "embed/bert-rank.gguf", "a question"
    documents = ["a b c", "some other words", "c b a"]
    with sluice.LLM(path) as llm, sluice.Llama(path, n_ctx=0) as ranker:
        results = ranker.rerank(query, documents)["results"]
        expected = [
            result["relevance_score"] for result in sorted(results, key=lambda result: result["index"])
        ]
        assert [output.outputs.score for output in llm.score(query, documents, use_tqdm=False)] == expected
        each = llm.score([query] * 3, documents, use_tqdm=False)
        assert [output.outputs.score for output in each] == expected
        lengths = [len(llm._model.rank_prompt(query, document)) for document in documents]
    with sluice.LLM(path, max_model_len=max(lengths)) as llm:
        assert len(llm.score(query, documents, use_tqdm=False)) == 3
        long = [*documents, documents[lengths.index(max(lengths))] + " a"]
        with pytest.raises(ValueError, match=rf"documents\[3\]: .* max_model_len is {max(lengths)}"):
            llm.score(query, long, use_tqdm=False)
        with pytest.raises(TypeError, match=r"documents\[1\]: None"):
            llm.score(query, ["a", None], use_tqdm=False)
        with pytest.raises(ValueError, match="2 queries for 3 documents"):
            llm.score([query] * 2, documents)
        with pytest.raises(ValueError, match="1 queries for 0 documents"):
            llm.score(query, [])
