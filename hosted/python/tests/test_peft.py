"""Batches with adapters: `sluice.peft_runtime` and the command `sluice-peft`."""

import csv
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sluice
from sluice import _folder
from sluice.peft_runtime import (
    BASE,
    InferenceEngine,
    InferenceRequest,
    InferenceTraceConfig,
    RequestBatch,
)

SOURCES = Path(sluice.__file__).resolve().parent.parent
STAGES = ["scheduler.decode_pop", "scheduler.build_microbatch", "scheduler.enqueue_microbatch"]
PROMPTS = [
    "Once upon a time",
    "The little dog ran to",
    "One",
    "It was a dark night and the moon was not to be seen",
]


@pytest.fixture(scope="module")
def model(shared: Path) -> Path:
    """A Hugging Face folder."""
    return shared / "models" / "tale-5.8m-hf"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    for variable in list(os.environ):
        if variable.startswith("INFENG_"):
            monkeypatch.delenv(variable)


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: write_adapter(folder / name, model, seed) for seed, name in enumerate(["one", "two"], 1)}


def write_adapter(folder: Path, model: Path, seed: int, rank: int = 4) -> Path:
    """A PEFT adapter with random numbers for the queries and values of a model."""
    config = json.loads((model / "config.json").read_text())
    width, heads = config["hidden_size"], config["num_attention_heads"]
    rows = {"q_proj": width, "v_proj": width // heads * config.get("num_key_value_heads", heads)}
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, n_out in rows.items():
            module = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{module}.lora_A.weight"] = [rank, width]
            tensors[f"{module}.lora_B.weight"] = [n_out, rank]
    rng = random.Random(seed)
    header, data = {}, b""
    for name, (n_rows, n_columns) in tensors.items():
        numbers = [rng.gauss(0, 0.25) for _ in range(n_rows * n_columns)]
        begin = len(data)
        data += struct.pack(f"<{len(numbers)}f", *numbers)
        header[name] = {"dtype": "F32", "shape": [n_rows, n_columns], "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    about = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "bias": "none",
        "target_modules": list(rows),
    }
    (folder / "adapter_config.json").write_text(json.dumps(about))
    return folder


@pytest.fixture(scope="module")
def engine(model: Path, adapters: dict[str, Path], cache: Path) -> InferenceEngine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        return InferenceEngine(model, adapters)


def mixed() -> list[InferenceRequest]:
    names = ["one", None, "two", None, "one", "two"]
    return [InferenceRequest(PROMPTS[i % len(PROMPTS)], name) for i, name in enumerate(names * 3)]


def command(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), **variables}
    line = [sys.executable, "-m", "sluice.peft_runtime", *map(str, arguments)]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_outputs_are_those_of_single_requests_in_order(engine: InferenceEngine) -> None:
    config = InferenceTraceConfig(max_new_tokens=24)
    requests = mixed()
    outputs = engine.generate(RequestBatch(requests, config))
    alone = {request: engine.generate(RequestBatch([request], config))[0] for request in set(requests)}
    assert outputs == [alone[request] for request in requests]
    # Adapters change what is written, each in its way.
    for prompt in ("Once upon a time", "The little dog ran to"):
        texts = {alone.get(InferenceRequest(prompt, name)) for name in (None, "one", "two")} - {None}
        assert len(texts) > 1


def test_an_adapter_does_not_leak_into_base_requests(engine: InferenceEngine, model: Path) -> None:
    config = InferenceTraceConfig(max_new_tokens=24)
    base = [InferenceRequest(prompt) for prompt in PROMPTS]
    with InferenceEngine(model) as without:
        expected = without.generate(RequestBatch(base, config))
    adapted = [InferenceRequest(prompt, "one") for prompt in PROMPTS]
    assert engine.generate(RequestBatch([*adapted, *base], config))[len(base) :] == expected
    assert engine.generate(RequestBatch(base, config)) == expected
    assert engine.generate(RequestBatch(adapted, config)) != expected


def test_each_request_has_its_own_limit_and_texts_stop(engine: InferenceEngine) -> None:
    requests = [InferenceRequest(PROMPTS[0], None, n) for n in (1, 7, None)]
    result = engine.run(RequestBatch(requests, InferenceTraceConfig(max_new_tokens=12)))
    assert [each.n_new_tokens for each in result.results] == [1, 7, 12]
    whole = result.outputs[2]
    stop = whole.split()[3]
    config = InferenceTraceConfig(max_new_tokens=12, stop_sequences=[stop])
    stopped = engine.run(RequestBatch([InferenceRequest(PROMPTS[0])], config)).results[0]
    assert stopped.output == whole[: whole.index(stop)]
    assert stopped.stop_type == "word"
    assert stopped.n_new_tokens < 12


