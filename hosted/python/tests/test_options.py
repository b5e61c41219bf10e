"""The keyword arguments of models: paths with any characters, and names that the engine knows."""

import shutil

import pytest
import sluice
from sluice import _native
from test_adapters import ADAPTER

AWKWARD = "one, two = 'three' \"four\": fünf 六 %20\\ {x}"
PROMPT = "Once upon a time"
SETTINGS = {"max_tokens": 16, "temperature": 0.0}
TEMPLATE = "{% for message in messages %}<{{ message.content }}>{% endfor %}{{ ending }}"


def text(llama, prompt=PROMPT, **settings):
    return llama(prompt, **SETTINGS, **settings)["choices"][0]["text"]


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / AWKWARD
    made.mkdir()
    return made


def placed(file, folder):
    return shutil.copy2(file, folder / f"{AWKWARD}{file.suffix}")


@pytest.mark.parametrize("as_path", [str, lambda path: path])
def test_paths_have_any_characters(tale, folder, as_path):
    model = placed(tale, folder)
    adapter = folder / "adapter, of = mine"
    shutil.copytree(next(ADAPTER.rglob("adapter_config.json")).parent, adapter)
    template = folder / "template, 1.jinja"
    template.write_text(TEMPLATE)
    cache, trace = folder / "cache, 1", folder / "stages, 1.csv"
    with sluice.Llama(
        as_path(model),
        n_ctx=512,
        lora_modules={"my, adapter = one": as_path(adapter)},
        draft_model=as_path(model),
        prompt_cache_dir=as_path(cache),
        chat_template_file=as_path(template),
        chat_template_kwargs={"ending": "é"},
        telemetry_csv=as_path(trace),
    ) as llama:
        expected = text(sluice.Llama(tale, n_ctx=512))
        assert text(llama) == expected
        changed = text(llama, model="my, adapter = one")
        reply = llama.create_chat_completion([{"role": "user", "content": "a, b"}], **SETTINGS)
        assert reply["usage"]["prompt_tokens"] == len(llama.tokenize(b"<a, b>\xc3\xa9"))
        # Whole pages are kept.
        llama(" word" * 200, max_tokens=1)
    assert any(cache.iterdir()) and trace.stat().st_size > 0
    with sluice.Llama(as_path(model), n_ctx=512, lora_path=as_path(adapter)) as llama:
        assert text(llama) == changed
    with sluice.Llama(as_path(model), n_ctx=512, lora_scaled={as_path(adapter): 1.0}) as llama:
        assert text(llama) == changed
    with sluice.LLM(as_path(model), max_model_len=64, model_draft=as_path(model)) as llm:
        (output,) = llm.generate(PROMPT, sluice.SamplingParams(**SETTINGS), use_tqdm=False)
        assert output.outputs[0].text == expected


@pytest.mark.parametrize("as_path", [str, lambda path: path])
def test_folders_of_experts_have_any_characters(mixture, folder, as_path):
    model = placed(mixture, folder)
    copies = folder / "copy, 2"
    copies.mkdir()
    shutil.copy2(model, copies)
    prompt = list(range(11, 60))
    with sluice.Llama(
        as_path(model),
        expert_cache_mib=1,
        expert_dirs=[as_path(copies)],
        expert_trace=as_path(folder / "a,b.trace"),
    ) as llama:
        assert text(llama, prompt) == text(sluice.Llama(mixture), prompt)
    assert (folder / "a,b.trace").stat().st_size > 0


def test_the_engine_knows_all_options(tale):
    names = {*sluice.Options.__optional_keys__, *sluice.LLMOptions.__optional_keys__}
    _native.Service({"model": tale, "n_ctx": 64, **dict.fromkeys(names)}).close()
    for name in names:
        # No option takes an object.
        with pytest.raises(TypeError, match=f"{name} is <object"):
            _native.Service({"model": tale, name: object()})
        assert name in f"{sluice.Options.__doc__}{sluice.LLMOptions.__doc__}"
    with pytest.raises(TypeError, match='unknown argument "nonsense"'):
        _native.Service({"model": tale, "nonsense": None})


def test_defaults_of_requests_are_used(tale):
    def words(**options):
        with sluice.Llama(tale, n_ctx=256, **options) as llama:
            reply = llama.create_chat_completion([{"role": "user", "content": "Hi"}], temperature=0.0)
            return reply["usage"]["completion_tokens"]

    assert words(n_predict=7) == 7
    assert words(n_predict=9, ignore_eos=True, logit_bias={5: -100.0}, samplers="top_k;temperature") == 9
