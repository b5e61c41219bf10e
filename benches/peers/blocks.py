"""ASDSL's outliers and mixed blocks against our types at equal bytes: perplexity and divergence of a small model.

Each scheme rounds all matrices of the model; the rounded weights are put into an F32 copy of the file, so that every row of the
table differs in its weights alone. Ours: `sluice quantize --pure TYPE`, also with another type
for the values (attn_v), or with types chosen by tensor at the bits that outliers take, and back to F32.

* outliers: weights beyond 3.5 standard deviations of their row, 0.5% of them at most, or simply the largest 0.5%, are stored apart
  (fp16 and a column of 16 bits, sorted by row) and are 0 in blocks of 3 or 4 bits with the best scale;
* mixed blocks: 2, 3, 4 or 8 bits for each block, chosen by the error saved per bit, within the bits of our type. Blocks of 32 have an
  fp16 scale and a tag of 2 bits; blocks of 128 have ASDSL's own numbers (f32 scale and offset, u32 place, u8 bits).

    python3 benches/peers/blocks.py --work DIR --model FILE.gguf --text FILE [--chunks 8] [--sluice PROGRAM]

Needs the packages numpy and gguf. No importance matrix anywhere: nothing but the format differs.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys

from llama import ROOT, say

try:
    import gguf
    import numpy as np

    MISSING = None
except ImportError as error:
    MISSING = str(error)

# Where the number of largest magnitude goes, in steps; as in `sluice quantize`, and for 2 and 8 bits alike.
TARGETS = {
    2: [-2.6, -2.3, -2.0, -1.7, 1.2, 1.5],
    3: [-4.9, -4.6, -4.3, -4.0, -3.7, -3.4, 2.8, 3.1, 3.4, 3.7],
    4: [-8.8, -8.5, -8.2, -7.9, -7.6, -7.2, 6.8, 7.2, 7.6],
    8: [-128.0, -127.0, -126.0],
}
# IQ4_NL's values, and its targets for the number of largest magnitude.
NONLINEAR = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
CLIPS = [0.85, 0.90, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0]


def symmetric(x, bits):
    """Blocks (n, 32) in integers of `bits` bits with the fp16 scale of the least squared error."""
    half = 1 << (bits - 1)
    largest = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)[:, 0]
    best, scale = np.full(len(x), -1.0, np.float32), np.zeros(len(x), np.float32)

    def codes(d):
        return np.clip(np.rint(x / np.where(d == 0, 1, d)[:, None]), -half, half - 1)

    for target in TARGETS[bits]:
        q = codes(largest / np.float32(target))
        xq, qq = (x * q).sum(1), (q * q).sum(1)
        s = xq / np.maximum(qq, 1e-30)
        better = s * xq > best
        best, scale = np.where(better, s * xq, best), np.where(better, s, scale)
    d = scale.astype(np.float16).astype(np.float32)
    return codes(d) * d[:, None]


def nonlinear(x):
    """Blocks (n, 32) in IQ4_NL's values with the fp16 scale of the least squared error of a search."""
    values = np.array(NONLINEAR, np.float32)
    edges = (values[1:] + values[:-1]) / 2
    largest = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)[:, 0]
    best, scale = np.full(len(x), -1.0, np.float32), np.zeros(len(x), np.float32)

    def codes(d):
        return values[np.searchsorted(edges, x / np.where(d == 0, 1, d)[:, None])]

    for target in [*range(-148, -100, 6), *range(95, 131, 6)]:
        q = codes(largest / np.float32(target))
        xq, qq = (x * q).sum(1), (q * q).sum(1)
        s = xq / np.maximum(qq, 1e-30)
        better = s * xq > best
        best, scale = np.where(better, s * xq, best), np.where(better, s, scale)
    d = scale.astype(np.float16).astype(np.float32)
    return codes(d) * d[:, None]


