"""Chat formats by name, against the prompts that their models were published with."""

import pytest
import sluice
from sluice._formats import FORMATS

TALK = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U1"},
    {"role": "assistant", "content": "A1"},
    {"role": "user", "content": "U2"},
]

PROMPTS = {
    "alpaca": "S\n\n### Instruction:\nU1\n\n### Response:\nA1</s>### Instruction:\nU2\n\n### Response:",
    "baichuan": "S<reserved_102>U1<reserved_103>A1<reserved_102>U2<reserved_103>",
    "baichuan-2": "S<reserved_106>U1<reserved_107>A1<reserved_106>U2<reserved_107>",
    "chatglm3": "<|system|>\n S<|user|>\n U1<|assistant|>\n A1<|user|>\n U2<|assistant|>",
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
    "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n",
    "intel": "### System:\nS\n### User:\nU1\n### Assistant:\nA1\n### User:\nU2\n### Assistant:\n",
    "llama-2": "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU1 [/INST] A1 </s><s>[INST] U2 [/INST]",
    # Its first token is the model's own.
    "llama-3": "<|endoftext|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nU1<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    "A1<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU2<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral-instruct": "[INST] S\n\nU1 [/INST]A1</s>[INST] U2 [/INST]",
    "mistrallite": "<|system|>S</s><|prompter|>U1</s><|assistant|>A1</s><|prompter|>U2</s><|assistant|>",
    "oasst_llama": "[INST] <<SYS>>\nS\n<</SYS>>\n\n<|prompter|>U1</s><|assistant|>A1</s><|prompter|>U2</s>"
    "<|assistant|>",
    "openchat": "S<|end_of_turn|>GPT4 Correct User: U1<|end_of_turn|>GPT4 Correct Assistant: A1<|end_of_turn|>"
    "GPT4 Correct User: U2<|end_of_turn|>GPT4 Correct Assistant:",
    "phind": "### System Prompt\nS\n\n### User Message\nU1\n\n### Assistant\nA1\n\n### User Message\nU2\n\n"
    "### Assistant\n",
    "pygmalion": "<|system|>S<|user|>U1<|model|>A1<|user|>U2<|model|>",
    "qwen": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
    "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n",
    "redpajama-incite": "S\n<human>: U1\n<bot>: A1\n<human>: U2\n<bot>:",
    "saiga": "<s>system\nS</s><s>user\nU1</s><s>bot\nA1</s><s>user\nU2</s><s>bot",
    "snoozy": "### Instruction:\nS\n### Prompt: U1\n### Response: A1\n### Prompt: U2\n### Response:",
    "vicuna": "S USER: U1 ASSISTANT: A1</s>USER: U2 ASSISTANT:",
}

WITHOUT_SYSTEM = {
    "alpaca": "Below is an instruction that describes a task. Write a response that appropriately completes the "
    "request.\n\n### Instruction:\nU1\n\n### Response:",
    "llama-2": "<s>[INST] U1 [/INST]",
    "mistral-instruct": "[INST] U1 [/INST]",
    "openchat": "GPT4 Correct User: U1<|end_of_turn|>GPT4 Correct Assistant:",
    "qwen": "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n"
    "<|im_start|>assistant\n",
    "vicuna": "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
    "detailed, and polite answers to the user's questions. USER: U1 ASSISTANT:",
}


def prompt(llama, messages):
    return llama.client.prompt({"messages": messages}).text


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts(tale, name):
    with sluice.Llama(tale, n_ctx=512, chat_format=name) as llama:
        assert prompt(llama, TALK) == PROMPTS[name]
        if name in WITHOUT_SYSTEM:
            assert prompt(llama, TALK[1:2]) == WITHOUT_SYSTEM[name]
        # It goes on behind an answer that was begun.
        begun = llama.client.prompt({"messages": TALK[:3], "continue_final_message": True}).text
        assert begun.endswith("A1")
        answer = llama.create_chat_completion(TALK[1:2], max_tokens=4, temperature=0)
        assert answer["choices"][0]["message"]["role"] == "assistant"


def test_each_system_message_is_there(tale):
    later = [TALK[1], TALK[0], {"role": "system", "content": "S2"}, TALK[3]]
    with sluice.Llama(tale, n_ctx=512, chat_format="mistral-instruct") as llama:
        assert prompt(llama, later) == "[INST] U1 [/INST][INST] S\n\nS2\n\nU2 [/INST]"
        with pytest.raises(sluice.RequestError, match="must be followed by a user message"):
            prompt(llama, TALK[:1])
    with sluice.Llama(tale, n_ctx=512, chat_format="vicuna") as llama:
        assert prompt(llama, later) == "USER: U1 S S2 USER: U2 ASSISTANT:"


def test_all_formats_have_a_prompt():
    assert set(FORMATS) <= set(PROMPTS)


def test_what_ends_a_turn_ends_an_answer(tale):
    with sluice.Llama(tale, n_ctx=512, chat_format="snoozy") as llama:
        assert llama._stops(None) == ["###"]
        assert llama._stops("\n") == ["\n", "###"]
        assert llama._stops(["###", "a"]) == ["###", "a"]


def test_what_no_format_can_say_is_refused(tale):
    for name in ("functionary-v2", "openbuddy"):
        with pytest.raises(ValueError, match=name):
            sluice.Llama(tale, chat_format=name)
    with pytest.raises(ValueError, match='unknown chat template "nonsense"'):
        sluice.Llama(tale, chat_format="nonsense")
    refused = pytest.raises(sluice.RequestError, match="no tool")
    with sluice.Llama(tale, n_ctx=512, chat_format="vicuna") as llama, refused:
        prompt(llama, [*TALK, {"role": "tool", "content": "12"}])
