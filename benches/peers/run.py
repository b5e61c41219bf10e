#!/usr/bin/env python3
"""Sluice and llama.cpp side by side: same files, same threads, alternating, medians of rounds.

    benches/peers/run.py                     all rows, builds and makes what is missing
    benches/peers/run.py prefill decode-Q4   rows whose names begin so
    benches/peers/run.py --list

Builds llama-bench and llama-quantize from the tree inside llama-cpp-python's source package (pip
downloads it), or takes a build with --llama DIR or $LLAMA_BIN. Makes the models with make_model.py
and llama-quantize. Runs llama.cpp with and without repacking, always with -fa 1, and compares
with the better of the two. Exit code: 0 every must is met, 1 one is missed or could not be
measured, 2 wrong usage, 130 interrupted.
"""
import argparse, json, os, pathlib, re, statistics, subprocess, sys

import llama
from llama import ROOT, SHARED, Failed, environment, make_model, make_published, run, say

PROGRAMS = ["llama-bench", "llama-quantize"]
# Shapes of `published.py`, and the types that people run them in.
PUBLISHED = {
    "lfm2-1.2b": "Q4_K_M", "qwen3.5-4b": "Q4_K_M", "qwen3.5-35b-a3b": "Q4_K_M",
    "gemma-4-26b-a4b": "Q4_K_M", "gpt-oss-20b": "MXFP4_MOE", "granite-4-h-tiny": "Q4_K_M",
    "glm-4.7-flash": "Q4_K_M",
}


# --- What is needed -------------------------------------------------------------------------------

class Setup:
    def __init__(self, args):
        self.work = args.work.resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.models = (args.models or self.work / "models").resolve()
        self.make_model = args.make_model
        self.vocab = args.vocab
        self.threads = args.threads
        self.rounds = args.rounds
        self.avx2_given = args.llama_avx2
        # What `alternate` has measured, by its arguments.
        self.alternated = {}
        self.sluice = (args.sluice or ROOT / "target/release/sluice").resolve()
        if not self.sluice.exists():
            say("building sluice")
            run(["cargo", "build", "--release", "-p", "sluice-cli"], cwd=ROOT)
        self.llama = (args.llama or llama.build(self.work, PROGRAMS)).resolve()

    def llama_avx2(self):
        if not self.avx2_given:
            self.avx2_given = llama.build(self.work, PROGRAMS, avx2=True)
        return self.avx2_given.resolve()


# --- Measuring ------------------------------------------------------------------------------------

def bench_sluice(setup, model, flags, more=()):
    command = [setup.sluice, "bench", "-m", model, "-t", setup.threads, "-r", 1, "-o", "json"]
    return json.loads(run([*command, *flags, *more]).stdout)


def bench_llama(setup, tools, model, flags, repack):
    command = [tools / "llama-bench", "-m", model, "-t", setup.threads, "-r", 1, "-o", "json",
               "-fa", "1", "--repack", repack, *flags]
    return json.loads(run(command, env=environment(tools)).stdout)


# llama.cpp's settings: whether weights are repacked.
SETTINGS = {"default": 1, "repack 0": 0}
# By how much the same run may differ from one minute to the next.
UNSTEADY = 1.1


def alternate(setup, model, flags, tools=None, sluice_flags=()):
    """Sluice and both settings of llama.cpp in turn. For each test that `flags` name: the t/s of
    each round, by name, and the median of Sluice's part of its limit in percent.

    Measured once: rows that are tests of one command share its runs, and its filling of a depth.
    """
    key = (model, tools, *flags, *sluice_flags)
    if key not in setup.alternated:
        setup.alternated[key] = alternate_now(setup, model, flags, tools or setup.llama,
                                              sluice_flags)
    return setup.alternated[key]


