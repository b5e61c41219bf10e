"""How `LLM` runs a model: its arguments, as `_native.Service` takes them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice._formats import template_of
from sluice._logging import tell
from sluice._native import Model
from sluice._options import LLMOptions
from sluice._prompts import is_integer
from sluice.sampling_params import LOGPROBS_MAX, SamplingParams

WITHOUT_EFFECT: Mapping[str, Any] = {
    "tokenizer_mode": "auto",
    "skip_tokenizer_init": False,
    "trust_remote_code": False,
    "gpu_memory_utilization": 0.9,
    "swap_space": 4.0,
    "cpu_offload_gb": 0.0,
    "enforce_eager": False,
    "max_seq_len_to_capture": 8192,
    "disable_custom_all_reduce": False,
    "disable_log_stats": True,
    "disable_async_output_proc": False,
    "enable_chunked_prefill": True,
    "async_scheduling": None,
    "distributed_executor_backend": None,
    "compilation_config": None,
    "device": "auto",
    "load_format": "auto",
    "download_dir": None,
    "block_size": None,
    "num_gpu_blocks_override": None,
    "preemption_mode": None,
    "scheduling_policy": "fcfs",
    "task": "auto",
    "runner": "auto",
    "convert": "auto",
    "allowed_local_media_path": "",
    "disable_sliding_window": False,
    "generation_config": "auto",
    "fully_sharded_loras": False,
    "enable_expert_parallel": False,
    "model_impl": "auto",
    "disable_log_requests": True,
    "enable_log_requests": False,
    "served_model_name": None,
    "max_parallel_loading_workers": None,
    "max_num_partial_prefills": 1,
    "config_format": "auto",
    "code_revision": None,
    "ignore_patterns": None,
    "structured_outputs_config": None,
    "guided_decoding_backend": "auto",
    "enable_prompt_embeds": False,
    "attention_backend": None,
    "disable_cascade_attn": False,
}
"""Arguments of vLLM's that change nothing here, with their defaults."""

NOT_SUPPORTED: Mapping[str, tuple[Any, str]] = {
    "tokenizer": (None, "the file's is taken"),
    "tokenizer_revision": (None, "the file's is taken"),
    "revision": (None, "give a file or a folder"),
    "tensor_parallel_size": (1, "a model runs in one process, on all its cores"),
    "pipeline_parallel_size": (1, "a model runs in one process, on all its cores"),
    "data_parallel_size": (1, "a model runs in one process, on all its cores"),
    "quantization": (None, "what the file has is taken; `sluice quantize` makes another"),
    "hf_overrides": (None, "what the file says is taken"),
    "rope_scaling": (None, "what the file says is taken"),
    "rope_theta": (None, "what the file says is taken"),
    "speculative_config": (None, "use spec_type and its options"),
    "limit_mm_per_prompt": (None, "there are neither images nor sound"),
    "mm_processor_kwargs": (None, "there are neither images nor sound"),
    "logits_processors": (None, "SamplingParams(logits_processors=…) is"),
    "override_pooler_config": (None, "use pooling"),
    "pooler_config": (None, "use pooling"),
    "logprobs_mode": ("raw_logprobs", "they are the model's own"),
}

