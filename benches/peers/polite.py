#!/usr/bin/env python3
"""What a polite client notices of clients that are not: time to the first token, and the server's memory, under six kinds of load.

    benches/peers/polite.py -m MODEL                   all loads, engine with one thread, load on another core
    benches/peers/polite.py -m MODEL slow-bodies flood

    slow-bodies      100 requests whose bodies come a byte at a time
    stopped-readers  16 streams whose clients stop reading
    half-open        1,000 connections that never finish a header
    large-bodies     4 bodies of 24 MiB of JSON, again and again
    grammars         8 schemas of 100 KiB, again and again
    flood            32 clients of one address that ask without a pause

The load comes from 127.0.0.9, the polite client from 127.0.0.1. Bars: a prompt of 64 tokens has its first token (p95) within the time
alone, two turns and 50 ms; one of 2,000 tokens within 2.3 times the time alone and two turns; memory above idle is at most 256 MiB and 16
times the bytes that were accepted and not yet answered, and within 10% of idle 10 s later. Exit code: 0 every bar is met, 1 one is missed.
"""
import argparse, asyncio, contextlib, json, multiprocessing, os, pathlib, random, resource, time

from llama import ROOT, Failed, say
from serve import percentile
from server import Server
from sse import Client, Stream, completion

LOAD_ADDRESS = "127.0.0.9"
MIB = 1 << 20
N_LONG, N_CTX = 2000, 8192


# --- Loads: each is a coroutine that goes on until it is cancelled; `held` counts bytes of bodies that have no answer yet -----------

class Held:
    """Bytes sent and not yet answered, readable by the parent."""

    def __init__(self, value):
        self.value = value

    @contextlib.contextmanager
    def body(self, n):
        self.value.value += n
        try:
            yield
        finally:
            self.value.value -= n


async def connect(port):
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(LOAD_ADDRESS, 0))


def head(path, more):
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{more}\r\n\r\n".encode()


async def ask(port, held, path, body):
    """A request with its whole body; what comes back is read and forgotten."""
    reader, writer = await connect(port)
    try:
        with held.body(len(body)):
            writer.write(head(path, f"Connection: close\r\nContent-Length: {len(body)}") + body)
            await writer.drain()
            answer = await reader.read(64)
            while await reader.read(1 << 16):
                pass
        return answer
    finally:
        writer.close()


async def again(make):
    """Asks again and again; a refusal waits a moment, as an impolite client does at best."""
    while True:
        try:
            answer = await make()
            if b" 200 " not in answer:
                await asyncio.sleep(0.05)
        except OSError:
            await asyncio.sleep(0.05)


async def slow_body(port, held):
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await connect(port)
            writer.write(head("/v1/completions", "Transfer-Encoding: chunked"))
            for byte in b'{"prompt": "' + b"a" * 1000:
                writer.write(b"1\r\n" + bytes([byte]) + b"\r\n")
                await writer.drain()
                await asyncio.sleep(1)
            writer.close()
        await asyncio.sleep(0.05)


async def stopped_reader(port, held):
    body = json.dumps(completion([random.randrange(300, 4000) for _ in range(64)], 100_000)).encode()
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(LOAD_ADDRESS, 0), limit=1)
            writer.write(head("/v1/completions", f"Content-Length: {len(body)}") + body)
            await writer.drain()
            writer.transport.pause_reading()
            await asyncio.sleep(600)


