#!/usr/bin/env python3
"""The licences of all crates and npm packages that are in the wheel, which travel with it.

    hosted/python/licences.py            writes LICENSE-THIRD-PARTY, which maturin puts into the wheel
    hosted/python/licences.py --check    fails if that is not what it would write

Crates that may be had under Apache 2.0 are taken under it, so its text is there once; of the others all texts of their
packages are, each once. Notices of npm packages are gathered when the page is built (hosted/serve/page). Needs cargo and
the packages in its cache: run it after a build, when Cargo.lock or the page's package-lock.json has changed.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE / "LICENSE-THIRD-PARTY"
PAGE = HERE.parent / "serve" / "page" / "dist" / "licences.txt"
TARGET = "x86_64-unknown-linux-gnu"
HEAD = """Parts of this package were written by others: the Rust crates below and Rust's standard library, which are
linked into its native half, and the npm packages in the server's page. The texts of their licences follow.
"""


def cargo(*arguments: str) -> str:
    """What cargo prints."""
    command = ["cargo", *arguments, "--locked", "--offline"]
    return subprocess.run(command, cwd=HERE, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked() -> list[dict[str, str]]:
    """The packages of others that are linked in, in order of their names."""
    tree = cargo("tree", "-e", "normal,no-proc-macro", "--prefix", "none", "--target", TARGET, "-f", "{p}")
    names = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    packages = json.loads(cargo("metadata", "--format-version", "1", "--filter-platform", TARGET))["packages"]
    found = [one for one in packages if one["source"] and (one["name"], f"v{one['version']}") in names]
    return sorted(found, key=lambda one: (one["name"], one["version"]))


def is_apache(expression: str) -> bool:
    """Whether Apache 2.0 alone is one of the licences to choose from."""
    return "Apache-2.0" in re.split(r" OR |/", expression)


def texts_of(package: dict[str, str]) -> list[str]:
    """The texts in a package's folder, in order of their names."""
    folder = Path(package["manifest_path"]).parent
    files = sorted(
        path for path in folder.iterdir() if re.match(r"(?i)(licen[cs]e|copying|notice)", path.name)
    )
    texts = [path.read_text(encoding="utf-8").strip() for path in files if path.is_file()]
    if not texts:
        sys.exit(f"{package['name']}: {package['license']}, and its package has no text of it")
    return texts


def written() -> str:
    """The file."""
    apache = (HERE / "LICENSE-APACHE").read_text(encoding="utf-8").strip()
    users = defaultdict(list)
    for package in linked():
        name = f"{package['name']} {package['version']}"
        for text in [apache] if is_apache(package["license"]) else texts_of(package):
            # Line ends and indents differ between copies of the same text.
            users["\n".join(line.strip() for line in text.splitlines())].append((name, text))
    parts = [HEAD]
    for copies in sorted(users.values(), key=len, reverse=True):
        names = ", ".join(name for name, _ in copies)
        parts.append(f"{'=' * 80}\n{names}\n{'=' * 80}\n\n{copies[0][1]}\n")
    page = PAGE.read_text(encoding="utf-8")
    parts.append(f"{'=' * 80}\nnpm packages in the server's page\n{'=' * 80}\n\n{page}")
    return "\n".join(parts)


def main() -> None:
    """Writes the file, or compares it."""
    text = written()
    if sys.argv[1:] == ["--check"]:
        if not OUT.is_file() or OUT.read_text(encoding="utf-8") != text:
            sys.exit(f"{OUT.name} is not what Cargo.lock asks for: run hosted/python/licences.py")
    else:
        OUT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