NO_METHODS = {
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
"""Methods of vLLM's `LLM` that are not supported, and why."""

SAME = {"device": "cpu", "generation_config": "vllm", "distributed_executor_backend": "uni"}
"""Values that ask for what is done anyway."""


class LLMArguments(LLMOptions, total=False):
    """Keyword arguments of `LLM`: its options, and vLLM's without effect, or supported at their defaults."""

    tokenizer_mode: Any
    skip_tokenizer_init: Any
    trust_remote_code: Any
    gpu_memory_utilization: Any
    swap_space: Any
    cpu_offload_gb: Any
    enforce_eager: Any
    max_seq_len_to_capture: Any
    disable_custom_all_reduce: Any
    disable_log_stats: Any
    disable_async_output_proc: Any
    enable_chunked_prefill: Any
    async_scheduling: Any
    distributed_executor_backend: Any
    compilation_config: Any
    device: Any
    load_format: Any
    download_dir: Any
    block_size: Any
    num_gpu_blocks_override: Any
    preemption_mode: Any
    scheduling_policy: Any
    task: Any
    runner: Any
    convert: Any
    allowed_local_media_path: Any
    disable_sliding_window: Any
    generation_config: Any
    fully_sharded_loras: Any
    enable_expert_parallel: Any
    model_impl: Any
    disable_log_requests: Any
    enable_log_requests: Any
    served_model_name: Any
    max_parallel_loading_workers: Any
    max_num_partial_prefills: Any
    config_format: Any
    code_revision: Any
    ignore_patterns: Any
    structured_outputs_config: Any
    guided_decoding_backend: Any
    enable_prompt_embeds: Any
    attention_backend: Any
    disable_cascade_attn: Any
    tokenizer: Any
    tokenizer_revision: Any
    revision: Any
    tensor_parallel_size: Any
    pipeline_parallel_size: Any
    data_parallel_size: Any
    quantization: Any
    hf_overrides: Any
    rope_scaling: Any
    rope_theta: Any
    speculative_config: Any
    limit_mm_per_prompt: Any
    mm_processor_kwargs: Any
    logits_processors: Any
    override_pooler_config: Any
    pooler_config: Any
    logprobs_mode: Any
    max_logprobs: Any


KV_TYPES = {
    "auto": "f16",
    "half": "f16",
    "float16": "f16",
    "bfloat16": "bf16",
    "float": "f32",
    "float32": "f32",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "f16": "f16",
    "bf16": "bf16",
    "f32": "f32",
    "q8_0": "q8_0",
    "q4_0": "q4_0",
}

WEIGHT_TYPES = {
    "auto": None,
    "half": "f16",
    "float16": "f16",
    "bfloat16": "bf16",
    "float": "f32",
    "float32": "f32",
}


def llm_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options among keyword arguments that are not in the signature of `LLM`.

    Raises:
        TypeError: An argument is unknown. ValueError: It would have an effect and is not supported.
    """
    made = {}
    for name, value in given.items():
        if name in LLMOptions.__optional_keys__:
            made[name] = value
        elif name in NOT_SUPPORTED:
            default, why = NOT_SUPPORTED[name]
            if value not in (None, default, {}, []):
                raise ValueError(f"{name}: not supported; {why}")
        elif name == "max_logprobs":
            if value is not None and not -1 <= value <= LOGPROBS_MAX:
                raise ValueError(f"max_logprobs is {value}, at most {LOGPROBS_MAX} are supported")
        elif name in WITHOUT_EFFECT:
            if value not in (None, WITHOUT_EFFECT[name], SAME.get(name)):
                warnings.warn(f"{name} has no effect here", stacklevel=3)
        else:
            raise TypeError(f"LLM() has no argument {name!r}")
    return made


def sampling(model: Model, generation_config: str | None) -> SamplingParams:
    """The sampling that a file's authors recommend: `general.sampling.…`, which conversion takes from a folder."""
    about = {} if generation_config == "vllm" else model.metadata()
    found = {name: about.get(f"general.sampling.{key}") for name, key in RECOMMENDED.items()}
    return SamplingParams(**{name: value for name, value in found.items() if value is not None})


RECOMMENDED = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Names of sampling parameters, with a file's names of them."""


def where(model: str | os.PathLike[str], dtype: str) -> dict[str, Any]:
    """The arguments that name a model: its file, the file made of a folder, or a repository on Hugging Face.

    Raises:
        ValueError: The file does not exist, or `dtype` is invalid.
    """
    if dtype not in WEIGHT_TYPES:
        raise ValueError(f"dtype is {dtype!r}, expected one of {', '.join(WEIGHT_TYPES)}")
    name = os.fspath(model)
    path = Path(name)
    if path.is_dir():
        from sluice._folder import as_gguf

        return {"model": as_gguf(path, WEIGHT_TYPES[dtype], tell), "alias": "model"}
    if path.exists():
        if dtype != "auto":
            raise ValueError(f"dtype is {dtype!r}: {name} has types of its own")
        return {"model": path, "alias": "model"}
    if dtype != "auto" and name.count("/") == 1:
        raise ValueError(f"dtype is {dtype!r}: a repository's files have types of their own")
    if name.count("/") == 1 and not name.startswith((".", "~", "/")) and path.suffix not in (".gguf", ".slc"):
        return {"hf_repo": name}
    raise ValueError(f"model: {name} does not exist")


@dataclass(frozen=True)
class Settings:
    """How a model is run."""

    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int | None
    kv_cache_tokens: int | None
    kv_cache_dtype: str
    enable_prefix_caching: bool
    enable_lora: bool
    max_loras: int
    max_lora_rank: int
    max_cpu_loras: int
    chat_template: str | None
    threads: int | None

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_tokens", "threads"):
            value = getattr(self, name)
            if value is not None and (not is_integer(value) or value < 1):
                raise ValueError(f"{name} is {value!r}, expected at least 1")
        for name, least in (("max_loras", 0), ("max_lora_rank", 1), ("max_cpu_loras", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least {least}")
        if self.kv_cache_dtype not in KV_TYPES:
            raise ValueError(
                f"kv_cache_dtype is {self.kv_cache_dtype!r}, expected one of {', '.join(KV_TYPES)}"
            )
        if self.max_model_len and self.kv_cache_tokens and self.kv_cache_tokens < self.max_model_len:
            raise ValueError(f"kv_cache_tokens is {self.kv_cache_tokens}, less than max_model_len")

    def text_len(self, n_ctx_train: int) -> int:
        """Most tokens of a text."""
        if self.max_model_len is not None:
            return self.max_model_len
        return min(n_ctx_train, self.kv_cache_tokens or n_ctx_train)

    def arguments(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """The engine's arguments for `model`, which `where` has made."""
        kind = KV_TYPES[self.kv_cache_dtype]
        return {
            **model,
            "max_model_len" if self.kv_cache_tokens is None else "kv_cache_tokens": self._n_ctx(model),
            "max_num_seqs": self.max_num_seqs,
            # The caller is its own limit.
            "max_queue": 1000000,
            "type_k": kind,
            "type_v": kind,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "n_ubatch": self.max_num_batched_tokens,
            "cache_ram_mib": None if self.enable_prefix_caching else 0,
            "enable_lora": self.enable_lora,
            "allow_lora_updates": self.enable_lora,
            "max_loras": self.max_loras,
            "max_lora_rank": self.max_lora_rank,
            "max_cpu_loras": self.max_cpu_loras,
            "chat_template": None if self.chat_template is None else template_of(self.chat_template),
            "threads": self.threads,
        }

    def _n_ctx(self, model: Mapping[str, Any]) -> int:
        """Tokens of all texts; 0 is what the model was trained on."""
        if self.kv_cache_tokens is not None:
            return self.kv_cache_tokens
        if self.max_model_len is None:
            return 0
        if "model" not in model:
            return self.max_model_len
        n_ctx_train = Model.open(model["model"]).n_ctx_train
        return max(self.max_model_len, min(self.max_model_len * self.max_num_seqs, n_ctx_train))
