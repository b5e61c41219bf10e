"""The gate from Python: the same bits however samples are given, and nothing lost uncounted."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from sluice import gate

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


def test_arrays_are_decided_as_their_frames_one_by_one():
    samples = noise(200)
    for arguments in (
        {},
        {"measure": "std", "threshold": 0.9, "hysteresis": 0.7, "hang_over": 2},
        {"measure": "entropy", "threshold": 7.3, "num_bins": 300},
        {"measure": "sparsity", "threshold": 0.5, "at_most": True, "l1_threshold": 0.5},
        {"measure": "scaling", "threshold": 5, "ema_alpha": 0.9, "noise_floor": 1.0},
    ):
        together = gate.decide(samples, 1024, **arguments)
        one_by_one = gate.Gate(**arguments)
        singles = [one_by_one.decide_frame(frame) for frame in samples.reshape(-1, 1024)]
        assert len(together) == 200
        assert [single.verdict for single in singles] == [gate.VERDICTS[v] for v in together.verdict]
        for name in ("max_abs", "level", "scaling"):
            assert [getattr(single, name) for single in singles] == getattr(together, name).tolist()
        assert singles == list(together)
        assert 0 < together.passes.sum() < 200, arguments


def test_a_gate_goes_on_where_it_ended():
    # Longer than what is decided between two looks for Ctrl-C.
    samples = np.tile(noise(4096), 5)
    whole = gate.decide(samples)
    parts = gate.Gate()
    ends = [0, 1024, 3 * 1024, 10_000 * 1024, samples.size]
    decided = [parts.decide(samples[a:b]) for a, b in itertools.pairwise(ends)]
    for name in (*COLUMNS, "index"):
        joined = np.concatenate([getattr(part, name) for part in decided])
        assert joined.tobytes() == getattr(whole, name).tobytes(), name
    parts.reset()
    assert bits(parts.decide(samples)) == bits(whole)
    assert parts.decide(samples[:1024]).index[0] == whole.index[-1] + 1


def test_layouts_are_decided_as_their_contiguous_copies():
    samples = noise(40, 100)
    expected = bits(gate.decide(samples, 100))
    room = np.empty(samples.nbytes + 64, np.uint8)
    for offset in range(65):
        shifted = room[offset : offset + samples.nbytes]
        shifted[:] = samples.view(np.uint8)
        assert bits(gate.decide(shifted.view(np.float32), 100)) == expected, offset
    twice = np.repeat(samples, 2)
    read_only = samples.copy()
    read_only.flags.writeable = False
    layouts = {
        "strided": twice[::2],
        "reversed": samples[::-1].copy()[::-1],
        "rows": samples.reshape(40, 100),
        "cube": samples.reshape(4, 10, 100),
        "columns": np.asfortranarray(samples.reshape(40, 100)),
        "part of columns": np.repeat(samples.reshape(40, 100), 3, axis=1)[:, ::3],
        "transposed": samples.reshape(40, 100).T.copy().T,
        "other byte order": samples.astype(">f4"),
        "float64": samples.astype(np.float64),
        "longdouble": samples.astype(np.longdouble),
        "list": samples.tolist(),
        "read only": read_only,
        "more behind": np.concatenate([samples, samples[:99]]),
    }
    for name, layout in layouts.items():
        assert bits(gate.decide(layout, 100)) == expected, name
        if name != "more behind":
            one = gate.Gate().decide_frame(layout)
            assert one == gate.Gate().decide_frame(samples), name
    assert bits(gate.decide(samples.reshape(40, 100))) == expected
    whole_numbers = np.arange(-128, 128, dtype=np.int16)
    for dtype in (np.int8, np.int16, np.int64, np.float16):
        assert gate.Gate().decide_frame(whole_numbers.astype(dtype)).max_abs == 128
    assert gate.Gate().decide_frame(np.array([False, True])).max_abs == 1


def test_borrowed_arrays_are_not_changed_and_not_kept():
    samples = noise(10)
    before, count = samples.copy(), sys.getrefcount(samples)
    judge = gate.Gate()
    judge.decide_frame(samples)
    assert np.array_equal(samples, before)
    assert sys.getrefcount(samples) == count


def test_short_arrays():
    for empty in ([], np.empty(0, np.float32), np.empty((0, 5), np.float32), np.empty((3, 0, 2))):
        judge = gate.Gate()
        assert len(judge.decide(empty, 16)) == 0
        one = judge.decide_frame(empty)
        assert (one.verdict, one.max_abs, one.features) == ("silent", 0, None)
    assert len(gate.decide(np.ones(15), 16)) == 0
    assert len(gate.decide(np.ones(16), 16)) == 1
    assert gate.decide(np.empty(0), 16).features.shape == (0, 7)
    assert gate.decide(np.empty(0), 16).text() == "no frames"
    spike = np.zeros(300, np.float32)
    for length in range(1, 301):
        for at in {0, length // 2, length - 1}:
            spike[at] = -1e-5
            assert gate.Gate().decide_frame(spike[:length]).passes
            spike[at] = 9.9e-6
            assert not gate.Gate().decide_frame(spike[:length]).passes
            spike[at] = 0


@pytest.mark.parametrize("hole", [np.nan, -np.nan, np.inf, -np.inf])
def test_holes_are_signal(hole):
    frame = np.zeros(100, np.float32)
    for at in range(100):
        for spike in (None, at - 1, (at + 1) % 100):
            frame[:] = 0
            if spike is not None:
                frame[spike] = 0.5
            frame[at] = hole
            for measure in ("max_abs", "std", "peak_to_peak", "entropy"):
                one = gate.Gate(measure=measure, threshold=1e9).decide_frame(frame)
                assert one.verdict == "active", (at, measure)
            assert np.isfinite(one.scaling)


def test_wrong_values_are_refused_by_name():
    for arguments, error, message in (
        ({"num_bins": 0}, ValueError, "num_bins is 0: it is 1 to"),
        ({"num_bins": -1}, ValueError, "num_bins is -1"),
        ({"num_bins": 1 << 80}, ValueError, "num_bins is"),
        ({"num_bins": 2.5}, TypeError, "num_bins is 2.5: it is a whole number"),
        ({"ema_alpha": 1.5}, ValueError, "ema_alpha is 1.5: it is 0 to 1"),
        ({"ema_alpha": float("nan")}, ValueError, "ema_alpha"),
        ({"l1_threshold": float("nan")}, ValueError, "l1_threshold"),
        ({"wall": -1}, ValueError, "wall is -1: it is at least 0"),
        ({"threshold": -1}, ValueError, "threshold is -1"),
        ({"hysteresis": 0}, ValueError, "hysteresis is 0: it is above 0 and at most 1"),
        ({"hang_over": -1}, ValueError, "hang_over is -1: it is 0 to"),
        ({"noise_floor": 0.5}, ValueError, "noise_floor: ratio is at least 1"),
        ({"noise_floor": gate.NoiseFloor(3, 2, 0)}, ValueError, "noise_floor"),
        ({"noise_floor": 3, "at_most": True}, ValueError, "noise_floor"),
        ({"measure": "loudness"}, ValueError, "it is one of max_abs, peak_to_peak"),
    ):
        with pytest.raises(error, match=message):
            gate.Policy(**arguments)
    for frame_size in (0, -1, 1 << 31, 1 << 70):
        with pytest.raises(ValueError, match="frame_size is"):
            gate.decide(np.zeros(10), frame_size)
        with pytest.raises(ValueError, match="frame_size is"):
            gate.Stream(frame_size=frame_size)
    for arguments, message in (
        ({"capacity": 0}, "capacity is 0"),
        ({"capacity": 1 << 62}, "do not fit in memory"),
        ({"outputs": 0}, "outputs is 0"),
        ({"on_full": "wait"}, "one of block, return, drop_newest, drop_oldest"),
    ):
        with pytest.raises(ValueError, match=message):
            gate.Stream(**arguments)
    for wrong in (np.zeros(4, complex), ["a"], np.float32(1), 1.0, None, np.zeros(2, "M8[s]"), "text"):
        with pytest.raises(TypeError, match="samples"):
            gate.decide(wrong, 1)
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout is"):
            gate.Stream().pull(timeout=timeout)
    with pytest.raises(ValueError, match="max_frames is -1"):
        gate.Stream().pull(-1)


def test_policies_and_their_keywords():
    policy = gate.Policy(measure="std", threshold=0.5)
    samples = noise(9)
    assert bits(gate.decide(samples, policy=policy)) == bits(
        gate.decide(samples, measure="std", threshold=0.5)
    )
    assert gate.Gate(policy, hang_over=1).policy == gate.Policy(measure="std", threshold=0.5, hang_over=1)
    held = gate.decide(samples, policy=policy, hang_over=1)
    assert [gate.VERDICTS[v] for v in held.verdict] == ["silent", "active", "active"] + [
        "hang_over",
        "active",
        "active",
    ] * 2
    assert held.is_active.sum() == 6
    assert held.passes.sum() == 8
    assert not np.isfinite(gate.decide(samples, score=False).features).any()
    assert gate.MEASURES[4:] == gate.FEATURES


def test_decisions_as_a_sequence():
    samples = noise(12, 64)
    decisions = gate.decide(samples, 64)
    assert len(decisions) == len(list(decisions)) == 12
    assert decisions[-1] == decisions[11]
    with pytest.raises(IndexError):
        decisions[12]
    part = decisions[3:7]
    assert part.index.tolist() == [3, 4, 5, 6]
    assert list(part) == [decisions[i] for i in range(3, 7)]
    assert np.array_equal(part.frames(), decisions.frames()[3:7])
    assert np.shares_memory(decisions.frames(), samples)
    assert np.array_equal(decisions.frames()[decisions.passes], samples.reshape(-1, 64)[decisions.passes])
    assert np.array_equal(decisions.entropy, decisions.features[:, 3], equal_nan=True)
    assert decisions[0].features is None
    assert decisions[1].features["entropy"] == decisions.entropy[1]
    assert repr(decisions) == "<12 decisions: 8 active, 0 hang_over, 4 silent>"
    with pytest.raises(ValueError, match="name is"):
        decisions.feature("loudness")
    with pytest.raises(ValueError, match="at least 768"):
        decisions.frames(samples[:767])
    with pytest.raises(ValueError, match="step"):
        decisions[::2]


def test_pictures(tmp_path):
    samples = noise(64, 64, silent=2)
    decisions = gate.decide(samples, 64, measure="std", threshold=0.5, hang_over=0)
    path = tmp_path / "picture.svg"
    decisions.plot(path)
    picture = path.read_text()
    assert picture.startswith("<svg")
    assert "64 frames of 64" in picture
    assert "std, up to" in picture
    with pytest.raises(FileExistsError, match="overwrite=True"):
        decisions.plot(path)
    decisions[:32].plot(path, overwrite=True)
    assert "32 frames of 64" in path.read_text()
    with pytest.raises(OSError, match="nowhere"):
        decisions.plot(tmp_path / "nowhere" / "picture.svg")
    with pytest.raises(ValueError, match="different numbers"):
        decisions.plot(path, samples=samples[:64], overwrite=True)
    with gate.Stream(frame_size=64) as stream:
        stream.push(samples)
    streamed = stream.pull()
    streamed.plot(path, overwrite=True)
    assert "nan" not in path.read_text().lower()
    streamed.plot(path, samples=samples, overwrite=True)
    bars, verdicts = decisions.text(64).splitlines()
    assert verdicts == ".#" * 32
    assert bars.startswith(" ")
    assert "std, up to" in bars
    assert len(decisions.text(10).splitlines()[1]) == 10
    with pytest.raises(ValueError, match="width"):
        decisions.text(0)


def test_other_threads_run_meanwhile():
    samples = np.zeros(50_000_000, np.float32)
    counted, is_over = [0], threading.Event()

    def count():
        while not is_over.is_set():
            counted[0] += 1
            time.sleep(0)

    other = threading.Thread(target=count)
    other.start()
    judge = gate.Gate()
    during = 0
    for _ in range(5):
        before = counted[0]
        judge.decide(samples)
        during += counted[0] - before
    is_over.set()
    other.join()
    assert during > 100


def test_threads_share_a_gate():
    samples = noise(30)
    judge, found = gate.Gate(ema_alpha=1.0), []

    def decide():
        for _ in range(20):
            found.append(len(judge.decide(samples)))

    threads = [threading.Thread(target=decide) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [30] * 80


def test_an_interrupted_call_changes_nothing():
    class TooLong(Exception):
        pass

    def interrupt(*_):
        raise TooLong

    samples = np.tile(noise(4096), 12)
    judge, before = gate.Gate(), signal.signal(signal.SIGALRM, interrupt)
    judge.decide(samples[:4096])
    try:
        with pytest.raises(TooLong):
            while True:
                signal.setitimer(signal.ITIMER_REAL, 0.012)
                judge.decide(samples)
                judge = gate.Gate()
                judge.decide(samples[:4096])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    expected = gate.Gate()
    expected.decide(samples[:4096])
    part = samples[: 1 << 20]
    assert bits(judge.decide(part)) == bits(expected.decide(part))


def test_a_stream_decides_as_an_array_whatever_the_pushes():
    samples = noise(3000, 100, seed=5)
    expected = gate.decide(samples, 100, measure="std", threshold=0.5, hang_over=1)
    for capacity in (1, 7, 4096):
        sizes = np.random.default_rng(capacity).integers(0, 900, 2000)
        with gate.Stream(
            frame_size=100, capacity=capacity, keep_frames=True, measure="std", threshold=0.5, hang_over=1
        ) as stream:
            at = 0
            for size in sizes:
                at += stream.push(samples[at : at + size])
            stream.push(samples[at:])
            assert stream.flush(10)
        found = stream.pull()
        assert bits(found) == bits(expected)
        assert np.array_equal(found.index, expected.index)
        assert np.array_equal(found.passed, expected.frames()[expected.passes])
        assert np.array_equal(
            found[1000:2000].passed, expected[1000:2000].frames()[expected[1000:2000].passes]
        )


@pytest.mark.parametrize("on_full", ["block", "return", "drop_newest", "drop_oldest"])
def test_counts_add_up_at_every_look(on_full):
    samples, is_over, wrong, looks = noise(50), threading.Event(), [], [0]
    stream = gate.Stream(frame_size=1024, capacity=8, on_full=on_full, outputs=64)

    def look():
        while not is_over.is_set():
            now = stream.telemetry()
            looks[0] += 1
            if now.pushed != now.processed + now.queued + now.dropped or now.skipped > now.processed:
                wrong.append((now.pushed, now.processed, now.queued, now.dropped))

    taken = [0, 0]

    def push(which):
        sizes = np.random.default_rng(which).integers(1, samples.size, 300)
        for size in sizes:
            taken[which] += stream.push(samples[:size])

    def pull():
        while not is_over.is_set():
            stream.pull(10, timeout=0.01)

    with stream:
        lookers = [threading.Thread(target=look), threading.Thread(target=pull)]
        pushers = [threading.Thread(target=push, args=(which,)) for which in range(2)]
        for thread in lookers + pushers:
            thread.start()
        for thread in pushers:
            thread.join()
        is_over.set()
        for thread in lookers:
            thread.join()
    assert not wrong
    assert looks[0] > 10
    end = stream.telemetry()
    assert end.pushed == -(-sum(taken) // 1024)
    assert end.pushed == end.processed + end.queued + end.dropped
    assert end.queued_samples < 1024
    if on_full in ("block", "return"):
        assert end.dropped == 0
        assert end.processed == sum(taken) // 1024


def test_outputs_without_room_are_counted():
    with gate.Stream(frame_size=16, outputs=10) as stream:
        stream.push(np.ones(16 * 100))
    now = stream.telemetry()
    assert (now.processed, now.outputs, now.outputs_lost) == (100, 10, 90)
    assert stream.pull().index.tolist() == list(range(10))


def test_stop_and_start():
    samples = noise(64)
    stream = gate.Stream(frame_size=1024, capacity=256)
    assert not stream.is_running
    for _ in range(2):
        with pytest.raises(RuntimeError, match="does not run"):
            stream.push(samples)
        stream.stop()
    expected = bits(gate.decide(samples))
    for _ in range(20):
        stream.start()
        stream.start()
        assert stream.is_running
        assert stream.push(samples) == samples.size
        assert stream.push(samples[:100]) == 100
        stream.stop()
        stream.stop()
        now = stream.telemetry()
        assert (now.pushed, now.processed, now.queued, now.dropped) == (65, 64, 1, 0)
        assert (now.queued_samples, now.is_running) == (100, False)
        assert bits(stream.pull()) == expected
        assert len(stream.pull(timeout=None)) == 0


def test_stop_ends_pushes_in_progress():
    samples = noise(2000)
    stream = gate.Stream(frame_size=1024, capacity=2)
    for _ in range(10):
        taken = []

        def push(taken=taken):
            with pytest.raises(RuntimeError):
                while True:
                    taken.append(stream.push(samples))

        stream.start()
        pusher = threading.Thread(target=push)
        pusher.start()
        time.sleep(0.02)
        stream.stop()
        pusher.join()
        now = stream.telemetry()
        assert now.processed == sum(taken) // 1024
        assert now.pushed == now.processed + now.queued


def test_telemetry_is_reset_for_good():
    samples = noise(30)
    with gate.Stream(frame_size=1024) as stream:
        stream.push(samples)
        assert stream.flush(10)
        stream.reset_telemetry()
        now = stream.telemetry()
        assert (now.pushed, now.processed, now.skipped, now.sparsity_pct) == (0, 0, 0, 0)
        stream.push(samples[: 3 * 1024])
        assert stream.flush(10)
        now = stream.telemetry()
        assert (now.pushed, now.processed, now.skipped) == (3, 3, 1)
    now = stream.telemetry()
    assert (now.pushed, now.processed, now.skipped) == (3, 3, 1)
    stream.reset_telemetry()
    assert stream.telemetry().processed == 0


def test_rates_fall_to_nothing():
    with gate.Stream(frame_size=64) as stream:
        stream.telemetry()
        stream.push(np.ones(64 * 1000))
        assert stream.flush(10)
        time.sleep(0.12)
        assert stream.telemetry().frames_per_second > 0
        time.sleep(0.12)
        assert stream.telemetry().frames_per_second == 0


def test_waiting_costs_nothing():
    code = """
