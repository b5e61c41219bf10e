"""Many requests at once: prompts, what is asked of each, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, Literal, TypeVar

from sluice import _prompts
from sluice._client import Callback, Client, RequestError, ServiceError, refusal
from sluice._native import Answer, Event, Model, RefusedError, Report
from sluice._replies import Json, finish_reason, timings
from sluice.outputs import CompletionOutput, Logprob, RequestOutput, TokenLogprobs
from sluice.sampling_params import Processed, SamplingParams, request_fields

T = TypeVar("T")
U = TypeVar("U")


@dataclass
class Prompt:
    """Tokens, and the text that they are of, if it is known."""

    tokens: list[int]
    text: str | None = None
    stop: tuple[str, ...] = ()
    salt: str | None = None


@dataclass
class Work:
    """A request that is ready to be sent."""

    request_id: str
    prompt: Prompt
    params: SamplingParams
    body: Json
    adapter: Any = None
    processors: list[Callback] = field(default_factory=list)


OnError = Literal["raise", "return"]
"""What becomes of a prompt that fails: an exception for all, or the `error` of its own output."""


@dataclass
class Asked(Generic[T]):
    """The prompts of a call, and how each is read."""

    name: str
    given: list[Any]
    reader: Callable[[Any], T]
    on_error: OnError

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "return"):
            raise ValueError(f"on_error is {self.on_error!r}, expected 'raise' or 'return'")

    def read(self) -> Iterator[tuple[T | None, Exception | None]]:
        """What each prompt is read as, or why it cannot be."""
        for at, given in enumerate(self.given):
            yield self.attempt(at, partial(self.reader, given))

    def attempt(self, at: int, what: Callable[[], U]) -> tuple[U | None, Exception | None]:
        """What is made of a prompt, or why nothing is."""
        try:
            return what(), None
        except (TypeError, ValueError) as error:
            return None, self.failed(at, error)

    def failed(self, at: int, error: Exception) -> Exception:
        """An error, with the prompt's index. Raises it unless errors are returned."""
        if isinstance(error, UnicodeError):
            # Its text does not come from its arguments.
            error = ValueError(str(error))
        if isinstance(error, (TypeError, ValueError)):
            error.args = (f"{self.name}[{at}]: {error}", *error.args[1:])
        else:
            error.add_note(f"of {self.name}[{at}]")
        if self.on_error == "raise":
            raise error
        return error


def prompt_of(given: Any, model: Model) -> Prompt:
    """A prompt as a text, tokens, `{"prompt": …}` or `{"prompt_token_ids": …}`.

    Raises:
        TypeError, ValueError: it is something else.
    """
    text, tokens, salt = parts_of(given)
    found = encoded(text or "", model) if tokens is None else tokens_of(tokens, model)
    return Prompt(found, text, salt=salt)


def all_prompts(given: Any) -> list[Any]:
    """The prompts of a list, an array, a column or an iterator; a single prompt as a list of one.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(given, (str, Mapping)):
        return [given]
    found = _prompts.items(given)
    if found is None:
        raise TypeError(f"prompts is {_prompts.shown(given)}, expected a prompt or a list of prompts")
    return [found] if found and _prompts.is_integer(found[0]) else found


def parts_of(given: Any) -> tuple[str, None, str | None] | tuple[str | None, Any, str | None]:
    """The text, the tokens (of which one is None), and the salt of a prompt.

    Raises:
        TypeError, ValueError: it is something else.
    """
    if isinstance(given, str):
        return given, None, None
    if not isinstance(given, Mapping):
        listed = _prompts.items(given)
        if listed is None:
            raise TypeError(f"{_prompts.shown(given)} is not a string or a list of token ids")
        return None, listed, None
    known = {"prompt", "prompt_token_ids", "cache_salt"}
    strange = sorted(name for name, value in given.items() if name not in known and value is not None)
    if strange:
        raise ValueError(f"{strange[0]}: not supported")
    if not isinstance(given.get("prompt"), (str, type(None))):
        raise TypeError(f"prompt is {_prompts.shown(given['prompt'])}, expected a string")
    text, salt = given.get("prompt"), given.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise TypeError("cache_salt: a text is expected")
    if given.get("prompt_token_ids") is not None:
        return text, given["prompt_token_ids"], salt
    if not isinstance(text, str):
        raise TypeError("a prompt has neither `prompt`, a text, nor `prompt_token_ids`")
    return text, None, salt


def encoded(text: str, model: Model) -> list[int]:
    """The tokens of a text as the server has them: the vocabulary's first token before it, none after it."""
    tokens = model.encode(text, add_special=True, parse_special=True)
    if (
        tokens
        and tokens[-1] == model.eos
        and model.encode(text, add_special=False, parse_special=True)[-1:] != [model.eos]
    ):
        # The end that a vocabulary puts after texts would end the answer before it begins.
        tokens.pop()
    if not tokens:
        first = model.bos if model.bos is not None else model.eos
        tokens = [] if first is None else [first]
    return tokens


