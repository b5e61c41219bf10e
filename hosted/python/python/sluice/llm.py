"""Batches of prompts, with vLLM's interface."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, Unpack

from sluice import _formats, _llm_options, _logging, _prompts
from sluice._batch import (
    Asked,
    OnError,
    Prompt,
    Work,
    all_prompts,
    mixed,
    one_for_each,
    output_of,
    parts_of,
    prepared,
    prompt_of,
    run,
    tokens_of,
)
from sluice._client import Client, RequestError
from sluice._llm_tokenizer import LLMTokenizer, template_fields
from sluice._progress import progress
from sluice._replies import Json
from sluice.lora_request import LoRARequest
from sluice.outputs import (
    EmbeddingOutput,
    EmbeddingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from sluice.pooling_params import PoolingParams
from sluice.sampling_params import SamplingParams

EMBEDDED_AT_ONCE = 256


class LLM:
    """A model in memory that processes batches of prompts.

    The prompts of a call are computed together, `max_num_seqs` at a time, and each text equals the one that the prompt
    would give alone. Methods may be called from any thread.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        max_model_len: int | None = None,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int | None = None,
        kv_cache_tokens: int | None = None,
        dtype: str = "auto",
        kv_cache_dtype: str = "auto",
        seed: int | None = 0,
        enable_prefix_caching: bool | None = True,
        enable_lora: bool = False,
        max_loras: int = 0,
        max_lora_rank: int = 64,
        max_cpu_loras: int = 64,
        chat_template: str | None = None,
        threads: int | None = None,
        log: Callable[[str], None] | None = None,
        **others: Unpack[_llm_options.LLMArguments],
    ) -> None:
        """Loads a model. Ctrl-C cancels it.

        Args:
            model: A GGUF or `.slc` file, a Hugging Face folder, or a Hugging Face repository `user/name[:quant]`.
            max_model_len: Maximum number of tokens of a text and its prompt; by default as the model was trained.
            max_num_seqs: Maximum number of texts at once, at least 1.
            max_num_batched_tokens: Maximum number of tokens per step.
            kv_cache_tokens: Context size of all texts together; by default `max_model_len` for each, but at most one
            text of the model's own length, and one text for a repository. Texts that do not fit wait.
            dtype: Type of the weights of a folder: auto, float32, float16, bfloat16.
            kv_cache_dtype: auto, float32, float16, bfloat16, fp8, q8_0, q4_0.
            seed: The seeds of requests without one are derived from it; None draws one.
            enable_prefix_caching: Cache prompts for later ones with the same prefix.
            enable_lora: Reserve memory for adapters.
            max_loras: Maximum number of different adapters per step; 0 is unlimited.
            max_lora_rank: Maximum rank of adapters.
            max_cpu_loras: Maximum number of adapters in memory.
            chat_template: A template's name or text, instead of the model's own.
            threads: Number of threads; by default one per core.
            log: Called with each line of the log; by default it goes to Python's `logging`, as `sluice`.
            others: The options of `sluice.Options` and `sluice.LLMOptions`; and arguments of vLLM without effect on a
            CPU, with a warning if they differ from their defaults. One that would change answers is refused.

        Raises:
            ValueError: An argument is invalid or not supported, or the model cannot be loaded.
            TypeError: The argument is unknown.
        """
        given = _llm_options.llm_options(others)
        options = _llm_options.Settings(
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            kv_cache_tokens=kv_cache_tokens,
            kv_cache_dtype=kv_cache_dtype,
            enable_prefix_caching=enable_prefix_caching is not False,
            enable_lora=enable_lora,
            max_loras=max_loras,
            max_lora_rank=max_lora_rank,
            max_cpu_loras=max_cpu_loras,
            chat_template=chat_template,
            threads=threads,
        )
        arguments = options.arguments(_llm_options.where(model, dtype))
        self._client = Client({**arguments, **given}, _logging.log if log is None else log)
        self._model = self._client.model()
        self._max_model_len = options.text_len(self._model.n_ctx_train)
        self._stops = _formats.stops_of(chat_template)
        self._sampling = _llm_options.sampling(self._model, others.get("generation_config"))
        self._caches = options.enable_prefix_caching
        self._enable_lora = enable_lora
        # Twice as many are queued, so that a free place is taken at once.
        self._n_most = 2 * max_num_seqs + 16
        # Without a seed, texts without a seed of their own differ each time.
        self._seed = random.getrandbits(62) if seed is None else seed
        self._numbers = count()
        self._adapters: dict[str, str] = {}
        self._loading = Lock()

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
        on_error: OnError = "raise",
    ) -> list[RequestOutput]:
        """Generates continuations of prompts, in the order of the prompts. Ctrl-C cancels all of them.

        All prompts are checked before the first step.

        Args:
            prompts: A string, a list of tokens, `{"prompt": text}`, `{"prompt_token_ids": tokens}`, or a list, array,
            column or iterator of those.
            sampling_params: One for all prompts or one for each; by default `get_default_sampling_params()`.
            use_tqdm: Show a progress bar in a terminal or notebook, if `tqdm` is installed; or a function that creates
            one.
            lora_request: One for all prompts or one for each.
            priority: One per prompt, -1000 to 1000; lower values run first.
            on_error: `return` leaves the texts of a prompt that fails out; its output has the `error`.

        Raises:
            ValueError, TypeError: A prompt does not fit, is None or is something else (the message has its index), or
            an argument is invalid; nothing is generated then.
        """

        def read(prompt: Any) -> Prompt:
            return prompt_of(prompt, self._model)

        asked = Asked("prompts", all_prompts(prompts), read, on_error)
        return self._generate(asked, sampling_params, use_tqdm, lora_request, priority)

    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Json] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        on_error: OnError = "raise",
    ) -> list[RequestOutput]:
        """Answers conversations. The answers are the model's text, including tool calls and reasoning.

        Args:
            messages: `[{"role": …, "content": …}, …]`, or a list of those.
            chat_template: Not supported; use `LLM(chat_template=…)`.
            chat_template_content_format: `auto` or `string`.
            add_generation_prompt: End the prompt where the answer begins.
            continue_final_message: The last message is the beginning of the answer.
            tools: Functions that the template describes to the model.
            chat_template_kwargs: Variables of the template.
            sampling_params, use_tqdm, lora_request, on_error: As in `generate`.

        Raises:
            ValueError: See `generate`.
        """
        if chat_template is not None:
            raise ValueError("chat_template: not supported for a single call; use LLM(chat_template=…)")
        if chat_template_content_format not in ("auto", "string"):
            raise ValueError(
                f"chat_template_content_format is {chat_template_content_format!r}, expected 'auto' or 'string'"
            )
        conversations = _prompts.items(messages)
        if not conversations:
            raise ValueError("messages: expected a list of messages, or a list of such lists")
        if isinstance(conversations[0], Mapping):
            conversations = [conversations]
        fields = template_fields(tools, add_generation_prompt, continue_final_message, chat_template_kwargs)

        def read(conversation: Any) -> Prompt:
            made = self._client.prompt({**fields, "messages": _prompts.items(conversation)})
            own = (made.stop,) if made.stop is not None else ()
            return Prompt(made.tokens, made.text, own + self._stops)

        asked = Asked("messages", conversations, read, on_error)
        return self._generate(asked, sampling_params, use_tqdm, lora_request, None)

    def embed(
        self,
        prompts: Any,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | None = None,
        truncate_prompt_tokens: int | None = None,
        dimensions: int | None = None,
        pooling_params: PoolingParams | None = None,
        on_error: OnError = "raise",
    ) -> list[EmbeddingRequestOutput]:
        """Computes embeddings of length 1, with any model, in the order of the prompts.

        Args:
            prompts: As in `generate`, but names of control tokens are plain text, and `cache_salt` is not allowed.
            truncate_prompt_tokens: Number of tokens to keep from each text's beginning; -1 keeps as many as fit.
            dimensions: Number of components to keep of each vector, at most `n_embd`.
            pooling_params: The same two, and whether vectors have length 1, as one object.
            use_tqdm, lora_request, on_error: As in `generate`.

        Raises:
            ValueError: A text is empty or too long, or the model computes no embeddings.
        """
        pooling = pooling_params or PoolingParams(truncate_prompt_tokens, dimensions)
        keep = pooling.truncate_prompt_tokens
        if keep is not None and keep != -1 and keep < 1:
            raise ValueError(f"truncate_prompt_tokens is {keep}, expected at least 1, or -1")
        if keep is not None:
            keep = self._max_model_len if keep == -1 else keep
        adapter = self._adapter_fields(lora_request).get("model")
        asked = Asked("prompts", all_prompts(prompts), lambda prompt: self._embedded(prompt, keep), on_error)
        outputs = []
        for tokens, error in asked.read():
            vector = EmbeddingOutput([])
            outputs.append(
                EmbeddingRequestOutput(str(next(self._numbers)), vector, tokens or [], error=error)
            )
        good = [output for output in outputs if output.error is None]
        with progress(use_tqdm, len(outputs)) as move:
            for start in range(0, len(good), EMBEDDED_AT_ONCE):
                some = good[start : start + EMBEDDED_AT_ONCE]
                vectors = self._client.embed(
                    [output.prompt_token_ids for output in some],
                    normalize=pooling.normalize is not False,
                    dimensions=pooling.dimensions,
                    model=adapter,
                )
                for output, made in zip(some, vectors, strict=True):
                    output.outputs.embedding = made.tolist()
                    move()
        return outputs

    def score(
        self,
        query: str | Sequence[str],
        documents: str | Sequence[str],
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | None = None,
    ) -> list[ScoringRequestOutput]:
        """Scores how well documents answer a query: one query for all, or one for each. Requires a ranking head.

        All pairs are checked before the first step; `use_tqdm` and `lora_request` are as in `generate`.

        Raises:
            ValueError: The model has no ranking head, the numbers of queries and documents differ, or a document has
            more than `max_model_len` tokens together with its query.
        """
        queries = [query] if isinstance(query, str) else list(query)
        texts = [documents] if isinstance(documents, str) else list(documents)
        if not texts or len(queries) not in (1, len(texts)):
            raise ValueError(f"query: {len(queries)} queries for {len(texts)} documents")
        if not self._model.ranks:
            raise ValueError("the model has no ranking head, so it is not a reranker")
        adapter = self._adapter_fields(lora_request).get("model")
        pairs = zip(queries * len(texts) if len(queries) == 1 else queries, texts, strict=True)
        asked = Asked("documents", list(pairs), lambda pair: self._paired(*pair), "raise")
        tokens = [found for found, _ in asked.read() if found is not None]
        outputs = []
        with progress(use_tqdm, len(tokens)) as move:
            for start in range(0, len(tokens), EMBEDDED_AT_ONCE):
                some = tokens[start : start + EMBEDDED_AT_ONCE]
                for (score,) in self._client.embed(some, "scores", model=adapter).tolist():
                    outputs.append(ScoringRequestOutput(str(next(self._numbers)), ScoringOutput(score)))
                    move()
        return outputs

    def get_default_sampling_params(self) -> SamplingParams:
        """What the file's authors recommend, or else vLLM's neutral defaults; with `generation_config="vllm"` these."""
        return self._sampling.clone()

    def get_tokenizer(self) -> LLMTokenizer:
        """The model's vocabulary and chat template."""
        return LLMTokenizer(self._client, self._model)

    def close(self) -> None:
        """Stops all work and frees the memory."""
        self._client.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        why = _llm_options.NO_METHODS.get(name)
        what = f"LLM.{name}: not supported; {why}" if why else f"LLM has no attribute {name!r}"
        raise AttributeError(what)

    def __repr__(self) -> str:
        return f"LLM({self._model.path!r}, max_model_len={self._max_model_len})"

    def _generate(
        self,
        asked: Asked[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool | Callable[..., Any],
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None,
        priority: Sequence[int] | None,
    ) -> list[RequestOutput]:
        n = len(asked.given)
        params = one_for_each(
            "sampling_params",
            self._sampling if sampling_params is None else sampling_params,
            SamplingParams,
            n,
        )
        adapters = one_for_each("lora_request", lora_request, LoRARequest, n)
        priorities = one_for_each("priority", 0 if priority is None else priority, int, n)
        for adapter in dict.fromkeys(adapter for adapter in adapters if adapter is not None):
            self._load(adapter)
        numbers = [next(self._numbers) for _ in range(n)]
        places = {str(number): at for at, number in enumerate(numbers)}
        texts = [prompt if isinstance(prompt, str) else None for prompt in asked.given]
        outputs = [
            RequestOutput(name, text, [], finished=True) for name, text in zip(places, texts, strict=True)
        ]

        def prepare(at: int, prompt: Prompt) -> Work:
            return self._work(numbers[at], prompt, params[at], adapters[at], priorities[at])

        # All prompts are checked before the first step.
        work: list[Work] = []
        for at, (prompt, error) in enumerate(asked.read()):
            outputs[at].error = error
            if prompt is not None:
                made, outputs[at].error = asked.attempt(at, partial(prepare, at, prompt))
                work += [made] if made is not None else []
        with progress(use_tqdm, n) as move:
            for done, events, error in run(self._client, iter(work), self._n_most):
                at = places[done.request_id]
                outputs[at] = output_of(done, events)
                if error is not None:
                    outputs[at].finished, outputs[at].outputs = True, []
                    outputs[at].error = asked.failed(at, error)
                move()
        return outputs

    def _work(
        self,
        number: int,
        prompt: Prompt,
        params: SamplingParams,
        adapter: LoRARequest | None = None,
        priority: int = 0,
    ) -> Work:
        seed = params.seed if params.seed is not None else mixed(self._seed, number)
        body: Json = {
            "seed": seed,
            "priority": priority,
            "cache_prompt": self._caches and not params.skip_reading_prefix_cache,
        }
        if adapter is not None:
            body["model"] = adapter.lora_name
        return prepared(Work(str(number), prompt, params, body, adapter), self._model, self._max_model_len)

    def _embedded(self, given: Any, keep: int | None) -> list[int]:
        text, tokens, salt = parts_of(given)
        if salt is not None:
            raise ValueError("cache_salt: not supported; embeddings are not cached")
        if tokens is not None:
            found = tokens_of(tokens, self._model)
        else:
            found = self._model.encode(text or "", add_special=True, parse_special=False)
        return self._fitting(found[:keep])

    def _paired(self, query: Any, document: Any) -> list[int]:
        for text in (query, document):
            if not isinstance(text, str):
                raise TypeError(f"{_prompts.shown(text)} is not a string")
        return self._fitting(self._model.rank_prompt(query, document))

    def _fitting(self, tokens: list[int]) -> list[int]:
        if not tokens:
            raise ValueError("the text is empty")
        if len(tokens) > self._max_model_len:
            raise ValueError(f"the text has {len(tokens)} tokens, max_model_len is {self._max_model_len}")
        return tokens

    def _adapter_fields(self, adapter: LoRARequest | None) -> Json:
        if adapter is None:
            return {}
        self._load(adapter)
        return {"model": adapter.lora_name}

    def _load(self, adapter: LoRARequest) -> None:
        """Loads an adapter unless it is loaded already."""
        if not self._enable_lora:
            raise ValueError("lora_request: needs LLM(enable_lora=True)")
        with self._loading:
            self._load_one(adapter)

    def _load_one(self, adapter: LoRARequest) -> None:
        path = os.fspath(adapter.lora_path)
        known = self._adapters.get(adapter.lora_name)
        if known == path and not adapter.load_inplace:
            return
        if known is not None and not adapter.load_inplace:
            raise ValueError(f"lora_name: {adapter.lora_name!r} is {known}; use load_inplace to replace it")
        try:
            self._client.load_adapter(adapter.lora_name, path, replaces=known is not None)
        except RequestError as error:
            raise ValueError(f"lora_request: {error}") from None
        self._adapters[adapter.lora_name] = path


__all__ = ["LLM", "LoRARequest", "SamplingParams"]
