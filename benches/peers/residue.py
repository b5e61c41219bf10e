#!/usr/bin/env python3
"""The gate from Python and residue-protocol 4.2.4 side by side: one program, run with either, alternating, medians.

    benches/peers/residue.py                     all rows
    benches/peers/residue.py --rounds 5 --frames 50000 --peer venv/bin/python

The program calls `residue.core` and nothing else; ours is `sluice.residue`, under that name. Each runs in a process
of its own, both on the same CPU: the peer moves itself to the last one. As root the peer runs as nobody, because it
asks for real-time priority. Installs residue-protocol and numpy into a virtual environment under --work, unless
--peer names an interpreter that has them (wheels exist for CPython 3.10 to 3.12 on x86-64). --python is an
interpreter that has sluice.

Frames are 1024 float32 of noise at 64 bytes of alignment, of which 0 to 100% at random places are zeros, from
memory; 50,000 are 205 MB. A row is the median of three calls of `batch_infer_walled`; "unaligned" begins four bytes
later, "one by one" is a loop of `infer_single_sample_fast`. "Correct" is an output of the timed call that is what
the same package's single frames give, with silent frames holding the last value: ours to the bit, the peer's within
1e-5. The first round checks every frame of every row, and that both packages' single frames agree within 1e-5.

Then each runs its thread: what it costs when idle (bar: 2% of a CPU), and whether a stream pushed in random pieces
comes out as single frames do.

Exit code: 0 every bar is met, 1 one is missed or could not be measured, 2 wrong usage, 130 interrupted.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from gate import Failed, find_peer, run

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FRAME_SIZE = 1024
SILENT_PCT = (0, 25, 50, 75, 90, 99, 100)
BARS = {"0%": 5.0, "90%": 2.0}

PROGRAM = f"""
import sys, time, json
import numpy as np
if sys.argv[1] == "sluice":
    import sluice.residue
    sluice.residue.install()
from residue import core
n_frames, checks, answers, n = int(sys.argv[2]), sys.argv[3] == "check", sys.argv[4], {FRAME_SIZE}
memory = np.empty((n_frames + 1) * n, np.float32)
start = (-memory.ctypes.data % 64) // 4
rows = {{}}

def check(frames, active, found):
    single, held, expected = core.EntropyControllerV3(), 1.0, np.empty(n_frames, np.float32)
    for i, frame in enumerate(frames.reshape(-1, n)):
        if active[i]:
            held = single.infer_single_sample_fast(frame)
        expected[i] = held
    return expected, float(np.mean(np.abs(found - expected) <= 1e-5)), bool((found == expected).all())

def timed(frames):
    gate, times = core.EntropyControllerV3(), []
    gate.batch_infer_walled(frames[:64 * n], n)
    for _ in range(3):
        gate.reset_history()
        begin = time.perf_counter()
        found = gate.batch_infer_walled(frames, n)
        times.append(time.perf_counter() - begin)
    return sorted(times)[1], found

