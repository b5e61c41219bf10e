#!/usr/bin/env python3
"""The `openai` package and `langchain-openai`, unmodified, against `sluice serve`.

    tests/clients/openai_clients.py [target/release/sluice]

Starts the server itself, on loopback, with the model that is part of the program and a small encoder. The model
writes nonsense, so what is checked is what clients rely on: shapes, types, that streams add up to what comes at
once, that grammars hold, that errors are the right exceptions. Needs the packages in requirements.txt.
"""
import base64, contextlib, json, struct, sys, urllib.request

import jsonschema
import openai
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from openai import OpenAI
from pydantic import BaseModel

from served import KEY, ROOT, check, main

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a place",
    "parameters": {"type": "object", "additionalProperties": False, "required": ["place", "unit"], "properties": {
        "place": {"type": "string", "maxLength": 12}, "unit": {"enum": ["celsius", "fahrenheit"]}}}}}
CLOCK = {"type": "function", "function": {
    "name": "get_time", "parameters": {"type": "object", "additionalProperties": False, "required": ["zone"],
                                       "properties": {"zone": {"type": "integer", "minimum": -12, "maximum": 12}}}}}
MESSAGES = [{"role": "system", "content": "You tell tales."}, {"role": "user", "content": "Tell one of the sea."}]

class Context:
    def __init__(self, url):
        self.url = url
        self.client = OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0, timeout=120)

    def chat(self, **more):
        return self.client.chat.completions.create(**{"model": "tale", "messages": MESSAGES, "max_tokens": 24,
                                                      "seed": 7, **more})

    def complete(self, **more):
        return self.client.completions.create(**{"model": "tale", "prompt": "Once upon a time", "max_tokens": 24,
                                                 "seed": 7, **more})


@check
def models(c):
    found = {model.id: model for model in c.client.models.list()}
    assert {"tale", "encoder"} <= set(found), found
    assert found["tale"].object == "model" and found["tale"].owned_by
    assert c.client.models.retrieve("tale").id == "tale"


@check
def chat_at_once(c):
    reply = c.chat()
    assert reply.object == "chat.completion" and reply.id.startswith("chatcmpl-")
    (choice,) = reply.choices
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = reply.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens and usage.completion_tokens <= 24
    assert reply.system_fingerprint
    again = c.chat()
    assert again.choices[0].message.content == choice.message.content
    assert again.system_fingerprint == reply.system_fingerprint
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    other = c.chat(seed=8, temperature=1.5)
    assert other.choices[0].message.content != choice.message.content


@check
def chat_streamed(c):
    whole = c.chat()
    chunks = list(c.chat(stream=True, stream_options={"include_usage": True}))
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert not any(chunk.usage for chunk in c.chat(stream=True))


