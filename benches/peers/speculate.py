#!/usr/bin/env python3
"""Speculation compared with llama-server: the same prompts, greedily, with and without drafts, in turns.

Each kind of --spec-type of llama-server is tried, and the best one of each prompt counts. A new server is started for
each answer: nothing is learnt from another round.
"""
import argparse, http.client, json, pathlib, statistics, time

from llama import Failed, say
from server import Programs, Server, prefer, wait_for_quiet

TYPES = ["none", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"]
QUIET_S_MAX = 20


class Both(Programs):
    def __init__(self, args):
        self.given = {"sluice": args.sluice, "llama": args.llama}
        self.work = args.work


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=pathlib.Path, required=True, help="a model that writes real text")
    parser.add_argument("--told", type=pathlib.Path, nargs="+", required=True,
                        help="files of benches/told: their prompts")
    parser.add_argument("--sluice", type=pathlib.Path, help="the program, by default built here")
    parser.add_argument("--llama", type=pathlib.Path, help="folder with llama-server, by default built")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("target/peers"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--n-predict", type=int, default=200)
    args = parser.parse_args()
    prefer(-10)
    programs = Both(args)
    common = ["-m", args.model, "-t", args.threads, "-c", 4096, "-np", 1]
    commands = {f"llama {kind}": [programs.llama / "llama-server", *common, "--spec-type", kind] for kind in TYPES}
    for kind in ("none", "auto"):
        commands[f"sluice {kind}"] = [programs.sluice, "serve", *common, "--spec-type", kind]
    say("| text | llama plain | llama's best | | sluice plain | sluice auto | ratio to plain | to llama's best |")
    say("|---|--:|--:|---|--:|--:|--:|--:|")
    for path in args.told:
        rates = {name: [] for name in commands}
        prompt = json.loads(path.read_text())["prompt"]
        for _ in range(args.rounds):
            for name, command in commands.items():
                rates[name].append(answer(name, command, prompt, args.n_predict))
        middle = {name: statistics.median(all) for name, all in rates.items()}
        best = max((name for name in middle if name.startswith("llama")), key=middle.get)
        plain, auto = middle["sluice none"], middle["sluice auto"]
        say(f"| {path.stem} | {middle['llama none']:.1f} | {middle[best]:.1f} | {best.removeprefix('llama ')} | "
            f"{plain:.1f} | {auto:.1f} | {auto / plain:.2f} | {auto / middle[best]:.2f} |")


def answer(name, command, prompt, n_predict):
    """Tokens a second of an answer."""
    with Server(name, command) as server:
        wait_for_quiet(20, time.perf_counter() + QUIET_S_MAX)
        body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        # The first answer warms up; it is short, and of another text.
        post(name, server.port, {**body, "prompt": "1 2 3", "n_predict": 8})
        return post(name, server.port, body)["timings"]["predicted_per_second"]


def post(name, port, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read().decode()
    if reply.status != 200:
        raise Failed(f"{name}: {reply.status}: {text}")
    return json.loads(text)


if __name__ == "__main__":
    main()
