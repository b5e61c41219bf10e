"""Runs a script of vLLM's on this engine: `launch.py SCRIPT`. The models that it names are the ones in `expected.toml`."""
import pathlib, runpy, sys, tomllib

import sluice
from sluice import _llm_options

HERE = pathlib.Path(__file__).resolve().parent
MODELS = tomllib.loads((HERE / "expected.toml").read_text())["models"]
where = _llm_options.where


def renamed(model, dtype):
    """Where the model lies that stands for the one of this name."""
    return where(HERE.parents[2] / MODELS.get(str(model), MODELS["default"]), dtype)


sluice.install_as("vllm")
_llm_options.where = renamed
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