@check
def several_choices(c):
    reply = c.chat(n=2, temperature=1.2)
    assert [choice.index for choice in reply.choices] == [0, 1]
    texts = [choice.message.content for choice in reply.choices]
    assert texts[0] != texts[1]
    streamed = ["", ""]
    for chunk in c.chat(n=2, temperature=1.2, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts
    # More choices than sequences, and the first ones are the same.
    many = c.complete(n=6, temperature=1.2)
    few = c.complete(n=2, temperature=1.2)
    assert [choice.text for choice in many.choices[:2]] == [choice.text for choice in few.choices]


@check
def log_probabilities(c):
    reply = c.chat(logprobs=True, top_logprobs=3, max_tokens=5)
    content = reply.choices[0].logprobs.content
    assert len(content) == 5
    for entry in content:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token or entry.bytes
        assert entry.top_logprobs[0].logprob >= entry.logprob
    streamed = []
    for chunk in c.chat(logprobs=True, top_logprobs=3, max_tokens=5, stream=True):
        for choice in chunk.choices:
            if choice.logprobs:
                streamed += choice.logprobs.content
    assert [entry.logprob for entry in streamed] == [entry.logprob for entry in content]
    old = c.complete(logprobs=2, max_tokens=5).choices[0].logprobs
    assert len(old.tokens) == len(old.token_logprobs) == len(old.top_logprobs) == len(old.text_offset) == 5


@check
def completions(c):
    reply = c.complete()
    assert reply.object == "text_completion" and reply.choices[0].text
    streamed = "".join(chunk.choices[0].text for chunk in c.complete(stream=True) if chunk.choices)
    assert streamed == reply.choices[0].text
    assert c.complete(echo=True).choices[0].text == "Once upon a time" + reply.choices[0].text
    lists = c.complete(prompt=["Once upon a time", "The sea"], max_tokens=8)
    assert [choice.index for choice in lists.choices] == [0, 1]
    assert lists.choices[0].text == c.complete(max_tokens=8).choices[0].text
    tokens = json.load(call(c, "/tokenize", {"content": "Once upon a time", "add_special": True}))["tokens"]
    assert c.complete(prompt=tokens).choices[0].text == reply.choices[0].text


@check
def stops(c):
    text = c.complete(max_tokens=40, temperature=0).choices[0].text
    stop = text.split()[3]
    cut = c.complete(max_tokens=40, temperature=0, stop=[stop, "\0never"])
    assert cut.choices[0].text == text[:text.index(stop)], (cut.choices[0].text, text, stop)
    assert cut.choices[0].finish_reason == "stop"
    streamed = "".join(chunk.choices[0].text for chunk in
                       c.complete(max_tokens=40, temperature=0, stop=stop, stream=True) if chunk.choices)
    assert streamed == cut.choices[0].text
    banned = json.load(call(c, "/tokenize", {"content": text}))["tokens"]
    biased = c.complete(max_tokens=10, temperature=0, logit_bias={str(token): -100 for token in banned})
    assert biased.choices[0].text != text[:len(biased.choices[0].text)]


@check
def tools_required(c):
    for stream in (False, True):
        calls, reason = tool_calls(c, stream, tools=[WEATHER, CLOCK], tool_choice="required", max_tokens=600,
                                   parallel_tool_calls=False)
        assert len(calls) == 1 and reason == "tool_calls", (calls, reason)
        validate(calls)


@check
def tools_named(c):
    choice = {"type": "function", "function": {"name": "get_time"}}
    for stream in (False, True):
        calls, _ = tool_calls(c, stream, tools=[WEATHER, CLOCK], tool_choice=choice, max_tokens=600,
                              parallel_tool_calls=False)
        assert [name for name, _ in calls] == ["get_time"]
        validate(calls)


@check
def tools_parallel(c):
    most = 0
    for seed in range(6):
        calls, _ = tool_calls(c, False, tools=[WEATHER, CLOCK], tool_choice="required", max_tokens=400, seed=seed)
        # The last one may be cut off by the length.
        validate(calls[:-1])
        most = max(most, len(calls))
        streamed, _ = tool_calls(c, True, tools=[WEATHER, CLOCK], tool_choice="required", max_tokens=400, seed=seed)
        assert streamed == calls
    assert most > 1


@check
def tools_auto(c):
    # Nothing forces a call, and the answer is a text.
    reply = c.chat(tools=[WEATHER], tool_choice="auto", max_tokens=16)
    assert reply.choices[0].message.content or reply.choices[0].message.tool_calls
    reply = c.chat(tools=[WEATHER], tool_choice="none", max_tokens=16)
    assert not reply.choices[0].message.tool_calls
    # A call of an earlier turn, and its result, are rendered.
    history = MESSAGES + [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function",
             "function": {"name": "get_weather", "arguments": '{"place": "sea", "unit": "celsius"}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "calm"}]
    assert c.chat(messages=history, tools=[WEATHER], max_tokens=8).usage.prompt_tokens > 40


def tool_calls(c, stream, **more):
    """The calls as (name, arguments), and the reason."""
    if not stream:
        choice = c.chat(**more).choices[0]
        return [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []], choice.finish_reason
    calls, reason = {}, None
    for chunk in c.chat(stream=True, **more):
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            for delta in choice.delta.tool_calls or []:
                name, arguments = calls.get(delta.index, ("", ""))
                if delta.index not in calls:
                    assert delta.id and delta.type == "function"
                calls[delta.index] = (name + (delta.function.name or ""), arguments + (delta.function.arguments or ""))
    return [calls[index] for index in sorted(calls)], reason


def validate(calls):
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, CLOCK)}
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), schemas[name])


@check
def json_schemas(c):
    schema = {"type": "object", "additionalProperties": False, "required": ["name", "age"],
              "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "minimum": 0,
                                                                                "maximum": 150}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    for seed in range(3):
        reply = c.chat(response_format=wanted, max_tokens=200, seed=seed)
        jsonschema.validate(json.loads(reply.choices[0].message.content), schema)
    for seed in range(6):
        choice = c.chat(response_format={"type": "json_object"}, max_tokens=400, temperature=0.3, seed=seed).choices[0]
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
    # Some 150 KB of schema.
    large = {"type": "object", "required": ["kind"], "additionalProperties": False, "properties": {
        "kind": {"enum": [f"the kind of thing that has number {i:05d}, and a long name" for i in range(2500)]}}}
    assert len(json.dumps(large)) > 140_000
    wanted = {"type": "json_schema", "json_schema": {"name": "large", "schema": large}}
    reply = c.chat(response_format=wanted, max_tokens=200)
    jsonschema.validate(json.loads(reply.choices[0].message.content), large)

    class Person(BaseModel):
        name: str
        age: int

    parsed = c.client.chat.completions.parse(model="tale", messages=MESSAGES, response_format=Person, max_tokens=400,
                                             temperature=0.2, seed=3)
    message = parsed.choices[0].message
    assert message.parsed is None or isinstance(message.parsed, Person)


