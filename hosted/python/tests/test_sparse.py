import subprocess
import sys
from pathlib import Path

import pytest
import sluice

ROOT = Path(__file__).resolve().parents[3]


def test_neurons_left_unread(tmp_path):
    """A file packed by neuron has the same answers in each mode; a file that is not refuses to skip any."""
    model, packed = ROOT / "tests/fixtures/models/llama-Q8_0.gguf", tmp_path / "m.slc"
    command = [sys.executable, "-m", "sluice", "pack", "--ffn", "neuron", str(model), str(packed)]
    subprocess.run(command, check=True)
    told = set()
    for path, mode in [(model, None), (model, "off"), (packed, None), (packed, "exact"), (packed, "off")]:
        llama = sluice.Llama(path, n_ctx=64, activation="relu", sparse=mode, verbose=False)
        reply = llama([11, 48, 85], max_tokens=8, temperature=0.0, logprobs=1)
        told.add(str(reply["choices"][0]["logprobs"]))
        llama.close()
    assert len(told) == 1
    with pytest.raises(Exception, match="sluice pack --ffn neuron"):
        sluice.Llama(model, n_ctx=64, sparse="exact", verbose=False)
    with pytest.raises(Exception, match="does not exist: make it with sluice sparsify"):
        sluice.Llama(packed, n_ctx=64, sparse="predictor", verbose=False)
    with pytest.raises(ValueError, match="expected exact, off"):
        sluice.Llama(packed, n_ctx=64, sparse="fast", verbose=False)


def test_modes_that_change_answers(tmp_path):
    """A calibration file is found next to the model, or named; each mode answers otherwise than the whole model."""
    model, text = tmp_path / "m.gguf", tmp_path / "text.txt"
    model.write_bytes((ROOT / "tests/fixtures/models/llama-Q8_0.gguf").read_bytes())
    text.write_text("The little dog saw a red ball in the garden. " * 60)
    named = tmp_path / "named.json"
    command = [sys.executable, "-m", "sluice", "sparsify", "-m", str(model), "-f", str(text), "-c", "32"]
    with pytest.raises(Exception, match="sluice sparsify"):
        sluice.Llama(model, n_ctx=64, sparse="threshold", verbose=False)
    subprocess.run([*command, "--density", "0.3", "-o", str(named)], check=True)
    told = []
    for options in [
        {},
        {"sparse": "threshold", "sparse_file": named},
        {"sparse": "top-k:9"},
        {"sparse": "budget:0.5"},
    ]:
        llama = sluice.Llama(model, n_ctx=64, verbose=False, **options)
        reply = llama([11, 48, 85], max_tokens=8, temperature=0.0, logprobs=1)
        told.append(str(reply["choices"][0]["logprobs"]))
        llama.close()
    assert len(set(told)) == 4
