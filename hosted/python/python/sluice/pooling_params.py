"""How embeddings are made: vLLM's `PoolingParams`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PoolingParams:
    """Options of `LLM.embed`.

    Attributes:
        truncate_prompt_tokens: Number of tokens to keep from each text's beginning; -1 keeps as many as fit.
        dimensions: Number of components to keep of each vector.
        normalize: Scale vectors to length 1; None does so.
        task: Only `embed`.
    """

    truncate_prompt_tokens: int | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    task: str | None = None

    def __post_init__(self) -> None:
        if self.task not in (None, "embed"):
            raise ValueError(
                f"task is {self.task!r}, expected 'embed'; LLM.score returns a ranking head's output"
            )

    def clone(self) -> PoolingParams:
        """A copy with the same values."""
        return PoolingParams(self.truncate_prompt_tokens, self.dimensions, self.normalize, self.task)
