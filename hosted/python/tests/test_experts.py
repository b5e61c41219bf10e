import pytest
import sluice

PROMPT = list(range(11, 60))
SETTINGS = {"max_tokens": 12, "temperature": 0.0}


def text(model):
    return model(PROMPT, **SETTINGS)["choices"][0]["text"]


def test_answers_are_those_of_the_model_in_memory(mixture):
    expected = text(sluice.Llama(mixture))
    lines = []
    on_disk = sluice.Llama(
        mixture,
        expert_cache_mib=1,
        expert_io="pread",
        expert_policy="lfu",
        expert_prefetch=False,
        log=lines.append,
    )
    assert text(on_disk) == expected
    assert any("experts: " in line and "read by pread" in line for line in lines), lines
    params = sluice.SamplingParams(**SETTINGS)
    with_llm = sluice.LLM(mixture, max_model_len=128, expert_cache_mib=1, expert_io="pread")
    (output,) = with_llm.generate({"prompt_token_ids": PROMPT}, params, use_tqdm=False)
    assert output.outputs[0].text == expected


def test_a_model_without_experts_runs_all_the_same(tale):
    lines = []
    model = sluice.Llama(tale, expert_cache_mib=64, log=lines.append)
    assert model("Once", max_tokens=4)["usage"]["completion_tokens"] == 4
    assert any("has neither experts nor cold neurons" in line for line in lines), lines


@pytest.mark.parametrize("make", [sluice.Llama, sluice.LLM])
def test_what_is_wrong_is_named(make, mixture):
    for arguments, said in [
        ({"expert_cache_mib": 0}, "expert_cache_mib"),
        ({"expert_io": "pread"}, "expert_cache_mib"),
        ({"expert_cache_mib": 1, "expert_io": "tape"}, "tape"),
        ({"expert_cache_mib": 1, "expert_policy": "static"}, "expert_profile"),
        ({"expert_cache_mib": 1, "expert_dirs": ["nowhere,with comma"]}, "nowhere,with comma"),
    ]:
        with pytest.raises(ValueError, match=said):
            make(mixture, **arguments)
