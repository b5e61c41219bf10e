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
    command = [sys.executable, "-m", "sluice", "pull"]
    if filename is not None and "*" in filename:
        pattern = re.fullmatch(r"\*?[-_.]?(\w+?)(\*?\.gguf)?", filename)
        if pattern is None:
            raise ValueError(f"filename {filename!r}: expected a file, or a pattern like *Q4_K_M.gguf")
        command.append(f"{repo_id}:{pattern.group(1).upper()}")
    else:
        command.append(repo_id)
        if filename is not None:
            command += ["--hf-file", filename]
    environment = dict(os.environ)
    if cache_dir is not None:
        environment["HF_HUB_CACHE"] = os.fspath(cache_dir)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"{repo_id}: {done.stderr.strip().removeprefix('error: ')}")
    return Path(done.stdout.strip())
