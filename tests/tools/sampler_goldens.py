"""Writes tests/fixtures/samplers.json: what llama.cpp's own samplers leave of distributions.

Needs the llama_cpp Python package (its low-level interface; LLAMA_CPP_LIB_PATH where the library lies
elsewhere). The model file is read for its vocabulary alone, which DRY's sequence breakers need.

    python3 tests/tools/sampler_goldens.py hosted/models/tale-5.8m-Q4_K_M.gguf > tests/fixtures/samplers.json
"""

import ctypes
import json
import random
import struct
import sys

import llama_cpp as llama


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def make(step, vocab, n_vocab):
    """The sampler of a step such as ["top_p", 0.9, 1]."""
    name, *a = step
    if name == "dry":
        multiplier, base, allowed, last_n, breakers = a
        texts = (ctypes.c_char_p * len(breakers))(*[b.encode() for b in breakers])
        return llama.llama_sampler_init_dry(vocab, multiplier, base, allowed, last_n, texts, len(breakers))
    if name == "logit_bias":
        biases = (llama.llama_logit_bias * len(a[0]))(*[llama.llama_logit_bias(i, b) for i, b in a[0]])
        return llama.llama_sampler_init_logit_bias(n_vocab, len(a[0]), biases)
    if name == "penalties":
        return lib_penalties(n_vocab, *a)
    if name == "mirostat":
        return llama.llama_sampler_init_mirostat(n_vocab, 7, a[0], a[1], 100)
    if name == "mirostat_v2":
        return llama.llama_sampler_init_mirostat_v2(7, a[0], a[1])
    if name == "xtc":
        return llama.llama_sampler_init_xtc(*a, 7)
    return getattr(llama, "llama_sampler_init_" + name)(*a)


lib = llama.llama_cpp._lib
lib_penalties = lib.llama_sampler_init_penalties
lib_penalties.restype = ctypes.c_void_p
lib_penalties.argtypes = [ctypes.c_int32, ctypes.c_int32, ctypes.c_float, ctypes.c_float, ctypes.c_float]
lib.llama_sampler_apply.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
lib.llama_sampler_apply.restype = None
lib.llama_sampler_accept.argtypes = [ctypes.c_void_p, ctypes.c_int32]
lib.llama_sampler_accept.restype = None


def array(logits):
    data = (llama.llama_token_data * len(logits))()
    for i, logit in enumerate(logits):
        data[i].id, data[i].logit, data[i].p = i, logit, 0.0
    return data, llama.llama_token_data_array(data, len(logits), -1, False)


def run(logits, history, steps, vocab):
    """What is left: [id, logit] by id; tokens at minus infinity are masked, so they are left out."""
    data, cur = array(logits)
    for step in steps:
        sampler = make(step, vocab, len(logits))
        for token in history:
            lib.llama_sampler_accept(sampler, token)
        lib.llama_sampler_apply(sampler, ctypes.byref(cur))
    kept = [(cur.data[i].id, cur.data[i].logit) for i in range(cur.size)]
    return sorted([i, l] for i, l in kept if l != float("-inf"))


def run_mirostat(logits, step, n_draws):
    """For each draw in a row: what is left, and the probability of what was drawn."""
    sampler = make(step, None, len(logits))
    draws = []
    for _ in range(n_draws):
        data, cur = array(logits)
        lib.llama_sampler_apply(sampler, ctypes.byref(cur))
        kept = sorted(cur.data[i].id for i in range(cur.size))
        draws.append({"kept": kept, "p": cur.data[cur.selected].p})
    return draws


