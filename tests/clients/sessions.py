#!/usr/bin/env python3
"""Sessions of real clients, replayed: three turns with tools.

    tests/clients/sessions.py [target/release/sluice]

`sessions/*.json` has requests that a client sent to a server which answered by a script. The client's texts are numbers
there: their lengths. Texts of that length are put in their places here. Every event has to be of the types of the
service's own package, and from the second turn on only what is new may be read.
"""
import json, pathlib, sys, urllib.request

from anthropic.types import RawMessageStreamEvent
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from served import KEY, check, checked, main

FOLDER = pathlib.Path(__file__).with_name("sessions")
TALE = "The sea was calm, and nobody had seen the boat since the morning. An old man sat on the pier and told a tale. "
ANTHROPIC, RESPONSES = TypeAdapter(RawMessageStreamEvent), TypeAdapter(ResponseStreamEvent)


def filled(value):
    """A recorded value with texts for their lengths."""
    if isinstance(value, dict):
        return {name: text(part) if name in TEXTS and type(part) is int else filled(part)
                for name, part in value.items()}
    return [filled(part) for part in value] if isinstance(value, list) else value


TEXTS = ("text", "content", "description", "title", "output", "x-codex-turn-metadata")


def text(length):
    return (TALE * (length // len(TALE) + 1))[:length]


def stream(url, path, body):
    """The events of an answer: their names and data."""
    headers = {"content-type": "application/json", "authorization": "Bearer " + KEY, "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as reply:
        for event in reply.read().decode().split("\n\n")[:-1]:
            fields = dict(line.split(": ", 1) for line in event.split("\n") if not line.startswith(":"))
            if fields.get("data", "[DONE]") != "[DONE]":
                yield fields.get("event"), json.loads(fields["data"])


def anthropic_events(url, body):
    for name, data in stream(url, "/v1/messages?beta=true", body):
        assert name == data["type"], name
        if data["type"] != "ping":
            yield checked(ANTHROPIC.validate_python(data, strict=True))


def response_events(url, body):
    for number, (name, data) in enumerate(stream(url, "/v1/responses", body)):
        assert (name, number) == (data["type"], data["sequence_number"]), data
        if response := data.get("response"):
            # OpenAI's own replies have `store`, too.
            assert response.pop("system_fingerprint") and response.pop("store") is False
        yield checked(RESPONSES.validate_python(data, strict=True))


def chat_chunks(url, body):
    for _, data in stream(url, "/v1/chat/completions", body):
        # llama-server's, and the seed.
        data.pop("timings", None), data.pop("seed", None)
        yield checked(ChatCompletionChunk.model_validate(data, strict=True))


def replay(name, messages, events_of):
    """Asks for each turn; `events_of` returns the tokens that were found and the whole prompt's."""
    recorded = json.loads((FOLDER / f"{name}.json").read_text())
    request = filled(recorded["request"])
    before = 0
    for turn, n_messages in enumerate(recorded["turns"]):
        body = request | {"model": "tale", messages: request[messages][:n_messages]}
        cached, prompt = events_of(body)
        assert cached >= 0.95 * before, f"turn {turn}: {cached} of {before} tokens were found"
        print(f"        turn {turn}: {cached} tokens found, {prompt - cached} read", flush=True)
        before = prompt


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
        events = list(anthropic_events(url, body))
        usage = events[0].message.usage
        cached, read = usage.cache_read_input_tokens, usage.input_tokens
        assert cached >= 0.95 * before, f"turn {turn}: {cached} of {before} tokens were found"
        print(f"        turn {turn}: {cached} tokens found, {read} read", flush=True)
        before = cached + read
        kinds = [event.type for event in events]
        assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds


@check
def codex(url):
    def turn(body):
        events = list(response_events(url, body | {"max_output_tokens": 8}))
        kinds = [event.type for event in events]
        assert kinds[:2] == ["response.created", "response.in_progress"], kinds
        assert kinds[-1] in ("response.completed", "response.incomplete"), kinds
        usage = events[-1].response.usage
        return usage.input_tokens_details.cached_tokens, usage.input_tokens

    replay("codex", "input", turn)


@check
def opencode(url):
    def turn(body):
        chunks = list(chat_chunks(url, body | {"max_tokens": 8}))
        assert chunks[0].choices[0].delta.role == "assistant" and chunks[-2].choices[0].finish_reason, chunks
        usage = chunks[-1].usage
        return usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens

    replay("opencode", "messages", turn)


if __name__ == "__main__":
    sys.exit(main(lambda url: url, 65536))
