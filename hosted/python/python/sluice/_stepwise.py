"""A text evaluated token by token: the lower-level half of `Llama`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice import _prompts, _requests
from sluice._arguments import Criteria, Grammar, Processors
from sluice._client import Client
from sluice._native import Context, Sampler
from sluice.callbacks import LogitsProcessor, StoppingCriteriaList, listed


@dataclass
class LlamaState:
    """A text saved by `save_state`.

    `input_ids`: int32 (n_tokens). `scores`: float32, logits (n_tokens, n_vocab) with `logits_all`, otherwise those of
    the last token (1, n_vocab). `llama_state` contains everything as bytes, which `load_state` reads.
    """

    input_ids: NDArray[np.int32]
    scores: NDArray[np.float32]
    n_tokens: int
    llama_state: bytes
    llama_state_size: int
    seed: int


class Stepwise:
    """A text that is evaluated step by step, independently of completions.

    The memory for its context is allocated when it is first used.
    """

    logits_all: bool
    last_n_tokens_size: int
    seed: int | None
    _context: Context | None = None
    _sampler: tuple[str, Sampler] | None = None

    @property
    def client(self) -> Client:
        """The engine."""
        raise NotImplementedError

    @property
    def _text(self) -> Context:
        with _FIRST_USE:
            if self._context is None:
                self._context = self.client.context(all_logits=self.logits_all)
            return self._context

    def _forget(self) -> None:
        self._context = self._sampler = None

    @property
    def n_tokens(self) -> int:
        """Number of tokens evaluated."""
        return 0 if self._context is None else self._context.n_tokens

    @property
    def input_ids(self) -> NDArray[np.int32]:
        """The tokens evaluated: int32 (n_tokens)."""
        return self._text.tokens.astype(np.int32)

    @property
    def scores(self) -> NDArray[np.float32]:
        """Logits: float32 (n_tokens, n_vocab) with `logits_all`, otherwise (1, n_vocab) of the last token.

        Not a copy: `sample` sees modifications.
        """
        if self.logits_all:
            return self._text.logits(all=True)
        return self._text.logits().reshape(1, -1)

    @property
    def eval_tokens(self) -> deque[int]:
        """Number of tokens evaluated."""
        return deque(self._text.tokens.tolist())

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The rows of `scores`."""
        return deque(self.scores.tolist())

    def reset(self) -> None:
        """Discards the evaluated tokens."""
        if self._context is not None:
            self._context.truncate(0)
        self._sampler = None

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluates tokens after those evaluated so far.

        Raises:
            ValueError: The tokens do not fit, or are not in the vocabulary.
        """
        self._text.eval(numbers(tokens))

    def sample(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.8,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: Processors = None,
        grammar: Grammar = None,
        idx: int | None = None,
    ) -> int:
        """Chooses the token after the evaluated ones, or after token `idx` of them; does not evaluate it.

        Mirostat, grammars and random numbers continue from the last call with the same settings, until `reset`.
        """
        fields = self._fields(dict(locals()))
        # Samplers have state, such as mirostat's and a grammar's, which continues from call to call. Completions
        # move the seed on, which it must not touch.
        wanted = repr({**fields, "seed": None})
        if self._sampler is None or self._sampler[0] != wanted:
            self._sampler = (wanted, self.client.sampler(fields))
        return self._choose(self._sampler[1], listed(logits_processor), idx)

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.8,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: Processors = None,
        stopping_criteria: Criteria = None,
        grammar: Grammar = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Yields the tokens after `tokens`, without end: the caller's loop ends it.

        With `reset` the text is `tokens`; otherwise they are appended to the evaluated ones. Tokens sent to the
        generator are evaluated after the one that it yielded last.
        """
        sampler = self.client.sampler(self._fields(dict(locals())))
        processors = listed(logits_processor)
        stopping = None if stopping_criteria is None else StoppingCriteriaList(listed(stopping_criteria))
        new = numbers(tokens)
        if reset:
            # A common prefix is not evaluated again, except for its last token.
            same = common_prefix(self._text.tokens.tolist(), new[:-1])
            new = new[self._text.truncate(same) :]
        while True:
            self.eval(new)
            if stopping is not None and stopping(self._text.tokens, self._text.logits()):
                return
            token = self._choose(sampler, processors, None)
            sent = yield token
            new = [token, *(sent or ())]

    def save_state(self) -> LlamaState:
        """The evaluated text, to be continued later."""
        saved = self._text.save()
        scores = self.scores if self.n_tokens else np.zeros((0, 0), np.float32)
        seed = -1 if self.seed is None else self.seed
        return LlamaState(self.input_ids, scores, self.n_tokens, saved, len(saved), seed)

    def load_state(self, state: LlamaState) -> None:
        """Continues a text saved by `save_state`.

        Raises:
            ValueError: It was saved with another model or other adapters, or is damaged.
        """
        self._text.restore(state.llama_state)
        self._sampler = None
        self.seed = _requests.seed_of(state.seed)

    def _choose(self, sampler: Sampler, processors: Sequence[LogitsProcessor], idx: int | None) -> int:
        if not processors and idx is None:
            return self._text.sample(sampler)
        logits = self._logits(idx).copy()
        tokens = self._text.tokens
        for processor in processors:
            logits = processor(tokens, logits)
        return self._text.sample(sampler, np.ascontiguousarray(logits, dtype=np.float32))

    def _logits(self, idx: int | None) -> NDArray[np.float32]:
        """The logits after token `idx`; only the last one has some without `logits_all`."""
        if idx is None or (not self.logits_all and idx in (-1, self.n_tokens - 1)):
            return self._text.logits()
        row: NDArray[np.float32] = self._text.logits(all=True)[idx]
        return row

    def _fields(self, given: dict[str, Any]) -> dict[str, Any]:
        settings = {name: given[name] for name in _SAMPLING}
        settings["temperature"] = settings.pop("temp")
        return _requests.sampling(
            last_n_tokens_size=self.last_n_tokens_size, seed=self.seed, grammar=given["grammar"], **settings
        )


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common prefix."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


def numbers(tokens: Sequence[int]) -> list[int]:
    """Tokens as a list.

    Raises:
        TypeError: It is not a list of integers. ValueError: A token is out of range.
    """
    return _prompts.tokens("tokens", tokens, 1 << 32)


_FIRST_USE = threading.Lock()
"""The logits of a text whose context is allocated when it is first used."""

_SAMPLING = (
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "temp",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "tfs_z",
    "mirostat_mode",
    "mirostat_eta",
    "mirostat_tau",
    "penalize_nl",
)
