"""The tokenizer's cache: what is kept never changes the tokens of a text."""

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import vocabulary as v
from sluice._native import Tokenizer

CASES = int(os.environ.get("SLUICE_FUZZ", "700"))
"""Texts for each vocabulary."""

VOCABULARIES = sorted((v.shared() / "goldens" / "tokenizer").glob("*.gguf"))
MODELS = sorted((v.shared() / "models").glob("*.gguf"))

# Every family of pre-tokenizers, by a name of it.
FAMILIES = [
    "default",
    "gpt-2",
    "llama-bpe",
    "qwen2",
    "qwen35",
    "jais-2",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "spark2_5",
    "falcon",
    "starcoder",
    "bloom",
    "viking",
    "tekken",
    "gpt-4o",
    "granite-embed-multi-97m",
    "chameleon",
    "tiny_aya",
    "kimi-k2",
    "seed-coder",
    "ufakzeka",
    "afmoe",
    "laguna",
    "minicpm5",
    "sarvam-moe",
    "whitespace",
    "youtu",
]
ACROSS_SPACES = ["superbpe", "exaone-moe"]

LETTERS = ["abcdefghijklmnopqrstuvwxyz", "ABCXYZ", "абвгдеёжзий", "αβγδώ", "אבגד", "ابتثج", "अआकखग", "éüßœſ"]
DENSE = ["我们在家里的人", "ひらがなカタカナ", "한국어문장", "ไทยภาษา"]
SPACES = [" "] * 12 + [
    "  ",
    "   ",
    "     ",
    "\n",
    "\n\n",
    " \n",
    "\n ",
    "\t",
    "\r\n",
    "\u00a0",
    "\u3000",
    " \n \n  ",
]
SIGNS: list[str] = [
    *".,;:!?'\"()[]{}<>/\\|-_=+*&^%$#@~`",
    "'s",
    "'ll",
    "'T",
    "...",
    "。",
    "\uff0c",
    "—",
    "«",
    "!\n",
    "/\n",
    "|>",
]
ODD = [
    "\u0301",
    "\u0308\u0301",
    "\u0300b",
    "🙂",
    "👩‍👩‍👧",
    "\u200d",
    "\ufeff",
    "\u0000",
    "\u2581",
    "\u2581a",
    "\x7f",
    "ﬁ",
    "Å",
]


def chooser(seed: int, names: list[str]) -> Callable[[], str]:
    """Makes pieces of text: words of a script, numbers, white space, signs, names of tokens."""
    rng = random.Random(seed)

    def word() -> str:
        letters = rng.choice(LETTERS)
        return "".join(rng.choice(letters) for _ in range(rng.randint(1, 9)))

    def piece() -> str:
        kind = rng.random()
        if kind < 0.38:
            return word()
        if kind < 0.62:
            return rng.choice(SPACES)
        if kind < 0.70:
            return "".join(rng.choice("0123456789٣½") for _ in range(rng.randint(1, 8)))
        if kind < 0.78:
            return rng.choice(SIGNS)
        if kind < 0.83:
            return "".join(rng.choice(rng.choice(DENSE)) for _ in range(rng.randint(1, 5)))
        if kind < 0.87:
            return rng.choice(ODD)
        if kind < 0.93 and names:
            return rng.choice(names)
        return word() + rng.choice([" ", "\n"]) + word()

    return lambda: "".join(piece() for _ in range(rng.randint(0, 14)))


def special_names(vocabulary: dict[str, v.Value]) -> list[str]:
    """Names that texts are searched for, and a few that are not."""
    names = v.pieces(vocabulary)
    types = vocabulary.get("tokenizer.ggml.token_type")
    kinds = memoryview(types[1][12:]).cast("i").tolist() if types else [1] * len(names)
    special = [name for name, kind in zip(names, kinds, strict=True) if kind in (2, 3, 4)]
    spaced = [name for name in names if " " in name or "\u2581" in name.strip("\u2581")]
    return special[:200] + spaced[:50] + ["<0x0A>", "<s>", "</s>", "[MASK]", "<|im_end|>"]


def check(path: Path, names: list[str], cases: int, seed: int, part_bytes: int = 1) -> Tokenizer:
    """encode(a + b) after encode(a + c) is the cold encode(a + b), for random texts."""
    cached = Tokenizer(path, cache_bytes=1 << 22, part_bytes=part_bytes)
    cold = Tokenizer(path, cache_bytes=0)
    make = chooser(seed, names)
    rng = random.Random(seed)
    for case in range(cases):
        a, b, c = make(), make(), make()
        options = (rng.random() < 0.5, rng.random() < 0.5)
        cached.encode(a + c, *options)
        for text in (a + b, a):
            expected = cold.encode(text, *options)
            assert cached.encode(text, *options) == expected, (case, text, options)
    return cached


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vocabularies")


def needed(paths: list[Path]) -> list[Path]:
    if paths:
        return paths
    reason = f"SKIPPED: {v.shared()} (files of others) is not there"
    if os.environ.get("CI"):
        raise FileNotFoundError(reason)
    print(reason)
    return [pytest.param(None, marks=pytest.mark.skip(reason))]  # type: ignore[list-item]


