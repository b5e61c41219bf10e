"""Caches of prompts: llama-cpp-python's names.

A `Llama` always finds prompts again that begin as earlier ones did, and answers are the same with and without. How
much memory that may take is `Llama(cache_ram_mib=…)`; on disk it is kept with `Llama(prompt_cache_dir=…)`.
"""

from __future__ import annotations


class LlamaRAMCache:
    """Stands for the cache that a `Llama` has anyway; `Llama.set_cache` accepts it and changes nothing."""

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        self.capacity_bytes = capacity_bytes


LlamaCache = LlamaRAMCache
