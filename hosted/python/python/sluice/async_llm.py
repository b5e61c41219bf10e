"""Prompts as they arrive, for asyncio: vLLM's `AsyncLLM`."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from typing import Any

from sluice._batch import Text, add, output_with, prompt_of
from sluice._client import aevents
from sluice.llm import LLM
from sluice.lora_request import LoRARequest
from sluice.outputs import RequestOutput
from sluice.sampling_params import SamplingParams


class AsyncLLM:
    """A model in memory that processes prompts as they arrive; concurrent ones are computed together."""

    def __init__(self, model: Any, **arguments: Any) -> None:
        """Loads a model; the arguments are `LLM`'s."""
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
        name = request_id if request_id is not None else work.request_id
        output = output_with(work, texts, name)
        async for event in await aevents(
            llm._client.complete({**work.body, "stream": True}, work.processors)
        ):
            changed = add(output, texts, event)
            if changed and (output.finished or not only_final):
                # Each output belongs to the caller: later ones do not change it.
                yield copy.deepcopy(output)

    def get_tokenizer(self) -> Any:
        """See `LLM.get_tokenizer`."""
        return self._llm.get_tokenizer()

    def shutdown(self) -> None:
        """Stops all work and frees the memory."""
        self._llm.close()
