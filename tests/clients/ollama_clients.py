#!/usr/bin/env python3
"""The `ollama` package, unmodified, against `sluice serve`.

    tests/clients/ollama_clients.py [target/release/sluice]

Starts the servers itself, on loopback, and a stand-in of Hugging Face's hub. The model writes nonsense: what is checked
is what clients rely on.
"""
import json, pathlib, sys, tempfile, threading, time, urllib.request

from ollama import Client, ResponseError

from hub import Hub
from served import KEY, TALE, check, main, running

USER = {"role": "user", "content": "Tell a tale of the sea."}
ENCODER = "encoder"


def tide(at: str) -> str:
    """How high the water is.

    Args:
      at: The time of day.
    """
    return "low"


TIDE = {"type": "function", "function": {"name": "tide", "parameters": {
    "type": "object", "required": ["at"], "properties": {"at": {"type": "string", "enum": ["noon", "dawn"]}}}}}
# Content has to be a number, whose characters are unlikely: the mask leaves a call.
CALLS = {"format": {"type": "integer"}, "options": {"num_predict": 200, "temperature": 0, "logit_bias": {
    text: -50 for text in "-0123456789\n"}}}


class Context:
    def __init__(self, url):
        self.url = url
        self.client = Client(host=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=120)

    def ask(self, **more):
        return {"model": "tale", "messages": [USER], "options": {"num_predict": 24, "seed": 7}, **more}

    def chat(self, **more):
        reply = self.client.chat(**self.ask(**more))
        assert reply.done and reply.message.role == "assistant"
        return timed(reply)

    def stream(self, **more):
        """All parts; the last one is done."""
        parts = list(self.client.chat(**self.ask(**more), stream=True))
        assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
        timed(parts[-1])
        return parts


def timed(reply):
    whole = reply.total_duration
    assert whole >= reply.prompt_eval_duration + reply.eval_duration and reply.load_duration >= 0
    assert reply.eval_count > 0 and reply.prompt_eval_count > 0 and reply.created_at
    return reply


def refused(status, words, call):
    try:
        call()
    except ResponseError as raised:
        assert (raised.status_code, words in raised.error) == (status, True), raised
        return
    raise AssertionError("nothing was raised")


def text_of(parts):
    return "".join(part.message.content or "" for part in parts)


@check
def whole_and_stream(c):
    system = {"role": "system", "content": "You tell tales."}
    whole, parts = c.chat(messages=[system, USER]), c.stream(messages=[system, USER])
    assert whole.message.content == text_of(parts) != ""
    assert whole.done_reason == parts[-1].done_reason == "length" and whole.eval_count == parts[-1].eval_count == 24
    assert whole.model == "tale" and len(parts) > 10
    asked = {"model": "tale:latest", "prompt": USER["content"], "system": "You tell tales.",
             "options": {"num_predict": 24, "seed": 7}}
    generated = timed(c.client.generate(**asked))
    assert generated.response == whole.message.content and generated.model == "tale:latest"
    parts = list(c.client.generate(**asked, stream=True))
    assert "".join(part.response for part in parts) == generated.response and timed(parts[-1]).done
    raw = c.client.generate("tale", "Once upon a time", raw=True, options={"num_predict": 8, "temperature": 0})
    assert raw.response and raw.eval_count == 8
    stopped = c.chat(options={"num_predict": 60, "stop": ["e"], "seed": 7})
    assert stopped.done_reason == "stop" and "e" not in stopped.message.content


@check
def tools(c):
    whole, parts = c.chat(tools=[TIDE], **CALLS), c.stream(tools=[TIDE], **CALLS)
    streamed = [call for part in parts for call in part.message.tool_calls or []]
    assert whole.message.tool_calls and streamed == list(whole.message.tool_calls), (whole, streamed)
    for call in whole.message.tool_calls:
        assert call.function.name == "tide" and call.function.arguments["at"] in ("noon", "dawn"), call
    # As the package's examples do it: the function itself, and results by name.
    assert c.chat(tools=[tide]).message.content
    results = [{"role": "tool", "tool_name": call.function.name, "content": tide(**call.function.arguments)}
               for call in whole.message.tool_calls]
    messages = [USER, whole.message, *results]
    reply = c.chat(messages=messages, tools=[TIDE])
    assert reply.prompt_eval_count > whole.prompt_eval_count
    assert c.stream(messages=messages, tools=[TIDE])[-1].prompt_eval_count == reply.prompt_eval_count


