"""Language models on CPUs, with bit-identical results on every machine.

Names are imported when they are first used, so that the program starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sluice._native import __version__

if TYPE_CHECKING:
    from sluice._bench import BenchError, bench
    from sluice._client import RequestError, ServiceError
    from sluice._native import Tokenizer
    from sluice._options import LLMOptions, Options
    from sluice._stepwise import LlamaState
    from sluice.async_llm import AsyncLLM
    from sluice.cache import LlamaCache, LlamaRAMCache
    from sluice.callbacks import LogitsProcessorList, MinTokensLogitsProcessor, StoppingCriteriaList
    from sluice.grammar import LlamaGrammar
    from sluice.llama import Llama
    from sluice.llm import LLM
    from sluice.lora_request import LoRARequest
    from sluice.outputs import CompletionOutput, RequestOutput
    from sluice.sampling_params import SamplingParams, StructuredOutputsParams
    from sluice.speculative import LlamaPromptLookupDecoding

_MODULES = {
    "_bench": ("BenchError", "bench"),
    "_client": ("RequestError", "ServiceError"),
    "_native": ("Tokenizer",),
    "_options": ("LLMOptions", "Options"),
    "_stepwise": ("LlamaState",),
    "async_llm": ("AsyncLLM",),
    "cache": ("LlamaCache", "LlamaRAMCache"),
    "callbacks": ("LogitsProcessorList", "MinTokensLogitsProcessor", "StoppingCriteriaList"),
    "grammar": ("LlamaGrammar",),
    "llama": ("Llama",),
    "llm": ("LLM",),
    "lora_request": ("LoRARequest",),
    "outputs": ("CompletionOutput", "RequestOutput"),
    "sampling_params": ("SamplingParams", "StructuredOutputsParams"),
    "speculative": ("LlamaPromptLookupDecoding",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = ("gate", "peft_runtime", "residue")

__all__ = [
    "LLM",
    "AsyncLLM",
    "BenchError",
    "CompletionOutput",
    "LLMOptions",
    "Llama",
    "LlamaCache",
    "LlamaGrammar",
    "LlamaPromptLookupDecoding",
    "LlamaRAMCache",
    "LlamaState",
    "LoRARequest",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "Options",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "ServiceError",
    "StoppingCriteriaList",
    "StructuredOutputsParams",
    "Tokenizer",
    "__version__",
    "bench",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"sluice.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'sluice' has no attribute {name!r}")
    value = getattr(import_module(f"sluice.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBMODULES})
