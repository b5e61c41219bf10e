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


def program(*arguments, timeout=300):
    """What Python prints with these arguments."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return done.stdout


def run(code, timeout=60):
    return program("-c", code, timeout=timeout)
