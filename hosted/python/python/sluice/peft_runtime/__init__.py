"""Batches of prompts with an adapter (LoRA) each: the contract of `peft_cpu_runtime`.

    from sluice.peft_runtime import InferenceEngine, InferenceRequest, InferenceTraceConfig, RequestBatch

    with InferenceEngine("model.gguf", {"sql": "adapters/sql"}) as engine:
        batch = RequestBatch(
            [InferenceRequest("Once upon a time"), InferenceRequest("SELECT", adapter_name="sql")],
            InferenceTraceConfig(max_new_tokens=32),
        )
        print(engine.generate(batch))  # in the order of the requests

A request gives the same result as alone, whatever else is in the batch, and a request without an adapter gives the
result of the base model. The command line is `sluice-peft`.
"""

from sluice.peft_runtime.engine import BatchResult, InferenceEngine, RequestResult
from sluice.peft_runtime.metrics import BASE, Benchmark, Iteration, Profile
from sluice.peft_runtime.requests import InferenceRequest, InferenceTraceConfig, RequestBatch

__all__ = [
    "BASE",
    "BatchResult",
    "Benchmark",
    "InferenceEngine",
    "InferenceRequest",
    "InferenceTraceConfig",
    "Iteration",
    "Profile",
    "RequestBatch",
    "RequestResult",
]