def title(path: Path | None) -> str:
    return path.stem if path else "-"


@pytest.mark.parametrize("source", needed(VOCABULARIES), ids=title)
def test_kept_tokens_are_those_of_the_whole_text(source: Path, folder: Path) -> None:
    vocabulary = v.read(source)
    path = v.write(folder / source.name, vocabulary)
    tokenizer = check(path, special_names(vocabulary), 2 * CASES, seed=1)
    info = tokenizer.cache_info()
    assert info["enabled"], info["reason"]
    assert info["hits"] > CASES / 2
    assert info["bytes"] <= info["bytes_max"]


@pytest.mark.parametrize("path", needed(MODELS), ids=title)
def test_of_models(path: Path) -> None:
    info = check(path, special_names(v.read(path)), CASES, seed=2).cache_info()
    assert info["enabled"], info["reason"]
    assert info["hits"] > CASES / 2


@pytest.mark.parametrize("pre", FAMILIES)
@pytest.mark.parametrize("source", needed(VOCABULARIES[2:3]), ids=title)
def test_of_every_pre_tokenizer(source: Path, pre: str, folder: Path) -> None:
    vocabulary = v.read(source)
    vocabulary["tokenizer.ggml.pre"] = v.text(pre)
    # Without bytes, there is an unknown token to be fused.
    vocabulary["tokenizer.ggml.unknown_token_id"] = v.number(0)
    vocabulary["tokenizer.ggml.fuse_unk"] = v.flag(True)
    path = v.write(folder / f"{pre}.gguf", vocabulary)
    info = check(path, special_names(vocabulary), CASES, seed=3).cache_info()
    assert info["enabled"], info["reason"]
    assert info["hits"] > CASES / 2


@pytest.mark.parametrize("pre", ACROSS_SPACES)
@pytest.mark.parametrize("source", needed(VOCABULARIES[2:3]), ids=title)
def test_words_with_spaces_are_not_cut(source: Path, pre: str, folder: Path) -> None:
    vocabulary = v.read(source)
    vocabulary["tokenizer.ggml.pre"] = v.text(pre)
    path = v.write(folder / f"{pre}.gguf", vocabulary)
    info = check(path, special_names(vocabulary), 50, seed=4).cache_info()
    assert not info["enabled"]
    assert info["reason"] == "words of the pre-tokenizer span spaces"


def small(seed: int) -> dict[str, v.Value]:
    """A random small vocabulary with all that could reach over a space."""
    rng = random.Random(seed)
    mark = "\u2581"
    letters = [*"abcdeиж我", mark]
    words = {"".join(rng.choice(letters) for _ in range(rng.randint(2, 4))) for _ in range(60)}
    if rng.random() < 0.7:
        # Nothing goes on behind a space, but for a few.
        words = {word for word in words if mark not in word[1:] or rng.random() < 0.02}
    names = ["<s>", "</s>", "<unk>"]
    added = rng.sample(
        ["<x>", "<y> ", " <z>", "be", "a b", "\n\n", "  ", "c\n", "ж", "[e d]", "e>", "\u2581<w>"], 5
    )
    bare = [c for c in letters if rng.random() < 0.9]
    tokens = names + added + bare + sorted(words - set(added) - set(bare))
    types = [3, 3, 2] + [rng.choice([3, 4]) for _ in added]
    types += [rng.choice([1] * 20 + [5, 6]) for _ in tokens[len(types) :]]
    if rng.random() < 0.5:
        tokens += [f"<0x{byte:02X}>" for byte in range(256)]
        types += [6] * 256
    model = rng.choice(["llama", "llama", "t5", "gemma4"])
    vocabulary = {
        "tokenizer.ggml.model": v.text(model),
        "tokenizer.ggml.tokens": v.texts(tokens),
        "tokenizer.ggml.token_type": v.numbers(types),
        "tokenizer.ggml.scores": v.floats([-rng.choice([1.0, 2.0, 3.5]) * rng.randint(1, 9) for _ in tokens]),
        "tokenizer.ggml.bos_token_id": v.number(0),
        "tokenizer.ggml.eos_token_id": v.number(1),
        "tokenizer.ggml.unknown_token_id": v.number(2),
    }
    for key in (
        "add_space_prefix",
        "add_space_prefix_first",
        "remove_extra_whitespaces",
        "fuse_unk",
        "add_eos_token",
    ):
        if rng.random() < 0.5:
            vocabulary[f"tokenizer.ggml.{key}"] = v.flag(rng.random() < 0.5)
    if model == "t5" and rng.random() < 0.3:
        vocabulary["tokenizer.ggml.treat_whitespace_as_suffix"] = v.flag(True)
    for key in ("lstrip", "rstrip", "single_word"):
        ids = [3 + i for i in range(len(added)) if rng.random() < 0.3]
        value = (9, v.numbers(ids)[1].replace(b"\x05", b"\x04", 1))
        vocabulary[f"tokenizer.ggml.added_tokens.{key}"] = value
    if model == "gemma4":
        pairs = [f"{word[:i]} {word[i:]}" for word in tokens for i in range(1, len(word)) if " " not in word]
        vocabulary["tokenizer.ggml.merges"] = v.texts(rng.sample(pairs, len(pairs)))
    return vocabulary


