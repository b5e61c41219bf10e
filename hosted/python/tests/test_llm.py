import asyncio
import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from sluice._native import Event, sampling_parameters
from sluice.async_llm import AsyncLLM
from sluice.llm import LLM
from sluice.lora_request import LoRARequest
from sluice.sampling_params import RANGES, SamplingParams, StructuredOutputsParams

PROMPTS = ["Once upon a time", "The dog", "A little girl named Lily", "One day, the sun", "Tom and Sam"]


@pytest.fixture(scope="module")
def llm(tale):
    with LLM(tale, max_num_seqs=8, enable_lora=True, max_lora_rank=32, seed=11) as made:
        yield made


def greedy(**more):
    return SamplingParams(temperature=0, **{"max_tokens": 24, **more})


def generate(llm, prompts, params, **more):
    return llm.generate(prompts, params, use_tqdm=False, **more)


def ids(output):
    return [choice.token_ids for choice in output.outputs]


def test_outputs_come_in_the_order_of_prompts_and_are_those_of_each_alone(llm):
    params = SamplingParams(max_tokens=40, seed=5, n=2)
    lengths = [SamplingParams(max_tokens=n, seed=5, n=2) for n in (40, 3, 17, 1, 30)]
    together = generate(llm, PROMPTS, params)
    assert [output.prompt for output in together] == PROMPTS
    assert [len(ids(output)[0]) for output in generate(llm, PROMPTS, lengths)] == [40, 3, 17, 1, 30]
    for prompt, output in zip(PROMPTS, together, strict=True):
        assert output.finished
        assert len({tuple(tokens) for tokens in ids(output)}) == 2
        (alone,) = generate(llm, prompt, params)
        assert ids(alone) == ids(output)
        assert [choice.text for choice in alone.outputs] == [choice.text for choice in output.outputs]


def test_forms_of_prompts_are_the_same(llm):
    tokens = llm.get_tokenizer().encode(PROMPTS[0])
    forms = [PROMPTS[0], tokens, {"prompt": PROMPTS[0]}, {"prompt_token_ids": tokens}]
    found = generate(llm, forms, greedy())
    assert len({tuple(ids(output)[0]) for output in found}) == 1
    assert all(output.prompt_token_ids == tokens for output in found)
    assert ids(generate(llm, tokens, greedy())[0]) == ids(found[0])
    assert generate(llm, [], greedy()) == []
    text = llm.get_tokenizer().decode(ids(found[0])[0], skip_special_tokens=True)
    assert text == found[0].outputs[0].text


def test_texts_without_a_seed_differ_and_come_again_in_another_model(llm, tale):
    params = SamplingParams(max_tokens=20)
    found = generate(llm, [PROMPTS[0]] * 4, params)
    assert len({tuple(ids(output)[0]) for output in found}) == 4
    runs = []
    for _ in range(2):
        with LLM(tale, seed=3) as other:
            runs.append([ids(output) for output in generate(other, PROMPTS, params)])
    assert runs[0] == runs[1]


def test_stops_say_what_ended_the_text(llm):
    whole = generate(llm, PROMPTS[0], greedy())[0].outputs[0]
    assert (whole.finish_reason, whole.stop_reason, len(whole.token_ids)) == ("length", None, 24)
    word = whole.text.split()[5]
    stopped = generate(llm, PROMPTS[0], greedy(stop=word))[0].outputs[0]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", word)
    assert whole.text.startswith(stopped.text) and word not in stopped.text
    shown = generate(llm, PROMPTS[0], greedy(stop=[word], include_stop_str_in_output=True))[0].outputs[0]
    assert shown.text == stopped.text + word
    token = next(
        token for i, token in enumerate(whole.token_ids) if i > 3 and token not in whole.token_ids[:i]
    )
    at = whole.token_ids.index(token)
    ended = generate(llm, PROMPTS[0], greedy(stop_token_ids=[token], logprobs=1))[0].outputs[0]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", token)
    assert ended.token_ids == whole.token_ids[: at + 1]
    assert len(ended.logprobs) == at + 1
    later = generate(llm, PROMPTS[0], greedy(stop_token_ids=[token], min_tokens=at + 4))[0].outputs[0]
    assert len(later.token_ids) >= at + 4 and token not in later.token_ids[: at + 4]


