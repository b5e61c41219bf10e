#!/usr/bin/env python3
"""Tokens per second of each dialect against chat completions: 16 clients, streams, Tale.

    benches/peers/dialects.py [--sluice PROGRAM] [--pairs 9] [--clients 16] [--tokens 256]

Pairs of runs take turns: chat completions and the dialect, then the other way round. Each run starts all clients at once
and counts the tokens until the last one has ended. Shown is the median of the pairs' ratios, by the wall clock and by the
server's CPU time. Exit status 1: a dialect's ratio by the wall clock is below 0.95.
"""
import argparse, pathlib, re, statistics, sys, time

from llama import ROOT, Failed
from server import Server
from sse import Client, Stream, fetch

TALE = ROOT / "hosted/models/tale-5.8m-Q4_K_M.gguf"
BAR = 0.95
COMMON = {"model": "tale", "stream": True, "temperature": 0.8}


def prompt(number):
    return f"Tell tale {number} of the sea and of an old man."


def chat(number, n):
    return {"messages": [{"role": "user", "content": prompt(number)}], "max_tokens": n, "stream_options": {"include_usage": True}}


def messages(number, n):
    return {"messages": [{"role": "user", "content": prompt(number)}], "max_tokens": n}


def responses(number, n):
    return {"input": prompt(number), "max_output_tokens": n}


def ollama(number, n):
    settings = {"num_predict": n, "seed": number, "temperature": 0.8}
    return {"messages": [{"role": "user", "content": prompt(number)}], "options": settings}


# Path, body, and where the end of a stream has the number of tokens.
DIALECTS = {
    "chat completions": ("/v1/chat/completions", chat, "completion_tokens"),
    "anthropic": ("/v1/messages", messages, "output_tokens"),
    "responses": ("/v1/responses", responses, "output_tokens"),
    "ollama": ("/api/chat", ollama, "eval_count"),
}


def run(server, name, options):
    """Tokens per second, and per second of the server's CPU time."""
    path, body, count = DIALECTS[name]
    streams = [Stream(body(number, options.tokens) | COMMON | {"seed": number}, path, options.tokens) for number in range(options.clients)]
    cpu, start = server.cpu_s(), time.perf_counter()
    with Client(server.port) as client:
        for stream in streams:
            client.start(stream)
        client.run()
    seconds, cpu = time.perf_counter() - start, server.cpu_s() - cpu
    n = 0
    for stream in streams:
        raw = b"".join(stream.pieces)
        if b" 200 " not in raw[:20]:
            raise Failed(f"{name}: {raw[:400].decode(errors='replace')}")
        # The same conversation and seed: as many tokens in each dialect.
        n += int(re.findall(rb'"%s": ?(\d+)' % count.encode(), raw)[-1])
    return n / seconds, n / max(cpu, 0.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", type=pathlib.Path, default=ROOT / "target/release/sluice")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args()
    command = [options.sluice, "serve", "-m", f"tale={TALE}", "-np", options.clients, "-c", options.clients * (options.tokens + 128),
               "--spec-type", "none", "--chat-template", "chatml"]
    with Server("sluice", command) as server:
        present = [name for name, (path, *_) in DIALECTS.items() if fetch(server.port, path)[0] == 405]
        for name in DIALECTS.keys() - set(present):
            print(f"SKIPPED {name}: this server does not have it")
        usual = present.pop(0)
        for name in present:
            run(server, name, options)
        below = []
        for name in present:
            ratios = []
            for pair in range(options.pairs):
                order = (usual, name) if pair % 2 else (name, usual)
                found = {one: run(server, one, options) for one in order}
                ratios.append([of_dialect / of_usual for of_dialect, of_usual in zip(found[name], found[usual])])
            wall, cpu = (sorted(ratio) for ratio in zip(*ratios))
            print(f"{name}: {statistics.median(wall):.3f} by the wall clock ({wall[0]:.3f} to {wall[-1]:.3f}), "
                  f"{statistics.median(cpu):.3f} by CPU time, {options.pairs} pairs; last: "
                  f"{found[name][0]:.0f} against {found[usual][0]:.0f} tokens/s", flush=True)
            if statistics.median(wall) < BAR:
                below.append(name)
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
