"""Chat formats with llama-cpp-python's names: the prompts that their models were published with, as Jinja text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

Around = tuple[str, str]
"""The text before and after another text."""


@dataclass(frozen=True)
class Format:
    """The texts around the messages of a conversation."""

    user: Around
    assistant: Around
    start: str
    """The beginning of the answer."""
    system: Around = ("", "")
    default: str = ""
    """The default system message."""
    first: Around = ("", "")
    """The texts around the system message if it is part of the first user message, instead of `system`."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer, in addition to the vocabulary's tokens."""

    def template(self) -> str:
        """The format as a template."""
        inner, outer = any(self.first), self.system
        before, after = self.first if inner else outer
        system = f"{_text(before)} + message.content + {_text(after)}"
        text = "{% set ns = namespace(first='', told=false) %}"
        if self.default:
            default = _text(before + self.default + after)
            text += "{% for message in messages %}{% if message.role == 'system' %}{% set ns.told = true %}{% endif %}"
            text += "{% endfor %}{% if not ns.told %}{{ " + default + " }}{% endif %}"
        text += "{% for message in messages %}{% if message.role == 'system' %}"
        text += "{% set ns.first = ns.first + " + system + " %}" if inner else "{{ " + system + " }}"
        for role, (before, after) in (("user", self.user), ("assistant", self.assistant)):
            text += "{% elif message.role == '" + role + "' %}{{ " + _text(before) + " + "
            text += "ns.first + " if inner and role == "user" else ""
            text += "message.content + " + _text(after) + " }}"
            text += "{% set ns.first = '' %}" if inner and role == "user" else ""
        text += "{% else %}{{ raise_exception('this chat format has no ' + message.role) }}{% endif %}{% endfor %}"
        if inner:
            left = "a system message must be followed by a user message"
            text += "{% if ns.first %}{{ raise_exception('" + left + "') }}{% endif %}"
        return text + "{% if add_generation_prompt %}{{ " + _text(self.start) + " }}{% endif %}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


FORMATS: Mapping[str, Format] = {
    "alpaca": Format(
        user=("### Instruction:\n", "\n\n"),
        assistant=("### Response:\n", "</s>"),
        start="### Response:",
        system=("", "\n\n"),
        default="Below is an instruction that describes a task. Write a response that appropriately completes the "
        "request.",
        stop=("### Instruction:",),
    ),
    "baichuan": Format(("<reserved_102>", ""), ("<reserved_103>", ""), "<reserved_103>"),
    "baichuan-2": Format(("<reserved_106>", ""), ("<reserved_107>", ""), "<reserved_107>"),
    "chatglm3": Format(
        user=("<|user|>\n ", ""),
        assistant=("<|assistant|>\n ", ""),
        start="<|assistant|>",
        system=("<|system|>\n ", ""),
        stop=("<|user|>", "<|observation|>"),
    ),
    "intel": Format(
        user=("### User:\n", "\n"),
        assistant=("### Assistant:\n", "\n"),
        start="### Assistant:\n",
        system=("### System:\n", "\n"),
        stop=("### User:",),
    ),
    "llama-2": Format(
        user=("<s>[INST] ", " [/INST]"),
        assistant=(" ", " </s>"),
        start="",
        first=("<<SYS>>\n", "\n<</SYS>>\n\n"),
        stop=("</s>",),
    ),
    "mistral-instruct": Format(
        user=("[INST] ", " [/INST]"), assistant=("", "</s>"), start="", first=("", "\n\n"), stop=("</s>",)
    ),
    "mistrallite": Format(
        user=("<|prompter|>", "</s>"),
        assistant=("<|assistant|>", "</s>"),
        start="<|assistant|>",
        system=("<|system|>", "</s>"),
        stop=("</s>",),
    ),
    "oasst_llama": Format(
        user=("<|prompter|>", "</s>"),
        assistant=("<|assistant|>", "</s>"),
        start="<|assistant|>",
        system=("[INST] <<SYS>>\n", "\n<</SYS>>\n\n"),
        stop=("</s>",),
    ),
    "openchat": Format(
        user=("GPT4 Correct User: ", "<|end_of_turn|>"),
        assistant=("GPT4 Correct Assistant: ", "<|end_of_turn|>"),
        start="GPT4 Correct Assistant:",
        system=("", "<|end_of_turn|>"),
        stop=("<|end_of_turn|>",),
    ),
    "phind": Format(
        user=("### User Message\n", "\n\n"),
        assistant=("### Assistant\n", "\n\n"),
        start="### Assistant\n",
        system=("### System Prompt\n", "\n\n"),
        default="You are an intelligent programming assistant.",
        stop=("### User Message",),
    ),
    "pygmalion": Format(
        user=("<|user|>", ""),
        assistant=("<|model|>", ""),
        start="<|model|>",
        system=("<|system|>", ""),
        stop=("<|user|>",),
    ),
    "qwen": Format(
        user=("<|im_start|>user\n", "<|im_end|>\n"),
        assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
        start="<|im_start|>assistant\n",
        system=("<|im_start|>system\n", "<|im_end|>\n"),
        default="You are a helpful assistant.",
        stop=("<|im_end|>", "<|endoftext|>"),
    ),
    "redpajama-incite": Format(
        user=("<human>: ", "\n"),
        assistant=("<bot>: ", "\n"),
        start="<bot>:",
        system=("", "\n"),
        stop=("<human>",),
    ),
    "saiga": Format(
        user=("<s>user\n", "</s>"),
        assistant=("<s>bot\n", "</s>"),
        start="<s>bot",
        system=("<s>system\n", "</s>"),
        stop=("</s>",),
    ),
    "snoozy": Format(
        user=("### Prompt: ", "\n"),
        assistant=("### Response: ", "\n"),
        start="### Response:",
        system=("### Instruction:\n", "\n"),
        default="The prompt below is a question to answer, a task to complete, or a conversation to respond to; "
        "decide which and write an appropriate response.",
        stop=("###",),
    ),
    "vicuna": Format(
        user=("USER: ", " "),
        assistant=("ASSISTANT: ", "</s>"),
        start="ASSISTANT:",
        system=("", " "),
        default="A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
        "detailed, and polite answers to the user's questions.",
        stop=("</s>",),
    ),
}
"""Formats without a built-in template."""

SAME = {"llama-3": "llama3", "chatml-function-calling": "chatml"}
"""llama-cpp-python's names of formats that are built in under another name."""

OWN = ("functionary", "functionary-v1", "functionary-v2", "open-orca", "openbuddy")
"""Formats of llama-cpp-python that are not supported."""


def template_of(chat_format: str) -> str:
    """The value for `--chat-template`: a built-in name, or Jinja text.

    Raises:
        ValueError: llama-cpp-python has a format of this name, but it is not supported.
    """
    if chat_format in OWN:
        raise ValueError(
            f"chat_format {chat_format!r}: not supported; use the model's own template or Jinja text"
        )
    known = FORMATS.get(chat_format)
    return known.template() if known else SAME.get(chat_format, chat_format)


def stops_of(chat_format: str | None) -> tuple[str, ...]:
    """Texts that end an answer, in addition to the vocabulary's tokens."""
    known = FORMATS.get(chat_format or "")
    return known.stop if known else ()
