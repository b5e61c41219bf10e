#!/usr/bin/env python3
"""Where the models' own expressions cut texts, for the names in `tokenizer.ggml.pre` of which an expression is known.

    pip install tokenizers==0.23.* gguf sentencepiece protobuf
    tests/tools/hf_rules.py > tests/fixtures/tokenizer/rules.json

Texts are from `hard_texts.py`, and rows of characters of every kind that expressions tell apart: marks, title case, letters
without case, Han. `SOURCES` says where each expression is from; docs/convert.md lists the names without one.
"""
import json
import random
import unicodedata

from tokenizers import Regex, pre_tokenizers

import hard_texts
import hf_tokens as hf
from hf_tiktoken import KIMI

FOLDED, FRONT, OTHER, SPACES = hf.FOLDED, hf.FRONT, hf.OTHER, hf.SPACES
HALVING = "|".join(rf"\s{{{1 << n}}}(?!\S)" for n in range(9, 1, -1))
EXPRESSIONS = {
    "gpt-2": None, "digits": "digits", "llama-3": [hf.LLAMA3], "qwen2": [hf.QWEN2], "qwen3.5": [hf.QWEN35],
    "deepseek-v3": hf.DEEPSEEK_V3, "deepseek-llm": hf.DEEPSEEK_LLM, "deepseek-coder": hf.DEEPSEEK_CODER,
    "gpt-4o": [hf.GPT4O], "tekken": [hf.TEKKEN], "seed-coder": [hf.SEED_CODER], "kimi-k2": [KIMI],
    "cohere2moe": [r"\d{1,3}(?=(?:\d{3})*\b)", hf.GPT4O],
    "ling": [rf"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{{L}}\p{{N}}]?+\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    "jais-2": [rf"{FOLDED}|{FRONT}\p{{L}}+|\p{{N}}{{1,3}}|{OTHER}[\r\n]*|\s*[\r\n]+|{HALVING}|\s{{1,2}}(?!\S)|\s{{1}}"],
    "k-exaone": [rf"{FOLDED}|{FRONT}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|{OTHER}[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    "minicpm5": [r"\p{N}{1,3}", rf"{FOLDED}|{FRONT}\p{{L}}+|\p{{N}}+|{OTHER}[\r\n]*|{SPACES}"],
}
# name: (expression, where it is from)
SOURCES = {
    "llama-bpe": ("llama-3", "Llama 3.1 and 3.2, npm @lenml"), "llama3": ("llama-3", "as llama-bpe"), "llama-v3": ("llama-3", "as llama-bpe"),
    "qwen2": ("qwen2", "transformers Qwen2; Qwen3, npm @lenml"), "qwen35": ("qwen3.5", "transformers Qwen3.5"),
    "deepseek-v3": ("deepseek-v3", "DeepSeek V3, npm @lenml; V4, PyPI"), "gpt-4o": ("gpt-4o", "GPT-4o and gpt-oss, npm @lenml"),
    "tekken": ("tekken", "mistral-common"), "kimi-k2": ("kimi-k2", "tokenization_kimi.py"),
    "command-r": ("digits", "transformers Cohere; Command R+, npm @lenml"), "gpt-2": ("gpt-2", "tokenizers, ByteLevel"),
    "phi-2": ("gpt-2", "onnxruntime-extensions"), "roberta-bpe": ("gpt-2", "onnxruntime-extensions"), "olmo": ("gpt-2", "transformers GPT-NeoX"),
    "tiny_aya": ("cohere2moe", "Tiny Aya, Command A+, quoted by other engines"), "cohere2moe": ("cohere2moe", "as tiny_aya"),
    "deepseek-llm": ("deepseek-llm", "quoted by llama.cpp"), "deepseek-coder": ("deepseek-coder", "quoted by llama.cpp"),
    "bailingmoe": ("ling", "quoted by llama.cpp"), "jais-2": ("jais-2", "quoted by llama.cpp"),
    "exaone-moe": ("k-exaone", "quoted by llama.cpp"), "minicpm5": ("minicpm5", "quoted by llama.cpp"),
    "grok-2": ("qwen2", "quoted by llama.cpp"), "seed-coder": ("seed-coder", "quoted by llama.cpp"),
}
KINDS = ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Po", "Sm", "So", "Zs", "Cf"]


def rows(count):
    """Texts of characters of few kinds each."""
    dice = random.Random(58)
    by_kind = {}
    for code in range(0x30000):
        c = chr(code)
        if unicodedata.category(c) in KINDS:
            by_kind.setdefault(unicodedata.category(c), []).append(c)
    by_kind["han"] = list("\u3005\u3007\u3021\u4e00\u9fa5\u9fff\uf900\u2e80\u2f00\U00020000")
    by_kind["sign"] = list("'''/ \n\r s S t re ll \u017f")
    made = []
    for _ in range(count):
        kinds = dice.sample([*by_kind], dice.randint(2, 5))
        made.append("".join(dice.choice(by_kind[dice.choice(kinds)]) for _ in range(dice.randint(4, 24))))
    return made


def cutter(rules):
    if rules is None or rules == "digits":
        return hf.byte_level(rules)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(rule), "isolated") for rule in rules])


def lengths(cut, text):
    """Of words, in characters. A byte-level rule may tell the bytes of a character apart."""
    return " ".join(str(end - start) for _, (start, end) in cut.pre_tokenize_str(text))


def main():
    texts = [*hard_texts.texts(90)[1:], *rows(110)]
    cuts = {name: [lengths(cutter(rules), text) for text in texts] for name, rules in EXPRESSIONS.items()}
    print(json.dumps({"texts": texts, "cuts": cuts, "names": {name: key for name, (key, _) in SOURCES.items()}},
                     ensure_ascii=True, separators=(",", ":")))


if __name__ == "__main__":
    main()
