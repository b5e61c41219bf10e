"""Language models on CPUs, with bit-identical results on every machine.

Names are imported when they are first used, so that the program starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sluice._native import __version__

if TYPE_CHECKING:
    from sluice._bench import BenchError, bench
    from sluice._client import RequestError, ServiceError
    from sluice._install import install_as
    from sluice._native import Tokenizer
    from sluice._options import LLMOptions, Options
    from sluice._stepwise import LlamaState
    from sluice.async_llm import AsyncLLM
    from sluice.cache import LlamaCache, LlamaRAMCache
    from sluice.callbacks import (
        LogitsProcessor,
        LogitsProcessorList,
        MinTokensLogitsProcessor,
        StoppingCriteria,
        StoppingCriteriaList,
    )
    from sluice.grammar import LlamaGrammar
    from sluice.inputs import TextPrompt, TokensPrompt
    from sluice.llama import Llama
    from sluice.llama_tokenizer import LlamaTokenizer
    from sluice.llm import LLM
    from sluice.lora_request import LoRARequest
    from sluice.outputs import CompletionOutput, EmbeddingRequestOutput, RequestOutput
    from sluice.pooling_params import PoolingParams
    from sluice.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
    from sluice.speculative import LlamaPromptLookupDecoding

_MODULES = {
    "_bench": ("BenchError", "bench"),
    "_client": ("RequestError", "ServiceError"),
    "_install": ("install_as",),
    "_native": ("Tokenizer",),
    "_options": ("LLMOptions", "Options"),
    "_stepwise": ("LlamaState",),
    "async_llm": ("AsyncLLM",),
    "cache": ("LlamaCache", "LlamaRAMCache"),
    "callbacks": (
        "LogitsProcessor",
        "LogitsProcessorList",
        "MinTokensLogitsProcessor",
        "StoppingCriteria",
        "StoppingCriteriaList",
    ),
    "grammar": ("LlamaGrammar",),
    "inputs": ("TextPrompt", "TokensPrompt"),
    "llama": ("Llama",),
    "llama_tokenizer": ("LlamaTokenizer",),
    "llm": ("LLM",),
    "lora_request": ("LoRARequest",),
    "outputs": ("CompletionOutput", "EmbeddingRequestOutput", "RequestOutput"),
    "pooling_params": ("PoolingParams",),
    "sampling_params": ("RequestOutputKind", "SamplingParams", "StructuredOutputsParams"),
    "speculative": ("LlamaPromptLookupDecoding",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = ("gate", "llama_types", "peft_runtime", "residue")

__all__ = [
    "LLM",
    "AsyncLLM",
    "BenchError",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "LLMOptions",
    "Llama",
    "LlamaCache",
    "LlamaGrammar",
    "LlamaPromptLookupDecoding",
    "LlamaRAMCache",
    "LlamaState",
    "LlamaTokenizer",
    "LoRARequest",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "Options",
    "PoolingParams",
    "RequestError",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ServiceError",
    "StoppingCriteria",
    "StoppingCriteriaList",
    "StructuredOutputsParams",
    "TextPrompt",
    "Tokenizer",
    "TokensPrompt",
    "__version__",
    "bench",
    "install_as",
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