def test_the_models_own_end_is_a_token(llm):
    end = llm.get_tokenizer().eos_token_id
    params = greedy(logit_bias={end: 50}, max_tokens=5, logprobs=0)
    found = generate(llm, PROMPTS[0], params)[0].outputs[0]
    assert (found.token_ids, found.text, found.finish_reason, found.stop_reason) == ([end], "", "stop", None)
    assert len(found.logprobs) == 1
    found = generate(llm, PROMPTS[0], greedy(logit_bias={end: 50}, max_tokens=5, min_tokens=3))[0].outputs[0]
    assert len(found.token_ids) == 4 and found.token_ids[-1] == end


def test_logprobs_have_the_token_and_the_likeliest(llm):
    output = generate(llm, PROMPTS[1], SamplingParams(max_tokens=12, seed=2, logprobs=3, prompt_logprobs=2))[
        0
    ]
    choice = output.outputs[0]
    assert len(choice.logprobs) == len(choice.token_ids) == 12
    total = 0.0
    for token, likely in zip(choice.token_ids, choice.logprobs, strict=True):
        assert next(iter(likely)) == token
        assert {1, 2, 3} <= {one.rank for one in likely.values()}
        assert len(likely) == (3 if likely[token].rank in (1, 2, 3) else 4)
        total += likely[token].logprob
    assert choice.cumulative_logprob == pytest.approx(total)
    # What is behind the prompt is asked again as a part of it.
    again = [*output.prompt_token_ids, *choice.token_ids]
    read = generate(llm, again, greedy(prompt_logprobs=1))[0].prompt_logprobs
    assert read[0] is None and len(read) == len(again)
    for token, likely, other in zip(choice.token_ids, choice.logprobs, read[-12:], strict=True):
        assert other[token].logprob == pytest.approx(likely[token].logprob, abs=1e-5)
    assert generate(llm, PROMPTS[1], greedy())[0].outputs[0].logprobs is None


def test_structured_outputs_keep_to_their_form(llm):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    for given in (schema, json.dumps(schema)):
        params = SamplingParams(max_tokens=60, seed=1, structured_outputs=StructuredOutputsParams(json=given))
        text = generate(llm, PROMPTS[0], params)[0].outputs[0].text
        assert json.loads(text)["a"] in ("x", "y")
    words = ['yes "so"', "no\n", "maybe \\"]
    params = SamplingParams(max_tokens=20, seed=1, n=8, structured_outputs={"choice": words})
    assert {choice.text for choice in generate(llm, PROMPTS[0], params)[0].outputs} <= set(words)
    params = greedy(structured_outputs=StructuredOutputsParams(grammar='root ::= "a" [0-9]{3}'))
    assert generate(llm, PROMPTS[0], params)[0].outputs[0].text[0] == "a"


@pytest.mark.parametrize(
    "pattern",
    [
        r"\d{3}-[a-f\]x-]+?(yes|no|\?)",
        r"^(?:[A-Z][a-z]*, ){2,3}\w\.$",
        r"(?P<day>[0-3]?\d)/\x41\u00e9\n.{1,4}",
        r"(?<day>(?i)ab)[\s\S]{3}\p{L}+",
        r"(^a\w+$)|^b\d$",
        r"[^a-z\s\-]{4}|a*b",
        "[é-ü😀]{2,}",
    ],
)
def test_texts_match_regular_expressions(llm, pattern):
    params = SamplingParams(max_tokens=80, seed=3, n=6, structured_outputs={"regex": pattern})
    for choice in generate(llm, PROMPTS[0], params)[0].outputs:
        # Python has other words for two of these.
        ours = pattern.replace("?<day>(?i)ab", "?i:ab").replace(r"\p{L}", r"[^\W\d_]")
        whole = re.fullmatch(ours, choice.text)
        assert whole or choice.finish_reason == "length", choice.text


