"""ruvector-sparse-inference's table of targets, by Sluice: a sentence by LFM2-350M's shape and by MiniLM's, a token of Llama-7B's.

The models have the published shapes and random weights, which speed and memory do not depend on but for neurons that are
left out: Llama's network has a threshold that leaves 10% of its neurons active, as ReLU-fied models have. A sentence is
an embedding of 16 tokens from `sluice serve`, the median of 30 requests with HTTP; a token is decode by `sluice bench`. Modes
are measured in turn, each figure being the median of --rounds; memory is the largest resident set of the process, mapped
files included. The first mode is dense: F16, or Llama's Q4_0 with all neurons.

    python3 benches/peers/targets.py --work DIR [--sluice PROGRAM] [--rounds 5] [--threads 2] [model …]

Prints Markdown. Needs the packages numpy and gguf, and 9 GB of disk in DIR, outside of the checkout; removed at the end.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import neurons
from llama import ROOT, Failed, run, say
from server import Server

try:
    import gguf
    import numpy as np

    MISSING = None
except ImportError as error:
    MISSING = str(error)

# LFM2-350M's layers with attention; the others have short convolutions.
LFM2_ATTENTION = {2, 5, 8, 10, 12, 14}
# Its figures: milliseconds from and to, times faster than dense, share of memory saved. They are targets there, not measurements.
TARGETS = {
    "lfm2-350m": (5, 10, 2.5, 0.40, "sentence"),
    "minilm": (2, 5, 2.0, 0.30, "sentence"),
    "llama-7b": (50, 100, 5.0, 0.50, "token"),
}
SENTENCE_TOKENS, SENTENCES = 16, 40
LLAMA = dict(n_embd=4096, n_head=32, n_kv=32, head=128, n_ff=11008, n_expert=0, n_used=0, threshold=1.2816, n_layer=32, n_vocab=32000)


def common(writer, n_layer, n_embd, n_ff, n_head, n_ctx):
    writer.add_name("random weights")
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)


def finish(writer, matrices, vectors):
    """Adds matrices (name: rows, columns) in F16 and vectors (name: length, value) in F32, and writes the file."""
    rng = np.random.default_rng(1)
    for name, (n_rows, n_cols) in matrices.items():
        values = rng.standard_normal((n_rows, n_cols), dtype=np.float32) / n_cols**0.5
        writer.add_tensor(name, values.astype(np.float16))
    for name, (shape, value) in vectors.items():
        writer.add_tensor(name, np.full(shape, value, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_lfm2(path):
    """LFM2-350M's shape."""
    n_layer, n_embd, n_ff, head, kv, n_vocab = 16, 1024, 4608, 64, 512, 65536
    writer = gguf.GGUFWriter(path, "lfm2")
    common(writer, n_layer, n_embd, n_ff, n_embd // head, 4096)
    writer.add_head_count_kv([kv // head if i in LFM2_ATTENTION else 0 for i in range(n_layer)])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e6)
    writer.add_shortconv_l_cache(3)
    writer.add_vocab_size(n_vocab)
    neurons.vocabulary(writer, n_vocab)
    matrices, vectors = {"token_embd.weight": (n_vocab, n_embd)}, {"token_embd_norm.weight": (n_embd, 1)}
    for i in range(n_layer):
        p = f"blk.{i}."
        vectors |= {p + "attn_norm.weight": (n_embd, 1), p + "ffn_norm.weight": (n_embd, 1)}
        matrices |= {p + "ffn_gate.weight": (n_ff, n_embd), p + "ffn_up.weight": (n_ff, n_embd), p + "ffn_down.weight": (n_embd, n_ff)}
        if i in LFM2_ATTENTION:
            matrices |= {p + "attn_q.weight": (n_embd, n_embd), p + "attn_k.weight": (kv, n_embd),
                         p + "attn_v.weight": (kv, n_embd), p + "attn_output.weight": (n_embd, n_embd)}
            vectors |= {p + "attn_q_norm.weight": (head, 1), p + "attn_k_norm.weight": (head, 1)}
        else:
            matrices |= {p + "shortconv.in_proj.weight": (3 * n_embd, n_embd), p + "shortconv.out_proj.weight": (n_embd, n_embd)}
            vectors[p + "shortconv.conv.weight"] = ((n_embd, 3), 0.3)
    finish(writer, matrices, vectors)


def write_minilm(path):
    """The shape of all-MiniLM-L6-v2."""
    n_layer, n_embd, n_ff, n_vocab, n_ctx = 6, 384, 1536, 30522, 512
    writer = gguf.GGUFWriter(path, "bert")
    common(writer, n_layer, n_embd, n_ff, 12, n_ctx)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_type_count(2)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [f"\u2581word{i}" for i in range(n_vocab - len(tokens))]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens + words)
    writer.add_token_types([gguf.TokenType.CONTROL] * len(tokens) + [gguf.TokenType.NORMAL] * len(words))
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_eos_token_id(3)
    writer.add_mask_token_id(4)
    matrices = {"token_embd.weight": (n_vocab, n_embd)}
    vectors = {"token_types.weight": ((2, n_embd), 0.1), "position_embd.weight": ((n_ctx, n_embd), 0.1),
               "token_embd_norm.weight": (n_embd, 1), "token_embd_norm.bias": (n_embd, 0)}
    for i in range(n_layer):
        p = f"blk.{i}."
        for name, n_rows, n_cols in [("attn_q", n_embd, n_embd), ("attn_k", n_embd, n_embd), ("attn_v", n_embd, n_embd),
                                     ("attn_output", n_embd, n_embd), ("ffn_up", n_ff, n_embd), ("ffn_down", n_embd, n_ff)]:
            matrices[f"{p}{name}.weight"] = (n_rows, n_cols)
            vectors[f"{p}{name}.bias"] = (n_rows, 0)
        for name in ("attn_output_norm", "layer_output_norm"):
            vectors |= {f"{p}{name}.weight": (n_embd, 1), f"{p}{name}.bias": (n_embd, 0)}
    finish(writer, matrices, vectors)


def sentence(args, model):
    """Milliseconds of a sentence by the server, HTTP included, and MB of its largest resident set."""
    command = [args.sluice, "serve", "-m", model, "-t", args.threads, "--embeddings", "--pooling", "mean", "-c", 512]
    rng, times = random.Random(1), []
    with Server("sluice", command) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        for i in range(SENTENCES):
            tokens = [rng.randrange(1000, 30000) for _ in range(SENTENCE_TOKENS)]
            start = time.perf_counter()
            connection.request("POST", "/v1/embeddings", json.dumps({"input": tokens}), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise Failed(f"{model.name}: {answer.status} {body[:300]}")
            times.append((time.perf_counter() - start) * 1e3)
        status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return statistics.median(times[SENTENCES // 4 :]), int(peak.split()[1]) * 1024 / 1e6


def token(args, model, more):
    """Milliseconds of a token in decode, and MB of the largest resident set."""
    command = [args.sluice, "bench", "-m", model, "-p", 0, "-n", args.tokens, "-r", 1, "-t", args.threads, "-o", "jsonl", *more]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen([str(part) for part in command], stdout=out, stderr=err)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if child.returncode != 0:
            raise Failed(f"sluice bench -m {model.name}: {err.read().strip()[-300:]}")
        result = json.loads(out.read())
    return 1e3 / result["avg_ts"], usage.ru_maxrss * 1024 / 1e6


def print_modes(args, name, modes):
    """A row for each mode."""
    low, high, speed, saved, kind = TARGETS[name]
    found = {mode: [] for mode, _, _ in modes}
    for i in range(args.rounds + 1):
        for mode, model, flags in modes:
            result = sentence(args, model) if kind == "sentence" else token(args, model, flags)
            # The first round reads files into the page cache.
            if i or args.rounds == 0:
                found[mode].append(result)
    medians = {mode: [statistics.median(x) for x in zip(*results)] for mode, results in found.items()}
    dense_ms, dense_mb = medians[modes[0][0]]
    for mode, (ms, mb) in medians.items():
        met = [ms <= high, dense_ms / ms >= speed, 1 - mb / dense_mb >= saved]
        goals = f"{low} to {high} ms, ×{speed:g}, -{saved:.0%}"
        print(f"| {name}, {kind} | {mode} | {ms:.1f} | {mb:.0f} | ×{dense_ms / ms:.1f} | {mb / dense_mb - 1:+.0%} | {goals} | "
              + ", ".join("yes" if is_met else "no" for is_met in met) + " |", flush=True)


def made(path, write):
    """The file, written if it is not there."""
    if not path.exists():
        say(f"writing {path.name}")
        part = path.with_name("part-" + path.name)
        write(part)
        part.rename(path)
    return path


def quantized(args, path, ty):
    out = path.with_name(f"{path.stem}-{ty}.gguf")
    return made(out, lambda part: run([args.sluice, "quantize", "--overwrite", "--pure", path, part, ty]))


def sentences(args, name, write):
    path = made(args.work / f"{name}-f16.gguf", write)
    return [("dense, F16", path, ()), *((ty, quantized(args, path, ty), ()) for ty in ("Q8_0", "Q4_0"))]


def llama(args):
    path = made(args.work / "llama-7b-Q4_0.gguf", lambda part: neurons.write(part, LLAMA))
    by_neuron = made(path.with_suffix(".neuron.slc"), lambda part: run([args.sluice, "pack", "--ffn", "neuron", path, part]))
    return [
        ("dense, Q4_0", path, ("--sparse", "off")),
        # Read into memory, which has huge pages as panels have: a map has small ones.
        ("Q4_0 by neuron, exact", by_neuron, ("--sparse", "exact", "--load-mode", "none")),
    ]


# Functions that make the files and give the modes: what each is, its file, flags. The first is dense.
MODELS = {
    "lfm2-350m": lambda args: sentences(args, "lfm2-350m", write_lfm2),
    "minilm": lambda args: sentences(args, "minilm", write_minilm),
    "llama-7b": llama,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="model", help=" or ".join(MODELS))
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for models")
    parser.add_argument("--sluice", type=pathlib.Path, default=ROOT / "target/release/sluice")
    parser.add_argument("--rounds", type=int, default=5, help="0: once, without a round that reads files")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=16, help="tokens of a measurement of decode")
    parser.add_argument("--keep", action="store_true", help="keep the files, and use those that are there")
    parser.add_argument("--make", action="store_true", help="with --keep: only make the files")
    args = parser.parse_args()
    if MISSING:
        raise Failed(f"{MISSING}: pip install numpy gguf")
    for name in args.models:
        if name not in MODELS:
            raise Failed(f"no model {name}: {', '.join(MODELS)}")
    if args.work.resolve().is_relative_to(ROOT):
        raise Failed(f"--work {args.work}: choose a folder outside of {ROOT}")
    args.work.mkdir(parents=True, exist_ok=True)
    print("| model | mode | ms | MB | faster | memory | its targets | met |\n|---|---|---|---|---|---|---|---|")
    for name in args.models or MODELS:
        before = set(args.work.iterdir())
        try:
            modes = MODELS[name](args)
            if not args.make:
                print_modes(args, name, modes)
        finally:
            for file in set() if args.keep else set(args.work.iterdir()) - before:
                file.unlink()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failed:
        sys.exit(f"targets.py: {failed}")
