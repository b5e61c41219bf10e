#!/usr/bin/env python3
"""Writes tests/fixtures/chat/cases.json: what Python's jinja2 makes of the templates next to it.

    python3 tests/tools/chat_template_goldens.py

jinja2 (3.1.6) is set up as huggingface/transformers does in utils/chat_template_utils.py: an
immutable sandbox with trimmed blocks, loop controls, a `generation` block, `raise_exception`,
`strftime_now` (here of a fixed moment), and json.dumps as `tojson`. Lists that a template makes may grow here, as in
llama.cpp, so that `lists.jinja` is rendered in a sandbox that is not immutable.
"""

import json
from datetime import datetime, timezone
from pathlib import Path

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

FOLDER = Path(__file__).parent.parent / "fixtures" / "chat"
NOW = 1_721_952_000


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_text")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment(sandbox=ImmutableSandboxedEnvironment):
    env = sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    now = datetime.fromtimestamp(NOW, timezone.utc)
    env.globals["strftime_now"] = now.strftime
    return env


def message(role, content, **extra):
    return {"role": role, "content": content, **extra}


SYSTEM = message("system", "You are terse.\nVery.")
TALK = [message("user", " Héllo <|im_end|>\n"), message("assistant", "Hi! "), message("user", "1+1?")]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Says \"how\" it is — outside",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city"],
        },
        "return": {"type": "string"},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time", "parameters": {}}}
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "limits": [0.5, 1e20, None]}},
}
TOOL_TALK = [
    message("user", "How is Zürich?"),
    {"role": "assistant", "tool_calls": [CALL]},
    message("tool", '{"sky": "grey"}', tool_call_id="abcdefghi"),
]
THOUGHT = [
    message("user", "q1"),
    message("assistant", "<think>\nhm\n</think>\n\nA1"),
    message("user", "q2"),
    message("assistant", "A2", reasoning_content="\nwell\n"),
]
PARTS = [
    message("system", [{"type": "text", "text": "Look."}]),
    message("user", [{"type": "image"}, {"type": "text", "text": " What is it? "}]),
    message("assistant", "A cat."),
]
LOOKING = {
    "parts": (PARTS, {"add_generation_prompt": True}),
    "numbered": ([*PARTS, PARTS[1]], {"extra": {"add_vision_id": True}}),
    "texts": (
        [
            message("user", [{"type": "text", "text": "def f():"}, {"type": "text", "text": " return 1\n"}]),
            message("assistant", [{"type": "text", "text": "Well."}]),
            message("user", [{"text": "And?"}]),
        ],
        {"add_generation_prompt": True},
    ),
}
TWO_CALLS = [TOOL_TALK[0], {"role": "assistant", "tool_calls": [CALL, CALL]}]
ODD = [message("assistant", "I begin."), message("user", "No.")]
CONVERSATIONS = {
    "talk": (TALK, {"add_generation_prompt": True}),
    "system": ([SYSTEM, *TALK], {"add_generation_prompt": True}),
    "answered": ([SYSTEM, *TALK, message("assistant", "2")], {}),
    "odd": (ODD, {}),
    "empty": ([], {"add_generation_prompt": True}),
    "unicode": ([message("user", "🦀\u2028\ttab \\ \"q\" {{ x }} {% y %}")], {"add_generation_prompt": True}),
}
TOOLS = {
    "tools": (TOOL_TALK, {"tools": [WEATHER, CLOCK], "add_generation_prompt": True}),
    "offered": ([SYSTEM, *TALK], {"tools": [WEATHER], "add_generation_prompt": True}),
    "two": (TWO_CALLS, {"tools": [CLOCK]}),
}
MORE = {
    "llama3": {**TOOLS, "dated": (TALK, {"extra": {"date_string": "1 Jan 2000"}})},
    "mistral": TOOLS,
    "qwen_tools": {
        **TOOLS,
        "thought": (THOUGHT, {}),
        "quiet": (THOUGHT[:3], {"add_generation_prompt": True, "extra": {"enable_thinking": False}}),
    },
    "qwen2_vl": LOOKING,
    "qwen3_vl": {
        **TOOLS,
        **LOOKING,
        "results": (
            [*TOOL_TALK[:2], message("tool", [{"type": "text", "text": "grey"}]), message("tool", "wet")],
            {"add_generation_prompt": True},
        ),
    },
    "gemma": {"parts": (PARTS, {"add_generation_prompt": True})},
    "granite_rag": {
        "documents": (
            [SYSTEM, *TALK],
            {
                "documents": [{"doc_id": 1, "text": "One."}, {"doc_id": "b", "text": ""}],
                "add_generation_prompt": True,
                "extra": {"controls": {"length": "short", "original": True}},
            },
        )
    },
}


def case(template, name, messages, options):
    variables = {
        "messages": messages,
        "tools": options.get("tools"),
        "documents": options.get("documents"),
        "add_generation_prompt": options.get("add_generation_prompt", False),
        "bos_token": "<s>",
        "eos_token": "</s>",
        **options.get("extra", {}),
    }
    result = {"template": template, "name": name, "messages": messages, **options}
    source = (FOLDER / f"{template}.jinja").read_text()
    try:
        sandbox = SandboxedEnvironment if template == "lists" else ImmutableSandboxedEnvironment
        result["prompt"] = environment(sandbox).from_string(source).render(**variables)
    except jinja2.exceptions.UndefinedError:
        result["fails"] = True
    except jinja2.exceptions.TemplateError as error:
        result["raised"] = error.message
    except TypeError:
        result["fails"] = True
    return result


def main():
    cases = []
    for path in sorted(FOLDER.glob("*.jinja")):
        conversations = {**CONVERSATIONS, **MORE.get(path.stem, {})}
        for name, (messages, options) in conversations.items():
            cases.append(case(path.stem, name, messages, options))
    text = json.dumps({"jinja2": jinja2.__version__, "now": NOW, "cases": cases}, ensure_ascii=False, indent=1)
    (FOLDER / "cases.json").write_text(text + "\n")
    prompts = sum("prompt" in case for case in cases)
    print(f"{len(cases)} cases, {prompts} with a prompt")


if __name__ == "__main__":
    main()
