#!/usr/bin/env python3
"""The `anthropic` package, unmodified, against `sluice serve`.

    tests/clients/anthropic_clients.py [target/release/sluice]

Starts the server itself, on loopback. The model writes nonsense: what is checked is what clients rely on. Every event
of a stream has to be of the package's types, with no field that they do not have.
"""
import json, os, pathlib, subprocess, sys

import anthropic
from anthropic import Anthropic

from served import KEY, check, checked, main

USER = {"role": "user", "content": "Tell a tale of the sea."}
TIDE = {"name": "tide", "description": "How high the water is", "input_schema": {
    "type": "object", "additionalProperties": False, "required": ["at"],
    "properties": {"at": {"enum": ["noon", "dawn"]}}}}
WIND = {"name": "wind", "input_schema": {"type": "object", "additionalProperties": False, "required": ["knots"],
                                         "properties": {"knots": {"type": "integer", "minimum": 0, "maximum": 9}}}}


class Context:
    def __init__(self, url):
        self.url = url
        self.client = Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=120)

    def ask(self, **more):
        """Arguments; the package knows no sampler settings."""
        settings = {"temperature": 0.7, "seed": 7}
        settings |= {name: more.pop(name) for name in ("temperature", "top_p", "ignore_eos") if name in more}
        return {"model": "tale", "max_tokens": 24, "messages": [USER], "extra_body": settings, **more}

    def create(self, **more):
        return checked(self.client.messages.create(**self.ask(**more)))

    def stream(self, **more):
        """The final message of a stream whose events are all of known types."""
        with self.client.messages.stream(**self.ask(**more)) as stream:
            for event in stream:
                checked(event)
            return checked(stream.get_final_message())


def refused(error, words, call):
    try:
        call()
    except error as raised:
        assert words in str(raised), raised
        assert raised.request_id and raised.body["request_id"] == raised.request_id, raised.body
        return raised
    raise AssertionError(f"nothing raised {error.__name__}")


@check
def whole_and_stream(c):
    whole, streamed = c.create(system="You tell tales."), c.stream(system="You tell tales.")
    assert [block.text for block in whole.content] == [block.text for block in streamed.content] != [""]
    assert whole.stop_reason == streamed.stop_reason == "max_tokens"
    n_prompt = whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    assert n_prompt == streamed.usage.input_tokens + streamed.usage.cache_read_input_tokens
    assert whole.usage.output_tokens == streamed.usage.output_tokens == 24
    counted = c.client.messages.count_tokens(model="tale", system="You tell tales.", messages=[USER])
    assert checked(counted).input_tokens == n_prompt


@check
def stops(c):
    whole = c.create(stop_sequences=["e"], max_tokens=60)
    assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", "e"), whole
    assert c.stream(stop_sequences=["e"], max_tokens=60).stop_sequence == "e"


@check
def tools(c):
    for choice, called in (({"type": "any"}, None), ({"type": "tool", "name": "wind"}, "wind"),
                           ({"type": "any", "disable_parallel_tool_use": True}, None)):
        for ask in (c.create, c.stream):
            message = ask(tools=[TIDE, WIND], tool_choice=choice, max_tokens=200)
            calls = [block for block in message.content if block.type == "tool_use"]
            # This model calls until it may not.
            assert calls and (message.stop_reason == "tool_use" or len(calls) > 1), message
            assert called is None or [call.name for call in calls] == [called]
            assert len(calls) == 1 or "disable_parallel_tool_use" not in choice
            for call in calls:
                assert call.input.get("at") in ("noon", "dawn") or 0 <= call.input["knots"] <= 9, call
    none = c.create(tools=[TIDE], tool_choice={"type": "none"})
    assert all(block.type == "text" for block in none.content)
    # A tool that only Anthropic's servers have is left out.
    assert c.create(tools=[TIDE, {"type": "web_search_20250305", "name": "web_search"}]).content is not None


@check
def several_turns(c):
    message = c.create(tools=[TIDE], tool_choice={"type": "any"}, max_tokens=200)
    calls = [block for block in message.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "low"}],
                "is_error": i > 0} for i, call in enumerate(calls)]
    turns = [USER, {"role": "assistant", "content": message.content},
             {"role": "user", "content": [*results, {"type": "text", "text": "And now?"}]}]
    next_message = c.stream(messages=turns, tools=[TIDE])
    assert next_message.usage.cache_read_input_tokens > 0, next_message.usage
    # The answer goes on where the last message ends.
    begun = c.create(messages=[USER, {"role": "assistant", "content": "Once upon a"}])
    assert begun.content[0].type == "text"


