"""What was decided, frame by frame."""

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
        n_active, n_hang_over = int(self.is_active.sum()), int((self.verdict == HANG_OVER).sum())
        return (
            f"<{len(self)} decisions: {n_active} active, {n_hang_over} hang_over, "
            f"{len(self) - n_active - n_hang_over} silent>"
        )

    @property
    def is_active(self) -> npt.NDArray[np.bool_]:
        """Whether the frame itself is on the passing side: (n)."""
        return np.equal(self.verdict, ACTIVE)

    @property
    def passes(self) -> npt.NDArray[np.bool_]:
        """Whether the frame passes: it is active, or follows one closely enough: (n)."""
        return np.not_equal(self.verdict, SILENT)

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