@check
def thinking(c):
    assert "thinking" in c.client.show("tale").capabilities
    for level in (True, "low", "high"):
        assert c.chat(think=level).message.thinking
    assert any(part.message.thinking for part in c.stream(think=True))
    generated = c.client.generate("tale", USER["content"], think=True, options={"num_predict": 12})
    assert generated.thinking and not generated.response
    assert not c.chat(think=False).message.thinking
    # Past thoughts may come back.
    past = {"role": "assistant", "content": "Once.", "thinking": "The sea."}
    assert c.chat(messages=[USER, past, USER]).done
    refused(400, "think", lambda: c.client.chat("tale", [USER], think="much"))
    with running("-m", f"plain={TALE}", "--chat-template", "chatml") as url:
        client = Client(host=url, timeout=120)
        assert client.show("plain").capabilities == ["completion"]
        refused(400, "does not support thinking", lambda: client.chat("plain", [USER], think=True))
        assert client.chat("plain", [USER], think=False, options={"num_predict": 4}).message.content


@check
def formats(c):
    schema = {"type": "object", "properties": {"kind": {"enum": ["storm", "calm"]}}, "required": ["kind"],
              "additionalProperties": False}
    options = {"num_predict": 80, "temperature": 0}
    assert json.loads(c.chat(format=schema, options=options).message.content)["kind"] in ("storm", "calm")
    assert json.loads(text_of(c.stream(format=schema, options=options)))["kind"] in ("storm", "calm")
    assert c.client.generate("tale", "JSON!", format="json", options=options).response.startswith("{")
    reply = c.chat(logprobs=True, top_logprobs=2)
    assert len(reply.logprobs) == 24 and len(reply.logprobs[0].top_logprobs) == 2
    parts = c.stream(logprobs=True)
    assert sum(len(part.logprobs or []) for part in parts) == 24


@check
def embeddings(c):
    reply = c.client.embed(ENCODER, ["a dog", "a cat"])
    assert len(reply.embeddings) == 2 and reply.prompt_eval_count > 4
    assert abs(sum(x * x for x in reply.embeddings[0]) - 1) < 1e-5
    assert len(c.client.embed(ENCODER, "a dog", dimensions=4).embeddings[0]) == 4
    assert c.client.embed(ENCODER, "a dog", truncate=True).embeddings[0] == reply.embeddings[0]
    assert c.client.embed(ENCODER, []).embeddings == []
    assert len(c.client.embeddings(ENCODER, "a dog").embedding) == len(reply.embeddings[0])
    refused(400, "context", lambda: c.client.embed(ENCODER, "word " * 4000, truncate=False))
    assert c.client.embed(ENCODER, "word " * 4000, truncate=True).embeddings


@check
def models(c):
    listed = c.client.list().models
    assert [model.model for model in listed] == ["tale:latest", "encoder:latest"]
    assert listed[0].size > 3_000_000 and len(listed[0].digest) == 64 and listed[0].modified_at
    assert listed[0].details.family == "llama" and listed[0].details.format == "gguf"
    shown = c.client.show("tale")
    assert shown.modelinfo["llama.context_length"] == 1024 and shown.details == listed[0].details
    assert {"completion", "tools"} <= set(shown.capabilities) and shown.template and shown.modelfile
    assert c.client.show(ENCODER).capabilities == ["embedding"]
    assert c.client.generate("tale", "").done_reason == "load"
    ps = c.client.ps().models
    assert {model.model for model in ps} == {"tale:latest", "encoder:latest"}
    assert ps[0].context_length == 2048 and ps[0].expires_at and ps[0].size_vram == 0
    assert c.client.generate(ENCODER, "", keep_alive=0).done_reason == "unload"
    for _ in range(100):
        if [model.model for model in c.client.ps().models] == ["tale:latest"]:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the encoder is not unloaded")
    assert c.chat(keep_alive="10m").message.content
    assert c.client.ps().models[0].expires_at.year < 2200


