#!/usr/bin/env python3
"""`sluice serve` and llama-server side by side: same files, same threads, alternating, medians of rounds.

    benches/peers/serve.py                   all cells, builds and makes what is missing
    benches/peers/serve.py streams-tinyllama long
    benches/peers/serve.py --only sluice     one server; what compares the two is not judged
    benches/peers/serve.py --noise           a server (--only) against itself: how much is noise
    benches/peers/serve.py --list

    streams   1, 4, 16, 64 clients at once: prompts of 64 tokens, answers of 128, 32 slots
    long      one answer is being written when a prompt of 4,000 tokens comes
    again     a prompt of 4,000 tokens, the same again, and again after a restart
    start     from the start of the server to its first answer; Sluice's file is packed
    rate      Sluice alone: turns in which every stream decodes, compared with `sluice bench`

Builds llama-server and llama-quantize as run.py does, or takes a build with --llama DIR or $LLAMA_BIN. The
models: TinyLlama's shape with random weights, which is given a whole vocabulary so that every token has
text, and the embedded one. Prompts are token ids, new in each round. In `streams` and `long` both servers
are alive and one is measured, the other has to be idle. The client runs on the same cores. A figure waits
(--patience) until other processes leave the machine alone, and says so where they did not.

A ratio above 1 is better for Sluice, whatever the unit. Exit code: 0 every bar is met, 1 one is missed or
could not be measured, 2 wrong usage, 130 interrupted.
"""
import argparse, datetime, functools, json, os, pathlib, random, re, shlex, shutil, signal, statistics, sys, tempfile
import time

import llama
from llama import ROOT, SHARED, Failed, environment, run, say
from server import Programs, Server, Watch, prefer, stop_all, wait_for_quiet
from sse import Client, Stream, completion, fetch

N_PROMPT, N_ANSWER, N_LONG = 64, 128, 4000
# Slots, and the context of all of them together.
MANY, FEW = (32, 32 * 256), (4, 4 * 5120)
TURN_MS = 50
# By which factor Sluice's tokens/s are to be above llama-server's, by the number of clients.
TOKENS_BAR = {1: 1.25, 4: 3, 16: 3, 64: 2}
# Answers one after the other from each client, so that one client has enough of them.
N_ANSWERS = {1: 3}
# How much of a core other processes may use: a thread that waits for another one's turn stops both.
OTHERS_PCT_MAX = 15
COUNTERS = "sluice:decode_turn_tokens_total", "sluice:decode_turn_seconds_total"


# --- What is needed -------------------------------------------------------------------------------

class Setup(Programs):
    def __init__(self, args):
        self.work = args.work.resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.models = (args.models or self.work / "models").resolve()
        self.make_model, self.vocab = args.make_model, args.vocab
        self.threads, self.rounds, self.seed = args.threads, args.rounds, args.seed
        self.patience_s = args.patience
        self.given = {"sluice": args.sluice, "llama": args.llama}
        self.flags = {"sluice": shlex.split(args.sluice_flags), "llama": shlex.split(args.llama_flags)}
        only = args.only or ("sluice" if args.noise else None)
        # The columns of the table, and which server each is.
        self.sides = {"Sluice": "sluice", "llama-server": "llama"}
        if only:
            self.sides = {name: kind for name, kind in self.sides.items() if kind == only}
        if args.noise:
            self.sides |= {f"{name} again": kind for name, kind in self.sides.items()}
        self.is_comparison = len(set(self.sides.values())) == 2

    @functools.cached_property
    def versions(self):
        """What `--version` says, by server."""
        found = {}
        for kind in set(self.sides.values()):
            program = self.sluice if kind == "sluice" else self.llama / "llama-server"
            done = run([program, "--version"], env=environment(self.llama) if kind == "llama" else None)
            found[kind] = (done.stdout + done.stderr).strip().splitlines()[0]
        return found

    def model(self, name):
        if name == "tale":
            return ROOT / "hosted/models/tale-5.8m-Q4_K_M.gguf"
        return llama.make_model(self, "tinyllama-1.1b", "Q4_K_M", suffix="-text")

    def packed(self, name):
        """The model as a file that Sluice maps without changing it, in the page cache."""
        packed = self.models / self.model(name).with_suffix(".slc").name
        if not packed.exists():
            run([self.sluice, "pack", self.model(name), packed])
        return packed

    def server(self, kind, model, room, more=()):
        n_slots, n_ctx = room
        flags = ["-m", model, "-t", self.threads, "-np", n_slots, "-c", n_ctx, "--metrics", *self.flags[kind],
                 *more]
        if kind == "sluice":
            return Server("sluice", [self.sluice, "serve", *flags])
        return Server("llama-server", [self.llama / "llama-server", "-fa", "on", *flags],
                      environment(self.llama))


