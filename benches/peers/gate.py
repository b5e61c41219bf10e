#!/usr/bin/env python3
"""The gate and residue-protocol 4.2.4 side by side: same frames, one core, alternating, medians.

    benches/peers/gate.py                    all rows
    benches/peers/gate.py --rounds 9 --frames 50000 --python venv/bin/python

Installs residue-protocol and numpy into a virtual environment under --work, unless --python names an
interpreter that has them (wheels exist for CPython 3.10 to 3.12 on x86-64). Both get 1024 samples a
frame of noise, of which 0, 90 and 99% are zeros, from memory. The peer's dense results are not what it
documents (a frame slower than 100 us replaces them); its time is taken all the same. Every round checks
that single frames have the same scaling in both, within 1e-5.

Exit code: 0 every bar is met, 1 one is missed or could not be measured, 2 wrong usage, 130 interrupted.
"""
import argparse, csv, io, json, os, pathlib, re, signal, statistics, subprocess, sys, tempfile, venv

# A shell that starts a program in the background has it ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGE = "residue-protocol==4.2.4"
FRAME_LEN = 1024
SILENT_PCT = (0, 90, 99)

# What runs in the peer's interpreter: one timed batch per share of silence, after a warm-up.
PEER = f"""
import sys, time, json
import numpy as np
from residue import core
n_frames, n = int(sys.argv[1]), {FRAME_LEN}
rng, rates = np.random.default_rng(42), {{}}
memory = np.empty(n_frames * n + 16, np.float32)
start = (-memory.ctypes.data % 64) // 4
frames = memory[start:start + n_frames * n]
for pct in {SILENT_PCT}:
    frames[:] = rng.standard_normal(n_frames * n, dtype=np.float32)
    frames.reshape(n_frames, n)[rng.permutation(n_frames)[:n_frames * pct // 100]] = 0
    gate, times = core.EntropyControllerV3(), []
    gate.batch_infer_walled(frames[:64 * n], n)
    for _ in range(3):
        begin = time.perf_counter()
        gate.batch_infer_walled(frames, n)
        times.append(time.perf_counter() - begin)
    rates[pct] = n_frames / sorted(times)[1]
print(json.dumps(rates))
"""

# The peer's answers, one frame at a time, to samples in a file.
ANSWERS = f"""
import sys, json
import numpy as np
from residue import core
gate = core.EntropyControllerV3()
frames = np.fromfile(sys.argv[1], np.float32).reshape(-1, {FRAME_LEN})
print(json.dumps([float(gate.infer_single_sample_fast(np.ascontiguousarray(f))) for f in frames]))
"""

# Frames for the comparison of answers: noise of several loudnesses, a tone, a ramp.
SAMPLES = f"""
import sys
import numpy as np
rng, n = np.random.default_rng(7), {FRAME_LEN}
parts = [rng.standard_normal(n) * 10.0 ** -(i % 4) for i in range(60)]
parts += [np.sin(np.arange(n) * (i + 1) / 50) for i in range(20)]
parts += [np.arange(n) / n * (i + 1) for i in range(20)]
np.concatenate(parts).astype(np.float32).tofile(sys.argv[1])
"""


class Failed(Exception):
    """What could not be measured, and why."""


def run(command, **options):
    command = [str(part) for part in command]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise Failed(f"{pathlib.Path(command[0]).name}: {lines[-1]}")
    return done.stdout


def find_peer(args):
    """An interpreter that has the peer."""
    if args.python:
        return args.python
    python = args.work / "residue" / "bin" / "python"
    if not python.exists():
        print(f"installing {PACKAGE} in {python.parent.parent}", file=sys.stderr)
        venv.create(python.parent.parent, with_pip=True)
    try:
        run([python, "-c", "from residue import core"])
    except Failed:
        run([python, "-m", "pip", "install", "-q", "numpy", PACKAGE])
    return python


def check_answers(sluice, python, work):
    """Largest difference of scalings between the two."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        path = pathlib.Path(folder) / "frames.f32"
        run([python, "-c", SAMPLES, path])
        expected = json.loads(run([python, "-c", ANSWERS, path]))
        text = run([sluice, "gate", path, "--frame-len", FRAME_LEN])
    found = [float(row["scaling"]) for row in csv.DictReader(io.StringIO(text))]
    if len(found) != len(expected):
        raise Failed(f"{len(found)} decisions about {len(expected)} frames")
    return max(abs(a - b) for a, b in zip(found, expected))


def measure_sluice(sluice, memory_mb, pin):
    """Frames/s and percent of the read probe measured with them, by share of silence, all from memory."""
    text = run([*pin, sluice, "gate", "bench", "--json", "--memory", memory_mb, "--cache", 64,
                "--seconds", "0.3"])
    rows = [json.loads(line) for line in text.splitlines()]
    return {row["what"]: (row["frames_per_second"], row["probe_pct"])
            for row in rows if row["from"] == "memory"}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", type=pathlib.Path, help="program [target/release/sluice]")
    parser.add_argument("--python", type=pathlib.Path, help="interpreter that has the peer")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target" / "peers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--frames", type=int, default=50000, help="of 4 KiB, for both")
    parser.add_argument("--cpu", type=int, help="CPU for both [the last]")
    args = parser.parse_args()
    if args.rounds < 1 or args.frames < 100:
        parser.error("--rounds is at least 1 and --frames at least 100")
    args.work.mkdir(parents=True, exist_ok=True)
    sluice = (args.sluice or ROOT / "target/release/sluice").resolve()
    if not sluice.exists():
        run(["cargo", "build", "--release", "-p", "sluice-cli"], cwd=ROOT)
    python = find_peer(args)
    difference = check_answers(sluice, python, args.work)
    print(f"largest difference of scalings over 100 frames: {difference:.2e} (bar 1e-5)")

    # The peer pins itself to the last CPU, so that is where both are fair.
    cpu = max(os.sched_getaffinity(0)) if args.cpu is None else args.cpu
    pin = ["taskset", "-c", cpu]
    memory_mb = max(args.frames * 4 * FRAME_LEN // 1_000_000, 1)
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(measure_sluice(sluice, memory_mb, pin))
        theirs.append(json.loads(run([*pin, python, "-c", PEER, args.frames])))
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    print(f"{model[1] if model else 'unknown CPU'}, CPU {cpu}, {args.frames} frames of "
          f"{FRAME_LEN}, medians of {args.rounds} alternating rounds (least and largest ratio)")
    print(f"{'silent':>7} {'sluice f/s':>12} {'residue f/s':>12} {'ratio':>22} "
          f"{'of probe':>9}  bar")
    is_met = difference <= 1e-5
    for pct in SILENT_PCT:
        mine = [round_[f"{pct}%"][0] for round_ in ours]
        peer = [round_[str(pct)] for round_ in theirs]
        ratios = [a / b for a, b in zip(mine, peer)]
        share = statistics.median(round_[f"{pct}%"][1] for round_ in ours)
        ratio = statistics.median(ratios)
        met, bar = {0: (ratio >= 6, "6x"), 90: (ratio >= 2, "2x"),
                    99: (share >= 90, "90% of probe")}[pct]
        is_met &= met
        print(f"{pct:>6}% {statistics.median(mine):>12.0f} {statistics.median(peer):>12.0f} "
              f"{ratio:>7.2f}x ({min(ratios):.2f}-{max(ratios):.2f}) {share:>8.1f}%  "
              f"{bar} {'met' if met else 'MISSED'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
