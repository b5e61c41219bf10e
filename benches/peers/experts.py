#!/usr/bin/env python3
"""Mixtures larger than memory: Sluice with experts on disk, and llama.cpp with its map of the file, in as much memory.

    benches/peers/experts.py make DIR --layers 20
    benches/peers/experts.py compare DIR --cache 25,50 --pairs 5
    benches/peers/experts.py prompt DIR --cache 25
    benches/peers/experts.py compare -h      the options of one of them

`make` writes a model of the shape of Qwen3-30B-A3B in Q8_0, 0.64 GB a layer, packs it to .slc next to it, and prints how
its routers choose. Weights are random but for what routers see (mixture.py).

`compare` generates with both programs in turn, below the same limit, from an empty page cache: the dense part, the
cache and 64 MB and a reserve for each. The limit is a control group's, or, where none can be made, what locked memory
leaves. How far the kernel reads ahead in maps decides much of llama.cpp's rate: 128 KiB is what most machines have
(--read-ahead 128). In addition to the rates: what Sluice's cache hits and what part of the best possible that is, by the trace
of the same run; it may be above 1, as experts that were guessed in time are hits and the best cache does not guess. And
the time of a token by the longer of reading its bytes as fast as the disk gives them and of computing it with all
experts in memory; where these do not fit, that time is continued from two models of fewer layers. The disk is measured
before and after each run; if the run itself was faster, its rate is the disk's, so the result is never below 1 by that.

`prompt` reads a prompt at once, and compares bytes with the union of its experts and time with token by token.

Needs the packages numpy and gguf. Exit code: 0 all was measured, 1 not, 2 wrong usage, 130 interrupted.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import re
import shlex
import signal
import statistics
import sys

import limit
import llama
import mixture
from llama import ROOT, SHARED, Failed, environment, say

# Memory that Sluice may use in addition to the dense part and the cache.
BESIDE = 64_000_000
# A resident model leaves so much memory to others.
SPARE = 2_000_000_000
GAP_MAX = 1.05


# --- Programs and models --------------------------------------------------------------------------


class Setup:
    def __init__(self, args):
        self.threads = args.threads
        self.dir = args.dir.resolve()
        self.sluice = (args.sluice or ROOT / "target/release/sluice").resolve()
        if not self.sluice.exists():
            raise Failed(
                f"{self.sluice} does not exist (cargo build --release -p sluice-cli, or --sluice)"
            )
        self.trace = self.dir / "trace.jsonl"
        self.more = shlex.split(args.flags)

    def model(self, n_layer=None):
        names = f"qwen3moe-{n_layer}l-*.gguf" if n_layer else "qwen3moe-*l-*.gguf"
        found = sorted(self.dir.glob(names), key=lambda path: path.stat().st_size)
        if not found:
            raise Failed(f"{self.dir} has no {names}: make one")
        return Model(found[-1])

    def bench(self, model, flags, cache=None, within=None):
        """A row of `sluice bench` with an expert cache of the given size in MiB."""
        command = [
            self.sluice,
            "bench",
            "-m",
            model.packed,
            "-t",
            self.threads,
            "-o",
            "jsonl",
            *flags,
        ]
        if cache:
            self.trace.unlink(missing_ok=True)
            command += ["--expert-cache", cache, "--expert-trace", self.trace]
            command += self.more
        done = limit.run(command, within)
        return Row(done, cache)


class Row:
    """What `sluice bench` reports about one test, on stdout and stderr."""

    def __init__(self, done, cache):
        fields = json.loads(done.stdout.splitlines()[-1])
        self.bytes_most = done.bytes_most
        self.n_tokens = fields["n_prompt"] + fields["n_gen"]
        self.rate = fields["avg_ts"]
        if not cache:
            return
        self.hit = fields["expert_cache_hit"]
        self.stall = fields["expert_stall_percent"]
        self.bytes = fields["expert_read_bytes"]
        self.gb_per_s = self.bytes / fields["avg_ns"]
        found = re.search(
            r"experts: (\d+) of (\d+) in memory .* read by (\w+)", done.stderr
        )
        if not found:
            raise Failed("sluice bench does not say how many experts are in memory")
        self.n_slots, self.n_experts, self.io = int(found[1]), int(found[2]), found[3]


class Model:
    def __init__(self, path):
        self.path = path
        slc = path.with_suffix(".slc")
        self.packed = slc if slc.exists() else path
        self.n_layer = int(re.search(r"-(\d+)l-", path.name)[1])
        # Of an expert in memory, where each of its matrices begins at a page.
        rows = [(mixture.N_FF, mixture.N_EMBD)] * 2 + [(mixture.N_EMBD, mixture.N_FF)]
        each = [n * mixture.row_bytes(n_cols) for n, n_cols in rows]
        self.expert_bytes = sum(-(-n // 4096) * 4096 for n in each)
        self.n_experts = self.n_layer * mixture.N_EXPERT
        self.dense_bytes = path.stat().st_size - self.n_experts * sum(each)

    def cache_mib(self, percent):
        """The share of uses of the given percentage of experts."""
        n = max(1, round(self.n_experts * percent / 100))
        return -(-n * self.expert_bytes >> 20)


# --- Traces ---------------------------------------------------------------------------------------


class Trace:
    """Which experts were chosen: steps of layers, in the order of the file."""

    def __init__(self, path):
        self.steps = [json.loads(line) for line in path.read_text().splitlines()]
        if not self.steps:
            raise Failed(f"{path} is empty")

    def hit(self):
        hits = [hit for step in self.steps for hit in step["cache_hit"]]
        return sum(hits) / max(len(hits), 1)

    def union(self):
        """How many experts were needed at all."""
        return len(
            {
                (step["layer"], expert)
                for step in self.steps
                for expert in step["experts"]
            }
        )

    def top(self, share):
        """The part of all uses that the most used experts of each layer have."""
        layers = collections.defaultdict(collections.Counter)
        for step in self.steps:
            layers[step["layer"]].update(step["experts"])
        n = round(share * mixture.N_EXPERT)
        used = sum(
            count for layer in layers.values() for _, count in layer.most_common(n)
        )
        return used / sum(layer.total() for layer in layers.values())

    def overlap(self):
        """The part of a token's experts that the token before had chosen, too."""
        last, shares = {}, []
        for step in self.steps:
            chosen = set(step["experts"])
            before = last.get(step["layer"])
            if before:
                shares.append(len(chosen & before) / len(chosen))
            last[step["layer"]] = chosen
        return statistics.mean(shares) if shares else 0.0

    def recall(self):
        """The part of experts that were guessed, by as many guesses and by all; None where nothing was guessed."""
        of_all = [[], []]
        for step in self.steps:
            chosen, guesses = step["experts"], step["predicted"]
            for shares, n in zip(of_all, (len(chosen), len(guesses)), strict=True):
                if guesses:
                    shares.append(len(set(chosen) & set(guesses[:n])) / len(chosen))
        return [statistics.mean(shares) for shares in of_all] if of_all[0] else None