@check
def thinking(c):
    """Reasoning is a block of its own, which its budget ends; given back, the model reads it."""
    # The model might end its text within its reasoning.
    long = {"max_tokens": 1100, "ignore_eos": True}
    for ask in (c.create, c.stream):
        message = ask(thinking={"type": "enabled", "budget_tokens": 1024}, **long)
        thought, text = message.content
        assert (thought.type, text.type) == ("thinking", "text") and thought.thinking and thought.signature, message
        omitted = ask(thinking={"type": "enabled", "budget_tokens": 1024, "display": "omitted"}, **long)
        assert omitted.content[0].thinking == "" and omitted.content[0].signature == thought.signature
        assert omitted.content[1].text == text.text
        assert ask(thinking={"type": "adaptive"}).content[0].type == "thinking"
        assert [block.type for block in ask(thinking={"type": "disabled"}).content] == ["text"]
    turns = [USER, {"role": "assistant", "content": [block.to_dict() for block in message.content]}, USER]
    without = [USER, {"role": "assistant", "content": [text.to_dict()]}, USER]
    with_it, without = (c.create(messages=messages, max_tokens=1).usage for messages in (turns, without))
    tokens = [usage.input_tokens + usage.cache_read_input_tokens for usage in (with_it, without)]
    assert tokens[0] > tokens[1] + 100, tokens
    past = [{"type": "thinking", "thinking": "The sea.", "signature": "not ours"},
            {"type": "redacted_thinking", "data": "abc"}, {"type": "text", "text": "Once."}]
    assert c.create(messages=[USER, {"role": "assistant", "content": past}, USER]).content


@check
def prefill(c):
    """A last message of the assistant is continued: the answer is what followed it."""
    whole = c.create(temperature=0).content[0].text
    begun = whole[:whole.index(" ", len(whole) // 2)]
    for ask in (c.create, c.stream):
        message = ask(messages=[USER, {"role": "assistant", "content": begun}], temperature=0)
        assert (begun + message.content[0].text).startswith(whole), (whole, begun, message.content)


@check
def schemas(c):
    schema = {"type": "object", "properties": {"kind": {"enum": ["storm", "calm"]}}, "required": ["kind"],
              "additionalProperties": False}
    for ask in (c.create, c.stream):
        message = ask(output_config={"format": {"type": "json_schema", "schema": schema}}, max_tokens=80)
        assert json.loads(message.content[0].text)["kind"] in ("storm", "calm"), message


@check
def models(c):
    page = c.client.models.list()
    assert [model.id for model in page][:2] == ["tale", "encoder"] and not page.has_more
    assert checked(c.client.models.retrieve("tale")).display_name == "tale"


@check
def errors(c):
    create = c.client.messages.create
    image = {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}]}
    for error, words, more in (
        (anthropic.BadRequestError, "messages[0].content[0].type", {"messages": [image]}),
        (anthropic.BadRequestError, "prompt is too long: ", {"messages": [{**USER, "content": "word " * 9000}]}),
        (anthropic.BadRequestError, "temperature", {"temperature": -3}),
        (anthropic.BadRequestError, "tool_choice", {"tool_choice": {"type": "tool", "name": "x"}, "tools": [TIDE]}),
        (anthropic.NotFoundError, "claude", {"model": "claude"}),
        (anthropic.BadRequestError, "encoder", {"model": "encoder"}),
    ):
        refused(error, words, lambda more=more: create(**c.ask(**more)))
    stranger = Anthropic(base_url=c.url, api_key="another", max_retries=0)
    refused(anthropic.AuthenticationError, "Key", lambda: stranger.messages.create(**c.ask()))
    bearer = Anthropic(base_url=c.url, auth_token=KEY, max_retries=0)
    assert bearer.messages.create(**c.ask()).content


@check
def node(c):
    """The package of npm; `SLUICE_NODE_MODULES` is the folder that it was installed in."""
    folder = os.environ.get("SLUICE_NODE_MODULES")
    if folder is None:
        print("SKIPPED: @anthropic-ai/sdk: SLUICE_NODE_MODULES names no folder that it is installed in")
        return
    script = pathlib.Path(__file__).with_name("anthropic.mjs")
    subprocess.run(["node", script, pathlib.Path(folder).resolve(), c.url, KEY], check=True, timeout=120)


if __name__ == "__main__":
    sys.exit(main(Context))
