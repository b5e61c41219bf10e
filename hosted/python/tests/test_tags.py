import json
import re

import pytest
import sluice
from sluice.llm import LLM
from sluice.sampling_params import SamplingParams

# Without them the text goes on with a comma, which begins a tag here.
PROMPT = "Once upon a time"
SCHEMA = {"enum": [12, "a cat"]}
TAG = {"structures": [{"begin": ", ", "schema": SCHEMA, "end": ";"}], "triggers": [","]}


def written(llm, tag):
    params = SamplingParams(temperature=0, max_tokens=24, structured_outputs={"structural_tag": tag})
    return llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].text


def test_tags_in_free_text(tale):
    with LLM(tale, max_model_len=256) as llm:
        for given in (TAG, json.dumps(TAG)):
            text = written(llm, given)
            assert re.match(r', (12|"a cat");.', text), text
        content = {"type": "json_schema", "json_schema": SCHEMA}
        form = {
            "type": "triggered_tags",
            "tags": [{"begin": ",", "content": content, "end": ";"}],
            "triggers": [","],
            "stop_after_first": True,
        }
        assert written(llm, {"format": form}) in (",12;", ',"a cat";')
        wrong = {"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": ["b"]}
        with pytest.raises(ValueError, match="does not begin with a trigger"):
            written(llm, wrong)


def test_tags_in_an_answer(llama):
    tag = {"type": "structural_tag", **TAG}
    reply = llama.create_chat_completion(
        [{"role": "user", "content": "Tell me a story."}], response_format=tag, temperature=0, max_tokens=60
    )
    text = reply["choices"][0]["message"]["content"]
    assert re.fullmatch(r'([^,]|, (12|"a cat");)*(,( (1(2|$)|"[^"]*"?)?;?)?)?', text), text
    with pytest.raises(sluice.RequestError, match="triggers"):
        llama.create_chat_completion(
            [{"role": "user", "content": "a"}], response_format={**tag, "triggers": 3}
        )
