"""A model's vocabulary with llama-cpp-python's interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.llama import Llama


class LlamaTokenizer:
    """From texts to tokens and back."""

    def __init__(self, llama: Llama) -> None:
        self._llama = llama

    def tokenize(self, text: bytes | str, add_bos: bool = True, special: bool = True) -> list[int]:
        """See `Llama.tokenize`; names of control tokens are parsed by default."""
        return self._llama.tokenize(text, add_bos, special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """See `Llama.detokenize`."""
        return self._llama.detokenize(tokens, prev_tokens, special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """The tokens of a text."""
        return self.tokenize(text, add_bos, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without bytes that are not UTF-8."""
        return self.detokenize(tokens).decode("utf-8", errors="ignore")

    @classmethod
    def from_ggml_file(cls, path: str) -> LlamaTokenizer:
        """The vocabulary of a model's file."""
        from sluice.llama import Llama

        return cls(Llama(path, vocab_only=True))
