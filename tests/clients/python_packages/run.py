#!/usr/bin/env python3
"""Packages that are made for llama-cpp-python and vLLM, unmodified, on this engine.

    tests/clients/python_packages/run.py [NAME …]

Runs in an environment with the wheel and the packages in requirements.txt; they are large, so CI runs the calls that
they make (hosted/python/tests/test_install.py) instead. A package that is not installed is skipped by name.
"""
import json, sys, traceback
from pathlib import Path

import numpy as np
import sluice

MODEL = str(Path(__file__).resolve().parents[3] / "hosted/models/tale-5.8m-Q4_K_M.gguf")
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}
MESSAGES = [{"role": "user", "content": "Who is it?"}]


def langchain():
    from langchain_community.chat_models import ChatLlamaCpp
    from langchain_community.embeddings import LlamaCppEmbeddings
    from langchain_community.llms import LlamaCpp

    llm = LlamaCpp(model_path=MODEL, max_tokens=6, temperature=0)
    text = llm.invoke("Once upon a time")
    assert text == sluice.Llama(MODEL)("Once upon a time", max_tokens=6, temperature=0, repeat_penalty=1.1)["choices"][0]["text"]
    assert "".join(llm.stream("Once upon a time")) == text and llm.get_num_tokens("a cat") > 1
    chat = ChatLlamaCpp(model_path=MODEL, max_tokens=6, temperature=0)
    assert chat.invoke("Tell a tale").content and list(chat.stream("Tell a tale"))
    vectors = LlamaCppEmbeddings(model_path=MODEL).embed_documents(["a cat", "a dog"])
    assert [len(vector) for vector in vectors] == [256, 256]


def llama_index():
    from llama_index.llms.llama_cpp import LlamaCPP

    llm = LlamaCPP(model_path=MODEL, max_new_tokens=6, temperature=0.0)
    assert llm.metadata.context_window == 3900
    text = llm.complete("Once upon a time", formatted=True).text
    assert text and "".join(one.delta for one in llm.stream_complete("Once upon a time", formatted=True)) == text


def lm_format_enforcer():
    from lmformatenforcer import JsonSchemaParser
    from lmformatenforcer.integrations.llamacpp import build_llamacpp_logits_processor

    llm = sluice.Llama(MODEL)
    processor = build_llamacpp_logits_processor(llm, JsonSchemaParser(SCHEMA))
    reply = llm("It is ", logits_processor=sluice.LogitsProcessorList([processor]), max_tokens=80, temperature=0)
    assert "name" in json.loads(reply["choices"][0]["text"])


def instructor():
    import instructor
    from pydantic import BaseModel, Field

    class Animal(BaseModel):
        name: str = Field(max_length=8)

    llm = sluice.Llama(MODEL, n_ctx=2048)
    create = instructor.patch(create=llm.create_chat_completion_openai_v1, mode=instructor.Mode.JSON_SCHEMA)
    assert isinstance(create(messages=MESSAGES, response_model=Animal, max_tokens=200), Animal)


def outlines():
    import outlines
    from typing import Literal

    model = outlines.from_vllm_offline(sluice.LLM(MODEL, max_model_len=512))
    params = sluice.SamplingParams(max_tokens=40, temperature=0)
    assert model("Is it warm?", Literal["yes", "no"], sampling_params=params) in ("yes", "no")
    assert model("A number:", outlines.regex(r"\d{3}-[a-f]+!"), sampling_params=params)[3] == "-"
    assert len(model.batch(["a", "b"], sampling_params=params)) == 2


def pandas():
    import pandas as pd

    frame = pd.DataFrame({"text": ["Once upon a time", "The dog"], "bad": ["a", None]})
    with sluice.LLM(MODEL, max_model_len=128) as llm:
        params = sluice.SamplingParams(max_tokens=4, temperature=0)
        frame["answer"] = [output.outputs[0].text for output in llm.generate(frame["text"], params, use_tqdm=False)]
        assert frame["answer"].str.len().min() > 0
        errors = [output.error for output in llm.generate(frame["bad"], params, use_tqdm=False, on_error="return")]
        assert errors[0] is None and "prompts[1]" in str(errors[1])
    assert len(sluice.Llama(MODEL).embed(frame["text"])) == 2


class Answering:
    """As in vLLM's examples for Ray."""

    def __init__(self):
        sluice.install_as("vllm")
        from vllm import LLM, SamplingParams

        self.llm, self.params = LLM(model=MODEL, max_model_len=128), SamplingParams(max_tokens=4, temperature=0)

    def __call__(self, batch):
        outputs = self.llm.generate(batch["text"], self.params)
        return {"text": batch["text"], "answer": np.array([output.outputs[0].text for output in outputs])}


def ray():
    import ray.data

    rows = ray.data.from_items([{"text": text} for text in ["Once upon a time", "The dog"] * 3])
    found = rows.map_batches(Answering, concurrency=1, batch_size=2).take_all()
    assert len(found) == 6 and all(row["answer"] for row in found)


ALL = [langchain, llama_index, lm_format_enforcer, instructor, outlines, pandas, ray]


def main():
    sluice.install_as("llama_cpp")
    sluice.install_as("vllm")
    failed = 0
    for run in [run for run in ALL if not sys.argv[1:] or run.__name__ in sys.argv[1:]]:
        try:
            run()
            print(f"ok       {run.__name__}")
        except ModuleNotFoundError as error:
            print(f"SKIPPED: {run.__name__}: {error}")
        except Exception:
            traceback.print_exc()
            print(f"FAILED   {run.__name__}")
            failed += 1
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
