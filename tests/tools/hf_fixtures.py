#!/usr/bin/env python3
"""Tiny Hugging Face folders of every family that `sluice convert` knows, and goldens of them.

    hf_fixtures.py make FIXTURES          write configurations and tokenizers (committed)
    hf_fixtures.py weights FIXTURES OUT   copy each folder to OUT and add its random weights
    hf_fixtures.py golden FILE.gguf       print keys, values and tensor hashes as JSON

The weights follow from tensor names (see `values`), so only shapes are committed; the test
`hosted/cli/tests/cli/convert.rs` makes the same. The goldens under `hosted/cli/tests/cli/convert/` were made
by `convert_hf_to_gguf.py` of llama.cpp (as vendored by llama-cpp-python 0.3.36) with transformers
5.23 and the pre-tokenizer's name given, since it knows only the hashes of published vocabularies.

Needs numpy, safetensors, tokenizers and sentencepiece; `golden` needs gguf.
"""

import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np

N_EMBD, N_FF, N_HEAD, N_HEAD_KV, HEAD_DIM, N_LAYER = 64, 96, 4, 2, 16, 2
N_EXPERT, N_FF_EXP = 4, 32

TEXT = """The sea was calm and the old man rowed out at dawn. He said nothing, and nothing was
said to him. "Who's there?" asked the girl; she'd seen 12 birds, 345 fish and one whale. We've all
heard it, haven't we? Once upon a time there was a little house by the sea, and in the house there
lived a cat. The cat was called Tom. Tom didn't like the rain, but the rain liked Tom. """

FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}

GPT2 = None  # ByteLevel with its own regex
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def base(family, model_type, **more):
    return {
        "architectures": [family],
        "model_type": model_type,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "hidden_act": "silu",
        "hidden_size": N_EMBD,
        "intermediate_size": N_FF,
        "max_position_embeddings": 256,
        "num_attention_heads": N_HEAD,
        "num_key_value_heads": N_HEAD_KV,
        "num_hidden_layers": N_LAYER,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 330,
    } | more


