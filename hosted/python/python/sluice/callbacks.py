"""What may be done to logits before a token is chosen: llama-cpp-python's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint32]
Scores = NDArray[np.float32]

LogitsProcessor = Callable[[Any, Any], Any]
"""Is given the tokens so far, uint32 (n_tokens), and the logits, float32 (n_vocab); returns logits. It may change
those that it was given."""

StoppingCriteria = Callable[[Any, Any], bool]
"""Is given the same; true ends the text before the token that would be chosen."""


class LogitsProcessorList(list[LogitsProcessor]):
    """Processors that are applied one after the other."""

    def __call__(self, input_ids: Tokens, scores: Scores) -> Scores:
        """The logits that all of them make."""
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class StoppingCriteriaList(list[StoppingCriteria]):
    """Criteria of which one is enough."""

    def __call__(self, input_ids: Tokens, logits: Scores) -> bool:
        """Whether one of them is met."""
        return any(criterion(input_ids, logits) for criterion in self)


class MinTokensLogitsProcessor:
    """Keeps a text from ending before `min_tokens` tokens."""

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens = min_tokens
        self.token_eos = token_eos
        self.prompt_tokens: int | None = None

    def __call__(self, input_ids: Tokens, scores: Scores) -> Scores:
        """The logits, without the end where it is too early."""
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores


def listed(callbacks: Callable[..., Any] | list[Any] | None) -> list[Callable[..., Any]]:
    """One callback, a list of them, or none, as a list."""
    if callbacks is None:
        return []
    if isinstance(callbacks, list):
        return list(callbacks)
    return [callbacks]
