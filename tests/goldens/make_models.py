#!/usr/bin/env python3
"""Write the small random models of this folder.

    make_models.py [NAME ...]

Each has every kind of tensor and setting of its case, in sizes that differ where they may:
1 to 7 layers of width 64, 2 query heads of length 32 that share a KV head, a vocabulary of the
256 bytes. Logits beside them (NAME.logits.f32, (40, n_vocab) float32, row i after tokens 0..=i)
are llama.cpp's as vendored by llama-cpp-python 0.3.36 (ggml 0.25.3), one thread, f16 cache,
n_ctx 64, for the ids 3 + (7 i^2 + 11 i + 5) % 256, i below 40. Needs numpy and gguf.
"""
import sys
from pathlib import Path

import gguf
import numpy as np

N_EMBD, N_FF, N_HEAD, N_KV, HEAD, N_VOCAB = 64, 96, 2, 1, 32, 272
HERE = Path(__file__).parent


def llama3_factors():
    """Divisors as Llama 3.1's: high frequencies kept, low ones divided by 8, a ramp between."""
    turns = 256 / (2 * np.pi) * 1e4 ** (-np.arange(HEAD // 2) / (HEAD // 2))
    share = np.clip((turns - 1) / (4 - 1), 0, 1)
    return (1 / (share + (1 - share) / 8)).astype(np.float32)


def longrope(original):
    """Two sets of divisors, and the context up to which the short one holds."""
    i = np.arange(HEAD // 2, dtype=np.float32)
    tensors = {"rope_factors_short.weight": 1 + i / 50, "rope_factors_long.weight": 1 + i / 3}
    keys = {"rope.scaling.original_context_length": original, "rope.scaling.attn_factor": 1.19}
    return dict(tensors=tensors, keys=keys)


def scaled(kind, factor, **more):
    return {"rope.scaling.type": kind, "rope.scaling.factor": factor, **more}


yarn = scaled("yarn", 4.0, **{"rope.scaling.original_context_length": 2048})
gemma_keys = {"attention.sliding_window": 5, "rope.freq_base": 1e6}
CASES = {
    "llama-linear": dict(arch="llama", layers=1, keys=scaled("linear", 4.0)),
    "llama-llama3": dict(arch="llama", layers=1, tensors={"rope_freqs.weight": llama3_factors()}),
    "llama-yarn": dict(arch="llama", layers=1, keys=yarn),
    "qwen3-yarn": dict(arch="qwen3", layers=1, keys={**yarn, "rope.scaling.attn_factor": 1.2}),
    "llama-longrope": dict(arch="llama", layers=1, tensors=longrope(16)["tensors"],
                           keys={**longrope(16)["keys"], "rope.scaling.type": "longrope"}),
    "phi3-short": dict(arch="phi3", layers=1, **longrope(4096)),
    "phi3-long": dict(arch="phi3", layers=1, **longrope(16)),
    "gemma2": dict(arch="gemma2", layers=3, keys={
        **gemma_keys, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}),
    "gemma3": dict(arch="gemma3", layers=7, keys={**gemma_keys, **scaled("linear", 8.0)}),
    "gemma3-listed": dict(arch="gemma3", layers=3, keys={
        **gemma_keys, "attention.sliding_window_pattern": [True, False, True],
        "rope.freq_base_swa": 5e3, "final_logit_softcapping": 6.0}),
}


def shapes(arch, layers):
    q, kv = N_HEAD * HEAD, N_KV * HEAD
    yield "token_embd.weight", (N_VOCAB, N_EMBD)
    yield "output_norm.weight", (N_EMBD,)
    if arch in ("llama", "phi3"):
        yield "output.weight", (N_VOCAB, N_EMBD)
    for i in range(layers):
        p = f"blk.{i}."
        yield p + "attn_norm.weight", (N_EMBD,)
        if arch == "phi3":
            yield p + "attn_qkv.weight", (q + 2 * kv, N_EMBD)
        else:
            yield p + "attn_q.weight", (q, N_EMBD)
            yield p + "attn_k.weight", (kv, N_EMBD)
            yield p + "attn_v.weight", (kv, N_EMBD)
        if arch in ("qwen3", "gemma3"):
            yield p + "attn_q_norm.weight", (HEAD,)
            yield p + "attn_k_norm.weight", (HEAD,)
        yield p + "attn_output.weight", (N_EMBD, q)
        if arch.startswith("gemma"):
            yield p + "post_attention_norm.weight", (N_EMBD,)
            yield p + "post_ffw_norm.weight", (N_EMBD,)
        yield p + "ffn_norm.weight", (N_EMBD,)
        if arch == "phi3":
            yield p + "ffn_up.weight", (2 * N_FF, N_EMBD)
        else:
            yield p + "ffn_gate.weight", (N_FF, N_EMBD)
            yield p + "ffn_up.weight", (N_FF, N_EMBD)
        yield p + "ffn_down.weight", (N_EMBD, N_FF)


def add(w, key, value):
    if isinstance(value, str):
        w.add_string(key, value)
    elif isinstance(value, list):
        w.add_array(key, value)
    elif isinstance(value, int):
        w.add_uint32(key, value)
    else:
        w.add_float32(key, value)


def write(name, arch, layers, keys={}, tensors={}):
    rng = np.random.default_rng(sum(name.encode()))
    w = gguf.GGUFWriter(HERE / f"{name}.gguf", arch)
    w.add_name("random weights")
    settings = {
        "context_length": 4096, "embedding_length": N_EMBD, "block_count": layers,
        "feed_forward_length": N_FF, "attention.head_count": N_HEAD,
        "attention.head_count_kv": N_KV, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": HEAD, "rope.freq_base": 1e4, **keys,
    }
    for key, value in settings.items():
        add(w, f"{arch}.{key}", value)
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    types = [2, 3, 3] + [6] * 256
    pad = N_VOCAB - len(tokens)
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens + [f"<pad{i}>" for i in range(pad)])
    w.add_token_scores([0.0] * N_VOCAB)
    w.add_token_types(types + [5] * pad)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    for tensor, shape in shapes(arch, layers):
        if len(shape) == 1:
            w.add_tensor(tensor, (rng.random(shape) + 0.5).astype(np.float32))
        else:
            spread = 1.5 / np.sqrt(shape[1])
            w.add_tensor(tensor, (rng.standard_normal(shape) * spread).astype(np.float16))
    for tensor, values in tensors.items():
        w.add_tensor(tensor, np.asarray(values, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


for case in sys.argv[1:] or CASES:
    write(case, **CASES[case])