class Prompts:
    """Token ids, the same ones for both servers and others in each round."""

    def __init__(self, *parts):
        self.random = random.Random("/".join(map(str, parts)))

    def take(self, n):
        return [self.random.randrange(300, 4000) for _ in range(n)]


# --- Measuring one server -------------------------------------------------------------------------

def percentile(values, part):
    """The least value that `part` of them do not exceed."""
    values = sorted(values)
    return values[max(0, -int(-part * len(values) // 1) - 1)]


def gaps(times):
    return [later - earlier for earlier, later in zip(times, times[1:])]


def ask(port, prompt, n_tokens):
    """One answer alone; returns its stream."""
    with Client(port) as client:
        stream = Stream(completion(prompt, n_tokens))
        client.start(stream)
        client.run()
    return stream


def first_ms(stream):
    return 1e3 * (stream.token_times()[0] - stream.sent_at)


def warm_up(server, prompts):
    ask(server.port, prompts.take(8), 4).token_times()


def streams(n_clients):
    def measure(setup, server, prompts):
        warm_up(server, prompts)
        n_answers = N_ANSWERS.get(n_clients, 1)
        bodies = [completion(prompts.take(N_PROMPT), N_ANSWER) for _ in range(n_clients * n_answers)]
        waiting = [Stream(body) for body in bodies]
        everything = list(waiting)
        with Client(server.port) as client:
            def next_one(_=None):
                if waiting:
                    client.start(waiting.pop(), next_one)
            for _ in range(n_clients):
                next_one()
            client.run()
        times = [stream.token_times() for stream in everything]
        first = [1e3 * (at[0] - stream.sent_at) for stream, at in zip(everything, times)]
        between = [1e3 * gap for at in times for gap in gaps(at)]
        span = max(at[-1] for at in times) - min(stream.sent_at for stream in everything)
        return {"tokens_per_s": len(everything) * N_ANSWER / span,
                "ttft_p50_ms": percentile(first, 0.5), "ttft_p99_ms": percentile(first, 0.99),
                "itl_p50_ms": percentile(between, 0.5), "itl_p99_ms": percentile(between, 0.99),
                "client_pct": 100 * client.cpu_s / span,
                "events_per_token": sum(map(len, times)) / len(everything) / N_ANSWER}
    return measure


def long(setup, server, prompts):
    """What a stream feels of another one's long prompt."""
    warm_up(server, prompts)
    disturbed = Stream(completion(prompts.take(N_PROMPT), N_LONG))
    comes = Stream(completion(prompts.take(N_LONG), 8))
    with Client(server.port) as client:
        client.start(disturbed)
        client.run(until=lambda: disturbed.n_events >= 64)
        client.start(comes)
        client.run(until=lambda: comes.is_done or disturbed.is_done)
        if disturbed.is_done:
            raise Failed("the stream ended before the long prompt was read")
        client.leave(disturbed)
    times, first = disturbed.token_times(), comes.token_times()[0]
    pairs = list(zip(times, times[1:]))
    quiet = [1e3 * (b - a) for a, b in pairs[8:] if b <= comes.sent_at]
    during = [1e3 * (b - a) for a, b in pairs if b > comes.sent_at and a < first]
    if not during:
        raise Failed("the stream had no token while the long prompt was read")
    return {"itl_quiet_ms": statistics.median(quiet), "itl_p99_ms": percentile(during, 0.99),
            "itl_max_ms": max(during), "n_tokens_during": len(during),
            "ttft_long_ms": 1e3 * (first - comes.sent_at)}


def again(setup, kind, prompts):
    """First tokens of one prompt: cold, from memory, and from disk after a restart."""
    prompt = prompts.take(N_LONG)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cache-", dir=setup.work))
    try:
        more = ["--cache-dir", folder] if kind == "sluice" else []
        server = setup.server(kind, setup.model("tinyllama"), FEW, more)
        with server:
            warm_up(server, prompts)
            found = {f"{name}_ms": first_ms(ask(server.port, prompt, 4)) for name in ("cold", "ram")}
        if more:
            forget(folder)
            with server:
                warm_up(server, prompts)
                found["disk_ms"] = first_ms(ask(server.port, prompt, 4))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name in ("ram", "disk"):
        if f"{name}_ms" in found:
            found[f"{name}_pct"] = 100 * found[f"{name}_ms"] / found["cold_ms"]
    return found


def forget(folder):
    """Drops a folder's files from the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def start(setup, kind, prompts):
    model = setup.packed("tinyllama") if kind == "sluice" else setup.model("tinyllama")
    with model.open("rb") as file:
        while file.read(1 << 24):
            pass
    with setup.server(kind, model, FEW) as server:
        first = ask(server.port, prompts.take(8), 1).token_times()[0]
    return {"healthy_ms": 1e3 * (server.healthy_at - server.started_at),
            "first_answer_ms": 1e3 * (first - server.started_at)}


def rate(n_clients):
    """The server's own count of turns in which every stream decodes, compared with bench's rate."""
    # Streams begin one after the other. The more there are, the longer they have to be to overlap.
    n_answer = N_ANSWER if n_clients <= 16 else 256 - N_PROMPT - 2

    def measure(setup, server, prompts):
        command = [setup.sluice, "bench", "-m", setup.model("tinyllama"), "-t", setup.threads, "-r", 1,
                   "-o", "json", "-p", 0, "-n", N_ANSWER, "-d", N_PROMPT, "-npl", n_clients]
        bench = json.loads(run(command).stdout)[0]["avg_ts"]
        every = [Stream(completion(prompts.take(N_PROMPT), n_answer)) for _ in range(n_clients)]
        with Client(server.port) as client:
            for stream in every:
                client.start(stream)
            client.run(until=lambda: all(stream.n_events > 2 for stream in every))
            before = counters(server.port)
            # The first ones end while the last ones still write: turns of fewer streams are not counted.
            client.run(until=lambda: any(stream.n_events > n_answer - 3 for stream in every))
            after = counters(server.port)
            client.run()
        for stream in every:
            stream.token_times()
        tokens, seconds = (b - a for a, b in zip(before, after))
        if not seconds > 0:
            raise Failed(f"{COUNTERS[1]} has not grown")
        return {"turns_per_s": tokens / seconds, "bench_per_s": bench,
                "share_pct": 100 * tokens / seconds / bench}
    return measure


def counters(port):
    status, text = fetch(port, "/metrics")
    found = [re.search(rf"(?m)^{name}(?:{{.*}})? (\S+)", text) for name in COUNTERS]
    if status != 200 or not all(found):
        raise Failed(f"/metrics has no {' or '.join(COUNTERS)}")
    return [float(match[1]) for match in found]


# --- The cells of the table -----------------------------------------------------------------------

class Bar:
    """What a figure has to be: `times` the peer's, or within a limit of its own."""

    def __init__(self, text, times=None, at_most=None, at_least=None):
        self.text, self.times, self.at_most, self.at_least = text, times, at_most, at_least

    def meets(self, ratio, values):
        """Whether it is met; None where that cannot be said."""
        if self.times is not None:
            # "Ahead" is any factor above 1.
            return None if ratio is None else ratio >= self.times if self.times > 1 else ratio > 1
        if self.at_most is not None:
            limit = self.at_most(values) if callable(self.at_most) else self.at_most
            return values[0] <= limit
        return values[0] >= self.at_least


AHEAD = Bar("ahead", times=1)


class Figure:
    def __init__(self, key, text, bar=None, is_more_better=False):
        self.key, self.text, self.bar, self.is_more_better = key, text, bar, is_more_better


class Cell:
    """`measure(setup, server or kind, prompts)` returns the figures of one server in one round."""

    def __init__(self, name, measure, figures, model=None, room=None, kinds=("sluice", "llama")):
        self.name, self.measure, self.figures = name, measure, figures
        # Which servers stay alive for it; without a model it starts its own.
        self.model, self.room, self.kinds = model, room, kinds


def cells():
    table = []
    for model in ("tinyllama", "tale"):
        for n, times in TOKENS_BAR.items():
            figures = [Figure("tokens_per_s", "tokens/s", Bar(f"≥ {times}×", times=times), True),
                       Figure("ttft_p50_ms", "TTFT p50, ms", AHEAD if n <= 16 else None),
                       Figure("ttft_p99_ms", "TTFT p99, ms"),
                       Figure("itl_p50_ms", "ITL p50, ms"),
                       Figure("itl_p99_ms", "ITL p99, ms", AHEAD)]
            table.append(Cell(f"streams-{model}-{n}", streams(n), figures, model, MANY))
    limit = Bar(f"≤ 2 × (quiet + {TURN_MS} ms)", at_most=lambda values: 2 * (values[1]["itl_quiet_ms"] + TURN_MS))
    table.append(Cell("long", long, [
        Figure("itl_quiet_ms", "quiet ITL, ms"), Figure("itl_p99_ms", "ITL p99, ms", limit),
        Figure("itl_max_ms", "ITL max, ms"), Figure("ttft_long_ms", "TTFT of the prompt, ms")], "tinyllama", FEW))
    table.append(Cell("again", again, [
        Figure("cold_ms", "cold, ms"), Figure("ram_ms", "from RAM, ms"), Figure("disk_ms", "from disk, ms"),
        Figure("ram_pct", "RAM, % of cold", Bar("≤ 3%", at_most=3)),
        Figure("disk_pct", "disk, % of cold", Bar("≤ 15%", at_most=15))]))
    table.append(Cell("start", start, [
        Figure("healthy_ms", "healthy, ms"),
        Figure("first_answer_ms", "first answer, ms", Bar("≤ 500 ms", at_most=500))]))
    for n in (1, 4, 16, 32):
        table.append(Cell(f"rate-{n}", rate(n), [
            Figure("bench_per_s", "bench, tokens/s"), Figure("turns_per_s", "turns, tokens/s"),
            Figure("share_pct", "turns, % of bench", Bar("≥ 85%", at_least=85))],
            "tinyllama", MANY, ("sluice",)))
    return table


# --- Rounds ---------------------------------------------------------------------------------------

class Results:
    """Figures by cell and column, one for each round."""

    def __init__(self, setup):
        self.setup = setup
        self.figures, self.errors = {}, {}
        # The CPU time of idle servers, and how long they were, by column; the client's most, in % of a core.
        self.idle, self.client_pct = {}, 0
        self.n_measured, self.n_disturbed = 0, 0

    def measure(self, cell, side, servers, round_number):
        """One cell of one server in one round; what fails is kept as the cell's error.

        Measurements with other processes running are repeated, as long as patience lasts.
        """
        subject = servers[side] if cell.model else self.setup.sides[side]
        until = time.perf_counter() + self.setup.patience_s
        for attempt in range(10):
            # Each attempt has its own prompts, or it would find them in a cache.
            prompts = Prompts(self.setup.seed, cell.name, round_number, attempt)
            wait_for_quiet(OTHERS_PCT_MAX, until)
            try:
                with Watch(servers, side) as watch:
                    found = cell.measure(self.setup, subject, prompts)
            except (Failed, OSError, ValueError) as error:
                self.errors.setdefault(cell.name, {})[side] = str(error)
                say(f"  {cell.name}, {side}: {error}")
                return
            is_disturbed = watch.others_pct > OTHERS_PCT_MAX
            if not is_disturbed or time.perf_counter() > until:
                break
            say(f"  {cell.name}, {side}: again, other processes took {watch.others_pct:.0f}% of a core")
        found["others_pct"] = watch.others_pct
        self.figures.setdefault(cell.name, {}).setdefault(side, []).append(found)
        for name, seconds in watch.idle_s.items():
            cpu_s, wall_s = self.idle.get(name, (0, 0))
            self.idle[name] = cpu_s + seconds, wall_s + watch.wall_s
        self.n_measured += 1
        self.n_disturbed += is_disturbed
        self.client_pct = max(self.client_pct, found.get("client_pct", 0))
        shown = ", ".join(f"{figure.text} {found[figure.key]:.1f}" for figure in cell.figures if figure.key in found)
        say(f"  {round_number + 1}: {cell.name}, {side}: {shown}")

    def run(self, chosen):
        """All cells; those that use the same servers, one after the other."""
        groups = {}
        for cell in chosen:
            key = (cell.model, cell.room, cell.kinds) if cell.model else cell.name
            groups.setdefault(key, []).append(cell)
        for group in groups.values():
            sides = [name for name, kind in self.setup.sides.items() if kind in group[0].kinds]
            try:
                servers = self.servers(group[0], sides)
                for round_number in range(self.setup.rounds):
                    for cell in group:
                        for side in sides[::-1] if round_number % 2 else sides:
                            if side not in self.errors.get(cell.name, {}):
                                self.measure(cell, side, servers, round_number)
            except Failed as error:
                say(f"  {error}")
                for cell in group:
                    self.errors.setdefault(cell.name, {})["setup"] = str(error)
            finally:
                stop_all()

    def servers(self, cell, sides):
        """The servers that a group of cells has in common; none where cells start their own."""
        if not cell.model:
            return {}
        model = self.setup.model(cell.model)
        servers = {side: self.setup.server(self.setup.sides[side], model, cell.room) for side in sides}
        for server in servers.values():
            server.start()
        return servers

    def values(self, cell, side, key):
        return [found[key] for found in self.figures.get(cell.name, {}).get(side, []) if key in found]

    def row(self, cell, figure):
        """A line of the table as a dictionary, or None where nothing was measured."""
        medians = {}
        for side in self.setup.sides:
            if values := self.values(cell, side, figure.key):
                medians[side] = statistics.median(values)
        if not medians:
            return None
        row = {"cell": cell.name, "what": figure.text, "medians": medians, "ratio": None, "verdict": "-",
               "bar": figure.bar.text if figure.bar else "-"}
        sides = list(self.setup.sides)
        if len(medians) == 2:
            pairs = zip(*(self.values(cell, side, figure.key) for side in sides))
            ratios = [a / b if figure.is_more_better else b / a for a, b in pairs if a > 0 and b > 0]
            if ratios:
                row |= {"ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
        if figure.bar and sides[0] == "Sluice" and "Sluice" in medians and not (
                figure.bar.times and not self.setup.is_comparison):
            own = {f.key: statistics.median(v) for f in cell.figures if (v := self.values(cell, "Sluice", f.key))}
            is_met = figure.bar.meets(row["ratio"], (medians["Sluice"], own))
            if is_met is not None:
                row["verdict"] = "met" if is_met else "MISSED"
        return row


def table(results, chosen):
    """Prints the table; returns its rows, and how many of them were missed or failed."""
    sides = list(results.setup.sides)
    rows, n_failed = [], 0
    print(f"| cell | what | {' | '.join(sides)} | ratio (least to most) | bar | verdict |")
    print("|---|---|" + "---:|" * len(sides) + "---|---|---|")
    for cell in chosen:
        for figure in cell.figures:
            if (row := results.row(cell, figure)) is None:
                continue
            rows.append(row)
            shown = [f"{row['medians'][side]:.1f}" if side in row["medians"] else "-" for side in sides]
            ratio = "-"
            if row["ratio"] is not None:
                ratio = f"{row['ratio']:.2f}× ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
            print(f"| {row['cell']:20} | {row['what']:22} | {' | '.join(f'{text:>9}' for text in shown)} "
                  f"| {ratio:24} | {row['bar']:22} | {row['verdict']} |")
        for side, error in results.errors.get(cell.name, {}).items():
            n_failed += 1
            print(f"| {cell.name:20} | FAILED, {side}: {error} |")
    for side, (cpu_s, wall_s) in results.idle.items():
        pct = 100 * cpu_s / wall_s
        is_met = pct <= 1
        rows.append({"cell": "idle", "what": "CPU, % of a core", "medians": {side: pct}, "ratio": None,
                     "bar": "≤ 1%", "verdict": "met" if is_met else "MISSED"})
        print(f"| {'idle':20} | {side}: {pct:.1f}% of a core while the other was measured "
              f"| ≤ 1% | {rows[-1]['verdict']} |")
    return rows, n_failed + sum(row["verdict"] == "MISSED" for row in rows)


# --- The program ----------------------------------------------------------------------------------

def cpu_name():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", text)
    levels = [name for name in ("avx2", "avx512f", "avx512_vnni", "amx_int8") if f" {name} " in f"{text} "]
    return f"{model[1] if model else 'unknown CPU'} ({os.cpu_count()} CPUs{''.join(f', {n}' for n in levels)})"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = os.environ.get("LLAMA_BIN")
    parser.add_argument("cells", nargs="*", help="names of cells, or how they begin")
    parser.add_argument("--list", action="store_true", help="print the names of all cells")
    parser.add_argument("--only", choices=["sluice", "llama"], help="one of the two")
    parser.add_argument("--noise", action="store_true", help="the server named by --only against itself [sluice]")
    parser.add_argument("--rounds", type=int, default=3, help="alternations; medians are of these [3]")
    parser.add_argument("-t", "--threads", type=int, default=2, help="of each server [2]")
    parser.add_argument("--json", type=pathlib.Path, help="file for every round's figures")
    parser.add_argument("--sluice", type=pathlib.Path, help="program [target/release/sluice]")
    parser.add_argument("--sluice-flags", default="", help="more flags for sluice serve")
    parser.add_argument("--llama", type=pathlib.Path, default=pathlib.Path(given) if given else None,
                        help="folder with llama-server and llama-quantize")
    parser.add_argument("--llama-flags", default="", help="more flags for llama-server")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target/peers",
                        help="folder for builds and models")
    parser.add_argument("--models", type=pathlib.Path, help="folder with model files")
    parser.add_argument("--make-model", type=pathlib.Path, default=SHARED / "tools/make_model.py")
    parser.add_argument("--vocab", type=pathlib.Path,
                        default=SHARED / "goldens/tokenizer/ggml-vocab-llama-spm.gguf",
                        help="a GGUF file whose vocabulary of 32,000 tokens is taken")
    parser.add_argument("--nice", type=int, help="priority of the servers and the client, such as -10")
    parser.add_argument("--patience", type=int, default=120, metavar="S",
                        help="for each figure, how long to wait for other processes to end [120]")
    parser.add_argument("--seed", type=int, default=time.time_ns(), help="of the prompts [by the clock]")
    args = parser.parse_args()
    every = cells()
    # A whole name is that cell alone, although others begin with it.
    wanted = [[cell for cell in every if cell.name == name] or [cell for cell in every if cell.name.startswith(name)]
              for name in args.cells]
    unknown = [name for name, found in zip(args.cells, wanted) if not found]
    if unknown:
        parser.error(f"no cell begins with {', '.join(unknown)} (--list)")
    chosen = [cell for cell in every if not wanted or any(cell in found for found in wanted)]
    if args.rounds < 1 or args.threads < 1:
        parser.error("--rounds and --threads are at least 1")
    return args, chosen


def main():
    args, chosen = arguments()
    if args.list:
        print("\n".join(cell.name for cell in chosen))
        return 0
    # Servers are stopped on the way out, whatever the way.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        setup = Setup(args)
        if args.nice is not None:
            prefer(args.nice)
        chosen = [cell for cell in chosen if set(cell.kinds) & set(setup.sides.values())]
        versions = setup.versions
    except Failed as error:
        say(f"error: {error}")
        return 1
    results = Results(setup)
    rows, n_missed = [], 1
    try:
        results.run(chosen)
    finally:
        stop_all()
        print(f"{cpu_name()}, {setup.threads} threads, medians of {setup.rounds} rounds; "
              + "; ".join(f"{kind}: {text}" for kind, text in versions.items()), flush=True)
        rows, n_missed = table(results, chosen)
        if args.json:
            record = {"date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
                      "cpu": cpu_name(), "threads": setup.threads, "rounds": setup.rounds, "seed": setup.seed,
                      "versions": versions, "flags": setup.flags, "rows": rows,
                      "errors": results.errors, "figures": results.figures}
            args.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    n_judged = sum(row["verdict"] != "-" for row in rows)
    print(f"\n{n_judged - sum(row['verdict'] == 'MISSED' for row in rows)} of {n_judged} bars are met; the client "
          f"took at most {results.client_pct:.0f}% of a core; {results.n_disturbed} of {results.n_measured} measurements "
          f"had other processes running", flush=True)
    return 1 if n_missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
