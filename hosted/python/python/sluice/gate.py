"""The gate: which frames of a stream are worth waking a model for.

    from sluice import gate

    decisions = gate.decide(samples, frame_size=320, measure="std", threshold=0.02, hang_over=8)
    spoken = decisions.frames(samples)[decisions.passes]

    with gate.Stream(frame_size=320, measure="std", threshold=0.02) as stream:
        stream.push(samples)
        stream.flush()
        decisions = stream.pull()

Samples are arrays of any shape, read in C order. A C-contiguous float32 array is read where it lies; other real
numbers are converted to float32, whole numbers by their value (divide int16 by 32768 first). NaN and infinity are
signal: their frames always pass.

Results are the same bits as those of `sluice gate`, on every machine. How to find a policy: docs/gate.md.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload

import numpy as np
import numpy.typing as npt

from sluice import _native
from sluice._native import GateTelemetry as Telemetry

__all__ = [
    "FEATURES",
    "MEASURES",
    "VERDICTS",
    "Decision",
    "Decisions",
    "Gate",
    "Measure",
    "NoiseFloor",
    "Policy",
    "PolicyArguments",
    "Stream",
    "Telemetry",
    "cache_topology",
    "decide",
    "isolation_report",
]

MeasureName: TypeAlias = Literal[
    "max_abs",
    "peak_to_peak",
    "std",
    "scaling",
    "zero_crossing_rate",
    "density_complement",
    "temporal_coherence",
    "entropy",
    "complexity",
    "structure",
    "sparsity",
]
OnFull: TypeAlias = Literal["block", "return", "drop_newest", "drop_oldest"]
F32: TypeAlias = npt.NDArray[np.float32]

FEATURES = (
    "zero_crossing_rate",
    "density_complement",
    "temporal_coherence",
    "entropy",
    "complexity",
    "structure",
    "sparsity",
)
"""The columns of `Decisions.features`."""

MEASURES = ("max_abs", "peak_to_peak", "std", "scaling", *FEATURES)
"""What a policy may compare with its threshold."""

VERDICTS = ("active", "hang_over", "silent")
"""What the numbers of `Decisions.verdict` mean."""

_ACTIVE, _HANG_OVER, _SILENT = range(3)


@dataclasses.dataclass(frozen=True)
class NoiseFloor:
    """Keeps the threshold above the noise: it is at least `ratio` times the floor of the measure."""

    ratio: float = 3.0
    """Signal is this many times the floor; at least 1."""
    fall: float = 0.2
    """Share of the way that the floor goes towards a lower value per frame, 0 to 1."""
    rise: float = 0.002
    """Share of the way towards a higher value per frame, 0 to 1."""


class PolicyArguments(TypedDict, total=False):
    """The fields of `Policy` as keywords."""

    measure: MeasureName
    threshold: float
    at_most: bool
    hysteresis: float
    hang_over: int
    noise_floor: NoiseFloor | float | None
    wall: float
    score: bool
    num_bins: int
    l1_threshold: float
    ema_alpha: float


@dataclasses.dataclass(frozen=True)
class Policy:
    """Which frames pass, and what is computed of them.

    Raises ValueError for a value outside its range.
    """

    measure: MeasureName = "max_abs"
    """What is compared with the threshold: one of `MEASURES`."""
    threshold: float = 1e-5
    """Frames at this value or above pass; at least 0."""
    at_most: bool = False
    """Frames at the threshold or below pass instead."""
    hysteresis: float = 1.0
    """Share of the threshold down to which an open gate stays open; above 0, at most 1, which is off."""
    hang_over: int = 0
    """Frames that pass after the last active one."""
    noise_floor: NoiseFloor | float | None = None
    """Keeps the threshold above the noise; a number is the ratio."""
    wall: float = 1e-5
    """Frames whose largest magnitude is below are silent whatever is measured; at least 0."""
    score: bool = True
    """Whether frames that pass get features and a scaling, also where the measure needs neither."""
    num_bins: int = 256
    """Bins of the entropy's histogram; at least 1, more than 256 count as 256."""
    l1_threshold: float = 0.1
    """Mean magnitude below which a frame is sparse."""
    ema_alpha: float = 0.2
    """Weight of the newest scaling in the temporal coherence; 0 to 1."""

    def __post_init__(self) -> None:
        _settings(self)


