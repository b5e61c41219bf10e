"""Where a model's file comes from."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def as_model(path: str | os.PathLike[str], dtype: str | None) -> Path:
    """The file of a model: a folder of Hugging Face's is converted once, to `dtype`.

    Raises:
        ValueError: a type is given for a file, or the folder cannot be converted.
    """
    found = Path(path)
    if found.is_dir():
        from sluice._folder import as_gguf

        return as_gguf(found, dtype)
    if dtype is not None:
        raise ValueError(f"dtype: {found} is a file, whose weights have their types; it is for folders")
    return found


def fetched(repo_id: str, filename: str | None, cache_dir: str | os.PathLike[str] | None) -> Path:
    """The file of a model from Hugging Face, fetched if it is not in the cache.

    Raises:
        ValueError: it cannot be fetched, or the pattern names no type.
    """
    command, which = program("pull"), repo_id
    if filename is not None and any(mark in filename for mark in "*?["):
        kind = TYPE.search(filename)
        if kind is None:
            raise ValueError(
                f"filename {filename!r}: expected a file, or a pattern with a type, as *Q4_K_M.gguf"
            )
        which = f"{repo_id}:{kind.group(0).upper()}"
    elif filename is not None:
        command += ["--hf-file", filename]
    environment = inherited()
    if cache_dir is not None:
        environment["HF_HUB_CACHE"] = os.fspath(cache_dir)
    # How far it is goes to stderr, where there is a terminal.
    is_shown = sys.stderr is not None and sys.stderr.isatty()
    done = subprocess.run(
        [*command, "--", which],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if is_shown else subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode in (130, -2):
        raise KeyboardInterrupt
    if done.returncode != 0:
        said = (done.stderr or "").strip().removeprefix("error: ")
        raise ValueError(f"{repo_id}: {said or 'it was not fetched'}")
    return Path(done.stdout.strip())


def program(command: str) -> list[str]:
    """The command line of the program, for a process of its own."""
    return [sys.executable, "-m", "sluice", command]


def inherited() -> dict[str, str]:
    """The environment of such a process: it has the package that this one is part of."""
    here = str(Path(__file__).resolve().parent.parent)
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


TYPE = re.compile(r"(IQ\d_[A-Z]+|Q\d_K(_[A-Z]+)?|Q\d_\d|TQ\d_\d|BF16|F16|F32|MXFP4)", re.IGNORECASE)
"""Names of types in names of files."""
