"""This package under the names of the packages whose interfaces it has."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

VERSIONS = {"llama_cpp": "0.3.36", "vllm": "0.11.0"}
"""The versions whose names and arguments are ours."""

Parts = dict[str, tuple[str, ...]]
"""Names of a module, by the modules of this package that have them; no names stand for all of them."""

_LLAMA: Parts = {
    "_stepwise": ("LlamaState",),
    "llama_tokenizer": ("LlamaTokenizer",),
    "cache": ("LlamaCache", "LlamaRAMCache"),
    "callbacks": (
        "LogitsProcessor",
        "LogitsProcessorList",
        "MinTokensLogitsProcessor",
        "StoppingCriteria",
        "StoppingCriteriaList",
    ),
    "grammar": ("LlamaGrammar",),
    "llama": ("Llama",),
    "speculative": ("LlamaPromptLookupDecoding",),
    "llama_types": (),
}
_SAMPLING: Parts = {
    "sampling_params": (
        "GuidedDecodingParams",
        "RequestOutputKind",
        "SamplingParams",
        "StructuredOutputsParams",
    )
}
_OUTPUTS: Parts = {
    "outputs": (
        "CompletionOutput",
        "EmbeddingOutput",
        "EmbeddingRequestOutput",
        "PoolingOutput",
        "PoolingRequestOutput",
        "RequestOutput",
        "ScoringOutput",
        "ScoringRequestOutput",
    )
}
_INPUTS: Parts = {"inputs": ("PromptType", "TextPrompt", "TokensPrompt")}
_ARGUMENTS: Parts = {"engine_args": ("AsyncEngineArgs", "EngineArgs")}
_VLLM: Parts = {
    **_ARGUMENTS,
    **_SAMPLING,
    **_OUTPUTS,
    **_INPUTS,
    "async_llm": ("AsyncLLM",),
    "llm": ("LLM",),
    "pooling_params": ("PoolingParams",),
}

MODULES: dict[str, Parts] = {
    "llama_cpp": _LLAMA,
    "llama_cpp.llama": _LLAMA,
    "llama_cpp.llama_cache": {"cache": ("LlamaCache", "LlamaRAMCache")},
    "llama_cpp.llama_grammar": {"grammar": ("LlamaGrammar",)},
    "llama_cpp.llama_speculative": {"speculative": ("LlamaPromptLookupDecoding",)},
    "llama_cpp.llama_tokenizer": {"llama_tokenizer": ("LlamaTokenizer",)},
    "llama_cpp.llama_types": {"llama_types": ()},
    "vllm": _VLLM,
    "vllm.distributed": {"engine_args": ("cleanup_dist_env_and_memory",)},
    "vllm.engine": {},
    "vllm.engine.arg_utils": _ARGUMENTS,
    "vllm.entrypoints": {"llm": ("LLM",)},
    "vllm.entrypoints.llm": {"llm": ("LLM",)},
    "vllm.inputs": _INPUTS,
    "vllm.lora": {"lora_request": ("LoRARequest",)},
    "vllm.lora.request": {"lora_request": ("LoRARequest",)},
    "vllm.outputs": _OUTPUTS,
    "vllm.pooling_params": {"pooling_params": ("PoolingParams",)},
    "vllm.sampling_params": _SAMPLING,
    "vllm.utils": {"engine_args": ("FlexibleArgumentParser",)},
    "vllm.utils.argparse_utils": {"engine_args": ("FlexibleArgumentParser",)},
    "vllm.utils.print_utils": {"engine_args": ("print_embeddings",)},
    "vllm.v1": {},
    "vllm.v1.engine": {},
    "vllm.v1.engine.async_llm": {"async_llm": ("AsyncLLM",)},
}
"""What stands in for which module."""


def install_as(name: str) -> None:
    """Provides this package under the name of another one, `llama_cpp` or `vllm`, for later imports.

    Programs and packages that import names of that one run on this engine. It takes precedence over an installed
    package; what has been imported of that before stays as it is. Names that this package does not have raise
    ImportError.

    Raises:
        ValueError: This package has no interface of that name.
    """
    if name not in VERSIONS:
        raise ValueError(f"install_as: {name!r} is not one of {', '.join(VERSIONS)}")
    for module in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
        del sys.modules[module]
    for path, parts in MODULES.items():
        if path.partition(".")[0] == name:
            _provide(path, parts)


def _provide(path: str, parts: Parts) -> None:
    module = ModuleType(path, f"`sluice` under the name of `{path}`.")
    module.__spec__ = ModuleSpec(path, None, origin=__file__, is_package=True)
    module.__path__ = []
    package, _, own = path.rpartition(".")
    for home, names in parts.items():
        found = import_module(f"sluice.{home}")
        public = [known for known, value in vars(found).items() if known[0].isupper() and value is not Any]
        for attribute in names or public:
            setattr(module, attribute, getattr(found, attribute))
    if package:
        setattr(sys.modules[package], own, module)
    else:
        module.__dict__["__version__"] = VERSIONS[path]

        def missing(attribute: str) -> Any:
            raise AttributeError(f"{path}.{attribute}: not supported by sluice, which stands in for {path}")

        module.__dict__["__getattr__"] = missing
    module.__dict__["__all__"] = sorted(key for key in vars(module) if not key.startswith("_"))
    sys.modules[path] = module