def _settings(policy: Policy) -> _native.GateSettings:
    values: dict[str, Any] = {field.name: getattr(policy, field.name) for field in dataclasses.fields(policy)}
    floor = policy.noise_floor
    if floor is not None:
        floor = floor if isinstance(floor, NoiseFloor) else NoiseFloor(float(floor))
        values["noise_floor"] = dataclasses.astuple(floor)
    return _native.GateSettings(**values)


def _policy(policy: Policy | None, arguments: PolicyArguments) -> Policy:
    if policy is None:
        return Policy(**arguments)
    return dataclasses.replace(policy, **arguments) if arguments else policy


@dataclasses.dataclass(frozen=True)
class Decision:
    """What was decided of one frame."""

    verdict: str
    """One of `VERDICTS`."""
    max_abs: float
    """The largest magnitude; NaN if there is a NaN."""
    value: float | None
    """The policy's measure; None below the wall."""
    level: float
    """The threshold that was in force."""
    scaling: float
    """0 to 10; that of the last evaluated frame where this one was not evaluated."""
    features: dict[str, float] | None
    """By the names of `FEATURES`; None where the frame was not evaluated."""

    @property
    def passes(self) -> bool:
        """Whether the frame passes."""
        return self.verdict != "silent"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Decisions:
    """What was decided of `n` frames, by column. `len()` is n; an index gives one `Decision`, a slice `Decisions`."""

    index: npt.NDArray[np.uint64]
    """The frames' numbers in the stream, from 0: (n)."""
    verdict: npt.NDArray[np.uint8]
    """Index into `VERDICTS`: (n)."""
    max_abs: F32
    """The largest magnitudes; NaN if there is a NaN: (n)."""
    value: F32
    """The policy's measure; NaN below the wall, where it is not known: (n)."""
    level: F32
    """The threshold that was in force: (n)."""
    scaling: F32
    """0 to 10; that of the last evaluated frame where this one was not evaluated: (n)."""
    features: F32
    """Columns are `FEATURES`; NaN where the frame was not evaluated: (n, 7)."""
    frame_size: int
    """Samples in a frame."""
    measure: str
    """What `value` is: one of `MEASURES`."""
    passed: F32 | None = None
    """The samples of the frames that pass, where a stream keeps them: (number of them, frame_size)."""
    samples: npt.ArrayLike | None = None
    """What was decided about, as it was given; None for those of a stream."""

    def __len__(self) -> int:
        return len(self.verdict)

    @overload
    def __getitem__(self, at: int) -> Decision: ...

    @overload
    def __getitem__(self, at: slice) -> Decisions: ...

    def __getitem__(self, at: int | slice) -> Decision | Decisions:
        if isinstance(at, slice):
            return self._part(at)
        number = range(len(self))[at]
        max_abs, value = self.max_abs[number].item(), self.value[number].item()
        features = self.features[number].tolist()
        return Decision(
            verdict=VERDICTS[self.verdict[number]],
            max_abs=max_abs,
            value=None if math.isnan(value) and not math.isnan(max_abs) else value,
            level=self.level[number].item(),
            scaling=self.scaling[number].item(),
            features=None if math.isnan(features[0]) else dict(zip(FEATURES, features, strict=True)),
        )

    def __iter__(self) -> Iterator[Decision]:
        for number in range(len(self)):
            yield self[number]

    def __repr__(self) -> str:
        n_active, n_hang_over = int(self.is_active.sum()), int((self.verdict == _HANG_OVER).sum())
        return (
            f"<{len(self)} decisions: {n_active} active, {n_hang_over} hang_over, "
            f"{len(self) - n_active - n_hang_over} silent>"
        )

    @property
    def is_active(self) -> npt.NDArray[np.bool_]:
        """Whether the frame itself is on the passing side: (n)."""
        return np.equal(self.verdict, _ACTIVE)

    @property
    def passes(self) -> npt.NDArray[np.bool_]:
        """Whether the frame passes: it is active, or follows one closely enough: (n)."""
        return np.not_equal(self.verdict, _SILENT)

    @property
    def entropy(self) -> F32:
        """Entropy of the histogram in bits, 0 to 8; NaN where the frame was not evaluated: (n)."""
        return self.feature("entropy")

    def feature(self, name: str) -> F32:
        """The column of a feature, one of `FEATURES`; NaN where the frame was not evaluated: (n).

        Raises ValueError for another name.
        """
        if name not in FEATURES:
            raise ValueError(f"name is {name!r}: it is one of {', '.join(FEATURES)}")
        return self.features[:, FEATURES.index(name)]

    def frames(self, samples: npt.ArrayLike | None = None) -> npt.NDArray[Any]:
        """The frames that were decided about, of `samples` or of what `decide` was given: (n, frame_size).

        A view where the samples are contiguous. Raises ValueError where there are none, or too few.
        """
        given = self.samples if samples is None else samples
        if given is None:
            raise ValueError("samples is None: decisions of a stream have none of their own")
        flat = np.asarray(given).reshape(-1)
        n_samples = len(self) * self.frame_size
        if flat.size < n_samples:
            raise ValueError(f"samples has {flat.size} of them: it is at least {n_samples}")
        return flat[:n_samples].reshape(len(self), self.frame_size)

    def plot(
        self,
        path: str | os.PathLike[str],
        *,
        samples: npt.ArrayLike | None = None,
        overwrite: bool = False,
    ) -> None:
        """Writes a picture, an SVG: the signal above, the measure and the threshold below, and what passed.

        `samples` stands in for those of a stream, which has none of its own. Raises FileExistsError unless
        `overwrite`, OSError where the file cannot be written, and ValueError where there are fewer samples than
        frames.
        """
        given = self.samples if samples is None else samples
        verdict, value = np.ascontiguousarray(self.verdict), np.ascontiguousarray(self.value)
        level = np.ascontiguousarray(self.level)
        _native.plot(path, self.frame_size, given, verdict, value, level, self.measure, overwrite)

    def text(self, width: int = 80) -> str:
        """A picture in two lines of at most `width` characters.

        The first line is the measure: a bar per stretch of frames, with the largest value, which the line ends
        with. The second has `#` where frames are active, `-` where they pass behind such, `.` where they do not.
        Raises ValueError for a width below 1.
        """
        if width < 1:
            raise ValueError(f"width is {width}: it is at least 1")
        if not len(self):
            return "no frames"
        edges = np.linspace(0, len(self), min(width, len(self)) + 1).astype(int)[:-1]
        value = np.where(np.isfinite(self.value), self.value, 0)
        highest = np.maximum.reduceat(value, edges)
        most = float(highest.max())
        heights = np.ceil(highest / most * 8).astype(int) if most > 0 else np.zeros(len(edges), int)
        first = np.minimum.reduceat(self.verdict, edges)
        bars = "".join(" ▁▂▃▄▅▆▇█"[height] for height in heights)
        return f"{bars} {self.measure}, up to {most:.6g}\n{''.join('#-.'[verdict] for verdict in first)}"

    def _part(self, at: slice) -> Decisions:
        if at.step not in (None, 1):
            raise ValueError(f"the slice's step is {at.step}: it is 1")
        numbers = range(len(self))[at]
        columns = {
            name: getattr(self, name)[at]
            for name in ("index", "verdict", "max_abs", "value", "level", "scaling", "features")
        }
        samples = self.samples
        if samples is not None:
            samples = self.frames()[at].reshape(-1)
        passed = self.passed
        if passed is not None:
            before = int(self.passes[: numbers.start].sum())
            passed = passed[before : before + int(self.passes[at].sum())]
        return dataclasses.replace(self, **columns, samples=samples, passed=passed)


