#!/usr/bin/env python3
"""Folders whose tokenizers have added tokens, prefixes and ids of every sort, and what the models' own code makes of texts with
them: `tokenizers` 0.23, and SentencePiece 0.2 where a folder has only `tokenizer.model`.

    tests/tools/hf_added_tokens.py       writes hosted/cli/tests/cli/tokens/added_tokens.json

A case changes the tokenizer of a small folder of these tests: files by their changed keys, or a whole `tokenizer.model` in
base64. Needs the packages tokenizers and sentencepiece.
"""
import base64
import copy
import io
import json
import pathlib

import sentencepiece
from tokenizers import Tokenizer

CLI = pathlib.Path(__file__).resolve().parent.parent.parent / "hosted/cli/tests/cli"
SPACE = "\u2581"
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
TEXTS = [
    "", " ", "  ", "the", " the", "  the cat", "The cat  was  hid", "\tthe\n", "a<h1>b", "<h1> the </h1>", "<h1>the</h1> cat",
    "<ent>the<ent> the", " <ent>", "xx-19 GPT4 gpt4 GPT4x", "the COVID-19 the covid-19", "covid-19\u0301 c\u00f3vid-19", "<s>the</s> the",
    "</s>the", "the </s>", SPACE + "the", SPACE * 2 + "the", SPACE * 3, "the" + SPACE * 2, "[CLS]the[SEP]", "[cls] [MASK]s", "\u4e2d\u6587the",
    "x\u4e2dx \u4e2d", "123 12 345", "\u00e9\u00e8 \U0001f642", "the\u00a0the", "unaffable sea-fish", "\u0130t It IT", "\ufb01sh fish",
]


def token(number, content, **flags):
    plain = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
    return {"id": number, "content": content, **plain, **flags}


def metaspace(scheme):
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}


def own(folder):
    for place in (CLI / "convert" / folder, CLI / "families/tokenizers" / folder):
        if place.is_dir():
            return json.loads((place / "tokenizer.json").read_text())
    raise FileNotFoundError(folder)


def spaced():
    """SentencePiece-like BPE; mistral's folder has 324 tokens, so that the last letters make room."""
    base = own("mistral")
    vocab = base["model"]["vocab"] = {piece: number for piece, number in base["model"]["vocab"].items() if number < 316}
    roles = [entry for entry in base["added_tokens"] if entry["id"] < 3]
    added = [
        *roles, token(vocab["\u2581the"], "\u2581the"), token(vocab["ca"], "ca"),
        token(316, "<h1>"), token(317, "</h1>"), token(318, "<ent>", special=True), token(319, "GPT4", normalized=True),
        token(320, "covid-19", single_word=True), token(321, "sea", rstrip=True),
    ]
    rules = {
        "spaces": {"normalizer": REPLACE, "pre_tokenizer": None},
        "first": {"normalizer": None, "pre_tokenizer": metaspace("first")},
        "always": {"normalizer": None, "pre_tokenizer": metaspace("always")},
        "never": {"normalizer": None, "pre_tokenizer": metaspace("never")},
    }
    model = base["model"]
    for name, changes in rules.items():
        yield name, "mistral", base, {**changes, "model": model, "added_tokens": added}, {}
    inside = copy.deepcopy(base["model"])
    inside["vocab"] |= {"<h1>": 316, "</h1>": 317, SPACE * 2: 318, "cat": 319}
    inside["merges"] = [*inside["merges"], [SPACE, SPACE] if isinstance(inside["merges"][0], list) else f"{SPACE} {SPACE}"]
    added = [*roles, token(316, "<h1>"), token(317, "</h1>"), token(318, SPACE * 2), token(319, "cat", rstrip=True)]
    yield "inside", "mistral", base, {**rules["spaces"], "model": inside, "added_tokens": added}, {}


def word_piece():
    """BERT's; 168 tokens, so that the last ones make room."""
    base = own("wordpiece")
    model = copy.deepcopy(base["model"])
    model["vocab"] = {piece: number for piece, number in model["vocab"].items() if number < 160}
    added = [
        *base["added_tokens"], token(160, "covid-19", normalized=True), token(161, "GPT4", normalized=True),
        token(162, "<ent>"), token(163, "\u4e2dx", normalized=True), token(model["vocab"]["cat"], "cat", normalized=True),
        token(164, "sea-", normalized=True, single_word=True), token(165, "IT", lstrip=True),
    ]
    changes = {"model": model, "added_tokens": added}
    yield "words", "bert", base, changes, {}
    cased = {**base["normalizer"], "lowercase": False, "strip_accents": False}
    yield "cased", "bert", base, {**changes, "normalizer": cased}, {}
    # Ids of their own, and no configuration that names a role.
    order = ["[PAD]", "[UNK]", "[MASK]", "[SEP]", "[CLS]"]
    other = copy.deepcopy(base["model"])
    pieces = [piece for piece in other["vocab"] if piece not in order]
    other["vocab"] = {piece: number for number, piece in enumerate([*pieces, *order])}
    changed = copy.deepcopy(base["post_processor"])
    for text, entry in changed["special_tokens"].items():
        entry["ids"] = [other["vocab"][text]]
    added = [token(other["vocab"][text], text, special=True) for text in order]
    changes = {"model": other, "post_processor": changed, "added_tokens": added}
    yield "ids", "bert", base, changes, None
    pair = {"type": "BertProcessing", "sep": ["[SEP]", other["vocab"]["[SEP]"]], "cls": ["[CLS]", other["vocab"]["[CLS]"]]}
    yield "pair", "bert", base, {**changes, "post_processor": pair, "added_tokens": []}, None
    untyped = {key: value for key, value in base["model"].items() if key != "type"}
    yield "untyped", "bert", base, {"model": untyped}, {}