@check
def errors(c):
    chat, long = c.client.chat, [{**USER, "content": "word " * 9000}]
    for status, words, call in (
        (404, "not found", lambda: chat("gpt", [USER])),
        (404, "not found", lambda: c.client.show("gpt")),
        (400, "context", lambda: chat("tale", long)),
        (400, "messages[0].images", lambda: chat("tale", [{**USER, "images": ["AAAA"]}])),
        (400, "options.temperature", lambda: chat("tale", [USER], options={"temperature": -3})),
        (400, "keep_alive", lambda: chat("tale", [USER], keep_alive="soon")),
        (400, "template", lambda: c.client.generate("tale", "x", template="{{ .Prompt }}")),
        (400, "context", lambda: c.client.generate("tale", "x", context=[1, 2])),
        (400, "images", lambda: c.client.generate("tale", "x", images=["AAAA"])),
        (400, "suffix", lambda: c.client.generate("tale", "x", suffix="y")),
        (400, "encoder", lambda: chat(ENCODER, [USER])),
        (501, "/api/create", lambda: c.client.create("new", from_="tale")),
        (501, "/api/copy", lambda: c.client.copy("tale", "new")),
        (501, "/api/delete", lambda: c.client.delete("tale")),
        (501, "/api/push", lambda: c.client.push("tale")),
        (501, "/api/blobs/", lambda: c.client.create_blob(TALE)),
        (403, "--allow-pull", lambda: c.client.pull("hf.co/u/m")),
        (401, "Key", lambda: Client(host=c.url).list()),
    ):
        refused(status, words, call)
    # An error is raised from a stream as well.
    refused(400, "context", lambda: list(chat("tale", long, stream=True)))


@check
def pull(c):
    hub = Hub("u/m", "tale-Q4_K_M.gguf", TALE.read_bytes())
    with tempfile.TemporaryDirectory() as cache, hub.serving() as endpoint:
        place = {"HF_ENDPOINT": endpoint, "HF_HUB_CACHE": cache, "LLAMA_CACHE": ""}
        with running("-m", f"tale={TALE}", "--allow-pull", "--pull-max", "1", env=place) as url:
            client = Client(host=url, timeout=120)
            refused(400, "Hugging Face", lambda: client.pull("llama3.2"))
            refused(404, "404", lambda: client.pull("hf.co/u/other"))
            # A client that leaves ends the pull; what it had received is kept.
            hub.delay = 0.2
            for part in client.pull("hf.co/u/m", stream=True):
                if part.completed and part.completed > 1 << 20:
                    break
            del part
            time.sleep(1.5)
            hub.delay = 0.0
            # Two clients at once share one download.
            others = []
            other = threading.Thread(target=lambda: others.extend(client.pull("hf.co/u/m", stream=True)))
            other.start()
            parts = list(client.pull("hf.co/u/m:latest", stream=True))
            other.join()
            for seen in (parts, others):
                assert seen[-1].status == "success", seen
            layers = [part for part in [*parts, *others] if part.digest]
            assert layers and all(part.digest == "sha256:" + hub.sha256 for part in layers)
            assert all(part.completed <= part.total == len(hub.data) for part in layers)
            assert hub.starts[0] == 0 and 0 < hub.starts[1] < len(hub.data) and len(hub.starts) == 2, hub.starts
            assert client.pull("hf.co/u/m").status == "success" and len(hub.starts) == 2
            assert client.list().models[-1].model == "u/m:Q4_K_M"
            reply = client.generate("hf.co/u/m", "Once", options={"num_predict": 4})
            assert reply.response and reply.eval_count == 4
        # A server that is started again has it, without a pull.
        with running("-m", f"tale={TALE}", "--allow-pull", env=place) as url:
            client = Client(host=url, timeout=120)
            assert client.list().models[-1].model == "u/m:Q4_K_M"
            assert client.generate("hf.co/u/m:Q4_K_M", "Once", options={"num_predict": 4}).eval_count == 4
            assert len(hub.starts) == 2
            assert {path.parts[len(pathlib.Path(cache).parts)] for path in pathlib.Path(cache).rglob("*.gguf")} == {"models--u--m"}
        with running("-m", f"tale={TALE}", "--allow-pull", "--pull-max", "0", env=place | {"HF_HUB_CACHE": cache + "/other"}) as url:
            refused(403, "--pull-max", lambda: Client(host=url).pull("hf.co/u/m"))


@check
def first_page(c):
    for method in ("GET", "HEAD"):
        with urllib.request.urlopen(urllib.request.Request(c.url + "/", method=method), timeout=10) as reply:
            assert reply.status == 200 and reply.read() == (b"Ollama is running" if method == "GET" else b"")


if __name__ == "__main__":
    sys.exit(main(Context))
