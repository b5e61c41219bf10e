"""The names of `residue.core`: a controller, an observer with a thread, and information about the machine."""

from __future__ import annotations

import dataclasses
import operator
import threading

import numpy as np
import numpy.typing as npt

from sluice import _native, gate

__all__ = [
    "AsyncObserver",
    "EntropyControllerV3",
    "TelemetrySnapshot",
    "create_entropy_controller_v3",
    "get_cache_topology",
    "print_isolation_report",
]


class EntropyControllerV3:
    """Computes the scaling of frames, a number from 0 to 10, and remembers the most recent ones.

    num_bins: bins of the histogram, at least 1; more than 256 count as 256.
    l1_threshold: mean magnitude below which a frame is sparse; a number.
    ema_alpha: weight of the newest scaling in the running mean, 0 to 1.
    entropy_threshold, temporal_buffer_size: accepted without effect, as in 4.2.4.

    Arrays may have any shape and are read in C order. C-contiguous float32 is read in place, other real numbers are
    converted. Raises ValueError for a value out of range, TypeError if an argument is not an array of real
    numbers.
    """

    def __init__(
        self,
        num_bins: int = 256,
        entropy_threshold: float = 0.1,
        temporal_buffer_size: int = 5,
        l1_threshold: float = 0.1,
        ema_alpha: float = 0.2,
    ) -> None:
        float(entropy_threshold)
        operator.index(temporal_buffer_size)
        self._controller = _native.Controller(num_bins, l1_threshold, ema_alpha)

    def infer_single_sample_fast(self, input: npt.ArrayLike) -> float:  # noqa: A002
        """The scaling of the array, which is one frame. Without samples it is 1, and nothing changes."""
        return self._controller.single(input)

    def batch_infer_fast(self, input: npt.ArrayLike, frame_size: int) -> npt.NDArray[np.float32]:  # noqa: A002
        """The scaling of every whole frame of `frame_size` samples: float32 (size // frame_size).

        Bit-identical to `infer_single_sample_fast` for each frame in turn.
        """
        return self._controller.batch(input, frame_size, False)

    def batch_infer_walled(self, input: npt.ArrayLike, frame_size: int) -> npt.NDArray[np.float32]:  # noqa: A002
        """As `batch_infer_fast`, but with the gate: a frame without a magnitude of at least 1e-5 is skipped, and
        keeps the last scaling.

        NaN and infinity do not count as silence.
        """
        return self._controller.batch(input, frame_size, True)

    def process_stream_fast(
        self,
        input: npt.ArrayLike,  # noqa: A002
        total_size: int,
        frame_size: int,
        output_scalings: npt.NDArray[np.float32],
    ) -> None:
        """`batch_infer_fast` of the first `total_size` samples, into `output_scalings`.

        In 4.2.4, only the header and the test scripts have it. Raises ValueError if either array is too short.
        """
        self._into(input, total_size, frame_size, output_scalings, False)

    def process_stream_walled(
        self,
        input: npt.ArrayLike,  # noqa: A002
        total_size: int,
        frame_size: int,
        output_scalings: npt.NDArray[np.float32],
    ) -> None:
        """`batch_infer_walled` of the first `total_size` samples, into `output_scalings`.

        In 4.2.4, only the header and the test scripts have it. Raises ValueError if either array is too short.
        """
        self._into(input, total_size, frame_size, output_scalings, True)

    def reset_history(self) -> None:
        """Resets the controller: scaling 1, counters 0, no previous frames."""
        self._controller.reset()

    def get_total_samples_processed(self) -> int:
        """Number of frames processed, including skipped ones."""
        return self._controller.state()[0]

    def get_total_samples_skipped(self) -> int:
        """Number of frames that were silent and skipped."""
        return self._controller.state()[1]

    @property
    def total_samples_processed(self) -> int:
        """As `get_total_samples_processed`."""
        return self.get_total_samples_processed()

    @property
    def total_samples_skipped(self) -> int:
        """As `get_total_samples_skipped`."""
        return self.get_total_samples_skipped()

    def _into(
        self,
        samples: npt.ArrayLike,
        total_size: int,
        frame_size: int,
        output: npt.NDArray[np.float32],
        gated: bool,
    ) -> None:
        part = _first(samples, total_size, "total_size")
        n_frames = part.size // frame_size if frame_size > 0 else 0
        if output.size < n_frames:
            raise ValueError(f"output_scalings has room for {output.size}, expected at least {n_frames}")
        output.reshape(-1)[:n_frames] = self._controller.batch(part, frame_size, gated)