def tokens_of(given: Any, model: Model) -> list[int]:
    """A list of tokens of this vocabulary.

    Raises:
        TypeError, ValueError: it is something else.
    """
    found = _prompts.tokens("prompt_token_ids", given, model.n_vocab)
    if not found:
        raise ValueError("prompt_token_ids: a prompt has no token")
    return found


def prepared(work: Work, model: Model, max_model_len: int) -> Work:
    """Fills in the body of a request, and what is called for each of its tokens.

    Raises:
        ValueError: the prompt does not fit.
    """
    params, prompt = work.params, work.prompt
    if params.truncate_prompt_tokens is not None:
        most = params.truncate_prompt_tokens if params.truncate_prompt_tokens > 0 else max_model_len - 1
        if len(prompt.tokens) > most:
            prompt.tokens = prompt.tokens[-most:]
    n_prompt = len(prompt.tokens)
    if n_prompt >= max_model_len:
        raise ValueError(f"the prompt has {n_prompt} tokens, max_model_len is {max_model_len}")
    room = max_model_len - n_prompt
    body = request_fields(params)
    body["prompt"] = prompt.tokens
    if prompt.salt is not None:
        body["cache_salt"] = prompt.salt
    body["max_tokens"] = room if params.max_tokens is None else min(params.max_tokens, room)
    body["min_tokens"] = min(params.min_tokens, body["max_tokens"])
    body["stop"] += [text for text in prompt.stop if text not in body["stop"]]
    if params.bad_words:
        body["bad_words_token_ids"] = bad_words(params.bad_words, model)
    work.processors.extend(Processed(processor, n_prompt) for processor in params.logits_processors or ())
    work.body |= body
    return work


def bad_words(words: Sequence[str], model: Model) -> list[list[int]]:
    """The tokens of words at the beginning of a text, and after a space where they are others.

    vLLM leaves the second form out if it has another number of tokens, and so writes the word.

    Raises:
        ValueError: A word has no tokens.
    """
    found: list[list[int]] = []
    for word in words:
        plain = model.encode(word, add_special=False)
        spaced = model.encode(" " + word.lstrip(), add_special=False)
        if not plain:
            raise ValueError(f"bad_words: {word!r} has no tokens")
        found += [tokens for tokens in (plain, spaced) if tokens and tokens not in found]
    return found


def run(
    client: Client, all_work: Iterator[Work], n_most: int
) -> Iterator[tuple[Work, list[Event], Exception | None]]:
    """Answers requests, at most `n_most` texts of them at a time, and gives the answers, or errors, as they come.

    Left early, or interrupted, it ends all that runs.
    """
    ready: SimpleQueue[tuple[str, list[Event], Exception | None]] = SimpleQueue()
    running: dict[str, tuple[Work, Answer]] = {}
    n_running = 0
    waiting = next(all_work, None)
    try:
        while waiting is not None or running:
            while waiting is not None and (not running or n_running + waiting.params.n <= n_most):
                try:
                    answer = client.complete(waiting.body, waiting.processors)
                    answer.on_read(partial(_put, ready, waiting.request_id), True)
                except (RequestError, ServiceError, TypeError) as error:
                    yield waiting, [], error
                else:
                    running[waiting.request_id] = (waiting, answer)
                    n_running += waiting.params.n
                waiting = next(all_work, None)
            if not running:
                continue
            request_id, events, raised = ready.get()
            work, answer = running.pop(request_id)
            n_running -= work.params.n
            yield work, events, refusal(raised) if isinstance(raised, RefusedError) else raised
    finally:
        # Dropped, an answer ends its work.
        running.clear()


def _put(ready: SimpleQueue[Any], request_id: str, events: list[Event], error: Exception | None) -> None:
    ready.put((request_id, events, error))