def test_sampling_is_repeatable(engine: InferenceEngine) -> None:
    batch = [InferenceRequest(PROMPTS[0])] * 3
    config = InferenceTraceConfig(max_new_tokens=16, temperature=1.0, do_sample=True, seed=5)
    outputs = engine.generate(RequestBatch(batch, config))
    assert outputs == engine.generate(RequestBatch(batch, config))
    assert len(set(outputs)) > 1
    greedy = InferenceTraceConfig(max_new_tokens=16, temperature=1.0)
    assert len(set(engine.generate(RequestBatch(batch, greedy)))) == 1


def test_figures_of_a_benchmark(engine: InferenceEngine) -> None:
    requests = mixed()
    figures = engine.benchmark(
        RequestBatch(requests, InferenceTraceConfig(max_new_tokens=8)), iterations=2, warmup=1
    )
    assert set(figures) == {
        "avg_latency_s",
        "seq_per_second",
        "tokens_per_second",
        "total_new_tokens",
        "avg_ttft_s",
        "iterations",
    }
    assert len(figures["iterations"]) == 2
    assert figures["total_new_tokens"] == 2 * 8 * len(requests)
    for each in figures["iterations"]:
        assert set(each) == {
            "latency_s",
            "sequences",
            "new_tokens",
            "tokens_per_second",
            "seq_per_second",
            "profiling",
            "ttft_s",
        }
        assert each["sequences"] == len(requests)
        assert each["tokens_per_second"] == pytest.approx(each["new_tokens"] / each["latency_s"])
        assert each["seq_per_second"] == pytest.approx(len(requests) / each["latency_s"])
        assert 0 < each["ttft_s"] < each["latency_s"]
        assert [part["adapter"] for part in each["profiling"]] == ["one", BASE, "two"]
        assert sum(part["num_requests"] for part in each["profiling"]) == len(requests)
        for part in each["profiling"]:
            assert set(part) == {"adapter", "tokenize_s", "generate_s", "num_requests", "ttft_s"}
            assert 0 < part["tokenize_s"] < each["latency_s"]
            assert 0 < part["ttft_s"] <= part["generate_s"] < each["latency_s"]


def test_wrong_requests_are_named(engine: InferenceEngine, model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"request 2: no adapter is named 'three'; available: one, two"):
        engine.generate(RequestBatch([InferenceRequest("a"), InferenceRequest("a", "three")]))
    with pytest.raises(ValueError, match=r"request 2: .*context"):
        engine.generate(RequestBatch([InferenceRequest("a", None, 1), InferenceRequest("cat " * 5000)]))
    with pytest.raises(ValueError, match="request 1: max_new_tokens is -1"):
        engine.generate(RequestBatch([InferenceRequest("a", None, -1)]))
    with pytest.raises(ValueError, match=r"top_p is 1\.5"):
        InferenceTraceConfig(top_p=1.5)
    with pytest.raises(FileNotFoundError, match=r"adapter 'a': .*missing"):
        InferenceEngine(model, {"a": tmp_path / "missing"})
    with pytest.raises(FileNotFoundError, match="missing"):
        InferenceEngine(tmp_path / "missing")
    assert engine.generate(RequestBatch([])) == []


