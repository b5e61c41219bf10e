#!/usr/bin/env python3
"""What adapters (LoRA) cost: Sluice with and without them, in turn, and llama-server the same way.

    benches/peers/lora.py tax                    one token at a time, r = 16 on all matrices, compared with llama-server
    benches/peers/lora.py mixed                  16 sequences with 16, 4 and 1 different adapters
    benches/peers/lora.py zipf --csv FILE        the server: 512 adapters, Poisson arrivals, 10 minutes of each
    benches/peers/lora.py make --model M.gguf --out DIR -n 512 -r 32 --modules q,k,v,o
    benches/peers/lora.py zipf -h                the options of one of them

Needs the packages numpy and gguf. Adapters have random numbers, lie outside of the checkout and are removed at the
end (--keep, --adapters DIR). Models: TinyLlama's shape with random weights, made where missing. Builds llama-server
and llama-quantize as run.py does, or takes a build with --llama DIR or $LLAMA_BIN.

In a run of Sluice every other token is without adapters, and a step is compared with its neighbours (bench --in-turn).
A run of llama-server is compared with the runs without before and after it, and made again where these two differ too
much (--unsteady). A tax is the median of the rounds. Exit code: 0 every bar is met, 1 one is missed or could
not be measured, 2 wrong usage, 130 interrupted.
"""
import argparse, json, os, pathlib, signal, statistics, sys, time, urllib.request

import adapters, llama, traffic
from llama import ROOT, SHARED, Failed, environment, run, say
from server import Programs, Server, Watch, prefer, stop_all, wait_for_quiet

OTHERS_PCT_MAX = 15
# What a tax may be above the part that reading the adapter's bytes has to take, in points.
ABOVE_FLOOR = 1.5
MIXED_BAR_PCT = 15
ROWS = 16


# --- What is needed -------------------------------------------------------------------------------

class Setup(Programs):
    def __init__(self, args):
        self.work = args.work.resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.models = (args.models or self.work / "models").resolve()
        self.make_model, self.vocab = args.make_model, args.vocab
        self.threads, self.seed, self.patience_s = args.threads, args.seed, args.patience
        self.given = {"sluice": args.sluice, "llama": args.llama}
        self.model_given, self.adapters, self.keep = args.model, args.adapters, args.keep
        # Only commands that take turns have these.
        self.rounds, self.unsteady = getattr(args, "rounds", 1), getattr(args, "unsteady", 1.0)
        self.n_disturbed = self.n_measured = 0

    def all_models(self, file_types):
        """What a row calls a model, and the model."""
        if self.model_given:
            yield self.model_given.stem, adapters.Model(self.model_given)
            return
        for file_type in file_types:
            yield file_type, adapters.Model(llama.make_model(self, "tinyllama-1.1b", file_type))

    def adapters_for(self, model, count, args):
        return adapters.folder_of(self.adapters, self.keep, model, count, args.rank, args.modules, self.seed)

    def bench(self, model, *flags):
        """What `sluice bench` measures."""
        command = [self.sluice, "bench", "-m", model.path, "-t", self.threads, "-p", 0, "-r", 1, "-o", "json"]
        return json.loads(run([*command, *flags]).stdout)[0]

    def quiet(self, measure, servers=None):
        """What is measured, once other processes leave the machine alone or patience is over."""
        wait_for_quiet(OTHERS_PCT_MAX, time.perf_counter() + self.patience_s)
        with Watch(servers or {}, None) as watch:
            value = measure()
        self.n_measured += 1
        self.n_disturbed += watch.others_pct > OTHERS_PCT_MAX
        return value


# --- With and without, in turn --------------------------------------------------------------------

class Taxes:
    """The rates of rounds, and of the runs without before and after."""

    def __init__(self):
        self.rates, self.bases = [], []

    def add(self, base, rate):
        self.bases.append(base)
        self.rates.append(rate)

    @property
    def every(self):
        return [100 * (base / rate - 1) for base, rate in zip(self.bases, self.rates)]