def test_of_random_small_vocabularies(folder: Path) -> None:
    enabled = hits = 0
    for seed in range(max(60, CASES // 8)):
        vocabulary = small(seed)
        path = v.write(folder / "small.gguf", vocabulary)
        rng = random.Random(seed)
        words = [
            "a",
            "b",
            "c",
            "d",
            "e",
            "и",
            "ж",
            "我",
            "be",
            "cd",
            " ",
            " ",
            " ",
            "  ",
            "\n",
            "\n\n",
            "\u2581",
            "<",
            "zq",
        ]
        words += special_names(vocabulary)[:8]
        cached = Tokenizer(path, cache_bytes=1 << 20, part_bytes=1)
        cold = Tokenizer(path, cache_bytes=0)
        for _ in range(60):
            text = "".join(rng.choice(words) for _ in range(rng.randint(0, 24)))
            options = (rng.random() < 0.5, rng.random() < 0.5)
            expected = cold.encode(text, *options)
            assert cached.encode(text, *options) == expected, (seed, text, options)
            assert cached.encode(text, *options) == expected, (seed, text, options)
        enabled += cached.cache_info()["enabled"]
        hits += cached.cache_info()["hits"]
    assert enabled > 10
    assert hits > 1000


@pytest.mark.parametrize("path", needed(MODELS[:1]), ids=title)
def test_long_texts_share_their_beginning(path: Path) -> None:
    tokenizer, cold = Tokenizer(path), Tokenizer(path, cache_bytes=0)
    begin = "Once upon a time there was a cat. " * 300
    tokenizer.encode(begin + "It slept.")
    before = tokenizer.cache_info()
    text = begin + "Then it went away"
    assert tokenizer.encode(text) == cold.encode(text)
    after = tokenizer.cache_info()
    assert after["hits"] - before["hits"] >= 8
    assert after["misses"] - before["misses"] <= 1
    tokenizer.cache_clear()
    assert tokenizer.cache_info()["bytes"] == 0
    assert cold.cache_info()["reason"]


@pytest.mark.parametrize("path", needed(MODELS[:1]), ids=title)
def test_memory_is_bounded(path: Path) -> None:
    tokenizer = Tokenizer(path, cache_bytes=20_000, part_bytes=64)
    for i in range(400):
        tokenizer.encode(f"this is text number {i} and some words of it " * 3)
        info = tokenizer.cache_info()
        assert info["bytes"] <= 20_000
    assert info["parts"] > 10


@pytest.mark.parametrize("path", needed(MODELS[:1]), ids=title)
def test_threads_and_batches(path: Path) -> None:
    tokenizer, cold = Tokenizer(path, part_bytes=16), Tokenizer(path, cache_bytes=0)
    make = chooser(5, ["<s>", "</s>"])
    texts = ["".join(make() for _ in range(3)) for _ in range(300)]
    expected = [cold.encode(text) for text in texts]
    assert tokenizer.encode_batch(texts, threads=4) == expected
    assert tokenizer.encode_batch([]) == []
    wrong: list[str] = []

    def work() -> None:
        wrong.extend(text for text, ids in zip(texts, expected, strict=True) if tokenizer.encode(text) != ids)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("path", needed(MODELS[:1]), ids=title)
def test_decoding(path: Path) -> None:
    tokenizer = Tokenizer(path)
    text = "Once upon a time, there was a cat.\n"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.count(text) == len(ids)
    assert ids[0] == tokenizer.bos
    assert tokenizer.decode(ids[:1], special=True) != ""
    assert tokenizer.decode(tokenizer.encode(" cat", add_special=False), continuing=True).endswith(" cat")
    with pytest.raises(ValueError, match="vocabulary"):
        tokenizer.decode([tokenizer.n_vocab])
    with pytest.raises(UnicodeEncodeError):
        tokenizer.encode("\ud800")


def test_a_file_of_nothing_but_a_vocabulary_is_enough() -> None:
    tokenizer = Tokenizer(Path(__file__).parents[3] / "tests/fixtures/tokenizer/bpe.gguf")
    assert tokenizer.encode("a<|user|>", parse_special=True) == [99, 1]


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        Tokenizer(tmp_path / "missing.gguf")
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises((OSError, ValueError), match=r"text\.gguf"):
        Tokenizer(tmp_path / "text.gguf")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("path", needed(MODELS[:1]), ids=title)
def test_it_works_behind_a_fork(path: Path) -> None:
    tokenizer = Tokenizer(path)
    expected = tokenizer.encode("Once upon a time")
    child = os.fork()
    if child == 0:
        os._exit(0 if tokenizer.encode("Once upon a time") == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
