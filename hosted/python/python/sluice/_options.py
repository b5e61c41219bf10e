"""How a model is run: the arguments of `Llama` and `LLM`, as `_native.Service` takes them."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from sluice._native import Model
from sluice.speculative import LlamaPromptLookupDecoding

Path = str | os.PathLike[str]


class Options(TypedDict, total=False):
    """Keyword arguments of `Llama`, `LLM` and `AsyncLLM`, with the names of the flags of `sluice serve`.

    Each may be left out or None, which is its default. A value of another type raises TypeError, one out of range
    ValueError; both name the argument. Speculation, threads, memory and caches never change an answer.

    Engine:
        kv_rotation (bool, True): Rotate keys and values before quantising them to `q8_0`, `q4_0` or `fp8`.
        activation (str): The activation of the networks' gates instead of the file's: `relu`, `drelu`, or
            `fatrelu:0.01` with a threshold, for files of models with zeros that do not name it.
        sparse (str): Which neurons of a file packed by neuron are left unread: `exact`, those that change no bit,
            or `off`; by default `exact`, which has no effect on other files. Given for one of these, it is an error.
            `threshold`, `target`, `top-k:512` and `budget:0.05` leave out more in any file, and change answers.
        sparse_file (path): The calibration file of `threshold` and `target`, made by `sluice sparsify`; by default
            the one next to the model.
        longrope (str): The rotary divisors of a longrope model: `short` or `long`; by default by the text's length.
        isa (str): The kernels: `scalar`, `avx2`, `avx512` and others; by default `SLUICE_ISA`, else the fastest.

    Threads and memory:
        cpu_mask (str): CPUs to use, as a hexadecimal mask: `"0x3"` is CPUs 0 and 1.
        cpu_range (str): CPUs to use, as a range: `"0-3"`. With `cpu_mask` both sets are used.
        cpu_strict (bool): Pin each thread to one of these CPUs, or to all of them (the default). Without given CPUs
            each thread has a CPU of its own.
        cores (str): The cores of a hybrid CPU: `performance`, `efficiency` or `all`; by default `SLUICE_CORES`, else
            the performance cores, or all given CPUs.
        share_by_speed (bool, False): Measure each core's speed and divide the work accordingly.
        prio (int, 0): Scheduling priority: -1 low, 0 normal, 1 medium, 2 high, 3 realtime.
        poll (int, 50): How long idle threads spin before they sleep: 0 never, 100 longest.
        huge_pages (bool, True): Request huge pages.

    Experts on disk (all but the first need it):
        expert_cache_mib (int, MiB, 1 to 2**30): Leave a mixture's experts, or a dense model's cold neurons, on disk and
            cache up to this much; by default `SLUICE_EXPERT_CACHE`, else all are in memory.
        expert_io (str): How they are read: `uring`, `pread` or `mmap`; by default the first that works.
        expert_policy (str, "aged"): Eviction: `aged`, `lru`, `lfu`, `fifo`, `heat`, or `static` with a profile.
        expert_profile (path): The experts that `static` keeps; `sluice experts stats --profile-out` writes it.
        expert_prefetch (bool, True): Read experts before their layer is reached, by a guess.
        expert_dirs (list of paths): Folders with copies of the model on other drives, read in turn.
        expert_trace (path): Append the experts that each layer used to this file.
        expert_check (bool, False): Verify the checksums of experts as they are read.

    Speculation:
        spec_type (str or list of str, "auto"): What drafts: `ngram`, `draft-simple`, `draft-mtp`, `draft-self`, `auto`
            or `none`, as in docs/speculation.md.
        spec_draft_n_max (int, 1 to 16): Maximum number of draft tokens per text and step; by default 8, or 4 if the
            model is recurrent.
        spec_draft_n_min (int, 0 to 16, 0): Minimum number of draft tokens that is worth verifying.
        spec_draft_p_min (float, 0 to 1, 0): Stop drafting at a token that the draft model finds less probable.
        spec_fixed (bool, False): Verify all draft tokens, even where it does not pay.
        threads_draft (int): Number of threads of the draft model; by default the model's.
        ctx_size_draft (int, tokens, 0): Context size of the draft model; 0 is the model's.
        cache_type_k_draft, cache_type_v_draft (str): KV cache types of the draft model; by default the model's.

    Scheduling and caches:
        turn_ms (int, ms, 1 to 60000, 50): Length of a turn, which bounds how long one request delays the others.
        prompt_share (float, 0 to 1, 0.25): Minimum share of a turn for waiting prompts.
        cache_disk_mib (int, MiB, 32768): Maximum size of `prompt_cache_dir`.
        checkpoint_every (int, tokens, 4096): Tokens between checkpoints of a recurrent model's state.
        telemetry_csv (path): Write the time of each scheduler stage to this file.
        threads_http (int, 1 to 256): How many requests are prepared at once; by default the number of threads.
        log_prompts (bool, False): Log prompts.

    Adapters:
        lora_scaled (mapping of paths to float): Adapters that are always applied, with their scales.
        lora_dir (path): A folder whose adapters are offered while they are there.
        lora_dtype (str, "auto"): Their type in memory: `auto`, `int8`, `bf16`, `f16` or `f32`.
        lora_base (path): Folder of the Hugging Face model that PEFT adapters belong to; its config.json is enough.

    Chats:
        chat_template_file (path): A file with the chat template (Jinja).
        chat_template_kwargs (mapping): Variables of the template: `{"enable_thinking": False}`.
        reasoning_format (str, "auto"): `none` leaves reasoning in the content; `auto` and `deepseek` return it apart.
        reasoning_budget (int, tokens, -1): Maximum number of reasoning tokens; 0 for none, -1 for no limit.

    Defaults of requests, for fields that a request leaves out:
        n_predict (int, tokens, -1): Maximum number of tokens of an answer; -1 for no limit.
        context_shift (bool, False): When the context is full, drop its older half and continue.
        samplers (str): The samplers in their order, separated by semicolons.
        sampling_seq (str): The same by letters, such as `"edskypmxt"`.
        dry_sequence_breaker (list of str): Texts that end repetitions, for DRY.
        logit_bias (mapping of int to float): Changes of tokens' logits.
        ignore_eos (bool, False): Continue where the model would end the text.
        temp, dynatemp_range, dynatemp_exp, top_k, top_p, min_p, top_nsigma, xtc_probability, xtc_threshold, typical,
        repeat_last_n, repeat_penalty, presence_penalty, frequency_penalty, dry_multiplier, dry_base,
        dry_allowed_length, dry_penalty_last_n, mirostat, mirostat_ent, mirostat_lr, min_keep: Sampling, with ranges and
            defaults as in the table of docs/serve.md.
    """

    kv_rotation: bool | None
    longrope: str | None
    activation: str | None
    sparse: str | None
    sparse_file: Path | None
    isa: str | None
    cpu_mask: str | None
    cpu_range: str | None
    cpu_strict: bool | None
    cores: str | None
    share_by_speed: bool | None
    prio: int | None
    poll: int | None
    huge_pages: bool | None
    expert_cache_mib: int | None
    expert_io: str | None
    expert_policy: str | None
    expert_profile: Path | None
    expert_prefetch: bool | None
    expert_dirs: Sequence[Path] | None
    expert_trace: Path | None
    expert_check: bool | None
    spec_type: str | Sequence[str] | None
    spec_draft_n_max: int | None
    spec_draft_n_min: int | None
    spec_draft_p_min: float | None
    spec_fixed: bool | None
    threads_draft: int | None
    ctx_size_draft: int | None
    cache_type_k_draft: str | None
    cache_type_v_draft: str | None
    turn_ms: int | None
    prompt_share: float | None
    cache_disk_mib: int | None
    checkpoint_every: int | None
    telemetry_csv: Path | None
    threads_http: int | None
    log_prompts: bool | None
    lora_scaled: Mapping[Path, float] | None
    lora_dir: Path | None
    lora_dtype: str | None
    lora_base: Path | None
    chat_template_file: Path | None
    chat_template_kwargs: Mapping[str, Any] | None
    reasoning_format: str | None
    reasoning_budget: int | None
    n_predict: int | None
    context_shift: bool | None
    samplers: str | None
    sampling_seq: str | None
    dry_sequence_breaker: Sequence[str] | None
    logit_bias: Mapping[int, float] | None
    ignore_eos: bool | None
    temp: float | None
    dynatemp_range: float | None
    dynatemp_exp: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    top_nsigma: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    typical: float | None
    repeat_last_n: int | None
    repeat_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None
    mirostat: int | None
    mirostat_ent: float | None
    mirostat_lr: float | None
    min_keep: int | None


class LLMOptions(Options, total=False):
    """Keyword arguments of `LLM` and `AsyncLLM` for which `Llama` has names of llama-cpp-python's.

    Model:
        hf_file (str): A file of the repository, or a pattern, instead of a quantisation.
        hf_token (str): The access token; by default `HF_TOKEN`, else the one that `hf auth login` has stored.
        offline (bool, False): Use only cached downloads, as with `HF_HUB_OFFLINE=1`.
        use_mmap (bool, True): Map the file instead of reading it; with expert_cache_mib it is read.
        use_mlock (bool, False): Lock the weights in memory.

    Engine:
        numa (str): The NUMA policy: `distribute`, `isolate` or `numactl`; by default the kernel's.
        pooling (str): How token vectors become one: `none`, `mean`, `cls` or `last`; by default what the file says.
        model_draft (path): A smaller model that drafts, with the same vocabulary.
        cache_ram_mib (int, MiB): Memory for cached prompts; -1 is a quarter of what is available. By default that, but
            at most 8192.
        prompt_cache_dir (path): A folder where prompts stay cached across restarts.
    """

    hf_file: str | None
    hf_token: str | None
    offline: bool | None
    use_mmap: bool | None
    use_mlock: bool | None
    numa: str | None
    pooling: str | None
    model_draft: Path | None
    cache_ram_mib: int | None
    prompt_cache_dir: Path | None


class LlamaOptions(Options, total=False):
    """Keyword arguments of `Llama` alone: llama-cpp-python's without effect, or supported at their defaults."""

    n_gpu_layers: Any
    split_mode: Any
    main_gpu: Any
    tensor_split: Any
    offload_kqv: Any
    flash_attn: Any
    op_offload: Any
    swa_full: Any
    no_perf: Any
    n_threads_batch: Any
    embedding: Any
    n_parts: Any
    f16_kv: Any
    low_vram: Any
    mul_mat_q: Any
    n_gqa: Any
    rms_norm_eps: Any
    device: Any
    kv_overrides: Any
    rope_scaling_type: Any
    yarn_ext_factor: Any
    yarn_attn_factor: Any
    yarn_beta_fast: Any
    yarn_beta_slow: Any
    yarn_orig_ctx: Any
    attention_type: Any
    tokenizer: Any
    spm_infill: Any
    rope_freq_base: Any
    rope_freq_scale: Any


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

