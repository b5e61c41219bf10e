"""Requests to the engine in this process, and their events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice._native import Answer, ChatPrompt, Context, Event, Model, Ranking, RefusedError, Sampler, Service
from sluice._replies import Json, Writer

Callback = Callable[..., Any]


class RequestError(ValueError):
    """A request was refused: a field is wrong, or the prompt does not fit.

    `status` is that of HTTP, `type` OpenAI's kind of error, `param` the field that is wrong, if it is one.
    """

    def __init__(self, message: str, status: int = 400, type: str = "", param: str | None = None) -> None:  # noqa: A002
        super().__init__(message)
        self.status = status
        self.type = type
        self.param = param


class ServiceError(RuntimeError):
    """A request was right and could not be answered: too many wait, or the model was closed."""

    def __init__(self, message: str, status: int = 500, type: str = "") -> None:  # noqa: A002
        super().__init__(message)
        self.status = status
        self.type = type


class Client:
    """Models in memory and the engine that runs them.

    All methods may be called from any thread, at the same time: what is asked together is computed together, and
    each answer is the one that it has alone.
    """

    def __init__(self, arguments: dict[str, Any], log: Callable[[str], None] | None = None) -> None:
        """Loads a model; `arguments` as `_native.Service` takes them. Ctrl-C ends it.

        Raises:
            ValueError, TypeError: An argument is invalid, or the model cannot be loaded.
        """
        self._service: Service | None = Service(arguments, log)

    @property
    def service(self) -> Service:
        """The engine's end.

        Raises:
            ServiceError: it was closed.
        """
        if self._service is None:
            raise ServiceError("the model was closed", 503, "unavailable_error")
        return self._service

    def close(self) -> None:
        """Ends what runs and frees the memory."""
        if self._service is not None:
            # In a callback of its own it raises, and stays open.
            self._service.close()
            self._service = None

    def model(self, name: str | None = None) -> Model:
        """The file of a model: its vocabulary and what it says of itself."""
        return self.service.model(name)

    def context(self, *, all_logits: bool = False) -> Context:
        """A text that is evaluated step by step."""
        return self.service.context(None, all_logits)

    def sampler(self, arguments: Json) -> Sampler:
        """What would choose the tokens of a request with these arguments."""
        with refusals():
            return self.service.sampler(arguments)

    def n_ctx(self) -> int:
        """Tokens of all texts at once, and of one if there are no others."""
        return self.service.n_ctx()

    def complete(
        self, arguments: Json, processors: Sequence[Callback] = (), stopping: Sequence[Callback] = ()
    ) -> Answer:
        """Starts continuing texts. Dropping the answer ends the work.

        Raises:
            RequestError, TypeError: an argument is wrong. What only the model can tell is raised by the answer.
        """
        with refusals():
            return self.service.complete(arguments, list(processors), list(stopping))

    def chat(self, arguments: Json, processors: Sequence[Callback] = ()) -> Answer:
        """Starts answering a conversation, as `complete` does."""
        with refusals():
            return self.service.chat(arguments, list(processors))

    def prompt(self, arguments: Json) -> ChatPrompt:
        """The prompt of a conversation."""
        with refusals():
            return self.service.prompt(arguments)

    def rank(self, arguments: Json) -> Ranking:
        """The scores of documents for a query."""
        with refusals():
            return self.service.rank(arguments)

    def load_adapter(self, name: str, path: str, *, replaces: bool) -> None:
        """Reads an adapter, which requests can name then."""
        with refusals():
            self.service.load_adapter(name, path, replaces)

    def embed(
        self,
        tokens: Sequence[Sequence[int]],
        kind: str = "texts",
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        model: str | None = None,
    ) -> NDArray[np.float32]:
        """Vectors of texts, which are tokens.

        They are float32 (n_texts, n_embd) in the engine's own memory; of kind `tokens`, without pooling, (n_tokens,
        n_embd) of all texts; of kind `scores` (n_texts, 1) of a reranker's head.

        Raises:
            RequestError, ServiceError: it was refused, or failed.
        """
        try:
            with refusals():
                return self.service.embed(
                    tokens, kind, normalize=normalize, dimensions=dimensions, model=model
                )
        except OverflowError as error:
            raise RequestError(f"a text has a number that is not a token: {error}", param="input") from None


def reply(answer: Answer, writer: Writer) -> Json:
    """The reply to a request, when it is complete.

    Raises:
        RequestError, ServiceError: the request was refused, or failed.
    """
    return _last(_read(answer, all=True), writer)


async def areply(answer: Answer, writer: Writer) -> Json:
    """As `reply`, for asyncio. A task that is cancelled ends the work."""
    return _last(await _aread(answer, all=True), writer)


def chunks(answer: Answer, writer: Writer) -> Iterator[Json]:
    """The chunks of an answer as they come. Leaving the loop ends the work.

    Raises:
        RequestError, ServiceError: at once if the request is refused.
    """
    first = _read(answer)
    return (chunk for event in _events(answer, first) for chunk in writer.write(event))


async def achunks(answer: Answer, writer: Writer) -> AsyncIterator[Json]:
    """As `chunks`, for asyncio."""
    first = await aevents(answer)
    return (chunk async for event in first for chunk in writer.write(event))


def whole(answer: Answer) -> list[Event]:
    """All events of an answer, when it is complete.

    Raises:
        RequestError, ServiceError: the request was refused, or failed.
    """
    return _read(answer, all=True)


async def aevents(answer: Answer) -> AsyncIterator[Event]:
    """The events of an answer as they come, for asyncio.

    Raises:
        RequestError, ServiceError: at once if the request is refused.
    """
    return _aevents(answer, await _aread(answer))


def _last(events: list[Event], writer: Writer) -> Json:
    written = [chunk for event in events for chunk in writer.write(event)]
    return written[-1]


def _events(answer: Answer, events: list[Event]) -> Iterator[Event]:
    while events:
        yield from events
        events = _read(answer)


async def _aevents(answer: Answer, events: list[Event]) -> AsyncIterator[Event]:
    while events:
        for event in events:
            yield event
        events = await _aread(answer)


def _read(answer: Answer, *, all: bool = False) -> list[Event]:  # noqa: A002
    with refusals():
        return answer.read(all)


async def _aread(answer: Answer, *, all: bool = False) -> list[Event]:  # noqa: A002
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[Event]] = loop.create_future()

    def settle(events: list[Event], error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(events)
        else:
            future.set_exception(error)

    def tell(events: list[Event], error: Exception | None) -> None:
        # A loop that has ended waits for nothing.
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, events, error)

    answer.on_read(tell, all)
    with refusals():
        return await future


@contextmanager
def refusals() -> Iterator[None]:
    """Raises the native half's refusals as this package's exceptions."""
    try:
        yield
    except RefusedError as error:
        raise refusal(error) from None


def refusal(error: RefusedError) -> RequestError | ServiceError:
    """A refusal of the native half as an exception of this package."""
    message, kind, argument = error.args
    status, name = _KINDS.get(kind, (500, "server_error"))
    if status in (400, 404):
        return RequestError(message, status, name, argument)
    return ServiceError(message, status, name)


_KINDS = {
    # A text that is not Unicode, or a number that is not finite.
    "": (400, ""),
    "Invalid": (400, "invalid_request_error"),
    "TooLong": (400, "exceed_context_size_error"),
    "Forbidden": (403, "permission_error"),
    "NotFound": (404, "not_found_error"),
    "Busy": (429, "rate_limit_error"),
    "Unsupported": (501, "not_supported_error"),
    "Unavailable": (503, "unavailable_error"),
    "Late": (504, "timeout_error"),
}
"""The status and the type of a kind of error, as the server writes them."""