class Text:
    """A text as it is written: whole at once, or event by event."""

    def __init__(self, index: int, work: Work) -> None:
        self.work = work
        wants = work.params.logprobs is not None
        self.output = CompletionOutput(index, "", [], 0.0 if wants else None, [] if wants else None)
        self.output.lora_request = work.adapter
        self._last: Event.Piece | None = None
        # What the outputs of a stream of differences have told.
        self._told = replace(self.output, token_ids=[])

    def has_news(self) -> bool:
        """Whether there is more than the last `delta` had."""
        new, old = self.output, self._told
        return (len(new.token_ids), new.text, new.finish_reason) != (
            len(old.token_ids),
            old.text,
            old.finish_reason,
        )

    def delta(self) -> CompletionOutput:
        """What was written since the last call."""
        new, old = self.output, self._told
        self._told = replace(new, token_ids=list(new.token_ids))
        n = len(old.token_ids)
        logprobs = None if new.logprobs is None else new.logprobs[n:]
        return replace(new, text=new.text[len(old.text) :], token_ids=new.token_ids[n:], logprobs=logprobs)

    def take(self, event: Event) -> None:
        """Adds what an event says."""
        output = self.output
        if isinstance(event, Event.Piece):
            if self.work.params.detokenize:
                output.text += event.text
            # The token that ends a text belongs to its end.
            if event.ends:
                self._last = event
            else:
                self._add(event)
        elif isinstance(event, Event.End):
            if self._last is not None:
                self._add(self._last)
            output.finish_reason = finish_reason(event)
            output.stop_reason = event.stop
            last = output.token_ids[-1:]
            if event.reason == "eos" and set(last) & set(self.work.params.stop_token_ids or ()):
                output.stop_reason = last[0]

    def _add(self, piece: Event.Piece) -> None:
        output, n, report = self.output, self.work.params.logprobs, piece.report
        output.token_ids.append(piece.token)
        if report is None or n is None or output.logprobs is None or output.cumulative_logprob is None:
            return
        ranks = {likely.id: rank for rank, likely in enumerate(report.top, 1)}
        output.logprobs.append(_logprobs(report, ranks.get(report.chosen.id), n))
        output.cumulative_logprob += report.chosen.logprob or 0.0


def output_of(work: Work, events: Sequence[Event]) -> RequestOutput:
    """What a request came to."""
    texts = [Text(index, work) for index in range(work.params.n)]
    output = output_with(work, texts, work.request_id)
    # Texts end in any order, and the last one has the metrics.
    for event in sorted(events, key=lambda event: event.at if isinstance(event, Event.End) else -1):
        add(output, texts, event)
    return output


def output_with(work: Work, texts: Sequence[Text], request_id: str) -> RequestOutput:
    """The output of a request before its first event."""
    return RequestOutput(
        request_id,
        work.prompt.text,
        work.prompt.tokens,
        outputs=[text.output for text in texts],
        lora_request=work.adapter,
    )


def add(output: RequestOutput, texts: Sequence[Text], event: Event) -> bool:
    """Adds what an event says to the output of a request. Returns whether a text has changed."""
    if isinstance(event, (Event.Piece, Event.End)):
        texts[event.at].take(event)
    if isinstance(event, Event.Scores) and output.prompt_logprobs is None:
        output.prompt_logprobs = prompt_logprobs(event.reports)
    if isinstance(event, Event.End):
        output.metrics, output.num_cached_tokens = timings(event.timings), event.timings.n_cached
        output.finished = all(text.output.finished() for text in texts)
        return True
    return isinstance(event, Event.Piece) and (not event.ends or event.text != "")


def prompt_logprobs(reports: Sequence[Report]) -> list[TokenLogprobs | None]:
    """How likely the tokens of a prompt are; None for the first."""
    return [
        None if report.chosen.logprob is None else _logprobs(report, report.rank, len(report.top))
        for report in reports
    ]


def _logprobs(report: Report, rank: int | None, n: int) -> TokenLogprobs:
    """How likely a token is, and the `n` likeliest in its place."""
    chosen = report.chosen
    found = {chosen.id: Logprob(chosen.logprob or 0.0, rank, chosen.text)}
    for at, likely in enumerate(report.top[:n], 1):
        found.setdefault(likely.id, Logprob(likely.logprob or 0.0, at, likely.text))
    return found


def one_for_each(name: str, given: Any, kind: type, n: int) -> Sequence[Any]:
    """`given` for each of `n`, or a list of `n`.

    Raises:
        TypeError, ValueError: it is of another type or length.
    """
    if given is None or isinstance(given, kind):
        return [given] * n
    each = _prompts.items(given)
    if each is None:
        raise TypeError(f"{name} is {_prompts.shown(given)}, expected {kind.__name__}, or a list of them")
    if len(each) != n:
        raise ValueError(f"{name}: {len(each)} for {n} prompts")
    wrong = next((value for value in each if value is not None and not isinstance(value, kind)), None)
    if wrong is not None:
        raise TypeError(f"{name} has {type(wrong).__name__}, expected {kind.__name__}")
    return each


def mixed(seed: int, number: int) -> int:
    """A seed of 63 bits for a request (splitmix64)."""
    mask = (1 << 64) - 1
    x = (seed + (number + 1) * 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return (x ^ (x >> 31)) >> 1
