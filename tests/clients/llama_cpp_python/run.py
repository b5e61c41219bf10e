#!/usr/bin/env python3
"""llama-cpp-python's own tests, unmodified, against `sluice.install_as("llama_cpp")`.

    tests/clients/llama_cpp_python/run.py [--sdist FILE] [--work DIR] [PYTEST ARGUMENT …]

They come from the source package of llama-cpp-python 0.3.36, which pip downloads unless --sdist names it. Our story
model stands for the files of Hugging Face that they download. `expected.toml` lists each test that does not pass, with
the reason: a test that is not listed must pass, and a listed one must not. Needs the wheel and requirements.txt.
"""
import argparse, os, pathlib, shutil, subprocess, sys, tarfile, tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "llama_server"))
from run import download  # noqa: E402

PARTS = ("tests/", "vendor/llama.cpp/models/ggml-vocab-llama-spm.gguf")


def unpack(sdist, target):
    shutil.rmtree(target, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        for member in archive:
            member.name = member.name.partition("/")[2]
            if member.isfile() and member.name.startswith(PARTS):
                archive.extract(member, target, filter="data")
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sdist", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "sluice-llama-cpp-python-tests")
    options, pytest = parser.parse_known_args()
    options.work.mkdir(parents=True, exist_ok=True)
    tests = unpack(options.sdist or download(options.work), options.work / "package")
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    flags = ["-p", "theirs", "-p", "no:cacheprovider", "-q", "-rf", "--tb=short", "--import-mode=importlib"]
    command = [sys.executable, "-m", "pytest", *flags, *(pytest or ["tests"])]
    raise SystemExit(subprocess.run(command, cwd=tests, env=os.environ | {"PYTHONPATH": path}).returncode)


if __name__ == "__main__":
    main()
