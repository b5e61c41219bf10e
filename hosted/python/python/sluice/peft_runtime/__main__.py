"""The command `sluice-peft`: prompts with adapters, after `peft-cpu-run`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from sluice import ServiceError
from sluice._folder import as_gguf
from sluice.peft_runtime.engine import InferenceEngine
from sluice.peft_runtime.requests import InferenceRequest, InferenceTraceConfig, RequestBatch

TELEMETRY_CSV = Path("reports/runtime_metrics.csv")

USE_BASE = "base"
"""The name of the model without an adapter in `--use-adapter`."""

DESCRIPTION = """Generate text with adapters (LoRA) on a CPU. Without a command, `infer` is run."""

EXAMPLES = """examples:
  sluice-peft infer model.gguf "Once upon a time" --max-new-tokens 32
  sluice-peft hf-folder "The sea" "SELECT" --adapter sql=adapters/sql --use-adapter base --use-adapter sql
  sluice-peft infer --help"""

INFER_EXAMPLES = """Adapters of prompts: give --use-adapter once per prompt, in their order, or once for all prompts;
`base` is the model without an adapter. A single --adapter applies to all prompts unless --use-adapter is given.

MODEL is a GGUF or .slc file, or a Hugging Face folder. A folder is converted once, into ~/.cache/sluice/converted.
Adapters are PEFT folders or GGUF files.

stdout: {"prompts": [...], "outputs": [...]}, in the order of the prompts; outputs are the generated texts.
environment: INFENG_NUM_THREADS, INFENG_NUM_INTEROP_THREADS, INFENG_TOK_THREADS; INFENG_TOKEN_CACHE=0 disables the cache
of tokenized prompts.

