"""Files of nothing but a vocabulary, as llama.cpp's `ggml-vocab-*.gguf` are."""

import json

import pytest
import sluice
from conftest import ROOT

FOLDER = ROOT / "tests/fixtures/tokenizer"
CASES = json.loads((FOLDER / "cases.json").read_text())


@pytest.mark.parametrize("name", ["bpe", "spm", "gemma4", "bert"])
def test_a_vocabulary_alone_is_enough_for_tokens(name):
    """The ids are llama.cpp's."""
    compared = 0
    with sluice.Llama(FOLDER / f"{name}.gguf", vocab_only=True) as llama:
        own = llama.metadata.get("tokenizer.ggml.pre")
        for case in CASES["cases"]:
            if case["file"] != name or case["pre"] not in (None, own):
                continue
            is_special = case["special"]
            for text, ids in zip(CASES["texts"], case["ids"], strict=True):
                # llama.cpp aborts on some texts.
                if ids is not None:
                    compared += 1
                    assert llama.tokenize(text.encode(), is_special, is_special) == ids, text
        assert compared > 70
        assert llama.n_vocab() == sluice.Tokenizer(FOLDER / f"{name}.gguf").n_vocab
        tokens = llama.tokenize(b"Hello World")
        assert tokens and llama.tokenizer().encode("Hello World")[-1:] == tokens[-1:]
        assert b"orld" in llama.detokenize(tokens)
        assert llama.token_eos() in range(-1, llama.n_vocab())
        assert llama.metadata["tokenizer.ggml.model"]


def test_what_needs_weights_says_that_there_are_none():
    path = FOLDER / "bpe.gguf"
    llama = sluice.Llama(path, vocab_only=True)
    for use in (llama.n_ctx, lambda: llama("a"), lambda: llama.embed("a"), lambda: llama.eval([1])):
        with pytest.raises(sluice.ServiceError, match=r"no weights.*vocab_only"):
            use()
    with pytest.raises(ValueError, match=r"bpe\.gguf: .*no tensors"):
        llama.n_embd()
    # Only who asks for the vocabulary alone gets it.
    for load in (sluice.Llama, sluice.LLM):
        with pytest.raises((ValueError, OSError), match=r"bpe\.gguf: .*no tensors"):
            load(path)
    with pytest.raises(OSError, match="missing"):
        sluice.Llama(FOLDER / "missing.gguf", vocab_only=True)


def test_a_model_opened_for_its_vocabulary_knows_its_shape(tale):
    with sluice.Llama(tale, vocab_only=True) as llama:
        assert llama.n_embd() == 256
