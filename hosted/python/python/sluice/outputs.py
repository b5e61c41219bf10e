"""The results of a batch: vLLM's outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.lora_request import LoRARequest


@dataclass(frozen=True)
class Logprob:
    """The log-probability of a token according to the model, before any sampler.

    Attributes:
        logprob: Natural logarithm of its probability.
        rank: 1 for the most likely token; None if the token is not among the requested ones.
        decoded_token: Its text.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


TokenLogprobs = dict[int, Logprob]
"""A token's log-probability, and those of the most likely tokens in its place."""


@dataclass
class CompletionOutput:
    """One generated text.

    Attributes:
        token_ids: All of its tokens, including the one that ended it.
        cumulative_logprob: Sum over `token_ids`; None without `logprobs`.
        logprobs: One for each of `token_ids`.
        finish_reason: `stop` or `length`; None during generation.
        stop_reason: The string of `stop` or the token of `stop_token_ids` that ended it; otherwise None.
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
        """Whether the text has ended."""
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """A prompt and its generated texts.

    Attributes:
        prompt: The prompt's text; None if tokens were given.
        prompt_logprobs: One entry per token, None for the first; None if they were not requested.
        metrics: Timings of the request's last text, with the server's names (`prompt_ms`, `predicted_per_second`, ...).
        num_cached_tokens: Number of prompt tokens found in the cache.
        error: Why there are no texts, with `on_error="return"`.
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
    error: Exception | None = None


@dataclass
class EmbeddingOutput:
    """A vector of length 1."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """The vector as a list."""
        return len(self.embedding)


@dataclass
class EmbeddingRequestOutput:
    """A text and its vector, which is empty with an `error` (with `on_error="return"`)."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True
    error: Exception | None = None


PoolingOutput, PoolingRequestOutput = EmbeddingOutput, EmbeddingRequestOutput
"""vLLM's names of what `embed` returns."""


@dataclass
class ScoringOutput:
    """The relevance of a document to a query: the model's raw output, without a sigmoid."""

    score: float


@dataclass
class ScoringRequestOutput:
    """A document and its score."""

    request_id: str
    outputs: ScoringOutput
    finished: bool = True