def replayed(setup, slots):
    """By slots, the hit rate of the best cache and of the one that evicts what was used longest ago."""
    command = [
        setup.sluice,
        "experts",
        "replay",
        setup.trace,
        "--json",
        "--policy",
        "lru",
    ]
    command += ["--experts", mixture.N_EXPERT, "--slots", ",".join(map(str, slots))]
    caches = json.loads(llama.run(command).stdout)["caches"]
    return {
        cache["n_slots"]: (
            cache["optimum"]["hit_rate"],
            cache["policies"]["lru"]["hit_rate"],
        )
        for cache in caches
    }


# --- make -----------------------------------------------------------------------------------------


def make(setup, args):
    setup.dir.mkdir(parents=True, exist_ok=True)
    path = setup.dir / f"qwen3moe-{args.layers}l-{args.type}.gguf"
    write(path, args.layers, args)
    if not args.no_pack:
        pack(setup, path)
    if args.trace_tokens:
        describe(setup, Model(path), args)


def write(path, n_layer, args):
    try:
        mixture.write(
            path,
            n_layer,
            args.tokenizer,
            args.n_vocab,
            args.seed,
            args.zipf,
            args.spread,
        )
    finally:
        path.with_suffix(".part").unlink(missing_ok=True)


def pack(setup, path):
    say(f"packing {path.name}")
    limit.run([setup.sluice, "pack", "--overwrite", path, path.with_suffix(".slc")])


