"""Prompt caches, with llama-cpp-python's names.

A `Llama` always reuses prompts with a common prefix, and answers do not depend on it. `Llama(cache_ram_mib=…)` sets
the memory for that; `Llama(prompt_cache_dir=…)` keeps prompts on disk.
"""

from __future__ import annotations


class LlamaRAMCache:
    """Stands for the cache that a `Llama` always has; `Llama.set_cache` accepts it without effect."""

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        self.capacity_bytes = capacity_bytes


LlamaCache = LlamaRAMCache