@pytest.mark.parametrize(
    "pattern",
    ["(", "a)", "[a", "a{2", "*", r"\1", "(?=a)", r"\b", "a{3,2}", "[z-a]", "a++", r"\x4", "(" * 400],
)
def test_wrong_patterns_are_named(pattern):
    with pytest.raises(ValueError, match="regex"):
        SamplingParams(structured_outputs={"regex": pattern})


def test_tokens_are_allowed_and_forbidden(llm):
    params = SamplingParams(max_tokens=12, seed=1, allowed_token_ids=[300, 301])
    assert set(ids(generate(llm, PROMPTS[0], params)[0])[0]) <= {300, 301}
    plain = generate(llm, PROMPTS[0], greedy())[0].outputs[0].text
    words = plain.split()[3:5]
    forbidden = [words[0], " ".join(words)]
    found = generate(llm, PROMPTS[0], greedy(bad_words=forbidden))[0].outputs[0].text
    assert words[0] in plain and words[0] not in found.split()


def test_penalties_are_for_what_was_written(llm):
    params = greedy(max_tokens=40, presence_penalty=2.0, frequency_penalty=2.0)
    tokens = ids(generate(llm, PROMPTS[0], params)[0])[0]
    plain = ids(generate(llm, PROMPTS[0], greedy(max_tokens=40))[0])[0]
    assert len(set(tokens)) > len(set(plain))
    # With nothing written yet the first token is as without.
    assert tokens[0] == plain[0]


def test_processors_see_what_was_written(llm):
    seen = []

    def two(tokens, logits):
        seen.append(list(tokens))
        logits[:] = -np.inf
        logits[400 + len(tokens)] = 0
        return logits

    def three(prompt, tokens, logits):
        assert prompt == llm.get_tokenizer().encode(PROMPTS[0])
        return logits

    params = greedy(max_tokens=3, logits_processors=[two, three])
    assert ids(generate(llm, PROMPTS[0], params)[0])[0] == [400, 401, 402]
    assert seen[:3] == [[], [400], [400, 401]]

    def fails(tokens, logits):
        raise KeyError("my own")

    with pytest.raises(KeyError, match="my own"):
        generate(llm, PROMPTS, greedy(logits_processors=[fails]))
    assert generate(llm, PROMPTS[0], greedy())[0].finished


def test_prompts_are_cut_and_texts_end_with_max_model_len(tale):
    with LLM(tale, max_model_len=32, max_num_seqs=2) as llm:
        tokens = list(range(300, 340))
        with pytest.raises(ValueError, match="max_model_len is 32"):
            generate(llm, [tokens], greedy())
        cut = generate(llm, [tokens], greedy(truncate_prompt_tokens=10, max_tokens=None, ignore_eos=True))[0]
        assert cut.prompt_token_ids == tokens[-10:]
        assert len(cut.outputs[0].token_ids) == 22 and cut.outputs[0].finish_reason == "length"
        assert len(generate(llm, [tokens], greedy(truncate_prompt_tokens=-1))[0].prompt_token_ids) == 31


def test_what_is_wrong_is_named(llm, tale):
    for name, value in [
        ("n", 0),
        ("n", 1.5),
        ("temperature", -1),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 2),
        ("presence_penalty", 3),
        ("repetition_penalty", 0),
        ("max_tokens", 0),
        ("min_tokens", 17),
        ("logprobs", -1),
        ("seed", 1 << 64),
        ("stop", [""]),
        ("best_of", 3),
        ("allowed_token_ids", []),
        ("truncate_prompt_tokens", 0),
        ("structured_outputs", {"structural_tag": "a"}),
        ("structured_outputs", {"json": "{", "choice": None}),
        ("structured_outputs", {"json": {}, "grammar": "root ::= [a]"}),
        ("spaces_between_special_tokens", False),
        ("extra_args", {"a": 1}),
    ]:
        with pytest.raises((ValueError, TypeError), match=name):
            SamplingParams(**{name: value})
    with pytest.raises(ValueError, match="grammar"):
        generate(llm, PROMPTS, greedy(structured_outputs={"grammar": "root ::= ("}))
    with pytest.raises(ValueError, match="stop_token_ids"):
        generate(llm, PROMPTS, greedy(stop_token_ids=[1 << 20]))
    with pytest.raises(ValueError, match="4096"):
        generate(llm, [[1, 4096]], greedy())
    with pytest.raises(TypeError, match="sampling_params"):
        generate(llm, PROMPTS, 3)
    with pytest.raises(ValueError, match="4 for 5"):
        generate(llm, PROMPTS, [greedy()] * 4)
    with pytest.raises(ValueError, match="tensor_parallel_size"):
        LLM(tale, tensor_parallel_size=2)
    with pytest.raises(TypeError, match="nonsense"):
        LLM(tale, nonsense=2)
    with pytest.raises(ValueError, match="max_num_seqs"):
        LLM(tale, max_num_seqs=0)
    with pytest.raises(ValueError, match="kv_cache_dtype"):
        LLM(tale, kv_cache_dtype="int3")
    with pytest.raises(ValueError, match="does not exist"):
        LLM("nowhere.gguf")
    with pytest.raises(ValueError, match="dtype"):
        LLM(tale, dtype="bfloat16")
    with pytest.warns(UserWarning, match="gpu_memory_utilization"):
        LLM(tale, gpu_memory_utilization=0.5).close()
    with pytest.raises(AttributeError, match="sleep: not supported"):
        llm.sleep()


