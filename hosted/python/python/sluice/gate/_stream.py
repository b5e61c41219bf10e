"""A gate with a thread of its own, and what the machine gives it."""

from __future__ import annotations

import dataclasses
from types import TracebackType
from typing import Unpack

import numpy.typing as npt

from sluice import _native
from sluice._native import GateTelemetry as Telemetry
from sluice.gate._decisions import Decisions
from sluice.gate._policy import (
    OnFull,
    Policy,
    PolicyArguments,
    policy_of,
    settings_of,
)


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
        remedy = f"; fix: {self.remedy}" if self.remedy else ""
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
        self.policy = policy_of(policy, arguments)
        self.frame_size = frame_size
        self._stream = _native.GateStream(
            settings_of(self.policy),
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
