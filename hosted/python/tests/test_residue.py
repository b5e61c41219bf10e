"""What residue-protocol 4.2.4 offers, on our gate."""

import contextlib
import inspect
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import sluice.residue
from gate_cases import noise, program
from sluice.residue import core


def add_up(now):
    accounted = now.total_samples_processed + now.frames_queued + now.total_frames_dropped
    return (
        now.total_samples_ingested == accounted and now.total_samples_skipped <= now.total_samples_processed
    )


def test_names_and_signatures():
    assert sluice.residue.__version__ == "4.2.4"
    assert sluice.residue.AsyncObserver is core.AsyncObserver
    assert sluice.residue.print_isolation_report is core.print_isolation_report

    def defaults(function):
        parameters = inspect.signature(function).parameters.values()
        return {p.name: p.default for p in parameters if p.name != "self"}

    expected = {
        "num_bins": 256,
        "entropy_threshold": 0.1,
        "temporal_buffer_size": 5,
        "l1_threshold": 0.1,
        "ema_alpha": 0.2,
    }
    assert defaults(core.EntropyControllerV3) == expected
    assert defaults(core.create_entropy_controller_v3) == expected
    assert defaults(core.AsyncObserver) == {"frame_size": 1024, "buffer_capacity_frames": 10000}
    assert list(core.get_cache_topology()) == [
        "l1d_size",
        "l2_size",
        "l3_size",
        "cache_line_size",
        "l1d_associativity",
        "num_physical_cores",
        "l1d_lines",
    ]
    now = core.AsyncObserver(16, 4).poll_telemetry()
    assert isinstance(now, core.TelemetrySnapshot)
    with pytest.raises(AttributeError):
        now.total_samples_processed = 1


@pytest.mark.parametrize(
    ("frame", "scaling"),
    [
        (np.zeros(1024), 5.529547),
        (np.tile([1.0, -1.0], 4), 5.523034),
        (np.full(16, 0.5), 5.826693),
        (np.arange(1024) / 1024, 5.001782),
        (np.eye(1, 1024, 500)[0], 5.526723),
    ],
)
def test_known_scalings(frame, scaling):
    controller = core.EntropyControllerV3()
    assert abs(controller.infer_single_sample_fast(frame.astype(np.float32)) - scaling) < 1e-5


def test_the_frame_before_counts():
    controller = core.EntropyControllerV3()
    zeros = np.zeros(1024, np.float32)
    controller.infer_single_sample_fast(zeros)
    assert abs(controller.infer_single_sample_fast(zeros) - 5.894132) < 1e-5
    controller.reset_history()
    assert abs(controller.infer_single_sample_fast(zeros) - 5.529547) < 1e-5