def create_entropy_controller_v3(
    num_bins: int = 256,
    entropy_threshold: float = 0.1,
    temporal_buffer_size: int = 5,
    l1_threshold: float = 0.1,
    ema_alpha: float = 0.2,
) -> EntropyControllerV3:
    """A controller with these arguments."""
    return EntropyControllerV3(num_bins, entropy_threshold, temporal_buffer_size, l1_threshold, ema_alpha)


def get_cache_topology() -> dict[str, int]:
    """Caches of the first CPU, and counts: see `sluice.gate.cache_topology`."""
    return gate.cache_topology()


def print_isolation_report() -> None:
    """Prints what an observer's thread would request from the kernel on this machine, and what it would get."""
    measures = gate.isolation_report()
    print("Isolation of an observer's thread, requested and read back just now:")
    for measure in measures:
        print(f"  [{'held' if measure.is_held else 'not held'}] {measure}")
    topology = get_cache_topology()
    print(
        f"  {topology['num_physical_cores']} physical cores, cache lines of {topology['cache_line_size']} bytes"
    )
    if any(measure.name.startswith("numa") and not measure.is_held for measure in measures):
        print("CRITICAL WARNING: the ring is on another NUMA node than the thread that reads it.")


@dataclasses.dataclass(frozen=True, slots=True)
class TelemetrySnapshot:
    """The state of an observer. All counters are frames, and
    `total_samples_ingested == total_samples_processed + frames_queued + total_frames_dropped`.
    """

    total_samples_ingested: int
    """Number of frames accepted since the start, including an incomplete one."""
    total_samples_processed: int
    """Number of frames processed, including skipped ones."""
    total_samples_skipped: int
    """Number of frames that were silent and skipped."""
    total_frames_dropped: int
    """Number of frames lost. If a push accepts only part of its samples, nothing is lost: the caller keeps the rest."""
    current_fps: float
    """Frames per second over at least the last 100 ms; 0 when idle."""
    sparsity_pct: float
    """Skipped frames as a percentage of processed ones."""
    buffer_fill_pct: float
    """Fill level of the intake."""
    is_running: bool
    """Whether it is started and not stopped."""
    isolation_active: bool
    """Whether all requests to the kernel were granted."""
    backpressure_active: bool
    """Whether the intake is more than 90% full."""
    frames_queued: int = 0
    """Number of frames in the intake, including an incomplete one. Not in 4.2.4."""
    outputs_lost: int = 0
    """Number of scalings lost because they were not pulled. Their frames were processed. Not in 4.2.4."""


