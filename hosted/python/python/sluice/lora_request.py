"""The adapter of a batch: vLLM's `LoRARequest`."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class LoRARequest:
    """An adapter: a PEFT folder or a GGUF file, loaded when it is first used.

    Attributes:
        lora_name: The adapter's name; a different path needs a different name.
        lora_int_id: vLLM's adapter number, at least 1. It has no effect.
        load_inplace: Load it again even if the name is known.
    """

    lora_name: str
    lora_int_id: int = 1
    lora_path: str | os.PathLike[str] = ""
    load_inplace: bool = False

    def __post_init__(self) -> None:
        if not self.lora_name:
            raise ValueError("lora_name is empty")
        if not os.fspath(self.lora_path):
            raise ValueError("lora_path is empty")
        if self.lora_int_id < 1:
            raise ValueError(f"lora_int_id is {self.lora_int_id}, expected at least 1")
