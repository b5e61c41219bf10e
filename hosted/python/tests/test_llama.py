import asyncio
import pickle
import re
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import sluice
from sluice._native import Event

PROMPT = "Once upon a time"


def test_a_completion_is_openai_shaped(llama, tale):
    reply = llama(PROMPT, max_tokens=12, temperature=0.0)
    assert reply["object"] == "text_completion"
    assert reply["model"] == str(tale)
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "length"
    assert len(choice["text"]) > 20
    usage = reply["usage"]
    assert usage["completion_tokens"] == 12
    assert usage["prompt_tokens"] == len(llama.tokenize(PROMPT.encode()))


def test_a_stream_has_the_text_of_the_whole(llama):
    for settings in ({"temperature": 0.0}, {"temperature": 1.2, "seed": 5}):
        whole = llama(PROMPT, max_tokens=40, **settings)
        chunks = list(llama(PROMPT, max_tokens=40, stream=True, **settings))
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_the_seed_decides(llama):
    def text(**settings):
        return llama(PROMPT, max_tokens=30, temperature=1.0, **settings)["choices"][0]["text"]

    assert text(seed=3) == text(seed=3)
    assert text(seed=3) != text(seed=4)
    # Where a completion names none, it follows from the model's.
    llama.set_seed(7)
    first = [text(), text()]
    llama.set_seed(7)
    assert [text(), text()] == first and first[0] != first[1]


def test_stops_echo_and_logprobs(llama):
    whole = llama(PROMPT, max_tokens=40, temperature=0.0)["choices"][0]["text"]
    word = whole.split()[6]
    stopped = llama(PROMPT, max_tokens=40, temperature=0.0, stop=[word])["choices"][0]
    assert stopped["text"] == whole[: whole.index(word)]
    assert stopped["finish_reason"] == "stop"
    told = llama(PROMPT, max_tokens=5, temperature=0.0, logprobs=3, echo=True)["choices"][0]
    assert told["text"].startswith(PROMPT)
    found = told["logprobs"]
    tokens = llama.tokenize(PROMPT.encode())
    assert all(len(each) == len(tokens) + 5 for each in found.values())
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    llama.reset()
    llama.eval(tokens)
    row = llama.logits_to_logprobs(llama.scores)[-1]
    assert found["token_logprobs"][len(tokens)] == pytest.approx(row.max(), abs=1e-4)
    # What was written is as likely where it is read.
    again = llama(tokens + llama.tokenize(b" was here", add_bos=False), max_tokens=1, logprobs=1, echo=True)
    assert (
        again["choices"][0]["logprobs"]["token_logprobs"][: len(tokens)]
        == found["token_logprobs"][: len(tokens)]
    )
    assert told["text"][found["text_offset"][-1] :] == found["tokens"][-1]
    chunks = list(llama(PROMPT, max_tokens=5, temperature=0.0, logprobs=3, echo=True, stream=True))
    lists = [chunk["choices"][0]["logprobs"]["token_logprobs"] for chunk in chunks]
    assert [one for each in lists for one in each] == found["token_logprobs"]


