"""What the tests of the gate share."""

import subprocess
import sys

import numpy as np

COLUMNS = ("verdict", "max_abs", "value", "level", "scaling", "features")


def noise(n_frames, frame_size=1024, silent=3, seed=1):
    """Noise in which every `silent`-th frame is zeros."""
    samples = np.random.default_rng(seed).standard_normal(n_frames * frame_size).astype(np.float32)
    samples.reshape(n_frames, frame_size)[::silent] = 0
    return samples


def bits(decisions):
    return [getattr(decisions, name).tobytes() for name in COLUMNS]


def run(code, timeout=60):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
