"""How tokens of a batch are chosen: vLLM's `SamplingParams`."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice._native import check_regex

Json = dict[str, Any]

N_MAX = 128
LOGPROBS_MAX = 1000


@dataclass(frozen=True)
class StructuredOutputsParams:
    """A constraint on a text: exactly one of the fields.

    Attributes:
        json: A JSON schema, as an object or as a string.
        choice: Strings, one of which the text must be.
        grammar: A grammar in llama.cpp's notation (GBNF).
        json_object: Any JSON object.
        regex: A regular expression that the whole text must match, with Unicode's classes as Python's `re` has them,
        without backreferences, lookaround and word boundaries.
        structural_tag: Free text with embedded tags, in vLLM's format: an object with `structures` (`begin`, `schema`,
        `end`) and `triggers`, or with a `format` of type `triggered_tags`; or the same as a string.
    """

    json: str | Json | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Json | None = None

    def fields(self) -> Json:
        """The fields of a request.

        Raises:
            ValueError: Not exactly one field is given, or it is invalid or not supported.
        """
        names = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
        given = [name for name in names if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            what = " and ".join(given) or "nothing"
            raise ValueError(f"structured_outputs: expected one constraint, not {what}")
        if self.json is not None:
            return {"json_schema": _schema(self.json)}
        if self.choice is not None:
            if isinstance(self.choice, str) or not self.choice:
                raise ValueError("structured_outputs.choice: expected a list of strings")
            return {"grammar": "root ::= " + " | ".join(_literal(text) for text in self.choice)}
        if self.regex is not None:
            pattern = _text("structured_outputs.regex", self.regex)
            try:
                check_regex(pattern)
            except ValueError as error:
                raise ValueError(f"structured_outputs.regex: {error}") from None
            return {"regex": pattern}
        if self.grammar is not None:
            return {"grammar": self.grammar}
        if self.structural_tag is not None:
            tag = _schema(self.structural_tag, "structural_tag")
            if not isinstance(tag, dict):
                raise ValueError("structured_outputs.structural_tag: expected an object")
            return {"response_format": {**tag, "type": "structural_tag"}}
        return {"json_schema": {"type": "object"}}


class RequestOutputKind(Enum):
    """What the outputs of `AsyncLLM.generate` have."""

    CUMULATIVE = 0
    """All tokens so far."""
    DELTA = 1
    """The tokens since the last output."""
    FINAL_ONLY = 2
    """All tokens, once, at the end."""


GuidedDecodingParams = StructuredOutputsParams
"""vLLM's earlier name."""


