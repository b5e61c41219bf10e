#!/usr/bin/env python3
"""Sessions of clients of Ollama, replayed: three turns with tools.

    tests/clients/ollama_sessions.py [target/release/sluice]

`sessions/*.json` has requests of a client; `client` says whether they were recorded or written from its published source.
Its texts are numbers there: their lengths. Every line and event has to be of the API's types, and from the second turn
on only what is new may be read.
"""
import json, pathlib, re, sys, urllib.request
from datetime import datetime
from typing import Literal

from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel, ConfigDict, TypeAdapter

from served import KEY, check, checked, main

FOLDER = pathlib.Path(__file__).with_name("sessions")
TALE = "The sea was calm, and no one had seen the boat since the morning. An old man sat on the pier and told a tale. "
TEXTS = ("text", "content", "description", "title")
# Of llama-server's API, whose fields the chunks have as well.
MORE = {"timings", "seed", "prompt_progress"}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Function(Strict):
    index: int
    name: str
    arguments: dict


class Call(Strict):
    id: str
    function: Function


class Message(Strict):
    role: Literal["assistant"]
    content: str
    thinking: str = ""
    tool_calls: list[Call] = []


class Line(Strict):
    model: str
    created_at: datetime
    message: Message
    done: Literal[False]


class Last(Line):
    done: Literal[True]
    done_reason: Literal["stop", "length"]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int


LINE, LAST = TypeAdapter(Line), TypeAdapter(Last)


def filled(value):
    """A recorded value with texts for their lengths."""
    if isinstance(value, dict):
        return {name: (TALE * (part // len(TALE) + 1))[:part] if name in TEXTS and type(part) is int else filled(part)
                for name, part in value.items()}
    return [filled(part) for part in value] if isinstance(value, list) else value


def post(url, path, body, agent="test"):
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}", "user-agent": agent}
    request = urllib.request.Request(url + path, json.dumps(body).encode() if body else None, headers)
    return urllib.request.urlopen(request, timeout=600).read().decode()


def cached(url):
    """Tokens that were found so far, over all requests."""
    return int(re.search(r'^sluice:prompt_tokens_cached_total\{model_name="tale".*\} (\d+)', post(url, "/metrics", None), re.M)[1])


def ollama(url, body):
    """The tokens of the prompt, and how many of them were found."""
    before = cached(url)
    *lines, last = post(url, "/api/chat", body).splitlines()
    for line in lines:
        LINE.validate_json(line)
    return LAST.validate_json(last).prompt_eval_count, cached(url) - before


def openai(url, body):
    *events, end = post(url, "/v1/chat/completions", body).split("\n\n")[:-1]
    assert end == "data: [DONE]", end
    for event in events:
        chunk = ChatCompletionChunk.model_validate_json(event.partition("data: ")[2])
        for name in MORE & set(chunk.model_extra or {}):
            del chunk.model_extra[name]
        checked(chunk)
    return chunk.usage.prompt_tokens, chunk.usage.prompt_tokens_details.cached_tokens


def replay(url, name):
    recorded = json.loads((FOLDER / f"{name}.json").read_text())
    path, request = recorded["path"], filled(recorded["request"])
    print(f"        {recorded['client']}", flush=True)
    before = 0
    for turn, n_messages in enumerate(recorded["turns"]):
        body = request | {"messages": request["messages"][:n_messages]}
        if path == "/api/chat":
            body["options"] = body.get("options", {}) | {"num_predict": 8}
            read, found = ollama(url, body)
        else:
            read, found = openai(url, body | {"max_tokens": 8})
        assert found >= 0.95 * before, f"turn {turn}: {found} of {before} tokens were found"
        print(f"        turn {turn}: {found} tokens found, {read - found} read", flush=True)
        before = read


@check
def open_webui(url):
    replay(url, "open_webui")


@check
def vscode(url):
    """What the provider asks before it lists models, and a session."""
    agent = "GitHubCopilotChat/0.36.0"
    version = json.loads(post(url, "/api/version", None, agent))["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)
    for model in json.loads(post(url, "/api/tags", None, agent))["models"]:
        shown = json.loads(post(url, "/api/show", {"model": model["model"]}, agent))
        info = shown["model_info"]
        assert info["general.basename"] == model["model"] and info[info["general.architecture"] + ".context_length"] > 0
        assert shown["capabilities"] and shown["details"]["family"]
    replay(url, "vscode_ollama")


@check
def continue_cli(url):
    replay(url, "continue_cli")


@check
def continue_extension(url):
    """It takes the context from the parameters that are shown, and reads them like this."""
    shown = json.loads(post(url, "/api/show", {"name": "tale"}))["parameters"]
    lines = [re.fullmatch(r'(\S+)\s+((?:".*")|\S+)', line) for line in shown.split("\n")]
    assert dict(line.groups() for line in lines)["num_ctx"] == "65536", shown
    replay(url, "continue_extension")


if __name__ == "__main__":
    sys.exit(main(lambda url: url, 65536))
