#!/usr/bin/env python3
"""Trains the Tale model on with ReLU gates, so that most of its neurons are inactive.

    relu_model.py TALE_FOLDER TEXT OUT_FOLDER [--steps 300] [--penalty 0.1]
    sluice convert --outtype q8_0 OUT_FOLDER tests/fixtures/sparse/tale-relu-5.8m-Q8_0.gguf

The model with SiLU gates is the teacher: the one with ReLU learns its distributions on TEXT, stories between
<|endoftext|>. An L1 penalty on the activated gates (as ProSparse, arXiv 2402.13516), which rises over the first
half, makes them sparse. Prints the density of each layer and the loss as it goes on. With torch 2.15.0 and
transformers 5.24.0 on CPU.
"""

import argparse
import math
import pathlib
import time

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

LENGTH = 256
BATCH = 16


def windows(tokenizer, text):
    """All tokens of a text, in windows of one length: (windows, LENGTH)."""
    ids = []
    for story in text.split("<|endoftext|>"):
        if story.strip():
            ids += [tokenizer.eos_token_id, *tokenizer(story.strip(), add_special_tokens=False)["input_ids"]]
    count = len(ids) // LENGTH
    return torch.tensor(ids[: count * LENGTH]).view(count, LENGTH)


class Gates:
    """The activated gates of all layers of the last step."""

    def __init__(self, model):
        self.seen = []
        for layer in model.model.layers:
            layer.mlp.act_fn.register_forward_hook(lambda _module, _input, output: self.seen.append(output))

    def take(self):
        seen, self.seen = self.seen, []
        return seen


def rate(step, steps):
    warm = min(1.0, (step + 1) / 20)
    return warm * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tale", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--penalty", type=float, default=0.1)
    parser.add_argument("--rate", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(20261130)
    tokenizer = AutoTokenizer.from_pretrained(args.tale)
    teacher = AutoModelForCausalLM.from_pretrained(args.tale, dtype=torch.float32).eval()
    student = AutoModelForCausalLM.from_pretrained(args.tale, dtype=torch.float32, hidden_act="relu")
    gates = Gates(student)
    data = windows(tokenizer, args.text.read_text())
    print(f"{data.numel()} tokens")
    optimiser = torch.optim.AdamW(student.parameters(), lr=args.rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate(step, args.steps))
    order, start = torch.randperm(len(data)), time.monotonic()
    for step in range(args.steps):
        at = step * BATCH % (len(data) - BATCH)
        if at < BATCH:
            order = torch.randperm(len(data))
        batch = data[order[at : at + BATCH]]
        with torch.no_grad():
            wanted = functional.log_softmax(teacher(batch).logits, -1)
        logits = student(batch).logits
        seen = gates.take()
        found = functional.log_softmax(logits, -1)
        loss = functional.kl_div(found, wanted, log_target=True, reduction="none").sum(-1).mean()
        active = torch.stack([gate.mean() for gate in seen]).mean()
        penalty = args.penalty * min(1.0, 2 * step / args.steps)
        optimiser.zero_grad()
        (loss + penalty * active).backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 20 == 0 or step + 1 == args.steps:
            density = " ".join(f"{(gate > 0).float().mean():.2f}" for gate in seen)
            took = time.monotonic() - start
            print(f"step {step}: KL {loss:.4f}, gates {active:.4f}, density {density}, {took:.0f} s", flush=True)
    student.to(torch.bfloat16).save_pretrained(args.out)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (args.out / name).write_bytes((args.tale / name).read_bytes())


if __name__ == "__main__":
    main()
