"""Grammars that constrain an answer: llama-cpp-python's class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sluice import _prompts


class LlamaGrammar:
    """A grammar in GBNF, or a JSON schema. It is compiled for a model's vocabulary when it is used."""

    def __init__(self, *, grammar: str | None = None, json_schema: Any = None) -> None:
        self.grammar = grammar
        self.json_schema = json_schema

    def __repr__(self) -> str:
        if self.grammar is not None:
            return f"LlamaGrammar(grammar={_prompts.shown(self.grammar)})"
        return f"LlamaGrammar(json_schema={_prompts.shown(self.json_schema)})"

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """Creates a grammar from GBNF text."""
        del verbose
        return cls(grammar=grammar)

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """Creates a grammar from a GBNF file.

        Raises:
            OSError: The file cannot be read. ValueError: The file is empty.
        """
        del verbose
        text = Path(file).read_text(encoding="utf-8")
        if not text:
            raise ValueError(f"{file}: the file is empty")
        return cls(grammar=text)

    @classmethod
    def from_json_schema(cls, json_schema: str | dict[str, Any], verbose: bool = True) -> LlamaGrammar:
        """Creates a grammar from a JSON schema, given as text or as an object.

        Raises:
            ValueError: The text is not JSON.
        """
        del verbose
        schema = json.loads(json_schema) if isinstance(json_schema, str) else json_schema
        return cls(json_schema=schema)

    def fields(self) -> dict[str, Any]:
        """The fields that request this grammar."""
        if self.grammar is not None:
            return {"grammar": self.grammar}
        return {"json_schema": self.json_schema}


def fields(grammar: LlamaGrammar | str | None) -> dict[str, Any]:
    """The fields that request `grammar`, which may also be GBNF text."""
    if grammar is None:
        return {}
    if isinstance(grammar, str):
        return {"grammar": grammar}
    if not isinstance(grammar, LlamaGrammar):
        raise TypeError(f"grammar is {_prompts.shown(grammar)}, expected a LlamaGrammar or GBNF text")
    return grammar.fields()
