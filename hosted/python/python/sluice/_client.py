"""Requests to the routes of `sluice serve`, answered in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice._native import Context, Model, RefusedError, Reply, Sampler, Service

Json = dict[str, Any]
"""An object of JSON."""

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

    def __init__(self, flags: Sequence[str], log: Callable[[str], None] | None = None) -> None:
        """Loads what `flags` (those of `sluice serve`) name. Ctrl-C ends it.

        Raises:
            ValueError: a flag is wrong, or a model cannot be loaded.
        """
        # There are no connections to keep alive, and callers limit themselves.
        self._service: Service | None = Service(["--sse-ping-interval", "0", *flags], log)

    @property
    def service(self) -> Service:
        """The engine's end.

        Raises:
            ServiceError: it was closed.
        """
        if self._service is None:
            raise _closed()
        return self._service

    def close(self) -> None:
        """Ends what runs and frees the memory."""
        service, self._service = self._service, None
        if service is not None:
            service.close()

    def model(self, name: str | None = None) -> Model:
        """The file of a model: its vocabulary and what it says of itself."""
        return self.service.model(name)

    def context(self, *, all_logits: bool = False) -> Context:
        """A text that is evaluated step by step."""
        return self.service.context(None, all_logits)

    def sampler(self, body: Json) -> Sampler:
        """What would choose the tokens of a request to `/completion`."""
        return self.service.sampler(_encoded(body))

    def get(self, path: str) -> Any:
        """What a route says that needs no body."""
        return _whole(self.service.call(path))

    def post(
        self,
        path: str,
        body: Json,
        processors: Sequence[Callback] = (),
        stopping: Sequence[Callback] = (),
    ) -> Any:
        """The answer to a request, when it is complete.

        Raises:
            RequestError, ServiceError: it was refused, or failed.
        """
        return _whole(self.call(path, body, processors, stopping))

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
            return self.service.embed(tokens, kind, normalize=normalize, dimensions=dimensions, model=model)
        except OverflowError as error:
            raise RequestError(f"a text has a number that is not a token: {error}", param="input") from None
        except RefusedError as error:
            raise _of_kind(*error.args) from None

    def call(
        self,
        path: str,
        body: Json,
        processors: Sequence[Callback] = (),
        stopping: Sequence[Callback] = (),
    ) -> Reply:
        """Begins a request and does not wait for it: `result` of it does. Dropped, its work ends."""
        return self.service.call(path, _encoded(body), list(processors), list(stopping))

    def stream(
        self,
        path: str,
        body: Json,
        processors: Sequence[Callback] = (),
        stopping: Sequence[Callback] = (),
    ) -> Iterator[Any]:
        """The chunks of an answer as they come. A loop that is left ends the work.

        Raises:
            RequestError, ServiceError: at once where the request is refused.
        """
        reply = self.call(path, {**body, "stream": True}, processors, stopping)
        status = _status(reply)
        if status != 200:
            raise _error(status, _joined(reply))
        return _chunks(reply)

    async def apost(
        self,
        path: str,
        body: Json,
        processors: Sequence[Callback] = (),
        stopping: Sequence[Callback] = (),
    ) -> Any:
        """As `post`, for asyncio. A task that is cancelled ends the work."""
        reply = self.call(path, body, processors, stopping)
        status, whole = await _astatus(reply), await _rest(reply)
        reply.check()
        return _answer(status, whole)

    async def astream(
        self,
        path: str,
        body: Json,
        processors: Sequence[Callback] = (),
        stopping: Sequence[Callback] = (),
    ) -> AsyncIterator[Any]:
        """As `stream`, for asyncio."""
        reply = self.call(path, {**body, "stream": True}, processors, stopping)
        status = await _astatus(reply)
        if status != 200:
            raise _error(status, await _rest(reply))
        return _achunks(reply)


def result(reply: Reply) -> Any:
    """The answer of a request that was begun with `Client.call`, when it is complete."""
    return _whole(reply)


def _encoded(body: Json) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"a text is not Unicode: {error}") from None
    except ValueError:
        strange = [name for name, value in body.items() if not _is_json(value)]
        raise RequestError(f"{', '.join(strange)}: a number is not finite", param=strange[0]) from None


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def _whole(reply: Reply) -> Any:
    status = _status(reply)
    return _answer(status, _joined(reply))


def _joined(reply: Reply) -> bytes:
    try:
        return b"".join(reply)
    except EOFError:
        raise _closed() from None


def _status(reply: Reply) -> int:
    try:
        return reply.status()
    except EOFError:
        raise _closed() from None


async def _astatus(reply: Reply) -> int:
    status = await _next(reply)
    if status is None:
        raise _closed()
    return int(status)


async def _rest(reply: Reply) -> bytes:
    parts = []
    while (part := await _next(reply)) is not None:
        parts.append(part)
    return b"".join(parts)


def _closed() -> ServiceError:
    return ServiceError("the model was closed", 503, "unavailable_error")


def _answer(status: int, body: bytes) -> Any:
    if status != 200:
        raise _error(status, body)
    try:
        return json.loads(body)
    except ValueError:
        # It was cut.
        raise _closed() from None


def _error(status: int, body: bytes) -> Exception:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return ServiceError(body.decode(errors="replace") or f"status {status}", status)
    return _said(error, status)


def _said(error: Json, status: int) -> Exception:
    message, kind = str(error.get("message", "")), str(error.get("type", ""))
    code = error.get("code")
    status = code if isinstance(code, int) else status
    if 400 <= status < 500 and status != 429:
        return RequestError(message, status, kind, error.get("param"))
    return ServiceError(message, status, kind)


_KINDS = {
    "Invalid": (400, "invalid_request_error"),
    "TooLong": (400, "exceed_context_size_error"),
    "NotFound": (404, "not_found_error"),
    "Busy": (429, "rate_limit_error"),
    "Unsupported": (501, "not_supported_error"),
    "Unavailable": (503, "unavailable_error"),
    "Late": (504, "timeout_error"),
}
"""The status and the type of a kind of error, as the server writes them."""


def _of_kind(message: str, kind: str, field: str | None) -> Exception:
    status, name = _KINDS.get(kind, (500, "server_error"))
    if status in (400, 404):
        return RequestError(message, status, name, field)
    return ServiceError(message, status, name)


class _Events:
    """The chunks in the bytes of a stream."""

    def __init__(self) -> None:
        self._is_whole = False

    def of(self, part: bytes) -> Iterator[Any]:
        for line in part.split(b"\n\n"):
            if line == b"data: [DONE]":
                self._is_whole = True
            elif line.startswith(b"data: "):
                chunk = json.loads(line[6:])
                if isinstance(chunk, dict) and "error" in chunk:
                    raise _said(chunk["error"], 500)
                # llama-server's own route says so in its last chunks.
                self._is_whole = chunk.get("stop") is True
                yield chunk

    def end(self) -> None:
        if not self._is_whole:
            raise _closed()


def _chunks(reply: Reply) -> Iterator[Any]:
    events = _Events()
    while (part := _part(reply)) is not None:
        try:
            yield from events.of(part)
        except ServiceError:
            # What a callback raised says more than that it did.
            reply.check()
            raise
    events.end()


def _part(reply: Reply) -> bytes | None:
    try:
        return next(reply, None)
    except EOFError:
        raise _closed() from None


async def _achunks(reply: Reply) -> AsyncIterator[Any]:
    events = _Events()
    while (part := await _next(reply)) is not None:
        try:
            for chunk in events.of(part):
                yield chunk
        except ServiceError:
            reply.check()
            raise
    reply.check()
    events.end()


async def _next(reply: Reply) -> Any:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(part: Any) -> None:
        if not future.done():
            future.set_result(part)

    def tell(part: Any) -> None:
        # A loop that has ended waits for nothing.
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, part)

    reply.on_next(tell)
    return await future
