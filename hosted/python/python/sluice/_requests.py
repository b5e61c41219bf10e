"""From the arguments of completions to the engine's requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice import grammar as grammars
from sluice._prompts import is_integer, shown
from sluice._replies import Json

Stop = str | Sequence[str] | None

RANDOM = (-1, 0xFFFFFFFF)
"""Seeds that stand for a new one each time."""


def sampling(
    *,
    temperature: float,
    top_p: float,
    top_k: int | None,
    min_p: float,
    typical_p: float,
    repeat_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
    mirostat_mode: int,
    mirostat_tau: float,
    mirostat_eta: float,
    last_n_tokens_size: int,
    tfs_z: float = 1.0,
    penalize_nl: bool = True,
    seed: int | None = None,
    logit_bias: Mapping[int, float] | Mapping[str, float] | None = None,
    grammar: grammars.LlamaGrammar | str | None = None,
) -> Json:
    """How tokens are chosen.

    Raises:
        ValueError: a sampler is asked for that is not there.
    """
    if tfs_z != 1.0:
        raise ValueError("tfs_z: not supported; llama.cpp has removed it, too")
    if not penalize_nl:
        raise ValueError("penalize_nl: not supported; llama.cpp has removed it, too")
    fields: Json = {
        "temperature": temperature,
        "top_p": top_p,
        # None and 0 or less are all tokens.
        "top_k": 0 if top_k is None else max(top_k, 0),
        "min_p": min_p,
        "typical_p": typical_p,
        "repeat_penalty": repeat_penalty,
        "last_n_tokens_size": last_n_tokens_size,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        **grammars.fields(grammar),
    }
    if mirostat_mode:
        fields |= {"mirostat_mode": mirostat_mode, "mirostat_tau": mirostat_tau, "mirostat_eta": mirostat_eta}
    if seed is not None:
        fields["seed"] = seed
    if logit_bias:
        fields["logit_bias"] = logit_bias
    return fields


def ends(max_tokens: int | None, stop: Stop) -> Json:
    """When a text ends: after `max_tokens`, where it is above 0, and where one of `stop` comes up."""
    fields: Json = {}
    if max_tokens is not None and max_tokens > 0:
        fields["max_tokens"] = max_tokens
    if stop:
        fields["stop"] = stop if isinstance(stop, str) else list(stop)
    return fields


def tools(
    functions: Sequence[Json] | None,
    function_call: str | Json | None,
    given: Sequence[Json] | None,
    choice: str | Json | None,
) -> Json:
    """The tools of a request; functions are what they were called before.

    Raises:
        ValueError: both are given.
    """
    if (functions or function_call is not None) and (given or choice is not None):
        raise ValueError(
            "functions, function_call: give them as tools and tool_choice, or the other way, not both"
        )
    if functions:
        given = [{"type": "function", "function": function} for function in functions]
    if function_call is not None:
        choice = (
            function_call
            if isinstance(function_call, str)
            else {"type": "function", "function": {"name": function_call.get("name")}}
        )
    fields: Json = {}
    if given:
        fields["tools"] = list(given)
    if choice is not None:
        fields["tool_choice"] = choice
    return fields


def as_functions(reply: Any) -> Any:
    """A reply, or a chunk, with its first call as a `function_call` too, for those that asked with functions."""
    for choice in reply.get("choices", ()):
        message = choice.get("message") or choice.get("delta") or {}
        calls = message.get("tool_calls")
        if calls:
            message["function_call"] = dict(calls[0]["function"])
    return reply


def seed_of(given: Any) -> int | None:
    """A seed; None where a new one is to be drawn each time.

    Raises:
        TypeError: It is not an integer.
    """
    if given is None:
        return None
    if not is_integer(given) and not (isinstance(given, float) and given.is_integer()):
        raise TypeError(f"seed is {shown(given)}, expected an integer")
    return None if given in RANDOM else int(given)