class AsyncObserver:
    """Computes scalings on a thread of its own.

    frame_size: samples per frame, at least 1.
    buffer_capacity_frames: frames in the intake, and scalings that wait for a pull; at least 1.

    Each start begins a new stream with counters at 0. `stop` first processes every whole frame that was pushed.
    Raises ValueError for a value out of range; in a child of a fork every call raises RuntimeError.
    """

    def __init__(self, frame_size: int = 1024, buffer_capacity_frames: int = 10000) -> None:
        self._frame_size = frame_size
        self._capacity = buffer_capacity_frames
        try:
            self._stream = gate.Stream(
                frame_size=frame_size,
                capacity=buffer_capacity_frames,
                on_full="return",
                outputs=buffer_capacity_frames,
                isolate=True,
            )
        except ValueError as error:
            raise ValueError(str(error).replace("capacity is", "buffer_capacity_frames is")) from None
        self._early = _Early()

    def start(self) -> None:
        """Starts the thread at the start of a stream. Does nothing if it is running."""
        with self._early.lock:
            if self._stream.is_running:
                return
            self._stream.start()
            for part in self._early.end():
                self._stream.push(part)

    def stop(self) -> None:
        """Processes every whole frame that was pushed, then ends the thread. Does nothing if it is not running."""
        self._stream.stop()

    def push_data(self, input: npt.ArrayLike, size: int | None = None) -> int:  # noqa: A002
        """Offers samples, and returns how many were accepted: as many as fit, 0 if it is not running.

        The caller may offer the rest again. With `size`, only that number of samples is offered.
        README and test scripts of 4.2.4 pass it; only in this form does an observer that was never started accept
        samples, until it is full, and counts whole frames that do not fit as dropped.
        """
        samples = input if size is None else _first(input, size, "size")
        if size is not None:
            with self._early.lock:
                if self._early.is_open:
                    return self._early.add(np.asarray(samples), self._frame_size, self._capacity)
        taken = self._stream._stream.push(samples)
        return 0 if taken is None else taken

    def pull_output(self, max_count: int) -> npt.NDArray[np.float32]:
        """Returns up to `max_count` scalings, oldest first: float32 (at most max_count). Does not wait."""
        return self._stream._stream.scalings(max_count)

    def poll_telemetry(self) -> TelemetrySnapshot:
        """Current counters and rates."""
        with self._early.lock:
            if self._early.is_open:
                return self._early.snapshot(self._frame_size, self._capacity)
        now = self._stream.telemetry()
        return TelemetrySnapshot(
            total_samples_ingested=now.pushed,
            total_samples_processed=now.processed,
            total_samples_skipped=now.skipped,
            total_frames_dropped=now.dropped,
            current_fps=now.frames_per_second,
            sparsity_pct=now.sparsity_pct,
            buffer_fill_pct=now.buffer_fill_pct,
            is_running=now.is_running,
            isolation_active=now.isolation_active,
            backpressure_active=now.backpressure_active,
            frames_queued=now.queued,
            outputs_lost=now.outputs_lost,
        )

    def reset_telemetry(self) -> None:
        """Restarts the counters at 0. Queued frames count as accepted since."""
        with self._early.lock:
            self._early.dropped = 0
        self._stream.reset_telemetry()

    def recommended_push_size(self) -> int:
        """Number of samples per push that keeps the thread busy while the next one is prepared: 64 frames."""
        return self._frame_size * 64


class _Early:
    """Samples that were pushed before the first start."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_open = True
        self.parts: list[npt.NDArray[np.float32]] = []
        self.n_samples = 0
        self.dropped = 0

    def add(self, samples: npt.NDArray[np.generic], frame_size: int, capacity: int) -> int:
        part = samples[: frame_size * capacity - self.n_samples].astype(np.float32)
        self.parts.append(part)
        self.n_samples += part.size
        # Nothing makes room before the start.
        self.dropped += (samples.size - part.size) // frame_size
        return part.size

    def end(self) -> list[npt.NDArray[np.float32]]:
        self.is_open = False
        parts, self.parts = self.parts, []
        return parts

    def snapshot(self, frame_size: int, capacity: int) -> TelemetrySnapshot:
        queued = -(-self.n_samples // frame_size)
        fill = 100.0 * self.n_samples / (frame_size * capacity)
        return TelemetrySnapshot(
            total_samples_ingested=queued + self.dropped,
            total_samples_processed=0,
            total_samples_skipped=0,
            total_frames_dropped=self.dropped,
            current_fps=0.0,
            sparsity_pct=0.0,
            buffer_fill_pct=fill,
            is_running=False,
            isolation_active=False,
            backpressure_active=fill > 90.0,
            frames_queued=queued,
        )


def _first(samples: npt.ArrayLike, size: int, name: str) -> npt.NDArray[np.generic]:
    """The first `size` samples of an array, in C order."""
    flat = np.asarray(samples).reshape(-1)
    if not 0 <= size <= flat.size:
        raise ValueError(f"{name} is {size}, expected 0 to {flat.size}, the size of the array")
    return flat[:size]