def alternate_now(setup, model, flags, tools, sluice_flags):
    runs = {"sluice": [], **{name: [] for name in SETTINGS}}
    errors = {}
    for _ in range(setup.rounds):
        runs["sluice"].append(bench_sluice(setup, model, flags, sluice_flags))
        for name, repack in SETTINGS.items():
            try:
                runs[name].append(bench_llama(setup, tools, model, flags, repack))
            except Failed as error:
                # One setting may be unable to run; the other is then the better one.
                errors[name] = error
    for name in errors:
        del runs[name]
    if len(runs) == 1:
        raise Failed(f"llama.cpp: {next(iter(errors.values()))}")
    tests = []
    for i, rows in enumerate(zip(*runs["sluice"])):
        rates = {name: [run[i]["avg_ts"] for run in found] for name, found in runs.items()}
        limits = [row["limit_percent"] if row["probe"] == "ok" else float("nan") for row in rows]
        tests.append((rates, statistics.median(limits)))
    return tests


def between(setup, base, other):
    """The ratio of the t/s of `other` to those of `base`, and the medians of both.

    Memory can become faster or slower for minutes. Each run of `other` is compared with the runs of
    `base` before and after it, and a round whose two differ by more than `UNSTEADY` is made again.
    """
    ratios, bases, others = [], [], []
    before = base()
    for _ in range(4 * setup.rounds):
        rate, after = other(), base()
        if max(before, after) < UNSTEADY * min(before, after):
            ratios.append(2 * rate / (before + after))
            bases.append((before + after) / 2)
            others.append(rate)
        if len(ratios) == setup.rounds:
            return tuple(statistics.median(values) for values in (ratios, bases, others))
        before = after
    raise Failed(f"the machine is not steady: in {4 * setup.rounds} rounds the same run before and "
                 f"after differed by {UNSTEADY - 1:.0%} all but {len(ratios)} times")


class Row:
    """A line of the table: how to measure it, and what is wanted."""

    def __init__(self, name, must, reach, measure, at_most=False, unit="×"):
        self.name, self.must, self.reach = name, must, reach
        self.measure, self.at_most, self.unit = measure, at_most, unit

    def meets(self, value, wanted):
        return value <= wanted if self.at_most else value >= wanted


def against_llama(model, flags, sluice_flags=(), avx2=False, test=0):
    """The median of the rounds' ratios to the setting that comes out better, in test number `test`
    of those that `flags` name."""
    def measure(setup):
        tools = setup.llama_avx2() if avx2 else None
        rates, limit = alternate(setup, model(setup), flags, tools, sluice_flags)[test]
        sluice = rates["sluice"]
        ratio = min(statistics.median(ours / peers for ours, peers in zip(sluice, rates[name]))
                    for name in rates if name != "sluice")
        return ratio, {"limit": limit, **{name: statistics.median(r) for name, r in rates.items()}}
    return measure


def passes(model, flags, four):
    """The time of a pass of four tokens, relative to one token."""
    def measure(setup):
        file = model(setup)
        rate = lambda more: lambda: bench_sluice(setup, file, flags, more)[0]["avg_ts"]
        ratio, one, many = between(setup, rate([]), rate(four))
        say(f"  one token at a time {one:.2f} t/s, four {many:.2f} t/s")
        return 4 / ratio, {"sluice": many}
    return measure


def disturbed(model, flags):
    """The rate while another process spins on CPU 0, relative to the quiet rate."""
    def measure(setup):
        file = model(setup)
        programs = {"sluice": lambda: bench_sluice(setup, file, flags)}
        for name, repack in SETTINGS.items():
            programs[name] = lambda r=repack: bench_llama(setup, setup.llama, file, flags, r)
        found, parts = {}, {}
        for name, program in programs.items():
            quiet = lambda: program()[0]["avg_ts"]
            try:
                parts[name], _, found[name] = between(setup, quiet, lambda: beside_spinner(quiet))
            except Failed as error:
                # A peer's setting may be unable to run, or never steady.
                if name == "sluice":
                    raise
                say(f"  llama.cpp, {name}: {error}")
        say("  of the quiet rate: " + ", ".join(f"{k} {v:.0%}" for k, v in parts.items()))
        return parts["sluice"], found
    return measure


