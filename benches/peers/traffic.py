"""The server with many adapters: requests come as they do (Poisson), each to an adapter by Zipf's law.

Measures first what the server can do: clients that ask for the model itself, one request after the other. Then
requests come at a share of that rate, whether answers are ready or not, in blocks by turns: all to the model itself,
and at the same moments all to adapters. A request's time counts from the moment it was due.
"""
import collections, csv, os, pathlib, random, re, statistics, time

from llama import Failed, say
from serve import Prompts, percentile
from server import Server, Watch, wait_for_quiet
from sse import Client, Stream, completion, fetch

TAX_MUST_PCT, TAX_REACH_PCT = 15, 5
OTHERS_PCT_MAX = 15
BASE = "base"
# How long answers may take after a block's last request, and adapters to be listed.
DRAIN_S, LISTED_S = 300, 60
N_CTX_EACH = 256
# How often a pair of blocks is measured, at most, where other processes come between.
ATTEMPTS = 5
LOADED = re.compile(r'adapter "([^"]*)" loaded in ([0-9.]+) ms')
NOT_LOADED = re.compile(r'adapter "[^"]*" was not loaded: .*')
TURNS_S, MEMORY = "sluice:decode_turn_seconds_total", "process_resident_memory_bytes"
CSV_HEADER = ("sched,alpha,adapters_N,mean_adapters_per_req,rank,load_rps,duration_s,decode_threads,adapter_threads,"
              "pin_cores,p50_ms,p95_ms,base_p95_ms,lora_tax_pct,hot_reload_ms_p95,tokens_per_s,queue_ms_p95,decode_util,"
              "adapter_util,overlap_ratio")


def options(parser, number):
    parser.add_argument("--minutes", type=number(0.01, float), default=10, help="of each of the two [10]")
    parser.add_argument("--block", type=number(1), default=60, metavar="S", help="seconds of a turn [60]")
    parser.add_argument("--load", type=number(0.01, float), default=0.7, help="part of the capacity [0.7]")
    parser.add_argument("--rate", type=number(0.01, float), help="requests per second; the capacity is not measured")
    parser.add_argument("--capacity-s", type=number(1), default=60, help="seconds of measuring the capacity [60]")
    parser.add_argument("--count", type=number(1), default=512, help="adapters [512]")
    parser.add_argument("--alpha", type=number(0, float), default=1.1, help="of Zipf's law [1.1]")
    parser.add_argument("--in-memory", type=number(1), default=64, help="--max-cpu-loras [64]")
    parser.add_argument("--dtype", default="int8", choices=["auto", "int8", "bf16", "f16", "f32"],
                        help="--lora-dtype [int8]")
    parser.add_argument("-np", "--slots", type=number(1), default=16, help="texts at once, and clients [16]")
    parser.add_argument("--n-prompt", type=number(1), default=64, help="tokens of a prompt [64]")
    parser.add_argument("--n-answer", type=number(1), default=32, help="tokens of an answer [32]")
    parser.add_argument("--type", default="Q4_K_M", choices=["Q4_0", "Q4_K_M", "Q8_0"], help="of the model [Q4_K_M]")
    parser.add_argument("--csv", type=pathlib.Path, help="file for the scheduler's line")


# --- Load -----------------------------------------------------------------------------------------

class Request(Stream):
    """A request to the model or to an adapter; its figures once it has ended."""

    def __init__(self, args, model, prompts, n_answer=None):
        # With its timings every token is an event, also one that has no text.
        body = completion(prompts.take(args.n_prompt), n_answer or args.n_answer)
        super().__init__(body | {"model": model, "timings_per_token": True})
        self.model = model
        self.due_at, self.error = None, None

    def judge(self):
        """Keeps its figures and forgets what came."""
        if self.error is None:
            try:
                times, last = self.token_times(), self.events()[-1][1].get("timings", {})
                self.first_ms = 1e3 * (times[0] - self.due_at)
                self.whole_ms = 1e3 * (self.times[-1] - self.due_at)
                self.queue_ms, self.n_cached = last.get("queued_ms"), last.get("cache_n", 0)
            except (Failed, ValueError, IndexError) as error:
                self.error = str(error)
        self.pieces, self.times = [], []


