#!/usr/bin/env python3
"""Sessions of real clients, replayed: three turns with tools.

    tests/clients/sessions.py [target/release/sluice]

`sessions/*.json` has requests that a client sent to a server which answered by a script. The client's texts are numbers
there: their lengths. Texts of that length are put in their places here. Every event has to be of the types of the
service's own package, and from the second turn on only what is new may be read.
"""
import json, pathlib, sys, urllib.request

from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from served import KEY, check, checked, main

FOLDER = pathlib.Path(__file__).with_name("sessions")
TALE = "The sea was calm, and nobody had seen the boat since the morning. An old man sat on the pier and told a tale. "
EVENT = TypeAdapter(RawMessageStreamEvent)


def filled(value):
    """A recorded value with texts for their lengths."""
    if isinstance(value, dict):
        return {name: text(part) if name in TEXTS and type(part) is int else filled(part)
                for name, part in value.items()}
    return [filled(part) for part in value] if isinstance(value, list) else value


TEXTS = ("text", "content", "description", "title")


def text(length):
    return (TALE * (length // len(TALE) + 1))[:length]


def stream(url, body):
    """The events of an answer."""
    headers = {"content-type": "application/json", "x-api-key": KEY, "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(url + "/v1/messages?beta=true", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as reply:
        for event in reply.read().decode().split("\n\n")[:-1]:
            name, data = event.split("\n", 1)
            data = json.loads(data.removeprefix("data: "))
            assert name == "event: " + data["type"], event
            if data["type"] != "ping":
                yield checked(EVENT.validate_python(data, strict=True))


@check
def claude_code(url):
    recorded = json.loads((FOLDER / "claude_code.json").read_text())
    request = filled(recorded["request"])
    before = 0
    for turn, n_messages in enumerate(recorded["turns"]):
        system = [dict(part) for part in request["system"]]
        # As the client writes it: the checksum is another one in every request.
        system[0]["text"] += f" cch={turn:05x};"
        body = request | {"model": "tale", "max_tokens": 8, "system": system,
                          "messages": request["messages"][:n_messages]}
        events = list(stream(url, body))
        usage = events[0].message.usage
        cached, read = usage.cache_read_input_tokens, usage.input_tokens
        assert cached >= 0.95 * before, f"turn {turn}: {cached} of {before} tokens were found"
        print(f"        turn {turn}: {cached} tokens found, {read} read", flush=True)
        before = cached + read
        kinds = [event.type for event in events]
        assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds


if __name__ == "__main__":
    sys.exit(main(lambda url: url, 65536))
