import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import sluice
import vocabulary

PROMPT = "Once upon a time"


def resident_mib():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def run(code, *arguments, **options):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def test_8_threads_of_100_requests_with_exceptions_among_them(llama):
    expected = llama(PROMPT, max_tokens=6, temperature=0.0)["choices"][0]["text"]
    wrong = []

    def broken(ids, scores):
        if len(ids) > 7:
            raise RuntimeError("on purpose")
        return scores

    def work(thread):
        for i in range(100):
            try:
                if i % 10 == 3:
                    llama(PROMPT, max_tokens=9, logits_processor=broken)
                    wrong.append("nothing was raised")
                elif i % 10 == 5:
                    next(llama(PROMPT, max_tokens=500, stream=True))
                elif i % 10 == 7:
                    llama(PROMPT, temperature=-1.0)
                    wrong.append("nothing was raised")
                else:
                    text = llama(PROMPT, max_tokens=6, temperature=0.0)["choices"][0]["text"]
                    if text != expected:
                        wrong.append(text)
            except sluice.RequestError as error:
                if i % 10 != 7:
                    wrong.append(repr(error))
            except RuntimeError as error:
                if str(error) != "on purpose":
                    wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_memory_is_flat(tale):
    n = int(os.environ.get("SLUICE_GENERATIONS", "1000"))
    llama = sluice.Llama(tale, n_ctx=256, cache_ram_mib=8)
    gc.set_threshold(1)
    try:
        sizes = []
        for i in range(n):
            if i % 3 == 0:
                list(llama(f"{i} cats", max_tokens=4, stream=True))
            elif i % 3 == 1:
                llama(f"{i} cats", max_tokens=4, logits_processor=lambda ids, scores: scores)
            else:
                llama(f"{i} cats", max_tokens=4)
            if i >= n // 4 and i % (n // 8) == 0:
                gc.collect()
                sizes.append(resident_mib())
    finally:
        gc.set_threshold(700, 10, 10)
    print(f"MEASURED: {n} generations: {sizes[0]:.0f} to {sizes[-1]:.0f} MiB")
    assert sizes[-1] - sizes[0] < 8


def test_models_come_and_go(tale):
    def once():
        llama = sluice.Llama(tale, n_ctx=256, cache_ram_mib=8)
        llama(PROMPT, max_tokens=3)
        llama.eval(llama.tokenize(b"a cat"))

    for _ in range(5):
        once()
    before, threads = resident_mib(), threading.active_count()
    for _ in range(20):
        once()
    gc.collect()
    assert resident_mib() - before < 20
    assert threading.active_count() == threads


@pytest.mark.parametrize("what", ["whole", "stream", "eval", "callback"])
def test_ctrl_c_ends_what_is_computed(tale, what):
    code = """
        import sys, threading, os, signal, time
        import sluice
        llama = sluice.Llama(sys.argv[1], n_ctx=200_000, context_shift=True)
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        def slow(ids, scores):
            time.sleep(0.001)
            return scores
        more = dict(max_tokens=1_000_000, ignore_eos=True)
        try:
            if sys.argv[2] == "whole":
                llama("Once", **more)
            elif sys.argv[2] == "stream":
                for chunk in llama("Once", stream=True, **more): pass
            elif sys.argv[2] == "callback":
                llama("Once", logits_processor=slow, **more)
            else:
                while True:
                    llama.eval([5] * 400)
                    if llama.n_tokens > 100_000: llama.reset()
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - began < 3)
        print(llama("Once", max_tokens=3)["choices"][0]["finish_reason"])
    """
    done = run(code, str(tale), what)
    assert done.stdout.split() == ["interrupted", "True", "length"], done.stderr


