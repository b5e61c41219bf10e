"""Language models on CPUs, with answers that are the same bits on every machine."""

from sluice._client import RequestError, ServiceError
from sluice._native import __version__
from sluice._stepwise import LlamaState
from sluice.cache import LlamaCache, LlamaRAMCache
from sluice.callbacks import LogitsProcessorList, MinTokensLogitsProcessor, StoppingCriteriaList
from sluice.grammar import LlamaGrammar
from sluice.llama import Llama
from sluice.speculative import LlamaPromptLookupDecoding

__all__ = [
    "Llama",
    "LlamaCache",
    "LlamaGrammar",
    "LlamaPromptLookupDecoding",
    "LlamaRAMCache",
    "LlamaState",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "RequestError",
    "ServiceError",
    "StoppingCriteriaList",
    "__version__",
]
