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

    def flags(self) -> list[str]:
        """The flags of `sluice serve` that ask for it."""
        if not 1 <= self.num_pred_tokens <= 16:
            raise ValueError(f"num_pred_tokens is {self.num_pred_tokens}, expected 1 to 16")
        return ["--spec-type", "ngram", "--spec-draft-n-max", str(self.num_pred_tokens)]
