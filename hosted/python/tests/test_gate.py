"""The gate from Python: the same bits however samples are given, and nothing lost uncounted."""

import itertools
import signal
import sys
import threading
import time

import numpy as np
import pytest
from gate_cases import COLUMNS, bits, noise
from sluice import gate


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
        ({"num_bins": 0}, ValueError, "num_bins is 0, expected 1 to"),
        ({"num_bins": -1}, ValueError, "num_bins is -1"),
        ({"num_bins": 1 << 80}, ValueError, "num_bins is"),
        ({"num_bins": 2.5}, TypeError, "num_bins is 2.5, expected an integer"),
        ({"ema_alpha": 1.5}, ValueError, "ema_alpha is 1.5, expected 0 to 1"),
        ({"ema_alpha": float("nan")}, ValueError, "ema_alpha"),
        ({"l1_threshold": float("nan")}, ValueError, "l1_threshold"),
        ({"wall": -1}, ValueError, "wall is -1, expected at least 0"),
        ({"threshold": -1}, ValueError, "threshold is -1"),
        ({"hysteresis": 0}, ValueError, "hysteresis is 0, expected above 0 and at most 1"),
        ({"hang_over": -1}, ValueError, "hang_over is -1, expected 0 to"),
        ({"noise_floor": 0.5}, ValueError, "noise_floor: ratio must be at least 1"),
        ({"noise_floor": gate.NoiseFloor(3, 2, 0)}, ValueError, "noise_floor"),
        ({"noise_floor": 3, "at_most": True}, ValueError, "noise_floor"),
        ({"measure": "loudness"}, ValueError, "expected one of max_abs, peak_to_peak"),
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
                # Early enough to come in the midst of the call, not behind it.
                signal.setitimer(signal.ITIMER_REAL, 0.003)
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
