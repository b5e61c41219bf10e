#!/usr/bin/env python3
"""Writes FOLDER/conversations.json: what Python's jinja2 makes of conversations with calls.

    python3 tests/tools/conversation_goldens.py FOLDER
    SLUICE_TEMPLATES=FOLDER cargo test --release -p sluice-tests --test conversations -- --nocapture

FOLDER has templates, *.jinja; `published_templates.py` finds some. For each of them and each conversation:
- `prompt`: the conversation as a client sends it, or null if the template fails;
- `objects`: the same with the arguments of calls as objects, which is how transformers' users write them;
- `possible`: whether the template renders it in any form, of the contents of messages with calls, of arguments, of
  contents in parts, and of system messages.

Lists that a template makes may grow, as in llama.cpp; transformers' immutable sandbox refuses that.
"""

import copy
import itertools
import json
import multiprocessing
import sys
from pathlib import Path

from chat_template_goldens import NOW, environment, message
from jinja2.sandbox import SandboxedEnvironment

TOOL = {
    "type": "function",
    "function": {
        "name": "read_tide",
        "description": "Reads a gauge",
        "parameters": {
            "type": "object",
            "properties": {"harbour": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["harbour"],
        },
    },
}
ASKED = message("user", "How high is the water?")
ANSWERED = message("assistant", "It rises.")


def called(*harbours, first=0, **content):
    calls = [
        {
            "id": f"call_{first + n}abcdef",
            "type": "function",
            "function": {"name": "read_tide", "arguments": json.dumps({"harbour": harbour, "days": 7 + n}, ensure_ascii=False)},
        }
        for n, harbour in enumerate(harbours)
    ]
    return {"role": "assistant", **content, "tool_calls": calls}


def result(text, n=0):
    return message("tool", text, tool_call_id=f"call_{n}abcdef")


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


TALKS = {
    "null": [ASKED, called("Rømø", content=None), result("low tide")],
    "empty": [ASKED, called("Rømø", content=""), result("low tide")],
    "absent": [ASKED, called("Rømø"), result("low tide")],
    "said": [ASKED, called("Rømø", content="Let me look."), result("low tide")],
    "two calls": [ASKED, called("Rømø", "Ribe", content=None), result("low tide"), result("spring flood", 1)],
    "result in parts": [ASKED, called("Rømø", content=None), message("tool", parts("The ebb", " is strong."), tool_call_id="call_0abcdef")],
    "question in parts": [message("user", parts("def f():", " return 1")), ANSWERED, ASKED],
    "answer in parts": [ASKED, message("assistant", parts("It", " rises.")), ASKED],
    "system in parts": [message("system", parts("Be", " brief.")), ASKED],
    "second round": [
        ASKED, called("Rømø", content=None), result("low tide"), ANSWERED,
        message("user", "And now?"), called("Ribe", content=None, first=3), result("spring flood", 3),
    ],
    "answered": [ASKED, called("Rømø", content=None), result("low tide"), ANSWERED, message("user", "And now?")],
    "developer": [message("developer", "Be brief."), ASKED],
    "developer and call": [message("developer", "Be brief."), ASKED, called("Rømø", content=None), result("low tide")],
    "system": [message("system", "Be brief."), ASKED],
    "system and call": [message("system", "Be brief."), ASKED, called("Rømø", content=None), result("low tide")],
    "plain": [ASKED, ANSWERED, ASKED],
    "nulls": [ASKED, {**ANSWERED, "tool_calls": None, "refusal": None}, ASKED],
}


def with_objects(messages):
    messages = copy.deepcopy(messages)
    for each in messages:
        for call in each.get("tool_calls") or []:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages


def with_content(messages, form):
    """Messages with calls get their content in another form; a text stays."""
    messages = copy.deepcopy(messages)
    for each in messages:
        if each.get("tool_calls") and not each.get("content"):
            each.pop("content", None)
            each.update({"null": {"content": None}, "empty": {"content": ""}, "absent": {}}[form])
    return messages


def joined(messages):
    text = lambda content: "".join(part["text"] for part in content) if isinstance(content, list) else content
    return [{**each, "content": text(each["content"])} if "content" in each else each for each in messages]


def merged(messages):
    """The system text in the first user message."""
    first, *rest = joined(messages)
    if first["role"] not in ("system", "developer"):
        return messages
    return [{**rest[0], "content": first["content"] + "\n\n" + rest[0]["content"]}, *rest[1:]]


def renamed(messages):
    return [{**each, "role": "system"} if each["role"] == "developer" else each for each in messages]


def forms(messages):
    same = lambda messages: messages
    contents = [lambda m, form=form: with_content(m, form) for form in ("null", "empty", "absent")]
    for change in itertools.product([same, with_objects], contents, [same, joined], [same, renamed, merged]):
        made = messages
        for each in change:
            made = each(made)
        yield made


def rendered(template, messages, tools):
    variables = {"tools": tools, "documents": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
    try:
        return template.render(messages=messages, **variables)
    except Exception:
        return None


def cases_of(path, talks):
    template = environment(SandboxedEnvironment).from_string(path.read_bytes().decode())
    cases = []
    for talk in talks:
        messages, tools = talk["messages"], talk.get("tools")
        prompt = rendered(template, messages, tools)
        objects = rendered(template, with_objects(messages), tools)
        any_form = lambda: any(rendered(template, made, tools) is not None for made in forms(messages))
        cases.append({"prompt": prompt, "objects": objects, "possible": prompt is not None or any_form()})
    return {"file": path.name, "cases": cases}


def main():
    folder = Path(sys.argv[1])
    talks = [
        {"name": name + (" with tools" if tools else ""), "messages": messages, **({"tools": tools} if tools else {})}
        for name, messages in TALKS.items()
        for tools in (None, [TOOL])
    ]
    with multiprocessing.Pool() as pool:
        templates = pool.starmap(cases_of, [(path, talks) for path in sorted(folder.glob("*.jinja"))])
    text = json.dumps({"now": NOW, "talks": talks, "templates": templates}, ensure_ascii=False, indent=0)
    (folder / "conversations.json").write_text(text + "\n")
    every = [case for template in templates for case in template["cases"]]
    print(f"{len(templates)} templates, {len(every)} conversations, {sum(case['possible'] for case in every)} possible")


if __name__ == "__main__":
    main()