def unigram():
    base = own("unigram")
    model = copy.deepcopy(base["model"])
    number = {piece: number for number, (piece, _) in enumerate(model["vocab"])}
    last = len(model["vocab"]) - 1
    model["vocab"] = model["vocab"][:-2]
    changes = {
        "model": model, "normalizer": None, "added_tokens": [
            *[entry for entry in base["added_tokens"] if entry["id"] < 4], token(number["\u2581the"], "\u2581the"),
            token(last - 1, "<ent>"), token(last, "GPT4", special=True)],
    }
    for scheme in ("first", "always"):
        yield f"unigram {scheme}", "xlm-r", base, {**changes, "pre_tokenizer": metaspace(scheme)}, {}
    split = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace("always")]}
    texts = [*TEXTS, "the\ncat\n", "\r\n\u2028the\u3000 \u0085the\v", f"the {SPACE}the", f"the\n{SPACE}"]
    yield "unigram split", "xlm-r", base, {**changes, "pre_tokenizer": split}, {}, {}, texts
    # An unknown token that is not the third, and that no file calls so.
    order = [*model["vocab"][4:], ["<unk>", 0.0]]
    model = {**model, "vocab": [*model["vocab"][:3], *order], "unk_id": 2 + len(order)}
    added = [entry for entry in base["added_tokens"] if entry["id"] < 3]
    yield "unknown", "xlm-r", base, {"model": model, "added_tokens": added}, None


def byte_level():
    """Command-R's: a post-processor that its class replaces, with settings of other components."""
    base = own("qwen2")
    bos, end = (entry["content"] for entry in base["added_tokens"][:2])
    single = [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
              {"SpecialToken": {"id": end, "type_id": 0}}, {"SpecialToken": {"id": bos, "type_id": 0}}]
    tokens = {entry["content"]: {"id": entry["content"], "ids": [entry["id"]], "tokens": [entry["content"]]}
              for entry in base["added_tokens"][:2]}
    processor = {"type": "TemplateProcessing", "add_prefix_space": False, "trim_offsets": False, "use_regex": True,
                 "single": single, "pair": single, "special_tokens": tokens}
    about = {"add_bos_token": True, "add_eos_token": False, "bos_token": bos, "eos_token": end,
             "tokenizer_class": "CohereTokenizerFast"}
    replaced = {**processor, "single": single[:2], "pair": []}
    yield "command-r", "qwen2", {**base, "post_processor": replaced}, {}, about, {"post_processor": processor}
    first = max(entry["id"] for entry in base["added_tokens"]) + 1
    added = [*base["added_tokens"], token(first, SPACE + "the"), token(first + 1, "the cat")]
    yield "bytes", "qwen2", base, {"added_tokens": added}, {}


def sentence_piece():
    """A `tokenizer.model` alone, whose user-defined pieces begin a text."""
    for kind, defined in (("bpe", ["[INST]", "<sep>", SPACE * 2, "a b"]), ("unigram", ["[INST]", "<sep>"])):
        out = io.BytesIO()
        lines = [line for line in (CLI / "../../../../README.md").read_text().splitlines() if line.strip()]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=out, model_type=kind, vocab_size=330, minloglevel=2,
            user_defined_symbols=defined, byte_fallback=True, character_coverage=0.98,
            normalization_rule_name="identity", remove_extra_whitespaces=False, hard_vocab_limit=False)
        model = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
        texts = [*(text for text in TEXTS if SPACE not in text and "<s>" not in text and "</s>" not in text),
                 "[INST]Once", "<sep>", "[INST]", " [INST]x", "<sep>[INST] the", "x[INST]", "the<sep>the", "[INST]  the"]
        # Only before the text's own first piece would a space of the text be part of one.
        texts = [text for text in texts if not text.startswith(" ")]
        yield kind, out.getvalue(), [[text, model.encode(text)] for text in texts]


def main():
    cases = []
    for made in (*spaced(), *word_piece(), *unigram(), *byte_level()):
        name, family, base, changes, about, *more = made
        shown, texts = [*more, *({}, TEXTS)[len(more):]]
        tokenizer = Tokenizer.from_str(json.dumps({**base, **changes}))
        texts = [[text, tokenizer.encode(text).ids] for text in texts]
        changes = {**changes, **shown}
        cases.append({"name": name, "family": family, "tokenizer": changes, "about": about, "texts": texts})
    for kind, model, texts in sentence_piece():
        cases.append({"name": f"model {kind}", "family": "mixtral", "model": base64.b64encode(model).decode(), "texts": texts})
    lines = ",\n".join(json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in cases)
    (CLI / "tokens/added_tokens.json").write_text(f"[\n{lines}\n]\n")


main()
