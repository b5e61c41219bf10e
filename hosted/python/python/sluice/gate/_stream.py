"""A gate with a thread of its own, and the isolation that the machine grants it."""

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
    """A request to the kernel, and its result."""

    name: str
    """What was requested."""
    requested: str
    """The requested value."""
    found: str
    """The value in force, as reported by the kernel."""
    why_not: str | None
    """Why the request was not granted in full; None if it was."""
    remedy: str | None
    """The command that fixes it, if there is one."""

    @property
    def is_held(self) -> bool:
        """Whether the request was granted in full."""
        return self.why_not is None

    def __str__(self) -> str:
        if self.why_not is None:
            same = self.found == self.requested
            granted = "granted" if same else f"granted ({self.found})"
            return f"{self.name}: requested {self.requested}, {granted}"
        remedy = f"; fix: {self.remedy}" if self.remedy else ""
        return f"{self.name}: requested {self.requested}, got {self.found}: {self.why_not}{remedy}"


class Stream:
    """A gate with a thread of its own, which decides the frames that are pushed.

    Use it as a context manager, or call `start` and `stop`; each start begins a new stream, with counters at 0. Frames
    begin at the first sample, whatever the sizes of the pushes. Any thread may call the methods. In a child of a
    fork every call raises RuntimeError.

    frame_size: samples per frame, 1 to 2^31 - 1.
    capacity: frames in the ring between the pushes and the thread, at least 1.
    on_full: what a push does if the ring is full. "block" waits, "return" takes what fits and returns how much,
    "drop_newest" and "drop_oldest" drop whole frames and count them.
    outputs: maximum number of decisions that wait for a pull, at least 1. Further ones are lost, and counted in
    `outputs_lost`; their frames are processed all the same.
    keep_frames: whether pulls also return the samples of passing frames.
    isolate: requests a core, real-time priority, locked and huge pages and so on for the thread; `isolation` reports
    what was granted. A refusal is not an error.

    The remaining arguments are a policy, or its fields as keywords. Raises ValueError for a value out of range.
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
        """Begins a new stream, with counters at 0. Pending decisions are kept. Does nothing if it is running.

        Raises MemoryError if the ring cannot be allocated.
        """
        self._stream.start()

    def stop(self) -> None:
        """Ends the stream once every whole frame that was pushed is decided. Does nothing if it is not running.

        Decisions and counters are kept. A push in progress ends early.
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
        """Offers samples, and returns how many were accepted: all, unless `on_full` is "return" or the stream stops.

        With "return" the caller may push the rest again. Other threads run meanwhile, and Ctrl-C ends the wait.
        Raises RuntimeError if the stream is not running, TypeError if `samples` is not an array of real numbers.
        """
        taken = self._stream.push(samples)
        if taken is None:
            raise RuntimeError("the stream is not running: call start(), or use a with statement")
        return taken

    def pull(self, max_frames: int | None = None, *, timeout: float | None = 0.0) -> Decisions:
        """Returns up to `max_frames` decisions, oldest first; by default all.

        If there are none, it waits for the first one, at most `timeout` seconds (None: no limit), but no longer than
        the stream runs. Raises ValueError for a negative number.
        """
        index, columns, passed = self._stream.pull(_MOST if max_frames is None else max_frames, timeout)
        return Decisions(index, *columns, int(self.frame_size), self.policy.measure, passed=passed)

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until every whole frame that was pushed is decided.

        Returns whether that took at most `timeout` seconds; None waits without a limit.
        """
        return self._stream.flush(timeout)

    def telemetry(self) -> Telemetry:
        """Current counters and rates. `pushed == processed + queued + dropped` always holds, in frames."""
        return self._stream.telemetry()

    def reset_telemetry(self) -> None:
        """Restarts the counters at 0. Queued frames count as pushed since."""
        self._stream.reset_telemetry()

    def isolation(self) -> list[Measure]:
        """What the thread requested from the kernel at the last start, and the results; empty without `isolate`."""
        return [Measure(*row) for row in self._stream.isolation()]

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return self.telemetry().is_running

    @property
    def recommended_push_size(self) -> int:
        """Number of samples per push that keeps the thread busy while the next push is prepared."""
        return self.frame_size * 64


def isolation_report(ring_bytes: int = 1 << 22) -> list[Measure]:
    """The isolation that the thread of `Stream(isolate=True)` would get for a ring of `ring_bytes` on this machine.

    A separate thread requests it, reads back the result, and undoes it.
    """
    return [Measure(*row) for row in _native.isolation_report(ring_bytes)]


def cache_topology() -> dict[str, int]:
    """Caches of the first CPU, and counts.

    Keys: `l1d_size`, `l2_size`, `l3_size` and `cache_line_size` in bytes, `l1d_associativity`,
    `num_physical_cores`, `l1d_lines`. A size that the kernel does not report is the level's below.
    """
    return _native.cache_topology()


_MOST = (1 << 63) - 1
