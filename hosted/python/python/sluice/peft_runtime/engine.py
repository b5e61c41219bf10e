"""The engine: a model and its adapters in memory, which runs batches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from sluice import _client, _logging
from sluice._folder import as_gguf
from sluice._native import Event, Tokenizer
from sluice.peft_runtime import metrics
from sluice.peft_runtime.requests import InferenceRequest, InferenceTraceConfig, RequestBatch

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class RequestResult:
    """The result of a request. Times are in seconds.

    `queue_s`: from submission to its first step. `ttft_s`: from submission to its first sampled token.
    `generate_s`: until its end. `tokenize_s`: its share of the batch's tokenization. `stop_type` is `limit`,
    `eos`, `word`, or `none`.
    """

    output: str
    n_prompt_tokens: int
    n_new_tokens: int
    stop_type: str
    tokenize_s: float
    queue_s: float
    ttft_s: float
    generate_s: float


@dataclass(frozen=True)
class BatchResult:
    """The results of a batch: one per request, in order, and the metrics."""

    results: list[RequestResult]
    metrics: metrics.Iteration

    @property
    def outputs(self) -> list[str]:
        """The generated texts, in the order of the requests."""
        return [result.output for result in self.results]


class InferenceEngine:
    """A model and its adapters in memory. Several threads may run batches at the same time.

    `model` is a GGUF or `.slc` file, or a Hugging Face folder, which is converted once (`sluice._folder`) with
    `dtype` as the type of its weights. `adapters` maps names to PEFT folders or GGUF files. `n_ctx`: context size of all
    texts together, by default the model's. `n_parallel`: number of texts at once, at least 1; others wait.
    `telemetry_csv`: a file for the time of each stage, complete once the engine is closed. `log` is called with each
    line of the log.

    Environment variables apply to arguments that are None: `INFENG_NUM_THREADS` to `n_threads`, `INFENG_TOK_THREADS` to
    `n_tokenizer_threads`, `INFENG_NUM_INTEROP_THREADS` to the number of requests prepared at once.
    `INFENG_TOKEN_CACHE=0` disables the cache of tokenized prompts.

    Raises:
        FileNotFoundError, ValueError, OSError: A file is missing or invalid, or a number is; the message names it.
    """

    def __init__(
        self,
        model: PathLike,
        adapters: Mapping[str, PathLike] | None = None,
        *,
        dtype: str | None = None,
        n_ctx: int | None = None,
        n_parallel: int = 16,
        n_threads: int | None = None,
        n_tokenizer_threads: int | None = None,
        telemetry_csv: PathLike | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        for name, value in {"n_ctx": n_ctx, "n_parallel": n_parallel, "n_threads": n_threads}.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, expected 1 or more")
        self.adapters = tuple(adapters or ())
        _check_names(adapters or {})
        path = as_gguf(model, dtype, log)
        self._telemetry = Path(telemetry_csv) if telemetry_csv is not None else None
        if self._telemetry is not None:
            self._telemetry.parent.mkdir(parents=True, exist_ok=True)
        arguments = {
            "model": path,
            "alias": metrics.BASE,
            "n_ctx": n_ctx,
            "n_parallel": n_parallel,
            "n_threads": n_threads or _number("INFENG_NUM_THREADS"),
            "threads_http": _number("INFENG_NUM_INTEROP_THREADS"),
            "max_queue": 2**31 - 1,
            "adapters": adapters,
            "telemetry_csv": self._telemetry,
        }
        self._stages: list[tuple[str, float]] = []
        self._tokenizer_threads = n_tokenizer_threads or _number("INFENG_TOK_THREADS")
        keeps = os.environ.get("INFENG_TOKEN_CACHE", "").lower() not in ("0", "false", "off", "no")
        self._tokenizer = Tokenizer(path) if keeps else Tokenizer(path, cache_bytes=0)
        self._client = _client.Client(arguments, _logging.log if log is None else log)

    def generate(self, batch: RequestBatch) -> list[str]:
        """Generates the continuation of each prompt, in the order of the requests.

        Raises:
            ValueError: A request names an adapter that does not exist or does not match the model.
        """
        return self.run(batch).outputs

    def run(self, batch: RequestBatch) -> BatchResult:
        """Runs a batch, and returns its outputs and metrics. Raises as `generate`."""
        return self._run(batch, cache_prompt=True)

    def benchmark(self, batch: RequestBatch, iterations: int = 1, warmup: int = 0) -> metrics.Benchmark:
        """Runs a batch `warmup` + `iterations` times without reusing results, and measures the latter.

        Raises:
            ValueError: As `generate`, or `iterations` is below 1.
        """
        if iterations < 1:
            raise ValueError(f"iterations is {iterations}, expected 1 or more")
        for _ in range(warmup):
            self._run(batch, cache_prompt=False)
        return metrics.benchmark([self._run(batch, cache_prompt=False).metrics for _ in range(iterations)])

    def close(self) -> None:
        """Stops running requests, frees the memory, and completes the telemetry."""
        self._client.close()
        stages, self._stages = self._stages, []
        if self._telemetry is not None:
            metrics.append_stages(self._telemetry, stages)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.close()
        return False

    def _run(self, batch: RequestBatch, *, cache_prompt: bool) -> BatchResult:
        requests, config = batch.requests, batch.trace_config
        self._check(requests)
        began = time.perf_counter()
        groups: dict[str | None, list[int]] = {}
        for at, request in enumerate(requests):
            groups.setdefault(request.adapter_name, []).append(at)
        tokens, tokenize_s = self._tokens(requests, groups)
        # All are submitted before one is awaited, so that they are computed together.
        answers = []
        for at, request in enumerate(requests):
            body = _body(request, config, at, cache_prompt)
            with _named(at):
                answers.append(self._client.complete({**body, "prompt": tokens[at]}))
        results = []
        for at, (request, answer) in enumerate(zip(requests, answers, strict=True)):
            with _named(at):
                events = _client.whole(answer)
            share = tokenize_s[request.adapter_name] / len(groups[request.adapter_name])
            results.append(_result(events, len(tokens[at]), share))
        latency_s = time.perf_counter() - began
        profiling = [
            _profile(name, tokenize_s[name], [results[at] for at in group]) for name, group in groups.items()
        ]
        n_new = sum(result.n_new_tokens for result in results)
        ttfts_s = [result.ttft_s for result in results]
        if self._telemetry is not None:
            self._note(results, tokenize_s, latency_s)
        return BatchResult(results, metrics.iteration(latency_s, n_new, profiling, ttfts_s))

    def _check(self, requests: Sequence[InferenceRequest]) -> None:
        for at, request in enumerate(requests, 1):
            name = request.adapter_name
            if name is not None and name not in self.adapters:
                known = ", ".join(self.adapters) or "none"
                raise ValueError(f"request {at}: no adapter is named {name!r}; available: {known}")

    def _tokens(
        self, requests: Sequence[InferenceRequest], groups: Mapping[str | None, list[int]]
    ) -> tuple[list[list[int]], dict[str | None, float]]:
        """The tokens of each prompt, and the tokenization time of each adapter in seconds."""
        tokens: list[list[int]] = [[] for _ in requests]
        taken: dict[str | None, float] = {}
        for name, group in groups.items():
            began = time.perf_counter()
            prompts = [requests[at].prompt for at in group]
            encoded = self._tokenizer.encode_batch(
                prompts, parse_special=True, threads=self._tokenizer_threads
            )
            taken[name] = time.perf_counter() - began
            for at, ids in zip(group, encoded, strict=True):
                tokens[at] = ids
        return tokens, taken

    def _note(
        self, results: list[RequestResult], tokenize_s: Mapping[str | None, float], latency_s: float
    ) -> None:
        self._stages += [("runtime.tokenize", seconds) for seconds in tokenize_s.values()]
        for result in results:
            self._stages += [
                ("runtime.queue_wait", result.queue_s),
                ("runtime.ttft", result.ttft_s),
                ("runtime.generate", result.generate_s),
            ]
        self._stages.append(("runtime.batch", latency_s))


@contextmanager
def _named(at: int) -> Iterator[None]:
    """Names the request in its error."""
    try:
        yield
    except _client.RequestError as error:
        raise ValueError(f"request {at + 1}: {error}") from None


def _check_names(adapters: Mapping[str, PathLike]) -> None:
    for name, path in adapters.items():
        if not name or name == metrics.BASE:
            raise ValueError(f"{name!r} cannot be an adapter's name")
        if not Path(path).exists():
            raise FileNotFoundError(f"adapter {name!r}: {os.fspath(path)}: no such file or folder")


def _number(variable: str) -> int | None:
    """The number in an environment variable; None if it is not set or 0."""
    given = os.environ.get(variable, "").strip()
    if given and not given.isdecimal():
        raise ValueError(f"{variable} is {given!r}, expected a number")
    return int(given or 0) or None


def _body(
    request: InferenceRequest, config: InferenceTraceConfig, at: int, cache_prompt: bool
) -> dict[str, Any]:
    most = config.max_new_tokens if request.max_new_tokens is None else request.max_new_tokens
    if most < 1:
        raise ValueError(f"request {at + 1}: max_new_tokens is {most}, expected 1 or more")
    body: dict[str, Any] = {
        "model": request.adapter_name or metrics.BASE,
        "n_predict": most,
        "temperature": config.temperature if config.do_sample else 0.0,
        # Only the configuration takes effect.
        "top_p": config.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
        "stop": list(config.stop_sequences or ()),
        "cache_prompt": cache_prompt,
    }
    if config.seed is not None:
        body["seed"] = config.seed + at
    return body


def _result(events: Sequence[Event], n_prompt: int, tokenize_s: float) -> RequestResult:
    (end,) = (event for event in events if isinstance(event, Event.End))
    timings = end.timings
    queue_s, prompt_s, predicted_s = (
        ms / 1e3 for ms in (timings.queued_ms, timings.prompt_ms, timings.predicted_ms)
    )
    return RequestResult(
        output="".join(event.text for event in events if isinstance(event, Event.Piece)),
        n_prompt_tokens=n_prompt,
        n_new_tokens=timings.n_predicted,
        stop_type={"eos": "eos", "stop": "word"}.get(end.reason, "limit"),
        tokenize_s=tokenize_s,
        queue_s=queue_s,
        ttft_s=queue_s + prompt_s,
        generate_s=queue_s + prompt_s + predicted_s,
    )


def _profile(name: str | None, tokenize_s: float, results: list[RequestResult]) -> metrics.Profile:
    return {
        "adapter": metrics.BASE if name is None else name,
        "tokenize_s": tokenize_s,
        "generate_s": max(result.generate_s for result in results),
        "num_requests": len(results),
        "ttft_s": metrics.mean([result.ttft_s for result in results]),
    }
