"""Under the names of other packages: the calls that frameworks make of them. `tests/clients/python_packages` runs the
frameworks themselves."""

import importlib
import importlib.util
import logging
import math
import sys
import warnings

import numpy as np
import pytest
import sluice
from sluice import _install, llama_types
from sluice.llm import LLM

GREEDY = {"temperature": 0.0, "max_tokens": 6}


@pytest.fixture
def installed(request):
    before = {
        name: module for name, module in sys.modules.items() if name.partition(".")[0] in _install.VERSIONS
    }
    yield sluice.install_as
    for name in [name for name in sys.modules if name.partition(".")[0] in _install.VERSIONS]:
        del sys.modules[name]
    sys.modules.update(before)


def test_modules_stand_in_for_those_of_other_packages(installed):
    installed("llama_cpp")
    installed("vllm")
    for path, parts in _install.MODULES.items():
        module = importlib.import_module(path)
        assert importlib.util.find_spec(path) is not None
        for name in [name for names in parts.values() for name in names]:
            assert getattr(module, name) is not None, f"{path}.{name}"
    import llama_cpp
    import llama_cpp.llama_types as theirs
    import vllm
    from vllm.sampling_params import SamplingParams

    assert llama_cpp.Llama is sluice.Llama and llama_cpp.__version__
    assert vllm.LLM is LLM and SamplingParams is sluice.SamplingParams
    assert theirs.CreateChatCompletionResponse is llama_types.CreateChatCompletionResponse
    with pytest.raises(AttributeError, match="llama_model_get_vocab: not supported"):
        llama_cpp.llama_model_get_vocab  # noqa: B018
    with pytest.raises(ImportError):
        from vllm import LLMEngine  # noqa: F401
    with pytest.raises(ValueError, match="torch"):
        installed("torch")


def test_command_lines_of_programs_for_vllm_are_read(tale, installed):
    installed("vllm")
    from vllm import LLM, EngineArgs
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.add_argument_group("Sampling").add_argument("--max-tokens", type=int)
    parser.add_argument("--top-p", type=float)
    parser.set_defaults(model="a/b", max_num_seqs=4)
    own = {"max_tokens": None, "top_p": None}
    assert vars(parser.parse_args([])) == {"model": "a/b", "max_num_seqs": 4, **own}
    flags = ["--model", str(tale), "--max_model_len=64", "--no-enable-prefix-caching", "--turn-ms", "30"]
    found = parser.parse_args([*flags, "--spec-draft-p-min", "0.5", "--max-tokens", "3"])
    given = vars(found)
    assert given.pop("max_tokens") == 3 and given.pop("top_p") is None
    arguments = EngineArgs.from_cli_args(found).arguments
    assert arguments == {
        "model": str(tale),
        "max_model_len": 64,
        "max_num_seqs": 4,
        "enable_prefix_caching": False,
        "turn_ms": 30,
        "spec_draft_p_min": 0.5,
    }
    with LLM(**arguments) as llm:
        assert repr(llm) == f"LLM({str(tale)!r}, max_model_len=64)"
    model = AsyncLLM.from_engine_args(AsyncEngineArgs(model=tale, max_model_len=32))
    assert model.get_default_sampling_params()
    model.shutdown()
    two = parser.parse_args(["--model", str(tale), "--tensor-parallel-size", "2"])
    with pytest.raises(ValueError, match="tensor_parallel_size"):
        LLM(**EngineArgs.from_cli_args(two).arguments)
    with pytest.raises(ValueError, match="--model"):
        EngineArgs.from_cli_args(EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args([]))


