"""The models that llama.cpp's tests name, as far as they can be had without a network: models.py SLUICE FOLDER TMP

Their stories260K is ../shared/models/stories260k-f32.gguf. The others are made from it and from the fixtures, so that
lengths, vocabularies and routes are theirs and only the words that a model writes may differ:

- in three parts, in place of stories15M in three parts; with tokens to fill in the middle;
- as a mixture whose four experts are alike, and a random adapter for it, in place of stories15M_MOE and its adapter;
- an encoder and a reranker with random weights and the vocabulary of bert-bge (jina-reranker has one of its own);
- for the text of tinygemma3, a random Gemma 3 with stories260K's vocabulary.

TMP is the folder where their tests look for what they would download.
"""
import pathlib, subprocess, sys

import gguf
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared"
STORIES = SHARED / "models/stories260k-f32.gguf"
BERT = SHARED / "goldens/tokenizer/ggml-vocab-bert-bge.gguf"
RANK = ROOT / "tests/fixtures/embed/bert-rank.gguf"
GEMMA = ROOT / "tests/fixtures/models/gemma3.gguf"
RANDOM = np.random.default_rng(1)


def random(*shape, std=0.3):
    return (RANDOM.standard_normal(shape) * std).astype(np.float32)


def copy(path, source, tensors=None, drop=(), words=None, **fields):
    """`source` with other tensors and fields; `words` is a file whose vocabulary it takes."""
    read = gguf.GGUFReader(source)
    arch = read.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, arch)
    kept = {name: field for name, field in read.fields.items() if not (words and name.startswith("tokenizer."))}
    kept |= {name: field for name, field in gguf.GGUFReader(words).fields.items() if name.startswith("tokenizer.")} if words else {}
    fields = {name.replace("__", ".").replace("ARCH", arch): value for name, value in fields.items()}
    for name, field in kept.items():
        if not name.startswith("GGUF.") and name != "general.architecture" and name not in fields:
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for name, value in fields.items():
        if value is not None:
            writer.add_uint32(name, value)
    tensors = tensors or {}
    for tensor in read.tensors:
        if tensor.name not in tensors and not tensor.name.startswith(tuple(drop) or "-"):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    write(writer)


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def mixture(path, experts=4):
    stories = {tensor.name: tensor.data for tensor in gguf.GGUFReader(STORIES).tensors}
    parts = {name.replace(".weight", "_exps.weight"): np.stack([data] * experts)
             for name, data in stories.items() if "ffn_" in name and "norm" not in name}
    gates = {f"blk.{i}.ffn_gate_inp.weight": random(experts, 64) for i in range(5)}
    drop = [name for name in stories if "ffn_" in name and "norm" not in name]
    copy(path, STORIES, parts | gates, drop, ARCH__expert_count=experts, ARCH__expert_used_count=2, ARCH__context_length=2048)


def adapter(path, rank=8):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 16.0)
    for i in range(5):
        for part, rows in (("attn_q", 64), ("attn_v", 32)):
            writer.add_tensor(f"blk.{i}.{part}.weight.lora_a", random(rank, 64))
            writer.add_tensor(f"blk.{i}.{part}.weight.lora_b", random(rows, rank))
    write(writer)


def encoder(path, rank):
    tensors = {"token_embd.weight": random(30522, 32).astype(np.float16), "position_embd.weight": random(512, 32).astype(np.float16)}
    pooling = {} if rank else {"ARCH__pooling_type": 2}
    copy(path, RANK, tensors, () if rank else ["cls."], BERT, ARCH__context_length=512, **pooling)


def hub(folder):
    """The models as a client of the hub caches them, under the names that their router's tests use."""
    for repo, name, source in (
        ("tinygemma3-GGUF", "tinygemma3-Q8_0.gguf", "tinygemma3.gguf"),
        ("test-model-stories260K", "stories260K-F32.gguf", "stories260k.gguf"),
        ("test-model-stories260K-infill", "stories260K-infill-F32.gguf", "infill.gguf"),
    ):
        place = folder / "hub" / f"models--ggml-org--{repo}"
        snapshot = place / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True, exist_ok=True)
        (place / "refs").mkdir(exist_ok=True)
        (place / "refs/main").write_text("0" * 40)
        file = snapshot / name
        file.unlink(missing_ok=True)
        file.symlink_to(folder / source)


def main():
    sluice, folder, tmp = (pathlib.Path(argument) for argument in sys.argv[1:])
    folder.mkdir(exist_ok=True)
    tmp.mkdir(exist_ok=True)
    copy(folder / "stories260k.gguf", STORIES)
    copy(folder / "infill.gguf", STORIES, tokenizer__ggml__fim_pre_token_id=4, tokenizer__ggml__fim_suf_token_id=5,
         tokenizer__ggml__fim_mid_token_id=6, ARCH__context_length=2048)
    mixture(folder / "mixture.gguf")
    encoder(folder / "bert.gguf", rank=False)
    encoder(folder / "rank.gguf", rank=True)
    copy(folder / "tinygemma3.gguf", GEMMA)
    for part in folder.glob("split-*"):
        part.unlink()
    split = ["--split", "--split-max-tensors", "16", folder / "stories260k.gguf", folder / "split"]
    subprocess.run([sluice, "gguf-split", "-q", *split], check=True)
    hub(folder)
    copy(tmp / "stories15M-q4_0.gguf", STORIES, ARCH__context_length=2048)
    adapter(tmp / "moe_shakespeare15M.gguf")


main()
