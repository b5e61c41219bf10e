#!/usr/bin/env python3
"""What llama.cpp's converter makes of adapters for the tiny models of many families.

    lora_families.py LLAMA_CPP OUT.json PATH ...

For each file of `hosted/cli/tests/cli/families/` and folder of `hosted/cli/tests/cli/convert/` an adapter in PEFT's folder: pairs of rank 4, of F32 numbers as
`hf_fixtures.py` makes them, for every matrix of the file's `tensors` that could be a linear layer, and for the embedding of
tokens. OUT.json gets, for each family and kind of tensor (`attn_q.weight`), a hash over the `.lora_a` and `.lora_b` of all
layers of the file that `convert_lora_to_gguf.py` of the llama.cpp in LLAMA_CPP writes in F32. Modules that this converter
fails on are listed under `fails`: it cannot turn matrices, or has no rule for them.

The goldens were made with llama.cpp as vendored by llama-cpp-python 0.3.36, torch 2.15 and transformers 5.24.
Needs torch, transformers, safetensors and gguf.
"""

import io
import json
import re
import runpy
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import hf_families
import hf_fixtures

RANK = 4
EMBEDDINGS = ("embed_tokens", "word_embeddings", "tok_embeddings", "backbone.embeddings")
# Matrices that are no linear layers.
OTHERS = ("position_embeddings", "token_type_embeddings", "embed_tokens_per_layer", "pooler.", "classifier", "head.", "cls.")


def case_of(path):
    if not path.is_dir():
        return json.loads(path.read_text())
    tensors = json.loads((path / "tensors.json").read_text())
    return {
        "config": json.loads((path / "config.json").read_text()),
        "tokenizer": path.name,
        "tensors": {name: shape for name, (_, shape) in tensors.items()},
    }


def modules(case):
    out = {}
    for name, shape in case["tensors"].items():
        module = name.removesuffix(".weight")
        is_other = any(part in name for part in OTHERS) and module != "lm_head"
        if name.endswith(".weight") and len(shape) == 2 and not is_other:
            out[module] = shape
    return out


def tensors(module, shape):
    """The pair of a module: names to shapes."""
    rows, columns = shape
    name = f"base_model.model.{module}."
    if module.endswith(EMBEDDINGS):
        return {f"{name}lora_embedding_A": [RANK, rows], f"{name}lora_embedding_B": [columns, RANK]}
    return {f"{name}lora_A.weight": [RANK, columns], f"{name}lora_B.weight": [rows, RANK]}


def adapter(folder, chosen):
    folder.mkdir(exist_ok=True)
    about = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": "all-linear", "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    pairs = {}
    for module, shape in chosen.items():
        pairs |= tensors(module, shape)
    weights = {name: ("F32", shape) for name, shape in pairs.items()}
    hf_fixtures.safetensors(folder / "adapter_model.safetensors", weights)


def converted(llama_cpp, base, folder, chosen):
    """Tensors of the converter's file; none where it fails."""
    adapter(folder, chosen)
    out = folder.parent / "out.gguf"
    sys.argv = ["convert_lora_to_gguf.py", "--base", str(base), "--outfile", str(out), "--outtype", "f32", str(folder)]
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            runpy.run_path(f"{llama_cpp}/convert_lora_to_gguf.py", run_name="__main__")
    except BaseException:
        return None
    from gguf import GGUFReader

    found = {t.name: ([int(n) for n in t.shape], t.data.tobytes()) for t in GGUFReader(out).tensors}
    out.unlink()
    return found


def kind(name):
    return re.sub(r"\d+", "N", name)


def main(llama_cpp, out, *paths):
    sys.path[:0] = [llama_cpp, f"{llama_cpp}/gguf-py"]
    # An installed one may be older than the converter.
    for name in [name for name in sys.modules if name.split(".")[0] == "gguf"]:
        del sys.modules[name]
    import conversion.base as base_classes

    goldens, auto_config = {}, base_classes.AutoConfig
    for path in map(Path, paths):
        case = case_of(path)
        # As `hf_families.py` has it; and transformers' new names of layer types are not known to the converter.
        is_raw = case.get("raw") or "attention" in case["config"].get("layer_types", ())
        base_classes.AutoConfig = None if is_raw else auto_config
        with tempfile.TemporaryDirectory() as scratch:
            base, folder = Path(scratch) / path.stem, Path(scratch) / "adapter"
            hf_families.folder_of(case, base)
            chosen, fails = modules(case), []
            found = converted(llama_cpp, base, folder, chosen)
            if found is None:
                for one in sorted({kind(module) for module in chosen}):
                    some = {m: shape for m, shape in chosen.items() if kind(m) == one}
                    # Experts are converted with all of their layer only.
                    if "experts.N" not in one and converted(llama_cpp, base, folder, some) is None:
                        fails.append(one)
                chosen = {m: shape for m, shape in chosen.items() if kind(m) not in fails}
                found = converted(llama_cpp, base, folder, chosen)
            hashes = {}
            for name in sorted(found or {}):
                dims, data = found[name]
                own = re.sub(r"^blk\.\d+\.", "", name).removesuffix(".lora_a").removesuffix(".lora_b")
                hashes[own] = hashes.get(own, b"") + f"{name} {dims} ".encode() + data
            hashes = {own: hf_fixtures.fnv(data) for own, data in hashes.items()}
            goldens[path.stem] = {"hashes": hashes} | ({"fails": fails} if fails else {})
        print(path.stem, len(hashes), "kinds", *fails)
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(golden)}" for name, golden in goldens.items())
    Path(out).write_text("{\n" + rows + "\n}\n")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
