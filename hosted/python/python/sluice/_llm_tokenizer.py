"""A model's vocabulary, as those who use vLLM's tokenizers expect it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
    def chat_template(self) -> str | None:
        """The file's template."""
        return self._model.chat_template

    def __len__(self) -> int:
        return self._model.n_vocab

    def __call__(self, text: str, add_special_tokens: bool = True) -> Json:
        """`{"input_ids": …}`."""
        return {"input_ids": self.encode(text, add_special_tokens)}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text; names of control tokens in it are those tokens."""
        return self._model.encode(text, add_special=add_special_tokens, parse_special=True)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD.

        Raises:
            ValueError: a token is not in the vocabulary.
        """
        ids = [token_ids] if isinstance(token_ids, int) else [int(token) for token in token_ids]
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
