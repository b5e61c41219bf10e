"""Writes tests/fixtures/gate/*.f32: scaling factors by residue-protocol 4.2.4, one f32 per frame.

    python3 -m venv venv && venv/bin/pip install numpy residue-protocol==4.2.4
    venv/bin/python tests/tools/gate_goldens.py ../shared/data

Each file is one stream through one controller's single-frame call. `random` has 9000 frames that
tests/tests/gate_goldens.rs makes again from their numbers; `jfk` and `ecg` are frames of 128 and 512
samples of the two recordings. Made November 2026 with CPython 3.11 on an AVX-512 machine.
"""

import pathlib
import sys
import wave

import numpy as np
from residue import core

HERE = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "gate"
LENGTHS = [1024, 8, 64, 333, 1000, 2048, 17]
N_RANDOM = 9000
f32 = np.float32


def uniform(seed, n):
    """n numbers from -1 to 1: the upper 24 bits of splitmix64."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(f32) / f32(16777216.0) * f32(2.0) - f32(1.0)


def frame(i):
    n = LENGTHS[i % len(LENGTHS)]
    u = uniform(i << 20, n)
    kind = i % 11
    if kind == 0:
        return u
    if kind == 1:
        return u * f32(0.01)
    if kind == 2:
        return u * f32(1e-4) + f32(0.5)
    if kind == 3:
        return np.full(n, u[0], f32)
    if kind == 4:
        return np.where(u >= 0, f32(0.5), f32(-0.5)).astype(f32)
    if kind == 5:
        return np.arange(n, dtype=f32) / f32(1024.0)
    if kind == 6:
        x = np.zeros(n, f32)
        x[i % n] = u[0]
        return x
    if kind == 7:
        return np.where(np.abs(u) > f32(0.9), u, f32(0.0)).astype(f32)
    if kind == 8:
        return u * f32(3e-8)
    if kind == 9:
        return u * np.abs(u)
    return np.where(np.arange(n) // 16 % 2 == 0, f32(0.25), f32(-0.75)).astype(f32)


def write(name, frames):
    controller = core.EntropyControllerV3()
    out = np.array([controller.infer_single_sample_fast(np.ascontiguousarray(x)) for x in frames], "<f4")
    (HERE / f"{name}.f32").write_bytes(out.tobytes())
    print(name, len(out))


def main(data):
    HERE.mkdir(parents=True, exist_ok=True)
    write("random", [frame(i) for i in range(N_RANDOM)])
    with wave.open(str(data / "jfk.wav")) as file:
        speech = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(f32) / f32(32768.0)
    write("jfk", speech[: len(speech) // 128 * 128].reshape(-1, 128))
    packed = np.fromfile(data / "100.dat", np.uint8).reshape(-1, 3).astype(np.int32)
    first = packed[:, 0] | (packed[:, 1] & 15) << 8
    first = np.where(first > 2047, first - 4096, first).astype(f32) / f32(2048.0)
    write("ecg", first[: len(first) // 512 * 512].reshape(-1, 512))


main(pathlib.Path(sys.argv[1]))