def test_wrong_arguments_are_named(llama, tale):
    with pytest.raises(sluice.RequestError, match="temperature") as caught:
        llama(PROMPT, temperature=-1.0)
    assert caught.value.param == "temperature"
    with pytest.raises(sluice.RequestError, match="context"):
        llama("word " * 5000)
    with pytest.raises(ValueError, match="tfs_z"):
        llama(PROMPT, tfs_z=0.5)
    with pytest.raises(TypeError, match="n_cxt"):
        sluice.Llama(tale, n_cxt=5)
    with pytest.raises(ValueError, match="rope_freq_base"):
        sluice.Llama(tale, rope_freq_base=5.0)
    with pytest.raises(ValueError, match="type_k"):
        sluice.Llama(tale, type_k=99)
    for wrong, name in [
        ({"type_k": "q9"}, "type_k is 'q9', expected one of f32, "),
        ({"n_ctx": -1}, "n_ctx is -1, expected an integer from 0 to "),
        ({"poll": 101}, "poll is 101, expected an integer from 0 to 100"),
        ({"prompt_share": 2.0}, "prompt_share is 2.0, expected a number from 0 to 1"),
        ({"spec_type": "ngram,nonsense"}, "spec_type is 'ngram,nonsense', expected auto, "),
        ({"spec_type": ["none", "ngram"]}, "spec_type: none and auto cannot be combined"),
        ({"top_p": 1.5}, "top_p is 1.5, expected a number from 0 to 1"),
        ({"cpu_mask": "0xz"}, "cpu_mask is '0xz', "),
        ({"lora_dir": "/nowhere"}, "lora_dir: /nowhere "),
        ({"expert_profile": "/nowhere", "expert_cache_mib": 1}, "expert_profile is '/nowhere', "),
    ]:
        with pytest.raises(ValueError, match=re.escape(name)):
            sluice.Llama(tale, **wrong)
    for wrong, name in [
        ({"n_parallel": "4"}, "n_parallel is '4', expected an integer"),
        ({"n_threads": True}, "n_threads is True, expected an integer"),
        ({"context_shift": "yes"}, "context_shift is 'yes', expected True or False"),
        ({"lora_scaled": ["a"]}, "lora_scaled is ['a'], expected a mapping"),
        ({"chat_template_kwargs": {"a": {1}}}, "chat_template_kwargs is {'a': {1}}, expected JSON"),
    ]:
        with pytest.raises(TypeError, match=re.escape(name)):
            sluice.Llama(tale, **wrong)
    with pytest.warns(UserWarning, match="n_gpu_layers"):
        sluice.Llama(tale, n_gpu_layers=-1, vocab_only=True)
    for path in ("/nowhere/model.gguf", "/etc/passwd"):
        with pytest.raises(ValueError, match=path):
            sluice.Llama(path, verbose=False)


def test_grammars_and_schemas(llama):
    yes = sluice.LlamaGrammar.from_string('root ::= " yes" | " no"')
    assert llama(PROMPT, max_tokens=10, grammar=yes)["choices"][0]["text"] in (" yes", " no")
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}},
        "required": ["n"],
    }
    grammar = sluice.LlamaGrammar.from_json_schema(schema)
    text = llama(PROMPT, max_tokens=30, grammar=grammar, temperature=0.0)["choices"][0]["text"]
    assert text.replace(" ", "").startswith('{"n":')
    with pytest.raises(sluice.RequestError, match="grammar"):
        llama(PROMPT, grammar="root ::= nothing-of-that-name")


def test_chats_and_tools(llama):
    messages = [{"role": "user", "content": "Tell me a story."}]
    reply = llama.create_chat_completion(messages, max_tokens=8, temperature=0.0)
    assert reply["object"] == "chat.completion"
    message = reply["choices"][0]["message"]
    assert message["role"] == "assistant"
    chunks = list(llama.create_chat_completion(messages, max_tokens=8, temperature=0.0, stream=True))
    deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(deltas) == message["content"]
    function = {
        "name": "look",
        "parameters": {"type": "object", "properties": {"far": {"type": "boolean"}}, "required": ["far"]},
    }
    for asked in (
        {"tools": [{"type": "function", "function": function}], "tool_choice": "required"},
        {"functions": [function], "function_call": {"name": "look"}},
    ):
        reply = llama.create_chat_completion(messages, max_tokens=60, temperature=0.0, **asked)
        call = reply["choices"][0]["message"]["tool_calls"][0]["function"]
        assert call["name"] == "look"
        if "functions" in asked:
            assert reply["choices"][0]["message"]["function_call"] == call


def test_callbacks_see_and_change_logits(llama):
    seen = []

    def only_even(ids, scores):
        seen.append((ids.dtype, scores.dtype, scores.shape))
        scores[1::2] = -np.inf
        return scores

    answer = llama.client.complete({"prompt": PROMPT, "n_predict": 8}, [only_even])
    tokens = [event.token for event in answer.read(all=True) if isinstance(event, Event.Piece)]
    assert tokens and all(token % 2 == 0 for token in tokens)
    assert seen[0] == (np.uint32, np.float32, (llama.n_vocab(),))
    processors = sluice.LogitsProcessorList([only_even])
    assert llama(PROMPT, max_tokens=4, logits_processor=processors)["choices"][0]["text"]
    n_prompt = len(llama.tokenize(PROMPT.encode()))
    stopping = sluice.StoppingCriteriaList([lambda ids, _: len(ids) >= n_prompt + 3])
    reply = llama(PROMPT, temperature=0.0, max_tokens=20, stopping_criteria=stopping)
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["completion_tokens"] == 3


