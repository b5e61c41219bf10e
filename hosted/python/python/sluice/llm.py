"""Batches of prompts, with vLLM's interface."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from threading import Lock
from typing import Any

from sluice import _formats, _llm_options
from sluice._batch import (
    Prompt,
    Work,
    mixed,
    one_for_each,
    output_of,
    parts_of,
    prepared,
    progress,
    prompt_of,
    run,
    tokens_of,
)
from sluice._client import Client, RequestError
from sluice._llm_tokenizer import LLMTokenizer, template_fields
from sluice._replies import Json
from sluice.lora_request import LoRARequest
from sluice.outputs import (
    EmbeddingOutput,
    EmbeddingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from sluice.sampling_params import SamplingParams

NOT_SUPPORTED = {
    "beam_search": "beam search is not supported",
    "encode": "use embed for vectors, score for scores",
    "classify": "use score, which returns the output of a ranking head",
    "reward": "use score, which returns the output of a ranking head",
    "sleep": "use close to free the memory",
    "wake_up": "use close to free the memory",
    "collective_rpc": "there are no worker processes",
    "apply_model": "the model is not a PyTorch module",
    "start_profile": "use `sluice bench` or `sluice run --profile`",
    "stop_profile": "use `sluice bench` or `sluice run --profile`",
    "reset_prefix_cache": "use enable_prefix_caching=False to disable the cache",
}

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
        **others: Any,
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
            log: Called with each line of the log.
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
        self._client = Client({**arguments, **given}, log)
        self._model = self._client.model()
        self._max_model_len = options.text_len(self._model.n_ctx_train)
        self._stops = _formats.stops_of(chat_template)
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
    ) -> list[RequestOutput]:
        """Generates continuations of prompts, in the order of the prompts. Ctrl-C cancels all of them.

        Args:
            prompts: A string, a list of tokens, `{"prompt": text}`, `{"prompt_token_ids": tokens}`, or a list of those.
            sampling_params: One for all prompts or one for each; by default `SamplingParams()`.
            use_tqdm: Show a progress bar on a terminal, if `tqdm` is installed; or a function that creates one.
            lora_request: One for all prompts or one for each.
            priority: One per prompt, -1000 to 1000; lower values run first.

        Raises:
            ValueError: A prompt does not fit, or an argument is invalid; nothing is generated then.
        """
        all_prompts = prompts if _is_list_of_prompts(prompts) else [prompts]
        given = (prompt_of(prompt, self._model) for prompt in all_prompts)
        return self._generate(given, len(all_prompts), sampling_params, use_tqdm, lora_request, priority)

    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Json] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers conversations. The answers are the model's text, including tool calls and reasoning.

        Args:
            messages: `[{"role": …, "content": …}, …]`, or a list of those.
            chat_template: Not supported; use `LLM(chat_template=…)`.
            add_generation_prompt: End the prompt where the answer begins.
            continue_final_message: The last message is the beginning of the answer.
            tools: Functions that the template describes to the model.
            chat_template_kwargs: Variables of the template.
            sampling_params, use_tqdm, lora_request: As in `generate`.

        Raises:
            ValueError: See `generate`.
        """
        if chat_template is not None:
            raise ValueError("chat_template: not supported for a single call; use LLM(chat_template=…)")
        if isinstance(messages, Mapping) or not messages:
            raise ValueError("messages: expected a list of messages, or a list of such lists")
        conversations = [messages] if isinstance(messages[0], Mapping) else messages
        fields = template_fields(tools, add_generation_prompt, continue_final_message, chat_template_kwargs)

        def prompt(conversation: Sequence[Json]) -> Prompt:
            made = self._client.prompt({**fields, "messages": list(conversation)})
            own = (made.stop,) if made.stop is not None else ()
            return Prompt(made.tokens, made.text, own + self._stops)

        given = map(prompt, conversations)
        return self._generate(given, len(conversations), sampling_params, use_tqdm, lora_request, None)

    def embed(
        self,
        prompts: Any,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | None = None,
        truncate_prompt_tokens: int | None = None,
        dimensions: int | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Computes embeddings of length 1, with any model, in the order of the prompts.

        Args:
            prompts: As in `generate`, but names of control tokens are plain text, and `cache_salt` is not allowed.
            truncate_prompt_tokens: Number of tokens to keep from each text's beginning, at least 1.
            dimensions: Number of components to keep of each vector, at most `n_embd`.
            use_tqdm, lora_request: As in `generate`.

        Raises:
            ValueError: A text is empty or too long, or the model computes no embeddings.
        """
        if truncate_prompt_tokens is not None and truncate_prompt_tokens < 1:
            raise ValueError(f"truncate_prompt_tokens is {truncate_prompt_tokens}, expected at least 1")
        all_prompts = prompts if _is_list_of_prompts(prompts) else [prompts]
        adapter = self._adapter_fields(lora_request).get("model")
        outputs = []
        bar = progress(use_tqdm, len(all_prompts))
        try:
            for start in range(0, len(all_prompts), EMBEDDED_AT_ONCE):
                texts = [self._embedded(prompt) for prompt in all_prompts[start : start + EMBEDDED_AT_ONCE]]
                texts = [tokens[:truncate_prompt_tokens] for tokens in texts]
                vectors = self._client.embed(texts, dimensions=dimensions, model=adapter)
                for tokens, made in zip(texts, vectors, strict=True):
                    vector = EmbeddingOutput(made.tolist())
                    outputs.append(EmbeddingRequestOutput(str(next(self._numbers)), vector, tokens))
                    _moved(bar)
        finally:
            _closed(bar)
        return outputs

    def score(
        self,
        query: str | Sequence[str],
        documents: str | Sequence[str],
        *,
        lora_request: LoRARequest | None = None,
    ) -> list[ScoringRequestOutput]:
        """Scores how well documents answer a query: one query for all, or one for each. Requires a ranking head.

        Raises:
            ValueError: The model has no ranking head, or the numbers of queries and documents differ.
        """
        queries = [query] if isinstance(query, str) else list(query)
        texts = [documents] if isinstance(documents, str) else list(documents)
        if len(queries) not in (1, len(texts)):
            raise ValueError(f"query: {len(queries)} queries for {len(texts)} documents")
        fields = self._adapter_fields(lora_request)
        groups = (
            [(queries[0], texts)]
            if len(queries) == 1
            else [(q, [d]) for q, d in zip(queries, texts, strict=True)]
        )
        outputs = []
        for asked, group in groups:
            scores = self._client.rank({**fields, "query": asked, "documents": group}).scores
            outputs += [
                ScoringRequestOutput(str(next(self._numbers)), ScoringOutput(score)) for score in scores
            ]
        return outputs

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
        why = NOT_SUPPORTED.get(name)
        what = f"LLM.{name}: not supported; {why}" if why else f"LLM has no attribute {name!r}"
        raise AttributeError(what)

    def _generate(
        self,
        prompts: Iterator[Prompt],
        n: int,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool | Callable[..., Any],
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None,
        priority: Sequence[int] | None,
    ) -> list[RequestOutput]:
        params = one_for_each(
            "sampling_params",
            SamplingParams() if sampling_params is None else sampling_params,
            SamplingParams,
            n,
        )
        adapters = one_for_each("lora_request", lora_request, LoRARequest, n)
        priorities = one_for_each("priority", 0 if priority is None else priority, int, n)
        for adapter in dict.fromkeys(adapter for adapter in adapters if adapter is not None):
            self._load(adapter)
        places: dict[str, int] = {}

        def work() -> Iterator[Work]:
            for at, prompt in enumerate(prompts):
                made = self._work(prompt, params[at], adapters[at], priorities[at])
                places[made.request_id] = at
                yield made

        outputs: list[RequestOutput | None] = [None] * n
        bar = progress(use_tqdm, n)
        try:
            for done, events in run(self._client, work(), self._n_most):
                outputs[places.pop(done.request_id)] = output_of(done, events)
                _moved(bar)
        finally:
            _closed(bar)
        return [output for output in outputs if output is not None]

    def _work(
        self, prompt: Prompt, params: SamplingParams, adapter: LoRARequest | None = None, priority: int = 0
    ) -> Work:
        number = next(self._numbers)
        seed = params.seed if params.seed is not None else mixed(self._seed, number)
        body: Json = {
            "seed": seed,
            "priority": priority,
            "cache_prompt": self._caches and not params.skip_reading_prefix_cache,
        }
        if adapter is not None:
            body["model"] = adapter.lora_name
        return prepared(Work(str(number), prompt, params, body, adapter), self._model, self._max_model_len)

    def _embedded(self, given: Any) -> list[int]:
        text, tokens, salt = parts_of(given)
        if salt is not None:
            raise ValueError("cache_salt: not supported; embeddings are not cached")
        if tokens is not None:
            return tokens_of(tokens, self._model)
        return self._model.encode(text or "", add_special=True, parse_special=False)

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


def _is_list_of_prompts(given: Any) -> bool:
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence):
        return False
    return not given or not hasattr(given[0], "__index__")


def _moved(bar: Any) -> None:
    if bar is not None:
        bar.update(1)


def _closed(bar: Any) -> None:
    if bar is not None:
        bar.close()


__all__ = ["LLM", "LoRARequest", "SamplingParams"]
