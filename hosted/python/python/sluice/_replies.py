"""OpenAI's objects from the events of an answer: replies, or the chunks of a stream."""

from __future__ import annotations

import secrets
from typing import Any

from sluice._native import Delta, Event, Likely, Report, Timings

Json = dict[str, Any]
"""An object of JSON."""


class Writer:
    """Writes what the objects of both kinds of answers have in common."""

    _prefix: str
    _object: str
    _chunk_object: str

    def __init__(self, *, is_stream: bool, include_usage: bool) -> None:
        self._is_stream = is_stream
        self._include_usage = include_usage
        self._choices: list[Any] = []

    def write(self, event: Event) -> list[Json]:
        """The chunks of an event; the whole reply with the last one, if it is not streamed."""
        if isinstance(event, Event.Piece):
            return self._piece(event)
        if isinstance(event, Event.End):
            return self._end(event)
        if isinstance(event, Event.Progress):
            return self._progress(event)
        if isinstance(event, Event.Scores):
            self._scores(event)
        elif isinstance(event, Event.Start):
            self._start = event
            self._id = self._prefix + secrets.token_hex(12)
            self._begin(event)
        elif isinstance(event, Event.Total):
            return self._total(event)
        return []

    def _begin(self, start: Event.Start) -> None:
        raise NotImplementedError

    def _scores(self, event: Event.Scores) -> None:
        pass

    def _piece(self, piece: Event.Piece) -> list[Json]:
        raise NotImplementedError

    def _progress(self, event: Event.Progress) -> list[Json]:
        raise NotImplementedError

    def _end(self, end: Event.End) -> list[Json]:
        raise NotImplementedError

    def _whole(self) -> list[Json]:
        """The choices of a reply."""
        raise NotImplementedError

    def _total(self, total: Event.Total) -> list[Json]:
        usage = {
            "prompt_tokens": total.n_prompt,
            "completion_tokens": total.n_predicted,
            "total_tokens": total.n_prompt + total.n_predicted,
            "prompt_tokens_details": {"cached_tokens": total.n_cached},
        }
        if not self._is_stream:
            whole = {"usage": usage, "seed": self._start.seed, "timings": timings(total.timings)}
            return [{**self._head(self._object, self._whole()), **whole}]
        if not self._include_usage:
            return []
        return [self._chunk([], usage=usage, timings=timings(total.timings))]

    def _chunk(self, choices: list[Json], **more: Any) -> Json:
        return {**self._head(self._chunk_object, choices), **more}

    def _head(self, kind: str, choices: list[Json]) -> Json:
        start = self._start
        return {
            "id": self._id,
            "object": kind,
            "created": start.created,
            "model": start.name,
            "system_fingerprint": start.fingerprint,
            "choices": choices,
        }


class CompletionWriter(Writer):
    """Writes OpenAI's `text_completion`."""

    _prefix, _object, _chunk_object = "cmpl-", "text_completion", "text_completion"

    def _begin(self, start: Event.Start) -> None:
        self._has_scores = False
        self._choices = [_Text(prompt) for prompt in start.prompts for _ in range(start.n)]

    def _scores(self, event: Event.Scores) -> None:
        self._has_scores = True
        for report in event.reports:
            self._choices[event.at].lists.add_prompt(report)

    def _piece(self, piece: Event.Piece) -> list[Json]:
        text, report = self._choices[piece.at].take(piece.text), piece.report
        # A list with scores of the prompt has an entry for each token.
        if report is not None and (self._has_scores or not piece.ends):
            self._choices[piece.at].lists.add(report)
        # A part of a character is written with the next token, and so are its log-probabilities.
        if not self._is_stream or (not text and piece.timings is None):
            return []
        more = {} if piece.timings is None else {"timings": timings(piece.timings)}
        return [self._chunk([self._choice(piece.at, text, None)], **more)]

    def _progress(self, event: Event.Progress) -> list[Json]:
        return [self._chunk([self._choice(event.at, "", None)], prompt_progress=progress(event))]

    def _end(self, end: Event.End) -> list[Json]:
        choice = self._choices[end.at]
        choice.finish = finish_reason(end)
        text = choice.take("")
        if not self._is_stream:
            return []
        choices = [self._choice(end.at, text, choice.finish)]
        return [self._chunk(choices, seed=self._start.seed, timings=timings(end.timings))]

    def _whole(self) -> list[Json]:
        return [self._choice(at, choice.text, choice.finish) for at, choice in enumerate(self._choices)]

    def _choice(self, at: int, text: str, finish: str | None) -> Json:
        logprobs = None if self._start.n_probs is None else self._choices[at].lists.taken()
        return {"index": at, "text": text, "logprobs": logprobs, "finish_reason": finish}


class _Text:
    """A text of a completion."""

    def __init__(self, echo: str) -> None:
        self.echo = echo
        self.text = ""
        self.lists = _Lists()
        self.finish: str | None = None

    def take(self, text: str) -> str:
        """Adds a piece; the first one follows the prompt, if that is echoed."""
        text, self.echo = self.echo + text, ""
        self.text += text
        return text


class _Lists:
    """The lists of a completion's `logprobs`."""

    def __init__(self) -> None:
        self._offset = 0
        self._entries: list[tuple[str, float | None, dict[str, float] | None, int]] = []

    def add(self, report: Report) -> None:
        chosen = report.chosen
        top: dict[str, float] | None = None if chosen.logprob is None else {}
        if top is not None:
            for likely in [*report.top, chosen]:
                # Tokens with the same text share an entry, with the log-probability of the likeliest.
                top.setdefault(likely.text, likely.logprob or 0.0)
        self._entries.append((chosen.text, chosen.logprob, top, self._offset))
        self._offset += len(chosen.text)

    def add_prompt(self, report: Report) -> None:
        offset = self._offset
        self.add(report)
        # Control tokens are not part of the text.
        if report.chosen.is_control:
            self._offset = offset

    def taken(self) -> Json:
        """The entries since the last call."""
        entries, self._entries = self._entries, []
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return {name: [entry[at] for entry in entries] for at, name in enumerate(names)}


