"""The metrics of a batch. All times are in seconds and measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict

BASE = "<base>"
"""The name of the base model in profiles; adapters cannot use it."""


class Profile(TypedDict):
    """The requests of a batch that have the same adapter.

    `tokenize_s`: tokenization of their prompts. `generate_s`: from submission to the end of the last one.
    `ttft_s`: mean time from submission to the first sampled token.
    """

    adapter: str
    tokenize_s: float
    generate_s: float
    num_requests: int
    ttft_s: float


class Iteration(TypedDict):
    """A batch. `latency_s` is its total time, including tokenization; rates are relative to it."""

    latency_s: float
    sequences: int
    new_tokens: int
    tokens_per_second: float
    seq_per_second: float
    profiling: list[Profile]
    ttft_s: float


class Benchmark(TypedDict):
    """Several runs of a batch."""

    avg_latency_s: float
    seq_per_second: float
    tokens_per_second: float
    total_new_tokens: int
    avg_ttft_s: float
    iterations: list[Iteration]


def iteration(
    latency_s: float, new_tokens: int, profiling: list[Profile], ttfts_s: Sequence[float]
) -> Iteration:
    """The metrics of a batch of `len(ttfts_s)` requests."""
    sequences = len(ttfts_s)
    return {
        "latency_s": latency_s,
        "sequences": sequences,
        "new_tokens": new_tokens,
        "tokens_per_second": _rate(new_tokens, latency_s),
        "seq_per_second": _rate(sequences, latency_s),
        "profiling": profiling,
        "ttft_s": mean(ttfts_s),
    }


def benchmark(iterations: list[Iteration]) -> Benchmark:
    """The metrics of several batches: rates over their total time."""
    latency_s = sum(each["latency_s"] for each in iterations)
    new_tokens = sum(each["new_tokens"] for each in iterations)
    return {
        "avg_latency_s": mean([each["latency_s"] for each in iterations]),
        "seq_per_second": _rate(sum(each["sequences"] for each in iterations), latency_s),
        "tokens_per_second": _rate(new_tokens, latency_s),
        "total_new_tokens": new_tokens,
        "avg_ttft_s": mean([each["ttft_s"] for each in iterations]),
        "iterations": iterations,
    }


def mean(values: Sequence[float]) -> float:
    """The mean; 0 if there are no values."""
    return sum(values) / len(values) if values else 0.0


def append_stages(path: Path, stages: Iterable[tuple[str, float]]) -> None:
    """Appends lines `stage,elapsed_us` to a telemetry file, one per stage; times are given in seconds."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{stage},{seconds * 1e6:.3f}\n" for stage, seconds in stages)


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