def test_a_folder_of_hugging_faces_is_a_model(shared, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = shared / "models/tale-5.8m-hf"
    texts = []
    for dtype in ("auto", "float16"):
        with LLM(folder, dtype=dtype, max_model_len=128) as made:
            texts.append(generate(made, PROMPTS[0], greedy())[0].outputs[0].text)
    assert texts[0] and texts[0] == texts[1]


def test_conversations_become_prompts(llm):
    one = [{"role": "user", "content": "Tell a tale."}]
    two = [*one, {"role": "assistant", "content": "Once upon"}]
    found = llm.chat([one, one], greedy(), use_tqdm=False)
    assert ids(found[0]) == ids(found[1])
    text = llm.get_tokenizer().apply_chat_template(one, tokenize=False, add_generation_prompt=True)
    assert found[0].prompt == text
    tokens = llm.get_tokenizer().apply_chat_template(one, add_generation_prompt=True)
    assert found[0].prompt_token_ids == tokens
    begun = llm.chat(two, greedy(), use_tqdm=False, continue_final_message=True)[0]
    assert begun.prompt == text + "Once upon"
    with pytest.raises(ValueError, match="chat_template"):
        llm.chat(one, greedy(), chat_template="x")
    events = llm._client.chat({"messages": one, "temperature": 0, "max_tokens": 24}).read(all=True)
    text = "".join(event.text for event in events if isinstance(event, Event.Piece))
    assert text == found[0].outputs[0].text


def test_vectors_are_those_of_each_text_alone(llm):
    together = llm.embed(PROMPTS, use_tqdm=False)
    for prompt, output in zip(PROMPTS, together, strict=True):
        (alone,) = llm.embed(prompt, use_tqdm=False)
        assert alone.outputs.embedding == output.outputs.embedding
        assert np.linalg.norm(alone.outputs.embedding) == pytest.approx(1, abs=1e-5)
    assert llm.embed(PROMPTS[0], dimensions=8)[0].outputs.hidden_size == 8
    with pytest.raises(ValueError, match="rank"):
        llm.score("a", ["b"])


def write_adapter(folder: Path, seed: int) -> Path:
    """A folder of PEFT's with random numbers, for the small model."""
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(6):
        for module in ("q_proj", "o_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = random.uniform(-0.25, 0.25, (8, 256)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = random.uniform(-0.25, 0.25, (256, 8)).astype(np.float32)
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": tensor.shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    folder.mkdir()
    encoded = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj", "o_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_adapters_are_read_when_they_are_used(llm, tale, tmp_path):
    one = LoRARequest("one", 1, write_adapter(tmp_path / "one", 1))
    two = LoRARequest("two", 2, write_adapter(tmp_path / "two", 2))
    plain, with_one, with_two = (
        generate(llm, PROMPTS, greedy(), lora_request=given) for given in (None, one, two)
    )
    for a, b, c in zip(plain, with_one, with_two, strict=True):
        assert len({str(ids(output)) for output in (a, b, c)}) == 3
    assert with_one[0].lora_request == with_one[0].outputs[0].lora_request == one
    mixed = generate(llm, PROMPTS, greedy(), lora_request=[None, one, two, one, None])
    expected = [plain[0], with_one[1], with_two[2], with_one[3], plain[4]]
    assert [ids(output) for output in mixed] == [ids(output) for output in expected]
    with pytest.raises(ValueError, match="load_inplace"):
        generate(llm, PROMPTS, greedy(), lora_request=LoRARequest("one", 1, tmp_path / "two"))
    again = LoRARequest("one", 1, tmp_path / "two", load_inplace=True)
    assert [ids(output) for output in generate(llm, PROMPTS, greedy(), lora_request=again)] == [
        ids(output) for output in with_two
    ]
    with pytest.raises(ValueError, match="lora"):
        generate(llm, PROMPTS, greedy(), lora_request=LoRARequest("none", 1, tmp_path / "none"))
    told = [
        generate(llm, PROMPTS, greedy(prompt_logprobs=1), lora_request=given)[0].prompt_logprobs
        for given in (None, two, None)
    ]
    assert told[0] == told[2] != told[1]
    with LLM(tale) as other, pytest.raises(ValueError, match="enable_lora"):
        generate(other, PROMPTS, greedy(), lora_request=one)


def test_a_thousand_prompts(llm):
    prompts = [f"{PROMPTS[i % 5]} {i}" for i in range(1000)]
    found = generate(llm, prompts, greedy(max_tokens=4))
    assert [output.prompt for output in found] == prompts
    assert len({output.request_id for output in found}) == 1000
    for at in (0, 499, 999):
        assert ids(generate(llm, prompts[at], greedy(max_tokens=4))[0]) == ids(found[at])


def test_ctrl_c_ends_all(llm):
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        generate(llm, PROMPTS * 1000, SamplingParams(max_tokens=900, ignore_eos=True))
    assert time.monotonic() - start < 5
    timer.join()
    deadline = time.monotonic() + 5
    while llm._client.service.n_running():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert generate(llm, PROMPTS[0], greedy())[0].finished


def test_threads_may_call_at_the_same_time(llm):
    expected = [ids(output) for output in generate(llm, PROMPTS, greedy())]
    found = {}

    def ask(at):
        found[at] = [ids(output) for output in generate(llm, PROMPTS, greedy())]

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(found.values()) == [expected] * 4


def test_texts_come_as_they_are_written(tale, llm):
    params = SamplingParams(max_tokens=12, seed=4, n=2, logprobs=1, prompt_logprobs=1)
    expected = generate(llm, PROMPTS, params)
    model = AsyncLLM(tale, max_num_seqs=8)

    async def ask(prompt):
        last, n = None, 0
        async for output in model.generate(prompt, params, prompt):
            last, n = output, n + 1
        return last, n

    async def all_of_them():
        return await asyncio.gather(*(ask(prompt) for prompt in PROMPTS))

    for (last, n), whole in zip(asyncio.run(all_of_them()), expected, strict=True):
        assert last.finished and n > 12
        assert last.request_id == last.prompt
        assert [choice.text for choice in last.outputs] == [choice.text for choice in whole.outputs]
        assert ids(last) == ids(whole)
        assert last.prompt_logprobs == whole.prompt_logprobs and whole.prompt_logprobs[1]
        assert last.outputs[0].cumulative_logprob == whole.outputs[0].cumulative_logprob
    model.shutdown()


def test_names_and_ranges_are_those_of_the_table():
    table = {name: parameter for parameter in sampling_parameters() for name in parameter.names}
    ranges = [*RANGES, ("top_k", -1, (1 << 32) - 1)]
    assert {name for name, *_ in ranges} == {
        name for name in SamplingParams.__dataclass_fields__ if name in table
    }
    for name, least, most in ranges:
        parameter = table[name]
        # 0.01 is checked apart.
        least = max(least, 0.01) if name == "repetition_penalty" else least
        assert parameter.least <= least < most <= parameter.most, name
        assert parameter.is_integer == isinstance(least, int)
