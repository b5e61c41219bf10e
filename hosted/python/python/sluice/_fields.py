"""The fields of requests: what a completion may be asked beside the arguments of its method."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sluice._client import Json

COMMON = frozenset(
    [
        "allowed_token_ids",
        "cache_prompt",
        "cache_salt",
        "context_shift",
        "deadline_ms",
        "dry_allowed_length",
        "dry_base",
        "dry_multiplier",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "dynatemp_exponent",
        "dynatemp_range",
        "id_slot",
        "ignore_eos",
        "include_stop_str_in_output",
        "json_schema",
        "lora",
        "max_completion_tokens",
        "min_keep",
        "min_tokens",
        "n",
        "n_keep",
        "n_predict",
        "priority",
        "repeat_last_n",
        "repetition_penalty",
        "return_progress",
        "samplers",
        "skip_special_tokens",
        "stop_token_ids",
        "stream_options",
        "t_max_predict_ms",
        "timings_per_token",
        "top_n_sigma",
        "xtc_probability",
        "xtc_threshold",
    ]
)
"""Fields of every request for text."""

COMPLETION = COMMON | {"response_format"}
CHAT = COMMON | frozenset(
    [
        "add_generation_prompt",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "enable_thinking",
        "parallel_tool_calls",
        "reasoning_budget",
        "reasoning_effort",
        "reasoning_format",
    ]
)

RANDOM = (-1, 0xFFFFFFFF)
"""Seeds that stand for a new one each time."""


def checked(more: Mapping[str, Any], known: Iterable[str], method: str) -> Json:
    """Further fields of a request.

    Raises:
        TypeError: one is not known, which would be left out in silence.
    """
    for name in more:
        if name not in known:
            raise TypeError(f"{method}() has no argument {name!r}")
    return dict(more)


def biases(given: Mapping[int, float] | Mapping[str, float]) -> Json:
    """Biases of tokens by their numbers; minus infinity is never."""
    return {str(token): False if bias == -math.inf else bias for token, bias in given.items()}


def seed_of(given: int | None) -> int | None:
    """A seed; None where a new one is to be drawn each time."""
    return None if given is None or given in RANDOM else given
