#!/usr/bin/env python3
"""Writes FOLDER/labels.json: which text of conversations transformers finds marked as the assistant's.

    python3 tests/tools/label_goldens.py FOLDER            # transformers 5.24.0
    SLUICE_TEMPLATES=FOLDER cargo test -p sluice-train --test labels -- --nocapture

FOLDER has templates, *.jinja: published ones, and trl's (`trl/chat_templates`), as NAME.jinja without marks and
NAME_training.jinja with `{% generation %}`. For each template with marks and each conversation the golden has:
- `text`: the rendering of `apply_chat_template`;
- `spans`: what `return_assistant_tokens_mask=True` maps to tokens, as ranges of characters;
- `plain`: the name of the template without marks that renders the same text, or null;
- `control`: the texts in the rendering that look like control tokens.
A conversation that the template refuses, or of which it loses something, is left out.
"""

import datetime
import json
import re
import sys
from pathlib import Path

import transformers.utils.chat_template_utils as utils

NOW = 1_721_952_000
CONTROL = re.compile(r"<[|｜][^|｜<>\s]+[|｜]>|</?(?:s|bos|eos|think|tool_call|tool_response)>|<(?:start|end)_of_turn>|<turn\|>|<\|turn>|\[/?INST\]|\]~b\]|\[e~\[")


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def conversations():
    tool = {
        "type": "function",
        "function": {
            "name": "read_tide",
            "description": "Reads a gauge",
            "parameters": {"type": "object", "properties": {"harbour": {"type": "string"}}, "required": ["harbour"]},
        },
    }
    call = {"type": "function", "function": {"name": "read_tide", "arguments": {"harbour": "Brest"}}}
    return {
        "one": {"messages": [message("user", "How high is the water?"), message("assistant", "Three metres. Über!")]},
        "system": {
            "messages": [
                message("system", "Be brief."),
                message("user", "How high?"),
                message("assistant", "Three."),
            ]
        },
        "turns": {
            "messages": [
                message("user", "How high?"),
                message("assistant", "Three."),
                message("user", "And 潮 now?"),
                message("assistant", "Four.\n\nIt rises."),
                message("user", "Thanks"),
                message("assistant", "You are welcome"),
            ]
        },
        "reasoning": {
            "messages": [
                message("user", "How high?"),
                message("assistant", "<think>\nI read the gauge.\n</think>\n\nThree."),
                message("user", "And now?"),
                message("assistant", "<think>\nAgain.\n</think>\n\nFour."),
            ]
        },
        "tools": {
            "messages": [
                message("user", "How high is the water in Brest?"),
                message("assistant", "", tool_calls=[call]),
                message("tool", '{"metres": 3}', name="read_tide"),
                message("assistant", "Three metres."),
            ],
            "tools": [tool],
        },
    }


class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, datetime.timezone.utc)


def rendered(source, talk, mask):
    try:
        texts, spans = utils.render_jinja_template(
            conversations=[talk["messages"]],
            tools=talk.get("tools"),
            chat_template=source,
            return_assistant_tokens_mask=mask,
            bos_token="<s>",
            eos_token="</s>",
        )
    except Exception:  # a template refuses, in many ways
        return None
    return texts[0], [list(span) for span in spans[0]] if mask else None


def said(talk):
    """What has to be in a rendering: the ends of contents, since reasoning may be left out, and the calls."""
    for turn in talk["messages"]:
        if turn["content"]:
            yield turn["content"].split("\n")[-1]
        if "tool_calls" in turn:
            yield "read_tide"
            yield "Brest"


def main(folder):
    utils.datetime = Fixed
    talks = conversations()
    goldens = []
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text()
        if not re.search(r"\{%-?\s*generation\s*-?%\}", source):
            continue
        plain = folder / path.name.replace("_training", "")
        plain = plain if plain != path and plain.exists() else None
        cases = []
        for name, talk in talks.items():
            found = rendered(source, talk, True)
            if found is None:
                continue
            text, spans = found
            if not all(part in text for part in said(talk)):
                continue
            same = plain and rendered(plain.read_text(), talk, False)
            cases.append(
                {
                    "talk": name,
                    "text": text,
                    "spans": spans,
                    "plain": plain.name if same and same[0] == text else None,
                    "control": sorted(set(CONTROL.findall(text))),
                }
            )
        goldens.append({"file": path.name, "cases": cases})
    out = {"now": NOW, "talks": talks, "templates": goldens}
    (folder / "labels.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")
    n_cases = sum(len(golden["cases"]) for golden in goldens)
    n_plain = sum(case["plain"] is not None for golden in goldens for case in golden["cases"])
    print(f"{len(goldens)} templates, {n_cases} cases, {n_plain} of them without marks as well")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
