"""What the comparisons with llama.cpp share: its build, and models of published shapes with random weights.

The tree is the one inside llama-cpp-python's source package, which pip downloads: CMake, a compiler and
pip are all that the build needs.
"""
import os, pathlib, shutil, signal, subprocess, sys, tarfile

# A shell that starts a program in the background has it ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SHARED = ROOT.parent / "shared"
PACKAGE = "llama-cpp-python==0.3.36"


class Failed(Exception):
    """What could not be built, made or measured, and why."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(command, **options):
    """Runs, and returns what has run; an error quotes the end of stderr."""
    command = [str(part) for part in command]
    try:
        done = subprocess.run(command, capture_output=True, text=True, **options)
    except FileNotFoundError:
        raise Failed(f"{command[0]} is not installed") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise Failed(f"{pathlib.Path(command[0]).name}: {lines[-1]}")
    return done


def environment(tools):
    """For llama.cpp's programs, whose libraries are next to them."""
    return {**os.environ, "LD_LIBRARY_PATH": str(tools)}


def build(work, programs, avx2=False):
    """The folder under `work` that has these programs of llama.cpp; builds those that are missing."""
    folder = work / ("llama-avx2" if avx2 else "llama")
    tools = folder / "bin"
    if all((tools / program).exists() for program in programs):
        return tools
    source = unpack(work)
    say(f"building {', '.join(programs)} in {folder}")
    # GCC 12 drops stores to the tile configuration, which its header does not say that LDTILECFG
    # reads: every AMX product then dies of SIGILL. Keeping the stores costs nothing.
    flags = ["-DCMAKE_CXX_FLAGS=-fno-tree-dse -fno-dse"] if not shutil.which("clang++") else []
    if avx2:
        flags += ["-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_AVX512=OFF"]
    # The server's page would be downloaded; the programs are asked for by name below.
    off = ["LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI", "LLAMA_BUILD_APP",
           "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES"]
    run(["cmake", "-S", source / "vendor/llama.cpp", "-B", folder, "-DCMAKE_BUILD_TYPE=Release",
         "-DLLAMA_BUILD_SERVER=ON", *(f"-D{name}=OFF" for name in off), *flags])
    run(["cmake", "--build", folder, "-j", os.cpu_count(), "-t", *programs])
    return tools


def unpack(work):
    """The unpacked source package."""
    source = work / "source"
    if not source.exists():
        say(f"downloading {PACKAGE}")
        # From source this package alone: its build tools come as wheels, or CMake is compiled first.
        run([sys.executable, "-m", "pip", "download", "--no-deps",
             "--no-binary", PACKAGE.partition("==")[0], "-d", work, PACKAGE])
        with tarfile.open(next(work.glob("llama_cpp_python-*.tar.gz"))) as tar:
            tar.extractall(work / "unpacked", filter="data")
        next((work / "unpacked").iterdir()).rename(source)
    return source


def make_model(setup, shape, file_type, layers=None, suffix=""):
    """The file of a published shape with random weights.

    `setup` has the folders `models` and `llama` (with llama-quantize), the number of `threads`, and the
    paths `make_model` (the program) and `vocab` (a GGUF file whose vocabulary is taken). The name ends in
    `suffix` where the vocabulary is another than the other files'.
    """
    name = (shape if layers is None else f"{shape}-{layers}l") + suffix
    path = setup.models / f"{name}-{file_type}.gguf"
    if path.exists():
        return path
    setup.models.mkdir(parents=True, exist_ok=True)
    f16 = setup.models / f"{name}-f16.gguf"
    if not f16.exists():
        if not setup.make_model.exists():
            raise Failed(f"{path.name} is missing, and so is {setup.make_model} (--make-model)")
        say(f"making {f16.name}")
        more = ["--layers", layers] if layers else []
        part = f16.with_suffix(".part")
        run([sys.executable, setup.make_model, "--shape", shape, "--vocab", setup.vocab,
             "--ctx", 16384, "--out", part, *more])
        part.rename(f16)
    return quantize(setup, f16, path, file_type)


def make_published(setup, shape, file_type):
    """The same of a shape in `published.py`, which needs the packages numpy and gguf. The F16 file is not
    kept: some are of many GB."""
    path = setup.models / f"{shape}-cut-{file_type}.gguf"
    if path.exists():
        return path
    setup.models.mkdir(parents=True, exist_ok=True)
    try:
        import published
    except ImportError as error:
        raise Failed(f"{path.name} cannot be made: {error}") from None
    say(f"making {path.name}")
    f16 = path.with_suffix(".f16")
    published.write(f16, shape)
    try:
        return quantize(setup, f16, path, file_type)
    finally:
        f16.unlink()


def quantize(setup, f16, path, file_type):
    """`path`, made of `f16` by llama-quantize."""
    say(f"quantising {path.name}")
    part = path.with_suffix(".part")
    run([setup.llama / "llama-quantize", f16, part, file_type, setup.threads],
        env=environment(setup.llama))
    part.rename(path)
    return path
