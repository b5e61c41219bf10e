#!/usr/bin/env python3
"""Hard times for `sluice serve`: slow proofs, run by hand.

    tests/clients/hardship.py overload [--seconds 300] [--sluice target/release/sluice]
    tests/clients/hardship.py kill [--times 50]
    tests/clients/hardship.py long [--model FILE]

`overload`: some ten times as many requests as can be served, 1,000 connections, clients that leave, read slowly or
send rubbish, a disk that is full under --cache-dir, and a process that keeps one core busy. Each answer that comes is
compared with the one that came when nothing else ran. A process of its own asks for /health all the while.
`kill`: SIGKILL at random moments under load with --cache-dir; after each the server starts, and answers are the same.
`long`: one stream is written while a prompt of 4,000 tokens is read.

Only the standard library. Everything is on loopback. Exit code 0 if all held.
"""
import argparse, asyncio, contextlib, json, os, pathlib, random, shutil, signal, socket, statistics, subprocess, sys
import tempfile, time, urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
TALE = ROOT / "hosted/models/tale-5.8m-Q4_K_M.gguf"
PROBE = """
import sys, time, urllib.request
url, end, times = sys.argv[1], time.time() + float(sys.argv[2]), []
while time.time() < end:
    start = time.time()
    urllib.request.urlopen(url + "/health", timeout=30).read()
    times.append(time.time() - start)
    time.sleep(0.05)
times.sort()
print(f"{1e3 * times[len(times) // 2]:.1f} {1e3 * times[int(len(times) * .99)]:.1f} {1e3 * times[-1]:.1f} {len(times)}")
"""


