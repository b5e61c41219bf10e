"""A model with llama-cpp-python's face."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sluice import _options, _vectors
from sluice._client import Client, Json, ServiceError
from sluice._completions import ChatHandler, Completions
from sluice._fields import seed_of
from sluice._files import as_model, fetched, placed
from sluice._native import Model
from sluice._stepwise import Stepwise, common_prefix, numbers
from sluice.cache import LlamaRAMCache


class Llama(Completions, Stepwise):
    """A model in memory that answers as llama-cpp-python's class of this name does.

    Completions may be asked for from any thread at the same time: they are computed together, and each is the one
    that it would be alone. `eval`, `sample`, `generate` and the states are another text, beside them: one, for one
    thread at a time.
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
        expert_cache_mib: int | None = None,
        expert_io: str | None = None,
        expert_policy: str | None = None,
        expert_profile: str | os.PathLike[str] | None = None,
        expert_prefetch: bool = True,
        expert_dirs: Sequence[str | os.PathLike[str]] = (),
        dtype: str | None = None,
        flags: Sequence[str] = (),
        verbose: bool = True,
        log: Callable[[str], None] | None = None,
        **others: Any,
    ) -> None:
        """Loads a model. Ctrl-C ends that.

        Args:
            model_path: A GGUF or `.slc` file, or a folder of Hugging Face's, which is converted once.
            n_ctx: Tokens of all texts at once, and of one if there are no others; 0 is what it was trained on.
            n_batch, n_ubatch: Most tokens that are computed at once.
            n_threads: Threads; None is one for each physical core.
            seed: Of completions that name none. None, -1 or 0xFFFFFFFF draws one each time.
            vocab_only: Only tokenize; no weights are read.
            use_mmap, use_mlock: Map the file; keep weights from being swapped out.
            numa: Spread threads and memory over all nodes.
            type_k, type_v: Types of the KV cache: a name (`f16`, `q8_0`, `q4_0`, `fp8`, …) or ggml's number.
            logits_all: `eval` keeps the logits of every token. Completions need it for nothing.
            pooling_type: From tokens to an embedding: 1 mean, 2 cls, 3 last; 0 gives each token its vector, 4 each text
                the score of a reranker's head. -1 is what the file says.
            last_n_tokens_size: How many tokens penalties look back at.
            lora_path, lora_scale: An adapter (a GGUF file or a folder of PEFT) for all texts, and its factor.
            lora_modules: Adapters by name; a completion with `model=NAME` is computed with it.
            chat_format: A template instead of the model's own: a name of llama-cpp-python's, such as `chatml`,
                `llama-2` or `mistral-instruct`, or Jinja text.
            chat_handler: Is called by `create_chat_completion` with `llama=` and its arguments, to answer itself.
            draft_model: A smaller model's file, or `LlamaPromptLookupDecoding`; answers are the same with any.
            n_parallel: Texts that are computed at once; others wait.
            cache_ram_mib: Most memory for what earlier prompts left, in MiB.
            prompt_cache_dir: A folder where that is kept over restarts.
            max_queue: Most completions that wait.
            expert_cache_mib: Leave the experts of a mixture on disk and cache up to this many MiB of them: models
                that are larger than memory. None has all in memory.
            expert_io: How they are read: `uring`, `pread`, `mmap`; by default the first that works.
            expert_policy: Which makes room: `aged` (the default), `lru`, `lfu`, `heat`, or `static` by a profile.
            expert_profile: A file of experts to hold, for `static`.
            expert_prefetch: Read experts before their layer is reached, by a guess.
            expert_dirs: Folders with copies of the model's file on other drives.
            dtype: The type that a folder is converted to: `f16`, `bf16`, `q8_0`, …
            flags: More flags of `sluice serve`, such as `["--turn-ms", "20"]`.
            verbose: Say on stderr what the machine did not grant. `log` is called with each line of the log.
            others: Arguments of llama-cpp-python that change nothing here, such as `n_gpu_layers`. One that would
                change answers is refused.

        Raises:
            ValueError: an argument is wrong or not supported, or the file is not a model that can be run.
            OSError: it cannot be read. TypeError: an argument is unknown.
        """
        given = {
            name: value for name, value in locals().items() if name not in ("self", "others", "__class__")
        }
        self._arguments = {**given, **others}
        _options.without_effect(others)
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
        path = as_model(model_path, dtype)
        if vocab_only:
            self._model = Model.open(path)
            return
        made = _options.flags(
            path,
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_ubatch=n_ubatch,
            n_threads=n_threads,
            n_parallel=n_parallel,
            use_mmap=use_mmap,
            use_mlock=use_mlock,
            numa=numa,
            type_k=type_k,
            type_v=type_v,
            pooling_type=pooling_type,
            chat_template=chat_format,
            cache_ram_mib=cache_ram_mib,
            prompt_cache_dir=prompt_cache_dir,
            max_queue=max_queue,
            more=[
                *_options.lora_flags(lora_path, lora_scale, lora_modules),
                *_options.draft_flags(draft_model),
                *_options.expert_flags(
                    expert_cache_mib, expert_io, expert_policy, expert_profile, expert_prefetch, expert_dirs
                ),
                *flags,
            ],
        )
        self._client = Client(made, log if log is not None else _say if verbose else None)
        self._model = self._client.model()
        if pooling_type == _options.RANK and not self._model.ranks:
            self.close()
            raise ValueError("pooling_type is 4 (rank): the model has no ranking head, so it is not a reranker")

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
        """Fetches a model from Hugging Face into the cache that its clients share, and loads it.

        Args:
            repo_id: `user/name`.
            filename: A file of it, or a pattern of `fnmatch` that means one model: `*Q4_K_M.gguf`, in the case of
                the file's name. None chooses Q4_K_M, else Q8_0. All parts of a split model are fetched.
            additional_files: Others that are fetched, too: names or patterns.
            local_dir: A folder that the files lie in, too.
            local_dir_use_symlinks: Changes nothing: files there and in the cache share their bytes where they can.
            cache_dir: Instead of `HF_HUB_CACHE`.
            settings: Of the constructor.

        Raises:
            ValueError: it cannot be fetched; no file matches, or more than one.
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
        """The engine that answers.

        Raises:
            ServiceError: The model is not available: only the vocabulary was loaded, or it was closed.
        """
        if self._client is None:
            raise ServiceError("there are no weights: the model was opened with vocab_only, or closed", 503)
        return self._client

    def close(self) -> None:
        """Ends what runs and frees the memory."""
        client, self._client = self._client, None
        self._forget()
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self._arguments, "seed": self.seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __call__(self, prompt: str, *arguments: Any, **settings: Any) -> Any:
        """See `create_completion`."""
        return self.create_completion(prompt, *arguments, **settings)

    # What the file says.

    @property
    def metadata(self) -> dict[str, str]:
        """What the file says of itself, as texts."""
        return {key: _text(value) for key, value in self._model.metadata().items()}

    def n_ctx(self) -> int:
        """Tokens of all texts at once."""
        settings = self.client.get("/props")["default_generation_settings"]
        return int(settings["n_ctx"])

    def n_embd(self) -> int:
        """Length of the hidden state, and of embeddings."""
        return self._model.n_embd

    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self._model.n_vocab

    def token_bos(self) -> int:
        """The token that begins a text; -1 for none."""
        return -1 if self._model.bos is None else self._model.bos

    def token_eos(self) -> int:
        """The token that ends a text; -1 for none."""
        return -1 if self._model.eos is None else self._model.eos

    def token_nl(self) -> int:
        """The token of a line's end; -1 for none."""
        tokens = self._model.encode("\n", add_special=False)
        return tokens[-1] if tokens else -1

    def tokenizer(self) -> Llama:
        """Itself: it has `tokenize` and `detokenize`."""
        return self

    def tokenize(self, text: bytes | str, add_bos: bool = True, special: bool = False) -> list[int]:
        """The tokens of a text.

        Args:
            text: UTF-8; what is not is replaced.
            add_bos: With the tokens around it that the model wants.
            special: Read names of control tokens as those tokens.
        """
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="replace")
        return self._model.encode(text, add_bos, special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of tokens; behind `prev_tokens`, if they are given.

        Raises:
            ValueError: a token is not in the vocabulary.
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
        """The embeddings of texts, as lists of `n_embd` numbers; one list for one text.

        With `pooling_type=0` each text has a list for each of its tokens. With `pooling_type=4` it is a query and a
        document with the marks between them that the model was trained with, and has one number: its score.

        Args:
            input: Texts, or their tokens.
            normalize: Make them of length 1.
            truncate: Cut texts that do not fit; they are refused otherwise.
            return_count: Return their number of tokens, too.

        Raises:
            RequestError: a text is empty or does not fit, or the model has no pooling and `pooling_type` is not 0.
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
        """The embeddings of texts: float32 (n_texts, n_embd), in the memory that the engine wrote them to.

        With `pooling_type=0` those of all tokens, text by text: (n_tokens, n_embd). With `pooling_type=4` scores:
        (n_texts, 1).
        """
        return _vectors.embed(
            self.client, self._model, texts, normalize=normalize, truncate=truncate, kind=self._vector_kind()
        )[0]

    def _vector_kind(self) -> str:
        """What vectors are of."""
        return {_options.UNPOOLED: "tokens", _options.RANK: "scores"}.get(self._pooling, "texts")

    def create_embedding(self, input: str | Sequence[str], model: str | None = None) -> Json:  # noqa: A002
        """The embeddings of texts as OpenAI's object. As in llama-cpp-python they are not normalised.

        `model` is the name of an adapter that they are computed with; any other name is only a label.
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
        """Those of each text, and how many tokens all have."""
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
        """Documents by how well they answer a query, the best first; for models with a head for that.

        Returns:
            `{"results": [{"index", "relevance_score"}], "usage", …}`.
        """
        body: Json = {"query": query, "documents": list(documents)}
        if top_n is not None:
            body["top_n"] = top_n
        reply: Json = self.client.post("/v1/rerank", body)
        return reply

    def set_seed(self, seed: int) -> None:
        """The seed of completions that name none, from now on; -1 and 0xFFFFFFFF draw one each time."""
        self.seed = seed_of(seed)

    def set_cache(self, cache: LlamaRAMCache | None) -> None:
        """Accepts a cache and changes nothing: prompts are always found again (`cache_ram_mib`, `cache_dir`)."""
        self.cache = cache

    longest_token_prefix = staticmethod(common_prefix)

    @staticmethod
    def logits_to_logprobs(logits: Any, axis: int = -1) -> NDArray[np.float32]:
        """Natural logarithms of the softmax over an axis, float32, of the shape of `logits`."""
        scores: NDArray[np.float32] = np.asarray(logits, dtype=np.float32)
        shifted = scores - scores.max(axis=axis, keepdims=True)
        scores = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
        return scores.astype(np.float32)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _say(line: str) -> None:
    """Lines of the log that do not concern the caller: requests and their timings."""
    del line