def beside_spinner(measure):
    """What is measured while a process spins on CPU 0."""
    spinner = subprocess.Popen(["taskset", "-c", "0", "sh", "-c", "while :; do :; done"])
    try:
        return measure()
    finally:
        spinner.kill()
        spinner.wait()


def first_token(model):
    """From the start of the program to the first token, in ms, with the file in the page cache."""
    def measure(setup):
        packed = model(setup).with_suffix(".slc")
        if not packed.exists():
            run([setup.sluice, "pack", model(setup), packed])
        command = [setup.sluice, "run", "-m", packed, "-p", "Hello", "-n", 1, "-t", setup.threads,
                   "-c", 512, "--temp", 0, "-lm", "mmap", "--no-display-prompt"]
        times = []
        for round_number in range(setup.rounds + 1):
            text = run(command).stderr
            # The footer counts the first token from the end of loading on.
            parts = [re.search(name + r" =\s*([0-9.]+) ms", text)
                     for name in ("load time", "time to first token")]
            if not all(parts):
                raise Failed("sluice run: its footer has no load time or time to first token")
            if round_number:
                times.append(sum(float(part[1]) for part in parts))
        return statistics.median(times), {}
    return measure


def rows():
    types = ["Q4_0", "Q4_K_M", "Q8_0"]
    tiny = {t: lambda s, t=t: make_model(s, "tinyllama-1.1b", t) for t in types}
    pp, tg = ["-p", 512, "-n", 0], ["-p", 0, "-n", 128]
    table = []
    for t, must, reach in zip(types, (1.6, 1.4, 2.0), (2.6, 1.7, 3.0)):
        table.append(Row(f"prefill-{t}", must, reach, against_llama(tiny[t], pp)))
    for t, reach in zip(types, (1.4, 1.2, 1.45)):
        table.append(Row(f"decode-{t}", 1.15, reach, against_llama(tiny[t], tg)))
    llama32 = lambda s: make_model(s, "llama-3.2-1b", "Q4_K_M")
    for kv in ("f16", "q8_0"):
        deep = ["-p", 512, "-n", 32, "-d", 8192, "-ctk", kv, "-ctv", kv]
        table.append(Row(f"depth-{kv}-prefill", 1.5, 2.2, against_llama(llama32, deep)))
        table.append(Row(f"depth-{kv}-decode", 1.8, 2.5, against_llama(llama32, deep, test=1)))
    for t in types:
        short = ["-p", 0, "-n", 64]
        at_depth = short + ["-d", 512]
        table.append(Row(f"pass4-positions-{t}", 1.35, 1.15,
                         passes(tiny[t], short, ["-npos", 4]), at_most=True))
        table.append(Row(f"pass4-sequences-{t}", 1.35, 1.15,
                         passes(tiny[t], at_depth, ["-npl", 4]), at_most=True))
    olmoe = lambda s: make_model(s, "olmoe-1b-7b", "Q4_K_M", 4)
    table.append(Row("olmoe-prefill", 2.0, 3.0, against_llama(olmoe, pp)))
    table.append(Row("olmoe-decode", 1.15, 1.3, against_llama(olmoe, ["-p", 0, "-n", 64])))
    for shape, layers in (("qwen2.5-0.5b", None), ("qwen3-0.6b", None), ("phi-4", 4)):
        model = lambda s, a=(shape, "Q4_K_M", layers): make_model(s, *a)
        table.append(Row(f"small-{shape}-prefill", 1.15, 1.4, against_llama(model, pp)))
        table.append(Row(f"small-{shape}-decode", 1.15, 1.4, against_llama(model, tg)))
    for shape, file_type in PUBLISHED.items():
        model = lambda s, a=(shape, file_type): make_published(s, *a)
        both = ["-p", 512, "-n", 128]
        table.append(Row(f"{shape}-prefill", 1.3, 1.3, against_llama(model, both)))
        table.append(Row(f"{shape}-decode", 1.15, 1.15, against_llama(model, both, test=1)))
        deep = ["-p", 0, "-n", 32, "-d", 4096]
        table.append(Row(f"{shape}-depth", 1.15, 1.15, against_llama(model, deep)))
    for t in types:
        isa = ["--isa", "avx2"]
        table.append(Row(f"avx2-prefill-{t}", 1.2, 1.5, against_llama(tiny[t], pp, isa, True)))
        table.append(Row(f"avx2-decode-{t}", 1.05, 1.2, against_llama(tiny[t], tg, isa, True)))
    table.append(Row("spin-prefill", 0.4, 0.5, disturbed(tiny["Q4_0"], pp)))
    table.append(Row("spin-decode", 0.4, 0.5, disturbed(tiny["Q4_0"], tg)))
    table.append(Row("load-first-token", 300, 150, first_token(tiny["Q4_0"]), True, " ms"))
    return table


