"""pytest's side of `run.py`: our package under their name, our model for theirs, and what `expected.toml` says."""
import pathlib, re, sys, tomllib, types

import huggingface_hub
import pytest
import sluice

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parents[2] / "hosted/models/tale-5.8m-Q4_K_M.gguf"
DIFFERENCES = tomllib.loads((HERE / "expected.toml").read_text())["difference"]

sluice.install_as("llama_cpp")
# Two files import modules of theirs that are about C; what they take from these fails where it is used.
for name in ("_internals", "llama_chat_format"):
    module = types.ModuleType(f"llama_cpp.{name}")
    module.hf_tokenizer_config_to_chat_formatter = lambda *_: missing("hf_tokenizer_config_to_chat_formatter")
    module.__getattr__ = lambda attribute: missing(attribute)
    sys.modules[module.__name__] = module
    setattr(sys.modules["llama_cpp"], name, module)
# Private: whether the context has recurrent layers (our model has none), and the object of the C library.
sluice.Llama._is_recurrent = sluice.Llama._is_hybrid = False
sluice.Llama._ctx = types.SimpleNamespace(ctx=0)
huggingface_hub.hf_hub_download = lambda *_, **__: str(MODEL)


def missing(attribute):
    raise AttributeError(f"{attribute}: not supported by sluice")


def is_of(pattern, name):
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name)


def pytest_collection_modifyitems(config, items):
    names = [item.nodeid.removeprefix("tests/") for item in items]
    listed = [test for one in DIFFERENCES for test in one["tests"]]
    unmatched = [test for test in listed if not any(is_of(test, name) for name in names)]
    if unmatched and not config.getoption("keyword"):
        raise pytest.UsageError(f"expected.toml lists tests that are not theirs: {', '.join(unmatched)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    name = item.nodeid.removeprefix("tests/")
    found = [one for one in DIFFERENCES if any(is_of(test, name) for test in one["tests"])]
    if report.when != "call" or not found:
        return report
    difference = found[0]
    if report.passed:
        report.outcome, report.longrepr = "failed", f"passes, but is listed: {difference['reason']}"
    elif difference["error"] not in report.longreprtext:
        report.longrepr = f"{report.longreprtext}\ndiffers otherwise than listed: {difference['reason']}"
    else:
        report.outcome, report.wasxfail = "skipped", difference["reason"]
    return report
