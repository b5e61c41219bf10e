import json
import logging
import shutil

import numpy as np
import pytest
import sluice
from conftest import ROOT
from sluice.peft_runtime import InferenceEngine, InferenceRequest, InferenceTraceConfig, RequestBatch

FIXTURES = ROOT / "tests/fixtures"
ADAPTER = FIXTURES / "adapters/tale"
PROMPT = "Once upon a time"


def text(llama, **settings):
    return llama(PROMPT, max_tokens=24, temperature=0.0, **settings)["choices"][0]["text"]


@pytest.fixture(scope="module")
def adapters():
    found = sorted(path.parent for path in ADAPTER.rglob("adapter_config.json"))
    assert found, f"{ADAPTER} contains no adapter"
    return found


def test_adapters_are_on_for_all_or_named(tale, adapters):
    plain = sluice.Llama(tale, n_ctx=512)
    always = sluice.Llama(tale, n_ctx=512, lora_path=adapters[0], lora_scale=4.0)
    named = sluice.Llama(tale, n_ctx=512, lora_modules={"first": adapters[0]}, lora_scaled={adapters[0]: 4})
    assert text(always) != text(plain)
    # One that is always on, and one that is asked for instead.
    assert text(named) == text(always)
    reply = named(PROMPT, max_tokens=24, temperature=0.0, model="first")
    assert reply["model"] == "first"
    # A step by step text has what is always on, too.
    for llama in (plain, always):
        llama.eval(llama.tokenize(PROMPT.encode()))
    assert not np.array_equal(plain.scores, always.scores)
    with pytest.raises(ValueError):
        plain.load_state(always.save_state())
    # A name that no adapter has is a label.
    assert plain(PROMPT, max_tokens=1, model="gpt-4o")["model"] == "gpt-4o"


def test_an_adapter_that_is_not_there_is_named(tale, tmp_path):
    with pytest.raises(ValueError, match="nothing-here"):
        sluice.Llama(tale, lora_path=tmp_path / "nothing-here")


def test_documents_are_ranked():
    ranker = sluice.Llama(FIXTURES / "embed/bert-rank.gguf", n_ctx=0)
    documents = ["a b c", "some other words", "c b a"]
    reply = ranker.rerank("a question", documents)
    scores = [result["relevance_score"] for result in reply["results"]]
    assert sorted(scores, reverse=True) == scores
    assert sorted(result["index"] for result in reply["results"]) == [0, 1, 2]
    assert ranker.rerank("a question", documents, top_n=1)["results"] == reply["results"][:1]
    with pytest.raises(sluice.RequestError, match="encoder"):
        ranker(PROMPT)
    with pytest.raises(ValueError, match="encoder"):
        ranker.eval([1])


def test_an_encoder_embeds():
    encoder = sluice.Llama(FIXTURES / "embed/modern-bert.gguf", n_ctx=0)
    vectors = encoder.embed_array(["a b c", "c b a " * 1000], normalize=False)
    assert vectors.shape == (2, encoder.n_embd())
    with pytest.raises(sluice.RequestError, match="context"):
        encoder.embed_array(["c b a " * 1000], truncate=False)


def test_warnings_of_an_adapter_are_logged_as_such(tale, adapters, tmp_path, caplog):
    folder = shutil.copytree(adapters[0], tmp_path / "adapter")
    about = folder / "adapter_config.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "marvellous": 3}))

    def warned():
        records = [record for record in caplog.records if "marvellous is 3" in record.getMessage()]
        caplog.clear()
        return [(record.name, record.levelno, record.getMessage()[:15]) for record in records]

    expected = [("sluice", logging.WARNING, 'adapter "sql": ')]
    with caplog.at_level(logging.WARNING):
        with sluice.LLM(tale, max_model_len=64, enable_lora=True) as llm:
            assert not warned()
            params = sluice.SamplingParams(max_tokens=1)
            llm.generate(PROMPT, params, use_tqdm=False, lora_request=sluice.LoRARequest("sql", 1, folder))
        assert warned() == expected
        with sluice.Llama(tale, n_ctx=64, lora_modules={"sql": folder}) as llama:
            llama(PROMPT, max_tokens=1, model="sql")
        assert warned() == expected
        with InferenceEngine(tale, {"sql": folder}, n_ctx=64) as engine:
            engine.generate(RequestBatch([InferenceRequest(PROMPT, "sql", 1)], InferenceTraceConfig()))
        assert warned() == expected


def test_options_without_effect_are_logged_as_warnings(tale, caplog):
    with caplog.at_level(logging.WARNING):
        sluice.Llama(tale, n_ctx=4096, longrope="long").close()
    told = [record.getMessage() for record in caplog.records if record.name == "sluice"]
    assert [line for line in told if line.startswith('model "model": --longrope has no effect')]
    assert [line for line in told if "trained on contexts of only" in line]
