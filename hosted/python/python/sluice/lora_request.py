"""Which adapter a batch is computed with: vLLM's `LoRARequest`."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class LoRARequest:
    """An adapter: a folder of PEFT's or a GGUF file, read when it is first used.

    Attributes:
        lora_name: What it is called; another path needs another name.
        lora_int_id: vLLM's number of it, at least 1. It has no meaning here.
        load_inplace: Read it again, although the name is known.
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
