#!/usr/bin/env python3
"""What a key over its budget uses in ten minutes, while the file of keys is read again every ten seconds.

Run: benches/peers/budget.py [--seconds 600] [--per-minute 3000] [--clients 4]
It starts the release build on the small model, asks without a pause, and compares what was used (usage in the replies)
with the budget, six seconds of it that were saved up (1% of ten minutes), and a request. No request may fail but with 429.
"""

import argparse
import hashlib
import json
import pathlib
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "hosted/models/tale-5.8m-Q4_K_M.gguf"
KEY = "over"
N_WRITTEN = 64


def ask(address, number):
    body = {"prompt": f"Tale {number}: once upon a time", "max_tokens": N_WRITTEN, "ignore_eos": True}
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as reply:
        usage = json.load(reply)["usage"]
    return usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] + usage["completion_tokens"]


def client(address, number, end, used, failed):
    while time.monotonic() < end:
        try:
            used.append(ask(address, number))
        except urllib.error.HTTPError as error:
            if error.code != 429:
                failed.append(f"{error.code}: {error.read()[:200]}")
                return
            time.sleep(min(int(error.headers["retry-after"]), max(0, end - time.monotonic())))
        except OSError as error:
            failed.append(repr(error))
            return


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--per-minute", type=int, default=3000)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keys = pathlib.Path(folder, "keys.toml")
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        keys.write_text(f'[[key]]\nname = "over"\nsha256 = "{digest}"\ntokens_per_minute = {options.per_minute}\n')
        command = [ROOT / "target/release/sluice", "serve", "-m", MODEL, "--port", "0", "-t", "1", "--keys", keys]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            address = next(line.split()[-1] for line in server.stderr if "listening on" in line)
            threading.Thread(target=server.stderr.read, daemon=True).start()
            end = time.monotonic() + options.seconds
            used, failed = [], []
            clients = [
                threading.Thread(target=client, args=(address, number, end, used, failed))
                for number in range(options.clients)
            ]
            for thread in clients:
                thread.start()
            while any(thread.is_alive() for thread in clients):
                server.send_signal(signal.SIGHUP)
                time.sleep(10)
            server.terminate()
    budget = options.per_minute * options.seconds / 60
    most = budget + options.per_minute / 10 + max(used)
    print(f"used {sum(used)} in {options.seconds} s; the budget is {budget:.0f}, the bar {most:.0f}; failed: {failed}")
    raise SystemExit(sum(used) > most or bool(failed))


if __name__ == "__main__":
    main()
