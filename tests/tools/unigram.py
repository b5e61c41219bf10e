"""Unigram vocabularies by SentencePiece, as GGUF files and for Hugging Face's `tokenizers`.

`python tests/tools/unigram.py` (pip: sentencepiece, protobuf, gguf, tokenizers) writes
`tests/fixtures/tokenizer/unigram.gguf`, whose character map is a small one; the ids that belong to it are
made by `hf_tokens.py`.

Hugging Face's normaliser looks at graphemes: if one begins with a key of the map, the rest of it is lost
(U+0301 after U+FB01), and a key that is longer than a grapheme is not found. SentencePiece is what models
were trained with; so its normalisation counts where the two differ. It adds scores in 32 bits, Hugging
Face in 64, which tells equally good ways apart differently; Hugging Face's sums count.
"""
import io
import json
import tempfile
import unicodedata
from pathlib import Path

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

FIXTURE = Path(__file__).parent.parent / "fixtures/tokenizer/unigram.gguf"
MARK = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def small_map():
    """Rules of a small map: what it replaces, and with what."""
    rules = {c: " " for c in "\t\n\r\u00a0\u2028\u3000"}
    rules |= {c: "" for c in "\u200b\ufeff\x01"}
    chars = [*map(chr, range(0xC0, 0x180)), *"ﬁﬂﷺ…½²Ⅷ", *map(chr, range(0xFF01, 0xFF5F))]
    for c in chars:
        for form in {c, unicodedata.normalize("NFD", c)}:
            if form != (normal := unicodedata.normalize("NFKC", form)):
                rules[form] = normal
    return rules


def train(texts, folder=None, **more):
    """A model's protocol buffer; `folder` has room for the small map."""
    out = io.BytesIO()
    if folder:
        codes = [" ".join(f"{ord(c):x}" for c in key) + "\t" + " ".join(f"{ord(c):x}" for c in value)
                 for key, value in small_map().items()]
        path = Path(folder) / "small_map.tsv"
        path.write_text("\n".join(codes) + "\n")
        more["normalization_rule_tsv"] = str(path)
    options = dict(model_type="unigram", character_coverage=0.995, hard_vocab_limit=False, minloglevel=2)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=out, **options | more)
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(out.getvalue())
    return model


def write(path, model):
    """The vocabulary as a file, with the keys of llama.cpp's converter."""
    normalizer, trainer = model.normalizer_spec, model.trainer_spec
    w = gguf.GGUFWriter(path, "bert")
    w.add_name("a small vocabulary")
    w.add_tokenizer_model("t5")
    w.add_token_list([piece.piece for piece in model.pieces])
    w.add_token_scores([piece.score for piece in model.pieces])
    w.add_token_types([piece.type for piece in model.pieces])
    w.add_add_space_prefix(normalizer.add_dummy_prefix)
    w.add_remove_extra_whitespaces(normalizer.remove_extra_whitespaces)
    if trainer.treat_whitespace_as_suffix:
        w.add_bool("tokenizer.ggml.treat_whitespace_as_suffix", True)
    if normalizer.precompiled_charsmap:
        w.add_precompiled_charsmap(normalizer.precompiled_charsmap)
    w.add_unk_token_id(trainer.unk_id)
    w.add_bos_token_id(trainer.bos_id)
    w.add_eos_token_id(trainer.eos_id)
    w.add_add_bos_token(True)
    w.add_add_eos_token(True)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def read(path):
    """The model that a file of `write` was made of, as far as it tells."""
    fields = {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}
    model = sentencepiece_model_pb2.ModelProto()
    key = "tokenizer.ggml."
    for name, score, kind in zip(*(fields[key + part] for part in ("tokens", "scores", "token_type"))):
        model.pieces.add(piece=name, score=score, type=kind)
    model.trainer_spec.unk_id = fields[key + "unknown_token_id"]
    model.normalizer_spec.precompiled_charsmap = bytes(fields[key + "precompiled_charsmap"])
    return model


def variants(texts, folder):
    """Files of vocabularies with the character map of most models, and how models have them."""
    lines = [line for text in texts[:3000] for line in text.splitlines() if line.strip() and "\0" not in line]
    settings = {
        "nfkc": {},
        "bytes": {"byte_fallback": True},
        "spaces": {"remove_extra_whitespaces": False},
        "bare": {"remove_extra_whitespaces": False, "add_dummy_prefix": False},
        "suffix": {"treat_whitespace_as_suffix": True},
    }
    for name, options in settings.items():
        model = train(lines, vocab_size=9000, character_coverage=0.98, **options)
        path = Path(folder) / f"unigram-{name}.gguf"
        write(path, model)
        likes = ["xlm-roberta", "bge-m3"] if name in ("nfkc", "bytes") else [None]
        yield from ((str(path), Peers(model, like)) for like in likes)


class Peers:
    """SentencePiece and `tokenizers` with one vocabulary; the latter `like` that of a model, or not at all."""

    def __init__(self, model, like):
        self.differ, self.like = 0, like
        self.own = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
        pieces = [(piece.piece, piece.score) for piece in model.pieces]
        unigram = models.Unigram(pieces, model.trainer_spec.unk_id, model.trainer_spec.byte_fallback)
        self.fast = Tokenizer(unigram)
        # The same sums of the scores for what SentencePiece has normalised, in words as well.
        self.bare = Tokenizer(unigram)
        side = "previous" if model.trainer_spec.treat_whitespace_as_suffix else "next"
        self.bare.pre_tokenizer = pre_tokenizers.Split(MARK, f"merged_with_{side}")
        steps = []
        if model.normalizer_spec.precompiled_charsmap:
            steps.append(normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap))
        space = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always")
        if like == "bge-m3":
            steps += [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), " ")]
        else:
            space = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space])
        self.fast.normalizer = normalizers.Sequence(steps)
        self.fast.pre_tokenizer = space

    def ids(self, text):
        own = self.own.normalize(text)
        if self.like:
            normal = self.fast.normalizer.normalize_str(text)
            if self.spelled(normal) == own:
                return self.fast.encode(text, add_special_tokens=False).ids
        self.differ += 1
        return self.bare.encode(own, add_special_tokens=False).ids

    def spelled(self, normal):
        """What the model sees of a normalised text."""
        return "".join(word for word, _ in self.fast.pre_tokenizer.pre_tokenize_str(normal))


def main():
    cases = json.loads((FIXTURE.parent / "cases.json").read_text())
    texts = [line for text in cases["texts"] for line in text.splitlines() if line.strip()]
    with tempfile.TemporaryDirectory() as folder:
        model = train(texts, folder, vocab_size=420)
    write(FIXTURE, model)


if __name__ == "__main__":
    main()
