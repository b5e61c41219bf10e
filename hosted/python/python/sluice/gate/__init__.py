"""The gate: decides which frames of a stream should wake a model.

    from sluice import gate

    decisions = gate.decide(samples, frame_size=320, measure="std", threshold=0.02, hang_over=8)
    spoken = decisions.frames(samples)[decisions.passes]

    with gate.Stream(frame_size=320, measure="std", threshold=0.02) as stream:
        stream.push(samples)
        stream.flush()
        decisions = stream.pull()

Samples are arrays of any shape, read in C order. A C-contiguous float32 array is read in place; other real numbers
are converted to float32, integers by value (divide int16 by 32768 first). NaN and infinity are signal: their frames
always pass.

Results are bit-identical to those of `sluice gate`, on every machine. docs/gate.md explains how to choose a policy.
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
    """A gate for one stream: each call continues where the last one ended.

    The arguments are a policy, or its fields as keywords, which override those of the policy. Threads may share a gate;
    a call waits until it is free. Raises ValueError for a value out of range.
    """

    def __init__(self, policy: Policy | None = None, **arguments: Unpack[PolicyArguments]) -> None:
        self.policy = policy_of(policy, arguments)
        self._gate = _native.Gate(settings_of(self.policy))
        self._count = 0
        # Frames are numbered in the order of their decisions.
        self._lock = threading.Lock()

    def decide(self, samples: npt.ArrayLike, frame_size: int | None = None) -> Decisions:
        """Decides every whole frame of `samples`; samples left over at the end are ignored.

        A frame has `frame_size` samples, 1 to 2^31 - 1; by default 1024, or a row if the array has two or more
        dimensions. Other threads run meanwhile. Ctrl-C ends the call and leaves the gate unchanged.

        Raises TypeError if `samples` is not an array of real numbers, ValueError if `frame_size` is out of range.
        """
        if frame_size is None:
            shape = np.shape(samples)
            frame_size = shape[-1] if len(shape) > 1 else 1024
        with self._lock:
            columns = self._gate.decide(samples, frame_size)
            return self._decisions(columns, int(frame_size), samples)

    def decide_frame(self, frame: npt.ArrayLike) -> Decision:
        """Decides one frame, which is the whole array, of any shape and length.

        A frame without samples is silent and changes nothing. Raises TypeError if `frame` is not an array of real
        numbers.
        """
        with self._lock:
            columns = self._gate.decide(frame)
            return self._decisions(columns, 0, None)[0]

    def reset(self) -> None:
        """Returns to the start of a stream."""
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
    """Decides every whole frame of a stream that consists of `samples`.

    Equals `Gate(policy, **arguments).decide(samples, frame_size)`.
    """
    return Gate(policy, **arguments).decide(samples, frame_size)