def affine(x, bits):
    """Blocks (n, 128) as ASDSL rounds them: smallest and largest number, clipped by the best of nine ratios."""
    low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
    best, out = np.full((len(x), 1), np.inf, np.float32), np.zeros_like(x)
    for clip in CLIPS:
        trim = (high - low) * (1 - clip) / 2
        start = low + trim
        step = np.maximum((high - low) * clip / ((1 << bits) - 1), 1e-12)
        y = np.clip(np.rint((x - start) / step), 0, (1 << bits) - 1) * step + start
        error = ((x - y) ** 2).sum(1, keepdims=True)
        out, best = np.where(error < best, y, out), np.minimum(error, best)
    return out


def mixed(x, size, bits):
    """Blocks of `size` with 2, 3, 4 or 8 bits each, within `bits` a weight; what was used comes back as well."""
    overhead = (16 + 2) / 32 if size == 32 else (32 + 32 + 32 + 8) / 128
    encode = symmetric if size == 32 else affine
    blocks = x.reshape(-1, size)
    choices = [2, 3, 4, 8]
    rounded = [encode(blocks, b) for b in choices]
    errors = np.stack([((blocks - y) ** 2).sum(1) for y in rounded])
    cost = np.array(choices, np.float64)[:, None]
    low, high = 0.0, float(errors.max()) + 1e-12
    for _ in range(60):
        price = (low + high) / 2
        used = np.array(choices)[(errors + price * cost).argmin(0)].mean() + overhead
        low, high = (price, high) if used > bits else (low, price)
    chosen = (errors + high * cost).argmin(0)
    out = np.choose(chosen[:, None], rounded)
    return out.reshape(x.shape), np.array(choices)[chosen].mean() + overhead


def with_outliers(x, bits, by_deviation, encode=symmetric):
    """Blocks of `bits` bits with up to 0.5% of each row's weights apart."""
    distance = np.abs(x - x.mean(1, keepdims=True))
    n = max(int(x.shape[1] * 0.005), 1)
    apart = distance >= np.partition(distance, -n, axis=1)[:, -n][:, None]
    if by_deviation:
        apart &= distance > 3.5 * x.std(1, keepdims=True)
    rest = np.where(apart, 0, x).astype(np.float32)
    y = encode(rest.reshape(-1, 32), bits).reshape(x.shape)
    y = np.where(apart, x.astype(np.float16).astype(np.float32), y)
    return y, bits + 0.5 + 32 * apart.mean()


def schemes():
    for bits in (3, 4):
        size = bits + 0.5
        yield f"{bits} bits, scale of blocks of 32", lambda x, b=bits: (symmetric(x.reshape(-1, 32), b).reshape(x.shape), b + 0.5)
        yield f"{bits} bits, outliers beyond 3.5 deviations", lambda x, b=bits: with_outliers(x, b, True)
        yield f"{bits} bits, outliers: largest 0.5%", lambda x, b=bits: with_outliers(x, b, False)
        yield f"mixed blocks of 32, {size}", lambda x, s=size: mixed(x, 32, s)
        yield f"mixed blocks of 128, {size}", lambda x, s=size: mixed(x, 128, s)
    yield "IQ4_NL's values, outliers: largest 0.5%", lambda x: with_outliers(x, 4, False, lambda x, _: nonlinear(x))