import threading, time
from sluice import gate
with gate.Stream() as stream:
    waiting = threading.Thread(target=lambda: stream.pull(timeout=1.2))
    waiting.start()
    time.sleep(0.1)
    begin = time.process_time()
    time.sleep(1)
    print(time.process_time() - begin)
    waiting.join()
"""
    assert float(run(code)) < 0.02


def test_pulls_wait():
    with gate.Stream(frame_size=16) as stream:
        begin = time.monotonic()
        assert len(stream.pull(timeout=0.1)) == 0
        assert 0.09 < time.monotonic() - begin < 5
        later = threading.Timer(0.05, lambda: stream.push(np.ones(64)))
        later.start()
        assert len(stream.pull(timeout=None)) > 0
        later.join()
        ender = threading.Timer(0.05, stream.stop)
        ender.start()
        while len(stream.pull(timeout=None)):
            pass
        ender.join()


@pytest.mark.parametrize(
    "wait", ["stream.pull(timeout=None)", "[stream.push(samples) for _ in range(10**9)]"]
)
def test_waits_end_with_ctrl_c(wait):
    code = f"""
import numpy as np, os, signal, threading, time
from sluice import gate
samples = np.ones(1 << 24, np.float32)
with gate.Stream(frame_size=1 << 20, capacity=1) as stream:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    try:
        {wait}
    except KeyboardInterrupt:
        print(time.monotonic() - begin < 10)
