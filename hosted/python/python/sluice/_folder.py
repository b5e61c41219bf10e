"""Hugging Face folders as GGUF files: converted once, then reused."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from sluice._files import inherited, program
from sluice._native import __version__

TYPES = {
    "": "auto",
    "float32": "f32",
    "fp32": "f32",
    "float": "f32",
    "float16": "f16",
    "fp16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
    "int8": "q8_0",
}
"""The types' names in PyTorch and elsewhere, with the converter's names."""


def as_gguf(
    path: str | os.PathLike[str], dtype: str | None = None, say: Callable[[str], None] | None = None
) -> Path:
    """The model file of `path`: `path` itself, or the converted file of a Hugging Face folder.

    Converted files are stored in `$XDG_CACHE_HOME/sluice/converted` (`~/.cache/sluice/converted`). A folder is
    converted again if one of its files has changed in size or time, or for another type. Incomplete
    files are removed.

    `dtype` is the type of the weights: `auto` or None keeps the folder's, without loss; otherwise `float32`,
    `float16`, `bfloat16`, `q8_0` or any type of `sluice convert --type`. It has no effect on files.
    `say` is called with a message before a conversion.

    Raises:
        FileNotFoundError: `path` does not exist.
        ValueError: The folder cannot be converted; the message gives the reason.
        OSError: The cache cannot be written.
    """
    path = Path(path)
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file or folder")
        return path
    if not (path / "config.json").is_file():
        raise ValueError(f"{path}: not a Hugging Face model: the folder has no config.json")
    kind = _type(dtype)
    cache = _cache()
    target = cache / f"{_fingerprint(path)}-{kind}.gguf"
    if target.is_file():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    _tidy(cache)
    if say is not None:
        say(f"{path}: converting to {target} (only once)")
    # The converter writes only to a folder of its own, which is always removed.
    part = cache / f"{target.stem}.{threading.get_ident()}.{_host()}.{os.getpid()}.part"
    part.mkdir(exist_ok=True)
    try:
        _convert(path, part / target.name, kind)
        (part / target.name).replace(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _type(dtype: str | None) -> str:
    name = (dtype or "").removeprefix("torch.")
    if not re.fullmatch(r"\w*", name):
        raise ValueError(f"unknown weight type {name!r}")
    return TYPES.get(name.lower(), name)


def _cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "sluice" / "converted"


def _fingerprint(folder: Path) -> str:
    """A hash over the folder's path, and the names, sizes and times of its files."""
    folder = folder.resolve()
    found = hashlib.sha256(f"{__version__}\0{folder}".encode(errors="surrogateescape"))
    for path in sorted(_files(folder)):
        stat = path.stat()
        entry = f"\0{path.relative_to(folder)}\0{stat.st_size}\0{stat.st_mtime_ns}"
        found.update(entry.encode(errors="surrogateescape"))
    return found.hexdigest()[:32]


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path


def _convert(folder: Path, out: Path, kind: str) -> None:
    """Runs the converter, which handles signals itself, in a separate process."""
    command = [*program("convert"), "-q", "--overwrite"]
    command += ["--model-name", folder.resolve().name, "--type", kind, "--", str(folder), str(out)]
    done = subprocess.run(
        command, env=inherited(), stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode == 0:
        return
    if done.returncode in (130, -2):
        raise KeyboardInterrupt
    said = done.stderr.decode(errors="replace").strip().removeprefix("error: ")
    raise ValueError(f"{folder}: conversion failed: {said or f'the converter ended with {done.returncode}'}")


def _tidy(cache: Path) -> None:
    """Removes what terminated processes have left behind."""
    for part in cache.glob("*.part"):
        host, process = part.name.split(".")[-3:-1]
        # Process ids are unique only within one machine or container.
        if host == _host() and process.isdecimal() and not _runs(int(process)):
            shutil.rmtree(part, ignore_errors=True)


def _host() -> str:
    return platform.node().replace(".", "-")


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # The file belongs to another user.
        return True
    return True
