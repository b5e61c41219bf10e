#!/usr/bin/env python3
"""The Responses API through the packages `openai` and `openai-agents`, unmodified, against `sluice serve`.

    tests/clients/responses_clients.py [target/release/sluice]

Starts the server itself, on loopback. The model writes nonsense: what is checked is what clients rely on. Every event
of a stream has to be of the package's types, with no field that they do not have but the fingerprint.
"""
import asyncio, json, sys
from typing import Literal

import agents
import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from served import KEY, check, checked, main

TIDE = {"type": "function", "name": "tide", "strict": True, "parameters": {
    "type": "object", "additionalProperties": False, "required": ["at"], "properties": {"at": {"enum": ["noon", "dawn"]}}}}
DIAL = {"type": "custom", "name": "dial", "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}"}}

DIFF = {"type": "custom", "name": "change", "format": {"type": "grammar", "syntax": "lark", "definition": r"""
start: "*** Begin\n" line ~ 1..3 "*** \"End\""
line: ("+" | "-") /[a-z \\"]{0,9}/ LF
%import common.LF
"""}}


class Context:
    def __init__(self, url):
        self.url = url
        self.client = OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0, timeout=120)

    def ask(self, **more):
        return {"model": "tale", "input": "Tell a tale of the sea.", "max_output_tokens": 24, "extra_body": {"seed": 7}, **more}

    def create(self, **more):
        return known(self.client.responses.create(**self.ask(**more)))

    def stream(self, **more):
        """The final response of a stream whose events are of known types and rise in number."""
        numbers, last = [], None
        for event in self.client.responses.create(**self.ask(**more), stream=True):
            numbers.append(event.sequence_number)
            last = event
            known(event)
        assert numbers == list(range(len(numbers)))
        assert last.type in ("response.completed", "response.incomplete", "response.failed"), last.type
        return last.response


def known(value):
    response = getattr(value, "response", value)
    if isinstance(response, openai.types.responses.Response):
        # OpenAI's own replies have `store`, too.
        assert response.model_extra.pop("system_fingerprint") is not None
        assert response.model_extra.pop("store") is False
    return checked(value)


@check
def whole_and_stream(c):
    whole, streamed = c.create(instructions="You tell tales."), c.stream(instructions="You tell tales.")
    assert whole.output_text == streamed.output_text != ""
    assert whole.status == streamed.status == "incomplete"
    assert whole.incomplete_details.reason == "max_output_tokens"
    usage = streamed.usage
    assert usage.input_tokens_details.cached_tokens > 0 and usage.output_tokens == 24
    assert whole.temperature is not None
    counted = c.client.responses.input_tokens.count(model="tale", instructions="You tell tales.", input=c.ask()["input"])
    assert counted.input_tokens == usage.input_tokens
    with c.client.responses.stream(**c.ask(instructions="You tell tales.")) as helper:
        kinds = [event.type for event in helper]
    assert kinds[0] == "response.created" and "response.output_text.delta" in kinds


@check
def tools(c):
    for tool, kind in ((TIDE, "function_call"), (DIAL, "custom_tool_call")):
        choice = {"type": tool["type"], "name": tool["name"]}
        for ask in (c.create, c.stream):
            response = ask(tools=[TIDE, DIAL], tool_choice=choice, max_output_tokens=200)
            call = response.output[-1]
            assert (call.type, call.name) == (kind, tool["name"]), response.output
            if kind == "function_call":
                assert json.loads(call.arguments)["at"] in ("noon", "dawn")
            else:
                assert len(call.input) == 3 and call.input.isdigit()
            items = [{"role": "user", "content": "Tell a tale."}, *(item.to_dict() for item in response.output),
                     {"type": kind + "_output", "call_id": call.call_id, "output": "low"}]
            assert c.create(input=items, tools=[TIDE, DIAL]).usage.input_tokens > 0
    assert c.create(tools=[TIDE, {"type": "web_search"}], tool_choice="none").output_text


