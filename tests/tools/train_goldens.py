#!/usr/bin/env python3
"""Records losses and gradients of adapters, computed by torch with peft in f32.

    python tests/tools/train_goldens.py MODEL OUT [--rank N]
    python tests/tools/train_goldens.py NAME OUT [--rank N] --convert PROGRAM

MODEL is a GGUF file or a folder of Hugging Face's; its weights become f32. NAME is a family of
`hosted/cli/tests/cli/families`: a tiny random model of transformers' own class, which PROGRAM, `sluice`,
converts to OUT.gguf. OUT.f32 has the gradients of the summed cross-entropy: of A, (rank, columns), then of B,
(rows, rank), for each matrix, by layer and in the order of SITES, rows in the order of GGUF files. OUT.json has
the loss. Tests make the same adapter and texts from the same formulas.
Needs torch, transformers, peft, gguf.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

SITES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LENGTHS = [300, 41]


def numbers(first: int, n: int, scale: float) -> torch.Tensor:
    """Numbers within ±scale, from their index alone."""
    i = numpy.arange(first, first + n, dtype=numpy.uint64)
    hashed = (i * numpy.uint64(2654435761) + numpy.uint64(12345)) % numpy.uint64(1 << 32)
    unit = hashed.astype(numpy.float64) / float(1 << 32) - 0.5
    return torch.from_numpy((2 * scale * unit).astype(numpy.float32))


def rows_in_file(rows: torch.Tensor, heads: int | None) -> torch.Tensor:
    """Rows of queries and keys as GGUF files of llama's family have them: pairs of a head next to each other."""
    if heads is None:
        return rows
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(shape)


def rows_in_folder(rows: torch.Tensor, heads: int | None) -> torch.Tensor:
    """The inverse of rows_in_file."""
    if heads is None:
        return rows
    shape = rows.shape
    return rows.reshape(heads, shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(shape)


def load(path: pathlib.Path) -> torch.nn.Module:
    """A model in f32."""
    if path.is_dir():
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )


def tiny(name: str, program: str, out: pathlib.Path) -> torch.nn.Module:
    """A random model of a family, converted to OUT.gguf."""
    import hf_families
    import hf_logits

    with tempfile.TemporaryDirectory() as scratch:
        case = hf_logits.Case(hf_families.TESTS / "families" / f"{name}.json", pathlib.Path(scratch))
        model = case.prepare(case.config)
        case.save(model, case.config)
        target = str(out.with_suffix(".gguf"))
        command = [
            program,
            "convert",
            str(case.folder),
            "--outtype",
            "f32",
            "-o",
            target,
            "--overwrite",
            "-q",
        ]
        subprocess.run(command, check=True)
        return model


def main() -> None:
    """Records the goldens of a model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--convert", metavar="PROGRAM")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--rank", type=int, default=4)
    args = parser.parse_args()
    model = tiny(str(args.model), args.convert, args.out) if args.convert else load(args.model)
    config = model.config
    permuted = {}
    if config.model_type in ("llama", "granite"):
        permuted = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    lora = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, lora_dropout=0.0, target_modules=SITES)
    model = get_peft_model(model, lora).eval()
    modules = dict(model.named_modules())
    matrices, first = [], 0
    for layer in range(config.num_hidden_layers):
        for site in SITES:
            ends = tuple(f"layers.{layer}.{part}.{site}" for part in ("self_attn", "mlp"))
            name = next(name for name in modules if name.endswith(ends))
            a = modules[name].lora_A["default"].weight
            b = modules[name].lora_B["default"].weight
            heads = permuted.get(site)
            with torch.no_grad():
                a.copy_(numbers(first, a.numel(), 0.1).reshape(a.shape))
                first += a.numel()
                b.copy_(rows_in_folder(numbers(first, b.numel(), 0.1).reshape(b.shape), heads))
                first += b.numel()
            matrices.append((a, b, heads))
    total, labelled, tokens_seen = 0.0, 0, 0
    for index, length in enumerate(LENGTHS):
        tokens = torch.tensor([(7 * i + 3 + 11 * index) % config.vocab_size for i in range(length)])
        logits = model(tokens[None]).logits[0, :-1]
        labels = tokens[1:].clone()
        # Of the second text, the first half is a prompt.
        if index == 1:
            labels[: length // 2] = -100
        loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
        loss.backward()
        total += loss.item()
        labelled += int((labels != -100).sum())
        tokens_seen += length
    gradients = []
    for a, b, heads in matrices:
        gradients += [a.grad.flatten(), rows_in_file(b.grad, heads).flatten()]
    flat = torch.cat(gradients).numpy().astype("<f4")
    args.out.with_suffix(".f32").write_bytes(flat.tobytes())
    record = {"loss": total, "labelled": labelled, "tokens": tokens_seen, "rank": args.rank}
    args.out.with_suffix(".json").write_text(json.dumps(record) + "\n")
    print(record, flat.size, float(numpy.abs(flat).max()))


if __name__ == "__main__":
    main()