def test_ctrl_c_ends_a_draft_copy(tale, tmp_path):
    code = """
        import os, signal, sys, threading, time
        import sluice
        folder = os.environ["TMPDIR"]
        sent = []
        def watch():
            while not os.listdir(folder): time.sleep(0.001)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=watch).start()
        copy = dict(n_ctx=64, n_threads=1, spec_type="draft-self")
        lines = []
        try:
            sluice.Llama(sys.argv[1], log=lines.append, **copy)
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - sent[0] < 2, lines, os.listdir(folder))
        # Two copies in one process are in each other's way no more than two models.
        both = [sluice.Llama(sys.argv[2], **copy) for _ in range(2)]
        print(len(os.listdir(folder)), [llama("Once", max_tokens=3)["usage"]["completion_tokens"] for llama in both])
        for llama in both: llama.close()
        del both, llama
        print(os.listdir(folder))
    """
    # Zeros, whose copy takes longer than the answer to a signal may.
    large = vocabulary.write(tmp_path / "large.gguf", vocabulary.read(tale), 4096)
    copies = tmp_path / "copies"
    copies.mkdir()
    done = run(code, str(large), str(tale), env={**os.environ, "TMPDIR": str(copies)})
    assert done.stdout.splitlines() == ["interrupted True [] []", "2 [3, 3]", "[]"], done.stderr


def test_a_child_of_a_fork_is_told(tale):
    code = """
        import os, sys
        import sluice
        llama = sluice.Llama(sys.argv[1], n_ctx=256)
        llama("Once", max_tokens=2)
        llama.eval([1, 2])
        child = os.fork()
        if child == 0:
            for ask in (lambda: llama("Once"), lambda: llama.eval([3])):
                try:
                    ask()
                    print("no error")
                except RuntimeError as error:
                    print("fork" in str(error), flush=True)
            other = sluice.Llama(sys.argv[1], n_ctx=256)
            print(other("Once", max_tokens=2)["choices"][0]["finish_reason"], flush=True)
            del llama, other
            sys.exit(0)
        print(os.waitpid(child, 0)[1], llama("Once", max_tokens=2)["choices"][0]["finish_reason"])
    """
    done = run(code, str(tale))
    assert done.stdout.split() == ["True", "True", "length", "0", "length"], done.stderr


def test_an_interpreter_that_ends_while_work_goes_on(tale):
    code = """
        import sys, threading
        import sluice
        llama = sluice.Llama(sys.argv[1], n_ctx=100_000, context_shift=True)
        more = dict(max_tokens=1_000_000, ignore_eos=True)
        streams = [llama("Once", stream=True, logits_processor=lambda i, s: s, **more) for _ in range(3)]
        for stream in streams: next(stream)
        if sys.argv[2] == "thread":
            threading.Thread(target=lambda: llama("Once", **more), daemon=True).start()
        print("ends")
    """
    for more in ("thread", "none"):
        done = run(code, str(tale), more)
        assert (done.stdout, done.returncode) == ("ends\n", 0), done.stderr


def test_a_model_may_go_while_its_callbacks_run(tale):
    code = """
        import gc, sys
        import sluice
        for _ in range(5):
            llama = sluice.Llama(sys.argv[1], n_ctx=100_000, context_shift=True, log=lambda line: None)
            more = dict(max_tokens=1_000_000, ignore_eos=True)
            streams = [llama("Once", stream=True, logits_processor=lambda i, s: s, **more) for _ in range(3)]
            for stream in streams: next(stream)
            del stream, streams, llama
            gc.collect()
        print("ends")
    """
    done = run(code, str(tale))
    assert (done.stdout, done.returncode) == ("ends\n", 0), done.stderr


def test_the_program_is_part_of_the_wheel(tale):
    def program(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "sluice", *arguments], capture_output=True, text=True, timeout=60
        )

    assert program("--version").stdout.startswith("sluice ")
    ran = program("run", "-m", str(tale), "-p", PROMPT, "-n", "8", "--temp", "0", "--no-display-prompt")
    assert ran.returncode == 0
    llama = sluice.Llama(tale, n_ctx=256)
    assert ran.stdout.strip() == llama(PROMPT, max_tokens=8, temperature=0.0)["choices"][0]["text"].strip()
    assert program("run", "-m", "/nowhere").returncode == 1
    process = subprocess.Popen(
        [sys.executable, "-m", "sluice", "run", "-m", str(tale), "-p", PROMPT, "-n", "1000000", "--ignore-eos",
         "--context-shift"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    process.stdout.read(10)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    assert process.wait(20) == 130
