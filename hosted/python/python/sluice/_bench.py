"""The results of `sluice bench` as Python objects."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from sluice._files import inherited, program

OURS = {"model", "output", "output_err", "progress", "help", "told", "plot"}
"""Flags that do not apply here."""


class BenchError(ValueError):
    """The program rejected the arguments, or failed; the message is the program's."""


def bench(
    model: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], **options: Any
) -> list[dict[str, Any]]:
    """Measures how fast a model runs here: the rows of `sluice bench`, from a separate process.

    Args:
        model: A GGUF or `.slc` file, or a list of them.
        options: Flags of the program by their long names, with `_` for `-`: `n_prompt=512`, `n_gen=[64, 128]`,
            `threads=[1, 2]`, `repetitions=5`. Every combination of list values is a row; a tuple is one value
            (`n_prompt_gen=(512, 128)`). True passes a flag without a value (`strict=True`), None and False omit it.

    Returns:
        One object per test, with llama-bench's names: `avg_ts` is the number of tokens per second, `stddev_ts` its
        standard deviation, `samples_ts` the value of each repetition; docs/bench.md describes further fields.

    Raises:
        BenchError: A flag is unknown or invalid, or a model cannot be loaded.
        KeyboardInterrupt: Ctrl-C, which ends the process.
    """
    models = [model] if isinstance(model, (str, PurePath)) or not isinstance(model, Sequence) else model
    command = [*program("bench"), "--output", "json", "--quiet"]
    for path in models:
        command += ["--model", os.fspath(path)]
    for name, value in options.items():
        command += _flag(name, value)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=inherited()) as process:
        try:
            rows, said = process.communicate()
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise BenchError(
            said.strip().removeprefix("error: ") or f"the process ended with {process.returncode}"
        )
    found: list[dict[str, Any]] = json.loads(rows)
    return found


def _flag(name: str, value: Any) -> list[str]:
    if name in OURS:
        raise BenchError(f"{name}: not a flag of bench()")
    flag = "--" + name.replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    values = value if isinstance(value, (list, range)) else [value]
    made = []
    for one in values:
        parts = one if isinstance(one, tuple) else (one,)
        made += [
            flag,
            ",".join(os.fspath(part) if isinstance(part, PurePath) else str(part) for part in parts),
        ]
    return made
