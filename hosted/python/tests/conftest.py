import os
import signal
from pathlib import Path

import pytest
import sluice

# Shells start background jobs with Ctrl-C ignored, which processes hand on to those that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[3]
TALE = ROOT / "hosted/models/tale-5.8m-Q4_K_M.gguf"


@pytest.fixture(scope="session")
def tale() -> Path:
    return TALE


@pytest.fixture(scope="session")
def mixture() -> Path:
    return ROOT / "tests/fixtures/models/gpt-oss.gguf"


@pytest.fixture(scope="session")
def shared() -> Path:
    folder = Path(os.environ.get("SLUICE_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        reason = f"SKIPPED: {folder} (files of others) is not there"
        if os.environ.get("CI"):
            pytest.fail(reason)
        print(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def llama() -> sluice.Llama:
    return sluice.Llama(TALE, n_ctx=2048, seed=7)
