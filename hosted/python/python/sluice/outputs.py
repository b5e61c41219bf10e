"""What a batch comes to: vLLM's outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.lora_request import LoRARequest


@dataclass(frozen=True)
class Logprob:
    """How likely the model found a token, before any sampler.

    Attributes:
        logprob: Natural logarithm of its probability.
        rank: 1 for the likeliest; None where it is not among those that were asked for.
        decoded_token: Its text.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


TokenLogprobs = dict[int, Logprob]
"""A token's, and the likeliest in its place."""


@dataclass
class CompletionOutput:
    """One text.

    Attributes:
        token_ids: All of it, with the token that ended it.
        cumulative_logprob: Sum over `token_ids`; None without `logprobs`.
        logprobs: One for each of `token_ids`.
        finish_reason: `stop` or `length`; None while it is written.
        stop_reason: The text of `stop` or the token of `stop_token_ids` that ended it; None where it ended otherwise.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None

    def finished(self) -> bool:
        """Whether it has ended."""
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """A prompt and its texts.

    Attributes:
        prompt: Its text; None where tokens were given.
        prompt_logprobs: One for each token, None for the first; None where they were not asked for.
        metrics: Times of the request's last text, in the server's words (`prompt_ms`, `predicted_per_second`, ...).
        num_cached_tokens: Tokens of the prompt that were not computed again.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    metrics: dict[str, Any] | None = None
    lora_request: LoRARequest | None = None
    num_cached_tokens: int | None = None


@dataclass
class EmbeddingOutput:
    """A vector of length 1."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Its numbers."""
        return len(self.embedding)


@dataclass
class EmbeddingRequestOutput:
    """A text and its vector."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True


@dataclass
class ScoringOutput:
    """How well a document answers a query: the model's own number, without a sigmoid."""

    score: float


@dataclass
class ScoringRequestOutput:
    """A document and its score."""

    request_id: str
    outputs: ScoringOutput
    finished: bool = True