def noise(frames, pct):
    rng = np.random.default_rng(42)
    rng.standard_normal(n_frames * n, dtype=np.float32, out=frames)
    active = np.ones(n_frames, bool)
    active[rng.permutation(n_frames)[:n_frames * pct // 100]] = False
    frames.reshape(n_frames, n)[~active] = 0
    return active

for pct in {SILENT_PCT}:
    for offset, name in ((0, f"{{pct}}%"), (1, "unaligned"))[: 2 if pct == 0 else 1]:
        frames = memory[start + offset:][:n_frames * n]
        active = noise(frames, pct)
        took, found = timed(frames)
        rows[name] = {{"rate": n_frames / took}}
        if checks:
            expected, rows[name]["share"], rows[name]["same"] = check(frames, active, found)
            if name == "0%" and answers:
                expected.tofile(answers)
frames = memory[start:][:n_frames * n]
noise(frames, 0)
gate, some = core.EntropyControllerV3(), list(frames.reshape(-1, n)[:5000])
begin = time.perf_counter()
for frame in some:
    gate.infer_single_sample_fast(frame)
rows["one by one"] = {{"rate": len(some) / (time.perf_counter() - begin)}}
print(json.dumps(rows))
"""

# A thread of its own, on any CPU: what it costs idle, and whether 2,000 frames pushed in random pieces come out right.
STREAM = f"""
import sys, time, json
import numpy as np
if sys.argv[1] == "sluice":
    import sluice.residue
    sluice.residue.install()
from residue import core
n, n_frames = {FRAME_SIZE}, 2000
observer = core.AsyncObserver(n, 2 * n_frames)
observer.start()
time.sleep(0.2)
begin = time.process_time()
time.sleep(1)
idle = time.process_time() - begin
rng = np.random.default_rng(4)
samples = rng.standard_normal(n_frames * n, dtype=np.float32)
single = core.EntropyControllerV3()
expected = np.array([single.infer_single_sample_fast(frame) for frame in samples.reshape(-1, n)])
at, end = 0, time.monotonic() + 20
while at < samples.size and time.monotonic() < end:
    at += observer.push_data(samples[at : at + int(rng.integers(1, 20000))])
while observer.poll_telemetry().buffer_fill_pct > 0 and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.1)
observer.stop()
found = observer.pull_output(2 * n_frames)[:n_frames]
right = int((np.abs(found - expected[:len(found)]) <= 1e-5).sum())
print(json.dumps([idle, right, n_frames]))
"""


def as_nobody(python):
    """How to run the peer without root's rights; as it is where nobody cannot read it."""
    if os.geteuid() != 0:
        return {}
    options = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    try:
        run([python, "-c", "from residue import core"], **options)
    except (Failed, OSError):
        print("the peer runs as root: nobody cannot read it", file=sys.stderr)
        return {}
    return options


def compare(python, mine, theirs):
    """The largest difference of the scalings in two files."""
    code = (
        "import sys, numpy as np; a, b = (np.fromfile(p, np.float32) for p in sys.argv[1:]); "
        "print(float(np.abs(a - b).max()))"
    )
    return float(run([python, "-c", code, mine, theirs]))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=pathlib.Path, default=sys.executable, help="has sluice [this one]")
    parser.add_argument("--peer", type=pathlib.Path, help="interpreter that has the peer")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target" / "peers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--frames", type=int, default=50000, help="of 4 KiB, for both")
    parser.add_argument("--cpu", type=int, help="CPU for both [the last]")
    args = parser.parse_args()
    if args.rounds < 1 or args.frames < 100:
        parser.error("--rounds is at least 1 and --frames at least 100")
    args.work.mkdir(parents=True, exist_ok=True)
    peer = find_peer(argparse.Namespace(python=args.peer, work=args.work))
    options = as_nobody(peer)
    cpu = max(os.sched_getaffinity(0)) if args.cpu is None else args.cpu
    pin = ["taskset", "-c", cpu]
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder).chmod(0o777)
        answers = [pathlib.Path(folder) / name for name in ("sluice", "residue")]
        for number in range(args.rounds):
            checks = "check" if number == 0 else "-"
            for python, name, rounds, path, extra in (
                (args.python, "sluice", ours, answers[0], {}),
                (peer, "residue", theirs, answers[1], options),
            ):
                command = [*pin, python, "-c", PROGRAM, name, args.frames, checks, path if checks else ""]
                rounds.append(json.loads(run(command, **extra)))
        difference = compare(args.python, *answers)
    is_met = report(args, cpu, difference, ours, theirs)
    for python, name, extra in ((args.python, "sluice", {}), (peer, "residue", options)):
        idle, right, n_frames = json.loads(run([python, "-c", STREAM, name], **extra))
        print(
            f"{name}: {100 * idle:.1f}% of a CPU idle; {right} of {n_frames} scalings of a stream are right"
        )
        if name == "sluice":
            is_met &= idle < 0.02 and right == n_frames
    return 0 if is_met else 1


def report(args, cpu, difference, ours, theirs):
    """Prints the table, and returns whether its bars are met."""
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    print(
        f"{model[1] if model else 'unknown CPU'}, CPU {cpu}, {args.frames} frames of {FRAME_SIZE} "
        f"({args.frames * FRAME_SIZE * 4 / 1e6:.0f} MB), medians of {args.rounds} alternating rounds "
        "(least and largest ratio)"
    )
    print(
        f"{'silent':>10} {'sluice f/s':>11} {'residue f/s':>11} {'ratio':>20} {'correct':>9} {'theirs':>8}  bar"
    )
    is_met = difference <= 1e-5
    for name in ours[0]:
        mine, peer = ([row[name]["rate"] for row in rounds] for rounds in (ours, theirs))
        ratios = [a / b for a, b in zip(mine, peer, strict=True)]
        ratio = statistics.median(ratios)
        bar, correct, share = "", "", ""
        if name in BARS:
            is_met &= ratio >= BARS[name]
            bar = f"{BARS[name]:g}x {'met' if ratio >= BARS[name] else 'MISSED'}"
        if "same" in ours[0][name]:
            is_met &= ours[0][name]["same"]
            correct = "all bits" if ours[0][name]["same"] else "NO"
            share = f"{100 * theirs[0][name]['share']:.1f}%"
        print(
            f"{name:>10} {statistics.median(mine):>11.0f} {statistics.median(peer):>11.0f} {ratio:>6.2f}x "
            f"({min(ratios):.2f}-{max(ratios):.2f}) {correct:>9} {share:>8}  {bar}"
        )
    aligned, unaligned = (
        statistics.median(row[name]["rate"] for row in ours) for name in ("0%", "unaligned")
    )
    print(f"unaligned at {100 * unaligned / aligned:.1f}% of aligned")
    print(f"largest difference of single frames: {difference:.2e} (bar 1e-5)")
    return is_met


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
