"""Prompts as they arrive, for asyncio: vLLM's `AsyncLLM`."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from typing import Any

from sluice._batch import Text, prompt_logprobs, prompt_of
from sluice.llm import LLM
from sluice.lora_request import LoRARequest
from sluice.outputs import RequestOutput
from sluice.sampling_params import SamplingParams


class AsyncLLM:
    """A model in memory that processes prompts as they arrive; concurrent ones are computed together."""

    def __init__(self, model: Any, **arguments: Any) -> None:
        """Loads a model; the arguments are those of `LLM`."""
        self._llm = LLM(model, **arguments)

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Generates the texts of a prompt. Each output has all tokens so far; the last one is `finished`.

        Args:
            prompt: A string, a list of tokens, `{"prompt": text}` or `{"prompt_token_ids": tokens}`.
            sampling_params, lora_request, priority: As in `LLM.generate`.
            request_id: The id of the outputs.

        Raises:
            ValueError: The prompt does not fit, or an argument is invalid.
        """
        llm, params = self._llm, sampling_params or SamplingParams()
        if lora_request is not None:
            # It is loaded from disk.
            await asyncio.to_thread(llm._load, lora_request)
        only_final = getattr(params.output_kind, "name", "") == "FINAL_ONLY"
        work = llm._work(prompt_of(prompt, llm._model), params, lora_request, priority)
        texts = [Text(index, work) for index in range(params.n)]
        output = RequestOutput(
            request_id if request_id is not None else work.request_id,
            work.prompt.text,
            work.prompt.tokens,
            outputs=[text.output for text in texts],
            lora_request=lora_request,
        )
        async for chunk in await llm._client.astream("/completion", work.body, work.processors):
            texts[chunk["index"]].take(chunk)
            if "prompt_probabilities" in chunk and output.prompt_logprobs is None:
                output.prompt_logprobs = prompt_logprobs(chunk["prompt_probabilities"])
            if chunk["stop"]:
                output.metrics, output.num_cached_tokens = chunk["timings"], chunk["tokens_cached"]
                output.finished = all(text.output.finished() for text in texts)
            if output.finished or not only_final:
                # Each output belongs to the caller: later ones do not change it.
                yield copy.deepcopy(output)

    def get_tokenizer(self) -> Any:
        """See `LLM.get_tokenizer`."""
        return self._llm.get_tokenizer()

    def shutdown(self) -> None:
        """Stops all work and frees the memory."""
        self._llm.close()
