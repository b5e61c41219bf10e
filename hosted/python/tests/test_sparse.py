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
    for mode, said in [("target:0.9", "target is not available yet"), ("fast", "expected exact or off")]:
        with pytest.raises(ValueError, match=said):
            sluice.Llama(packed, n_ctx=64, sparse=mode, verbose=False)