# --- The program ----------------------------------------------------------------------------------

def line(row, value, found):
    rate = lambda name: f"{found[name]:.2f}" if name in found else "-"
    limit = f"{found['limit']:.0f}" if "limit" in found else "-"
    if row.meets(value, row.reach):
        verdict = "reached"
    elif row.meets(value, row.must):
        verdict = "must met"
    else:
        verdict = "MISSED"
    sign = "≤" if row.at_most else "≥"
    shown = f"{value:.0f}{row.unit}" if row.unit == " ms" else f"{value:.2f}{row.unit}"
    print(f"| {row.name:24} | {rate('sluice'):>9} | {rate('default'):>9} | {rate('repack 0'):>9} "
          f"| {limit:>5} | {shown:>8} | {sign} {row.must:<5} | {sign} {row.reach:<5} | {verdict} |",
          flush=True)
    return verdict != "MISSED"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = lambda name: pathlib.Path(os.environ[name]) if os.environ.get(name) else None
    parser.add_argument("rows", nargs="*", help="names of rows, or how they begin")
    parser.add_argument("--list", action="store_true", help="print the names of all rows")
    parser.add_argument("--llama", type=pathlib.Path, default=folder("LLAMA_BIN"),
                        help="folder with llama-bench and llama-quantize")
    parser.add_argument("--llama-avx2", type=pathlib.Path, default=folder("LLAMA_AVX2_BIN"),
                        help="the same, built without AVX-512")
    parser.add_argument("--sluice", type=pathlib.Path, help="the program to measure")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target/peers",
                        help="folder for builds and models")
    parser.add_argument("--models", type=pathlib.Path, help="folder with model files")
    parser.add_argument("--make-model", type=pathlib.Path,
                        default=SHARED / "tools/make_model.py")
    parser.add_argument("--vocab", type=pathlib.Path,
                        default=SHARED / "models/tale-5.8m-Q4_K_M.gguf")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="alternations; medians are of these")
    args = parser.parse_args()
    chosen = [row for row in rows()
              if not args.rows or any(row.name.startswith(name) for name in args.rows)]
    unknown = [n for n in args.rows if not any(row.name.startswith(n) for row in chosen)]
    if unknown:
        parser.error(f"no row begins with {', '.join(unknown)} (--list)")
    if args.list:
        print("\n".join(row.name for row in chosen))
        return 0
    if args.rounds < 1 or args.threads < 1:
        parser.error("--rounds and --threads are at least 1")
    try:
        setup = Setup(args)
    except Failed as error:
        say(f"error: {error}")
        return 1
    print("| row                      |    Sluice |   default |  repack 0 | limit%|   result | must    "
          "| reach   | verdict |\n|---|---:|---:|---:|---:|---:|---|---|---|", flush=True)
    n_missed = 0
    for row in chosen:
        try:
            n_missed += not line(row, *row.measure(setup))
        except Failed as error:
            n_missed += 1
            print(f"| {row.name:24} | FAILED: {error} |", flush=True)
    print(f"\n{len(chosen) - n_missed} of {len(chosen)} rows meet their must", flush=True)
    return 1 if n_missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