QUIET = ("embedding", "flash_attn", "n_threads_batch", "no_perf", "swa_full")
"""Those that ask for what is done anyway, or for speed alone: they need no warning."""

FORMER: Mapping[str, Any] = {
    "n_parts": -1,
    "f16_kv": True,
    "low_vram": False,
    "mul_mat_q": True,
    "n_gqa": None,
    "rms_norm_eps": None,
    "device": None,
}
"""Arguments that llama-cpp-python ignores and earlier versions or frameworks have, with their defaults."""

NOT_SUPPORTED: Mapping[str, Any] = {
    "kv_overrides": None,
    "rope_scaling_type": -1,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": 1.0,
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
    "yarn_orig_ctx": 0,
    "attention_type": -1,
    "tokenizer": None,
    "spm_infill": False,
}
"""Arguments of llama-cpp-python that would change answers and are not supported, with its defaults."""

ROPE = ("rope_freq_base", "rope_freq_scale")
"""Accepted if they are the file's, or 0, which stands for the file's."""

NUMA = {1: "distribute", 2: "isolate", 3: "numactl"}

POOLING = {0: "none", 1: "mean", 2: "cls", 3: "last"}
POOLING_NAMES = {-1: "UNSPECIFIED", 0: "NONE", 1: "MEAN", 2: "CLS", 3: "LAST", 4: "RANK"}
UNPOOLED, RANK = 0, 4
"""A vector for each token; scores, of a head that says itself what it reads."""


