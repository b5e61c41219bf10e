"""Sources of draft tokens, with llama-cpp-python's name. Drafts change the speed of a text but not its tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LlamaPromptLookupDecoding:
    """Drafts from repetitions in the text itself.

    `num_pred_tokens` (1 to 16) is the maximum number of draft tokens. `max_ngram_size` is accepted without effect: the
    length of matches adapts to what was accepted.
    """

    max_ngram_size: int = 2
    num_pred_tokens: int = 10
