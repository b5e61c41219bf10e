"""Draws help lines, messages and sentences of documentation at random, to be read critically.

    python3.13 tests/tools/sample_texts.py SEED [COUNT]
"""

import random
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


def listed(*patterns: str) -> list[Path]:
    done = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / name for name in done.stdout.split() if "test" not in name]


def places(kind: str) -> list[str]:
    """All texts of a kind, each with its place."""
    found = []
    for path in listed("*.rs"):
        text = path.read_text().split("#[cfg(test)]")[0]
        is_flags = "hosted/cli/src" in str(path) and re.search(r"#\[arg\(", text)
        name = path.relative_to(ROOT)
        if kind == "error" and name.parts[0] == "kernels":
            continue  # assembly
        docs = re.finditer(r"^ *//[/!] (.+)\n(?: *//[/!] (.+)\n)?(?: *//[/!] (.+)\n)?", text, re.MULTILINE)
        for doc in docs if kind != "error" else []:
            line = text.count("\n", 0, doc.start()) + 1
            is_help = bool(is_flags and re.match(r"(?: *///.*\n)*\s*#\[arg\(", text[doc.start() :]))
            if is_help == (kind == "help"):
                found.append(f"{name}:{line}: {' '.join(part for part in doc.groups() if part)}")
        for message in LITERAL.finditer(re.sub(r"//.*", "", text)) if kind == "error" else []:
            words = re.sub(r"\\\n\s*", "", message[1])
            if re.search(r"[a-z]{2} [a-z]{2}", words) and "\n" not in words and len(words) < 300:
                found.append(f"{name}: {words}")
    return found


def main() -> None:
    seed, count = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 40
    draw = random.Random(seed)
    for kind in ("help", "error", "doc"):
        print(f"# {kind}")
        print("\n".join(draw.sample(places(kind), count)))


if __name__ == "__main__":
    main()