def test_an_exception_of_a_callback_is_raised(llama):
    def broken(ids, scores):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        llama(PROMPT, logits_processor=broken)
    with pytest.raises(KeyError, match="mine"):
        list(llama(PROMPT, logits_processor=broken, stream=True))
    with pytest.raises(ValueError, match="returned 3 logits"):
        llama(PROMPT, logits_processor=lambda ids, scores: scores[:3])
    # The model is as before.
    assert llama(PROMPT, max_tokens=3)["choices"][0]["text"]


def test_step_by_step_is_what_completions_do(llama):
    tokens = llama.tokenize(PROMPT.encode())
    written = []
    for token in llama.generate(tokens, temp=0.0):
        written.append(token)
        if len(written) == 20:
            break
    whole = llama(PROMPT, max_tokens=20, temperature=0.0)["choices"][0]["text"]
    assert llama.detokenize(written).decode() == whole
    assert llama.n_tokens == len(tokens) + 19
    assert llama.scores.shape == (1, llama.n_vocab())


def test_logits_of_all_tokens(tale):
    llama = sluice.Llama(tale, n_ctx=512, logits_all=True)
    tokens = llama.tokenize(b"Once upon a time there was a cat.")
    llama.eval(tokens)
    assert llama.scores.shape == (len(tokens), llama.n_vocab())
    last = llama.scores[-1].copy()
    llama.reset()
    for token in tokens:
        llama.eval([token])
    # The cut into steps changes no bit.
    assert np.array_equal(llama.scores[-1], last)
    # They are where the engine wrote them, and stay so when the text grows.
    before = llama.scores
    assert before.base is not None
    kept = before.copy()
    llama.eval(tokens * 20)
    assert np.array_equal(before, kept)
    assert np.array_equal(llama.scores[: len(tokens)], kept)
    llama.scores[-1][:] = 0
    llama.scores[-1][77] = 1
    assert llama.sample(temp=0.0) == 77
    assert llama.sample(temp=0.0, idx=2) == int(np.argmax(llama.scores[2]))
    logprobs = llama.logits_to_logprobs(llama.scores)
    assert np.allclose(np.exp(logprobs).sum(axis=-1), 1, atol=1e-4)


