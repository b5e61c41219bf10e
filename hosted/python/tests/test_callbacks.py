"""Callbacks that ask models: their own, which waits for them, and others."""

import threading

import pytest
import sluice
from sluice.llm import LLM
from sluice.sampling_params import SamplingParams
from test_robust import run

PROMPT = "Once upon a time"
REFUSED = "a callback asked the model that is waiting for this callback"


@pytest.mark.parametrize("name", ["logits_processor", "stopping_criteria"])
def test_a_callback_that_asks_its_own_model_is_refused(llama, name):
    begun = llama.client.complete({"prompt": PROMPT, "max_tokens": 50, "ignore_eos": True})
    asked = [
        lambda: llama("a", max_tokens=1),
        lambda: llama("a", max_tokens=1, stream=True),
        lambda: llama.create_chat_completion([{"role": "user", "content": "a"}], max_tokens=1),
        lambda: llama.embed("a"),
        begun.read,
        lambda: begun.on_read(print),
        llama.close,
    ]
    for ask in asked:

        def callback(ids, scores, ask=ask):
            ask()
            return scores

        with pytest.raises(RuntimeError, match=REFUSED):
            llama(PROMPT, max_tokens=3, **{name: callback})
    assert len(begun.read(all=True)) > 50
    # Reading the vocabulary needs no engine, and the model goes on.
    seen = []

    def tokenizes(ids, scores):
        seen.append(llama.tokenize(b"a cat"))
        return scores

    assert llama(PROMPT, max_tokens=2, logits_processor=tokenizes)["usage"]["completion_tokens"] == 2
    assert seen == [llama.tokenize(b"a cat")] * 2


def test_a_callback_may_evaluate_step_by_step(llama):
    found = []

    def evaluates(ids, scores):
        llama.reset()
        llama.eval(llama.tokenize(PROMPT.encode()))
        found.append(llama.sample(temp=0))
        return scores

    reply = llama(PROMPT, max_tokens=2, temperature=0, logits_processor=evaluates)
    assert reply["usage"]["completion_tokens"] == 2 and len(set(found)) == 1


def test_processors_of_a_batch_are_refused_too_and_may_ask_another_model(llama, tale):
    with LLM(tale, max_model_len=128) as llm:

        def own(tokens, logits):
            llm.generate("a", SamplingParams(max_tokens=1))
            return logits

        with pytest.raises(RuntimeError, match=REFUSED):
            llm.generate(PROMPT, SamplingParams(logits_processors=[own]), use_tqdm=False)

        def other(tokens, logits):
            assert llama("a", max_tokens=1)["usage"]["completion_tokens"] == 1
            return logits

        (output,) = llm.generate(
            PROMPT, SamplingParams(max_tokens=2, logits_processors=[other]), use_tqdm=False
        )
        assert len(output.outputs[0].token_ids) == 2


def test_two_models_whose_callbacks_ask_each_other_do_not_wait_for_ever(tale):
    first, second = (sluice.Llama(tale, n_ctx=128) for _ in range(2))
    both = threading.Barrier(2, timeout=20)
    refused = []

    def asks(other):
        met = []

        def callback(ids, scores):
            if not met:
                met.append(both.wait())
                try:
                    other("a", max_tokens=1, logits_processor=lambda ids, scores: scores)
                except RuntimeError as error:
                    refused.append(str(error))
            return scores

        return callback

    threads = [
        threading.Thread(target=lambda a=a, b=b: a(PROMPT, max_tokens=2, logits_processor=asks(b)))
        for a, b in ((first, second), (second, first))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(refused) == 1 and REFUSED in refused[0]


def test_a_log_that_asks_its_model_is_refused(tale):
    refused = []

    def log(line):
        try:
            for llama in made:
                llama("a", max_tokens=1)
        except RuntimeError as error:
            refused.append(str(error))

    made = []
    llama = sluice.Llama(tale, n_ctx=128, log=log)
    made.append(llama)
    llama(PROMPT, max_tokens=1)
    llama.close()
    assert refused and all(REFUSED in error or "closed" in error for error in refused)


@pytest.mark.parametrize("how", ["own", "asyncio", "asleep", "last"])
def test_the_interpreter_exits(tale, how):
    code = """
        import asyncio, gc, sys, threading, time
        import sluice
        llama = sluice.Llama(sys.argv[1], n_ctx=1000)
        def own(ids, scores):
            llama("a", max_tokens=1)
            return scores
        def over_asyncio(ids, scores):
            asyncio.run(llama.acreate_completion("a", max_tokens=1))
            return scores
        started = threading.Event()
        def asleep(ids, scores):
            started.set()
            time.sleep(10_000)
        if sys.argv[2] in ("own", "asyncio"):
            try:
                llama("Once", logits_processor=own if sys.argv[2] == "own" else over_asyncio)
            except RuntimeError:
                print("refused")
            print(llama("Once", max_tokens=1)["usage"]["completion_tokens"])
        elif sys.argv[2] == "asleep":
            ask = lambda: llama("Once", logits_processor=asleep)
            threading.Thread(target=ask, daemon=True).start()
            started.wait()
        else:
            # The callback has the last reference to its model.
            def last(held):
                def callback(ids, scores):
                    held.clear()
                    gc.collect()
                    return scores
                return callback
            answer = llama.client.complete({"prompt": "Once", "max_tokens": 100}, [last([llama])])
            del llama
            try:
                answer.read(all=True)
            except Exception as error:
                print(type(error).__name__)
        print("ends")
    """
    done = run(code, str(tale), how)
    said = {
        "own": "refused\n1\nends\n",
        "asyncio": "refused\n1\nends\n",
        "asleep": "ends\n",
        "last": "RefusedError\nends\n",
    }
    assert (done.stdout, done.returncode) == (said[how], 0), done.stderr