class Bench:
    def __init__(self, args):
        self.args, self.work = args, pathlib.Path(args.work)
        self.work.mkdir(parents=True, exist_ok=True)
        self.base = self.work / "base-f32.gguf"
        self.sluice("quantize", "--overwrite", "--allow-requantize", args.model, self.base, "F32")
        self.logits = self.work / "base.kld"
        shown = self.sluice("perplexity", "-m", self.base, "-f", args.text, "--chunks", args.chunks, "--kl-divergence-base", self.logits)
        say(f"| whole model | 32 | {re.search(r'Final estimate: PPL = ([0-9.]+)', shown)[1]} | 0 | |")

    def sluice(self, *words):
        done = subprocess.run([self.args.sluice, *map(str, words)], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"sluice {words[0]}: {done.stderr}")
        return done.stdout + done.stderr

    def matrices(self):
        reader = gguf.GGUFReader(self.base)
        return [t for t in reader.tensors if len(t.shape) == 2 and t.shape[1] > 1 and t.name.endswith("weight")]

    def measure(self, name, bits, path, error):
        shown = self.sluice("perplexity", "-m", path, "--kl-divergence-base", self.logits, "--kl-divergence")
        ppl, kld = (re.search(key + r"\s*:\s*([0-9.]+)", shown)[1] for key in (r"Mean PPL\(Q\)", "Mean\\s+KLD"))
        say(f"| {name} | {bits:.2f} | {ppl} | {kld} | {error} |")

    def error(self, path):
        """Relative RMSE of all matrices."""
        ours, total, lost = gguf.GGUFReader(path), 0.0, 0.0
        by_name = {t.name: t for t in ours.tensors}
        for tensor in self.matrices():
            x, y = np.asarray(tensor.data, np.float32), np.asarray(by_name[tensor.name].data, np.float32)
            total, lost = total + float((x**2).sum(dtype=np.float64)), lost + float(((x - y) ** 2).sum(dtype=np.float64))
        return f"{(lost / total) ** 0.5:.4f}"

    def theirs(self, name, scheme):
        path = self.work / "rounded.gguf"
        shutil.copyfile(self.base, path)
        n, used = 0, 0.0
        with open(path, "r+b") as file:
            for tensor in self.matrices():
                x = np.asarray(tensor.data, np.float32)
                for first in range(0, len(x), 4096):
                    part = x[first : first + 4096]
                    y, bits = scheme(part)
                    n, used = n + part.size, used + bits * part.size
                    file.seek(int(tensor.data_offset) + first * x.shape[1] * 4)
                    file.write(np.ascontiguousarray(y, np.float32).tobytes())
        self.measure(name, used / n, path, self.error(path))

    def ours(self, name, words):
        packed, path = self.work / "ours.slc", self.work / "ours.gguf"
        shown = self.sluice("quantize", "--overwrite", *words[:-1], self.base, packed, *words[-1])
        bits = float(re.findall(r"\(([0-9.]+) bits per weight\)", shown)[-1])
        self.sluice("quantize", "--overwrite", "--allow-requantize", packed, path, "F32")
        self.measure(name, bits, path, self.error(path))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--sluice", default=ROOT / "target/release/sluice")
    args = parser.parse_args()
    if MISSING:
        sys.exit(f"{MISSING}: pip install numpy gguf")
    say("| weights | bits | perplexity | KL, nats | relative RMSE |\n|---|---|---|---|---|")
    bench = Bench(args)
    for ty in ("LANE3", "Q4_0", "IQ4_NL", "Q4_1", "LANE5", "LANE7"):
        bench.ours(ty, ("--pure", [ty]))
    for ty, values in (("LANE3", "LANE5"), ("LANE3", "LANE7"), ("IQ4_NL", "LANE7"), ("IQ4_NL", "Q8_0")):
        bench.ours(f"{ty}, values in {values}", ("--pure", "--tensor-type", f"attn_v={values}", [ty]))
    for down in ("Q3_K", "IQ3_S"):
        # Rows of down are a multiple of 256, as the others' are not.
        types = ("--tensor-type", "attn_v=LANE7", "--tensor-type", f"ffn_down={down}")
        bench.ours(f"LANE3, values in LANE7, down in {down}", ("--pure", *types, ["LANE3"]))
    for bits in (3.62, 4.62):
        bench.ours(f"chosen by tensor, {bits}", ("--bits-per-weight", str(bits), []))
    for name, scheme in schemes():
        bench.theirs(name, scheme)


if __name__ == "__main__":
    main()
