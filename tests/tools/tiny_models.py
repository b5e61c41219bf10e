#!/usr/bin/env python3
"""Make the tiny models with random weights in tests/fixtures, and what llama.cpp says of them.

    tiny_models.py OUT_DIR

OUT_DIR/embed/tiny-bert-f16.gguf      a BERT-style encoder
    .hidden.f32                       hidden states of all tokens of each text, one text after the other
    .embeddings.json                  texts, ids, and the normalised embedding of each pooling
OUT_DIR/embed/tiny-bert-Q8_0.gguf     the same, quantised
OUT_DIR/embed/wide-bert-Q4_K_M.gguf   an encoder of rows that K-quants take, quantised
    .hidden.f32
OUT_DIR/experts/odd-experts-f16.gguf  a Mixtral-style model whose counts divide nothing
    .logits.f32                       logits after each prefix of IDS

Needs numpy, gguf, llama-cpp-python (0.3.36 made the files here) and its llama-quantize, named by
LLAMA_QUANTIZE.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

TEXTS = [
    "the sea was calm",
    "A small boat sailed over the sea, and the cat slept.",
    "cat",
    "The cat was unhappy! 12 boats?",
]
IDS = [1, 15, 278, 201, 3, 100, 7, 42, 299, 12, 33, 200, 5, 64, 123, 170]
WORDS = "the sea was calm a small boat sailed over and cat slept un happy s 1 2 , . ! ?".split()


class Writer:
    """A GGUF file with random weights in F16 and other vectors in F32."""

    def __init__(self, path, arch, seed):
        self.gguf = gguf.GGUFWriter(str(path), arch)
        self.random = np.random.default_rng(seed)

    def weight(self, name, *shape, std=0.08, dtype=np.float16):
        self.gguf.add_tensor(name, (self.random.standard_normal(shape) * std).astype(dtype))

    def norm(self, name, n, bias=True):
        weight = self.random.random(n) + 0.5
        self.gguf.add_tensor(name + ".weight", weight.astype(np.float32))
        if bias:
            self.bias(name + ".bias", n)

    def bias(self, name, n):
        self.gguf.add_tensor(name, (self.random.standard_normal(n) * 0.2).astype(np.float32))

    def close(self):
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()


def bert(path, n_embd=64, n_ff=160, n_layer=2):
    n_head, n_ctx = 4, 64
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    starts = list(dict.fromkeys(WORDS + letters))
    tokens = special + ["\u2581" + word for word in starts] + ["boats", "happy"] + letters
    types = [3 if i < len(special) else 1 for i in range(len(tokens))]
    w = Writer(path, "bert", 11)
    g = w.gguf
    g.add_name("tiny random BERT")
    g.add_context_length(n_ctx)
    g.add_embedding_length(n_embd)
    g.add_feed_forward_length(n_ff)
    g.add_block_count(n_layer)
    g.add_head_count(n_head)
    g.add_layer_norm_eps(1e-12)
    g.add_causal_attention(False)
    g.add_pooling_type(gguf.PoolingType.CLS)
    g.add_token_type_count(2)
    g.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    g.add_tokenizer_model("bert")
    g.add_tokenizer_pre("jina-v2-en")
    g.add_token_list(tokens)
    g.add_token_types(types)
    for name, token in (("unknown", 1), ("seperator", 3), ("padding", 0), ("cls", 2), ("mask", 4)):
        g.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    g.add_bos_token_id(2)
    w.weight("token_embd.weight", len(tokens), n_embd, std=0.5)
    w.weight("position_embd.weight", n_ctx, n_embd, std=0.3)
    w.weight("token_types.weight", 2, n_embd, std=0.3, dtype=np.float32)
    w.norm("token_embd_norm", n_embd)
    for i in range(n_layer):
        for part in "qkv":
            w.weight(f"blk.{i}.attn_{part}.weight", n_embd, n_embd, std=0.15)
            w.bias(f"blk.{i}.attn_{part}.bias", n_embd)
        w.weight(f"blk.{i}.attn_output.weight", n_embd, n_embd)
        w.bias(f"blk.{i}.attn_output.bias", n_embd)
        w.norm(f"blk.{i}.attn_output_norm", n_embd)
        w.weight(f"blk.{i}.ffn_up.weight", n_ff, n_embd)
        w.bias(f"blk.{i}.ffn_up.bias", n_ff)
        w.weight(f"blk.{i}.ffn_down.weight", n_embd, n_ff)
        w.bias(f"blk.{i}.ffn_down.bias", n_embd)
        w.norm(f"blk.{i}.layer_output_norm", n_embd)
    w.close()


def odd_experts(path):
    n_embd, n_ff, n_layer, n_head, n_expert, n_used, n_vocab = 72, 40, 2, 6, 5, 3, 300
    w = Writer(path, "llama", 12)
    g = w.gguf
    g.add_name("odd experts")
    g.add_context_length(512)
    g.add_embedding_length(n_embd)
    g.add_feed_forward_length(n_ff)
    g.add_block_count(n_layer)
    g.add_head_count(n_head)
    g.add_head_count_kv(3)
    g.add_key_length(16)
    g.add_value_length(16)
    g.add_rope_dimension_count(16)
    g.add_layer_norm_rms_eps(1e-5)
    g.add_expert_count(n_expert)
    g.add_expert_used_count(n_used)
    g.add_vocab_size(n_vocab)
    g.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    tokens += [f"t{i}" for i in range(n_vocab - len(tokens))]
    g.add_tokenizer_model("llama")
    g.add_token_list(tokens)
    g.add_token_scores([0.0] * n_vocab)
    g.add_token_types([2, 3, 3] + [6] * 256 + [1] * (n_vocab - 259))
    g.add_bos_token_id(1)
    g.add_eos_token_id(2)
    w.weight("token_embd.weight", n_vocab, n_embd, std=1.0)
    w.norm("output_norm", n_embd, bias=False)
    w.weight("output.weight", n_vocab, n_embd, std=0.3)
    for i in range(n_layer):
        w.norm(f"blk.{i}.attn_norm", n_embd, bias=False)
        w.weight(f"blk.{i}.attn_q.weight", n_head * 16, n_embd)
        w.weight(f"blk.{i}.attn_k.weight", 3 * 16, n_embd)
        w.weight(f"blk.{i}.attn_v.weight", 3 * 16, n_embd)
        w.weight(f"blk.{i}.attn_output.weight", n_embd, n_head * 16)
        w.norm(f"blk.{i}.ffn_norm", n_embd, bias=False)
        w.weight(f"blk.{i}.ffn_gate_inp.weight", n_expert, n_embd, std=0.3, dtype=np.float32)
        w.weight(f"blk.{i}.ffn_gate_exps.weight", n_expert, n_ff, n_embd, std=0.2)
        w.weight(f"blk.{i}.ffn_up_exps.weight", n_expert, n_ff, n_embd, std=0.2)
        w.weight(f"blk.{i}.ffn_down_exps.weight", n_expert, n_embd, n_ff, std=0.2)
    w.close()


def embeddings(path):
    """What llama.cpp makes of TEXTS: hidden states of tokens, and each pooling of them."""
    out = {"texts": TEXTS, "made_with": f"llama-cpp-python {llama_cpp.__version__}"}
    hidden = []
    for name, pooling in (
        ("none", llama_cpp.LLAMA_POOLING_TYPE_NONE),
        ("cls", llama_cpp.LLAMA_POOLING_TYPE_CLS),
        ("mean", llama_cpp.LLAMA_POOLING_TYPE_MEAN),
        ("last", llama_cpp.LLAMA_POOLING_TYPE_LAST),
    ):
        model = llama_cpp.Llama(
            str(path), embedding=True, pooling_type=pooling, n_ctx=64, n_batch=64, n_ubatch=64, n_threads=1, verbose=False
        )
        ids = [model.tokenize(text.encode(), add_bos=True, special=False) for text in TEXTS]
        out["ids"] = ids
        if name == "none":
            for text in TEXTS:
                hidden += model.embed(text, normalize=False)
        else:
            out[name] = [model.embed(text, normalize=True) for text in TEXTS]
    np.array(hidden, dtype=np.float32).tofile(path.with_suffix(".hidden.f32"))
    path.with_suffix(".embeddings.json").write_text(json.dumps(out) + "\n")
    print(path, [len(i) for i in out["ids"]], out["cls"][0][:4])


def quantised(path, ty):
    """The file in another type, and llama.cpp's hidden states."""
    out = path.with_name(path.name.replace("f16", ty))
    subprocess.run([os.environ["LLAMA_QUANTIZE"], str(path), str(out), ty, "1"], check=True)
    model = llama_cpp.Llama(
        str(out), embedding=True, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_NONE, n_ctx=64, n_batch=64, n_ubatch=64,
        n_threads=1, verbose=False
    )
    hidden = [row for text in TEXTS for row in model.embed(text, normalize=False)]
    np.array(hidden, dtype=np.float32).tofile(out.with_suffix(".hidden.f32"))


def logits(path):
    model = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, logits_all=True, verbose=False)
    model.eval(IDS)
    scores = np.array(model.scores[: len(IDS)], dtype=np.float32)
    scores.tofile(path.with_suffix(".logits.f32"))
    print(path, scores.shape, scores.argmax(1).tolist(), scores.std())


def main():
    out = Path(sys.argv[1])
    (out / "embed").mkdir(exist_ok=True, parents=True)
    (out / "experts").mkdir(exist_ok=True, parents=True)
    path = out / "embed" / "tiny-bert-f16.gguf"
    bert(path)
    embeddings(path)
    quantised(path, "Q8_0")
    path = out / "embed" / "wide-bert-f16.gguf"
    bert(path, n_embd=256, n_ff=256, n_layer=1)
    quantised(path, "Q4_K_M")
    path.unlink()
    path = out / "experts" / "odd-experts-f16.gguf"
    odd_experts(path)
    logits(path)


if __name__ == "__main__":
    main()
