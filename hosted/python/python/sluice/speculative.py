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
        if not 1 <= self.num_pred_tokens <= 16:
            raise ValueError(f"num_pred_tokens is {self.num_pred_tokens}, expected 1 to 16")
        return ["--spec-type", "ngram", "--spec-draft-n-max", str(self.num_pred_tokens)]
