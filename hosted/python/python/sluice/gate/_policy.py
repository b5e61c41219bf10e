"""The policy of a gate: what it measures, and when a frame passes."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from sluice import _native

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
"""The measures that a policy can compare with its threshold."""

VERDICTS = ("active", "hang_over", "silent")
"""The meaning of the numbers in `Decisions.verdict`."""

ACTIVE, HANG_OVER, SILENT = range(3)


@dataclasses.dataclass(frozen=True)
class NoiseFloor:
    """Keeps the threshold above the noise: it is at least `ratio` times the floor of the measure."""

    ratio: float = 3.0
    """Minimum ratio of signal to floor; at least 1."""
    fall: float = 0.2
    """How fast the floor falls towards a lower value, as a share of the difference per frame, 0 to 1."""
    rise: float = 0.002
    """How fast the floor rises towards a higher value, as a share of the difference per frame, 0 to 1."""


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
    """Which frames pass, and what is computed for them.

    Raises ValueError for a value out of range.
    """

    measure: MeasureName = "max_abs"
    """The measure to compare with the threshold: one of `MEASURES`."""
    threshold: float = 1e-5
    """Frames at or above this value pass; at least 0."""
    at_most: bool = False
    """Frames at or below the threshold pass instead."""
    hysteresis: float = 1.0
    """An open gate closes only below this share of the threshold; above 0 and at most 1, which is off."""
    hang_over: int = 0
    """Number of frames that pass after the last active one."""
    noise_floor: NoiseFloor | float | None = None
    """Keeps the threshold above the noise; a number is the ratio."""
    wall: float = 1e-5
    """Frames whose largest magnitude is below this value are silent, whatever the measure; at least 0."""
    score: bool = True
    """Whether features and a scaling are computed for passing frames, even if the measure needs neither."""
    num_bins: int = 256
    """Bins of the entropy's histogram; at least 1, and more than 256 count as 256."""
    l1_threshold: float = 0.1
    """Mean magnitude below which a frame is sparse."""
    ema_alpha: float = 0.2
    """Weight of the newest scaling in the temporal coherence; 0 to 1."""

    def __post_init__(self) -> None:
        settings_of(self)


def settings_of(policy: Policy) -> _native.GateSettings:
    values: dict[str, Any] = {field.name: getattr(policy, field.name) for field in dataclasses.fields(policy)}
    floor = policy.noise_floor
    if floor is not None:
        floor = floor if isinstance(floor, NoiseFloor) else NoiseFloor(float(floor))
        values["noise_floor"] = dataclasses.astuple(floor)
    return _native.GateSettings(**values)


def policy_of(policy: Policy | None, arguments: PolicyArguments) -> Policy:
    if policy is None:
        return Policy(**arguments)
    return dataclasses.replace(policy, **arguments) if arguments else policy
