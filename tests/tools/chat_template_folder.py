#!/usr/bin/env python3
"""Writes FOLDER/expected.json: what Python's jinja2 makes of a folder of published templates.

    python3 tests/tools/chat_template_folder.py FOLDER [conversations by chance, per template]
    SLUICE_TEMPLATES=FOLDER cargo test --release -p sluice-tests --test chat_templates folder

A template is a file *.jinja. Each is rendered with the same conversations, and with others that are
drawn by chance: every order of roles, every kind of content, tools, and values for the variables
that this template asks for. A rendering that fails has null for its prompt.
"""

import json
import random
import sys
from pathlib import Path

import jinja2
from chat_template_goldens import CALL, CLOCK, CONVERSATIONS, NOW, PARTS, THOUGHT, TOOLS, WEATHER, environment, message
from jinja2 import meta

WIDE = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Books <a> & 'b'.\n\nTwo lines.",
        "strict": True,
        "parameters": {
            "type": "object",
            "$defs": {"D": {"type": "string"}},
            "properties": {
                "when": {"type": ["string", "null"], "description": "ISO\ndate", "default": None},
                "who": {"type": "array", "items": {"type": "string", "enum": ["ä", "b\"c"]}, "minItems": 1},
                "deep": {"type": "object", "properties": {"x": {"type": "number", "default": 1e-5}}, "required": ["x"],
                         "additionalProperties": False},
                "either": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/D"}], "nullable": True},
                "kind": {"enum": [1, "two", None, True]},
                "untyped": {},
            },
            "required": ["when"],
        },
    },
}
BARE = {"name": "bare", "description": "No wrapper", "parameters": {"type": "object", "properties": {}}}
ARGUMENTS = [{}, {"x": 1}, {"city": "Zürich", "ok": True, "none": None}, {"list": [1, 2.5, "a\"b"], "map": {"k": {"z": []}}},
             '{"city": "Bern"}', "", None, {"text": "two\nlines <b>&'\"\\", "big": 2**53 + 1, "small": 1e-7, "whole": 3.0}]
TEXTS = ["Hello", "", " spaced \n", "Üñí 🦀 \u2028", "<think>why</think>\n\nso", "<think>\nopen", "closed</think> rest", "a</think>b</think>c",
         "{{ x }} {% y %} {# z #}", "<|im_end|></s>[INST]", "line\n\n\nline\n", "{\"a\": 1}", "/no_think now", "/think", "it's \"so\" & <so>",
         "<tool_response>\nx\n</tool_response>", "7", "<tool_call>\n{}\n</tool_call>"]
VALUES = [True, False, None, "", "high", "low", "medium", "none", "text", 0, 1, 3, 2.5, [], ["a", "b"], {}, {"a": 1}, "26 Jul 2024"]
GIVEN = {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now",
         "range", "dict", "lipsum", "cycler", "joiner", "namespace"}


def content(chance):
    kind = chance.random()
    if kind < 0.82:
        return chance.choice(TEXTS)
    if kind < 0.85:
        return None
    if kind < 0.985:
        parts = [{"type": "text", "text": chance.choice(TEXTS)}, {"type": "image"}, {"type": "text", "text": "and"},
                 {"type": "image_url", "image_url": {"url": "data:,x"}}, {"type": "audio"}, {"type": "video"}, "plain", {"text": "untyped"}]
        return chance.choices(parts, [6, 2, 4, 1, 1, 1, 1, 1], k=chance.randint(0, 3))
    return chance.choice([{"type": "text", "text": "one"}, 5, {"a": [1, None]}, True])


def call(chance):
    made = {"name": chance.choice(["weather", "book", "x.y"]), "arguments": chance.choice(ARGUMENTS)}
    if chance.random() < 0.1:
        return {**made, "id": "abcdefghi"}
    if chance.random() < 0.05:
        del made["arguments"]
    whole = {"type": "function", "function": made}
    return {"id": chance.choice(["abcdefghi", "call_1", "123456789"]), **whole} if chance.random() < 0.8 else whole


def turn(chance, role):
    made = {"role": role, "content": content(chance)}
    if chance.random() < 0.03:
        del made["content"]
    if role == "assistant":
        if chance.random() < 0.35:
            made["tool_calls"] = [call(chance) for _ in range(chance.choice([0, 1, 1, 1, 2]))]
            made["content"] = made.get("content") if chance.random() < 0.4 else chance.choice(["", None])
        for key in ("reasoning_content", "reasoning", "thinking", "thoughts", "tool_plan"):
            if chance.random() < 0.12:
                made[key] = chance.choice(TEXTS + [None])
    if role in ("tool", "ipython", "function") or chance.random() < 0.03:
        made.update(chance.choice([{}, {"tool_call_id": "abcdefghi"}, {"tool_call_id": "call_1", "name": "weather"}, {"name": "book"}]))
    for key, value in (("name", "Bo"), ("train", False), ("prefix", True), ("step", 1), ("citations", [])):
        if chance.random() < 0.02:
            made[key] = value
    return made