def in_turn(setup, model, tests):
    """Each of `tests`, flags of adapters by name, in every round. In a run steps with and without take turns; those
    without among themselves are `none`."""
    found = {name: Taxes() for name in ["none", *tests]}
    for _ in range(setup.rounds):
        for name, flags in tests.items():
            row = setup.quiet(lambda: setup.bench(model, "--in-turn", *flags))
            base, tax, none = row["bare_ts"], row["adapter_tax_percent"], row["bare_tax_percent"]
            found[name].add(base, base / (1 + tax / 100))
            found["none"].add(base, base / (1 + none / 100))
            say(f"  {name}: without {base:.2f} t/s, tax {tax:.1f}%; without against without {none:.1f}%")
    return found


def alternate(setup, base, others, servers=None):
    """`base()` and each of `others`, by name, in turn. The tax of a rate is by how much longer a token takes."""
    found = {name: Taxes() for name in others}
    before = None
    for _ in range(4 * setup.rounds):
        todo = [name for name in others if len(found[name].rates) < setup.rounds]
        if not todo:
            return found
        for name in todo:
            if before is None:
                before = setup.quiet(base, servers)
            rate, after = setup.quiet(others[name], servers), setup.quiet(base, servers)
            if max(before, after) < setup.unsteady * min(before, after):
                found[name].add((before + after) / 2, rate)
                say(f"  {name}: without {found[name].bases[-1]:.2f}, with {rate:.2f} t/s, "
                    f"tax {found[name].every[-1]:.1f}%")
            before = after
    short = [name for name in others if len(found[name].rates) < setup.rounds]
    if short:
        raise Failed(f"the machine is not steady: in {4 * setup.rounds} rounds the runs without differed by "
                     f"{setup.unsteady - 1:.0%} too often ({', '.join(short)})")
    return found


def head(share):
    """Prints the head of a table; `share` is the ratio of the adapters' bytes to the weights' there."""
    print(f"| what                          | without |    with |   tax (least to most)  | {share:>6} |    bar | verdict |\n"
          "|---|---:|---:|---|---:|---:|---|", flush=True)


def line(name, taxes, share=None, bar=None):
    """Prints a row; returns whether it misses its bar."""
    tax = statistics.median(taxes.every)
    verdict = "-" if bar is None else "met" if tax <= bar else "MISSED"
    percent = lambda value: "-" if value is None else f"{value:.1f}%"
    spread = f"{tax:.1f}% ({min(taxes.every):.1f} to {max(taxes.every):.1f})"
    print(f"| {name:29} | {statistics.median(taxes.bases):7.2f} | {statistics.median(taxes.rates):7.2f} "
          f"| {spread:22} | {percent(share):>6} | {percent(bar):>6} | {verdict} |", flush=True)
    return verdict == "MISSED"


# --- tax ------------------------------------------------------------------------------------------

def tax(setup, args):
    head("floor")
    n_missed = 0
    for name, model in setup.all_models(args.types):
        with setup.adapters_for(model, 1, args) as (path,):
            tests = {dtype: ["-n", args.n_gen, "--lora", path, "--lora-dtype", dtype] for dtype in args.dtypes}
            found = in_turn(setup, model, tests)
            line(f"{name}, without again", found.pop("none"))
            for dtype, taxes in found.items():
                floor = 100 * adapters.packed_bytes(path, dtype) / model.bytes_per_token
                n_missed += line(f"{name}, {dtype}", taxes, floor, floor + ABOVE_FLOOR)
            if args.only != "sluice":
                floor = 100 * adapters.packed_bytes(path, "f16") / model.bytes_per_token
                n_missed += line(f"{name}, llama-server, f16", llama_tax(setup, args, model, path), floor)
    return n_missed


def llama_tax(setup, args, model, path):
    """llama-server without and with the adapter; both are alive, and one is asked at a time."""
    command = [setup.llama / "llama-server", "-m", model.path, "-t", setup.threads, "-np", 1, "-c", 512, "-fa", "on"]
    servers = {name: Server("llama-server", [*command, *more], environment(setup.llama))
               for name, more in (("without", []), ("with", ["--lora", path]))}
    try:
        for server in servers.values():
            server.start()
        rate = lambda name: lambda: llama_rate(servers[name].port, args.n_gen)
        # The first answer of each reads the file.
        for name in servers:
            rate(name)()
        return alternate(setup, rate("without"), {"llama-server": rate("with")}, servers)["llama-server"]
    finally:
        for server in servers.values():
            server.stop()


