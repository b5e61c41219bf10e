"""Start `sluice serve` with the flags that llama.cpp's tests give llama-server: launch.py SLUICE MODELS FLAG …

Almost all flags are the same. What is not:

- a model of Hugging Face is a file of MODELS, and --offline is dropped; so is --no-jinja (their presets' default), which
  is refused here, because chat templates are always Jinja;
- --any-model is added where a model is named, because llama-server answers whatever model a request names then, and
  --threads 1, which is enough;
- --ctx-size is divided by --parallel unless there is --kv-unified, because llama-server gives each slot its part,
  while texts share the context here;
- no model means the models of the cache, as for their router: LLAMA_CACHE is a folder with the models of MODELS under their names;
  --allow-pull is added, because their router downloads for anyone, from `plugin.py`'s stand-in of the hub.
"""
import os, sys

os.environ["LLAMA_CACHE"] = os.path.join(sys.argv[2], "hub")
FILES = {
    "ggml-org/test-model-stories260K": "stories260k.gguf",
    "ggml-org/models tinyllamas/stories260K.gguf": "stories260k.gguf",
    "ggml-org/models tinyllamas/split/stories15M-q8_0-00001-of-00003.gguf": "split-00001-of-00003.gguf",
    "ggml-org/models bert-bge-small/ggml-model-f16.gguf": "bert.gguf",
    "ggml-org/models jina-reranker-v1-tiny-en/ggml-model-f16.gguf": "rank.gguf",
    "ggml-org/test-model-stories260K-infill": "infill.gguf",
    "ggml-org/stories15M_MOE stories15M_MOE-F16.gguf": "mixture.gguf",
    "ggml-org/tinygemma3-GGUF:Q8_0": "tinygemma3.gguf",
}


def main():
    sluice, models, *flags = sys.argv[1:]
    names = {"--hf-repo": "", "--hf-file": ""}
    if {"--ctx-size", "--parallel"} <= set(flags) and "--kv-unified" not in flags:
        size, slots = (flags.index(flag) + 1 for flag in ("--ctx-size", "--parallel"))
        flags[size] = str(int(flags[size]) // int(flags[slots]))
    given = []
    while flags:
        flag = flags.pop(0)
        if flag in names:
            names[flag] = flags.pop(0)
        elif flag not in ("--offline", "--no-jinja"):
            given.append(flag)
    name = " ".join(filter(None, names.values()))
    model = ["-m", os.path.join(models, FILES[name]), "--any-model"] if name else ["--allow-pull"]
    os.execv(sluice, [sluice, "serve", *model, "--threads", "1", *given])


main()