class Server:
    def __init__(self, sluice, model, *flags):
        with contextlib.closing(socket.socket()) as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = tempfile.TemporaryFile()
        command = [sluice, "serve", "-m", model, "--port", self.port, "--metrics", *flags]
        start = time.time()
        self.process = subprocess.Popen([str(part) for part in command], stderr=self.log)
        while True:
            with contextlib.suppress(OSError):
                if urllib.request.urlopen(self.url + "/health", timeout=10).status == 200:
                    break
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended with {self.process.returncode}: {self.said()}")
            time.sleep(0.01)
        self.started = time.time() - start

    def rss(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) >> 10

    def said(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def stop(self):
        start = time.time()
        self.process.terminate()
        return self.process.wait(60), time.time() - start


def body(i, stream=False, **more):
    """The request with number `i`: always the same."""
    choose = random.Random(i)
    n = choose.choice([4, 40, 100, 200])
    prompt = [7] * 64 * choose.choice([0, 1, 2]) + [choose.randrange(300, 3000) for _ in range(n)]
    return {"prompt": prompt, "max_tokens": choose.choice([1, 20, 60]), "seed": i, "temperature": choose.choice([0, 1]),
            "stream": stream, "ignore_eos": True, "logprobs": 1, **more}


async def request(port, payload, path="/v1/completions", read=None):
    """Status and body; `read` may stop reading early or read slowly."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + data)
        await writer.drain()
        if read:
            return await read(reader)
        answer = await reader.read(-1)
        head, _, rest = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1]) if head else 0
        if b"chunked" in head.lower():
            rest = b"".join(unchunked(rest))
        return status, rest
    finally:
        writer.close()


def unchunked(data):
    while data:
        size, _, data = data.partition(b"\r\n")
        n = int(size, 16)
        if n == 0:
            return
        yield data[:n]
        data = data[n + 2:]


def essence(data, stream):
    """What must be the same: the text and the bits of the log-probabilities."""
    if not stream:
        choice = json.loads(data)["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"]
    text, probabilities = "", []
    for line in data.decode().split("\n"):
        if line.startswith("data: {"):
            for choice in json.loads(line[6:]).get("choices", []):
                text += choice["text"]
                probabilities += (choice.get("logprobs") or {}).get("token_logprobs", [])
    return text, probabilities


async def leave(reader):
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(reader.read(300), random.random())
    return 0, b""


async def slowly(reader):
    got = b""
    for _ in range(200):
        part = await reader.read(64)
        if not part:
            break
        got += part
        await asyncio.sleep(0.02)
    return 0, got


def rubbish(i):
    data = bytearray(json.dumps(body(i)).encode())
    choose = random.Random(-i)
    for _ in range(choose.randrange(1, 8)):
        data[choose.randrange(len(data))] = choose.randrange(256)
    return bytes(data)


async def expected(port, n):
    wanted = {}
    for i in range(n):
        status, data = await request(port, body(i))
        assert status == 200, (status, data)
        wanted[i] = essence(data, False)
    return wanted


def overload(args):
    folder = pathlib.Path(tempfile.mkdtemp())
    is_full = os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", folder]).returncode == 0
    if not is_full:
        print("SKIPPED: a full disk: no small file system can be mounted here")
    server = Server(args.sluice, TALE, "-np", "16", "-c", "8192", "--cache-dir", folder, "--max-queue", "200", "--timeout", "20",
                    "--cache-ram", "64")
    wanted = asyncio.run(expected(server.port, 60))
    before = server.rss()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    probe = subprocess.Popen([sys.executable, "-c", PROBE, server.url, str(args.seconds)], stdout=subprocess.PIPE, text=True)
    counts, peak = {}, [before]

    def count(what):
        counts[what] = counts.get(what, 0) + 1

    async def client(number, end):
        choose = random.Random(number)
        while time.time() < end:
            i, kind = choose.randrange(60), choose.random()
            try:
                if number < 200 and kind < 0.7:
                    await request(server.port, body(i, True), read=leave)
                    count("left")
                elif number < 250 and kind < 0.7:
                    await request(server.port, body(i, True), read=slowly)
                    count("slow")
                elif number < 350 and kind < 0.7:
                    status, _ = await request(server.port, rubbish(i))
                    count(f"rubbish {status}")
                else:
                    stream = choose.random() < 0.5
                    status, data = await request(server.port, body(i, stream))
                    if status == 429:
                        count("429")
                        await asyncio.sleep(choose.random())
                        continue
                    count(f"status {status}")
                    if status == 200:
                        count("right" if essence(data, stream) == wanted[i] else "WRONG")
            except (ConnectionError, asyncio.IncompleteReadError, ValueError, KeyError) as error:
                count(f"LOST {type(error).__name__}: {error}")

    async def watch(end):
        while time.time() < end:
            peak[0] = max(peak[0], server.rss())
            await asyncio.sleep(1)

    async def all_clients():
        end = time.time() + args.seconds
        await asyncio.gather(watch(end), *(client(number, end) for number in range(1000)))

    try:
        asyncio.run(all_clients())
        p50, p99, worst, n = probe.communicate(timeout=60)[0].split()
    finally:
        busy.kill()
        probe.kill()
    again = asyncio.run(expected(server.port, 60))
    code, took = server.stop()
    if is_full:
        subprocess.run(["umount", folder])
    shutil.rmtree(folder, ignore_errors=True)
    print(f"requests: {counts}")
    print(f"/health: p50 {p50} ms, p99 {p99} ms, worst {worst} ms of {n}")
    print(f"memory: {before} MiB before, {peak[0]} MiB at most")
    print(f"end: code {code} after {took:.1f} s")
    held = {"answers": counts.get("right", 0) > 100 and not any(key.startswith(("WRONG", "LOST", "status 5")) for key in counts),
            "the same afterwards": again == wanted, "health": float(p99) <= 100, "memory": peak[0] <= before + 600,
            "clean end": code == 0}
    if is_full:
        held["the full disk was seen"] = "goes on without" in server.said()
    return held


def kill(args):
    folder = tempfile.mkdtemp()
    flags = ["-np", "8", "-c", "8192", "--cache-dir", folder]
    server = Server(args.sluice, TALE, *flags)
    load = server.started
    wanted = asyncio.run(expected(server.port, 40))
    wrong, hits, starts = 0, 0, []

    async def some(port, kill_after):
        async def one(i):
            with contextlib.suppress(OSError, ValueError, KeyError):
                status, data = await request(port, body(i))
                if status == 200:
                    found = json.loads(data)
                    return essence(data, False) == wanted[i], found["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
            return None
        jobs = [asyncio.create_task(one(random.randrange(40))) for _ in range(24)]
        await asyncio.sleep(kill_after)
        server.process.kill()
        return [found for found in await asyncio.gather(*jobs) if found]

    for _ in range(args.times):
        for right, hit in asyncio.run(some(server.port, random.random() * 0.5)):
            wrong += not right
            hits += hit
        server.process.wait()
        server = Server(args.sluice, TALE, *flags)
        starts.append(server.started)
    again = asyncio.run(expected(server.port, 40))
    damaged = server.said().count("damaged")
    code, _ = server.stop()
    shutil.rmtree(folder)
    print(f"{args.times} kills: {wrong} wrong answers, {hits} from the cache, {damaged} damaged pages at the end")
    print(f"start: {load:.2f} s at first, then {statistics.median(starts):.2f} s, {max(starts):.2f} s at most")
    return {"answers": wrong == 0 and hits > 0, "the same afterwards": again == wanted,
            "start": statistics.median(starts) <= 2 * load + 0.2, "clean end": code == 0}


def long(args):
    server = Server(args.sluice, args.model, "-np", "4", "-c", "16384")
    choose = random.Random(1)

    async def tokens(n, long_at=None):
        times = []

        async def read(reader):
            while len(times) < n:
                part = await reader.read(1 << 16)
                if not part:
                    break
                times.extend([time.time()] * part.count(b"data: {"))
            return 0, b""

        payload = {"prompt": [choose.randrange(300, 3000) for _ in range(32)], "max_tokens": n, "stream": True,
                   "ignore_eos": True, "temperature": 0}
        stream = asyncio.create_task(request(server.port, payload, read=read))
        reading = None
        if long_at is not None:
            while len(times) < long_at:
                await asyncio.sleep(0.01)
            prompt = [choose.randrange(300, 3000) for _ in range(4000)]
            began = time.time()
            await request(server.port, {"prompt": prompt, "max_tokens": 1, "temperature": 0})
            reading = (began, time.time())
        await stream
        return times, reading

    quiet, _ = asyncio.run(tokens(60))
    quiet = statistics.median(b - a for a, b in zip(quiet[5:], quiet[6:]))
    times, (began, ended) = asyncio.run(tokens(600, 20))
    during = sorted(b - a for a, b in zip(times, times[1:]) if began <= b <= ended + 0.5)
    p99 = during[int(len(during) * 0.99)]
    server.stop()
    bar = 2 * (quiet + 0.05)
    print(f"quiet {1e3 * quiet:.1f} ms; while the prompt was read ({ended - began:.1f} s, {len(during)} tokens): "
          f"p50 {1e3 * during[len(during) // 2]:.1f}, p99 {1e3 * p99:.1f}, worst {1e3 * during[-1]:.1f} ms; bar {1e3 * bar:.1f} ms")
    return {"p99": p99 <= bar}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["overload", "kill", "long"])
    parser.add_argument("--sluice", type=pathlib.Path, default=ROOT / "target/release/sluice")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--model", type=pathlib.Path, default=TALE)
    args = parser.parse_args()
    held = {"overload": overload, "kill": kill, "long": long}[args.what](args)
    print(", ".join(f"{what}: {'held' if is_held else 'NOT HELD'}" for what, is_held in held.items()))
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