@dataclass
class SamplingParams:
    """Sampling parameters. Names, meanings and defaults are vLLM's.

    Attributes:
        n: Number of texts per prompt, 1 to 128.
        presence_penalty, frequency_penalty: -2 to 2, for generated tokens; 0 is off.
        repetition_penalty: Above 0, for tokens of the prompt and the text; 1 is off.
        temperature: 0 always takes the most likely token.
        top_p: Above 0, up to 1.
        top_k: 0 and -1 keep all tokens.
        min_p: 0 to 1.
        seed: The same seed gives the same text. By default it is derived from the seed of `LLM` and the number of the
        request.
        stop: A string or strings that end the text and are removed from it.
        stop_token_ids: Tokens that end the text. They are in `token_ids`, but not in the text.
        bad_words: Strings that are never generated: the last of a string's tokens is not chosen after the others.
        include_stop_str_in_output: Keep the string that ended the text.
        ignore_eos: Never choose a token that ends a text.
        max_tokens: Maximum number of tokens, at least 1; None is as many as fit.
        min_tokens: Number of tokens before which neither tokens nor `stop` end the text.
        output_kind: A `RequestOutputKind`, for `AsyncLLM`; `LLM` returns whole texts.
        logprobs: Record the log-probability of each token and of this many most likely ones, 0 to 1000.
        prompt_logprobs: The same for the tokens of the prompt, with the rank of each. Prompts are then processed one
        after the other, before their texts are generated.
        detokenize: False leaves the text empty.
        skip_special_tokens: False keeps control tokens in the text.
        spaces_between_special_tokens: Only True is supported.
        logits_processors: Called with the tokens generated so far and the logits, float32 (n_vocab), or with the tokens
        of the prompt before both; they return the logits. The functions run on the engine's thread.
        truncate_prompt_tokens: Number of tokens to keep from the prompt's end; -1 keeps as many as fit.
        structured_outputs: See `StructuredOutputsParams`.
        logit_bias: Added to the logits of tokens.
        allowed_token_ids: Only these tokens may be chosen.
    """

    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logits_processors: Sequence[Callable[..., Any]] | None = None
    truncate_prompt_tokens: int | None = None
    structured_outputs: StructuredOutputsParams | Json | None = None
    guided_decoding: StructuredOutputsParams | Json | None = None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    output_kind: RequestOutputKind | None = None
    extra_args: Json | None = None
    skip_reading_prefix_cache: bool | None = None

    def __post_init__(self) -> None:
        self._refuse()
        self.n = _whole("n", self.n, 1, N_MAX)
        self.max_tokens = _maybe("max_tokens", self.max_tokens, 1, 1 << 30)
        self.min_tokens = _whole("min_tokens", self.min_tokens, 0, 1 << 30)
        self.top_k = _whole("top_k", self.top_k, -1, (1 << 32) - 1)
        seed = _maybe("seed", self.seed, -1, (1 << 63) - 1)
        self.seed = None if seed == -1 else seed
        self.logprobs = _maybe("logprobs", self.logprobs, 0, LOGPROBS_MAX)
        self.prompt_logprobs = _maybe("prompt_logprobs", self.prompt_logprobs, 0, LOGPROBS_MAX)
        self.truncate_prompt_tokens = _maybe(
            "truncate_prompt_tokens", self.truncate_prompt_tokens, -1, 1 << 30
        )
        if self.truncate_prompt_tokens == 0:
            raise ValueError("truncate_prompt_tokens is 0, expected -1 or at least 1")
        for name, least, most in RANGES:
            _number(name, getattr(self, name), least, most)
        if self.top_p == 0:
            raise ValueError("top_p is 0, expected above 0 and up to 1")
        if self.repetition_penalty < 0.01:
            raise ValueError(f"repetition_penalty is {self.repetition_penalty}, expected at least 0.01")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}, but max_tokens is {self.max_tokens}")
        self.stop = (
            [self.stop] if isinstance(self.stop, str) else [_text("stop", text) for text in self.stop or ()]
        )
        if "" in self.stop:
            raise ValueError("stop: a string is empty")
        if self.stop and not self.detokenize:
            raise ValueError("stop: requires detokenize")
        self.bad_words = [_text("bad_words", text) for text in self.bad_words or ()]
        if any(not text.strip() for text in self.bad_words):
            raise ValueError("bad_words: a string is empty")
        self.stop_token_ids = _tokens("stop_token_ids", self.stop_token_ids or ())
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = _tokens("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise ValueError("allowed_token_ids is empty: no token could be chosen")
        # Errors are raised here, not in the middle of a batch.
        self.constraint()

    @property
    def __struct_fields__(self) -> tuple[str, ...]:
        """The names of the fields, as vLLM's class has them; outlines reads them."""
        return tuple(self.__dataclass_fields__)

    def clone(self) -> SamplingParams:
        """A copy with the same values."""
        return replace(self)

    def constraint(self) -> Json:
        """The fields of a request that correspond to `structured_outputs`."""
        asked = self.structured_outputs if self.structured_outputs is not None else self.guided_decoding
        if self.structured_outputs is not None and self.guided_decoding is not None:
            raise ValueError("guided_decoding is the former name of structured_outputs; use only one of them")
        if asked is None:
            return {}
        if isinstance(asked, Mapping):
            try:
                asked = StructuredOutputsParams(**asked)
            except TypeError as error:
                raise ValueError(f"structured_outputs: {error}") from None
        return asked.fields()

    def _refuse(self) -> None:
        if self.best_of not in (None, 1, self.n):
            raise ValueError("best_of: not supported; use n for several texts")
        if not self.spaces_between_special_tokens:
            raise ValueError("spaces_between_special_tokens: False is not supported")
        if self.extra_args:
            raise ValueError(f"extra_args: {next(iter(self.extra_args))!r} is not supported")
        if self.output_kind is not None:
            # vLLM's own class has the same names.
            name = getattr(self.output_kind, "name", None)
            if not isinstance(name, str) or name not in RequestOutputKind.__members__:
                raise TypeError(f"output_kind is {self.output_kind!r}, expected a RequestOutputKind")
            self.output_kind = RequestOutputKind[name]


def request_fields(params: SamplingParams) -> Json:
    """The arguments of a request, except for the prompt, the seed, and those that need the vocabulary."""
    fields: Json = {
        "n": params.n,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": max(params.top_k, 0),
        "min_p": params.min_p,
        "typical_p": 1.0,
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "dynatemp_range": 0.0,
        "dry_multiplier": 0.0,
        "mirostat": 0,
        # The order in which vLLM applies them.
        "samplers": ["penalties", "temperature", "min_p", "top_k", "top_p"],
        "min_keep": 0,
        "repeat_penalty": params.repetition_penalty,
        "repeat_last_n": -1,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        # The last two are for what is written.
        "penalize_prompt": False,
        "ignore_eos": params.ignore_eos,
        "min_tokens": params.min_tokens,
        "stop": list(params.stop or ()),
        "stop_token_ids": list(params.stop_token_ids or ()),
        "include_stop_str_in_output": params.include_stop_str_in_output,
        "skip_special_tokens": params.skip_special_tokens,
        "context_shift": False,
        **params.constraint(),
    }
    if params.logprobs is not None:
        # 0 disables it in the server.
        fields["n_probs"] = max(params.logprobs, 1)
    if params.prompt_logprobs is not None:
        fields["prompt_logprobs"] = params.prompt_logprobs
    if params.allowed_token_ids is not None:
        fields["allowed_token_ids"] = list(params.allowed_token_ids)
    if params.logit_bias:
        fields["logit_bias"] = dict(params.logit_bias)
    return fields


class Processed:
    """A processor as called by vLLM: with lists of tokens."""

    def __init__(self, processor: Callable[..., Any], n_prompt: int) -> None:
        self.processor = processor
        self.n_prompt = n_prompt
        try:
            self.takes_prompt = len(inspect.signature(processor).parameters) == 3
        except (TypeError, ValueError):
            self.takes_prompt = False

    def __call__(self, tokens: NDArray[np.uint32], logits: NDArray[np.float32]) -> Any:
        """The logits that the processor returns."""
        prompt, written = tokens[: self.n_prompt].tolist(), tokens[self.n_prompt :].tolist()
        return (
            self.processor(prompt, written, logits) if self.takes_prompt else self.processor(written, logits)
        )


def _schema(given: str | Json, name: str = "json") -> Any:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError as error:
        raise ValueError(f"structured_outputs.{name}: {error}") from None


def _literal(text: str) -> str:
    """A literal in GBNF."""
    text = _text("structured_outputs.choice", text)
    escaped = "".join(ESCAPES.get(char, char) for char in text)
    return f'"{escaped}"'


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name}: {value!r} is not a string")
    return value


def _tokens(name: str, values: Sequence[int]) -> list[int]:
    return [_whole(name, value, 0, (1 << 32) - 1) for value in values]


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}, expected an integer")
    number = int(value)
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}, expected {least} to {most}")
    return number


def _maybe(name: str, value: Any, least: int, most: int) -> int | None:
    return None if value is None else _whole(name, value, least, most)


def _number(name: str, value: Any, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        raise TypeError(f"{name} is {value!r}, expected a number")
    if not math.isfinite(value) or not least <= value <= most:
        raise ValueError(f"{name} is {value}, expected {least:g} to {most:g}")


RANGES = [
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", 0.0, 100.0),
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
]
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