def by_chance(chance, names):
    roles = ["system"] if chance.random() < 0.5 else ["developer"] if chance.random() < 0.1 else []
    for _ in range(chance.randint(0, 4)):
        roles += chance.choices([["user", "assistant"], ["user", "assistant", "tool"], ["user", "assistant", "tool", "assistant"],
                                 ["user", "assistant", "tool", "tool"], ["user"]], [6, 2, 2, 1, 1])[0]
    roles += ["user"] if chance.random() < 0.6 else []
    if chance.random() < 0.15:
        roles.insert(chance.randint(0, len(roles)), chance.choice(["system", "assistant", "tool", "ipython", "developer", "function", "odd"]))
    messages = [turn(chance, role) for role in roles]
    options = {"add_generation_prompt": chance.random() < 0.5}
    if chance.random() < 0.5:
        options["tools"] = chance.choice([[], [WEATHER], [WEATHER, CLOCK], [WIDE, WEATHER], [WIDE], [BARE]])
    if chance.random() < 0.2:
        options["documents"] = chance.choice([[], [{"title": "T", "text": "One."}], [{"doc_id": 1, "title": "Ä", "text": "a\nb", "n": 2}, {"text": ""}]])
    options["extra"] = {name: chance.choice(VALUES) for name in names if chance.random() < 0.25}
    return messages, options


def fixed():
    made = {**CONVERSATIONS, **TOOLS, "thought": (THOUGHT, {}), "parts": (PARTS, {"add_generation_prompt": True})}
    made["no content"] = ([{"role": "user"}], {})
    made["two users"] = ([message("user", "a"), message("user", "b")], {})
    made["system only"] = ([message("system", "S")], {"add_generation_prompt": True})
    made["late system"] = ([message("user", "a"), message("system", "S"), message("user", "b")], {"add_generation_prompt": True})
    made["answered tool"] = (
        [message("user", "q"), {"role": "assistant", "content": None, "tool_calls": [CALL]},
         message("tool", "r", tool_call_id="abcdefghi", name="weather"), message("assistant", "done"), message("user", "more")],
        {"tools": [WIDE, WEATHER, CLOCK], "add_generation_prompt": True},
    )
    made["documents"] = ([message("user", "q")], {"documents": [{"title": "T", "text": "One."}, {"doc_id": "b", "text": ""}]})
    return made


def rendered(template, messages, options):
    variables = {
        "messages": messages,
        "tools": options.get("tools"),
        "documents": options.get("documents"),
        "add_generation_prompt": options.get("add_generation_prompt", False),
        "bos_token": "<s>",
        "eos_token": "</s>",
        **options.get("extra", {}),
    }
    try:
        return template.render(**variables), None
    except jinja2.exceptions.UndefinedError as error:
        return None, None
    except jinja2.exceptions.TemplateError as error:
        return None, error.message
    except Exception:
        return None, None


def main():
    folder, count = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 150
    templates = []
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_bytes().decode()
        env = environment()
        cases = []
        try:
            template = env.from_string(source)
            names = sorted(meta.find_undeclared_variables(env.parse(source)) - GIVEN)
        except jinja2.exceptions.TemplateSyntaxError:
            template = None
        if template:
            chance = random.Random(path.stem)
            talks = {**fixed(), **{f"by chance {i}": by_chance(chance, names) for i in range(count)}}
            for name, (messages, options) in talks.items():
                prompt, raised = rendered(template, messages, options)
                case = {"name": name, "messages": messages, **options, "prompt": prompt}
                cases.append({**case, "raised": raised} if raised is not None else case)
        templates.append({"file": path.name, "syntax": template is not None, "cases": cases})
    text = json.dumps({"jinja2": jinja2.__version__, "now": NOW, "templates": templates}, ensure_ascii=False, indent=0)
    (folder / "expected.json").write_text(text + "\n")
    every = [case for template in templates for case in template["cases"]]
    prompts = sum(case["prompt"] is not None for case in every)
    print(f"{len(templates)} templates, {len(every)} renderings, {prompts} with a prompt")


if __name__ == "__main__":
    main()