def test_a_state_goes_on_from_where_it_was(llama, tale):
    tokens = llama.tokenize(PROMPT.encode())
    llama.reset()
    llama.eval(tokens)
    state = llama.save_state()
    first = list(islice(llama.generate([llama.sample(temp=0.0)], temp=0.0, reset=False), 5))
    other = sluice.Llama(tale, n_ctx=2048, seed=7)
    other.load_state(pickle.loads(pickle.dumps(state)))
    second = list(islice(other.generate([other.sample(temp=0.0)], temp=0.0, reset=False), 5))
    assert first == second
    broken = bytearray(state.llama_state)
    broken[-5] ^= 1
    state.llama_state = bytes(broken)
    with pytest.raises(ValueError):
        other.load_state(state)
    for cut in (0, 5, 20, len(broken) // 2):
        state.llama_state = bytes(broken[:cut])
        with pytest.raises(ValueError):
            other.load_state(state)


def test_embeddings(llama):
    one = llama.embed("A cat sat.", normalize=True)
    assert len(one) == llama.n_embd()
    both = llama.embed_array(["A cat sat.", "A dog ran."])
    assert both.dtype == np.float32
    assert np.array_equal(np.array(one, np.float32), both[0])
    assert np.allclose(np.linalg.norm(both, axis=1), 1, atol=1e-5)
    raw = llama.create_embedding(["A cat sat."])
    vector = np.array(raw["data"][0]["embedding"])
    assert np.allclose(vector / np.linalg.norm(vector), both[0], atol=1e-6)
    with pytest.raises(sluice.RequestError, match="head"):
        llama.rerank("a", ["b"])


def test_tokens(llama):
    text = "Héllo wörld, 12 cats!\n"
    tokens = llama.tokenize(text.encode())
    assert tokens[0] == llama.token_bos()
    assert llama.detokenize(tokens[1:]).decode() == text
    assert llama.n_vocab() == 4096
    assert llama.metadata["general.architecture"] == "llama"
    with pytest.raises(ValueError, match="4096"):
        llama.detokenize([4096])


def test_asyncio(llama):
    async def one(seed):
        return (await llama.acreate_completion(PROMPT, max_tokens=12, seed=seed))["choices"][0]["text"]

    async def streamed(seed):
        chunks = await llama.acreate_completion(PROMPT, max_tokens=12, seed=seed, stream=True)
        return "".join([chunk["choices"][0]["text"] async for chunk in chunks])

    async def all_of():
        return await asyncio.gather(*(one(i) for i in range(20)), *(streamed(i) for i in range(20)))

    texts = asyncio.run(all_of())
    assert texts[:20] == texts[20:]
    assert texts[0] == llama(PROMPT, max_tokens=12, seed=0)["choices"][0]["text"]

    async def cancelled():
        task = asyncio.create_task(
            llama.acreate_completion(PROMPT, max_tokens=2000, ignore_eos=True, logits_processor=slow)
        )
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    nothing_runs(llama)

    async def chat():
        messages = [{"role": "user", "content": "Hi"}]
        reply = await llama.acreate_chat_completion(messages, max_tokens=4)
        chunks = await llama.acreate_chat_completion(messages, max_tokens=4, stream=True)
        return reply, [chunk async for chunk in chunks]

    reply, chunks = asyncio.run(chat())
    assert reply["choices"][0]["message"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_threads_get_what_they_would_get_alone(llama):
    def text(i):
        return llama(f"The {i} cats", max_tokens=16, seed=i, temperature=1.0)["choices"][0]["text"]

    alone = [text(i) for i in range(24)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(text, range(24))) == alone


def slow(ids, scores):
    """Keeps a text from coming to its end by itself."""
    time.sleep(0.01)
    return scores


def nothing_runs(llama):
    deadline = time.monotonic() + 5
    while llama.client.service.n_running():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_wrong_names_and_numbers_are_told(llama):
    for settings in ({"max_token": 5}, {"temprature": 0}, {"penalize_nl": False}):
        with pytest.raises(TypeError, match=next(iter(settings))):
            llama(PROMPT, **settings)
    with pytest.raises(TypeError, match="stopping_criteria"):
        llama.create_chat_completion([{"role": "user", "content": "a"}], stopping_criteria=slow)
    with pytest.raises(sluice.RequestError, match="temperature"):
        llama(PROMPT, temperature=float("nan"))
    assert llama(PROMPT, max_tokens=2, logit_bias={12: float("-inf")})["choices"][0]["text"][0] != ","
    with pytest.raises(ValueError, match="function_call"):
        llama.create_chat_completion([], tools=[{}], function_call="none")
    with pytest.raises(ValueError, match="outside the vocabulary"):
        llama.eval([-1])


def test_what_is_closed_while_it_runs_is_told(tale):
    llama = sluice.Llama(tale, n_ctx=2048)
    stream = llama(PROMPT, max_tokens=2000, stream=True, ignore_eos=True, logits_processor=slow)
    next(stream)

    async def one():
        task = asyncio.create_task(
            llama.acreate_completion(PROMPT, max_tokens=2000, ignore_eos=True, logits_processor=slow)
        )
        await asyncio.sleep(0.1)
        await asyncio.to_thread(llama.close)
        return await asyncio.wait_for(task, 10)

    with pytest.raises(sluice.ServiceError):
        asyncio.run(one())
    with pytest.raises(sluice.ServiceError):
        list(stream)


def test_keys_are_for_others(tale, monkeypatch):
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    assert sluice.Llama(tale, n_ctx=256)(PROMPT, max_tokens=1)["choices"]


def test_a_grammar_begins_anew_with_each_text(llama):
    grammar = sluice.LlamaGrammar.from_string('root ::= "a cat" | "a dog"')
    tokens = llama.tokenize(PROMPT.encode())

    def written():
        found = []
        for token in llama.generate(tokens, temp=0.0, grammar=grammar):
            # Another choice in between is not part of it.
            llama.sample(temp=0.0)
            found.append(token)
            if llama.detokenize(found) in (b"a cat", b"a dog"):
                return found
        return None

    assert written() == written()
    stopped = list(
        llama.generate(tokens, temp=0.0, stopping_criteria=lambda ids, _: len(ids) >= len(tokens) + 3)
    )
    assert len(stopped) == 3


def test_a_loop_that_is_left_ends_the_work(llama):
    for _ in range(30):
        for chunk in llama(PROMPT, max_tokens=2000, stream=True, ignore_eos=True, logits_processor=slow):
            assert chunk
            break
    nothing_runs(llama)
    assert llama(PROMPT, max_tokens=3)["choices"][0]["text"]


def test_drafts_change_nothing(tale):
    def text(llama):
        return llama(PROMPT, max_tokens=60, temperature=0.7, seed=11)["choices"][0]["text"]

    expected = text(sluice.Llama(tale, spec_type="none"))
    lookup = sluice.LlamaPromptLookupDecoding(num_pred_tokens=6)
    assert text(sluice.Llama(tale, draft_model=lookup)) == expected
    assert text(sluice.Llama(tale, draft_model=tale)) == expected
    assert text(sluice.Llama(tale, spec_type=["ngram", "draft-self"], spec_draft_n_max=4)) == expected
    with pytest.raises(TypeError, match="draft_model"):
        sluice.Llama(tale, draft_model=lambda ids: ids)


def test_pickles_and_closes(tale):
    with sluice.Llama(tale, n_ctx=256, seed=1) as llama:
        again = pickle.loads(pickle.dumps(llama))
        assert again(PROMPT, max_tokens=5)["choices"] == llama(PROMPT, max_tokens=5)["choices"]
    with pytest.raises(sluice.ServiceError, match="closed"):
        llama(PROMPT)
    only_words = sluice.Llama(tale, vocab_only=True)
    assert only_words.tokenize(b"a cat") == again.tokenize(b"a cat")
    with pytest.raises(sluice.ServiceError, match="vocab_only"):
        only_words(PROMPT)


def test_a_text_that_becomes_long_is_one_pass():
    """The original context of this longrope model is 16 tokens."""
    path = Path(__file__).parents[3] / "tests/fixtures/models/llama-longrope.gguf"
    tokens = [11, 45, 70, 201, 33, 90, 14, 77, 150, 60] * 2
    whole = sluice.Llama(path, n_ctx=64, verbose=False)
    whole.eval(tokens)
    for n_batch in (64, 3):
        llama = sluice.Llama(path, n_ctx=64, n_batch=n_batch, logits_all=True, verbose=False)
        llama.eval(tokens)
        assert np.array_equal(llama.scores[-1], whole.scores[-1])
        tenth = llama.scores[9].copy()
        llama.reset()
        llama.eval(tokens[:15])
        assert not np.array_equal(llama.scores[9], tenth)
        for token in tokens[15:]:
            llama.eval([token])
        assert np.array_equal(llama.scores[-1], whole.scores[-1])


def test_another_activation(tale):
    """Gates of files that do not name their activation."""
    told = {}
    for name in (None, "silu", "relu", "fatrelu:0.25"):
        llama = sluice.Llama(tale, n_ctx=64, activation=name, verbose=False)
        reply = llama(PROMPT, max_tokens=4, temperature=0.0, logprobs=1)
        told[name] = str(reply["choices"][0]["logprobs"])
        llama.close()
    assert told[None] == told["silu"]
    assert len({told[None], told["relu"], told["fatrelu:0.25"]}) == 3
    with pytest.raises(ValueError, match="activation"):
        sluice.Llama(tale, n_ctx=64, activation="gelu")
