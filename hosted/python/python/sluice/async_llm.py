"""Prompts as they arrive, for asyncio: vLLM's `AsyncLLM`."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from sluice._batch import Text, add, output_with, prompt_of
from sluice._client import aevents
from sluice.engine_args import EngineArgs
from sluice.llm import LLM
from sluice.lora_request import LoRARequest
from sluice.outputs import RequestOutput
from sluice.sampling_params import RequestOutputKind, SamplingParams


class AsyncLLM:
    """A model in memory that processes prompts as they arrive; concurrent ones are computed together."""

    def __init__(self, model: Any, **arguments: Any) -> None:
        """Loads a model; the arguments are `LLM`'s."""
        self._llm = LLM(model, **arguments)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> AsyncLLM:
        """Loads a model with the arguments of an object."""
        return cls(**engine_args.arguments)

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Generates the texts of a prompt. The last output is `finished`.

        Each output has all tokens so far, or those since the last one, as `SamplingParams(output_kind=…)` says.

        Args:
            prompt: A string, a list of tokens, `{"prompt": text}` or `{"prompt_token_ids": tokens}`.
            sampling_params, lora_request, priority: As in `LLM.generate`.
            request_id: The id of the outputs.

        Raises:
            ValueError: The prompt does not fit, or an argument is invalid.
        """
        llm, params = self._llm, sampling_params or self._llm.get_default_sampling_params()
        if lora_request is not None:
            # It is loaded from disk.
            await asyncio.to_thread(llm._load, lora_request)
        kind = params.output_kind or RequestOutputKind.CUMULATIVE
        work = llm._work(next(llm._numbers), prompt_of(prompt, llm._model), params, lora_request, priority)
        texts = [Text(index, work) for index in range(params.n)]
        name = request_id if request_id is not None else work.request_id
        output = output_with(work, texts, name)
        async for event in await aevents(
            llm._client.complete({**work.body, "stream": True}, work.processors)
        ):
            if not add(output, texts, event) or (
                kind is RequestOutputKind.FINAL_ONLY and not output.finished
            ):
                continue
            # Each output belongs to the caller: later ones do not change it.
            if kind is RequestOutputKind.DELTA:
                yield replace(output, outputs=[text.delta() for text in texts if text.has_news()])
            else:
                yield copy.deepcopy(output)

    def get_default_sampling_params(self) -> SamplingParams:
        """See `LLM.get_default_sampling_params`."""
        return self._llm.get_default_sampling_params()

    def get_tokenizer(self) -> Any:
        """See `LLM.get_tokenizer`."""
        return self._llm.get_tokenizer()

    def shutdown(self) -> None:
        """Stops all work and frees the memory."""
        self._llm.close()
