#!/usr/bin/env python3
"""The server's answers before and after a change: about 470 requests of all routes, fields and errors.

    benches/peers/answers.py record FILE [--sluice PROGRAM]
    benches/peers/answers.py compare FILE [--sluice PROGRAM]

`record` starts the program with two decoders, an encoder, a reranker and an adapter from the repository, sends each
request once, one after the other, and writes what came back. `compare` does the same and prints what differs. Status,
content type, the order of fields and all values are compared byte by byte. Left out: what differs from run to run
(times, ids, rates), and the wording of messages. Exit status 1: something differs.
"""
import argparse, json, pathlib, re, sys, tempfile

from llama import ROOT
from server import Server
import http.client

TALE = ROOT / "hosted/models/tale-5.8m-Q4_K_M.gguf"
FIXTURES = ROOT / "tests/fixtures"
# Fields whose values are times, rates or drawn at random; their presence and their place are compared.
CHANGING = re.compile(r"(_ms|_us|_per_second|_seconds|_s|_rate)$|^(id|created|created_at|message|build_info|processed|id_slot|n_erased|"
                      r"t_.*|.*time.*|seconds|last_used|start)$")
TEMPLATE = ("{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\n{% endfor %}"
            "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
            "{% if add_generation_prompt %}<|assistant|>\n{% endif %}")
# What prompts of one request find of each other depends on which of them is read first.
SHARED = re.compile(r"^(cached_tokens|cache_n|prompt_n|tokens_cached)$")
USER = [{"role": "user", "content": "Tell a tale of a cat."}]
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {
    "type": "object", "properties": {"at": {"type": "string", "maxLength": 8}}, "required": ["at"],
    "additionalProperties": False}}}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
          "required": ["n"], "additionalProperties": False}


def requests():
    """(method, path, body or raw bytes, headers) of each."""
    yield from plain_routes()
    for path in ["/v1/completions", "/completion", "/v1/chat/completions"]:
        yield from texts(path)
    yield from completions()
    yield from chats()
    yield from native()
    yield from vectors()
    yield from tokens()
    yield from errors()


def plain_routes():
    for path in ["/health", "/v1/health", "/models", "/v1/models", "/v1/models/tale", "/models/nope", "/props",
                 "/props?model=tale", "/props?model=vectors", "/slots?model=tale", "/slots", "/lora-adapters",
                 "/v1/lora_adapters", "/tokenizer_info", "/tokenizer_info?model=tale", "/nothing", "/"]:
        yield "GET", path, None
    for path in ["/v1/responses", "/v1/messages", "/props", "/nothing", "/health", "/v1/models", "/api/chat",
                 "/v1/audio/transcriptions", "/v1/images/generations"]:
        yield "POST", path, {"model": "tale"}
    yield "GET", "/v1/chat/completions", None
    yield "DELETE", "/v1/models/tale", None


def base(path):
    body = {"model": "tale", "max_tokens": 12, "seed": 7}
    return {**body, "messages": USER} if "chat" in path else {**body, "prompt": "Once upon a time"}