async def half_open(port, held):
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await connect(port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: 127")
            await reader.read(1)
            writer.close()
        await asyncio.sleep(0.5)


async def large_body(port, held):
    messages = [{"role": "user", "content": f"word {i} of a text"} for i in range(24 * MIB // 60)]
    body = json.dumps({"messages": messages, "max_tokens": 1}).encode()
    await again(lambda: ask(port, held, "/v1/chat/completions", body))


async def grammar(port, held):
    def make():
        names = [f"{random.randrange(1 << 30)}" for _ in range(1500)]
        properties = {name: {"type": "string", "pattern": f"^[a-z]{{2,40}}{name}$"} for name in names}
        schema = {"type": "object", "properties": properties, "required": names}
        body = {"prompt": "A tale:", "max_tokens": 1, "json_schema": schema, "n_predict": 1}
        return ask(port, held, "/completion", json.dumps(body).encode())
    await again(make)


async def flood(port, held):
    def make():
        body = completion([random.randrange(300, 4000) for _ in range(256)], 128)
        return ask(port, held, "/v1/completions", json.dumps(body).encode())
    await again(make)


LOADS = {"slow-bodies": (slow_body, 100), "stopped-readers": (stopped_reader, 16), "half-open": (half_open, 1000),
         "large-bodies": (large_body, 4), "grammars": (grammar, 8), "flood": (flood, 32)}


def play(name, port, held):
    """The load's process, on the last core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    one, count = LOADS[name]

    async def all_of_them():
        await asyncio.gather(*(one(port, Held(held)) for _ in range(count)))
    asyncio.run(all_of_them())


# --- The polite client ------------------------------------------------------------------------------------------------------------

def first_token_s(port, choose, n_prompt):
    """Seconds to the first token of an answer of four, to a prompt that is new."""
    # With its timings every token is an event, also one that has no text.
    body = completion([choose.randrange(300, 4000) for _ in range(n_prompt)], 4) | {"timings_per_token": True}
    stream = Stream(body)
    with Client(port) as client:
        client.start(stream)
        client.run(timeout_s=300)
    return stream.token_times()[0] - stream.sent_at


class Memory:
    """Resident memory of a process, and by how much it is above what it may be."""

    def __init__(self, pid):
        self.path = pathlib.Path(f"/proc/{pid}/status")

    def now(self):
        return next(int(line.split()[1]) << 10 for line in self.path.read_text().splitlines() if line.startswith("VmRSS"))


def watch(memory, idle, held, most):
    """Keeps in `most` the greatest memory above idle, less 16 times the bytes that are held, and without that."""
    while True:
        above = memory.now() - idle
        most[0] = max(most[0], above - 16 * held.value)
        most[1] = max(most[1], above)
        time.sleep(0.05)


def measure(args, server, choose, name=None):
    """TTFT of both kinds of prompt, and memory, under a load."""
    memory = Memory(server.process.pid)
    idle = memory.now()
    context = multiprocessing.get_context("fork")
    held, most = context.Value("q", 0), context.Array("q", [0, 0], lock=False)
    others = []
    if name:
        others = [context.Process(target=play, args=(name, server.port, held), daemon=True),
                  context.Process(target=watch, args=(memory, idle, held, most), daemon=True)]
    for other in others:
        other.start()
    try:
        time.sleep(args.settle if name else 0)
        short = [first_token_s(server.port, choose, 64) for _ in range(args.short)]
        long = [first_token_s(server.port, choose, N_LONG) for _ in range(args.long)]
    finally:
        for other in others:
            other.kill()
            other.join()
    after = None
    if name:
        time.sleep(10)
        after = memory.now() / idle
    return {"short": percentile(short, 0.95), "long": percentile(long, 0.95), "most": list(most), "after": after}


def judge(args, alone, found):
    """The bars that were missed."""
    turns = 2e-3 * args.turn_ms
    missed = []
    if found["short"] > alone["short"] + turns + 0.05:
        missed.append("64 tokens")
    if found["long"] > 2.3 * alone["long"] + turns:
        missed.append("2,000 tokens")
    if found["most"][0] > 256 * MIB:
        missed.append("memory")
    if found["after"] > 1.1:
        missed.append("memory after")
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("loads", nargs="*", help=", ".join(LOADS))
    parser.add_argument("-m", "--model", type=pathlib.Path, default=ROOT / "hosted/models/tale-5.8m-Q4_K_M.gguf")
    parser.add_argument("--sluice", type=pathlib.Path, default=ROOT / "target/release/sluice")
    parser.add_argument("--short", type=int, default=30, help="prompts of 64 tokens during each load [30]")
    parser.add_argument("--long", type=int, default=5, help="prompts of 2,000 tokens during each load [5]")
    parser.add_argument("--settle", type=float, default=5, help="seconds of load before the first [5]")
    parser.add_argument("--turn-ms", type=float, default=50, help="the server's --turn-ms [50]")
    args = parser.parse_args()
    if unknown := set(args.loads) - set(LOADS):
        parser.error(f"no such load: {', '.join(sorted(unknown))}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    choose, all_met = random.Random(57), True
    # Cached prompts are memory that the server was given: little, so that it is in use before idle is measured.
    flags = ["-m", args.model, "-t", 1, "-c", N_CTX, "--cache-ram", 16, "--turn-ms", args.turn_ms]
    for name in args.loads or LOADS:
        with Server("sluice", [args.sluice, "serve", *flags]) as server:
            # Memory of keys and values is taken as it is first used: all of it, before idle is measured.
            for _ in range(N_CTX // N_LONG + 1):
                first_token_s(server.port, choose, N_LONG)
            alone, found = measure(args, server, choose), measure(args, server, choose, name)
        missed = judge(args, alone, found)
        all_met &= not missed
        print(f"{name:16} 64 tokens {1e3 * found['short']:7.0f} ms (alone {1e3 * alone['short']:5.0f})"
              f"   2,000 tokens {found['long']:6.2f} s (alone {alone['long']:5.2f})"
              f"   memory +{found['most'][1] / MIB:.0f} MiB, {found['most'][0] / MIB:.0f} beyond 16 x bodies; after x{found['after']:.2f}"
              f"   {'missed: ' + ', '.join(missed) if missed else 'met'}", flush=True)
    return 0 if all_met else 1


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except Failed as error:
        say(f"error: {error}")
        raise SystemExit(1) from None
