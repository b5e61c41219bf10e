"""Command lines of programs that are written for vLLM: its `EngineArgs`, and what its examples use with it."""

from __future__ import annotations

import argparse
import gc
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from sluice._llm_options import NOT_SUPPORTED, WITHOUT_EFFECT
from sluice._options import LLMOptions
from sluice.llm import LLM


class EngineArgs:
    """The arguments of `LLM` as an object, and as flags of a command line.

    A flag is an argument's name with dashes: `--max-model-len 512`, `--enable-lora`, `--no-enable-prefix-caching`.
    """

    def __init__(self, model: str, **arguments: Any) -> None:
        """Keeps arguments of `LLM`, which checks them when the model is loaded."""
        self.arguments = {"model": model, **arguments}

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Adds a flag for each argument of `LLM` that is a number, a string or a truth value; returns the parser.

        Flags that are not given leave no attribute, so `LLM(**vars(parser.parse_args()))` has `LLM`'s own defaults.
        """
        group = parser.add_argument_group("model", "Arguments of sluice.LLM")
        for name, kind in _kinds().items():
            flag = f"--{name.replace('_', '-')}"
            if kind is bool:
                group.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS)
            else:
                group.add_argument(flag, type=kind, default=argparse.SUPPRESS)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """The arguments of `LLM` among a program's.

        Raises:
            ValueError: `model` is not among them.
        """
        known = _kinds()
        found = {name: value for name, value in vars(args).items() if name in known}
        if "model" not in found:
            raise ValueError("--model: name a model's file or a repository")
        return cls(**found)


AsyncEngineArgs = EngineArgs
"""The same, for `AsyncLLM.from_engine_args`."""


class FlexibleArgumentParser(argparse.ArgumentParser):
    """A parser that also takes names of flags with underscores. A program's own flags replace the model's."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        """As `argparse.ArgumentParser`."""
        super().__init__(*arguments, **{"conflict_handler": "resolve", **settings})

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As `argparse.ArgumentParser.parse_known_args`."""
        given = [_dashed(arg) for arg in (sys.argv[1:] if args is None else args)]
        return super().parse_known_args(given, namespace)


def print_embeddings(embeds: Sequence[float], prefix: str = "Embeddings") -> None:
    """Prints the beginning of a vector, and its length."""
    shown = ", ".join(map(str, embeds[:4])) + (", ..." if len(embeds) > 4 else "")
    print(f"{prefix}: [{shown}] (size={len(embeds)})")


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Frees the memory of models that are no longer in use. There are no other processes to end."""
    del shutdown_ray
    gc.collect()


def _dashed(arg: str) -> str:
    name, equals, value = arg.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else arg


def _kinds() -> dict[str, type]:
    """The arguments of `LLM` that fit a command line, and their types."""
    hints = get_type_hints(LLM.__init__)
    own = [name for name in inspect.signature(LLM.__init__).parameters if name in hints and name != "others"]
    typed = {**{name: hints[name] for name in own}, **get_type_hints(LLMOptions)}
    kinds = {name: _kind(get_args(hint) or (hint,)) for name, hint in typed.items()}
    theirs = {**WITHOUT_EFFECT, **{name: default for name, (default, _) in NOT_SUPPORTED.items()}}
    kinds |= {name: str if default is None else type(default) for name, default in theirs.items()}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _kind(hints: tuple[Any, ...]) -> type | None:
    """The type of a flag, or None if a value would be a list, a mapping or a function."""
    return next((kind for kind in (bool, int, float, str, Path) if kind in hints), None)
