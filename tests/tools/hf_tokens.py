#!/usr/bin/env python3
"""Texts by chance, and what Hugging Face's `tokenizers` (0.23) makes of them with the vocabularies of
`tests/fixtures/tokenizer`: the models' own rules, where llama.cpp's are approximations.

    pip install tokenizers==0.23.* gguf sentencepiece protobuf
    python tests/tools/hf_tokens.py 110 > tests/fixtures/tokenizer/hugging_face.json
    mkdir /tmp/vocabularies && python tests/tools/hf_tokens.py 20000 /tmp/vocabularies > /tmp/cases.json
    SLUICE_TOKENS=/tmp/cases.json cargo test --release -p sluice-tests --test tokenizer_goldens

The folder is for Unigram vocabularies with the whole of NFKC. The expressions are those of the published
tokenizer.json files. Left out are falcon, which looks for digits
after bytes have become letters, where some of these letters are numbers; and texts with characters that are
younger than Hugging Face's tables: for BERT, and where texts are composed (Unicode 8 and 9).
"""
import json
import random
import sys
import unicodedata
from pathlib import Path

import gguf
import unigram
from hard_texts import text_of
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

FIXTURES = Path(__file__).parent.parent / "fixtures/tokenizer"
FOLDED = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
OTHER = r" ?[^\s\p{L}\p{N}]+"
FRONT = r"[^\r\n\p{L}\p{N}]?"
LLAMA3 = rf"{FOLDED}|{FRONT}\p{{L}}+|\p{{N}}{{1,3}}|{OTHER}[\r\n]*|{SPACES}"
QWEN2 = rf"{FOLDED}|{FRONT}\p{{L}}+|\p{{N}}|{OTHER}[\r\n]*|{SPACES}"
QWEN35 = rf"{FOLDED}|{FRONT}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
SEED_CODER = rf"{FOLDED}|{FRONT}\p{{L}}+|\p{{N}}|{OTHER}|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = (rf"{FRONT}{UPPER}*{LOWER}+{FOLDED}?|{FRONT}{UPPER}+{LOWER}*{FOLDED}?|\p{{N}}{{1,3}}|{OTHER}[\r\n/]*|{SPACES}")
TEKKEN = rf"{FRONT}{UPPER}*{LOWER}+|{FRONT}{UPPER}+{LOWER}*|\p{{N}}|{OTHER}[\r\n/]*|{SPACES}"
EAST_ASIAN = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|"
    "[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
DEEPSEEK_V3 = [
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}",
]
DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370"
    "-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-"
    "\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-"
    "\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-"
    "\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4"
    "\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a"
    "-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-"
    "\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-"
    "\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-"
    "\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-"
    "\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"]
DEEPSEEK_LLM = [
    "[\r\n]", rf"\s?[{DEEPSEEK_LETTERS}]+", r"\s?" + "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", DEEPSEEK_CJK, r"\p{N}+",
]
RULES = {
    "gpt-2": None, "olmo": None,
    "llama-bpe": [LLAMA3], "dbrx": [LLAMA3], "chatglm-bpe": [LLAMA3],
    "qwen2": [QWEN2], "qwen35": [QWEN35], "seed-coder": [SEED_CODER],
    "gpt-4o": [GPT4O], "tekken": [TEKKEN], "granite-embed-multi-97m": [GPT4O],
    "youtu": [EAST_ASIAN, GPT4O.replace("{1,3}", "")],
    "deepseek-v3": DEEPSEEK_V3, "deepseek-llm": DEEPSEEK_LLM, "deepseek-coder": DEEPSEEK_CODER,
    "starcoder": "digits", "smollm": "digits", "command-r": "digits", "exaone": "digits",
}
# A word is one token where it can be, in these.
IGNORE_MERGES = {"llama-bpe", "tekken", "youtu", "granite-embed-multi-97m"}
# Texts are composed before they are cut.
COMPOSES = {"qwen2", "qwen35", "olmo", "command-r"}


def is_told_apart(c):
    """Whether Hugging Face's tables for BERT (of the crate `unicode_categories`, Unicode 8) have the category
    that younger versions have."""
    category = unicodedata.category(c)
    pieces = BERT_WORDS.pre_tokenize_str(BERT.normalize_str(f"a{c}b"))
    words = [word for word, _ in pieces]
    if category == "Mn" or category in ("Cc", "Cf", "Co"):
        return c in "\t\n\r" or words == ["ab"]
    return len(words) == 3 if category[0] == "P" else words != ["ab"]


def is_composed_alike(c):
    """Whether Hugging Face's tables for composing have the character's decomposition and class."""
    category = unicodedata.combining(c)
    row = "x\u0345" + c if category < 240 else "x" + c + "\u0301"
    return all(NFC.normalize_str(text) == unicodedata.normalize("NFC", text) for text in (c, row))


BERT, BERT_WORDS = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
NFC = normalizers.NFC()


def field(reader, key):
    part = reader.get_field(key)
    return part.contents() if part else None


def byte_level(rules):
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rules is None or rules == "digits")
    if rules == "digits":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), last])
    splits = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in rules or []]
    return pre_tokenizers.Sequence([*splits, last])


def bpe():
    reader = gguf.GGUFReader(FIXTURES / "bpe.gguf")
    vocab = {token: i for i, token in enumerate(field(reader, "tokenizer.ggml.tokens"))}
    merges = [tuple(line.split(" ")) for line in field(reader, "tokenizer.ggml.merges")]
    for pre, rules in RULES.items():
        model = models.BPE(vocab, merges, ignore_merges=pre in IGNORE_MERGES)
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = byte_level(rules)
        if pre in COMPOSES:
            tokenizer.normalizer = normalizers.NFC()
        yield {"file": "bpe", "pre": pre}, tokenizer


def bert():
    reader = gguf.GGUFReader(FIXTURES / "bert.gguf")
    tokens = field(reader, "tokenizer.ggml.tokens")
    # A GGUF file marks what begins a word, BERT's own vocabulary what continues one.
    own = [t[1:] if t.startswith("▁") else t if t.startswith("[") and len(t) > 1 else "##" + t for t in tokens]
    vocab = {token: i for i, token in enumerate(own)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    yield {"file": "bert", "pre": None}, tokenizer


def unigrams(texts):
    yield "unigram", unigram.Peers(unigram.read(FIXTURES / "unigram.gguf"), "xlm-roberta")
    if len(sys.argv) > 2:
        yield from unigram.variants(texts, sys.argv[2])


def main():
    dice = random.Random(20261126)
    texts = [text_of(dice) for _ in range(int(sys.argv[1]))]
    cases = []
    for case, tokenizer in [*bpe(), *bert()]:
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        if case["file"] == "bert":
            is_old = [all(map(is_told_apart, text)) for text in texts]
            ids = [there if old else None for there, old in zip(ids, is_old)]
        elif case["pre"] in COMPOSES:
            is_old = [all(map(is_composed_alike, text)) for text in texts]
            ids = [there if old else None for there, old in zip(ids, is_old)]
        cases.append({**case, "ids": ids})
    for file, peers in unigrams(texts):
        cases.append({"file": file, "pre": None, "ids": [peers.ids(text) for text in texts]})
        print(f"{file}: {peers.differ} texts as SentencePiece normalises them", file=sys.stderr)
    print(json.dumps({"texts": texts, "cases": cases}, ensure_ascii=True, separators=(",", ":")))


if __name__ == "__main__":
    main()
