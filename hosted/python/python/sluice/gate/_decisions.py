"""Decisions, frame by frame."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from sluice import _native
from sluice.gate._policy import (
    ACTIVE,
    F32,
    FEATURES,
    HANG_OVER,
    SILENT,
    VERDICTS,
)

Columns: TypeAlias = tuple[npt.NDArray[np.uint8], F32, F32, F32, F32, F32]


@dataclasses.dataclass(frozen=True)
class Decision:
    """The decision about one frame."""

    verdict: str
    """One of `VERDICTS`."""
    max_abs: float
    """The largest magnitude; NaN if there is a NaN."""
    value: float | None
    """The policy's measure; None below the wall."""
    level: float
    """The threshold in force."""
    scaling: float
    """The scaling, 0 to 10; if this frame was not evaluated, that of the last evaluated frame."""
    features: dict[str, float] | None
    """The features by name (`FEATURES`); None if the frame was not evaluated."""

    @property
    def passes(self) -> bool:
        """Whether the frame passes."""
        return self.verdict != "silent"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Decisions:
    """The decisions about `n` frames, by column. `len()` is n; an index gives one `Decision`, a slice `Decisions`."""

    index: npt.NDArray[np.uint64]
    """The frames' numbers in the stream, counted from 0: (n)."""
    verdict: npt.NDArray[np.uint8]
    """Index into `VERDICTS`: (n)."""
    max_abs: F32
    """The largest magnitudes; NaN if there is a NaN: (n)."""
    value: F32
    """The policy's measure; NaN below the wall, where it is not computed: (n)."""
    level: F32
    """The threshold in force: (n)."""
    scaling: F32
    """The scaling, 0 to 10; if a frame was not evaluated, that of the last evaluated frame: (n)."""
    features: F32
    """Columns are `FEATURES`; NaN if the frame was not evaluated: (n, 7)."""
    frame_size: int
    """Samples per frame."""
    measure: str
    """The measure in `value`: one of `MEASURES`."""
    passed: F32 | None = None
    """The samples of passing frames, if a stream keeps them: (number of passing frames, frame_size)."""
    samples: npt.ArrayLike | None = None
    """The samples as passed to `decide`; None for decisions of a stream."""

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
        n_active, n_hang_over = int(self.is_active.sum()), int((self.verdict == HANG_OVER).sum())
        return (
            f"<{len(self)} decisions: {n_active} active, {n_hang_over} hang_over, "
            f"{len(self) - n_active - n_hang_over} silent>"
        )

    @property
    def is_active(self) -> npt.NDArray[np.bool_]:
        """Whether the frame itself meets the threshold: (n)."""
        return np.equal(self.verdict, ACTIVE)

    @property
    def passes(self) -> npt.NDArray[np.bool_]:
        """Whether the frame passes: it is active, or closely follows an active one: (n)."""
        return np.not_equal(self.verdict, SILENT)

    @property
    def entropy(self) -> F32:
        """Entropy of the histogram in bits, 0 to 8; NaN if the frame was not evaluated: (n)."""
        return self.feature("entropy")

    def feature(self, name: str) -> F32:
        """The column of a feature, one of `FEATURES`; NaN if the frame was not evaluated: (n).

        Raises ValueError for an unknown name.
        """
        if name not in FEATURES:
            raise ValueError(f"name is {name!r}, expected one of {', '.join(FEATURES)}")
        return self.features[:, FEATURES.index(name)]

    def frames(self, samples: npt.ArrayLike | None = None) -> npt.NDArray[Any]:
        """The frames of the decisions, from `samples` or from the argument of `decide`: (n, frame_size).

        A view if the samples are contiguous. Raises ValueError if there are no samples, or too few.
        """
        given = self.samples if samples is None else samples
        if given is None:
            raise ValueError("samples is None: decisions of a stream do not keep samples")
        flat = np.asarray(given).reshape(-1)
        n_samples = len(self) * self.frame_size
        if flat.size < n_samples:
            raise ValueError(f"samples has {flat.size} values, expected at least {n_samples}")
        return flat[:n_samples].reshape(len(self), self.frame_size)

    def plot(
        self,
        path: str | os.PathLike[str],
        *,
        samples: npt.ArrayLike | None = None,
        overwrite: bool = False,
    ) -> None:
        """Plots the decisions as an SVG: signal, measure, threshold, and which frames passed.

        `samples` provides the samples of a stream, whose decisions do not keep them. Raises FileExistsError unless
        `overwrite`, OSError if the file cannot be written, and ValueError if there are fewer samples than the frames
        need.
        """
        given = self.samples if samples is None else samples
        verdict, value = np.ascontiguousarray(self.verdict), np.ascontiguousarray(self.value)
        level = np.ascontiguousarray(self.level)
        _native.plot(path, self.frame_size, given, verdict, value, level, self.measure, overwrite)

    def text(self, width: int = 80) -> str:
        """Plots the decisions in two lines of at most `width` characters.

        The first line shows the measure: a bar per stretch of frames, followed by the largest value. The second has
        `#` for active frames, `-` for frames that pass after active ones, and `.` for silent frames.
        Raises ValueError for a width below 1.
        """
        if width < 1:
            raise ValueError(f"width is {width}, expected at least 1")
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
            raise ValueError(f"the slice's step is {at.step}, expected 1")
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