# Fields of all routes that write text.
FIELDS = [
    {}, {"temperature": 0, "seed": 3}, {"temperature": 1.5}, {"seed": 8}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2},
    {"typical_p": 0.6}, {"top_n_sigma": 1.0}, {"xtc_probability": 0.9, "xtc_threshold": 0.05}, {"dynatemp_range": 0.5},
    {"repeat_penalty": 1.6, "repeat_last_n": 32}, {"repetition_penalty": 1.6}, {"presence_penalty": 1.0},
    {"frequency_penalty": 1.0}, {"dry_multiplier": 0.8, "dry_allowed_length": 1}, {"mirostat": 2, "mirostat_tau": 3},
    {"samplers": ["top_k", "temperature"], "top_k": 2}, {"samplers": "kt"}, {"min_keep": 4, "top_p": 0.01}, {"ignore_eos": True},
    {"logit_bias": {"300": -100, "301": 5}}, {"logit_bias": [[300, False]]}, {"allowed_token_ids": [300, 301, 302]},
    {"stop": [" a"]}, {"stop": " was"}, {"stop": [" a"], "include_stop_str_in_output": True}, {"stop_token_ids": [300, 261]}, {"min_tokens": 5},
    {"n": 2}, {"stream": True}, {"stream": True, "n": 2}, {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "return_progress": True}, {"stream": True, "timings_per_token": True},
    {"stream": True, "stop": [" a"]}, {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
    {"response_format": {"type": "json_object"}}, {"json_schema": SCHEMA}, {"grammar": "root ::= \"yes\" | \"no\""},
    {"cache_prompt": False}, {"cache_salt": "pepper"}, {"id_slot": 1}, {"priority": -5}, {"n_keep": 4}, {"max_completion_tokens": 3},
    {"n_predict": 2}, {"n_predict": 0}, {"max_tokens": 1}, {"skip_special_tokens": False}, {"user": "somebody", "unknown_field": [1]},
    {"lora": [{"id": 0, "scale": 0.5}]}, {"model": "styled"}, {"model": "deep"},
]
# Wrong ones: all routes answer with the field.
WRONG = [
    {"temperature": "hot"}, {"temperature": -1}, {"top_p": 2}, {"n": 0}, {"n": 1000}, {"stop": 5}, {"stop": [1]}, {"logit_bias": 3},
    {"logit_bias": {"x": 1}}, {"seed": "x"}, {"max_tokens": "x"}, {"max_tokens": -5}, {"stream": "yes"}, {"stream_options": 3}, {"samplers": 4},
    {"samplers": ["nope"]}, {"grammar": "root ::= "}, {"json_schema": "x"}, {"json_schema": {"type": "nope"}}, {"response_format": {"type": "xml"}},
    {"response_format": 5}, {"grammar": "root ::= \"a\"", "json_schema": {}}, {"id_slot": 99}, {"priority": "x"}, {"model": "nope"}, {"model": 5},
    {"model": "vectors"}, {"best_of": 3}, {"use_beam_search": True}, {"guided_json": {"type": "object"}}, {"allowed_token_ids": ["x"]},
    {"cache_salt": 5}, {"deadline_ms": "x"}, {"context_shift": "x"}, {"lora": [{"id": 9, "scale": 1}]}, {"lora": "x"}, {"min_tokens": -3},
    {"stop_token_ids": [10 ** 9]}, {"mirostat": 7}, {"repeat_last_n": -9},
]


def texts(path):
    for fields in FIELDS:
        yield "POST", path, {**base(path), **fields}
    for fields in WRONG:
        yield "POST", path, {**base(path), **fields}


def completions():
    path = "/v1/completions"
    prompt = base(path)
    for fields in [{"logprobs": 3}, {"logprobs": 0}, {"logprobs": True}, {"echo": True}, {"echo": True, "logprobs": 2}, {"echo": True, "max_tokens": 0},
                   {"suffix": " the end"}, {"prompt": ["A cat", "A dog"]}, {"prompt": [1, 300, 301]}, {"prompt": ["A", [1, 300]], "n": 2},
                   {"prompt": [[1, 300], [1, 301]]}, {"prompt": ""}, {"prompt": []}, {"prompt": 5}, {"prompt": [10 ** 7]}, {"prompt": "x " * 3000},
                   {"logprobs": "x"}, {"logprobs": 5000}, {"stream": True, "logprobs": 2}, {"stream": True, "echo": True}]:
        yield "POST", path, {**prompt, **fields}
    yield "POST", "/completions", prompt
    yield "POST", path, {"model": "tale"}


