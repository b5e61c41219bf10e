#!/usr/bin/env python3
"""The bare-metal image under KVM, compared with the hosted program: same model, cores and steps, alternating, medians.

    benches/peers/metal.py                       11 pairs of 10,240 tokens on one core
    benches/peers/metal.py --cores 2             the same on two, where the accelerator starts them
    benches/peers/metal.py --pairs 3 --tokens 2048 --core 1 --model model.gguf

Both decode one token after the other into a context of --ctx tokens, again and again; neither's times
have the draws of tokens in them. The hosted one asks for isolation (a core, locked huge pages; what
was refused is on its stderr), the image's virtual CPUs get the same core or cores, and both the same
priority: --nice -20, where that is allowed. A realtime class would have Linux stop either for 50 ms of
every second, and only one of them counts that in tokens/s. Prints tokens/s, latencies by percentile
and the image's time from the loader's hand-over to the first token. Exit code: 0 the bars are held, 1
one is missed, or something failed, 2 wrong usage.
"""
import argparse, json, os, pathlib, re, shutil, signal, statistics, subprocess, sys

# A shell that starts a program in the background has it ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
FIELDS = "tokens_per_s", "p50_us", "p99_us", "p999_us"


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600)
    # QEMU leaves with 2 × 16 + 1 where the image said "done".
    if done.returncode not in (0, 33):
        sys.exit(f"{command[0]}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def hosted(options):
    """Repetitions of a whole context: the depths that the image goes through, too."""
    mask = hex(((1 << options.cores) - 1) << options.core)
    lines = run([*options.priority, TARGET / "release/sluice", "bench", "-m", options.model,
                 "-p", 0, "-n", options.ctx, "-r", max(1, options.tokens // options.ctx), "-t", options.cores,
                 "-C", mask, "--cpu-strict", 1, "--mlock", "--huge-pages", "on", "-o", "jsonl"])
    row = json.loads(lines.strip().splitlines()[-1])
    return dict(zip(FIELDS, [row["avg_ts"]] + [row[f"latency_{p}_ns"] / 1000 for p in ("p50", "p99", "p999")]))


def bare(options):
    words = f"bench temp=0 ctx={options.ctx} n={options.tokens + 1}"
    cores = f"{options.core}-{options.core + options.cores - 1}"
    text = run([*options.priority, "taskset", "-c", cores, "timeout", "300",
                "qemu-system-x86_64", "-accel", "kvm", "-cpu", "host,-arch-capabilities", "-M", "microvm,pit=on,isa-serial=on",
                "-smp", options.cores, "-m", options.memory,
                "-display", "none", "-serial", "stdio", "-no-reboot", "-net", "none",
                "-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-kernel", TARGET / "metal/sluice-metal",
                "-initrd", options.model, "-append", words])
    number = lambda pattern: float(re.search(pattern, text)[1])
    found = dict(zip(FIELDS, map(number, (r"(?m)^ +eval time .*\( *([\d.]+) per second", r"p50 (\d+) us",
                                          r"p99 (\d+) us", r"p99\.9 (\d+) us"))))
    if f", {options.cores} threads" not in text:
        sys.exit(f"the image has not started {options.cores} cores:\n{text[-2000:]}")
    return found | {"first_token_ms": number(r"time to first token = +([\d.]+) ms")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "hosted/models/tale-5.8m-Q4_K_M.gguf")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--tokens", type=int, default=10240, help="decoded in each run")
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--core", type=int, default=0, help="the first one")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--memory", type=int, default=512, help="MiB for the image")
    parser.add_argument("--nice", type=int, default=-20, help="priority of both")
    parser.add_argument("--no-build", action="store_true")
    options = parser.parse_args()
    if not os.access("/dev/kvm", os.R_OK | os.W_OK) or not shutil.which("qemu-system-x86_64"):
        sys.exit("needs /dev/kvm and qemu-system-x86_64 (Debian: qemu-system-x86)")
    if not options.no_build:
        for profile, package in ("release", "sluice-cli"), ("metal", "sluice-metal"):
            subprocess.run(["cargo", "build", "--manifest-path", ROOT / "Cargo.toml", "--locked",
                            "--profile", profile, "-p", package], check=True)
    options.priority = ["nice", "-n", options.nice]
    # GNU nice goes on without what it was refused, and says so.
    if subprocess.run(["nice", "-n", str(options.nice), "true"], capture_output=True).stderr:
        print(f"not allowed here: --nice {options.nice}", file=sys.stderr)
        options.priority = []
    pairs = []
    for i in range(options.pairs):
        # Who goes first takes turns.
        order = (hosted, bare) if i % 2 == 0 else (bare, hosted)
        pairs.append({one.__name__: one(options) for one in order})
        print(f"pair {i + 1}: " + "; ".join(
            f"{name} {r['tokens_per_s']:.0f} tokens/s, p50 {r['p50_us']:.0f} p99 {r['p99_us']:.0f} p99.9 {r['p999_us']:.0f} us"
            for name, r in sorted(pairs[-1].items(), reverse=True)), flush=True)
    median = lambda side, key: statistics.median(pair[side][key] for pair in pairs)
    print("\nmedians     tokens/s   p50 us   p99 us  p99.9 us  p99.9/p50")
    tail = {}
    for side in "hosted", "bare":
        tail[side] = statistics.median(pair[side]["p999_us"] / pair[side]["p50_us"] for pair in pairs)
        print(f"{side:9} {median(side, 'tokens_per_s'):10.1f}" + "".join(f"{median(side, k):9.0f}" for k in FIELDS[1:])
              + f" {tail[side]:10.3f}")
    speed = statistics.median(pair["bare"]["tokens_per_s"] / pair["hosted"]["tokens_per_s"] for pair in pairs)
    first = median("bare", "first_token_ms")
    bars = [(f"speed, bare / hosted: {speed:.3f}, at least 0.98", speed >= 0.98),
            (f"p99.9/p50: bare {tail['bare']:.3f}, hosted {tail['hosted']:.3f}", tail["bare"] <= tail["hosted"]),
            (f"hand-over to first token: {first:.1f} ms, at most 300", first <= 300)]
    for text, is_held in bars:
        print(f"{'held  ' if is_held else 'MISSED'}  {text}")
    return 0 if all(is_held for _, is_held in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