def test_environment(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFENG_NUM_THREADS", "many")
    with pytest.raises(ValueError, match="INFENG_NUM_THREADS is 'many'"):
        InferenceEngine(model)
    for variable, value in {
        "NUM_THREADS": "1",
        "NUM_INTEROP_THREADS": "1",
        "TOK_THREADS": "2",
        "TOKEN_CACHE": "0",
    }.items():
        monkeypatch.setenv(f"INFENG_{variable}", value)
    with InferenceEngine(model) as engine:
        assert len(engine.generate(RequestBatch([InferenceRequest("One", None, 2)]))) == 1


def test_a_folder_is_converted_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    shutil.copytree(model, folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    said: list[str] = []
    first = _folder.as_gguf(folder, None, said.append)
    time_ns = first.stat().st_mtime_ns
    assert said and str(folder) in said[0]
    assert first.parent == tmp_path / "cache" / "sluice" / "converted"
    assert _folder.as_gguf(folder, None, said.append) == first
    assert first.stat().st_mtime_ns == time_ns
    assert len(said) == 1
    assert _folder.as_gguf(first) == first
    # Another type, and other files, are other models.
    other = _folder.as_gguf(folder, "float32")
    assert other != first
    assert other.stat().st_size > first.stat().st_size * 1.5
    os.utime(folder / "config.json", ns=(1, 1))
    assert _folder.as_gguf(folder) not in (first, other)


def test_a_conversion_that_fails_leaves_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    shutil.copytree(model, folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ValueError, match=r"model: conversion failed: .*model\.safetensors"):
        _folder.as_gguf(folder)
    with pytest.raises(ValueError, match=r"conversion failed: .*q9_9"):
        _folder.as_gguf(model, "q9_9")
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"no config\.json"):
        _folder.as_gguf(folder)
    assert list((tmp_path / "cache" / "sluice" / "converted").iterdir()) == []


def test_what_others_left_is_removed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    converted = tmp_path / "sluice" / "converted"
    converted.mkdir(parents=True)
    for process in (gone.pid, os.getppid()):
        part = converted / f"0-auto.1.{_folder._host()}.{process}.part"
        part.mkdir()
        (part / "0-auto.gguf").write_text("cut off")
    made = _folder.as_gguf(model)
    assert {path.name for path in converted.iterdir()} == {
        made.name,
        f"0-auto.1.{_folder._host()}.{os.getppid()}.part",
    }


def test_command_line(model: Path, adapters: dict[str, Path], engine: InferenceEngine) -> None:
    expected = engine.generate(
        RequestBatch(
            [
                InferenceRequest(PROMPTS[0], "two"),
                InferenceRequest(PROMPTS[1]),
                InferenceRequest(PROMPTS[2], "one"),
            ],
            InferenceTraceConfig(max_new_tokens=9),
        )
    )
    given = [f"--adapter={name}={path}" for name, path in adapters.items()]
    used = [f"--use-adapter={name}" for name in ("two", "base", "one")]
    done = command("infer", model, *PROMPTS[:3], *given, *used, "--max-new-tokens", 9)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert (
        done.stdout
        == json.dumps({"prompts": PROMPTS[:3], "outputs": expected}, indent=2, ensure_ascii=False) + "\n"
    )
    # Without a command word; an adapter that is the only one.
    done = command(model, PROMPTS[2], given[0], "--max-new-tokens", 9)
    assert json.loads(done.stdout) == {"prompts": [PROMPTS[2]], "outputs": [expected[2]]}


def test_telemetry(model: Path, adapters: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "reports" / "stages.csv"
    done = command(
        model,
        *PROMPTS,
        f"--adapter=one={adapters['one']}",
        "--telemetry",
        "--telemetry-csv",
        file,
        "--max-new-tokens",
        6,
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["outputs"]) == len(PROMPTS)
    assert str(file) in done.stderr
    assert file.read_text().startswith("stage,elapsed_us\n")
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    taken: dict[str, list[float]] = {}
    for row in rows:
        taken.setdefault(row["stage"], []).append(float(row["elapsed_us"]))
    assert set(STAGES) < set(taken)
    assert len(taken["runtime.ttft"]) == len(taken["runtime.queue_wait"]) == len(PROMPTS)
    queues_and_firsts = zip(taken["runtime.queue_wait"], taken["runtime.ttft"], strict=True)
    assert all(0 <= queue < ttft < taken["runtime.batch"][0] for queue, ttft in queues_and_firsts)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--adapter", "one"], "--adapter one: expected name=path"),
        (["--adapter", "a=/missing"], "adapter 'a': /missing"),
        (["--adapter", "a=/x", "--adapter", "a=/y"], "a is defined twice"),
        (["--adapter", "a=/x", "--adapter", "b=/y"], "several adapters are given"),
        (["--use-adapter", "a"], "--adapter a=PATH is missing"),
        (["--use-adapter", "base", "--use-adapter", "base"], "2 times for 1 prompts"),
        (["--top-p", "0"], "top_p is 0.0"),
        (["--max-new-tokens", "x"], "invalid int value: 'x'"),
    ],
)
def test_wrong_usage_says_what(model: Path, arguments: list[str], said: str) -> None:
    done = command(model, "One", *arguments)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_help_has_examples() -> None:
    for arguments in (["--help"], ["infer", "--help"]):
        done = command(*arguments)
        assert done.returncode == 0
        assert "examples:\n  sluice-peft infer model.gguf" in done.stdout
    assert command().returncode == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "sft --base-model m --adapter-name a --output-dir o --lora-dropout 0",
            "sft: training is not supported yet",
        ),
        ("sft --config c.json", "sft: training is not supported yet"),
        ("sft --base-model m", "--adapter-name, --output-dir must be given"),
        ("rl --base-model m --adapter-name a --output-dir o", "--reward, --train-file must be given"),
        ("rl --config c.json --kl-coef 0", "rl: training is not supported yet"),
        ("pretrain --config c.json", "pretrain: training is not supported yet"),
    ],
)
def test_training_answers_by_name(line: str, said: str) -> None:
    done = command(*line.split())
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c(model: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    line = [
        sys.executable,
        "-m",
        "sluice.peft_runtime",
        str(model),
        *["Once"] * 64,
        "--max-new-tokens",
        "400",
    ]
    stages = tmp_path / "stages.csv"
    line += ["--telemetry-csv", str(stages)]
    process = subprocess.Popen(
        line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not stages.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.skip("it was done before the signal came")
    assert (process.returncode, out, "Traceback" in err) == (130, "", False), err