def test_arguments_of_langchain_are_taken(tale, installed):
    installed("llama_cpp")
    from llama_cpp import Llama

    # What LlamaCpp and LlamaCppEmbeddings give, whatever the user asked for.
    given = {
        **dict.fromkeys(["lora_base", "lora_path", "n_threads", "n_gpu_layers", "device"]),
        **dict.fromkeys(["logits_all", "vocab_only", "use_mlock", "verbose"], False),
        **dict.fromkeys(["f16_kv", "use_mmap"], True),
        "n_ctx": 512,
        "n_parts": -1,
        "seed": -1,
        "n_batch": 8,
        "last_n_tokens_size": 64,
        "rope_freq_scale": 1.0,
        "rope_freq_base": 10000.0,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        llama = Llama(str(tale), **given)
    stream = llama("Once", suffix=None, logprobs=None, echo=False, stop=[], repeat_penalty=1.1, top_k=40,
                   top_p=0.95, grammar=None, stream=True, **GREEDY)  # fmt: skip
    assert sum(bool(chunk["choices"][0]["text"]) for chunk in stream) == 6
    assert llama.get_num_tokens if hasattr(llama, "get_num_tokens") else llama.tokenize(b"a")
    assert len(llama.create_embedding("a")["data"][0]["embedding"]) == 256
    llama.close()


def test_names_of_earlier_versions_are_taken_with_a_warning(tale):
    with pytest.warns(UserWarning) as told:
        sluice.Llama(tale, n_ctx=64, f16_kv=False, low_vram=True, n_parts=2).close()
    assert {str(one.message).split()[0] for one in told} == {"f16_kv", "low_vram", "n_parts"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sluice.Llama(
            tale, n_ctx=64, n_threads_batch=8, kv_overrides={}, flash_attn=True, mul_mat_q=True
        ).close()
        LLM(tale, max_model_len=64, device="cpu", max_logprobs=50, disable_log_requests=True, model_impl="auto",
            enable_expert_parallel=False, served_model_name=None).close()  # fmt: skip
    with pytest.raises(ValueError, match="rope_freq_base is 20000"):
        sluice.Llama(tale, rope_freq_base=20000.0)
    with pytest.raises(ValueError, match="rope_freq_scale is"):
        sluice.Llama(tale, rope_freq_scale=0.5, vocab_only=True)
    with pytest.raises(ValueError, match="max_logprobs"):
        LLM(tale, max_logprobs=5000)
    with pytest.raises(TypeError, match="n_partz"):
        sluice.Llama(tale, n_partz=1)


def test_what_llama_index_and_format_enforcers_read_is_there(llama):
    assert llama.context_params.n_ctx == llama.n_ctx() == llama._n_ctx == 2048
    assert llama.n_batch == 512 and llama.n_threads is None and llama.pooling_type() == "UNSPECIFIED"
    tokenizer = llama.tokenizer()
    tokens = tokenizer.encode("A cat")
    assert tokens == llama.tokenize(b"A cat", special=True) and tokenizer.decode(tokens) == "A cat"
    assert tokenizer.detokenize(tokens[1:]) == llama.detokenize(tokens[1:])
    # lm-format-enforcer's: a list of one processor, over all tokens so far.
    allowed = llama.tokenize(b" yes", add_bos=False)

    class Only:
        def __call__(self, ids, scores):
            mask = np.full_like(scores, -math.inf)
            mask[allowed] = 0
            return scores + mask

    processors = sluice.LogitsProcessorList([Only()])
    text = llama("Is it warm?", max_tokens=len(allowed), logits_processor=processors)["choices"][0]["text"]
    assert set(llama.tokenize(text.encode(), add_bos=False)) <= set(allowed)


def test_sampling_at_the_last_token_needs_no_kept_logits(llama):
    llama.reset()
    llama.eval(llama.tokenize(b"Once upon a time"))
    expected = llama.sample(temp=0.0)
    assert llama.sample(temp=0.0, idx=llama.n_tokens - 1) == expected == llama.sample(temp=0.0, idx=-1)
    with pytest.raises(ValueError, match="logits_all"):
        llama.sample(temp=0.0, idx=0)


def test_seeds_follow_each_other(tale):
    def texts(llama, n=3):
        return [llama("Once", max_tokens=12, temperature=1.5)["choices"][0]["text"] for _ in range(n)]

    with sluice.Llama(tale, n_ctx=256, seed=42) as llama:
        first = texts(llama)
        assert len(set(first)) == 3
        llama.set_seed(42)
        state = llama.save_state()
        assert texts(llama) == first
        llama.load_state(state)
        assert texts(llama) == first
        # A given seed gives the same text, and later ones follow from it.
        again = [
            llama("Once", max_tokens=12, temperature=1.5, seed=5)["choices"][0]["text"] for _ in range(2)
        ]
        assert again[0] == again[1]
        followed = texts(llama)
        llama("Once", max_tokens=1, seed=5)
        assert texts(llama) == followed
    with sluice.Llama(tale, n_ctx=256, seed=42) as llama:
        reply = llama("Once", max_tokens=1)
        # random.Random(42).randint(0, 2**32), which llama-cpp-python draws first.
        assert reply["seed"] == 2746317213
    with sluice.Llama(tale, n_ctx=256) as llama:
        assert llama("Once", max_tokens=1)["seed"] != llama("Once", max_tokens=1)["seed"]


def test_chat_formats_by_name_are_for_batches_too(tale):
    messages = [{"role": "user", "content": "Hi"}]
    with (
        LLM(tale, max_model_len=128, chat_template="llama-2") as llm,
        sluice.Llama(tale, n_ctx=128, chat_format="llama-2") as llama,
    ):
        (output,) = llm.chat(messages, sluice.SamplingParams(**GREEDY), False)
        assert output.prompt == "<s>[INST] Hi [/INST]"
        reply = llama.create_chat_completion(messages, **GREEDY)
        assert reply["choices"][0]["message"]["content"].strip() == output.outputs[0].text.strip()
    with pytest.raises(ValueError, match="unknown chat template"):
        LLM(tale, chat_template="nonsense")
    with pytest.raises(ValueError, match="functionary"):
        LLM(tale, chat_template="functionary")


def test_the_log_is_pythons(tale, caplog):
    with caplog.at_level(logging.INFO, logger="sluice"):
        with sluice.Llama(tale, n_ctx=128) as llama:
            llama("Once", max_tokens=2)
        with LLM(tale, max_model_len=128) as llm:
            llm.generate("Once", sluice.SamplingParams(max_tokens=2), use_tqdm=False)
    assert len([record for record in caplog.records if "ms" in record.getMessage()]) >= 2
    caplog.clear()
    with (
        caplog.at_level(logging.INFO, logger="sluice"),
        sluice.Llama(tale, n_ctx=128, verbose=False) as llama,
    ):
        llama("Once", max_tokens=2)
    assert not caplog.records


def test_objects_say_what_they_are(tale, llama):
    assert repr(llama) == f"Llama({str(tale)!r}, n_ctx=2048, n_threads=None)"
    with LLM(tale, max_model_len=64) as llm:
        assert repr(llm) == f"LLM({str(tale)!r}, max_model_len=64)"
        assert repr(llm.get_tokenizer()) == f"LLMTokenizer({str(tale)!r}, vocab_size=4096)"
    grammar = 'root ::= "a"'
    assert repr(sluice.LlamaGrammar.from_string(grammar)) == f"LlamaGrammar(grammar={grammar!r})"


def test_options_of_requests_are_known_to_the_engine(llama):
    from sluice._arguments import ChatArguments, CompletionArguments

    own = {
        "stream_options",
        "model",
        "logits_processor",
        "stopping_criteria",
        "stream",
        "functions",
        "function_call",
    }
    for arguments, ask in (
        (CompletionArguments, lambda **more: llama("Once", **{"max_tokens": 1, **more})),
        (
            ChatArguments,
            lambda **more: llama.create_chat_completion(
                [{"role": "user", "content": "a"}], **{"max_tokens": 1, **more}
            ),
        ),
    ):
        for name in (
            arguments.__optional_keys__ - own - {"temperature", "top_p", "min_p", "typical_p", "echo"}
        ):
            try:
                ask(**{name: object()})
            except (TypeError, ValueError) as error:
                assert "unexpected argument" not in str(error), name
