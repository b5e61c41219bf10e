"""Encodes a text with Sluice and with Hugging Face's `tokenizers`, in turn, and compares.

    cargo build --release -p sluice-tests --example tokenizer_speed
    pip install tokenizers gguf
    python tests/tools/tokenizer_speed.py [ROUNDS] [FOLDER]

FOLDER is the data folder next to the checkout (models/, goldens/, data/). One thread each. HF
encodes the whole text by `encode_batch_fast` (no offsets), we by `Tokenizer::encode`; every round runs
one after the other, and the medians count. The tokens must be the same, but for WordPiece: HF
keeps a combining mark that stands alone, llama.cpp, which we follow, drops it (one token here).

HF's side of the vocabularies without a tokenizer.json is built from the GGUF: `BPE` of its
tokens and merges after the pre-tokenizer that the model's own tokenizer.json has.
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import gguf
import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 11
SHARED = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT.parent / "shared"
OURS = ROOT / "target/release/examples/tokenizer_speed"
TEXT = SHARED / "data/wiki.test.raw"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(splits):
    """GPT-2's own splitting for None, a regular expression's otherwise."""
    if splits is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    split = pre_tokenizers.Split(Regex(splits), "isolated")
    return pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def strings(reader, key):
    field = reader.fields[key]
    return [bytes(field.parts[i]).decode() for i in field.data]


def from_gguf(path, splits, ignore_merges):
    reader = gguf.GGUFReader(path)
    vocabulary = {t: i for i, t in enumerate(strings(reader, "tokenizer.ggml.tokens"))}
    merges = [tuple(m.split(" ")) for m in strings(reader, "tokenizer.ggml.merges")]
    model = models.BPE(vocabulary, merges, ignore_merges=ignore_merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = byte_level(splits)
    return tokenizer


def word_piece(path):
    tokens = strings(gguf.GGUFReader(path), "tokenizer.ggml.tokens")
    # GGUF marks the beginning of a word, HF the middle.
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    own = [
        t[1:] if t[0] == "\u2581" else t if t in special or t[:7] == "[unused" else "##" + t
        for t in tokens
    ]
    model = models.WordPiece({t: i for i, t in enumerate(own)}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def compare(name, path, theirs):
    text = TEXT.read_bytes().decode()
    process = subprocess.Popen(
        [OURS, path, TEXT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def ours(line=""):
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return float(process.stdout.readline().split()[0])

    with tempfile.NamedTemporaryFile() as file:
        ours(file.name)
        data = file.read()
    ids = list(struct.unpack(f"<{len(data) // 4}I", data))
    same = ids == theirs.encode_batch_fast([text], add_special_tokens=False)[0].ids
    times = ([], [])
    for _ in range(ROUNDS):
        times[0].append(ours())
        start = time.perf_counter()
        theirs.encode_batch_fast([text], add_special_tokens=False)
        times[1].append(time.perf_counter() - start)
    process.stdin.close()
    process.wait()
    mine, other = map(statistics.median, times)
    size = len(text.encode()) / 1e6
    print(
        f"{name:12} {len(ids):8} tokens, {'the same' if same else 'DIFFERENT'}: "
        f"sluice {mine * 1e3:7.2f} ms ({size / mine:6.1f} MB/s), "
        f"HF {other * 1e3:8.2f} ms ({size / other:5.1f} MB/s), ratio {other / mine:.1f}",
        flush=True,
    )
    return same or name.startswith("bert")


def main():
    goldens = SHARED / "goldens/tokenizer"
    print(f"tokenizers {tokenizers.__version__}, {TEXT.name}, medians of {ROUNDS} rounds")
    hf = Tokenizer.from_file(str(SHARED / "models/tale-5.8m-hf/tokenizer.json"))
    cases = [("tale-5.8m", SHARED / "models/tale-5.8m-f16.gguf", hf)]
    for name, splits, ignore_merges in [
        ("gpt-2", None, False),
        ("llama-bpe", LLAMA3, True),
        ("qwen2", LLAMA3.replace("{1,3}", ""), False),
    ]:
        path = goldens / f"ggml-vocab-{name}.gguf"
        cases.append((name, path, from_gguf(path, splits, ignore_merges)))
    bert = goldens / "ggml-vocab-bert-bge.gguf"
    cases.append(("bert-bge", bert, word_piece(bert)))
    return 0 if all([compare(*case) for case in cases]) else 1


if __name__ == "__main__":
    sys.exit(main())
