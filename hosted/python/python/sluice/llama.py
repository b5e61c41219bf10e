"""A model with llama-cpp-python's interface."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from sluice import _logging, _options, _vectors
from sluice._arguments import ChatHandler, CompletionArguments, Prompt
from sluice._client import Client, RequestError, ServiceError
from sluice._completions import Completions
from sluice._files import as_model, fetched, placed
from sluice._formats import template_of
from sluice._native import Model
from sluice._replies import Json
from sluice._requests import seed_of
from sluice._stepwise import Stepwise, common_prefix, numbers
from sluice.cache import LlamaRAMCache
from sluice.llama_tokenizer import LlamaTokenizer
from sluice.llama_types import CreateEmbeddingResponse


@dataclass(frozen=True)
class ContextParams:
    """The sizes of a model's context, by llama.cpp's names."""

    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_threads: int | None


class Llama(Completions, Stepwise):
    """A model in memory that behaves like llama-cpp-python's class of this name.

    Any thread may request completions at the same time: they are computed together, and each equals the result that it
    would have alone. `eval`, `sample`, `generate` and the states work on one further text, used by one thread at a
    time.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        seed: int | None = None,
        vocab_only: bool = False,
        use_mmap: bool = True,
        use_mlock: bool = False,
        numa: bool | int = False,
        type_k: int | str | None = None,
        type_v: int | str | None = None,
        logits_all: bool = False,
        pooling_type: int = -1,
        last_n_tokens_size: int = 64,
        lora_path: str | os.PathLike[str] | None = None,
        lora_scale: float = 1.0,
        lora_modules: Mapping[str, str | os.PathLike[str]] | None = None,
        chat_format: str | None = None,
        chat_handler: ChatHandler | None = None,
        draft_model: object = None,
        n_parallel: int = 4,
        cache_ram_mib: int = 512,
        prompt_cache_dir: str | os.PathLike[str] | None = None,
        max_queue: int = 1 << 16,
        dtype: str | None = None,
        verbose: bool = True,
        log: Callable[[str], None] | None = None,
        **others: Unpack[_options.LlamaOptions],
    ) -> None:
        """Loads a model. Ctrl-C cancels it.

        Args:
            model_path: A GGUF or `.slc` file, or a Hugging Face folder, which is converted once.
            n_ctx: Context size of all texts together, in tokens; 0 is the size the model was trained with.
            n_batch, n_ubatch: Maximum number of tokens per step.
            n_threads: Number of threads; None is one per physical core.
            seed: The seeds of completions without one follow from it, each from the last, as in llama-cpp-python.
            None, -1 or 0xFFFFFFFF draws a new one each time.
            vocab_only: Only tokenize; the weights are not loaded, and the file need not have any.
            use_mmap, use_mlock: Map the file, which must not be truncated then; lock the weights in memory.
            numa: True or 1 spreads threads and memory over all NUMA nodes, 2 keeps them on the current node, 3 uses
            the nodes that numactl has set.
            type_k, type_v: Types of the KV cache: a name (`f16`, `q8_0`, `q4_0`, `fp8`, …) or ggml's number.
            logits_all: `eval` keeps the logits of every token. Completions do not need it.
            pooling_type: How token vectors become one: 1 mean, 2 cls, 3 last; 0 keeps one per token, 4 returns the
            score of a reranker's head. -1 uses the file's setting.
            last_n_tokens_size: Number of most recent tokens to penalise.
            lora_path, lora_scale: An adapter (a GGUF file or a PEFT folder) for all texts, and its factor.
            lora_modules: Adapters by name; select one by passing `model=NAME` to a completion.
            chat_format: A template instead of the model's own: a name of llama-cpp-python's, such as `chatml`,
                `llama-2` or `mistral-instruct`, or Jinja text.
            chat_handler: Called by `create_chat_completion` with `llama=` and its arguments, to answer in its place.
            draft_model: A smaller model's file, or `LlamaPromptLookupDecoding`; answers do not depend on it.
            n_parallel: Number of texts that are computed at once; others wait.
            cache_ram_mib: Maximum memory for cached prompts, in MiB.
            prompt_cache_dir: A folder that keeps cached prompts across restarts.
            max_queue: Maximum number of waiting completions.
            dtype: The weight type for converting a folder: `f16`, `bf16`, `q8_0`, …
            verbose: Write the log to Python's `logging`, as `sluice`: warnings, and requests with their times as INFO.
            log: Called with each line of the log instead.
            others: The options of `sluice.Options`; and arguments of llama-cpp-python without effect here, such as
            `n_gpu_layers`. One that would change answers is refused.

        Raises:
            ValueError: An argument is invalid or not supported, or the file is not a model that can be run.
            OSError: The file cannot be read. TypeError: An argument is unknown.
        """
        given = {
            name: value for name, value in locals().items() if name not in ("self", "others", "__class__")
        }
        self._arguments = {**given, **others}
        options = _options.llama_options(others)
        self._client: Client | None = None
        self.model_path = os.fspath(model_path)
        self.last_n_tokens_size = last_n_tokens_size
        self.logits_all = logits_all
        self.chat_format = chat_format
        self.chat_handler = chat_handler
        self.verbose = verbose
        self.cache: LlamaRAMCache | None = None
        self.seed = seed_of(seed)
        self._adapters = set(lora_modules or ())
        self._pooling = pooling_type
        self.context_params = ContextParams(n_ctx, n_batch, n_ubatch, n_threads)
        path = as_model(model_path, dtype)
        if vocab_only or any(others.get(name) for name in _options.ROPE):
            self._model = Model.open(path, vocab_only)
            _options.check_rope(others, self._model)
        if vocab_only:
            return
        arguments = {
            "model": path,
            "alias": "model",
            "n_ctx": n_ctx,
            "n_batch": n_batch,
            "n_ubatch": n_ubatch,
            "n_threads": n_threads,
            "n_parallel": n_parallel,
            "use_mmap": use_mmap,
            "use_mlock": use_mlock,
            "numa": _options.numa_policy(numa),
            "type_k": _options.kv_type("type_k", type_k),
            "type_v": _options.kv_type("type_v", type_v),
            "pooling": _options.pooling(pooling_type),
            "lora_path": None if lora_path is None else {lora_path: lora_scale},
            "lora_modules": lora_modules,
            "chat_format": None if chat_format is None else template_of(chat_format),
            "cache_ram_mib": cache_ram_mib,
            "prompt_cache_dir": prompt_cache_dir,
            "max_queue": max_queue,
            **_options.draft(draft_model),
            **options,
        }
        self._client = Client(arguments, log if log is not None else _logging.log if verbose else None)
        self._model = self._client.model()
        self.context_params = replace(self.context_params, n_ctx=self._client.n_ctx())
        if pooling_type == _options.RANK and not self._model.ranks:
            self.close()
            raise ValueError(
                "pooling_type is 4 (rank): the model has no ranking head, so it is not a reranker"
            )

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        additional_files: Sequence[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> Self:
        """Downloads a model from Hugging Face into the shared cache, and loads it.

        Args:
            repo_id: `user/name`.
            filename: A file of it, or a pattern of `fnmatch` that matches one model: `*Q4_K_M.gguf`, case-sensitive.
            None chooses Q4_K_M, else Q8_0. All parts of a split model are downloaded.
            additional_files: Further files to download: names or patterns.
            local_dir: A folder in which to place the files as well.
            local_dir_use_symlinks: No effect: files there share their data with the cache if possible.
            cache_dir: Used instead of `HF_HUB_CACHE`.
            settings: Arguments of the constructor.

        Raises:
            ValueError: The download fails, or the pattern does not match exactly one model.
        """
        del local_dir_use_symlinks
        for other in additional_files or ():
            found = fetched(repo_id, other, cache_dir)
            if local_dir is not None:
                placed(found, local_dir)
        path = fetched(repo_id, filename, cache_dir)
        return cls(path if local_dir is None else placed(path, local_dir), **settings)

    @property
    def client(self) -> Client:
        """The engine.

        Raises:
            ServiceError: The model is not available: only the vocabulary was loaded, or it was closed.
        """
        if self._client is None:
            raise ServiceError("the model has no weights: it was opened with vocab_only, or closed", 503)
        return self._client

    def close(self) -> None:
        """Stops all work and frees the memory."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self._arguments, "seed": self.seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __repr__(self) -> str:
        n_ctx = self.context_params.n_ctx
        return f"Llama({self.model_path!r}, n_ctx={n_ctx}, n_threads={self.n_threads})"

    def __call__(self, prompt: Prompt, *arguments: Any, **settings: Unpack[CompletionArguments]) -> Any:
        """See `create_completion`."""
        return self.create_completion(prompt, *arguments, **settings)

    # The file's metadata.

    @property
    def metadata(self) -> dict[str, str]:
        """The file's metadata, as strings."""
        return {key: _text(value) for key, value in self._model.metadata().items()}

    def n_ctx(self) -> int:
        """Context size of all texts together, in tokens."""
        return self.client.n_ctx()

    def n_embd(self) -> int:
        """Length of the hidden state and of embeddings."""
        return self._model.n_embd

    def n_vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return self._model.n_vocab

    def token_bos(self) -> int:
        """The beginning-of-sequence token, or -1."""
        return -1 if self._model.bos is None else self._model.bos

    def token_eos(self) -> int:
        """The end-of-sequence token, or -1."""
        return -1 if self._model.eos is None else self._model.eos

    def token_nl(self) -> int:
        """The newline token, or -1."""
        tokens = self._model.encode("\n", add_special=False)
        return tokens[-1] if tokens else -1

    def pooling_type(self) -> str:
        """How token vectors become one: `MEAN`, `CLS`, `LAST`, `NONE`, `RANK`, or `UNSPECIFIED` for the file's."""
        return _options.POOLING_NAMES[self._pooling]

    @property
    def n_batch(self) -> int:
        """Maximum number of tokens per step."""
        return self.context_params.n_batch

    @property
    def n_threads(self) -> int | None:
        """Number of threads, or None for one per physical core."""
        return self.context_params.n_threads

    @property
    def _n_ctx(self) -> int:
        return self.n_ctx()

    def tokenizer(self) -> LlamaTokenizer:
        """The model's vocabulary."""
        return LlamaTokenizer(self)

    def tokenize(self, text: bytes | str, add_bos: bool = True, special: bool = False) -> list[int]:
        """The tokens of a text.

        Args:
            text: UTF-8; invalid bytes are replaced.
            add_bos: Add the special tokens that the model needs around the text.
            special: Parse the names of control tokens.
        """
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="replace")
        return self._model.encode(text, add_bos, special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of tokens; if `prev_tokens` is given, as they follow these.

        Raises:
            ValueError: A token is not in the vocabulary.
        """
        tokens = numbers(tokens)
        text = self._model.decode(tokens, special)
        starts = not prev_tokens and tokens and tokens[0] == self._model.bos
        return text[1:] if starts and text.startswith(b" ") else text

    # Embeddings and ranks.

    def embed(
        self,
        input: str | Sequence[str] | Sequence[Sequence[int]],  # noqa: A002
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """The embeddings of texts, as lists of `n_embd` numbers; a single list for a single text.

        With `pooling_type=0` each text has a list per token. With `pooling_type=4` each text is a query and a
        document, joined with the special tokens that the model was trained with, and gets one number: its score.

        Args:
            input: Texts, or their tokens.
            normalize: Scale the vectors to length 1.
            truncate: Truncate texts that do not fit; otherwise they are refused.
            return_count: Return the number of tokens as well.

        Raises:
            RequestError: A text is empty or does not fit, or the model has no pooling and `pooling_type` is not 0.
        """
        vectors, count = self._embedded(input, normalize, truncate)
        found = vectors[0] if isinstance(input, str) else vectors
        return (found, count) if return_count else found

    def embed_array(
        self,
        texts: Sequence[str] | Sequence[Sequence[int]],
        normalize: bool = True,
        truncate: bool = True,
    ) -> NDArray[np.float32]:
        """The embeddings of texts, float32 (n_texts, n_embd), without a copy.

        With `pooling_type=0` those of all tokens, text by text: (n_tokens, n_embd). With `pooling_type=4` scores:
        (n_texts, 1).
        """
        return _vectors.embed(
            self.client, self._model, texts, normalize=normalize, truncate=truncate, kind=self._vector_kind()
        )[0]

    def _vector_kind(self) -> str:
        """The kind of vectors: of texts or tokens, or scores."""
        return {_options.UNPOOLED: "tokens", _options.RANK: "scores"}.get(self._pooling, "texts")

    def create_embedding(
        self,
        input: str | Sequence[str],  # noqa: A002
        model: str | None = None,
    ) -> CreateEmbeddingResponse:
        """The embeddings of texts as OpenAI's object. As in llama-cpp-python they are not normalised.

        `model` selects an adapter by name; any other name is only a label.
        """
        texts = [input] if isinstance(input, str) else list(input)
        adapter = model if model in self._adapters else None
        vectors, count = self._embedded(texts, False, True, adapter)
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "embedding": vector, "index": index}
                for index, vector in enumerate(vectors)
            ],
            "model": self.model_path if model is None else model,
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }

    def _embedded(
        self, texts: Any, normalize: bool, truncate: bool, adapter: str | None = None
    ) -> tuple[list[Any], int]:
        """The embeddings of each text, and the total number of tokens."""
        vectors, lengths = _vectors.embed(
            self.client,
            self._model,
            texts,
            normalize=normalize,
            truncate=truncate,
            adapter=adapter,
            kind=self._vector_kind(),
        )
        return _vectors.of_each(vectors, lengths, self._pooling != _options.UNPOOLED), sum(lengths)

    def rerank(self, query: str, documents: Sequence[str], top_n: int | None = None) -> Json:
        """Sorts documents by how well they answer a query, the best first; for models with a ranking head.

        Returns:
            `{"results": [{"index", "relevance_score"}], "usage", …}`.
        """
        if top_n is not None and top_n < 1:
            raise RequestError(f"top_n: {top_n} is not 1 or more", 400, "invalid_request_error", "top_n")
        ranking = self.client.rank({"query": query, "documents": list(documents)})
        scores = ranking.scores
        return {
            "model": ranking.name,
            "object": "list",
            "results": [{"index": at, "relevance_score": scores[at]} for at in ranking.order[:top_n]],
            "usage": {"prompt_tokens": ranking.n_tokens, "total_tokens": ranking.n_tokens},
        }

    def set_seed(self, seed: int) -> None:
        """Sets the seed that the seeds of completions follow from; -1 and 0xFFFFFFFF draw a new one each time."""
        self.seed = seed_of(seed)
        self._sampler = None

    def set_cache(self, cache: LlamaRAMCache | None) -> None:
        """Accepts a cache without effect: prompts are always cached (`cache_ram_mib`, `cache_dir`)."""
        self.cache = cache

    longest_token_prefix = staticmethod(common_prefix)

    @staticmethod
    def logits_to_logprobs(logits: Any, axis: int = -1) -> NDArray[np.float32]:
        """The logarithm of the softmax over an axis, float32, of the shape of `logits`."""
        scores: NDArray[np.float32] = np.asarray(logits, dtype=np.float32)
        shifted = scores - scores.max(axis=axis, keepdims=True)
        scores = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
        return scores.astype(np.float32)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