class Load(Client):
    """A client whose requests begin when they are due, and fail alone."""

    def __init__(self, port):
        super().__init__(port)
        self.late_ms_max = 0

    def begin(self, request, due_at, then=None):
        request.due_at = due_at
        self.guarded(request, lambda: super(Load, self).start(request, then))
        self.late_ms_max = max(self.late_ms_max, 1e3 * (time.perf_counter() - due_at))

    def send(self, stream):
        self.guarded(stream, lambda: super(Load, self).send(stream))

    def receive(self, stream):
        self.guarded(stream, lambda: super(Load, self).receive(stream))

    def guarded(self, stream, do):
        try:
            do()
        except (Failed, OSError) as error:
            stream.error = str(error)
            self.close(stream)
            if stream.then:
                stream.then(stream)

    def play(self, requests, span_s):
        """Requests with the second each is due; returns when all have ended, and how long that took."""
        waiting = collections.deque(requests)
        cpu_before, begin = time.process_time(), time.perf_counter()
        while waiting or self.open:
            now = time.perf_counter() - begin
            while waiting and waiting[0][0] <= now:
                due_s, request = waiting.popleft()
                self.begin(request, begin + due_s)
            if now > span_s + DRAIN_S:
                break
            self.turn(min(1, waiting[0][0] - now) if waiting else 1)
        for stream in list(self.open.values()):
            stream.error = f"no end of the answer {DRAIN_S} s after the block"
            self.leave(stream)
        self.cpu_s += time.process_time() - cpu_before
        return time.perf_counter() - begin


