#!/usr/bin/env python3
"""llama.cpp's server tests, unmodified, against `sluice serve`.

    tests/clients/llama_server/run.py [--sluice target/release/sluice] [--sdist FILE] [--work DIR] [PYTEST ARGUMENT …]

Their tests come from the source package of llama-cpp-python 0.3.36, which pip downloads to the work folder unless
--sdist names it. `launch.py` starts our program where they start llama-server, with the models that `models.py` makes
or finds in ../shared in place of Hugging Face's files; nothing but pip uses the network. `expected.toml` lists each
test that does not pass, or is not run, with the reason. A test that is not listed must pass, and a listed one must
not. Further arguments are pytest's: -k test_lora, -x, test_basic.py. Needs the packages in requirements.txt.
"""
import argparse, contextlib, hashlib, os, pathlib, shutil, socket, subprocess, sys, tarfile, tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PACKAGE = "llama-cpp-python==0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
PARTS = ("vendor/llama.cpp/tools/server/tests/", "vendor/llama.cpp/models/templates/")


def download(folder):
    """The source package; pip makes its metadata, too, so this takes some seconds."""
    file = folder / "llama_cpp_python-0.3.36.tar.gz"
    if not file.exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", PACKAGE.partition("==")[0], "-d", folder, PACKAGE]
        subprocess.run(command, check=True)
    return file


def unpack(sdist, target):
    """The tests and the templates they read, in the places that their relative paths name."""
    if (found := hashlib.sha256(sdist.read_bytes()).hexdigest()) != SHA256:
        raise SystemExit(f"{sdist}: SHA-256 is {found}, not {SHA256}")
    shutil.rmtree(target, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            if member.isfile() and name.startswith(PARTS):
                member.name = name.removeprefix("vendor/llama.cpp/")
                archive.extract(member, target, filter="data")
    return target / "tools/server/tests"


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", type=pathlib.Path, default=ROOT / "target/release/sluice")
    parser.add_argument("--sdist", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "sluice-llama-server-tests")
    options, pytest = parser.parse_known_args()
    work, sluice = options.work.resolve(), options.sluice.resolve()
    if work.is_relative_to(ROOT):
        raise SystemExit("--work: third-party files do not belong in the checkout")
    work.mkdir(parents=True, exist_ok=True)
    tests = unpack(options.sdist or download(work), work / "llama.cpp")
    subprocess.run([sys.executable, HERE / "models.py", sluice, work / "models", tests / "tmp"], check=True)
    launcher = work / "launch"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{HERE / "launch.py"}" "{sluice}" "{work / "models"}" "$@"\n')
    launcher.chmod(0o755)
    environment = os.environ | {
        "XDG_CACHE_HOME": str(work / "cache"), "LLAMA_SERVER_BIN_PATH": str(launcher), "PORT": str(free_port()), "PYTHONPATH": str(HERE),
        "STAND_IN_MODEL": str(work / "models/stories260k.gguf")}
    flags = ["-p", "plugin", "-p", "no:cacheprovider", "-q", "-rf", "--tb=short", "--show-capture=no"]
    chosen = [f"unit/{name}" if name.startswith("test_") else name for name in pytest]
    raise SystemExit(subprocess.run([sys.executable, "-m", "pytest", *flags, *chosen], cwd=tests, env=environment).returncode)


if __name__ == "__main__":
    main()
