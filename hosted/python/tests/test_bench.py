import os
import signal
import threading
import time

import pytest
from sluice._bench import BenchError, bench


def test_every_combination_is_a_row(tale):
    rows = bench(tale, n_prompt=[8, 16], n_gen=4, repetitions=2, threads=1)
    assert [(row["n_prompt"], row["n_gen"]) for row in rows] == [(8, 0), (16, 0), (0, 4)]
    assert all(row["avg_ts"] > 0 and len(row["samples_ts"]) == 2 for row in rows)
    rows = bench([tale], n_prompt=0, n_gen=0, n_prompt_gen=(8, 4), repetitions=1, no_warmup=True, isa=None)
    assert [(row["n_prompt"], row["n_gen"]) for row in rows] == [(8, 4)]


def test_the_programs_words_are_the_errors(tale):
    with pytest.raises(BenchError, match="--nonsense"):
        bench(tale, nonsense=3)
    with pytest.raises(BenchError, match="nowhere"):
        bench("nowhere.gguf")
    with pytest.raises(BenchError, match="output"):
        bench(tale, output="md")


def test_ctrl_c_ends_it(tale):
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        bench(tale, n_prompt=512, n_gen=512, repetitions=1000)
    assert time.monotonic() - start < 10
    timer.join()


def test_experts_on_disk(mixture):
    settings = {"n_prompt": 16, "n_gen": 4, "repetitions": 1, "threads": 1}
    (prompt, text) = bench(mixture, expert_cache=1, expert_io="pread", no_warmup=True, **settings)
    assert prompt["expert_read_bytes"] > 0
    assert 0 <= text["expert_cache_hit"] <= 1
