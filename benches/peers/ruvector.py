"""Sparse f32 networks next to ruvector-sparse-inference 2.3.0, in a scratch crate outside the workspace.

The crate is downloaded by cargo into DIR, never a dependency of the workspace. It and ours are built with cargo's default
release profile, our kernels in one unit. One thread; the tables are printed as Markdown: times, recall of predictors, decoding.

    python3 benches/peers/ruvector.py --work DIR
"""

import argparse
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

MANIFEST = """[package]
name = "next-to-ruvector"
version = "0.0.0"
edition = "2024"

[dependencies]
ruvector-sparse-inference = "=2.3.0"
ndarray = "0.16"
sluice = {{ path = "{root}/hosted" }}
sluice-core = {{ path = "{root}/core" }}

# As in our workspace.
[profile.release.package.sluice-kernels]
codegen-units = 1

[workspace]
"""


def main() -> None:
    """Write the crate, build and run it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder of the scratch crate")
    work = parser.parse_args().work.resolve()
    if work.is_relative_to(ROOT):
        parser.error(f"--work {work}: choose a folder outside of {ROOT}")
    (work / "src").mkdir(parents=True, exist_ok=True)
    (work / "Cargo.toml").write_text(MANIFEST.format(root=ROOT))
    shutil.copy(pathlib.Path(__file__).with_suffix(".rs"), work / "src" / "main.rs")
    # One CPU, where there is more than one.
    cpu = min(os.sched_getaffinity(0))
    subprocess.run(["cargo", "build", "--release"], cwd=work, check=True)
    os.sched_setaffinity(0, {cpu})
    subprocess.run([work / "target" / "release" / "next-to-ruvector"], check=True)


if __name__ == "__main__":
    main()
