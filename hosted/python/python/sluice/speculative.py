"""What drafts tokens: llama-cpp-python's name. Drafts change the speed of a text and none of its tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LlamaPromptLookupDecoding:
    """Drafts from the text itself: what followed the last tokens where they stood before.

    `num_pred_tokens` (1 to 16) is the most tokens of a draft. `max_ngram_size` is accepted: how many tokens have to
    be the same is learnt from what was accepted.
    """

    max_ngram_size: int = 2
    num_pred_tokens: int = 10

    def flags(self) -> list[str]:
        """The flags of `sluice serve` that ask for it."""
        return ["--spec-type", "ngram", "--spec-draft-n-max", str(min(self.num_pred_tokens, 16))]
