"""Prompts as dictionaries, with vLLM's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class _Options(TypedDict, total=False):
    cache_salt: str


class TextPrompt(_Options):
    """A text; cached prompts are shared only between those with the same `cache_salt`."""

    prompt: str


class _Text(_Options, total=False):
    prompt: str


class TokensPrompt(_Text):
    """Tokens, and their text if it is known."""

    prompt_token_ids: Sequence[int]


PromptType = str | Sequence[int] | TextPrompt | TokensPrompt
"""A prompt of a batch."""
