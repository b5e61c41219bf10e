"""The gate from Python: the same bits however samples are given, and nothing lost uncounted."""

import json
import os
import shutil
import subprocess
import threading
import time

import numpy as np
import pytest
from gate_cases import bits, noise, run
from sluice import gate


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
        with pytest.raises(RuntimeError, match="is not running"):
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
        pytest.skip("SKIPPED: lscpu is not available for comparison")
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