@pytest.mark.parametrize("frame_size", [1, 2, 3, 7, 33, 1024, 4099])
def test_batches_are_loops_of_single_frames(frame_size):
    samples = noise(max(20_000 // frame_size, 9), frame_size)
    single, batch = core.EntropyControllerV3(), core.EntropyControllerV3()
    expected = [single.infer_single_sample_fast(frame) for frame in samples.reshape(-1, frame_size)]
    found = batch.batch_infer_fast(np.append(samples, samples[: frame_size - 1]), frame_size)
    assert found.dtype == np.float32
    assert found.tolist() == expected
    assert batch.get_total_samples_processed() == len(expected)
    assert batch.get_total_samples_skipped() == 0
    single.reset_history()
    held, walled = 1.0, []
    for i, frame in enumerate(samples.reshape(-1, frame_size)):
        held = held if i % 3 == 0 else single.infer_single_sample_fast(frame)
        walled.append(held)
    batch.reset_history()
    found = batch.batch_infer_walled(samples, frame_size)
    assert found.tolist() == walled
    assert batch.get_total_samples_processed() == len(walled)
    assert batch.get_total_samples_skipped() == -(-len(walled) // 3)
    # One controller's calls share its state.
    mixed, first = core.EntropyControllerV3(), 5 * frame_size
    start = mixed.batch_infer_walled(samples[:first], frame_size)
    rest = mixed.batch_infer_fast(samples[first:], frame_size)
    single.reset_history()
    again = [single.infer_single_sample_fast(samples[i * frame_size :][:frame_size]) for i in (1, 2, 4)]
    assert start.tolist() == [1.0, again[0], again[1], again[1], again[2]]
    assert rest.tolist() == [
        single.infer_single_sample_fast(frame) for frame in samples[first:].reshape(-1, frame_size)
    ]


@pytest.mark.parametrize("silent_pct", [0, 0.1, 1, 10, 99])
def test_silence_at_random_places(silent_pct):
    rng, n = np.random.default_rng(11), 8000
    samples = rng.standard_normal((n, 50)).astype(np.float32)
    is_silent = rng.random(n) < silent_pct / 100
    samples[is_silent] = rng.uniform(-9e-6, 9e-6, (is_silent.sum(), 50))
    samples[n // 2] = np.nan
    single, held, expected = core.EntropyControllerV3(), 1.0, []
    for frame, skips in zip(samples, is_silent & (np.arange(n) != n // 2), strict=True):
        held = held if skips else single.infer_single_sample_fast(frame)
        expected.append(held)
    controller = core.EntropyControllerV3()
    found = controller.batch_infer_walled(samples, 50)
    assert found.tolist() == expected
    assert controller.get_total_samples_processed() == n
    assert controller.get_total_samples_skipped() == (is_silent & (np.arange(n) != n // 2)).sum()


def test_long_silence():
    rng, n = np.random.default_rng(12), 60_000
    samples = np.zeros((n, 50), np.float32)
    is_active = rng.random(n) < 0.01
    is_active[20_000:21_000] = True
    is_active[-3:] = [True, False, True]
    samples[is_active] = rng.standard_normal((is_active.sum(), 50))
    samples[:, 7] = 9.9e-6
    single, held, expected = core.EntropyControllerV3(), 1.0, np.empty(n, np.float32)
    for i in range(n):
        held = single.infer_single_sample_fast(samples[i]) if is_active[i] else held
        expected[i] = held
    controller = core.EntropyControllerV3()
    for _ in range(2):
        controller.reset_history()
        found = controller.batch_infer_walled(np.append(samples, samples[:1, :49]), 50)
        assert found.tobytes() == expected.tobytes()
        assert controller.get_total_samples_processed() == n
        assert controller.get_total_samples_skipped() == n - is_active.sum()


def test_layouts():
    samples = noise(30, 100)
    expected = core.EntropyControllerV3().batch_infer_walled(samples, 100).tolist()
    one = core.EntropyControllerV3().infer_single_sample_fast(samples)
    room = np.empty(samples.nbytes + 64, np.uint8)
    layouts = [samples.reshape(30, 100), np.repeat(samples, 3)[::3], samples.astype(float), samples.tolist()]
    layouts += [np.asfortranarray(samples.reshape(30, 100)), samples.astype(">f4")]
    for offset in range(65):
        shifted = room[offset : offset + samples.nbytes]
        shifted[:] = samples.view(np.uint8)
        shifted = shifted.view(np.float32)
        assert core.EntropyControllerV3().batch_infer_walled(shifted, 100).tolist() == expected
        assert core.EntropyControllerV3().infer_single_sample_fast(shifted) == one
    for layout in layouts:
        assert core.EntropyControllerV3().batch_infer_walled(layout, 100).tolist() == expected
        assert core.EntropyControllerV3().infer_single_sample_fast(layout) == one


def test_nothing_and_holes():
    controller = core.EntropyControllerV3()
    assert controller.infer_single_sample_fast(np.empty(0, np.float32)) == 1
    assert controller.get_total_samples_processed() == 0
    assert controller.batch_infer_fast(np.empty(0), 10).shape == (0,)
    assert controller.batch_infer_walled(np.ones(9), 10).shape == (0,)
    for at in range(64):
        for hole in (np.nan, np.inf, -np.inf):
            for spike in (0, 63):
                frame = np.zeros(64, np.float32)
                frame[spike] = 1
                frame[at] = hole
                controller.reset_history()
                assert np.isfinite(controller.batch_infer_walled(frame, 64)).all()
                assert controller.get_total_samples_skipped() == 0
    controller.batch_infer_walled(np.full(64, 9.9e-6, np.float32), 64)
    assert controller.get_total_samples_skipped() == 1


def test_wrong_values_are_refused():
    for arguments in ({"num_bins": 0}, {"num_bins": -5}, {"ema_alpha": 2}, {"l1_threshold": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            core.EntropyControllerV3(**arguments)
    core.EntropyControllerV3(1000, -3.0, -1, -1.0, 0)
    controller = core.EntropyControllerV3()
    for call in (controller.batch_infer_fast, controller.batch_infer_walled):
        for frame_size in (0, -1, 1 << 63, 1 << 64):
            with pytest.raises(ValueError, match="frame_size"):
                call(np.ones(10), frame_size)
    for wrong in (np.ones(3, complex), "text", None):
        with pytest.raises(TypeError):
            controller.infer_single_sample_fast(wrong)
    for arguments, name in (
        ((0, 10), "frame_size"),
        ((16, 0), "buffer_capacity_frames"),
        ((-1, 1), "frame_size"),
    ):
        with pytest.raises(ValueError, match=name):
            core.AsyncObserver(*arguments)
    for seed in range(200):
        values = np.random.default_rng(seed).integers(-(2**40), 2**40, 2).tolist()
        with contextlib.suppress(ValueError):
            core.EntropyControllerV3(values[0]).batch_infer_walled(np.ones(100, np.float32), values[1])


def test_into_an_array():
    controller, samples = core.EntropyControllerV3(), noise(4)
    expected = core.EntropyControllerV3().batch_infer_walled(samples, 1024)
    found = np.zeros(5, np.float32)
    controller.process_stream_walled(samples, samples.size, 1024, found)
    assert found.tolist() == [*expected, 0]
    assert (controller.total_samples_processed, controller.total_samples_skipped) == (4, 2)
    controller.process_stream_fast(samples, 1024, 1024, found)
    with pytest.raises(ValueError, match="total_size"):
        controller.process_stream_fast(samples, samples.size + 1, 1024, found)
    with pytest.raises(ValueError, match="output_scalings"):
        controller.process_stream_fast(samples, samples.size, 1024, np.empty(3, np.float32))


def test_the_quick_start(capsys):
    """What the README of 4.2.4 shows, in our words: report, start, push in parts of the size that is recommended,
    with the length as a second argument, look, stop."""
    core.print_isolation_report()
    assert "core: requested" in capsys.readouterr().out
    observer = core.AsyncObserver(frame_size=1024, buffer_capacity_frames=10_000)
    observer.start()
    samples = np.random.default_rng(3).standard_normal(500 * 1024).astype(np.float32)
    part = observer.recommended_push_size()
    assert part == 64 * 1024
    for at in range(0, samples.size, part):
        chunk = samples[at : at + part]
        assert observer.push_data(chunk, len(chunk)) == len(chunk)
    assert add_up(observer.poll_telemetry())
    observer.stop()
    now = observer.poll_telemetry()
    assert (now.total_samples_ingested, now.total_samples_processed, now.total_frames_dropped) == (
        500,
        500,
        0,
    )
    assert not now.is_running
    expected = core.EntropyControllerV3().batch_infer_walled(samples, 1024)
    assert observer.pull_output(1000).tolist() == expected.tolist()


def test_streams_are_batches_whatever_the_pushes():
    n_floats = int(os.environ.get("SLUICE_RESIDUE_FLOATS", "5000000"))
    samples = noise(1 + n_floats // 100, 100, seed=8)[:n_floats]
    expected = core.EntropyControllerV3().batch_infer_walled(samples, 100)
    observer = core.AsyncObserver(100, 500)
    observer.start()
    sizes, at, found = np.random.default_rng(2), 0, []
    while at < samples.size:
        at += observer.push_data(samples[at : at + int(sizes.integers(1, 60_000))])
        found.append(observer.pull_output(250))
        assert add_up(observer.poll_telemetry())
        while observer.poll_telemetry().frames_queued > 400:
            found.append(observer.pull_output(1000))
    observer.stop()
    found.append(observer.pull_output(10_000))
    found = np.concatenate(found)
    now = observer.poll_telemetry()
    assert found.size + now.outputs_lost == expected.size == now.total_samples_processed
    if now.outputs_lost == 0:
        assert np.array_equal(found, expected)


def test_an_observer_is_full_and_not_running():
    samples = np.ones(16 * 15, np.float32)
    observer = core.AsyncObserver(16, 10)
    assert observer.push_data(samples) == 0
    assert not observer.poll_telemetry().is_running
    # The form with a length takes samples before the first start, and reports what did not fit.
    assert observer.push_data(samples[:80], 80) == 80
    assert observer.poll_telemetry().buffer_fill_pct == 50
    assert observer.push_data(samples, 160) == 80
    now = observer.poll_telemetry()
    assert (now.buffer_fill_pct, now.backpressure_active, now.total_frames_dropped) == (100, True, 5)
    assert add_up(now)
    observer.start()
    observer.start()
    observer.stop()
    observer.stop()
    assert observer.poll_telemetry().total_samples_processed == 10
    assert observer.push_data(samples) == observer.push_data(samples, 16) == 0
    assert observer.pull_output(3).size == 3
    assert observer.pull_output(0).size == 0
    assert observer.pull_output(100).size == 7
    for call in (lambda: observer.pull_output(-1), lambda: observer.push_data(samples, 1000)):
        with pytest.raises(ValueError, match="is"):
            call()


def test_nobody_pulls():
    observer = core.AsyncObserver(16, 10)
    observer.start()
    taken = 0
    samples = np.ones(16 * 1000, np.float32)
    while taken < samples.size:
        taken += observer.push_data(samples[taken:])
    observer.stop()
    now = observer.poll_telemetry()
    assert (now.total_samples_processed, now.total_frames_dropped, now.outputs_lost) == (1000, 0, 990)


def test_counts_add_up_from_other_threads():
    observer, samples = core.AsyncObserver(64, 32), noise(100, 64)
    is_over, wrong = threading.Event(), []

    def look():
        while not is_over.is_set():
            if not add_up(now := observer.poll_telemetry()):
                wrong.append(now)

    looker = threading.Thread(target=look)
    looker.start()
    for run_number in range(50):
        observer.start()
        taken = sum(observer.push_data(samples[: 64 * k + 7]) for k in range(20))
        observer.reset_telemetry() if run_number % 2 else None
        observer.stop()
        now = observer.poll_telemetry()
        if run_number % 2 == 0:
            assert now.total_samples_processed == taken // 64
        assert now.buffer_fill_pct < 100 / 32
    is_over.set()
    looker.join()
    assert not wrong


def test_programs_run_as_they_are(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "import residue.core as direct\n"
        "from residue import core, AsyncObserver, print_isolation_report, __version__\n"
        "from residue.core import TelemetrySnapshot\n"
        "assert direct is core and core.AsyncObserver is AsyncObserver\n"
        "print(__name__, __version__, sys.argv[1:])\n"
    )
    assert program("-m", "sluice.residue", script, "--flag", "x") == "__main__ 4.2.4 ['--flag', 'x']\n"
    code = "import sluice.residue; sluice.residue.install(); import residue; print(residue.core.__name__)"
    assert program("-c", code) == "sluice.residue.core\n"
    done = subprocess.run(
        [sys.executable, "-m", "sluice.residue"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "usage" in done.stderr
