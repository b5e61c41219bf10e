"""Prompts as pipelines have them: arrays, columns, iterators; and what is refused, by its row."""

import collections
import sys

import numpy as np
import pytest
import sluice
from sluice.inputs import TextPrompt, TokensPrompt
from sluice.llm import LLM
from sluice.sampling_params import SamplingParams

TEXTS = ["Once upon a time", "The dog"]
WRONG = [None, b"Once", {1, 2}, 3, 1.5, float("nan"), True, object()]


class Series:
    """A column as pandas has it: it is not a sequence, and has `tolist`."""

    def __init__(self, values):
        self.values = list(values)

    def tolist(self):
        return self.values

    def __iter__(self):
        return iter(self.values)


@pytest.fixture(scope="module")
def llm(tale):
    with LLM(tale, max_model_len=64, max_num_seqs=4) as made:
        yield made


def greedy(**more):
    return SamplingParams(temperature=0, max_tokens=6, **more)


def generate(llm, prompts, params=None, **more):
    return llm.generate(prompts, params or greedy(), use_tqdm=False, **more)


def texts(outputs):
    return [output.outputs[0].text for output in outputs]


def rows(llm):
    tokens = [llm.get_tokenizer().encode(text) for text in TEXTS]
    return {
        "array": np.array(TEXTS),
        "objects": np.array(TEXTS, dtype=object),
        "column": Series(TEXTS),
        "iterator": iter(TEXTS),
        "generator": (text for text in TEXTS),
        "deque": collections.deque(TEXTS),
        "tokens": [np.array(tokens[0]), tuple(np.int64(token) for token in tokens[1])],
        "dictionaries": [TextPrompt(prompt=TEXTS[0]), TokensPrompt(prompt_token_ids=np.array(tokens[1]))],
    }


def test_batches_are_taken_as_arrays_columns_and_iterators(llm):
    expected = texts(generate(llm, TEXTS))
    for name, given in rows(llm).items():
        assert texts(generate(llm, given)) == expected, name
    tokens = llm.get_tokenizer().encode(TEXTS[0])
    for single in (np.array(tokens), iter(tokens), Series(tokens), tuple(tokens)):
        assert texts(generate(llm, single)) == expected[:1]
    assert generate(llm, np.array([])) == [] == generate(llm, iter(()))
    vectors = [output.outputs.embedding for output in llm.embed(TEXTS, use_tqdm=False)]
    for name, given in rows(llm).items():
        found = [output.outputs.embedding for output in llm.embed(given, use_tqdm=False)]
        assert found == vectors, name


def test_a_row_that_is_no_prompt_is_refused_by_its_index(llm, llama):
    for wrong in [
        *WRONG,
        {"prompt": None},
        {"prompt": b"a"},
        {"text": "a"},
        ["a", "b"],
        [1, None],
        [],
        [4096],
        [-1],
    ]:
        for ask in (generate, lambda llm, given: llm.embed(given, use_tqdm=False)):
            with pytest.raises((TypeError, ValueError), match=r"^prompts\[1\]: "):
                ask(llm, ["Once", wrong])
        with pytest.raises((TypeError, ValueError), match=r"^prompts\[1\]: "):
            generate(llm, np.array(["Once", None], dtype=object))
    for wrong in WRONG:
        with pytest.raises(TypeError, match=r"input\[1\]"):
            llama.embed(["Once", wrong])
        if wrong == 3:  # A prompt may have texts and tokens.
            continue
        with pytest.raises((TypeError, ValueError), match=r"prompt"):
            llama(["Once", wrong], max_tokens=1)
    for wrong in [
        None,
        b"Once",
        {1, 2},
        {"prompt": "x"},
        3,
        1.5,
        bytearray(b"a"),
        memoryview(b"a"),
        {}.keys(),
    ]:
        with pytest.raises(TypeError, match="prompts is"):
            generate(llm, {}.keys() if isinstance(wrong, dict) else wrong)
        with pytest.raises(TypeError, match="prompt is"):
            llama(wrong, max_tokens=1)
        with pytest.raises(TypeError, match="input is"):
            llama.embed(wrong)
        with pytest.raises(TypeError, match="tokens is"):
            llama.eval(wrong)
        with pytest.raises(TypeError, match="tokens is"):
            llama.detokenize(wrong)
    with pytest.raises(TypeError, match="tokens"):
        llama.eval("Once")