@check
def reasoning(c):
    """Reasoning is an item of its own, as text or as a summary; encrypted and given back, the model reads it."""
    for ask in (c.create, c.stream):
        # The model does not end its reasoning by itself.
        thought, *_ = ask(reasoning={"effort": "low"}, max_output_tokens=40).output
        assert thought.type == "reasoning" and thought.content[0].text and not thought.summary
        shown, *_ = ask(reasoning={"effort": "low", "summary": "auto"}, max_output_tokens=40).output
        assert shown.summary[0].text == thought.content[0].text
        assert ask(reasoning={"effort": "none"}).output[0].type == "message"
    sealed = c.create(reasoning={"effort": "low"}, max_output_tokens=400, include=["reasoning.encrypted_content"],
                      extra_body={"seed": 7, "ignore_eos": True})
    item = sealed.output[0].to_dict()
    assert item["encrypted_content"] and sealed.usage.output_tokens_details.reasoning_tokens > 100
    item["content"] = []
    past = [{"role": "user", "content": "Tell a tale."}, item, {"role": "assistant", "content": "Once."},
            {"role": "user", "content": "Another."}]
    tokens = [c.create(input=turns, max_output_tokens=1).usage.input_tokens for turns in (past, past[:1] + past[2:])]
    assert tokens[0] > tokens[1] + 100, tokens


@check
def lark_grammars(c):
    for ask in (c.create, c.stream):
        response = ask(tools=[DIFF], tool_choice={"type": "custom", "name": "change"}, max_output_tokens=400)
        call = response.output[-1]
        assert response.status == "completed" and call.type == "custom_tool_call", response
        first, *lines, last = call.input.split("\n")
        assert (first, last) == ("*** Begin", '*** "End"') and lines, call.input
        for line in lines:
            assert line[0] in "+-" and len(line) <= 10 and set(line[1:]) <= set('abcdefghijklmnopqrstuvwxyz \\"'), line


@check
def schemas(c):
    class Weather(BaseModel):
        sky: Literal["clear", "dark"]
        calm: bool

    for ask in (c.client.responses.parse, c.client.responses.stream):
        arguments = c.ask(text_format=Weather, max_output_tokens=200)
        if ask == c.client.responses.stream:
            with ask(**arguments) as stream:
                parsed = stream.until_done().get_final_response()
        else:
            parsed = ask(**arguments)
        assert parsed.status == "completed" and isinstance(parsed.output_parsed, Weather), parsed


@check
def log_probabilities(c):
    response = c.create(include=["message.output_text.logprobs"], top_logprobs=2)
    (part,) = response.output[0].content
    assert "".join(entry.token for entry in part.logprobs) == part.text and len(part.logprobs[0].top_logprobs) == 2
    c.stream(include=["message.output_text.logprobs"], top_logprobs=2)


@check
def errors(c):
    long = [{"role": "user", "content": "word " * 9000}]
    assert c.stream(input=long).error.code == "context_length_exceeded"
    for error, param, more in (
        (openai.BadRequestError, None, {"input": long}),
        (openai.BadRequestError, "previous_response_id", {"previous_response_id": "resp_1"}),
        (openai.BadRequestError, "background", {"background": True}),
        (openai.NotFoundError, "model", {"model": "gpt"}),
    ):
        try:
            c.create(**more)
        except error as raised:
            assert raised.param == param, raised
        else:
            raise AssertionError(f"{more} is answered")


@check
def agents_sdk(c):
    """The default of openai-agents: a tool loop, whole and streamed."""
    @agents.function_tool
    def tide(at: Literal["noon", "dawn"]) -> str:
        """How high the water is."""
        return "low"

    agents.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=c.url + "/v1", api_key=KEY, max_retries=0)
    model = agents.OpenAIResponsesModel(model="tale", openai_client=client)
    settings = agents.ModelSettings(max_tokens=160, temperature=0, tool_choice="required", parallel_tool_calls=False)
    agent = agents.Agent(name="pilot", instructions="You know the sea.", model=model, tools=[tide], model_settings=settings,
                         tool_use_behavior="stop_on_first_tool")

    async def run():
        whole = await agents.Runner.run(agent, "How high?", max_turns=4)
        streamed = agents.Runner.run_streamed(agent, "How high?", max_turns=4)
        async for _ in streamed.stream_events():
            pass
        return whole, streamed

    for result in asyncio.run(run()):
        kinds = [type(item).__name__ for item in result.new_items]
        assert "ToolCallOutputItem" in kinds and result.final_output is not None, kinds


if __name__ == "__main__":
    sys.exit(main(Context))
