"""What a batch's classes have apart from texts: defaults, differences, penalties, the tokenizer's face."""

import asyncio

import numpy as np
import pytest
from sluice._batch import bad_words
from sluice._client import whole
from sluice.async_llm import AsyncLLM
from sluice.llm import LLM
from sluice.sampling_params import RequestOutputKind, SamplingParams

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def llm(tale):
    with LLM(tale, max_model_len=256) as made:
        yield made


def test_penalties_in_the_engine_are_those_of_vllm(llm):
    """vLLM's formulas, in numpy, on logits that the penalties have not changed."""
    plain = {"temperature": 0, "max_tokens": 30, "ignore_eos": True}
    penalties = {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": 0.4}

    def theirs(prompt, written, logits):
        seen = np.unique([*prompt, *written])
        logits[seen] = np.where(
            logits[seen] > 0, logits[seen] / np.float32(1.3), logits[seen] * np.float32(1.3)
        )
        tokens, counts = np.unique(np.array(written, int), return_counts=True)
        logits[tokens] -= counts.astype(np.float32) * np.float32(0.7) + np.float32(0.4)
        return logits

    (ours,) = llm.generate(PROMPT, SamplingParams(**plain, **penalties, logprobs=1), use_tqdm=False)
    (expected,) = llm.generate(PROMPT, SamplingParams(**plain, logits_processors=[theirs]), use_tqdm=False)
    assert ours.outputs[0].token_ids == expected.outputs[0].token_ids
    # The prompt's own tokens are not penalised twice: the first one is as with the factor alone.
    (factor,) = llm.generate(PROMPT, SamplingParams(**plain, repetition_penalty=1.3), use_tqdm=False)
    assert ours.outputs[0].token_ids[0] == factor.outputs[0].token_ids[0]
    assert ours.outputs[0].token_ids != factor.outputs[0].token_ids
    # Log-probabilities are the model's own.
    assert all(min(one.rank or 9 for one in likely.values()) == 1 for likely in ours.outputs[0].logprobs)


def test_words_of_several_tokens_are_never_completed(llm):
    """vLLM's rule, in numpy: the last token of a word is excluded where its others were just written."""
    plain = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
    (free,) = llm.generate(PROMPT, SamplingParams(**plain), use_tqdm=False)
    written, tokenizer = free.outputs[0].token_ids, llm.get_tokenizer()
    # Three tokens that follow each other, as a text that becomes the same ones.
    texts = [tokenizer.decode(written[at : at + 3]) for at in range(20)]
    forms = {text.strip(): bad_words([text.strip()], llm._model) for text in texts if text.strip()}
    words = [text for text, ids in forms.items() if min(map(len, ids)) > 1 and text in free.outputs[0].text]
    assert len(words) > 3

    def theirs(prompt, written, logits):
        for word in all_ids:
            if len(word) <= len(written) + 1 and written[len(written) + 1 - len(word) :] == word[:-1]:
                logits[word[-1]] = -np.inf
        return logits

    for some in ([words[0]], words[1:3], words):
        all_ids = bad_words(some, llm._model)
        params = SamplingParams(**plain, bad_words=some, logprobs=1)
        (ours,) = llm.generate(PROMPT, params, use_tqdm=False)
        processed = SamplingParams(**plain, logits_processors=[theirs])
        (expected,) = llm.generate(PROMPT, processed, use_tqdm=False)
        assert ours.outputs[0].token_ids == expected.outputs[0].token_ids != written
        # Log-probabilities are the model's own: where a token was excluded, another one is the likeliest.
        pairs = zip(ours.outputs[0].token_ids, ours.outputs[0].logprobs, strict=True)
        assert {likely[token].rank for token, likely in pairs} == {1, None}
    # Each choice has its own text, and the prompt's words do not count.
    several = SamplingParams(max_tokens=30, n=4, seed=3, temperature=0.5, bad_words=words)
    (outputs,) = llm.generate(PROMPT, several, use_tqdm=False)
    for one in outputs.outputs:
        written = one.token_ids
        for word in all_ids:
            assert word not in [written[at : at + len(word)] for at in range(len(written))]
    with pytest.raises(ValueError, match="bad_words"):
        whole(llm._client.complete({"prompt": PROMPT, "bad_words_token_ids": [[1, 1 << 20]]}))


def test_streams_of_differences_add_up(tale, llm):
    params = SamplingParams(max_tokens=12, seed=4, n=2, logprobs=1, output_kind=RequestOutputKind.DELTA)
    (whole,) = llm.generate(PROMPT, params, use_tqdm=False)
    model = AsyncLLM(tale, max_model_len=256)

    async def read(params):
        return [output async for output in model.generate(PROMPT, params)]

    outputs = asyncio.run(read(params))
    for index, expected in enumerate(whole.outputs):
        parts = [part for output in outputs for part in output.outputs if part.index == index]
        assert "".join(part.text for part in parts) == expected.text
        assert [token for part in parts for token in part.token_ids] == expected.token_ids
        assert [one for part in parts for one in part.logprobs] == expected.logprobs
        assert [part.finish_reason for part in parts][-1] == "length"
        assert all(part.token_ids or part.text or part.finish_reason for part in parts)
    final = SamplingParams(max_tokens=4, output_kind=RequestOutputKind.FINAL_ONLY)
    assert len(asyncio.run(read(final))) == 1
    with pytest.raises(TypeError, match="output_kind"):
        SamplingParams(output_kind="delta")
    model.shutdown()


def test_defaults_are_what_the_file_recommends(shared, tmp_path, monkeypatch, llm):
    import json
    import shutil

    assert llm.get_default_sampling_params() == SamplingParams()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    shutil.copytree(shared / "models/tale-5.8m-hf", folder)
    recommended = {"temperature": 0.5, "top_k": 7, "top_p": 0.75, "repetition_penalty": 1.5}
    (folder / "generation_config.json").write_text(json.dumps(recommended))
    with LLM(folder, max_model_len=64) as made:
        found = made.get_default_sampling_params()
        assert {name: getattr(found, name) for name in recommended} == recommended
    with LLM(folder, max_model_len=64, generation_config="vllm") as made:
        assert made.get_default_sampling_params() == SamplingParams()


def test_the_tokenizer_has_what_frameworks_read(llm):
    tokenizer = llm.get_tokenizer()
    vocabulary = tokenizer.get_vocab()
    assert tokenizer.eos_token == tokenizer.convert_ids_to_tokens(tokenizer.eos_token_id)
    assert tokenizer.eos_token_id in tokenizer.all_special_ids
    assert tokenizer.eos_token in tokenizer.all_special_tokens
    assert vocabulary[tokenizer.eos_token] == tokenizer.eos_token_id
    assert tokenizer.bos_token is None or tokenizer.bos_token in vocabulary
    both = tokenizer([PROMPT, "The dog"])
    assert both["input_ids"] == [tokenizer.encode(PROMPT), tokenizer.encode("The dog")]
    assert [len(mask) for mask in both["attention_mask"]] == [len(tokens) for tokens in both["input_ids"]]
    assert tokenizer.batch_decode(both["input_ids"], skip_special_tokens=True) == [PROMPT, "The dog"]
    array = tokenizer(PROMPT, return_tensors="np")["input_ids"]
    assert array.shape == (1, len(tokenizer.encode(PROMPT)))
    assert tokenizer.decode(array[0], skip_special_tokens=True) == PROMPT
    assert tokenizer.decode(np.int64(array[0][-1])) == " time"
    tokens = tokenizer.tokenize(PROMPT)
    assert tokenizer.convert_tokens_to_ids(tokens) == tokenizer.encode(PROMPT, add_special_tokens=False)
    assert tokenizer.convert_tokens_to_ids("no such token") is None
    assert len(tokenizer(PROMPT, truncation=True, max_length=2)["input_ids"]) == 2
    with pytest.raises(ValueError, match="4096"):
        tokenizer.convert_ids_to_tokens(4096)
    with pytest.raises(ValueError, match="return_tensors"):
        tokenizer(PROMPT, return_tensors="pt")
    with pytest.raises(TypeError, match="token_ids"):
        tokenizer.decode(None)


def test_a_forced_function_is_called_once(llama):
    tool = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {
        "zone": {"type": "string", "enum": ["north", "south"]}}, "required": ["zone"]}}}  # fmt: skip
    for max_tokens in (60, 12):
        reply = llama.create_chat_completion(
            [{"role": "user", "content": "What time is it?"}],
            tools=[tool],
            tool_choice={"type": "function", "function": {"name": "clock"}},
            max_tokens=max_tokens,
            temperature=0,
        )
        message = reply["choices"][0]["message"]
        assert len(message.get("tool_calls", [])) <= 1 and "tool_call" not in (message["content"] or "")