def llama_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options among keyword arguments that are not in the signature of `Llama`.

    Raises:
        TypeError: An argument is unknown. ValueError: It would change answers and is not supported.
    """
    made = {}
    for name, value in given.items():
        if name in Options.__optional_keys__:
            made[name] = value
        elif name in NOT_SUPPORTED:
            if value not in (None, NOT_SUPPORTED[name], {}):
                raise ValueError(f"{name}: not supported; the file's own setting is used")
        elif name in NOTHING_TO_DO:
            if value not in (None, NOTHING_TO_DO[name]) and name not in QUIET:
                warnings.warn(f"{name} has no effect: models run on the CPU", stacklevel=3)
        elif name in FORMER:
            if value not in (None, FORMER[name]):
                warnings.warn(f"{name} has no effect: llama-cpp-python ignores it, too", stacklevel=3)
        elif name not in ROPE:
            raise TypeError(f"Llama() has no argument {name!r}")
    return made


def check_rope(given: Mapping[str, Any], model: Model) -> None:
    """Compares settings of the rotation, which LangChain always gives, with the file's.

    Raises:
        ValueError: They differ from the file's, which alone is used.
    """
    wanted = {name: given[name] for name in ROPE if given.get(name)}
    if not wanted:
        return
    about = model.metadata()
    prefix = f"{about.get('general.architecture')}.rope"
    factor = about.get(f"{prefix}.scaling.factor") or about.get(f"{prefix}.scale_linear") or 1.0
    own = {"rope_freq_base": about.get(f"{prefix}.freq_base", 10000.0), "rope_freq_scale": 1 / factor}
    for name, value in wanted.items():
        if not math.isclose(value, own[name], rel_tol=1e-6):
            raise ValueError(f"{name} is {value}, but the file's is {own[name]:g}, and no other is supported")


def kv_type(name: str, value: int | str | None) -> str | None:
    """The name of a type of the KV cache, which may be given by its number.

    Raises:
        ValueError: No type has this number.
    """
    if isinstance(value, int) and value not in GGML_TYPES:
        known = ", ".join(f"{number} ({text})" for number, text in GGML_TYPES.items())
        raise ValueError(f"{name} is {value}, expected a name, or one of {known}")
    return GGML_TYPES[value] if isinstance(value, int) else value


def numa_policy(numa: bool | int | str) -> str | None:
    """The name of a NUMA policy, which may be given by its number.

    Raises:
        ValueError: No policy has this number.
    """
    if isinstance(numa, str) or not numa:
        return numa or None
    if int(numa) not in NUMA:
        raise ValueError(f"numa is {numa}, expected 0, 1 (distribute), 2 (isolate) or 3 (numactl)")
    return NUMA[int(numa)]


def pooling(number: int) -> str | None:
    """The name of llama.cpp's pooling `number`; None for what the file says.

    Raises:
        ValueError: No pooling has this number.
    """
    if number not in (-1, RANK, *POOLING):
        known = ", ".join(f"{number} ({name})" for number, name in {**POOLING, RANK: "rank"}.items())
        raise ValueError(f"pooling_type is {number}, expected one of {known}")
    return POOLING.get(number)


def draft(model: object) -> dict[str, Any]:
    """The arguments for a draft model: a file, or prompt lookup.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(model, LlamaPromptLookupDecoding):
        return {"spec_type": "ngram", "num_pred_tokens": model.num_pred_tokens}
    if model is None or isinstance(model, (str, os.PathLike)):
        return {"draft_model": model}
    kind = type(model).__name__
    raise TypeError(f"draft_model is a {kind}, expected a model's file or LlamaPromptLookupDecoding")
