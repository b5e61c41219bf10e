#!/usr/bin/env python3
"""Streams of `sluice serve` that break and are taken up again: a slow proof, run by hand.

    tests/clients/resumed_streams.py [--sluice target/release/sluice] [--model FILE] [--other FILE] [--cuts 100] [--kills 20]

Cuts a stream of each dialect at random places, at some of them by SIGKILL of the server, and takes it up again with
Last-Event-ID. All events together have to equal the stream that nothing disturbed. What the server kept of a stream has to
go on with at most two steps, counted by the server: from when its engine was given the text, with a step that ran then, to
the step that made the next token. A server with another model has to refuse to go on.

Only the standard library. Everything is on loopback. Exit code 0 if all held.
"""
import argparse, collections, http.client, json, random, re, sys, time, urllib.request

from hardship import ROOT, TALE, Server

SAY = [{"role": "user", "content": "Tell a long tale of the sea."}]
TOOL = {"name": "tide", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}
ASKED = (
    ("/v1/chat/completions", {"messages": SAY, "max_tokens": 120, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {"messages": SAY, "max_tokens": 120, "tools": [{"type": "function", "function": TOOL}],
                              "tool_choice": "required"}),
    ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 120, "n": 2, "logprobs": 1}),
    ("/completion", {"prompt": "Once upon a time", "n_predict": 120, "mirostat": 2, "return_progress": True}),
    ("/v1/messages", {"messages": SAY, "max_tokens": 120}),
    ("/v1/responses", {"input": SAY, "max_output_tokens": 120}),
)
# What depends on when a text was computed.
TIMES = {"timings", "usage", "tokens_cached", "id_slot", "prompt_progress", "created", "created_at"}


def timeless(value):
    if isinstance(value, dict):
        return {name: timeless(part) for name, part in value.items() if name not in TIMES}
    return [timeless(part) for part in value] if isinstance(value, list) else value


class Stream:
    """The events of an answer, one after the other: their ids and their data."""

    def __init__(self, server, path, body, after=None):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        headers = {"content-type": "application/json"} | ({"Last-Event-ID": after} if after else {})
        self.connection.request("POST", path, json.dumps(body | {"stream": True}), headers)
        self.reply = self.connection.getresponse()
        if self.reply.status != 200:
            raise RuntimeError(f"{self.reply.status}: {self.reply.read().decode()}")

    def __iter__(self):
        event = {}
        for line in self.reply:
            line = line.decode().rstrip("\n")
            if not line and "id" in event:
                yield event["id"], timeless(json.loads(event["data"]))
            if not line:
                event = {}
            elif not line.startswith(":"):
                name, value = line.split(": ", 1)
                event[name] = value

    def close(self):
        self.reply.close()
        self.connection.close()


def by_text(events):
    """The events of each text: several texts come in any order."""
    texts = collections.defaultdict(list)
    for _, data in events:
        choice = (data.get("choices") or [{}])[0] if isinstance(data, dict) else {}
        texts[choice.get("index")].append(json.dumps(data, sort_keys=True))
    return texts


def figures(server):
    """The streams that went on from what was kept, and the steps that all of them took to their next token."""
    page = urllib.request.urlopen(server.url + "/metrics", timeout=60).read().decode()
    return [int(re.search(rf"^sluice:streams_continued_{name} (\d+)$", page, re.M)[1]) for name in ("total", "steps_total")]


def prove(args):
    start = lambda model: Server(args.sluice, model, "-c", "2048", "-np", "4", "--spec-type", "none")
    server, chance, turns = start(args.model), random.Random(args.seed), []
    kills = set(chance.sample(range(args.cuts), args.kills))
    for cut in range(args.cuts):
        path, ask = ASKED[cut % len(ASKED)]
        body = ask | {"temperature": 1.0}
        stream, got, place = Stream(server, path, body), [], chance.randrange(1, 110)
        for event in stream:
            got.append(event)
            if len(got) == place:
                break
        stream.close()
        after = got[-1][0]
        if cut in kills:
            server.process.kill()
            server.process.wait()
            server = start(args.model)
        else:
            time.sleep(chance.choice((0, 0.01, 0.3)))
        before = figures(server)
        rest = list(Stream(server, path, body, after))
        continued, steps = (now - then for now, then in zip(figures(server), before))
        if continued:
            # None where the text had ended when it was cut: nothing was left to compute.
            turns.append(steps)
            assert steps <= 2, f"{path} cut at {place}: {steps} steps to its next token"
        # After a kill, and with several texts, all is computed again.
        assert continued == (cut not in kills and ask.get("n", 1) == 1), f"{path} cut at {place}: {continued} went on"
        # The undisturbed one has the seed that was drawn, and its own ids.
        seed = int(after.split(".")[-5], 16)
        whole = list(Stream(server, path, body | {"seed": seed}))
        own, theirs = after.split(".")[-4], whole[0][0].split(".")[-4]
        alike = lambda texts: {at: [text.replace(theirs, own) for text in all] for at, all in texts.items()}
        found, expected = by_text(got + rest), by_text(whole)
        # A seed that is given is shown by some dialects.
        assert alike(found) == alike(expected), f"{path} cut at {place}: {found} is not {expected}"
        if cut % 10 == 9:
            print(f"{cut + 1} cuts, {len([k for k in kills if k <= cut])} of them kills", flush=True)
    counts = collections.Counter(turns)
    print(f"steps to the next token of {len(turns)} streams that went on: " + ", ".join(f"{n}: {counts[n]}" for n in sorted(counts)))
    assert any(turns), "all streams had ended when they were cut"
    server.process.kill()
    server.process.wait()
    server = start(args.other)
    try:
        Stream(server, path, body, after)
    except RuntimeError as error:
        assert str(error).startswith("409"), error
        print(f"another model: {error}")
    else:
        raise AssertionError("another model goes on")
    finally:
        server.process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sluice", default=ROOT / "target/release/sluice")
    parser.add_argument("--model", default=TALE)
    parser.add_argument("--other", required=True, help="another model")
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(prove(parser.parse_args()))
