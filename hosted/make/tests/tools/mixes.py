#!/usr/bin/env python3
"""Records which type llama-quantize gives every tensor, for ../goldens/mixes.tsv.

    mixes.py LLAMA_QUANTIZE NAME=MODEL.gguf ... > mixes.tsv

One line for each model and file type: the model's name, the file type, and for each kind of tensor (its
name without layer and `.weight`) the types layer by layer, equal neighbours counted. Only --dry-run is
used. The models "lfm2" and "gpt-oss" are written by tests/fixtures/models.py:

    write("lfm2.gguf", "lfm2", arch="lfm2", layers=16, keys={"shortconv.l_cache": 3}, sizes=dict(
        n_embd=256, n_head=8, n_kv=[2 * (i in (2, 5, 8, 10, 12, 14)) for i in range(16)], head=32,
        n_ff=256, n_vocab=512))
    write("gpt-oss.gguf", "gpt-oss", arch="gpt-oss", layers=24, keys=gpt_oss_keys, experts=(32, 4),
        sizes=dict(n_embd=288, n_head=8, n_kv=1, head=64, n_ff=288, n_vocab=512))
"""
import itertools, re, subprocess, sys

FILE_TYPES = """Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q2_K_S Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K
IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ3_XXS IQ3_XS IQ3_S IQ3_M IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4_MOE
F16 BF16 F32""".split()
LINE = re.compile(r"\] +(\S+) +- \[.*?\], type = +(\S+), size = .*?(?:-> .*?MiB \((\S+)\))?\n")

def kinds(text):
    found = {}
    for name, source, target in LINE.findall(text):
        layer, kind = re.fullmatch(r"(?:blk\.(\d+)\.)?(.*?)(?:\.weight)?", name).groups()
        found.setdefault(kind, []).append((int(layer or 0), (target or source).upper()))
    return found

for model in sys.argv[2:]:
    name, path = model.split("=", 1)
    for file_type in FILE_TYPES:
        run = subprocess.run([sys.argv[1], "--dry-run", path, file_type], capture_output=True, text=True)
        cells = []
        for kind, types in sorted(kinds(run.stdout + run.stderr).items()):
            groups = itertools.groupby(ty for _, ty in sorted(types))
            cells.append(kind + "=" + ",".join(f"{len(list(g))}*{ty}" for ty, g in groups))
        print(name, file_type, *cells, sep="\t")
