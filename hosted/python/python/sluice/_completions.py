"""Completions and chats: `Llama`'s answers in OpenAI's format."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Unpack, cast

from sluice import _prompts, _requests
from sluice._arguments import (
    ChatArguments,
    ChatHandler,
    ChatOptions,
    CompletionArguments,
    Criteria,
    Grammar,
    Messages,
    MoreOptions,
    Processors,
    Prompt,
)
from sluice._client import Client, RequestError, achunks, areply, chunks, reply
from sluice._formats import stops_of
from sluice._native import Answer
from sluice._replies import ChatWriter, CompletionWriter, Json, Writer
from sluice._requests import as_functions
from sluice.callbacks import listed
from sluice.llama_types import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
)


class Completions:
    """Completions of texts, and answers in conversations.

    Replies are OpenAI's objects as dictionaries; with `stream=True` an iterator of chunks. Leaving the loop stops the
    work. Further fields of a reply are the server's: `seed`, `system_fingerprint`, `timings`.
    """

    model_path: str
    last_n_tokens_size: int
    seed: int | None
    chat_format: str | None
    chat_handler: ChatHandler | None
    _adapters: set[str]

    @property
    def client(self) -> Client:
        """The engine."""
        raise NotImplementedError

    def create_completion(
        self,
        prompt: Prompt,
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int | None = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: Criteria = None,
        logits_processor: Processors = None,
        grammar: Grammar = None,
        logit_bias: Mapping[int, float] | Mapping[str, float] | None = None,
        **more: Unpack[MoreOptions],
    ) -> Completion | Iterator[CompletionChunk]:
        """Continues a text.

        Args:
            prompt: A text, or its tokens.
            suffix: The text that follows; for models that can fill in the middle.
            max_tokens: Maximum number of tokens to generate; None, 0 or less for as many as the context has room for.
            temperature, top_p, min_p, typical_p, top_k: Sampling; temperature 0 takes the most likely token.
            logprobs: Number of most likely tokens to report for each token, 0 to 100.
            echo: Begin the answer with the prompt; with `logprobs`, including those of its tokens, null for the first.
            stop: Strings that end the answer and are not part of it.
            frequency_penalty, presence_penalty, repeat_penalty: Penalties for repetition over the last
            `last_n_tokens_size` tokens.
            stream: Return an iterator of chunks.
            seed: The same seed gives the same text, and the seeds of later completions follow from it. None takes the
            next one after the model's, or else a random one.
            mirostat_mode, mirostat_tau, mirostat_eta: Mirostat 1 or 2 instead of the other samplers.
            model: The name of an adapter to use; any other name is only a label.
            stopping_criteria: Called with tokens and logits; true ends the text.
            logits_processor: Called with the tokens so far, uint32 (n_tokens), and the logits, float32 (n_vocab);
                returns logits.
            grammar: A constraint on the answer: a `LlamaGrammar`, or GBNF.
            logit_bias: Added to the logits of tokens; minus infinity excludes a token.
            tfs_z: 1; tail-free sampling is not supported.
            more: Other options, such as `n`, `cache_salt`, `n_keep`, `samplers`.

        Returns:
            `{"id", "object", "created", "model", "choices": [{"text", "index", "logprobs", "finish_reason"}], "usage"}`.

        Raises:
            RequestError: An argument is invalid (`param` names it), or the prompt does not fit.
            ServiceError: The request could not be answered.
        """
        answer, writer = self._complete(locals())
        if stream:
            return self._labelled(chunks(answer, writer), model)
        whole: Completion = self._label(reply(answer, writer), model)
        return whole

    async def acreate_completion(
        self, prompt: Prompt, **settings: Unpack[CompletionArguments]
    ) -> Completion | AsyncIterator[CompletionChunk]:
        """As `create_completion`, for asyncio: `stream=True` returns an asynchronous iterator.

        Cancelling the task stops the work.
        """
        model = settings.get("model")
        given = {**_defaults(Completions.create_completion), **settings, "prompt": prompt}
        answer, writer = self._complete(given)
        if settings.get("stream"):
            return self._alabelled(await achunks(answer, writer), model)
        whole: Completion = self._label(await areply(answer, writer), model)
        return whole

    def create_chat_completion(
        self,
        messages: Messages,
        functions: Sequence[Json] | None = None,
        function_call: str | Json | None = None,
        tools: Sequence[Json] | None = None,
        tool_choice: str | Json | None = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int | None = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        response_format: Json | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: Processors = None,
        grammar: Grammar = None,
        logit_bias: Mapping[int, float] | Mapping[str, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        **more: Unpack[ChatOptions],
    ) -> ChatCompletion | Iterator[ChatCompletionChunk]:
        """Answers in a conversation.

        Args:
            messages: `{"role", "content"}` in OpenAI's format, including tool calls and their results.
            functions, function_call: Former names of `tools` and `tool_choice`.
            tools: Functions that the model may call, with JSON schemas that constrain their arguments.
            tool_choice: `auto`, `none`, `required`, or the function to call.
            response_format: `{"type": "json_object", "schema": …}`, or OpenAI's `json_schema`.
            logprobs, top_logprobs: Report the log-probability of each token and of this many others, 0 to 100.
            more: Other options, such as `chat_template_kwargs`, `reasoning_budget`, `n`.

        The remaining arguments are `create_completion`'s.

        Returns:
            `{"id", "object", "created", "model", "choices": [{"index", "message", "logprobs", "finish_reason"}],
            "usage"}`.

        Raises:
            RequestError: An argument is invalid (`param` names it), or the prompt does not fit.
            ServiceError: The request could not be answered.
        """
        given = dict(locals())
        if self.chat_handler is not None:
            named = {name: value for name, value in given.items() if name not in ("self", "more")}
            handled: ChatCompletion = self.chat_handler(llama=self, **named, **more)
            return handled
        answer, writer = self._chat(given)
        if stream:
            written = self._labelled(chunks(answer, writer), model)
            return map(as_functions, written) if functions else written
        whole: ChatCompletion = self._label(reply(answer, writer), model)
        return cast("ChatCompletion", as_functions(whole)) if functions else whole

    async def acreate_chat_completion(
        self, messages: Messages, **settings: Unpack[ChatArguments]
    ) -> ChatCompletion | AsyncIterator[ChatCompletionChunk]:
        """As `create_chat_completion`, for asyncio: `stream=True` returns an asynchronous iterator.

        A `chat_handler` answers in a thread.
        """
        if self.chat_handler is not None:
            answer_in_thread: Callable[..., Any] = self.create_chat_completion
            handled: ChatCompletion = await asyncio.to_thread(answer_in_thread, messages, **settings)
            return handled
        model, functions = settings.get("model"), settings.get("functions")
        given = {**_defaults(Completions.create_chat_completion), **settings, "messages": messages}
        answer, writer = self._chat(given)
        if settings.get("stream"):
            written = self._alabelled(await achunks(answer, writer), model)
            return _afunctions(written) if functions else written
        whole: ChatCompletion = self._label(await areply(answer, writer), model)
        return cast("ChatCompletion", as_functions(whole)) if functions else whole

    def create_chat_completion_openai_v1(self, *args: Any, **kwargs: Any) -> Any:
        """As `create_chat_completion`, with objects of the package openai.

        Raises:
            ImportError: The package is not installed.
        """
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        if kwargs.get("stream"):
            chunks: Any = self.create_chat_completion(*args, **kwargs)
            return (ChatCompletionChunk(**chunk) for chunk in chunks)
        whole: Any = self.create_chat_completion(*args, **kwargs)
        return ChatCompletion(**whole)

    def _complete(self, given: Mapping[str, Any]) -> tuple[Answer, Writer]:
        prompt = given["prompt"]
        arguments: Json = {
            "prompt": prompt if isinstance(prompt, str) else _listed(prompt),
            **self._sampling(given),
            **_requests.ends(given["max_tokens"], given["stop"]),
            **self._more(given, Completions.create_completion),
            **{name: given[name] for name in ("suffix", "logprobs")},
        }
        if given["echo"]:
            arguments["echo"] = True
        writer = CompletionWriter(**_stream_options(arguments))
        callbacks = (listed(given["logits_processor"]), listed(given["stopping_criteria"]))
        return self.client.complete(arguments, *callbacks), writer

    def _chat(self, given: Mapping[str, Any]) -> tuple[Answer, Writer]:
        arguments: Json = {
            "messages": list(given["messages"]),
            **_requests.tools(
                given["functions"], given["function_call"], given["tools"], given["tool_choice"]
            ),
            **self._sampling(given),
            **_requests.ends(given["max_tokens"], self._stops(given["stop"])),
            **self._more(given, Completions.create_chat_completion),
            **{name: given[name] for name in ("response_format", "logprobs", "top_logprobs")},
        }
        writer = ChatWriter(**_stream_options(arguments))
        return self.client.chat(arguments, listed(given["logits_processor"])), writer

    def _stops(self, stop: str | Sequence[str] | None) -> list[str]:
        """The strings that end an answer, including those that end a turn of the chat format."""
        asked = [stop] if isinstance(stop, str) else list(stop or ())
        return [*asked, *(text for text in stops_of(self.chat_format) if text not in asked)]

    def _sampling(self, given: Mapping[str, Any]) -> Json:
        seed = self._drawn(given["seed"])
        return _requests.sampling(
            last_n_tokens_size=self.last_n_tokens_size,
            seed=seed,
            **{name: given[name] for name in _SAMPLING},
        )

    def _drawn(self, given: int | None) -> int | None:
        """The seed of a completion: the given one, or the next one after the model's; None for a random one."""
        with _DRAWING:
            if given is not None:
                self.seed = _requests.seed_of(given)
            elif self.seed is not None:
                # As llama-cpp-python does it, so that its sequences of seeds are ours.
                self.seed = random.Random(self.seed).randint(0, 1 << 32)
            return self.seed

    def _more(self, given: Mapping[str, Any], of: Callable[..., Any]) -> Json:
        """Arguments that the method does not have, whether to stream, and the adapter."""
        own = of.__code__.co_varnames[: of.__code__.co_argcount]
        others = {name: value for name, value in given.items() if name not in own and name != "more"}
        more = {**others, **given.get("more", {}), "stream": bool(given["stream"])}
        if given["model"] in self._adapters:
            more["model"] = given["model"]
        return more

    def _label(self, reply: Json, model: str | None) -> Any:
        reply["model"] = self.model_path if model is None else model
        return reply

    def _labelled(self, chunks: Iterator[Json], model: str | None) -> Iterator[Any]:
        for chunk in chunks:
            yield self._label(chunk, model)

    async def _alabelled(self, chunks: AsyncIterator[Json], model: str | None) -> AsyncIterator[Any]:
        async for chunk in chunks:
            yield self._label(chunk, model)