def test_llama_takes_arrays_and_numbers_of_numpy(llama):
    tokens = llama.tokenize(TEXTS[0].encode())
    settings = {"max_tokens": 8, "temperature": 0.5, "seed": 4, "top_k": 20}
    expected = llama(tokens, **settings)["choices"][0]["text"]
    for given in (np.array(tokens), list(np.array(tokens)), iter(tokens), Series(tokens)):
        assert llama(given, **settings)["choices"][0]["text"] == expected
    numbers = {
        "max_tokens": np.int64(8),
        "temperature": np.float32(0.5),
        "seed": np.int64(4),
        "top_k": np.int32(20),
    }
    assert llama(tokens, echo=np.bool_(False), **numbers)["choices"][0]["text"] == expected
    both = llama(np.array(TEXTS), max_tokens=1, temperature=0)["choices"]
    assert len(both) == 2
    assert llama("a", top_k=None, max_tokens=1)["usage"]["completion_tokens"] == 1
    assert llama.embed(np.array(TEXTS)) == llama.embed(TEXTS) == llama.embed(Series(TEXTS))
    schema = {"type": "array", "items": {"enum": list(np.array([1, 2]))}, "maxItems": np.int64(2)}
    reply = llama("List: ", response_format={"type": "json_object", "schema": schema}, max_tokens=30)
    assert reply["choices"][0]["text"][0] == "["
    assert llama("a", stop=np.array(["b"]), logit_bias={np.int64(5): np.float64(-100)}, max_tokens=1)


def test_prompts_are_checked_before_the_first_step(llm):
    seen = []

    def watch(tokens, logits):
        seen.append(1)
        return logits

    long = list(range(300, 400))
    with pytest.raises(ValueError, match=r"^prompts\[3\]: the prompt has 100 tokens, max_model_len is 64"):
        generate(llm, [*TEXTS, "a", long], greedy(logits_processors=[watch]))
    with pytest.raises(ValueError, match=r"^messages\[1\]: "):
        llm.chat([[{"role": "user", "content": "a"}], [{"role": "user"}, 3]], greedy(), use_tqdm=False)
    with pytest.raises(ValueError, match=r"^prompts\[300\]: the text has 100 tokens, max_model_len is 64"):
        llm.embed(["a"] * 300 + [long], use_tqdm=False)
    assert not seen


def test_errors_are_rows(llm):
    long = list(range(300, 400))
    given = [TEXTS[0], None, long, TEXTS[1]]
    found = generate(llm, given, on_error="return")
    assert texts([found[0], found[3]]) == texts(generate(llm, TEXTS))
    assert [type(output.error) for output in found] == [type(None), TypeError, ValueError, type(None)]
    assert "prompts[1]" in str(found[1].error) and found[1].outputs == [] and found[1].finished
    vectors = llm.embed(given, use_tqdm=False, on_error="return")
    assert [len(output.outputs.embedding) for output in vectors] == [256, 0, 0, 256]
    assert [output.error is None for output in vectors] == [True, False, False, True]

    def fails(tokens, logits):
        raise KeyError("my own")

    # What fails while it runs, too, and what the engine refuses.
    params = [
        greedy(),
        greedy(logits_processors=[fails]),
        greedy(structured_outputs={"grammar": "root ::= ("}),
    ]
    found = generate(llm, ["a"] * 3, params, on_error="return")
    assert found[0].outputs[0].text and isinstance(found[1].error, KeyError)
    assert isinstance(found[2].error, sluice.RequestError) and "prompts[2]" in str(found[2].error)
    with pytest.raises(ValueError, match="on_error"):
        generate(llm, "a", on_error="ignore")


def test_embeddings_keep_to_max_model_len(llm):
    tokens = list(range(300, 364))
    assert llm.embed([tokens], use_tqdm=False)[0].prompt_token_ids == tokens
    with pytest.raises(ValueError, match="max_model_len is 64"):
        llm.embed([[*tokens, 5]], use_tqdm=False)
    pooling = sluice.PoolingParams(truncate_prompt_tokens=-1, dimensions=8, normalize=False)
    (cut,) = llm.embed([[*tokens, 5]], use_tqdm=False, pooling_params=pooling)
    assert cut.prompt_token_ids == tokens and len(cut.outputs.embedding) == 8
    with pytest.raises(ValueError, match="task"):
        sluice.PoolingParams(task="classify")


def test_bars_are_drawn_where_somebody_sees_them(llm, monkeypatch):
    drawn = []

    class Bar:
        def __init__(self, total, desc):
            drawn.append(total)

        def update(self, n):
            drawn.append(n)

        def close(self):
            drawn.append("closed")

    module = type(sys)("tqdm.auto")
    module.tqdm = Bar
    package = type(sys)("tqdm")
    package.__spec__ = sys.__spec__
    monkeypatch.setitem(sys.modules, "tqdm", package)
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    llm.generate(TEXTS, greedy())
    assert drawn == []
    monkeypatch.setitem(sys.modules, "ipykernel", type(sys)("ipykernel"))
    llm.generate(TEXTS, greedy())
    assert drawn == [2, 1, 1, "closed"]
    llm.embed(TEXTS)
    assert drawn == [2, 1, 1, "closed"] * 2
    llm.generate(TEXTS, greedy(), use_tqdm=False)
    assert len(drawn) == 8