def configs():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    llama3 = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    }
    longrope = {
        "type": "longrope",
        "long_factor": [1.0 + 0.3 * i for i in range(HEAD_DIM // 2)],
        "short_factor": [1.0 + 0.1 * i for i in range(HEAD_DIM // 2)],
    }
    moe = {"num_experts_per_tok": 2}
    gemma = {
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 16,
        "sliding_window": 64,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return {
        "gemma2": (
            base(
                "Gemma2ForCausalLM", "gemma2", attn_logit_softcapping=50.0, final_logit_softcapping=30.0, **gemma
            ),
            ("spm",),
            "BF16",
        ),
        "gemma3": (
            base(
                "Gemma3ForCausalLM",
                "gemma3_text",
                rope_local_base_freq=10000.0,
                rope_scaling={"rope_type": "linear", "factor": 8.0},
                **(gemma | {"rope_theta": 1000000.0}),
            ),
            ("spm",),
            "BF16",
        ),
        "bert": (
            {
                "architectures": ["BertModel"],
                "model_type": "bert",
                "hidden_act": "gelu",
                "hidden_size": N_EMBD,
                "intermediate_size": N_FF,
                "layer_norm_eps": 1e-12,
                "max_position_embeddings": 128,
                "num_attention_heads": N_HEAD,
                "num_hidden_layers": N_LAYER,
                "pad_token_id": 0,
                "position_embedding_type": "absolute",
                "type_vocab_size": 2,
            },
            ("wordpiece",),
            "F32",
        ),
        "lfm2": (
            {
                k: v
                for k, v in base(
                    "Lfm2ForCausalLM",
                    "lfm2",
                    block_auto_adjust_ff_dim=True,
                    block_ff_dim=N_FF,
                    block_ffn_dim_multiplier=1.0,
                    block_multiple_of=32,
                    conv_L_cache=3,
                    conv_bias=False,
                    layer_types=["conv", "full_attention"],
                    norm_eps=1e-05,
                    rope_theta=1000000.0,
                    tie_word_embeddings=True,
                ).items()
                if k not in ("rms_norm_eps", "intermediate_size", "hidden_act")
            },
            ("bpe", LLAMA3),
            "BF16",
        ),
        "gpt-oss": (
            base(
                "GptOssForCausalLM",
                "gpt_oss",
                attention_bias=True,
                head_dim=32,
                intermediate_size=N_FF_EXP,
                layer_types=["sliding_attention", "full_attention"],
                num_local_experts=N_EXPERT,
                quantization_config={"quant_method": "mxfp4"},
                rope_scaling=yarn | {"beta_fast": 32.0, "beta_slow": 1.0},
                rope_theta=150000.0,
                sliding_window=64,
                swiglu_limit=7.0,
                **moe,
            ),
            ("bpe", LLAMA3),
            "BF16",
        ),
        "qwen3-fp8": (
            base(
                "Qwen3ForCausalLM",
                "qwen3",
                head_dim=32,
                quantization_config={"quant_method": "fp8", "weight_block_size": [40, 40]},
            ),
            ("bpe", QWEN2),
            "BF16",
        ),
        "llama3": (
            base("LlamaForCausalLM", "llama", rope_scaling=llama3, rope_theta=500000.0),
            ("bpe", LLAMA3),
            "BF16",
        ),
        "llama-bias": (
            base(
                "LlamaForCausalLM",
                "llama",
                attention_bias=True,
                mlp_bias=True,
                head_dim=32,
                tie_word_embeddings=True,
                rope_scaling={"type": "linear", "factor": 2.0},
            ),
            ("bpe", GPT2),
            "F32",
        ),
        "mistral": (
            base("MistralForCausalLM", "mistral", sliding_window=None, bos_token_id=1, eos_token_id=2),
            ("spm-json",),
            "BF16",
        ),
        "mixtral": (
            base("MixtralForCausalLM", "mixtral", num_local_experts=N_EXPERT, bos_token_id=1, eos_token_id=2, **moe),
            ("spm",),
            "F16",
        ),
        "qwen2": (
            base("Qwen2ForCausalLM", "qwen2", sliding_window=128, use_sliding_window=False, tie_word_embeddings=True),
            ("bpe", QWEN2),
            "BF16",
        ),
        "qwen3": (
            base("Qwen3ForCausalLM", "qwen3", head_dim=32, rope_scaling=yarn),
            ("bpe", QWEN2),
            "BF16",
        ),
        "phi3": (
            base(
                "Phi3ForCausalLM",
                "phi3",
                sliding_window=128,
                original_max_position_embeddings=64,
                rope_scaling=longrope,
                bos_token_id=1,
                eos_token_id=2,
            ),
            ("spm",),
            "BF16",
        ),
        "phi4": (
            base(
                "Phi3ForCausalLM",
                "phi3",
                sliding_window=None,
                original_max_position_embeddings=256,
                partial_rotary_factor=0.75,
                rope_scaling=None,
            ),
            ("bpe", LLAMA3),
            "BF16",
        ),
        "olmoe": (
            base("OlmoeForCausalLM", "olmoe", num_key_value_heads=N_HEAD, num_experts=N_EXPERT, intermediate_size=N_FF_EXP, **moe),
            ("bpe", GPT2),
            "BF16",
        ),
        "qwen3moe": (
            base(
                "Qwen3MoeForCausalLM",
                "qwen3_moe",
                head_dim=32,
                num_experts=N_EXPERT,
                moe_intermediate_size=N_FF_EXP,
                norm_topk_prob=True,
                **moe,
            ),
            ("bpe", QWEN2),
            "BF16",
        ),
    }


def shapes(name, config):
    """Tensor names and shapes as the family's own checkpoints have them."""
    family = config["model_type"]
    if family == "bert":
        return bert_shapes(config)
    head_dim = config.get("head_dim", HEAD_DIM)
    n_q, n_kv = N_HEAD * head_dim, config["num_key_value_heads"] * head_dim
    out = {"model.embed_tokens.weight": [config["vocab_size"], N_EMBD], "model.norm.weight": [N_EMBD]}
    if family == "lfm2":
        out["model.embedding_norm.weight"] = out.pop("model.norm.weight")
    if not config["tie_word_embeddings"]:
        out["lm_head.weight"] = [config["vocab_size"], N_EMBD]
    for i in range(N_LAYER):
        p = f"model.layers.{i}."
        a, m = p + "self_attn.", p + "mlp."
        if family == "lfm2":
            out |= lfm2_shapes(p, config["layer_types"][i])
            continue
        out[p + "input_layernorm.weight"] = [N_EMBD]
        out[p + "post_attention_layernorm.weight"] = [N_EMBD]
        out[a + "o_proj.weight"] = [N_EMBD, n_q]
        if family == "phi3":
            out[a + "qkv_proj.weight"] = [n_q + 2 * n_kv, N_EMBD]
            out[m + "gate_up_proj.weight"] = [2 * N_FF, N_EMBD]
            out[m + "down_proj.weight"] = [N_EMBD, N_FF]
            continue
        for proj, rows in (("q", n_q), ("k", n_kv), ("v", n_kv)):
            out[a + proj + "_proj.weight"] = [rows, N_EMBD]
            if family == "qwen2" or config.get("attention_bias"):
                out[a + proj + "_proj.bias"] = [rows]
        if config.get("attention_bias"):
            out[a + "o_proj.bias"] = [N_EMBD]
        if family.startswith("gemma"):
            out[p + "pre_feedforward_layernorm.weight"] = [N_EMBD]
            out[p + "post_feedforward_layernorm.weight"] = [N_EMBD]
        if family == "gpt_oss":
            out |= gpt_oss_shapes(p)
            continue
        if family in ("qwen3", "qwen3_moe", "gemma3_text"):
            out[a + "q_norm.weight"] = out[a + "k_norm.weight"] = [head_dim]
        if family == "olmoe":
            out[a + "q_norm.weight"], out[a + "k_norm.weight"] = [n_q], [n_kv]
        if family == "mixtral":
            m = p + "block_sparse_moe."
            out[m + "gate.weight"] = [N_EXPERT, N_EMBD]
            for e in range(N_EXPERT):
                out[m + f"experts.{e}.w1.weight"] = [N_FF, N_EMBD]
                out[m + f"experts.{e}.w2.weight"] = [N_EMBD, N_FF]
                out[m + f"experts.{e}.w3.weight"] = [N_FF, N_EMBD]
        elif family in ("olmoe", "qwen3_moe"):
            out[m + "gate.weight"] = [N_EXPERT, N_EMBD]
            for e in range(N_EXPERT):
                out[m + f"experts.{e}.gate_proj.weight"] = [N_FF_EXP, N_EMBD]
                out[m + f"experts.{e}.up_proj.weight"] = [N_FF_EXP, N_EMBD]
                out[m + f"experts.{e}.down_proj.weight"] = [N_EMBD, N_FF_EXP]
        else:
            for proj, shape in (("gate", [N_FF, N_EMBD]), ("up", [N_FF, N_EMBD]), ("down", [N_EMBD, N_FF])):
                out[m + proj + "_proj.weight"] = shape
                if config.get("mlp_bias"):
                    out[m + proj + "_proj.bias"] = [shape[0]]
    return out


def bert_shapes(config):
    out = {
        "embeddings.word_embeddings.weight": [config["vocab_size"], N_EMBD],
        "embeddings.position_embeddings.weight": [config["max_position_embeddings"], N_EMBD],
        "embeddings.token_type_embeddings.weight": [2, N_EMBD],
        "pooler.dense.weight": [N_EMBD, N_EMBD],
        "pooler.dense.bias": [N_EMBD],
    }
    norms = ["embeddings.LayerNorm"]
    for i in range(N_LAYER):
        p = f"encoder.layer.{i}."
        norms += [p + "attention.output.LayerNorm", p + "output.LayerNorm"]
        for name, rows, columns in (
            ("attention.self.query", N_EMBD, N_EMBD),
            ("attention.self.key", N_EMBD, N_EMBD),
            ("attention.self.value", N_EMBD, N_EMBD),
            ("attention.output.dense", N_EMBD, N_EMBD),
            ("intermediate.dense", N_FF, N_EMBD),
            ("output.dense", N_EMBD, N_FF),
        ):
            out[p + name + ".weight"], out[p + name + ".bias"] = [rows, columns], [rows]
    return out | {f"{n}.{part}": [N_EMBD] for n in norms for part in ("weight", "bias")}


def lfm2_shapes(p, kind):
    # 2/3 of N_FF, and up to the next multiple of 32.
    n_ff, n_kv = 64, N_HEAD_KV * HEAD_DIM
    out = {p + "operator_norm.weight": [N_EMBD], p + "ffn_norm.weight": [N_EMBD]}
    out |= {p + f"feed_forward.{w}.weight": [n_ff, N_EMBD] for w in ("w1", "w3")}
    out[p + "feed_forward.w2.weight"] = [N_EMBD, n_ff]
    if kind == "conv":
        return out | {
            p + "conv.in_proj.weight": [3 * N_EMBD, N_EMBD],
            p + "conv.out_proj.weight": [N_EMBD, N_EMBD],
            p + "conv.conv.weight": [N_EMBD, 1, 3],
        }
    a = p + "self_attn."
    out |= {a + f"{n}_proj.weight": [r, N_EMBD] for n, r in (("q", N_EMBD), ("k", n_kv), ("v", n_kv), ("out", N_EMBD))}
    return out | {a + "q_layernorm.weight": [HEAD_DIM], a + "k_layernorm.weight": [HEAD_DIM]}


def gpt_oss_shapes(p):
    m = p + "mlp."
    return {
        p + "self_attn.sinks": [N_HEAD],
        m + "router.weight": [N_EXPERT, N_EMBD],
        m + "router.bias": [N_EXPERT],
        m + "experts.gate_up_proj_blocks": [N_EXPERT, 2 * N_FF_EXP, N_EMBD // 32, 16],
        m + "experts.gate_up_proj_scales": [N_EXPERT, 2 * N_FF_EXP, N_EMBD // 32],
        m + "experts.gate_up_proj_bias": [N_EXPERT, 2 * N_FF_EXP],
        m + "experts.down_proj_blocks": [N_EXPERT, N_EMBD, N_FF_EXP // 32, 16],
        m + "experts.down_proj_scales": [N_EXPERT, N_EMBD, N_FF_EXP // 32],
        m + "experts.down_proj_bias": [N_EXPERT, N_EMBD],
    }


def table_of(name, config, dtype):
    """Type and shape of each tensor."""
    out = {tensor: [dtype, shape] for tensor, shape in sorted(shapes(name, config).items())}
    for tensor, (_, shape) in list(out.items()):
        if tensor.endswith(("_blocks", "_scales")):
            out[tensor] = ["U8", shape]
        if name == "qwen3-fp8" and tensor.endswith("_proj.weight"):
            out[tensor] = ["F8_E4M3", shape]
            out[tensor + "_scale_inv"] = ["F32", [-(-n // 40) for n in shape]]
    return dict(sorted(out.items()))


def values(name, n, dtype):
    """n numbers in -1/16..1/16 that are exact in the type: element i is from splitmix64(fnv(name) + i)."""
    bits = {"BF16": 8, "F16": 11, "F32": 24}[dtype]
    z = numbers(name, n)
    k = (z >> np.uint64(64 - bits)).astype(np.int64) - (1 << (bits - 1))
    return (k.astype(np.float64) / (1 << (bits + 3))).astype(np.float32)


def numbers(name, n):
    start = int(fnv(name.encode()), 16)
    with np.errstate(over="ignore"):
        z = np.uint64(start) + np.arange(n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def data(name, shape, dtype):
    if dtype in ("U8", "F8_E4M3"):
        z = (numbers(name, int(np.prod(shape))) >> np.uint64(56)).astype(np.uint8)
        # Scales near 1, and no bits that are no number.
        if name.endswith("_scales"):
            z = 120 + z % 8
        if dtype == "F8_E4M3":
            z = z & 0xF7
        return z.astype(np.uint8).tobytes()
    x = values(name, int(np.prod(shape)), dtype)
    if dtype == "F32":
        return x.tobytes()
    if dtype == "F16":
        return x.astype(np.float16).tobytes()
    return (x.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def safetensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    blobs = []
    for name, (dtype, shape) in tensors.items():
        blobs.append(data(name, shape, dtype))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(blobs[-1])]}
        at += len(blobs[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def bpe(out, regex):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer(models.BPE(ignore_merges=out.name == "llama3"))
    if regex is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(regex), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|begin|>", "<|end|>"]
    # transformers adds this one to Qwen2's vocabulary if it is not there.
    pad = "<|endoftext|>" if out.name == "qwen2" else "<|pad|>"
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_special_tokens([AddedToken(pad, normalized=False, special=True)])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False, special=False)])
    tokenizer.add_tokens([AddedToken("<|tool|>", normalized=False, special=False)])
    if regex == LLAMA3:
        ids = [("<|begin|>", 0)]
        tokenizer.post_processor = TemplateProcessing(
            single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B:1", special_tokens=ids
        )
    tokenizer.save(str(out / "tokenizer.json"))
    about = {
        "tokenizer_class": "GPT2Tokenizer" if "phi4" in out.name else "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "pad_token": {"__type": "AddedToken", "content": pad} | FLAGS | {"special": True},
        "add_bos_token": regex == LLAMA3,
        "chat_template": "{% for m in messages %}<|begin|>{{ m.content }}<|end|>{% endfor %}",
        "model_max_length": 256,
    }
    if "qwen3" in out.name:
        # A list of named templates, and one in a file of its own.
        template = about.pop("chat_template")
        if out.name == "qwen3moe":
            about["chat_template"] = [
                {"name": "default", "template": template},
                {"name": "tool use", "template": "T" + template},
            ]
        else:
            (out / "chat_template.jinja").write_text("J" + template)
    (out / "tokenizer_config.json").write_text(json.dumps(about, indent=1) + "\n")


def wordpiece(out):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(out / "tokenizer.json"))
    about = {
        "tokenizer_class": "BertTokenizer",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "mask_token": "[MASK]",
        "do_lower_case": True,
        "model_max_length": 128,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(about, indent=1) + "\n")
    (out / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": N_EMBD, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (out / "1_Pooling" / "config.json").write_text(json.dumps(pooling) + "\n")
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    (out / "modules.json").write_text(json.dumps(modules, indent=1) + "\n")
    return tokenizer.get_vocab_size()


def spm_tokens(prefix):
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()),
        model_writer=model,
        vocab_size=322,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=prefix,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return model.getvalue(), processor


def added(id, content, special):
    return {"id": id, "content": content} | FLAGS | {"special": special}


def spm(out, with_model):
    is_gemma = "gemma" in out.name
    proto, processor = spm_tokens(not is_gemma)
    tokens = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    n = len(tokens)
    specials = [added(0, "<unk>", True), added(1, "<s>", True), added(2, "</s>", True)]
    extra = [added(n, "<|user|>", True), added(n + 1, "<x>", False)]
    about = {
        "tokenizer_class": "LlamaTokenizer",
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "added_tokens_decoder": {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in specials + extra},
        "legacy": False,
    }
    if out.name == "mixtral":
        about["add_prefix_space"] = True
    (out / "tokenizer_config.json").write_text(json.dumps(about, indent=1) + "\n")
    ranks = {token: i for i, token in enumerate(tokens)}
    merges = []
    for token in tokens[259:]:
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        pairs = [p for p in pairs if p[0] in ranks and p[1] in ranks]
        merges += [list(p) for p in sorted(pairs, key=lambda p: ranks[p[0]])]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": specials + extra,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                *([] if is_gemma else [{"type": "Prepend", "prepend": "\u2581"}]),
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "<s>", "type_id": 1}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *([] if is_gemma else [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]),
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": ranks,
            "merges": merges,
        },
    }
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False, indent=0) + "\n")
    if with_model:
        (out / "tokenizer.model").write_bytes(proto)
    return n + 2


def make(root):
    for name, (config, tokenizer, dtype) in configs().items():
        out = root / name
        out.mkdir(parents=True, exist_ok=True)
        if tokenizer[0] == "bpe":
            bpe(out, tokenizer[1])
        elif tokenizer[0] == "wordpiece":
            config["vocab_size"] = wordpiece(out)
        else:
            n_vocab = spm(out, tokenizer[0] == "spm")
            # Without tokenizer.model llama.cpp pads nothing.
            config["vocab_size"] = n_vocab if tokenizer[0] == "spm-json" else n_vocab + 6
        (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        if name == "llama3":
            generation = {"temperature": 0.6, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1}
            (out / "generation_config.json").write_text(json.dumps(generation | {"eos_token_id": [1, 320]}) + "\n")
        table = table_of(name, config, dtype)
        rows = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in table.items())
        (out / "tensors.json").write_text("{\n" + rows + "\n}\n")


def weights(root, out):
    for folder in sorted(p for p in root.iterdir() if (p / "tensors.json").is_file()):
        to = out / folder.name
        shutil.copytree(folder, to, dirs_exist_ok=True)
        tensors = {k: tuple(v) for k, v in json.loads((folder / "tensors.json").read_text()).items()}
        if folder.name not in SHARDED:
            safetensors(to / "model.safetensors", tensors)
            continue
        # Interleaved over three files.
        parts = [{}, {}, {}]
        for i, (name, about) in enumerate(tensors.items()):
            parts[i % 3][name] = about
        weight_map = {}
        for i, part in enumerate(parts):
            file = f"model-{i + 1:05}-of-00003.safetensors"
            safetensors(to / file, part)
            weight_map |= {name: file for name in part}
        index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
        (to / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


SHARDED = ("llama3", "qwen3moe")


def golden(path):
    from gguf import GGUFReader, GGUFValueType

    reader = GGUFReader(path)
    keys = {}
    for field in reader.fields.values():
        if field.name.startswith("GGUF."):
            continue
        value = field.contents()
        if isinstance(value, list) and len(value) > 8:
            value = {"len": len(value), "fnv": fnv("\n".join(map(str, value)).encode())}
        keys[field.name] = [[GGUFValueType(t).name for t in field.types], value]
    tensors = [
        [t.name, [int(n) for n in t.shape], t.tensor_type.name, fnv(t.data.tobytes())] for t in reader.tensors
    ]
    rows = ",\n".join("  " + json.dumps(t) for t in tensors)
    fields = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in keys.items())
    print('{\n "metadata": {\n' + fields + '\n },\n "tensors": [\n' + rows + "\n ]\n}")


def fnv(data):
    """FNV-1a of 64 bits, in hexadecimal."""
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & (2**64 - 1)
    return f"{h:016x}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", root]:
            make(Path(root))
        case ["weights", root, out]:
            weights(Path(root), Path(out))
        case ["golden", path]:
            golden(path)
        case _:
            sys.exit(__doc__)
