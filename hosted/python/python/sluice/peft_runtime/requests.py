"""Requests: prompts, their adapters, and how tokens are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class InferenceRequest:
    """A prompt. `adapter_name` is an adapter of the engine, or None for the base model; `max_new_tokens` is the maximum
    number of generated tokens, or None for the batch's.
    """

    prompt: str
    adapter_name: str | None = None
    max_new_tokens: int | None = None


@dataclass(frozen=True)
class InferenceTraceConfig:
    """How tokens are chosen for all requests of a batch.

    `max_new_tokens`: maximum number of tokens per output, at least 1. `temperature` (from 0) and `top_p` (above 0,
    up to 1) apply only with `do_sample`; without it, or at temperature 0, the most likely token is taken.
    `stop_sequences`: texts that end an output and are not part of it. `seed` makes sampling reproducible: request i uses
    seed + i.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 0.95
    do_sample: bool = False
    stop_sequences: Sequence[str] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            ValueError: A value is out of range.
        """
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}, expected 1 or more")
        if not self.temperature >= 0:
            raise ValueError(f"temperature is {self.temperature}, expected 0 or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, expected more than 0, and 1 at most")
        if isinstance(self.stop_sequences, str):
            raise ValueError("stop_sequences is a string, expected a list of strings")


@dataclass(frozen=True)
class RequestBatch:
    """Requests that are computed together."""

    requests: Sequence[InferenceRequest]
    trace_config: InferenceTraceConfig = field(default_factory=InferenceTraceConfig)
