"""Callbacks that change logits before a token is chosen, with llama-cpp-python's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint32]
Scores = NDArray[np.float32]

LogitsProcessor = Callable[[Any, Any], Any]
"""Receives the tokens so far, uint32 (n_tokens), and the logits, float32 (n_vocab); returns logits. It may modify
its argument."""

StoppingCriteria = Callable[[Any, Any], bool]
"""Receives the same arguments; true ends the text before the next token is chosen."""


class LogitsProcessorList(list[LogitsProcessor]):
    """Processors that are applied in order."""

    def __call__(self, input_ids: Tokens, scores: Scores) -> Scores:
        """The logits after all processors."""
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class StoppingCriteriaList(list[StoppingCriteria]):
    """Criteria, any of which ends the text."""

    def __call__(self, input_ids: Tokens, logits: Scores) -> bool:
        """Whether any of them is met."""
        return any(criterion(input_ids, logits) for criterion in self)


class MinTokensLogitsProcessor:
    """Prevents a text from ending before `min_tokens` tokens."""

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens = min_tokens
        self.token_eos = token_eos
        self.prompt_tokens: int | None = None

    def __call__(self, input_ids: Tokens, scores: Scores) -> Scores:
        """The logits, with the end of the text masked while it is too early."""
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores


def listed(callbacks: Callable[..., Any] | list[Any] | None) -> list[Callable[..., Any]]:
    """A callback, a list of callbacks, or None, as a list."""
    if callbacks is None:
        return []
    if isinstance(callbacks, list):
        return list(callbacks)
    return [callbacks]