def llama_rate(port, n_gen):
    body = {"prompt": list(range(1000, 1008)), "n_predict": n_gen, "ignore_eos": True, "temperature": 0,
            "cache_prompt": False}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        timings = json.load(answer)["timings"]
    if timings["predicted_n"] != n_gen:
        raise Failed(f"llama-server wrote {timings['predicted_n']} tokens instead of {n_gen}")
    return timings["predicted_per_second"]


# --- mixed ----------------------------------------------------------------------------------------

def mixed(setup, args):
    # A step of 16 rows takes longer than reading the weights: their bytes are no floor here.
    head("bytes")
    n_missed = 0
    for name, model in setup.all_models(args.types):
        with setup.adapters_for(model, max(args.distinct), args) as paths:
            each = lambda n: ",".join(map(str, paths[:n]))
            kinds = {f"{dtype}, {n} different": (dtype, n) for dtype in args.dtypes for n in args.distinct}
            tests = {text: ["-n", args.n_gen, "-npl", ROWS, "--lora-each", each(n), "--lora-dtype", dtype]
                     for text, (dtype, n) in kinds.items()}
            found = in_turn(setup, model, tests)
            line(f"{name}, without again", found.pop("none"))
            for text, taxes in found.items():
                dtype, n = kinds[text]
                share = 100 * n * adapters.packed_bytes(paths[0], dtype) / model.bytes_per_token
                bar = MIXED_BAR_PCT if (dtype, n) == ("int8", ROWS) else None
                n_missed += line(f"{name}, {text}", taxes, share, bar)
    return n_missed


# --- make -----------------------------------------------------------------------------------------

def make(_, args):
    args.out.mkdir(parents=True, exist_ok=True)
    before = set(args.out.iterdir())
    try:
        adapters.write(args.out, adapters.Model(args.model), args.count, args.rank, args.modules, args.type, args.seed)
    except BaseException:
        # What is half made would be taken for whole.
        for path in set(args.out.iterdir()) - before:
            path.unlink()
        raise
    return 0


# --- The program ----------------------------------------------------------------------------------