def describe(setup, model, args):
    """Prints properties of a trace of random tokens, on which all figures of a cache depend."""
    cache = model.cache_mib(25)
    setup.bench(model, ["-p", 0, "-n", args.trace_tokens, "-r", 1], cache)
    trace = Trace(setup.trace)
    slots = [
        max(mixture.N_USED, model.n_experts * percent // 1000)
        for percent in (125, 250, 500)
    ]
    rates = replayed(setup, slots)
    print(
        f"{model.path.name}: {args.trace_tokens} random tokens, {model.n_layer} layers of {mixture.N_EXPERT} experts"
    )
    print(
        f"  a quarter of the experts has {trace.top(0.25):.1%} of the uses, a half {trace.top(0.5):.1%}"
    )
    print(f"  of a token's experts the token before had chosen {trace.overlap():.1%}")
    if recall := trace.recall():
        print(
            f"  guessed a layer ahead: {recall[0]:.1%} by as many guesses as are chosen, {recall[1]:.1%} by all"
        )
    for n, (best, lru) in rates.items():
        print(
            f"  {n} slots ({n / model.n_experts:.1%}): LRU {lru:.1%} of uses, the best possible {best:.1%}"
        )


# --- compare --------------------------------------------------------------------------------------


def compare(setup, args):
    model, tools = setup.model(args.layers), args.llama.resolve()
    program = tools / "llama-bench" if tools.is_dir() else tools
    compute = resident(setup, model, args)
    say(f"a token computed from memory takes {1e3 * compute:.1f} ms")
    runs = {percent: [] for percent in args.cache}
    for i in range(args.pairs):
        for percent, pairs in runs.items():
            pairs.append(
                Pair(setup, model, args, program, percent, is_first=i % 2 == 0)
            )
            say(f"  {percent:g}%, pair {i + 1} of {args.pairs}: {pairs[-1]}")
    table(model, runs, compute)
    ahead = args.read_ahead or limit.ReadAhead(model.path).before
    print(f"the kernel read {ahead} KiB ahead in llama.cpp's map")


class Pair:
    """A run of each program in as much memory, and the rate of the disk around Sluice's."""

    def __init__(self, setup, model, args, program, percent, is_first):
        cache = model.cache_mib(percent)
        self.bound = model.dense_bytes + (cache << 20) + BESIDE
        test = ["-p", 0, "-n", args.n_gen, "-r", 1]
        with limit.limited(self.bound + (args.reserve << 20), say) as within:

            def ours():
                limit.drop_caches(model.path, model.packed)
                before = self.disk_rate(model, args)
                self.sluice = setup.bench(model, test, cache, within)
                # It was at least as fast as in the run, and shared disks change.
                rates = before, self.disk_rate(model, args), 1e9 * self.sluice.gb_per_s
                self.disk = max(rates)

            def theirs():
                limit.drop_caches(model.path, model.packed)
                command = [
                    program,
                    "-m",
                    model.path,
                    "-t",
                    setup.threads,
                    "-o",
                    "jsonl",
                    *test,
                ]
                # Repacked weights would be a copy in memory.
                command += ["-fa", 1, "-lm", "mmap", "--repack", 0]
                with limit.ReadAhead(model.path, args.read_ahead):
                    done = limit.run(command, within, environment(program.parent))
                self.llama = json.loads(done.stdout.splitlines()[-1])["avg_ts"]

            for each in (ours, theirs) if is_first else (theirs, ours):
                each()
        best, _ = replayed(setup, [self.sluice.n_slots])[self.sluice.n_slots]
        self.of_best = Trace(setup.trace).hit() / best if best else 1.0

    @staticmethod
    def disk_rate(model, args):
        return limit.disk_bytes_per_s(model.packed, model.expert_bytes, args.disk_s)

    def io(self):
        """Seconds that the disk takes at least for a token's bytes."""
        return self.sluice.bytes / self.sluice.n_tokens / self.disk

    def __str__(self):
        return f"{self.sluice.rate:.3f} and {self.llama:.3f} t/s, {self.sluice.hit:.1%} hit, disk {self.disk / 1e9:.2f} GB/s"


def table(model, runs, compute):
    head = [
        "cache", "slots", "Sluice t/s", "llama.cpp t/s", "ratio (least to most)", "hit", "of best", "stall", "GB/s",
        "MB a token", "VmHWM MB", "bound MB", "io ms", "compute ms", "time / max",
    ]  # fmt: skip
    print(f"\n{model.packed.name} and {model.path.name}, {model.n_layer} layers")
    print(f"| {' | '.join(head)} |\n|{'---:|' * len(head)}", flush=True)
    for percent, pairs in runs.items():
        median = lambda of, pairs=pairs: statistics.median(of(pair) for pair in pairs)
        ratios = [pair.sluice.rate / pair.llama for pair in pairs]
        gap = median(lambda pair: 1 / pair.sluice.rate / max(pair.io(), compute))
        most = max(pair.sluice.bytes_most for pair in pairs)
        cells = [
            f"{percent:g}%",
            f"{pairs[0].sluice.n_slots}",
            f"{median(lambda pair: pair.sluice.rate):.3f}",
            f"{median(lambda pair: pair.llama):.3f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            f"{median(lambda pair: pair.sluice.hit):.1%}",
            f"{median(lambda pair: pair.of_best):.3f}",
            f"{median(lambda pair: pair.sluice.stall):.1f}%",
            f"{median(lambda pair: pair.sluice.gb_per_s):.2f}",
            f"{median(lambda pair: pair.sluice.bytes / pair.sluice.n_tokens) / 1e6:.1f}",
            f"{most / 1e6:.0f}" + (" ABOVE" if most > pairs[0].bound else ""),
            f"{pairs[0].bound / 1e6:.0f}",
            f"{1e3 * median(Pair.io):.1f}",
            f"{1e3 * compute:.1f}",
            f"{gap:.3f}" + (" ABOVE" if gap > GAP_MAX else ""),
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
    print(
        f"\nread by {next(iter(runs.values()))[0].sluice.io}; `time / max` is to be at most {GAP_MAX}"
    )


def resident(setup, model, args):
    """Seconds of a token with all experts in memory."""
    if model.packed.stat().st_size + SPARE < limit.available():
        return seconds_of(setup, model, args)
    few, more = args.compute_layers
    say(
        f"{model.packed.name} does not fit into memory: continued from models of {few} and {more} layers"
    )
    times = []
    for n_layer in (few, more):
        with made(setup, n_layer, args) as small:
            times.append(seconds_of(setup, small, args))
    return times[0] + (model.n_layer - few) * (times[1] - times[0]) / (more - few)


def seconds_of(setup, model, args):
    test = ["-p", 0, "-n", args.n_gen, "-r", 3]
    return 1 / setup.bench(model, test).rate


@contextlib.contextmanager
def made(setup, n_layer, args):
    """The model with the given number of layers; files created for it are removed."""
    path = setup.dir / f"qwen3moe-{n_layer}l-Q8_0.gguf"
    if path.exists():
        yield Model(path)
        return
    try:
        write(path, n_layer, args)
        pack(setup, path)
        yield Model(path)
    finally:
        for each in (path, path.with_suffix(".slc")):
            each.unlink(missing_ok=True)


# --- prompt ---------------------------------------------------------------------------------------


def prompt(setup, args):
    model = setup.model(args.layers)
    n = args.n_prompt
    head = [
        "cache", "prompt s", "token by token s", "times", "prompt GB", "token by token GB", "union GB", "read / union",
    ]  # fmt: skip
    print(
        f"\n{model.packed.name}, {n} tokens; token by token: {args.n_gen} tokens, times {n / args.n_gen:g}"
    )
    print(f"| {' | '.join(head)} |\n|{'---:|' * len(head)}", flush=True)
    for percent in args.cache:
        cache = model.cache_mib(percent)
        cold = ["-r", 1, "--no-warmup"]
        limit.drop_caches(model.packed)
        at_once = setup.bench(model, ["-p", n, "-n", 0, *cold], cache)
        union = Trace(setup.trace).union() * model.expert_bytes
        limit.drop_caches(model.packed)
        single = setup.bench(model, ["-p", 0, "-n", args.n_gen, *cold], cache)
        seconds = n / at_once.rate, n / single.rate
        read = at_once.bytes, single.bytes * n / args.n_gen
        cells = [
            f"{percent:g}%",
            f"{seconds[0]:.2f}",
            f"{seconds[1]:.2f}",
            f"{seconds[1] / seconds[0]:.1f}",
            f"{read[0] / 1e9:.2f}",
            f"{read[1] / 1e9:.2f}",
            f"{union / 1e9:.2f}",
            f"{read[0] / union:.3f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


# --- The program ----------------------------------------------------------------------------------


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def percents(text):
    values = [float(part) for part in text.split(",")]
    if not all(0 < value <= 100 for value in values):
        raise argparse.ArgumentTypeError(
            f"{text}: percents are above 0 and at most 100"
        )
    return values


def two_counts(text):
    few, more = (positive(part) for part in text.split(","))
    if few >= more:
        raise argparse.ArgumentTypeError(f"{text}: the second is to be larger")
    return few, more


def common():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "dir", type=pathlib.Path, metavar="DIR", help="folder of the models"
    )
    parser.add_argument(
        "--sluice", type=pathlib.Path, help="program [target/release/sluice]"
    )
    parser.add_argument(
        "--flags",
        default="",
        help="more flags of runs with a cache: --flags='--expert-policy heat'",
    )
    parser.add_argument(
        "-t", "--threads", type=positive, default=2, help="of each program [2]"
    )
    return parser


def weights():
    parser = argparse.ArgumentParser(add_help=False)
    tokenizer = SHARED / "models/tale-5.8m-Q8_0.gguf"
    parser.add_argument(
        "--tokenizer",
        type=pathlib.Path,
        default=tokenizer,
        metavar="FILE",
        help="its tokens are taken",
    )
    parser.add_argument(
        "--n-vocab",
        type=positive,
        help="number of layers, by cutting or padding; the same for `make` and `compare` [all]",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--zipf",
        type=float,
        default=mixture.ZIPF,
        help=f"exponent of popularity [{mixture.ZIPF}]",
    )
    parser.add_argument(
        "--spread",
        type=float,
        default=mixture.SPREAD,
        help=f"of tokens' own part in logits [{mixture.SPREAD}]",
    )
    return parser


def turns(parser, caches, n_gen):
    parser.add_argument(
        "--layers", type=positive, help="of the model [the largest in DIR]"
    )
    parser.add_argument(
        "--cache",
        type=percents,
        default=percents(caches),
        help=f"percent of all experts [{caches}]",
    )
    parser.add_argument(
        "-n", "--n-gen", type=positive, default=n_gen, help=f"tokens of a run [{n_gen}]"
    )


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="make|compare|prompt"
    )

    part = commands.add_parser(
        "make", help="write a model", parents=[common(), weights()]
    )
    part.set_defaults(run=make)
    part.add_argument(
        "--layers", type=positive, required=True, help="the published model has 48"
    )
    part.add_argument("--type", choices=["Q8_0"], default="Q8_0")
    part.add_argument(
        "--no-pack",
        action="store_true",
        help="no .slc next to it: experts are read from the GGUF file",
    )
    part.add_argument(
        "--trace-tokens",
        type=int,
        default=256,
        metavar="N",
        help="to describe routers by; 0: not [256]",
    )

    part = commands.add_parser(
        "compare", help="Sluice and llama.cpp in turn", parents=[common(), weights()]
    )
    part.set_defaults(run=compare)
    turns(part, "25,50", 64)
    given = os.environ.get("LLAMA_BIN")
    part.add_argument(
        "--llama",
        type=pathlib.Path,
        default=given,
        required=not given,
        help="llama-bench, or its folder [$LLAMA_BIN]",
    )
    part.add_argument(
        "--pairs", type=positive, default=3, help="medians are of these [3]"
    )
    part.add_argument(
        "--reserve",
        type=int,
        default=64,
        metavar="MiB",
        help="of the limit, in addition to the rest [64]",
    )
    part.add_argument(
        "--read-ahead",
        type=positive,
        metavar="KiB",
        help="of the disk, while llama.cpp runs; needs root [as it is]",
    )
    part.add_argument(
        "--disk-s",
        type=float,
        default=3.0,
        metavar="S",
        help="how long the disk is measured, before and after each run [3]",
    )
    part.add_argument(
        "--compute-layers",
        type=two_counts,
        default=(2, 6),
        metavar="N,M",
        help="of models that time is continued from where the model is larger than memory [2,6]",
    )

    part = commands.add_parser(
        "prompt", help="a prompt at once and token by token", parents=[common()]
    )
    part.set_defaults(run=prompt)
    turns(part, "25", 64)
    part.add_argument(
        "-p",
        "--n-prompt",
        type=positive,
        default=512,
        help="tokens of the prompt [512]",
    )
    return parser.parse_args()


def main():
    args = arguments()
    # Groups and files are removed on the way out, whatever the way.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        args.run(Setup(args), args)
    except (Failed, OSError) as error:
        say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
