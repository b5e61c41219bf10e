"""The arguments of completions and conversations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from sluice._replies import Json
from sluice.callbacks import LogitsProcessor, StoppingCriteria
from sluice.grammar import LlamaGrammar
from sluice.llama_types import ChatCompletionRequestMessage

Processors = LogitsProcessor | list[LogitsProcessor] | None
Criteria = StoppingCriteria | list[StoppingCriteria] | None
Grammar = LlamaGrammar | str | None
ChatHandler = Callable[..., Any]
Prompt = str | Sequence[int] | Sequence[str]
Messages = Sequence[ChatCompletionRequestMessage] | Sequence[Json]


class RequestOptions(TypedDict, total=False):
    """Fields of the server's routes that are not in llama-cpp-python's signatures."""

    n: int
    lora: Sequence[Json]
    n_predict: int
    max_completion_tokens: int
    min_tokens: int
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    ignore_eos: bool
    n_probs: int
    samplers: str | Sequence[str]
    allowed_token_ids: Sequence[int]
    bad_words_token_ids: Sequence[Sequence[int]]
    priority: int
    deadline_ms: int
    t_max_predict_ms: int
    cache_prompt: bool
    cache_salt: str
    id_slot: int
    context_shift: bool
    n_keep: int
    return_progress: bool
    timings_per_token: bool
    stream_options: Json
    json_schema: Any
    regex: str
    temp: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    repeat_last_n: int
    repetition_penalty: float
    penalize_prompt: bool
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    mirostat: int
    min_keep: int


class MoreOptions(RequestOptions, total=False):
    """As `RequestOptions`, for completions."""

    prompt_logprobs: int
    response_format: Json


class ChatOptions(RequestOptions, total=False):
    """As `RequestOptions`, for conversations."""

    continue_final_message: bool | str
    add_generation_prompt: bool
    chat_template_kwargs: Mapping[str, Any]
    enable_thinking: bool
    reasoning_effort: str
    documents: Sequence[Any]
    parallel_tool_calls: bool
    reasoning_format: str
    reasoning_budget: int


class _Both(TypedDict, total=False):
    max_tokens: int | None
    temperature: float
    top_p: float
    min_p: float
    typical_p: float
    stop: str | Sequence[str] | None
    frequency_penalty: float
    presence_penalty: float
    repeat_penalty: float
    top_k: int | None
    stream: bool
    seed: int | None
    tfs_z: float
    mirostat_mode: int
    mirostat_tau: float
    mirostat_eta: float
    model: str | None
    logits_processor: Processors
    grammar: Grammar
    logit_bias: Mapping[int, float] | Mapping[str, float] | None


class CompletionArguments(MoreOptions, _Both, total=False):
    """The keyword arguments of `create_completion`."""

    suffix: str | None
    logprobs: int | None
    echo: bool
    stopping_criteria: Criteria


class ChatArguments(ChatOptions, _Both, total=False):
    """The keyword arguments of `create_chat_completion`."""

    functions: Sequence[Json] | None
    function_call: str | Json | None
    tools: Sequence[Json] | None
    tool_choice: str | Json | None
    response_format: Json | None
    logprobs: bool | None
    top_logprobs: int | None