def capacity(args, server, seed):
    """Requests per second of clients that ask one after the other."""
    prompts = Prompts(seed, "capacity")
    ended = []
    begin = time.perf_counter()
    # The first answers have different lengths: the clients are not to go in step.
    first_s, end = begin + args.capacity_s / 4, begin + args.capacity_s
    with Load(server.port) as client:
        def again(stream):
            ended.append((time.perf_counter(), stream))
            if time.perf_counter() < end and not stream.error:
                client.begin(Request(args, BASE, prompts), time.perf_counter(), again)
        for i in range(args.slots):
            n_answer = max(1, args.n_answer * (i + 1) // args.slots)
            client.begin(Request(args, BASE, prompts, n_answer), time.perf_counter(), again)
        client.run()
    for _, stream in ended:
        stream.judge()
        if stream.error:
            raise Failed(f"measuring the capacity: {stream.error}")
    n = sum(first_s <= at < end for at, _ in ended)
    if n < args.slots:
        raise Failed(f"{n} answers in {end - first_s:.0f} s: --capacity-s is too short")
    return n / (end - first_s)


# --- The server -----------------------------------------------------------------------------------

def start(setup, args, model, modules):
    flags = ["-m", model.path, "-a", BASE, "-t", setup.threads, "-np", args.slots, "-c", args.slots * context(args),
             "--metrics", "--max-cpu-loras", args.in_memory, "--max-lora-rank", args.rank, "--lora-dtype", args.dtype,
             "--lora-modules", *(f"{name}={path}" for name, path in modules.items())]
    server = Server("sluice", [setup.sluice, "serve", *flags])
    server.start()
    until = time.perf_counter() + LISTED_S
    while missing := set(modules) - listed(server.port):
        if time.perf_counter() > until:
            raise Failed(f"/v1/models does not list {len(missing)} adapters, {min(missing)} among them")
        time.sleep(0.1)
    return server


def context(args):
    return max(N_CTX_EACH, args.n_prompt + args.n_answer + 16)


def listed(port):
    status, text = fetch(port, "/v1/models")
    if status != 200:
        raise Failed(f"/v1/models: {status}")
    return set(re.findall(r'"id"\s*:\s*"([^"]*)"', text))


def metric(port, name):
    status, text = fetch(port, "/metrics")
    found = re.search(rf"(?m)^{name}(?:{{.*}})? (\S+)", text)
    if status != 200 or not found:
        raise Failed(f"/metrics has no {name}")
    return float(found[1])


class Log:
    """What the server has written since the last look."""

    def __init__(self, server):
        self.file, self.at = server.log, 0

    def new(self):
        # The server writes through the same file position, which must not move.
        text = os.pread(self.file.fileno(), 1 << 26, self.at)
        text = text[:text.rfind(b"\n") + 1]
        self.at += len(text)
        return text.decode(errors="replace")


# --- Blocks by turns ------------------------------------------------------------------------------

class Block:
    """Requests of one turn, and what the server did meanwhile."""

    def __init__(self, server, log, requests, span_s):
        self.requests = [request for _, request in requests]
        turns_before = metric(server.port, TURNS_S)
        with Watch({"sluice": server}, "sluice") as watch, Load(server.port) as client:
            self.wall_s = client.play(requests, span_s)
        self.others_pct, self.late_ms_max, self.client_s = watch.others_pct, client.late_ms_max, client.cpu_s
        self.turns_s = metric(server.port, TURNS_S) - turns_before
        self.memory_bytes = metric(server.port, MEMORY)
        text = log.new()
        self.loads_ms = [float(ms) for _, ms in LOADED.findall(text)]
        for line in NOT_LOADED.findall(text)[:3]:
            say(f"  {line}")
        for request in self.requests:
            request.judge()

    @property
    def good(self):
        return [request for request in self.requests if not request.error]

    def p95_ms(self):
        whole = [request.whole_ms for request in self.good]
        return percentile(whole, 0.95) if whole else float("nan")


class Side:
    """All blocks of the model itself, or of adapters."""

    def __init__(self, name):
        self.name, self.blocks = name, []

    @property
    def requests(self):
        return [request for block in self.blocks for request in block.requests]

    @property
    def good(self):
        return [request for block in self.blocks for request in block.good]

    @property
    def loads_ms(self):
        return [ms for block in self.blocks for ms in block.loads_ms]

    def sum(self, key):
        return sum(getattr(block, key) for block in self.blocks)

    def part_of_time(self, key):
        return self.sum(key) / self.sum("wall_s")

    def times(self, key):
        return [getattr(request, key) for request in self.good]

    def tokens_per_s(self):
        return sum(request.n_tokens for request in self.good) / self.sum("wall_s")


def blocks(setup, args, server, log, rate, names):
    """The trace in blocks, each once to the model and once to adapters, in changing order."""
    sides = {BASE: Side("base"), "zipf": Side("adapters")}
    for number, span_s in enumerate(spans(args.minutes * 60, args.block)):
        until = None
        for attempt in range(ATTEMPTS):
            pair = pair_of_blocks(setup, args, server, log, rate, names, (number, attempt), span_s)
            # Patience is for what comes after the first pair.
            until = until or time.perf_counter() + setup.patience_s
            is_disturbed = any(block.others_pct > OTHERS_PCT_MAX for block in pair.values())
            is_whole = all(len(block.good) == len(block.requests) for block in pair.values())
            # What failed is never measured again.
            if not is_disturbed or not is_whole or time.perf_counter() > until:
                break
            say(f"  {number + 1}: again, there were other processes")
        setup.n_measured += 1
        setup.n_disturbed += is_disturbed
        for name, block in pair.items():
            sides[name].blocks.append(block)
    return sides[BASE], sides["zipf"]


def pair_of_blocks(setup, args, server, log, rate, names, which, span_s):
    """The same arrivals to the model and to adapters."""
    number, attempt = which
    weights = [1 / (i + 1) ** args.alpha for i in range(len(names))]
    draw = random.Random(f"{setup.seed}/{number}")
    dues, due = [], draw.expovariate(rate)
    while due < span_s:
        dues.append(due)
        due += draw.expovariate(rate)
    models = {BASE: [BASE] * len(dues), "zipf": draw.choices(names, weights, k=len(dues))}
    found = {}
    for name in list(models)[::-1 if number % 2 else 1]:
        # Prompts of their own: neither side is to find the other's in a cache.
        prompts = Prompts(setup.seed, number, attempt, name)
        requests = [(due, Request(args, model, prompts)) for due, model in zip(dues, models[name])]
        wait_for_quiet(OTHERS_PCT_MAX, time.perf_counter() + setup.patience_s)
        block = found[name] = Block(server, log, requests, span_s)
        say(f"  {number + 1}: {name}, {len(dues)} requests, p95 {block.p95_ms():.0f} ms, {len(block.loads_ms)} loaded, "
            f"{block.memory_bytes / 2**20:.0f} MiB, others {block.others_pct:.0f}% of a core")
    return found


def spans(whole_s, block_s):
    """Blocks that are together as long as the whole."""
    n = max(1, round(whole_s / block_s))
    return [whole_s / n] * n


# --- The command ----------------------------------------------------------------------------------

def zipf(setup, args):
    (_, model), = setup.all_models([args.type])
    with setup.adapters_for(model, args.count, args) as paths:
        modules = {f"a{i:03}": path for i, path in enumerate(paths)}
        server = start(setup, args, model, modules)
        try:
            log = Log(server)
            log.new()
            wait_for_quiet(OTHERS_PCT_MAX, time.perf_counter() + setup.patience_s)
            rate = args.rate or args.load * capacity(args, server, setup.seed)
            print(f"{model.path.name}, {args.count} adapters of rank {args.rank} ({args.dtype}, {args.in_memory} in "
                  f"memory), {args.slots} slots, prompts of {args.n_prompt} and answers of {args.n_answer} tokens")
            of = "" if args.rate else f", {args.load:.0%} of {rate / args.load:.2f}"
            print(f"load {rate:.2f} requests/s{of}", flush=True)
            memory_bytes = metric(server.port, MEMORY)
            base, zipf_side = blocks(setup, args, server, log, rate, list(modules))
        finally:
            server.stop()
    return report(setup, args, rate, base, zipf_side, memory_bytes)


def report(setup, args, rate, base, zipf_side, memory_bytes):
    """Prints all; returns how many bars are missed."""
    if not base.good or not zipf_side.good:
        raise Failed(f"no request was answered: {(base.requests + zipf_side.requests)[0].error}")
    print("\n| what | base | adapters |\n|---|---:|---:|")
    for text, key in (("latency", "whole_ms"), ("time to first token", "first_ms")):
        for part in (0.5, 0.95, 0.99):
            row(f"{text} p{100 * part:.0f}, ms", *(percentile(side.times(key), part) for side in (base, zipf_side)))
    row("time to first token, most, ms", *(max(side.times("first_ms")) for side in (base, zipf_side)))
    row("queue p95, ms", queue_p95(base), queue_p95(zipf_side))
    row("tokens/s", base.tokens_per_s(), zipf_side.tokens_per_s())
    row("turns that only write, % of the time", *(100 * side.part_of_time("turns_s") for side in (base, zipf_side)))
    row("requests", len(base.requests), len(zipf_side.requests), 0)
    row("errors", *(len(side.requests) - len(side.good) for side in (base, zipf_side)), 0)
    row("adapters loaded", len(base.loads_ms), len(zipf_side.loads_ms), 0)
    load_p95 = percentile(zipf_side.loads_ms, 0.95) if zipf_side.loads_ms else None
    print(f"| loading an adapter p50; p95, ms | - | "
          + (f"{percentile(zipf_side.loads_ms, 0.5):.1f}; {load_p95:.1f} |" if zipf_side.loads_ms else "- |"))
    n_cached = sum(request.n_cached for side in (base, zipf_side) for request in side.good)
    every = base.blocks + zipf_side.blocks
    client_pct = 100 * sum(block.client_s for block in every) / sum(block.wall_s for block in every)
    late_ms = max(block.late_ms_max for block in every)
    memory_max = max(block.memory_bytes for block in every)
    print(f"\nThe server had {memory_bytes / 2**20:.0f} MiB before and {memory_max / 2**20:.0f} MiB at most; {n_cached} "
          f"tokens of prompts were in its cache; the client took {client_pct:.0f}% of a core and sent at most "
          f"{late_ms:.1f} ms late")
    for side in (base, zipf_side):
        for error, n in collections.Counter(r.error for r in side.requests if r.error).most_common(3):
            print(f"{side.name}: {n} times {error}")
    p95, base_p95 = (percentile(side.times("whole_ms"), 0.95) for side in (zipf_side, base))
    tax = 100 * (p95 / base_p95 - 1)
    paired = [100 * (a.p95_ms() / b.p95_ms() - 1) for a, b in zip(zipf_side.blocks, base.blocks)]
    if args.csv:
        write_csv(setup, args, rate, zipf_side, base_p95, tax, load_p95)
    return verdicts(base, zipf_side, tax, statistics.median(paired))


def row(name, base, adapters, digits=1):
    print(f"| {name:36} | {base:9.{digits}f} | {adapters:9.{digits}f} |")


def queue_p95(side):
    return percentile([ms for ms in side.times("queue_ms") if ms is not None] or [float("nan")], 0.95)


def verdicts(base, zipf_side, tax, paired):
    asked = {request.model for request in zipf_side.requests}
    served = {request.model for request in zipf_side.good}
    n_errors = sum(len(side.requests) - len(side.good) for side in (base, zipf_side))
    speed = "reached" if tax <= TAX_REACH_PCT else "must met" if tax <= TAX_MUST_PCT else "MISSED"
    print(f"\np95: base + {tax:.1f}% (median of the blocks {paired:.1f}%), must ≤ {TAX_MUST_PCT}%, "
          f"reach ≤ {TAX_REACH_PCT}%: {speed}")
    print(f"adapters asked for and served: {len(served)} of {len(asked)}, must all: "
          f"{'met' if served == asked else 'MISSED'}")
    print(f"errors: {n_errors}, must 0: {'met' if not n_errors else 'MISSED'}")
    return (tax > TAX_MUST_PCT) + (served != asked) + (n_errors > 0)


def write_csv(setup, args, rate, side, base_p95, tax, load_p95):
    """The scheduler's line. What has no counterpart is empty: reading adapters has no threads of its own, and how much
    of it lies beside steps is not known. `decode_util` is the part of the time in turns that only write, `adapter_util`
    the part in which an adapter was being read."""
    values = {
        "sched": "mixed", "alpha": args.alpha, "adapters_N": args.count, "mean_adapters_per_req": 1, "rank": args.rank,
        "load_rps": rate, "duration_s": side.sum("wall_s"), "decode_threads": setup.threads, "pin_cores": 0,
        "p50_ms": percentile(side.times("whole_ms"), 0.5), "p95_ms": percentile(side.times("whole_ms"), 0.95),
        "base_p95_ms": base_p95, "lora_tax_pct": tax, "hot_reload_ms_p95": load_p95,
        "tokens_per_s": side.tokens_per_s(), "queue_ms_p95": queue_p95(side), "decode_util": side.part_of_time("turns_s"),
        "adapter_util": sum(side.loads_ms) / 1e3 / side.sum("wall_s"),
    }
    names = CSV_HEADER.split(",")
    shown = [values.get(name) for name in names]
    with args.csv.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [names, [f"{value:.6g}" if isinstance(value, float) else value for value in shown]])