def main():
    model_params = llama.llama_model_default_params()
    model_params.vocab_only = True
    model = llama.llama_model_load_from_file(sys.argv[1].encode(), model_params)
    vocab = llama.llama_model_get_vocab(model)
    rng = random.Random(4)
    shapes = {
        "wide": [f32(rng.gauss(0, 2)) for _ in range(48)],
        "steep": [f32(3 - 0.9 * i + rng.random() / 4) for i in range(24)],
        "flat": [f32(rng.random() / 2) for _ in range(40)],
        "peak": [f32(9 if i == 11 else rng.gauss(-1, 1)) for i in range(30)],
    }
    history = [1, 2, 3, 4, 2, 3, 3, 9, 11, 2, 3]
    lists = []
    for k in [1, 5, 20, 200, 0]:
        lists.append([["top_k", k]])
    for p, keep in [(0.05, 0), (0.5, 0), (0.9, 1), (0.97, 0), (0.3, 6), (1.0, 0)]:
        lists.append([["top_p", p, keep]])
    for p, keep in [(0.02, 0), (0.2, 0), (0.6, 0), (0.3, 7), (1.5, 0), (1.5, 3), (0.0, 0)]:
        lists.append([["min_p", p, keep]])
    for p, keep in [(0.1, 0), (0.5, 1), (0.8, 0), (0.95, 0), (0.2, 9), (1.0, 0)]:
        lists.append([["typical", p, keep]])
    for n in [0.3, 1.0, 1.7, 3.0, 0.0]:
        lists.append([["top_n_sigma", n]])
    for t, keep in [(0.01, 0), (0.05, 0), (0.1, 1), (0.2, 0), (0.03, 40), (0.6, 0)]:
        lists.append([["xtc", 1.0, t, keep]])
    for t in [0.25, 1.0, 1.8, 0.0]:
        lists.append([["temp", t]])
    for t, d, e in [(0.8, 0.5, 1.0), (1.0, 1.5, 2.0), (0.3, 0.5, 0.5), (0.7, 0.0, 1.0), (1.0, 1.0, 0.0)]:
        lists.append([["temp_ext", t, d, e]])
    for n, r, f, p in [(64, 1.3, 0.0, 0.0), (5, 1.1, 0.2, 0.3), (64, 1.0, -0.5, 0.0), (3, 0.8, 0.0, 1.5), (0, 2.0, 1.0, 1.0)]:
        lists.append([["penalties", n, r, f, p]])
    lists.append([["logit_bias", [[3, 2.5], [11, -1.25], [7, -1e9]]]])
    every = [
        ["penalties", 64, 1.2, 0.1, 0.1],
        ["top_n_sigma", 2.0],
        ["top_k", 18],
        ["typical", 0.9, 0],
        ["top_p", 0.93, 0],
        ["min_p", 0.03, 0],
        ["xtc", 1.0, 0.15, 0],
        ["temp_ext", 0.8, 0.3, 1.2],
    ]
    lists.append(list(every))
    lists.append(every[::-1])
    for _ in range(8):
        lists.append(rng.sample(every, rng.randint(3, 8)))
    # A masked token makes llama.cpp's entropy NaN, and with it what typical keeps: it goes first here.
    for steps in lists:
        names = [step[0] for step in steps]
        if "typical" in names and "top_n_sigma" in names[: names.index("typical")]:
            i, j = names.index("top_n_sigma"), names.index("typical")
            steps[i], steps[j] = steps[j], steps[i]
    cases = [
        {"shape": name, "steps": steps, "left": run(shapes[name], history, steps, vocab)}
        for steps in lists
        for name in shapes
    ]
    mirostat = [
        {"shape": name, "step": step, "draws": run_mirostat(shapes[name], step, 6)}
        for name in shapes
        for step in [["mirostat", 2.0, 0.1], ["mirostat", 5.0, 0.3], ["mirostat_v2", 1.5, 0.1], ["mirostat_v2", 3.0, 0.4]]
    ]

    def tokens(text):
        buffer = (llama.llama_token * 512)()
        n = llama.llama_tokenize(vocab, text.encode(), len(text.encode()), buffer, 512, False, False)
        return list(buffer[:n])

    n_vocab = llama.llama_vocab_n_tokens(vocab)
    dry = []
    texts = [
        "The cat sat on the mat. The cat sat on the",
        "One day, one day, one day, one",
        'He said: "Come here." She said: "Come',
        "a b c\na b c\na b",
        "no repetition here at all",
        "la la la la la la la la la la la la la la la la la la la la la la la la la",
    ]
    settings = [
        [0.8, 1.75, 2, 64, ["\n", ":", '"', "*"]],
        [1.5, 1.2, 1, 64, ["\n", ":", '"', "*"]],
        [2.0, 3.0, 3, 12, ["on the", "day,"]],
        [0.5, 1.0, 0, 64, []],
        [1.0, 2.0, 2, 1000, [" said:", "a"]],
    ]
    for text in texts:
        ids = tokens(text)
        for setting in settings:
            left = run([0.0] * n_vocab, ids, [["dry", *setting]], vocab)
            changed = [[i, l] for i, l in left if l != 0.0]
            dry.append({"tokens": ids, "settings": setting, "changed": changed})

    print(json.dumps({
        "by": "llama.cpp as vendored by llama-cpp-python " + llama.__version__,
        "history": history,
        "shapes": shapes,
        "cases": cases,
        "mirostat": mirostat,
        "dry": dry,
    }))


main()