def chats():
    path = "/v1/chat/completions"
    chat = base(path)
    for fields in [{"logprobs": True}, {"logprobs": True, "top_logprobs": 3}, {"top_logprobs": 3}, {"stream": True, "logprobs": True, "top_logprobs": 2},
                   {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "none"}, {"tools": [TOOL], "tool_choice": "required", "max_tokens": 40},
                   {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}, "max_tokens": 40, "stream": True},
                   {"tools": [TOOL], "tool_choice": "nope"}, {"tools": 5}, {"tools": [{"type": "x"}]}, {"parallel_tool_calls": False, "tools": [TOOL]},
                   {"messages": []}, {"messages": 5}, {"messages": [{"role": "user"}]}, {"messages": [{"content": "x"}]},
                   {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": " you"}]}]},
                   {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
                   {"messages": [{"role": "system", "content": "S"}, *USER, {"role": "assistant", "content": "Once"}], "continue_final_message": True,
                    "add_generation_prompt": False}, {"add_generation_prompt": False},
                   {"chat_template_kwargs": {"x": 1}}, {"chat_template_kwargs": 5}, {"enable_thinking": False}, {"reasoning_effort": "low"},
                   {"reasoning_format": "none"}, {"reasoning_format": "nope"}, {"reasoning_budget": 0}, {"documents": [{"title": "t", "text": "x"}]},
                   {"stream": True, "tools": [TOOL]}]:
        yield "POST", path, {**chat, **fields}
    yield "POST", "/chat/completions", chat
    yield "POST", path, {"model": "tale"}
    yield "POST", "/apply-template", {"model": "tale", "messages": USER}
    yield "POST", "/apply-template", {"model": "tale", "messages": USER, "return_tokens": True, "tools": [TOOL]}
    yield "POST", "/apply-template", {"model": "tale", "messages": 5}


def native():
    path = "/completion"
    prompt = base(path)
    for fields in [{"n_probs": 3}, {"return_tokens": True}, {"prompt_logprobs": 2}, {"prompt_logprobs": 0, "stream": True}, {"n_probs": 2, "stream": True},
                   {"n_probs": -1}, {"prompt": ["A", 300, "B"]}, {"prompt": ["A cat", "A dog"]}, {"post_sampling_probs": True}, {"t_max_predict_ms": 100000},
                   {"n_indent": 3}, {"return_tokens": "x"}, {"response_fields": ["content"]}]:
        yield "POST", path, {**prompt, **fields}
    yield "POST", "/infill", {"model": "tale", "input_prefix": "def f():", "input_suffix": "return", "max_tokens": 8, "seed": 1}
    yield "POST", "/infill", {"model": "tale", "input_prefix": 5}
    yield "POST", "/slots/0?action=erase&model=tale", {}
    yield "POST", "/slots/0?action=save&model=tale", {"filename": "kept.bin"}
    yield "POST", "/slots/0?action=restore&model=tale", {"filename": "kept.bin"}
    yield "POST", "/slots/0?action=restore&model=tale", {"filename": "../x"}
    yield "POST", "/slots/0?action=restore&model=tale", {"filename": "missing.bin"}
    yield "POST", "/slots/x?action=erase&model=tale", {}
    yield "POST", "/slots/0?action=nope&model=tale", {}
    yield "POST", "/slots/0", {}
    yield "POST", "/lora-adapters", [{"id": 0, "scale": 0.0}]
    yield "POST", "/lora-adapters", [{"id": 7, "scale": 1.0}]
    yield "POST", "/lora-adapters", 5
    yield "POST", "/v1/load_lora_adapter", {"lora_name": "again", "lora_path": str(FIXTURES / "adapters/tale/two"), "base_model_name": "tale"}
    yield "POST", path, {**prompt, "model": "again"}
    yield "POST", "/v1/load_lora_adapter", {"lora_name": "again", "lora_path": "/nowhere"}
    yield "POST", "/v1/load_lora_adapter", {"lora_name": 5}
    yield "POST", "/v1/unload_lora_adapter", {"lora_name": "again"}
    yield "POST", "/v1/unload_lora_adapter", {"lora_name": "again"}


def vectors():
    path = "/v1/embeddings"
    for fields in [{"input": "a cat"}, {"input": ["a cat", "a dog"]}, {"input": [101, 102]}, {"input": [[101, 102], [103]]}, {"input": "a", "dimensions": 8},
                   {"input": "a", "encoding_format": "base64"}, {"input": "a", "encoding_format": "x"}, {"input": "a", "dimensions": 10 ** 6},
                   {"input": "a", "embd_normalize": -1}, {"input": ""}, {"input": []}, {"input": 5}, {}, {"input": "a", "model": "tale"},
                   {"content": "a cat"}, {"input": "x " * 3000}]:
        yield "POST", path, {"model": "vectors", **fields}
    yield "POST", "/embeddings", {"model": "vectors", "input": "a cat"}
    yield "POST", "/embedding", {"model": "vectors", "content": "a cat"}
    for fields in [{"query": "a cat", "documents": ["a dog", "a cat", "the sea"]}, {"query": "a cat", "documents": ["a dog", "a cat"], "top_n": 1},
                   {"query": "a", "documents": [{"text": "a dog"}], "return_documents": True}, {"query": "a", "texts": ["b", "c"]},
                   {"query": "a", "texts": ["b"], "return_text": True}, {"query": 5, "documents": ["a"]}, {"documents": ["a"]}, {"query": "a"},
                   {"query": "a", "documents": []}, {"query": "a", "documents": 5}, {"query": "a", "documents": ["b"], "top_n": 0},
                   {"query": "a", "documents": ["b"], "model": "vectors"}, {"query": "a", "documents": ["b"], "model": "tale"}]:
        yield "POST", "/v1/rerank", {"model": "ranker", **fields}
    for path in ["/rerank", "/reranking", "/v1/reranking"]:
        yield "POST", path, {"model": "ranker", "query": "a", "documents": ["b", "c"]}


def tokens():
    for body in [{"content": "a cat"}, {"content": "a cat", "add_special": True}, {"content": "a cat", "with_pieces": True}, {"prompt": "a cat"},
                 {"prompt": "a cat", "add_special_tokens": False}, {"messages": USER}, {"content": 5}, {}, {"content": "<s>x", "parse_special": False},
                 {"content": ""}]:
        yield "POST", "/tokenize", {"model": "tale", **body}
    for body in [{"tokens": [300, 301]}, {"tokens": []}, {"tokens": 5}, {"tokens": [10 ** 8]}, {}]:
        yield "POST", "/detokenize", {"model": "tale", **body}


def errors():
    chat = "/v1/chat/completions"
    for raw in [b"", b"{", b"[]", b"5", b"null", b'{"model": "tale", "model": "tale"}', b'{"messages": [}', b"\xff\xfe", b'{"a": "\\ud800"}']:
        yield "POST", chat, raw
        yield "POST", "/tokenize", raw
    yield "POST", "/v1/embeddings", b"nope"
    yield "POST", "/v1/rerank", b"nope"


def ask(port, method, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    connection.request(method, path, raw, {"Content-Type": "application/json"} if raw is not None else {})
    reply = connection.getresponse()
    text = reply.read().decode(errors="replace")
    connection.close()
    several = isinstance(body, dict) and isinstance(body.get("prompt"), list)
    changing = [CHANGING, SHARED] if several else [CHANGING]
    return {"status": reply.status, "type": reply.headers.get("content-type"), "body": settled(text, changing)}


def settled(text, changing):
    """A body without what differs from run to run, as text, fields in their order."""
    try:
        return json.dumps(still(json.loads(text), changing), ensure_ascii=False)
    except ValueError:
        pass
    lines = []
    for line in text.splitlines():
        head, colon, value = line.partition(": ")
        try:
            lines.append(head + colon + json.dumps(still(json.loads(value), changing), ensure_ascii=False))
        except ValueError:
            lines.append(line)
    return "\n".join(lines)


def still(value, changing, name=""):
    if isinstance(value, dict):
        return {key: still(inner, changing, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [still(inner, changing) for inner in value]
    return "…" if value is not None and any(pattern.search(name) for pattern in changing) else value


def record(program):
    with tempfile.TemporaryDirectory() as work:
        template = pathlib.Path(work, "template.jinja")
        template.write_text(TEMPLATE)
        pathlib.Path(work, "slots").mkdir()
        models = {"tale": TALE, "deep": FIXTURES / "models/deepseek2-glm.gguf", "vectors": FIXTURES / "embed/tiny-bert-f16.gguf",
                  "ranker": FIXTURES / "embed/bert-rank.gguf"}
        command = [program, "serve", *(part for name, path in models.items() for part in ("-m", f"{name}={path}")), "-c", "2048", "-np", "2",
                   "-t", "2", "--spec-type", "none", "--metrics", "--slots", "--slot-save-path", f"{work}/slots", "--chat-template-file", template,
                   "--lora-modules", f"styled={FIXTURES / 'adapters/tale/one'}", "--allow-lora-updates"]
        with Server("sluice", command) as server:
            answers = []
            for method, path, body in requests():
                sent = body.decode("latin-1") if isinstance(body, bytes) else body
                answers.append({"request": [method, path, sent], "answer": ask(server.port, method, path, body)})
            return answers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--sluice", type=pathlib.Path, default=ROOT / "target/release/sluice")
    args = parser.parse_args()
    answers = record(args.sluice.resolve())
    if args.what == "record":
        args.file.write_text(json.dumps(answers, ensure_ascii=False, indent=1))
        print(f"{len(answers)} answers")
        return
    before = json.loads(args.file.read_text())
    different = [(old, new) for old, new in zip(before, answers, strict=True) if old != new]
    for old, new in different:
        print(f"{json.dumps(old['request'], ensure_ascii=False)}\n  before {old['answer']}\n  after  {new['answer']}")
    print(f"{len(answers)} answers, {len(different)} different")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