class ChatWriter(Writer):
    """Writes OpenAI's `chat.completion`."""

    _prefix, _object, _chunk_object = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def _begin(self, start: Event.Start) -> None:
        self._choices = [_Message() for _ in range(start.n)]

    def _piece(self, piece: Event.Piece) -> list[Json]:
        if piece.ends and not piece.text:
            return []
        chunks = self._opened(piece.at)
        if piece.report is not None and not piece.ends:
            self._choices[piece.at].logprobs.append(_entry(piece.report))
        chunks += self._deltas(piece.at, piece.deltas)
        if piece.timings is not None and chunks:
            chunks[-1]["timings"] = timings(piece.timings)
        return chunks

    def _progress(self, event: Event.Progress) -> list[Json]:
        return [*self._opened(event.at), self._delta(event.at, {}, prompt_progress=progress(event))]

    def _end(self, end: Event.End) -> list[Json]:
        choice = self._choices[end.at]
        chunks = self._opened(end.at) + self._deltas(end.at, end.deltas)
        choice.finish = finish_reason(end)
        # A call that was cut off cannot be executed.
        if choice.finish == "stop" and choice.calls:
            choice.finish = "tool_calls"
        if self._is_stream:
            more = {"seed": self._start.seed, "timings": timings(end.timings)}
            chunks.append(self._delta(end.at, {}, choice.finish, **more))
        return chunks

    def _whole(self) -> list[Json]:
        wants = self._start.n_probs is not None
        return [
            {
                "index": index,
                "message": choice.message(),
                "logprobs": {"content": choice.logprobs} if wants else None,
                "finish_reason": choice.finish,
            }
            for index, choice in enumerate(self._choices)
        ]

    def _opened(self, at: int) -> list[Json]:
        """The chunk with the role, which comes first."""
        choice = self._choices[at]
        if choice.is_begun or not self._is_stream:
            return []
        choice.is_begun = True
        return [self._delta(at, {"role": "assistant", "content": ""})]

    def _deltas(self, at: int, deltas: list[Delta]) -> list[Json]:
        chunks = []
        for delta in deltas:
            written = self._choices[at].take(delta)
            if self._is_stream:
                chunks.append(self._delta(at, written))
        return chunks

    def _delta(self, at: int, delta: Json, finish: str | None = None, **more: Any) -> Json:
        choice = self._choices[at]
        entries, choice.logprobs = choice.logprobs, []
        logprobs = {"content": entries} if entries else None
        choices = [{"index": at, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]
        return self._chunk(choices, **more)


class _Message:
    """A message of a chat."""

    def __init__(self) -> None:
        self.is_begun = False
        self.content = ""
        self.reasoning = ""
        self.calls: list[Json] = []
        self.logprobs: list[Json] = []
        self.finish: str | None = None

    def take(self, delta: Delta) -> Json:
        """Adds a piece; returns it as the `delta` of a chunk."""
        if isinstance(delta, Delta.Content):
            self.content += delta.text
            return {"content": delta.text}
        if isinstance(delta, Delta.Reasoning):
            self.reasoning += delta.text
            return {"reasoning_content": delta.text}
        if isinstance(delta, Delta.Call):
            function = {"name": delta.name, "arguments": ""}
            call = {"id": delta.id, "type": "function", "function": function}
            self.calls.append({**call, "function": dict(function)})
            return {"tool_calls": [{"index": delta.index, **call}]}
        assert isinstance(delta, Delta.Arguments)
        self.calls[delta.index]["function"]["arguments"] += delta.text
        return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}

    def message(self) -> Json:
        # With calls, an empty content is None.
        message: Json = {"role": "assistant", "content": self.content or (None if self.calls else "")}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def _entry(report: Report) -> Json:
    """An entry of a chat's `logprobs`."""

    def of(likely: Likely) -> Json:
        return {"token": likely.text, "logprob": likely.logprob, "bytes": list(likely.bytes)}

    return {**of(report.chosen), "top_logprobs": [of(likely) for likely in report.top]}


def finish_reason(end: Event.End) -> str:
    """OpenAI's `finish_reason`."""
    return "stop" if end.reason in ("eos", "stop") else "length"


def progress(event: Event.Progress) -> Json:
    """llama-server's `prompt_progress`."""
    return {
        "total": event.total,
        "cache": event.cached,
        "processed": event.processed,
        "time_ms": event.time_ms,
    }


def timings(of: Timings) -> Json:
    """llama-server's `timings`, and how long the request waited."""
    # The first token comes from the prompt's step.
    n_timed = max(of.n_predicted - 1, 0)
    found: Json = {
        "cache_n": of.n_cached,
        "prompt_n": of.n_prompt,
        "prompt_ms": of.prompt_ms,
        "prompt_per_token_ms": _ratio(of.prompt_ms, of.n_prompt),
        "prompt_per_second": _ratio(of.n_prompt * 1e3, of.prompt_ms),
        "predicted_n": of.n_predicted,
        "predicted_ms": of.predicted_ms,
        "predicted_per_token_ms": _ratio(of.predicted_ms, n_timed),
        "predicted_per_second": _ratio(n_timed * 1e3, of.predicted_ms),
        "queued_ms": of.queued_ms,
        "preempted_n": of.n_preempted,
    }
    if of.n_drafted > 0:
        found |= {"draft_n": of.n_drafted, "draft_n_accepted": of.n_accepted}
    return found


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else 0.0
