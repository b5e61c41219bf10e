#!/usr/bin/env python3
"""vLLM's own examples of offline inference, unmodified, against `sluice.install_as("vllm")`.

    tests/clients/vllm_offline/run.py [--source DIR] [--work DIR] [SCRIPT …]

They come from the source package of vLLM 0.33.0, which pip downloads unless --source names an unpacked one. Small
models of this repository stand for the ones that they name. `expected.toml` lists each script that does not end well,
with the reason: a script that is not listed must end with status 0, and a listed one must fail as listed. Needs the
wheel and requirements.txt. SCRIPT is a path below `examples`, or a pattern of such paths.
"""
import argparse, fnmatch, os, pathlib, re, shutil, subprocess, sys, tempfile, tomllib

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = "vllm==0.33.0"
# The rest of `examples` talks to a server, or trains.
OFFLINE = (
    "basic/offline_inference/*.py",
    "*_offline.py",
    "observability/metrics/offline.py",
    "deployment/*_*.py",
    "features/logits_processor/custom*.py",
    "ray_serving/batch_llm_inference.py",
)
SECONDS = 300


def unpacked(work):
    """The folder of the source package. pip cannot make its metadata without torch, but leaves what it unpacked."""
    source = work / "vllm"
    if not source.exists():
        temporary = work / "pip"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        name = PACKAGE.partition("==")[0]
        flags = ["--no-deps", "--no-binary", name, "--no-build-isolation", "--no-clean"]
        command = [sys.executable, "-m", "pip", "download", "-q", *flags, "-d", temporary, PACKAGE]
        said = subprocess.run(command, env=os.environ | {"TMPDIR": str(temporary)}, capture_output=True, text=True)
        found = next(temporary.glob("pip-download-*/vllm_*/examples"), None)
        if found is None:
            raise SystemExit(f"{PACKAGE} was not downloaded; name it with --source\n{said.stderr}")
        found.parent.rename(source)
        shutil.rmtree(temporary)
    return source


def scripts(source, patterns):
    examples = source / "examples"
    names = sorted(str(path.relative_to(examples)) for path in examples.rglob("*.py"))
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def run(script, folder):
    command = [sys.executable, HERE / "launch.py", script]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"no end after {SECONDS} s"
    if "the same: False" in done.stdout:
        return done.stdout
    return None if done.returncode == 0 else f"{done.stderr}\nstatus {done.returncode}"


def verdict(error, difference):
    """What is wrong with how a script ended, if anything is."""
    if difference is None:
        return error
    if error is None:
        return f"passes, but is listed: {difference['reason']}"
    if not re.search(difference["error"], error):
        return f"{error}\ndiffers otherwise than listed: {difference['reason']}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "sluice-vllm-offline")
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    source = options.source or unpacked(options.work)
    differences = tomllib.loads((HERE / "expected.toml").read_text())["difference"]
    listed = {name: one for one in differences for name in one["scripts"]}
    everything = scripts(source, OFFLINE)
    if strange := sorted(set(listed) - set(everything)):
        raise SystemExit(f"expected.toml lists scripts that are not theirs: {', '.join(strange)}")
    failed = passed = 0
    for name in scripts(source, options.scripts) if options.scripts else everything:
        with tempfile.TemporaryDirectory(dir=options.work) as folder:
            wrong = verdict(run(source / "examples" / name, folder), listed.get(name))
        if wrong is not None:
            failed += 1
            print(f"FAILED   {name}\n{wrong}", flush=True)
        elif name in listed:
            print(f"differs  {name}: {listed[name]['reason']}", flush=True)
        else:
            passed += 1
            print(f"ok       {name}", flush=True)
    print(f"{passed} passed, {failed} failed")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