@check
def embeddings(c):
    texts = ["the sea was calm", "a red ball", "the sea was calm"]
    reply = c.client.embeddings.create(model="encoder", input=texts, encoding_format="float")
    vectors = [item.embedding for item in reply.data]
    assert [item.index for item in reply.data] == [0, 1, 2] and vectors[0] == vectors[2] != vectors[1]
    assert abs(sum(x * x for x in vectors[0]) - 1) < 1e-5
    # The package asks for base64 by itself, and decodes it.
    assert c.client.embeddings.create(model="encoder", input=texts[0]).data[0].embedding == vectors[0]
    raw = json.load(call(c, "/v1/embeddings", {"model": "encoder", "input": texts[0], "encoding_format": "base64"}))
    packed = base64.b64decode(raw["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(packed) // 4}f", packed)) == [struct.unpack("<f", struct.pack("<f", x))[0]
                                                                   for x in vectors[0]]
    assert reply.usage.prompt_tokens > 0
    # A decoder embeds, too.
    assert len(c.client.embeddings.create(model="tale", input="the sea").data[0].embedding) > 10


def call(c, path, body=None, key=KEY):
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(c.url + path, data, headers), timeout=60)


def raises(kind, act, *words):
    try:
        act()
    except kind as error:
        for word in words:
            assert word in str(error), (word, str(error))
        return error
    raise AssertionError(f"no {kind.__name__}")


@check
def errors(c):
    raises(openai.BadRequestError, lambda: c.chat(temperature=-1), "temperature", "-1")
    raises(openai.BadRequestError, lambda: c.chat(messages=[]), "messages")
    raises(openai.BadRequestError, lambda: c.chat(n=0), "n")
    raises(openai.BadRequestError, lambda: c.complete(prompt="sea " * 5000), "context")
    raises(openai.BadRequestError, lambda: c.chat(response_format={"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "nonsense"}}}), "nonsense")
    raises(openai.BadRequestError, lambda: c.chat(messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:,"}}]}]), "image_url")
    raises(openai.NotFoundError, lambda: c.chat(model="nobody"), "nobody")
    raises(openai.NotFoundError, lambda: c.client.models.retrieve("nobody"), "nobody")
    wrong = OpenAI(base_url=c.url + "/v1", api_key="wrong", max_retries=0)
    raises(openai.AuthenticationError, lambda: wrong.models.list())
    raises(openai.BadRequestError, lambda: c.chat(model="encoder"), "encoder")
    error = raises(openai.APIStatusError, lambda: c.client.post("/rerank", body={
        "model": "tale", "query": "a", "documents": ["b"]}, cast_to=object))
    assert error.status_code == 400, error.status_code


@check
def busy(c):
    """More requests than may wait: some are turned away with 429, and all others are answered."""
    from concurrent.futures import ThreadPoolExecutor

    def ask(seed):
        try:
            return c.complete(max_tokens=200, seed=seed, temperature=1.0, extra_body={"ignore_eos": True}).choices[0].finish_reason
        except openai.RateLimitError as error:
            assert int(error.response.headers["retry-after"]) >= 1
            return "busy"

    with ThreadPoolExecutor(150) as pool:
        ends = list(pool.map(ask, range(150)))
    assert set(ends) == {"length", "busy"}, set(ends)


@check
def langchain(c):
    chat = ChatOpenAI(model="tale", base_url=c.url + "/v1", api_key=KEY, max_tokens=16, seed=7, max_retries=0)
    messages = [SystemMessage("You tell tales."), HumanMessage("Tell one of the sea.")]
    whole = chat.invoke(messages)
    assert whole.content and whole.usage_metadata["output_tokens"] <= 16
    assert "".join(chunk.content for chunk in chat.stream(messages)) == whole.content
    # Bound tools, and structured output by a schema.
    bound = chat.bind_tools([WEATHER], tool_choice="get_weather").bind(max_tokens=600)
    (called,) = bound.invoke(messages).tool_calls[:1]
    assert called["name"] == "get_weather" and called["args"]["unit"] in ("celsius", "fahrenheit")
    vectors = OpenAIEmbeddings(model="encoder", base_url=c.url + "/v1", api_key=KEY, check_embedding_ctx_length=False)
    assert len(vectors.embed_documents(["the sea", "a ball"])) == 2


@check
def by_hand(c):
    """What curl would see."""
    assert json.load(call(c, "/health", key=None)) == {"status": "ok"}
    assert json.load(call(c, "/v1/health", key=None))["status"] == "ok"
    text = "Once upon a time"
    tokens = json.load(call(c, "/tokenize", {"content": text}))["tokens"]
    assert json.load(call(c, "/detokenize", {"tokens": tokens}))["content"].strip() == text
    assert "Tell one" in json.load(call(c, "/apply-template", {"messages": MESSAGES}))["prompt"]
    assert json.load(call(c, "/props"))["total_slots"] == 4
    assert len(json.load(call(c, "/slots"))) == 4
    metrics = call(c, "/metrics").read().decode()
    for name in ("sluice:time_to_first_token_seconds_bucket", "llamacpp:tokens_predicted_total"):
        assert name in metrics, name
    native = json.load(call(c, "/completion", {"prompt": text, "n_predict": 5, "seed": 7}))
    assert native["content"] and native["tokens_predicted"] == 5 and native["timings"]["predicted_n"] == 5
    progress = call(c, "/completion", {"prompt": text * 30, "n_predict": 2, "stream": True, "return_progress": True})
    assert "prompt_progress" in progress.read().decode()


if __name__ == "__main__":
    sys.exit(main(Context))
