"""From the arguments of `Llama` to the flags of `sluice serve`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice._formats import template_of
from sluice.speculative import LlamaPromptLookupDecoding

GGML_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 8: "q8_0", 30: "bf16"}
"""Numbers of ggml's types that a KV cache may have."""

NOTHING_TO_DO: Mapping[str, Any] = {
    "n_gpu_layers": 0,
    "split_mode": 1,
    "main_gpu": 0,
    "tensor_split": None,
    "offload_kqv": True,
    "flash_attn": False,
    "op_offload": None,
    "swa_full": None,
    "no_perf": False,
    "n_threads_batch": None,
    "embedding": False,
}
"""Arguments of llama-cpp-python without effect here, with its defaults: no GPU is used, one team of threads
reads and writes, and every model gives embeddings."""

NOT_SUPPORTED: Mapping[str, Any] = {
    "kv_overrides": None,
    "rope_scaling_type": -1,
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": 1.0,
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
    "yarn_orig_ctx": 0,
    "attention_type": -1,
    "lora_base": None,
    "tokenizer": None,
    "spm_infill": False,
}
"""Arguments of llama-cpp-python that would change answers and are not supported, with its defaults."""

NUMA = {1: "distribute", 2: "isolate", 3: "numactl"}

POOLING = {0: "none", 1: "mean", 2: "cls", 3: "last"}
UNPOOLED, RANK = 0, 4
"""A vector for each token; scores, of a head that says itself what it reads."""


def without_effect(given: Mapping[str, Any]) -> None:
    """Looks at arguments that this constructor does not have.

    Raises:
        TypeError: one is unknown. ValueError: one would change answers and is not supported.
    """
    for name, value in given.items():
        if name in NOT_SUPPORTED:
            if value != NOT_SUPPORTED[name]:
                raise ValueError(f"{name}: not supported; what the file says is taken")
        elif name in NOTHING_TO_DO:
            quiet = value == NOTHING_TO_DO[name] or name in ("embedding", "flash_attn", "no_perf", "swa_full")
            if not quiet:
                warnings.warn(f"{name} changes nothing here: models run on the CPU", stacklevel=3)
        else:
            raise TypeError(f"Llama() has no argument {name!r}")


def kv_type(name: str, value: int | str) -> str:
    """The name of a type of the KV cache.

    Raises:
        ValueError: The type is unknown.
    """
    if isinstance(value, str):
        return value
    if value not in GGML_TYPES:
        known = ", ".join(f"{number} ({text})" for number, text in GGML_TYPES.items())
        raise ValueError(f"{name} is {value}, expected a name, or one of {known}")
    return GGML_TYPES[value]


def draft_flags(draft: object) -> list[str]:
    """The flags for a draft model: a file, or prompt lookup.

    Raises:
        TypeError: it is something else.
    """
    if draft is None:
        return []
    if isinstance(draft, LlamaPromptLookupDecoding):
        return draft.flags()
    if isinstance(draft, (str, os.PathLike)):
        return ["--model-draft", os.fspath(draft)]
    kind = type(draft).__name__
    raise TypeError(f"draft_model is a {kind}, expected a model's file or LlamaPromptLookupDecoding")


def lora_flags(
    path: str | os.PathLike[str] | None, scale: float, modules: Mapping[str, str | os.PathLike[str]] | None
) -> list[str]:
    """The flags for an adapter that is always on, and for those that requests name."""
    flags: list[str] = []
    if path is not None:
        if "," in os.fspath(path):
            raise ValueError(
                f"lora_path: {os.fspath(path)} has a comma, which separates adapters; use lora_modules"
            )
        flags += ["--lora-scaled", f"{os.fspath(path)}:{float(scale)!r}"]
    if modules:
        flags += ["--lora-modules", *(f"{name}={os.fspath(path)}" for name, path in modules.items())]
    return flags


def expert_flags(
    cache_mib: int | None,
    io: str | None,
    policy: str | None,
    profile: str | os.PathLike[str] | None,
    prefetch: bool,
    dirs: Sequence[str | os.PathLike[str]],
) -> list[str]:
    """The flags for experts that stay on disk.

    Raises:
        ValueError: `cache_mib` is out of range, or not given and another is.
    """
    made: list[str] = []
    if io is not None:
        made += ["--expert-io", io]
    if policy is not None:
        made += ["--expert-policy", policy]
    if profile is not None:
        made += ["--expert-profile", os.fspath(profile)]
    if not prefetch:
        made.append("--no-expert-prefetch")
    for folder in dirs:
        if "," in os.fspath(folder):
            raise ValueError(f"expert_dirs: {os.fspath(folder)} has a comma, which separates folders")
        made += ["--expert-dir", os.fspath(folder)]
    if cache_mib is None:
        if made:
            raise ValueError(f"{made[0]}: expert_cache_mib is needed, too: experts are in memory without it")
        return []
    if isinstance(cache_mib, bool) or not isinstance(cache_mib, int) or cache_mib < 1:
        raise ValueError(f"expert_cache_mib is {cache_mib!r}, expected at least 1")
    return ["--expert-cache", str(cache_mib), *made]


def flags(
    model_path: Path,
    *,
    n_ctx: int,
    n_batch: int,
    n_ubatch: int,
    n_threads: int | None,
    n_parallel: int,
    use_mmap: bool,
    use_mlock: bool,
    numa: bool | int,
    type_k: int | str | None,
    type_v: int | str | None,
    pooling_type: int,
    chat_template: str | None,
    cache_ram_mib: int,
    prompt_cache_dir: str | os.PathLike[str] | None,
    max_queue: int,
    more: Sequence[str],
) -> list[str]:
    """The flags of `sluice serve` for these arguments.

    Raises:
        ValueError: one is out of range.
    """
    made = ["--model", f"model={model_path}", "--ctx-size", str(n_ctx)]
    made += ["--batch-size", str(n_batch), "--ubatch-size", str(min(n_ubatch, n_batch))]
    made += ["--parallel", str(n_parallel), "--max-queue", str(max_queue), "--cache-ram", str(cache_ram_mib)]
    if n_threads is not None:
        made += ["--threads", str(n_threads)]
    made += ["--load-mode", "mmap" if use_mmap else "none"]
    if use_mlock:
        made.append("--mlock")
    if numa:
        if int(numa) not in NUMA:
            raise ValueError(f"numa is {numa}, expected 0, 1 (distribute), 2 (isolate) or 3 (numactl)")
        made += ["--numa", NUMA[int(numa)]]
    if type_k is not None:
        made += ["--cache-type-k", kv_type("type_k", type_k)]
    if type_v is not None:
        made += ["--cache-type-v", kv_type("type_v", type_v)]
    if pooling_type not in (-1, RANK):
        if pooling_type not in POOLING:
            known = ", ".join(f"{number} ({name})" for number, name in {**POOLING, RANK: "rank"}.items())
            raise ValueError(f"pooling_type is {pooling_type}, expected one of {known}")
        made += ["--pooling", POOLING[pooling_type]]
    if chat_template is not None:
        made += ["--chat-template", template_of(chat_template)]
    if prompt_cache_dir is not None:
        made += ["--cache-dir", os.fspath(prompt_cache_dir)]
    return [*made, *more]
