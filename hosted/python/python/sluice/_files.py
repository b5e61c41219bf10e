"""Where a model's file comes from."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from sluice._logging import is_terminal, tell


def as_model(path: str | os.PathLike[str], dtype: str | None) -> Path:
    """The file of a model: a folder of Hugging Face's is converted once, to `dtype`.

    Raises:
        ValueError: a type is given for a file, or the folder cannot be converted.
    """
    found = Path(path)
    if found.is_dir():
        from sluice._folder import as_gguf

        return as_gguf(found, dtype, tell)
    if dtype is not None:
        raise ValueError(f"dtype: {found} is a file, whose weights have their types; it is for folders")
    return found


def fetched(repo_id: str, filename: str | None, cache_dir: str | os.PathLike[str] | None) -> Path:
    """The file of a model from Hugging Face, fetched if it is not in the cache.

    Raises:
        ValueError: it cannot be fetched; no file matches the pattern, or more than one.
    """
    command = program("pull")
    if filename is not None:
        # With "=" a name may begin with a hyphen.
        command.append(f"--hf-file={filename}")
    environment = inherited()
    if cache_dir is not None:
        environment["HF_HUB_CACHE"] = os.fspath(cache_dir)
    # How far it is goes to stderr, where there is a terminal.
    is_shown = is_terminal()
    tell(f"{repo_id}: looking for it in the cache, or else downloading it")
    done = subprocess.run(
        [*command, "--", repo_id],
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


def placed(cached: Path, folder: str | os.PathLike[str]) -> Path:
    """A file of the cache in `folder`, with the other parts of a split model: at its place in the repository.

    Raises:
        OSError: it cannot be written there.
    """
    # models--USER--NAME/snapshots/COMMIT/PATH
    at = max(i for i, name in enumerate(cached.parts) if name.startswith("models--")) + 3
    parts = [cached]
    if split := PART.fullmatch(cached.name):
        parts = sorted(cached.parent.glob(f"{glob.escape(split[1])}-[0-9]*-of-{split[2]}.gguf"))
    for part in parts:
        target = Path(folder, *part.parts[at:])
        if target.exists() and _kind(target) == _kind(part):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        # Under another name first, so that no incomplete file can be found.
        begun = target.with_name(f"{target.name}.{os.getpid()}.part")
        begun.unlink(missing_ok=True)
        try:
            begun.hardlink_to(part.resolve())
        except OSError:
            shutil.copy2(part, begun)
        begun.replace(target)
    return Path(folder, *cached.parts[at:])


def _kind(path: Path) -> tuple[int, int]:
    """What a copy has in common with its file."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def program(command: str) -> list[str]:
    """The command line of the program, for a process of its own."""
    return [sys.executable, "-m", "sluice", command]


def inherited() -> dict[str, str]:
    """The environment of such a process: it has the package that this one is part of."""
    here = str(Path(__file__).resolve().parent.parent)
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


PART = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf", re.DOTALL)
"""The name of a part of a split model."""