def _stream_options(arguments: Json) -> Json:
    """How answers are written; takes `stream_options` out of the arguments."""
    options = arguments.pop("stream_options", None) or {}
    if not isinstance(options, Mapping):
        raise _refused("stream_options", options, "a dictionary")
    wanted = options.get("include_usage") or False
    if not isinstance(wanted, bool):
        raise _refused("include_usage", wanted, "True or False")
    return {"is_stream": arguments["stream"], "include_usage": wanted}


def _refused(name: str, value: object, expected: str) -> RequestError:
    return RequestError(f"{name}: {value!r} is not {expected}", 400, "invalid_request_error", name)


def _listed(prompt: object) -> list[Any]:
    found = _prompts.items(prompt)
    if found is None:
        raise TypeError(f"prompt is {_prompts.shown(prompt)}, expected a string or a list of token ids")
    return found


async def _afunctions(chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for chunk in chunks:
        yield as_functions(chunk)


def _defaults(method: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of a method's arguments."""
    names = method.__code__.co_varnames[: method.__code__.co_argcount]
    values = method.__defaults__ or ()
    return dict(zip(names[-len(values) :], values, strict=True))


_DRAWING = threading.Lock()
"""Seeds of concurrent completions follow each other."""

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "mirostat_mode",
    "mirostat_tau",
    "mirostat_eta",
    "tfs_z",
    "logit_bias",
    "grammar",
)