examples:
  sluice-peft infer model.gguf "Once upon a time" --max-new-tokens 32 --stop "The end"
  sluice-peft infer hf-folder "The sea" "SELECT" --adapter sql=adapters/sql --use-adapter base --use-adapter sql
  sluice-peft infer model.gguf "Once" --do-sample --temperature 0.8 --seed 1 --telemetry"""

NEEDED = {
    "sft": ("base_model", "adapter_name", "output_dir"),
    "rl": ("base_model", "adapter_name", "output_dir", "reward", "train_file"),
    "pretrain": ("base_model", "output_dir", "train_file"),
}
"""The flags that training commands require without `--config`."""


class UsageError(ValueError):
    """The command line is invalid."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line. Exit code: 0 success, 1 error, 2 wrong usage, 130 Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(given)
        sys.stdout.flush()
    except UsageError as error:
        code = _failed(error, 2)
    except BrokenPipeError:
        # The reader has closed stdout; nothing is written at the interpreter's exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (OSError, ValueError, ServiceError) as error:
        code = _failed(error, 1)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _failed(error: BaseException, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


def _run(given: list[str]) -> int:
    if given and given[0] not in COMMANDS and given[0] not in ("-h", "--help", "--version"):
        given = ["infer", *given]
    parser = _parser()
    args = parser.parse_args(given)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    run: Callable[[argparse.Namespace], int] = args.run
    return run(args)


def _infer(args: argparse.Namespace) -> int:
    adapters = _adapters(args.adapter)
    names = _used(args.use_adapter, list(adapters), len(args.prompts))
    config = InferenceTraceConfig(
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        do_sample=args.do_sample,
        stop_sequences=args.stop,
        seed=args.seed,
    )
    requests = [InferenceRequest(prompt, name) for prompt, name in zip(args.prompts, names, strict=True)]
    if args.dtype is not None and Path(args.model).is_file():
        _note(f"--dtype {args.dtype} applies only to folders: {args.model} keeps its types")
    if args.temperature > 0 and not args.do_sample:
        _note("--temperature and --top-p require --do-sample")
    telemetry = args.telemetry_csv or (TELEMETRY_CSV if args.telemetry else None)
    model = as_gguf(args.model, args.dtype, _note)
    with InferenceEngine(model, adapters, n_ctx=args.n_ctx, telemetry_csv=telemetry) as engine:
        result = engine.run(RequestBatch(requests, config))
    json.dump({"prompts": args.prompts, "outputs": result.outputs}, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
    if telemetry is not None:
        figures = result.metrics
        _note(
            f"{figures['new_tokens']} tokens in {figures['latency_s']:.3f} s, "
            f"{figures['tokens_per_second']:.1f} a second, first after {figures['ttft_s']:.3f} s; "
            f"stages are in {telemetry}"
        )
    return 0


def _later(args: argparse.Namespace) -> int:
    if args.config is None:
        missing = [name for name in NEEDED[args.command] if getattr(args, name) is None]
        if missing:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
            raise UsageError(f"{args.command}: without --config, {flags} must be given")
    raise UsageError(f"{args.command}: training is not supported yet; use `infer`")


def _adapters(given: Sequence[str]) -> dict[str, str]:
    adapters: dict[str, str] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise UsageError(f"--adapter {text}: expected name=path")
        if name == USE_BASE:
            raise UsageError(f"--adapter {text}: {USE_BASE} is the model without an adapter")
        if name in adapters:
            raise UsageError(f"--adapter {text}: {name} is defined twice")
        adapters[name] = path
    return adapters


def _used(given: Sequence[str], adapters: Sequence[str], n_prompts: int) -> list[str | None]:
    """The adapter of each prompt."""
    if not given:
        if len(adapters) > 1:
            known = ", ".join(adapters)
            raise UsageError(
                f"several adapters are given: select one with --use-adapter NAME ({known}, {USE_BASE})"
            )
        return [adapters[0] if adapters else None] * n_prompts
    for name in given:
        if name != USE_BASE and name not in adapters:
            raise UsageError(f"--use-adapter {name}: --adapter {name}=PATH is missing")
    if len(given) not in (1, n_prompts):
        raise UsageError(
            f"--use-adapter is given {len(given)} times for {n_prompts} prompts: give it once, or once per prompt"
        )
    names = [None if name == USE_BASE else name for name in given]
    return names * n_prompts if len(names) == 1 else names


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "sluice-peft", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=raw, allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", metavar="infer | sft | rl | pretrain")
    infer = commands.add_parser(
        "infer",
        help="generate text from prompts",
        epilog=INFER_EXAMPLES,
        formatter_class=raw,
        allow_abbrev=False,
    )
    infer.set_defaults(run=_infer)
    add = infer.add_argument
    add("model", metavar="MODEL", help="GGUF or .slc file, or Hugging Face folder")
    add("prompts", metavar="PROMPT", nargs="+")
    add(
        "--adapter",
        metavar="NAME=PATH",
        action="append",
        default=[],
        help="add an adapter; may be repeated",
    )
    add(
        "--use-adapter",
        metavar="NAME",
        action="append",
        default=[],
        help="set the adapter of a prompt, or `base`",
    )
    add(
        "--max-new-tokens",
        metavar="N",
        type=int,
        default=128,
        help="set the maximum number of output tokens [128]",
    )
    add("--temperature", metavar="T", type=float, default=0.0, help="of sampling [0.0]")
    add("--top-p", metavar="P", type=float, default=0.95, help="of sampling [0.95]")
    add("--do-sample", action="store_true", help="sample instead of taking the most likely token")
    add("--seed", metavar="N", type=int, help="set the random seed; prompt i uses N + i")
    add(
        "--stop",
        metavar="TEXT",
        action="append",
        default=[],
        help="end an output before this text; may be repeated",
    )
    add("--n-ctx", metavar="N", type=int, help="set the context size of all texts together [the model's]")
    add("--telemetry", action="store_true", help=f"write the time of each stage to {TELEMETRY_CSV}")
    add("--telemetry-csv", metavar="FILE", type=Path, help="write it to FILE")
    add(
        "--dtype",
        metavar="TYPE",
        help="set the weight type of a converted folder: float32, float16, bfloat16, q8_0 ... [its own]",
    )
    for name in NEEDED:
        _add_training(
            commands.add_parser(name, help="training (not supported yet)", allow_abbrev=False), name
        )
    return parser


def _add_training(parser: argparse.ArgumentParser, name: str) -> None:
    parser.set_defaults(run=_later)
    texts = ["--config", "--base-model", "--output-dir", "--train-file", "--text-field", "--dtype"]
    counts = ["--epochs", "--batch-size"]
    factors = ["--lr", "--weight-decay"]
    if name != "pretrain":
        texts += ["--adapter-name", "--hf-cache-dir"]
    if name == "sft":
        counts += ["--lora-r"]
        factors += ["--lora-alpha", "--lora-dropout"]
        parser.add_argument("--prompt", action="append", default=[])
    if name == "rl":
        texts += ["--reward"]
        counts += ["--max-new-tokens", "--mini-batch-size"]
        factors += ["--kl-coef", "--gamma"]
    else:
        counts += ["--max-seq-len"]
    for flag in texts:
        parser.add_argument(flag)
    for flag in counts:
        parser.add_argument(flag, type=int)
    for flag in factors:
        parser.add_argument(flag, type=float)
    parser.add_argument("--no-shuffle", action="store_true")


COMMANDS = ("infer", *NEEDED)

if __name__ == "__main__":
    main()