def number(least, kind=int):
    def parse(text):
        value = kind(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value
    parse.__name__ = kind.__name__
    return parse


def names(of):
    """A list of names, separated by commas."""
    def parse(text):
        found = text.split(",")
        if unknown := [name for name in found if name not in of]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is not one of {', '.join(of)}")
        return found
    return parse


def numbers(text):
    return [number(1)(part) for part in text.split(",")]


def modules(text):
    try:
        return adapters.modules_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def shape_options(parser, rank, of):
    parser.add_argument("-r", "--rank", type=number(1), default=rank, help=f"[{rank}]")
    parser.add_argument("--modules", type=modules, default=of, help=f"q,k,v,o,gate,up,down or all [{of}]")


def common():
    parser = argparse.ArgumentParser(add_help=False)
    given = os.environ.get("LLAMA_BIN")
    parser.add_argument("--sluice", type=pathlib.Path, help="program [target/release/sluice]")
    parser.add_argument("--llama", type=pathlib.Path, default=pathlib.Path(given) if given else None,
                        help="folder with llama-server and llama-quantize")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target/peers", help="folder for builds and models")
    parser.add_argument("--models", type=pathlib.Path, help="folder with model files")
    parser.add_argument("--model", type=pathlib.Path, metavar="FILE", help="a model instead of TinyLlama's shape")
    parser.add_argument("--make-model", type=pathlib.Path, default=SHARED / "tools/make_model.py")
    parser.add_argument("--vocab", type=pathlib.Path, default=SHARED / "models/tale-5.8m-Q4_K_M.gguf")
    parser.add_argument("--adapters", type=pathlib.Path, metavar="DIR",
                        help="adapters that `make` has made [new ones in $TMPDIR]")
    parser.add_argument("--keep", action="store_true", help="do not remove the adapters that are made")
    parser.add_argument("-t", "--threads", type=number(1), default=2, help="of each program [2]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nice", type=int, help="priority of all that is started, such as -10")
    parser.add_argument("--patience", type=number(0), default=120, metavar="S",
                        help="for each run, how long to wait for other processes to end [120]")
    return parser


def turns(parser, n_gen):
    parser.add_argument("--rounds", type=number(1), default=5, help="medians are of these [5]")
    parser.add_argument("-n", "--n-gen", type=number(1), default=n_gen, help=f"tokens of a run [{n_gen}]")
    parser.add_argument("--dtypes", type=names(["int8", "bf16", "f16", "f32"]), default=["bf16", "int8"],
                        help="how adapters lie in memory [bf16,int8]")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="tax|mixed|zipf|make")
    shared = common()
    types = names(["Q4_0", "Q4_K_M", "Q8_0"])

    def command(name, run_it, text, examples, parents=(shared,)):
        lines = "\n".join(f"  benches/peers/lora.py {name} {example}".rstrip() for example in examples)
        part = commands.add_parser(name, description=text, epilog=f"Examples:\n{lines}", parents=parents,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
        part.set_defaults(run=run_it)
        return part

    part = command("tax", tax, "One token at a time, with one adapter and without.",
                   ["", "--types Q8_0 --dtypes int8 --only sluice", "--rounds 1 -n 8 --patience 0 --unsteady 9"])
    part.add_argument("--types", type=types, default=["Q4_K_M", "Q8_0"], help="of the model [Q4_K_M,Q8_0]")
    part.add_argument("--only", choices=["sluice"], help="leave llama-server out")
    part.add_argument("--unsteady", type=number(1, float), default=1.1, metavar="X",
                      help="of llama-server: factor between the runs before and after from which a round is repeated [1.1]")
    turns(part, 256)
    shape_options(part, 16, "all")

    part = command("mixed", mixed, f"{ROWS} sequences side by side, with different adapters and without.",
                   ["", "--distinct 16 --dtypes int8", "--modules q,k,v,o -r 32"])
    part.add_argument("--types", type=types, default=["Q4_K_M"], help="of the model [Q4_K_M]")
    part.add_argument("--distinct", type=numbers, default=[16, 4, 1], help="different adapters [16,4,1]")
    turns(part, 64)
    shape_options(part, 16, "all")

    part = command("zipf", traffic.zipf, traffic.__doc__, [
        "", "--csv zipf.csv --nice -10", "--minutes 0.5 --block 15 --capacity-s 8 --count 64 --patience 0",
        "--rate 2 --adapters DIR"])
    traffic.options(part, number)
    shape_options(part, 32, "q,k,v,o")

    part = command("make", make, "Adapters with random numbers for a GGUF model, as llama.cpp's files. They are kept.",
                   ["--model model.gguf --out DIR", "--model model.gguf --out DIR -n 512 -r 32 --modules q,k,v,o"],
                   parents=())
    part.add_argument("--model", type=pathlib.Path, required=True)
    part.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR")
    part.add_argument("-n", "--count", type=number(1), default=1)
    part.add_argument("--type", choices=list(adapters.FILE_TYPES), default="f16")
    part.add_argument("--seed", type=int, default=1)
    shape_options(part, 16, "all")
    return parser.parse_args()


def main():
    args = arguments()
    # Servers are stopped and files removed on the way out, whatever the way.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if args.command == "make":
            return make(None, args)
        if args.nice is not None:
            prefer(args.nice)
        setup = Setup(args)
        n_missed = args.run(setup, args)
    except (Failed, OSError) as error:
        say(f"error: {error}")
        return 1
    finally:
        stop_all()
    beside = ""
    if setup.n_measured:
        beside = f"; {setup.n_disturbed} of {setup.n_measured} runs had other processes running"
    print(f"\n{'every bar is met' if not n_missed else f'{n_missed} missed'}{beside}", flush=True)
    return 1 if n_missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
