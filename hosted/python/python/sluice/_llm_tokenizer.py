"""A model's vocabulary, as those who use vLLM's tokenizers expect it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast, overload

import numpy as np

from sluice import _prompts
from sluice._client import Client
from sluice._native import Model
from sluice._replies import Json


class LLMTokenizer:
    """From texts to tokens and back, by the names of Hugging Face's tokenizers."""

    def __init__(self, client: Client, model: Model) -> None:
        self._client = client
        self._model = model

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary."""
        return self._model.n_vocab

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text."""
        return self._model.bos

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text."""
        return self._model.eos

    @property
    def bos_token(self) -> str | None:
        """The text of the token that begins a text."""
        return None if self.bos_token_id is None else self.convert_ids_to_tokens(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        """The text of the token that ends a text."""
        return None if self.eos_token_id is None else self.convert_ids_to_tokens(self.eos_token_id)

    @property
    def all_special_ids(self) -> list[int]:
        """The control tokens."""
        return [token for token in range(len(self)) if self._model.is_control(token)]

    @property
    def all_special_tokens(self) -> list[str]:
        """The texts of the control tokens."""
        return self.convert_ids_to_tokens(self.all_special_ids)

    @property
    def chat_template(self) -> str | None:
        """The file's template."""
        return self._model.chat_template

    def __len__(self) -> int:
        return self._model.n_vocab

    def __repr__(self) -> str:
        return f"LLMTokenizer({self._model.path!r}, vocab_size={len(self)})"

    def __call__(
        self,
        text: str | Sequence[str],
        add_special_tokens: bool = True,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
    ) -> Json:
        """`{"input_ids": …, "attention_mask": …}` of a text, or lists of them for several texts.

        `return_tensors="np"` gives numpy arrays (n_texts, n_tokens); the texts need to have the same number of tokens.

        Raises:
            ValueError: Other tensors are asked for.
        """
        if return_tensors not in (None, "np"):
            raise ValueError(f"return_tensors is {return_tensors!r}, expected None or 'np'")
        texts = [text] if isinstance(text, str) else text
        found = [self.encode(one, add_special_tokens) for one in texts]
        if truncation:
            found = [tokens[:max_length] for tokens in found]
        masks = [[1] * len(tokens) for tokens in found]
        if return_tensors == "np":
            return {"input_ids": np.array(found, np.int64), "attention_mask": np.array(masks, np.int64)}
        if isinstance(text, str):
            return {"input_ids": found[0], "attention_mask": masks[0]}
        return {"input_ids": found, "attention_mask": masks}

    def get_vocab(self) -> dict[str, int]:
        """All tokens by their text."""
        texts = self.convert_ids_to_tokens(range(len(self)))
        return {text: token for token, text in enumerate(texts)}

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        """The texts of the tokens of a text."""
        return self.convert_ids_to_tokens(self.encode(text, add_special_tokens))

    def batch_decode(
        self, sequences: Iterable[Sequence[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        """The texts of lists of tokens."""
        return [self.decode(tokens, skip_special_tokens) for tokens in sequences]

    @overload
    def convert_ids_to_tokens(self, ids: int) -> str: ...
    @overload
    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]: ...
    def convert_ids_to_tokens(self, ids: int | Iterable[int]) -> str | list[str]:
        """The text of each token as the vocabulary has it.

        Raises:
            ValueError: A token is not in the vocabulary.
        """
        if _prompts.is_integer(ids):
            return self._model.piece(int(cast("int", ids)))
        return [self._model.piece(int(token)) for token in cast("Iterable[int]", ids)]

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...
    @overload
    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int | None]: ...
    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int | None] | None:
        """The token of each text of the vocabulary; None if it has no such token."""
        vocabulary = self.get_vocab()
        if isinstance(tokens, str):
            return vocabulary.get(tokens)
        return [vocabulary.get(token) for token in tokens]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text; names of control tokens in it are those tokens."""
        return self._model.encode(text, add_special=add_special_tokens, parse_special=True)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD.

        Raises:
            ValueError: a token is not in the vocabulary.
        """
        ids: list[Any] | None = [token_ids] if _prompts.is_integer(token_ids) else _prompts.items(token_ids)
        if ids is None:
            raise TypeError(f"token_ids is {_prompts.shown(token_ids)}, expected a list of token ids")
        return self._model.decode(ids, special=not skip_special_tokens).decode(errors="replace")

    def apply_chat_template(
        self,
        conversation: Sequence[Json],
        tools: Sequence[Json] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str | list[int]:
        """The prompt of a conversation: its tokens, or its text. Other arguments are variables of the template.

        Raises:
            ValueError: a message is wrong.
        """
        if isinstance(conversation, Mapping):
            raise TypeError("conversation: a list of messages is expected")
        fields = template_fields(tools, add_generation_prompt, continue_final_message, kwargs)
        made = self._client.prompt({**fields, "messages": list(conversation)})
        return made.tokens if tokenize else made.text


def template_fields(
    tools: Sequence[Json] | None,
    add_generation_prompt: bool,
    continue_final_message: bool,
    kwargs: Mapping[str, Any] | None,
) -> Json:
    """The arguments of a prompt, but for the messages."""
    fields: Json = {}
    if continue_final_message:
        fields["continue_final_message"] = True
    else:
        fields["add_generation_prompt"] = add_generation_prompt
    if tools:
        fields["tools"] = list(tools)
    if kwargs:
        fields["chat_template_kwargs"] = dict(kwargs)
    return fields