"""
    assert run(code) == "True\n"


def test_children_of_a_fork():
    code = """
import os, sys, warnings
import numpy as np
from sluice import gate
warnings.simplefilter("ignore")
judge = gate.Gate()
judge.decide(np.ones(2048))
stream = gate.Stream(frame_size=16)
stream.start()
stream.push(np.ones(160))
child = os.fork()
if child == 0:
    calls = [lambda: stream.push(np.ones(16)), stream.pull, stream.stop, stream.start, stream.telemetry]
    for call in calls:
        try:
            call()
        except RuntimeError as error:
            assert "fork" in str(error), error
        else:
            os._exit(3)
    if len(judge.decide(np.ones(4096))) != 4:
        os._exit(4)
    with gate.Stream(frame_size=16) as new:
        new.push(np.ones(160))
    if len(new.pull()) != 10:
        os._exit(5)
    del stream
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stream.stop()
assert len(stream.pull()) == 10
print("fine")
"""
    assert run(code) == "fine\n"


def test_isolation_leaves_the_caller_alone():
    def of_thread():
        return os.sched_getaffinity(0), os.sched_getscheduler(0), os.sched_getparam(0).sched_priority

    before = of_thread()
    report = gate.isolation_report(1 << 20)
    assert of_thread() == before
    names = [measure.name for measure in report]
    assert names[:2] == ["core", "smt"]
    assert {"scheduling", "timer slack", "memory lock", "huge pages", "numa"} <= set(names)
    for measure in report:
        assert str(measure).startswith(f"{measure.name}: requested {measure.requested}, ")
        assert measure.is_held == (measure.why_not is None)
    with gate.Stream(isolate=True, capacity=64) as stream:
        assert of_thread() == before
        stream.push(noise(10))
        report = stream.isolation()
        assert len(report) == len(names)
        assert stream.telemetry().isolation_active == all(measure.is_held for measure in report)
    assert of_thread() == before
    with gate.Stream() as stream:
        assert stream.isolation() == []
        assert not stream.telemetry().isolation_active


def test_the_caches_are_those_that_the_kernel_names():
    found = gate.cache_topology()
    assert found["l1d_lines"] == found["l1d_size"] // found["cache_line_size"]
    assert all(isinstance(value, int) and value > 0 for value in found.values())
    if shutil.which("lscpu") is None:
        pytest.skip("SKIPPED: there is no lscpu to compare with")
    text = subprocess.run(["lscpu", "-J"], capture_output=True, text=True, check=True).stdout
    fields = {}

    def collect(items):
        for item in items:
            fields[item["field"].rstrip(":")] = item["data"]
            collect(item.get("children", []))

    collect(json.loads(text)["lscpu"])
    if "Core(s) per socket" in fields:
        expected = int(fields["Core(s) per socket"]) * int(fields["Socket(s)"])
        assert found["num_physical_cores"] == expected
