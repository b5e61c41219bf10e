#!/usr/bin/env python3
"""Writes tests/fixtures/train/{optimizer,schedules}.json: torch's AdamW and transformers' learning rates.

    python3 tests/tools/optimizer_goldens.py tests/fixtures/train    # torch 2.15.0, transformers 5.24.0

The optimizer takes 1,000 steps on gradients that are a function of the step and the index, sums over N labels. The
golden has the values after some of the steps in f64, those at the end in f32, and the norms before clipping in f64.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import get_scheduler

TENSORS = [32, 24, 40, 16]  # A and B of two matrices
STEPS = 1000
RECORDED = [1, 2, 10, 100, STEPS]

CASES = {
    "defaults": dict(lr=2e-4, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.0, max_norm=1.0, b_ratio=1.0, name="constant", warmup=0),
    "lora_plus": dict(lr=1e-3, betas=[0.9, 0.95], eps=1e-6, weight_decay=0.01, max_norm=0.3, b_ratio=16.0, name="linear", warmup=30),
    "unclipped": dict(lr=5e-3, betas=[0.8, 0.99], eps=1e-3, weight_decay=0.1, max_norm=None, b_ratio=1.0, name="cosine", warmup=10),
}


def noise(step, index):
    """A number from -1 to 1, which f32 can hold."""
    x = (index * 2654435761 + step * 2246822519 + 374761393) % 2**32
    x = ((x ^ (x >> 15)) * 2246822519) % 2**32
    return ((x >> 16) - 32768) / 32768


def labels(step):
    return 90 + step % 13


def gradient(step, index):
    return (noise(step, index) + (index % 7 - 3) / 8) * 64


def run(case, dtype):
    total = sum(TENSORS)
    start = torch.tensor([noise(0, i) / 8 for i in range(total)], dtype=dtype)
    params = [torch.nn.Parameter(part.clone()) for part in start.split(TENSORS)]
    groups = [
        {"params": params[0::2], "lr": case["lr"]},
        {"params": params[1::2], "lr": case["lr"] * case["b_ratio"]},
    ]
    adamw = torch.optim.AdamW(groups, lr=case["lr"], betas=case["betas"], eps=case["eps"], weight_decay=case["weight_decay"])
    schedule = get_scheduler(case["name"], adamw, num_warmup_steps=case["warmup"], num_training_steps=STEPS)
    values, norms = {}, {}
    for step in range(1, STEPS + 1):
        sums = torch.tensor([gradient(step, i) for i in range(total)], dtype=dtype)
        for param, part in zip(params, (sums * (1 / labels(step))).split(TENSORS)):
            param.grad = part.clone()
        norm = torch.nn.utils.clip_grad_norm_(params, case["max_norm"] or float("inf"))
        adamw.step()
        schedule.step()
        if step in RECORDED:
            values[step] = torch.cat([param.detach() for param in params]).tolist()
            norms[step] = norm.item()
    return values, norms


def schedules():
    kwargs = [
        ("constant", 0, {}),
        ("constant_with_warmup", 7, {}),
        ("linear", 0, {}),
        ("linear", 7, {}),
        ("linear", 50, {}),
        ("cosine", 7, {}),
        ("cosine", 0, {"num_cycles": 1.75}),
        ("cosine_with_min_lr", 7, {"min_lr_rate": 0.1}),
        ("cosine_with_min_lr", 3, {"min_lr": 3e-5, "num_cycles": 1.0}),
        ("warmup_stable_decay", 7, {"num_decay_steps": 12, "decay_type": "linear"}),
        ("warmup_stable_decay", 7, {"num_decay_steps": 12, "decay_type": "cosine", "warmup_type": "cosine", "min_lr_ratio": 0.05}),
        ("warmup_stable_decay", 7, {"num_decay_steps": 12, "decay_type": "1-sqrt", "warmup_type": "1-sqrt", "num_stable_steps": 9}),
        ("warmup_stable_decay", 7, {"num_decay_steps": 60, "decay_type": "cosine", "num_cycles": 1.5}),
    ]
    out = []
    for name, warmup, more in kwargs:
        adamw = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=2e-4)
        schedule = get_scheduler(name, adamw, num_warmup_steps=warmup, num_training_steps=40, scheduler_specific_kwargs=dict(more))
        rates = []
        for _ in range(44):
            rates.append(schedule.get_last_lr()[0])
            adamw.step()
            schedule.step()
        out.append({"name": name, "warmup": warmup, "total": 40, "learning_rate": 2e-4, "kwargs": more, "rates": rates})
    return out


def main():
    folder = Path(sys.argv[1])
    cases = []
    for name, case in CASES.items():
        values, norms = run(case, torch.float64)
        single, _ = run(case, torch.float32)
        cases.append({"case": name, **case, "norms": norms, "values": values, "f32": single[STEPS]})
    golden = {"tensors": TENSORS, "steps": STEPS, "cases": cases}
    (folder / "optimizer.json").write_text(json.dumps(golden) + "\n")
    (folder / "schedules.json").write_text(json.dumps(schedules()) + "\n")


if __name__ == "__main__":
    main()
