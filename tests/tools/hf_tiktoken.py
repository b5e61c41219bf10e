#!/usr/bin/env python3
"""A small vocabulary of tiktoken and the tokens that the tiktoken package makes with it, as Kimi's models use it.

    tests/tools/hf_tiktoken.py        writes hosted/cli/tests/cli/tiktoken/{tiktoken.model,tokens.json}

Ranks are trained here on the project's own README; the expression that cuts text is Kimi K2's. Needs the packages
tiktoken and tokenizers.
"""

import base64
import json
import pathlib
import random

import tiktoken
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "hosted/cli/tests/cli/tiktoken"
N_RANKS = 640
WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
)
CAPITALS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
)
KIMI = "|".join(
    [
        r"[\p{Han}]+",
        WORDS,
        CAPITALS,
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
NAMED = {"[BOS]": 0, "[EOS]": 1, "<|im_end|>": 2, "<|tool_call_begin|>": 11}


def ranks():
    """Bytes first, in an order of their own, then what is trained; and one token that its parts do not make."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=N_RANKS - 1, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([(ROOT / "README.md").read_text()] * 2, trainer)
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable}
    byte_of |= {chr(0x100 + n): byte for n, byte in enumerate(rest)}
    trained = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    tokens = [bytes(byte_of[c] for c in text) for text, _ in trained]
    tokens = [*sorted(token for token in tokens if len(token) == 1)[::-1], *(t for t in tokens if len(t) > 1)]
    return {token: rank for rank, token in enumerate([*tokens, b" xylophone"])}


def texts():
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line.strip()]
    draw = random.Random(7)
    mixed = ["日本語カタカナ", "a'S I'LL", "1234567", "Ünïcödé", "e\u0301a", "\r\n\n  \t x", "?!…", "xylophone", "한국어", "中文abc"]
    made = [" ".join(draw.choices(mixed, k=6)) for _ in range(30)]
    raw = ["".join(chr(draw.choice([draw.randrange(32, 0x250), draw.randrange(0x3040, 0x9FFF)])) for _ in range(24))
           for _ in range(30)]
    return [*draw.sample(lines, 20), *made, *raw, "", " ", "[EOS] and <|im_end|>"]


def main():
    all_ranks = ranks()
    OUT.mkdir(exist_ok=True)
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in all_ranks.items()]
    (OUT / "tiktoken.model").write_text("".join(lines))
    special = {name: N_RANKS + n for name, n in NAMED.items()}
    encoding = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=all_ranks, special_tokens=special)
    tokens = [[text, encoding.encode(text, allowed_special="all")] for text in texts()]
    written = json.dumps({"special": special, "tokens": tokens}, ensure_ascii=True, indent=None)
    (OUT / "tokens.json").write_text(written.replace("], [\"", "],\n[\"") + "\n")


if __name__ == "__main__":
    main()