_Columns: TypeAlias = tuple[npt.NDArray[np.uint8], F32, F32, F32, F32, F32]


class Gate:
    """A stream's gate: each call goes on where the last one ended.

    The arguments are a policy, or its fields as keywords, which replace those of a policy. Threads may share it; a
    call waits until it is free. Raises ValueError for a value outside its range.
    """

    def __init__(self, policy: Policy | None = None, **arguments: Unpack[PolicyArguments]) -> None:
        self.policy = _policy(policy, arguments)
        self._gate = _native.Gate(_settings(self.policy))
        self._count = 0

    def decide(self, samples: npt.ArrayLike, frame_size: int | None = None) -> Decisions:
        """Decides about every whole frame of `samples`; what is left behind the last one is not looked at.

        A frame has `frame_size` samples, 1 to 2^31 - 1; without it 1024, or a row where the array has two or more
        dimensions. Other threads run meanwhile. Ctrl-C ends it, and then the gate is as it was before.

        Raises TypeError for what is no array of real numbers, ValueError for a `frame_size` out of range.
        """
        if frame_size is None:
            shape = np.shape(samples)
            frame_size = shape[-1] if len(shape) > 1 else 1024
        columns = self._gate.decide(samples, frame_size)
        return self._decisions(columns, int(frame_size), samples)

    def decide_frame(self, frame: npt.ArrayLike) -> Decision:
        """Decides about one frame, which is the whole array, of any shape and length.

        A frame without samples is silent, and changes nothing. Raises TypeError for what is no array of real
        numbers.
        """
        columns = self._gate.decide(frame)
        return self._decisions(columns, 0, None)[0]

    def reset(self) -> None:
        """Goes back to the start of a stream."""
        self._gate.reset()
        self._count = 0

    def _decisions(self, columns: _Columns, frame_size: int, samples: npt.ArrayLike | None) -> Decisions:
        first = self._count
        self._count += len(columns[0])
        index = np.arange(first, self._count, dtype=np.uint64)
        return Decisions(index, *columns, frame_size, self.policy.measure, samples=samples)


