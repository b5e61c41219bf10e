"""Decode with neuron files against panels: published shapes of sparse models with random weights, cut to 8 layers.

ProSparse-7B's network has a threshold at the quantile of its gates that leaves 10% of the neurons active; each expert of
SmallThinker-21B's one that leaves 25%. Random gates are as scattered as they come. Each shape is a Q4_0 GGUF file, packed
as panels and by neuron; `sluice bench` decodes with each in turn, also without leaving anything out (`--sparse off`),
and llama.cpp as well where its package is installed. The figure is the median of the ratios of a pair.

In `prosparse-7b-predicted` most of each gate has rank 64, since no predictor can know random weights: `sluice sparsify`
makes one of that rank from them, which chooses 15% of the neurons for the 10% that are active; its recall is printed.

    python3 benches/peers/neurons.py --work DIR [--sluice PROGRAM] [--pairs 9] [--threads 2] [shape …]

Needs the packages numpy and gguf; about 3 GB of disk for a shape, removed at the end unless --keep is given.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from llama import Failed, ROOT, run, say

try:
    import gguf
    import numpy as np

    MISSING = None
except ImportError as error:
    MISSING = str(error)

N_LAYER, N_VOCAB, N_CTX = 8, 8192, 2048
BLOCK, BLOCK_BYTES = 32, 18
# Standard deviation of uniform codes of Q4_0 from 1 to 15, less 8: a mean other than 0 would make all gates alike.
CODE_DEVIATION = ((15**2 - 1) / 12) ** 0.5
# Bytes of random codes that all matrices are cut out of.
POOL = 1 << 24

# Widths, heads, KV heads, head dimension, network, experts, experts used, threshold, bar on the ratio. A gate of random
# weights has a standard deviation of 1: its quantiles are the normal distribution's.
SHAPES = {
    "prosparse-7b": dict(n_embd=4096, n_head=32, n_kv=32, head=128, n_ff=11008, n_expert=0, n_used=0,
                         threshold=1.2816, active=10, bar=1.35),
    "prosparse-7b-predicted": dict(n_embd=4096, n_head=32, n_kv=32, head=128, n_ff=11008, n_expert=0, n_used=0,
                                   threshold=1.2816, active=10, bar=1.70, rank=64),
    "smallthinker-21b": dict(n_embd=2560, n_head=28, n_kv=4, head=128, n_ff=768, n_expert=64, n_used=6,
                             threshold=0.6745, active=25, bar=1.15),
}


def matrices(shape):
    """Name, rows, columns and number of matrices; no columns stand for a vector in F32."""
    n_embd, q, kv = shape["n_embd"], shape["n_head"] * shape["head"], shape["n_kv"] * shape["head"]
    n, n_ff = max(shape["n_expert"], 1), shape["n_ff"]
    suffix = "_exps" if shape["n_expert"] else ""
    n_vocab = shape.get("n_vocab", N_VOCAB)
    yield "token_embd.weight", n_vocab, n_embd, 1
    for i in range(shape.get("n_layer", N_LAYER)):
        p = f"blk.{i}."
        yield p + "attn_norm.weight", n_embd, 0, 1
        yield p + "attn_q.weight", q, n_embd, 1
        yield p + "attn_k.weight", kv, n_embd, 1
        yield p + "attn_v.weight", kv, n_embd, 1
        yield p + "attn_output.weight", n_embd, q, 1
        yield p + "ffn_norm.weight", n_embd, 0, 1
        if shape["n_expert"]:
            yield p + "ffn_gate_inp.weight", n, n_embd, 0
        yield p + f"ffn_gate{suffix}.weight", n_ff, n_embd, n
        yield p + f"ffn_up{suffix}.weight", n_ff, n_embd, n
        yield p + f"ffn_down{suffix}.weight", n_embd, n_ff, n
    yield "output_norm.weight", n_embd, 0, 1
    yield "output.weight", n_vocab, n_embd, 1


def write(path, shape):
    """Writes the model."""
    rng = np.random.default_rng(1)
    low, high = rng.integers(1, 16, (2, POOL), dtype=np.uint8)
    pool = low | high << 4
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"random {path.stem}")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(shape["n_embd"])
    writer.add_block_count(shape.get("n_layer", N_LAYER))
    writer.add_feed_forward_length(shape["n_ff"])
    writer.add_head_count(shape["n_head"])
    writer.add_head_count_kv(shape["n_kv"])
    writer.add_key_length(shape["head"])
    writer.add_value_length(shape["head"])
    writer.add_rope_dimension_count(shape["head"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.get("n_vocab", N_VOCAB))
    if shape["n_expert"]:
        writer.add_expert_count(shape["n_expert"])
        writer.add_expert_used_count(shape["n_used"])
    writer.add_string("llama.activation", "fatrelu")
    writer.add_float32("llama.activation_threshold", shape["threshold"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    vocabulary(writer, shape.get("n_vocab", N_VOCAB))
    for name, n_rows, n_cols, n in matrices(shape):
        if not n_cols:
            writer.add_tensor(name, np.ones(n_rows, dtype=np.float32))
        elif not n:
            values = rng.standard_normal((n_rows, n_cols), dtype=np.float32) / n_cols**0.5
            writer.add_tensor(name, values)
        elif "rank" in shape and "ffn_gate" in name:
            gate = gates(rng, n_rows, n_cols, shape["rank"])
            writer.add_tensor(name, gate, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
        else:
            codes = rows(rng, pool, n * n_rows, n_cols)
            shape_of = (n, n_rows, -1) if name.endswith("_exps.weight") else (n_rows, -1)
            writer.add_tensor(name, codes.reshape(shape_of), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def vocabulary(writer, n_vocab):
    """Tokens of one byte, then numbers."""
    kinds = gguf.TokenType
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256
    more = n_vocab - len(tokens)
    tokens += [f"\u2581{i}" for i in range(more)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(more)])
    writer.add_token_types(types + [kinds.NORMAL] * more)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def rows(rng, pool, n_rows, n_cols):
    """Random rows in Q4_0 whose weights have a standard deviation of 1 / sqrt(columns)."""
    n_blocks = n_rows * n_cols // BLOCK
    blocks = np.empty((n_blocks, BLOCK_BYTES), dtype=np.uint8)
    scale = np.array([n_cols**-0.5 / CODE_DEVIATION], dtype="<f2").view(np.uint8)
    blocks[:, :2] = scale
    codes, step = BLOCK_BYTES - 2, POOL // (BLOCK_BYTES - 2) - 4096
    for first in range(0, n_blocks, step):
        n = min(step, n_blocks - first)
        at = int(rng.integers(0, 4096)) * codes
        blocks[first : first + n, 2:] = pool[at : at + n * codes].reshape(n, codes)
    return blocks


def gates(rng, n_rows, n_cols, rank):
    """Random weights in Q4_0, as large as the others: a matrix of this rank, and other weights that add 5% of energy."""
    left = rng.standard_normal((n_rows, rank), dtype=np.float32) * (0.95 / rank) ** 0.5
    right = rng.standard_normal((rank, n_cols), dtype=np.float32)
    rest = rng.standard_normal((n_rows, n_cols), dtype=np.float32) * 0.05**0.5
    return gguf.quants.quantize((left @ right + rest) * n_cols**-0.5, gguf.GGMLQuantizationType.Q4_0)


def train(path, rank, args):
    """Makes the predictor of a model from the weights of its gates; its thresholds need a text, which is random too."""
    text = path.with_suffix(".txt")
    text.write_text("".join(f" {i}" for i in np.random.default_rng(2).integers(0, 7000, 3000)))
    predictor = path.with_suffix(".sparse.gguf")
    done = run([args.sluice, "sparsify", "-m", path, "-f", text, "-c", 256, "--chunks", 10, "--overwrite",
                "--predictor", f"svd:{rank}", "-o", predictor, "-t", args.threads])
    say(done.stdout.strip())
    return ["--sparse", "predictor", "--sparse-file", predictor]


def tokens_per_second(sluice, model, args, more=()):
    """Decode with Sluice, measured by its bench."""
    return measure(sluice, model, args, more)["avg_ts"]


def measure(sluice, model, args, more=()):
    done = run([sluice, "bench", "-m", model, "-p", 0, "-n", args.tokens, "-r", 1, "-t", args.threads,
                "-o", "jsonl", *more])
    return json.loads(done.stdout)


LLAMA = """
import sys, time
from llama_cpp import Llama
model, threads, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
llm = Llama(model, n_ctx=512, n_threads=threads, n_batch=64, verbose=False)
llm.eval([1, 300, 301]); token = 302
for _ in range(4): llm.eval([token])
start = time.perf_counter()
for i in range(n): llm.eval([302 + i % 1000])
print(n / (time.perf_counter() - start))
"""


def llama_rate(path, args):
    """Decode with llama.cpp by its Python package, in a process of its own; None without the package."""
    done = subprocess.run([sys.executable, "-c", LLAMA, str(path), str(args.threads), str(args.tokens)],
                          capture_output=True, text=True)
    if done.returncode != 0:
        return None
    return float(done.stdout.strip().splitlines()[-1])


def compare(name, args):
    shape, work = SHAPES[name], args.work
    layout = "predicted" if "rank" in shape else "neuron"
    path = work / f"{name}-{N_LAYER}l-Q4_0.gguf"
    panels, neurons = path.with_suffix(".slc"), work / f"{path.stem}.{layout}.slc"
    if not neurons.exists():
        if not path.exists():
            say(f"making {path.name}")
            write(path, shape)
        run([args.sluice, "pack", path, panels])
        run([args.sluice, "pack", "--ffn", layout, path, neurons])
    mode = train(path, shape["rank"], args) if "rank" in shape else []
    active = 100 - measure(args.sluice, neurons, args, mode)["neurons_skipped_percent"]
    if abs(active - shape["active"]) > 5:
        raise Failed(f"{name}: {active:.1f}% of the neurons are active, {shape['active']}% are meant")
    pairs, off, llama = [], [], []
    for i in range(args.pairs + 1):
        one = tokens_per_second(args.sluice, panels, args)
        two = tokens_per_second(args.sluice, neurons, args, mode)
        same = tokens_per_second(args.sluice, panels, args)
        if i == 0:
            continue
        pairs.append((one, two, same))
        if args.off:
            off.append(tokens_per_second(args.sluice, neurons, args, ["--sparse", "off"]))
        rate = llama_rate(path, args)
        if rate:
            llama.append(rate)
    median = statistics.median
    ratio = median(two / one for one, two, _ in pairs)
    noise = median(same / one for one, _, same in pairs)
    print(f"{name}, {active:.1f}% active: "
          f"panels {median(p[0] for p in pairs):.2f} tokens/s, by neuron {median(p[1] for p in pairs):.2f}: "
          f"×{ratio:.2f} (bar {shape['bar']:.2f}; panels against themselves ×{noise:.2f})")
    if off:
        print(f"  by neuron, nothing left out: {median(off):.2f}")
    print(f"  llama.cpp (SiLU, which costs the same): {median(llama):.2f}" if llama else "  llama.cpp: not installed")
    if not args.keep:
        for file in (path, panels, neurons):
            file.unlink(missing_ok=True)
    return ratio >= shape["bar"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="shape", help=" or ".join(SHAPES))
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for models")
    parser.add_argument("--sluice", type=pathlib.Path, default=ROOT / "target/release/sluice")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32, help="tokens of a measurement")
    parser.add_argument("--off", action="store_true", help="also measure --sparse off")
    parser.add_argument("--keep", action="store_true", help="keep the models")
    args = parser.parse_args()
    if MISSING:
        raise Failed(f"a package is missing: {MISSING}")
    unknown = [name for name in args.shapes if name not in SHAPES]
    if unknown:
        raise Failed(f"no shape {unknown[0]}: {', '.join(SHAPES)}")
    args.work.mkdir(parents=True, exist_ok=True)
    results = [compare(name, args) for name in args.shapes or SHAPES]
    return 0 if all(results) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failed:
        sys.exit(f"neurons.py: {failed}")
