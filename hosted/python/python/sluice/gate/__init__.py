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

import threading
from typing import Unpack

import numpy as np
import numpy.typing as npt

from sluice import _native
from sluice._native import GateTelemetry as Telemetry
from sluice.gate._decisions import Columns, Decision, Decisions
from sluice.gate._policy import (
    FEATURES,
    MEASURES,
    VERDICTS,
    NoiseFloor,
    Policy,
    PolicyArguments,
    policy_of,
    settings_of,
)
from sluice.gate._stream import Measure, Stream, cache_topology, isolation_report

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


class Gate:
    """A stream's gate: each call goes on where the last one ended.

    The arguments are a policy, or its fields as keywords, which replace those of a policy. Threads may share it; a
    call waits until it is free. Raises ValueError for a value outside its range.
    """

    def __init__(self, policy: Policy | None = None, **arguments: Unpack[PolicyArguments]) -> None:
        self.policy = policy_of(policy, arguments)
        self._gate = _native.Gate(settings_of(self.policy))
        self._count = 0
        # Frames are numbered in the order in which they are decided.
        self._lock = threading.Lock()

    def decide(self, samples: npt.ArrayLike, frame_size: int | None = None) -> Decisions:
        """Decides about every whole frame of `samples`; what is left behind the last one is not looked at.

        A frame has `frame_size` samples, 1 to 2^31 - 1; without it 1024, or a row where the array has two or more
        dimensions. Other threads run meanwhile. Ctrl-C ends it, and then the gate is as it was before.

        Raises TypeError for what is no array of real numbers, ValueError for a `frame_size` out of range.
        """
        if frame_size is None:
            shape = np.shape(samples)
            frame_size = shape[-1] if len(shape) > 1 else 1024
        with self._lock:
            columns = self._gate.decide(samples, frame_size)
            return self._decisions(columns, int(frame_size), samples)

    def decide_frame(self, frame: npt.ArrayLike) -> Decision:
        """Decides about one frame, which is the whole array, of any shape and length.

        A frame without samples is silent, and changes nothing. Raises TypeError for what is no array of real
        numbers.
        """
        with self._lock:
            columns = self._gate.decide(frame)
            return self._decisions(columns, 0, None)[0]

    def reset(self) -> None:
        """Goes back to the start of a stream."""
        with self._lock:
            self._gate.reset()
            self._count = 0

    def _decisions(self, columns: Columns, frame_size: int, samples: npt.ArrayLike | None) -> Decisions:
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