def decide(
    samples: npt.ArrayLike,
    frame_size: int | None = None,
    policy: Policy | None = None,
    **arguments: Unpack[PolicyArguments],
) -> Decisions:
    """Decides about every whole frame of a stream that `samples` is all of.

    As `Gate(policy, **arguments).decide(samples, frame_size)`.
    """
    return Gate(policy, **arguments).decide(samples, frame_size)


@dataclasses.dataclass(frozen=True)
class Measure:
    """What was asked of the kernel, and what it gave."""

    name: str
    """What it is."""
    requested: str
    """What was asked for."""
    found: str
    """What the kernel says is in force."""
    why_not: str | None
    """Why less is in force than was asked for; None if all of it is."""
    remedy: str | None
    """What to type to get it, where something can be typed."""

    @property
    def is_held(self) -> bool:
        """Whether all that was asked for is in force."""
        return self.why_not is None

    def __str__(self) -> str:
        if self.why_not is None:
            same = self.found == self.requested
            granted = "granted" if same else f"granted ({self.found})"
            return f"{self.name}: requested {self.requested}, {granted}"
        remedy = f"; to get it: {self.remedy}" if self.remedy else ""
        return f"{self.name}: requested {self.requested}, got {self.found}: {self.why_not}{remedy}"


class Stream:
    """A gate with a thread of its own, which decides about what is pushed.

    It starts and stops as a context manager, or with `start` and `stop`; each start begins a new stream, with
    counters at 0. Frames are cut from the first sample on, whatever the sizes of the pushes. Any thread may call
    it. In a child of a fork every call raises RuntimeError.

    frame_size: samples in a frame, 1 to 2^31 - 1.
    capacity: frames in the ring between the pushes and the thread, at least 1.
    on_full: what a push does when the ring is full. "block" waits, "return" takes what fits and says how much,
        "drop_newest" and "drop_oldest" drop whole frames and count them.
    outputs: decisions that wait for a pull, at least 1. Further ones are lost, and counted in `outputs_lost`; their
        frames are processed all the same.
    keep_frames: whether pulls also give the samples of frames that pass.
    isolate: asks the kernel for a core, real-time priority, locked and huge pages and so on for the thread; what
        it gave is in `isolation`. A refusal is no error.

    The rest is a policy, or its fields as keywords. Raises ValueError for a value outside its range.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        frame_size: int = 1024,
        capacity: int = 1024,
        on_full: OnFull = "block",
        outputs: int = 1 << 20,
        keep_frames: bool = False,
        isolate: bool = False,
        **arguments: Unpack[PolicyArguments],
    ) -> None:
        self.policy = _policy(policy, arguments)
        self.frame_size = frame_size
        self._stream = _native.GateStream(
            _settings(self.policy),
            frame_size=frame_size,
            capacity=capacity,
            on_full=on_full,
            outputs=outputs,
            keep_frames=keep_frames,
            isolate=isolate,
        )

    def start(self) -> None:
        """Begins a new stream, with counters at 0. Decisions that were not pulled stay. Nothing if it runs.

        Raises MemoryError without memory for the ring.
        """
        self._stream.start()

    def stop(self) -> None:
        """Ends the stream when every whole frame that was pushed is decided about. Nothing if it does not run.

        Decisions and counters stay. A push in progress ends early.
        """
        self._stream.stop()

    def __enter__(self) -> Stream:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def push(self, samples: npt.ArrayLike) -> int:
        """Offers samples, and returns how many were taken: all of them, unless `on_full` is "return" or it stops.

        With "return" the rest is the caller's to push again. Other threads run meanwhile, and Ctrl-C ends the wait.
        Raises RuntimeError if it does not run, TypeError for what is no array of real numbers.
        """
        taken = self._stream.push(samples)
        if taken is None:
            raise RuntimeError("the stream does not run: start() begins one, and so does a with statement")
        return taken

    def pull(self, max_frames: int | None = None, *, timeout: float | None = 0.0) -> Decisions:
        """Up to `max_frames` decisions, oldest first; all there are without it.

        Without any it waits up to `timeout` seconds for the first, for ever with None, but never longer than the
        stream runs. Raises ValueError for a number below 0.
        """
        index, columns, passed = self._stream.pull(_MOST if max_frames is None else max_frames, timeout)
        return Decisions(index, *columns, int(self.frame_size), self.policy.measure, passed=passed)

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until every whole frame that was pushed is decided about.

        Returns whether it was within `timeout` seconds; None waits for ever.
        """
        return self._stream.flush(timeout)

    def telemetry(self) -> Telemetry:
        """Counters and rates of this moment. `pushed == processed + queued + dropped` at every look, in frames."""
        return self._stream.telemetry()

    def reset_telemetry(self) -> None:
        """Counts from 0 again. What is queued counts as pushed since."""
        self._stream.reset_telemetry()

    def isolation(self) -> list[Measure]:
        """What the thread asked of the kernel at the last start, and what it got; none without `isolate`."""
        return [Measure(*row) for row in self._stream.isolation()]

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return self.telemetry().is_running

    @property
    def recommended_push_size(self) -> int:
        """Samples of a push that keeps the thread busy while the next one is prepared."""
        return self.frame_size * 64


def isolation_report(ring_bytes: int = 1 << 22) -> list[Measure]:
    """What the thread of `Stream(isolate=True)` would get for a ring of `ring_bytes` here.

    A thread of its own asks for it, reads back what it got, and undoes it.
    """
    return [Measure(*row) for row in _native.isolation_report(ring_bytes)]


def cache_topology() -> dict[str, int]:
    """Caches of the first CPU, and counts.

    Keys: `l1d_size`, `l2_size`, `l3_size` and `cache_line_size` in bytes, `l1d_associativity`,
    `num_physical_cores`, `l1d_lines`. A size that the kernel does not tell is that of the level below.
    """
    return _native.cache_topology()


_MOST = (1 << 63) - 1
