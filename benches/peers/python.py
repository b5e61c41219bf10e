#!/usr/bin/env python3
"""llama-cpp-python compared with `sluice.Llama`: what programs written for it do, on the same files, in turn.

    benches/peers/python.py --model MODEL.gguf [--model OTHER.gguf] [--pairs N] [--overhead]

Each package runs in a process of its own, with the interpreter given for it (--sluice-python, --llama-python: a
virtual environment that has the package); both classes are called with the same arguments. For each scenario it
prints whether both came to the same, and llama-cpp-python's time by ours as the median over pairs. Greedy texts that
differ are followed to the first token where they do, and the difference of the two best logits there is reported.

llama-cpp-python without a compiler: unpack `llama_cpp` of its source package into site-packages, install numpy,
typing-extensions, diskcache and jinja2, and set LLAMA_CPP_LIB_PATH to the `bin` of the build that `run.py` makes.

--overhead measures streaming through Python against `sluice run` instead, which has the bar: at most 1 % of time more
from the first token to the last.

Exit code: 0 results are the same where they have to be and the bar is met; 1 not.
"""
import argparse, importlib, itertools, json, math, os, pathlib, re, statistics, subprocess, sys, time

from llama import ROOT, Failed, run, say

PROMPT = "Once upon a time there was a small house at the edge of a forest, and in it"
GRAMMAR = 'root ::= ("yes" | "no") ", because " [a-z ]{8,24} "."'
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["cat", "dog"]}},
          "required": ["name", "kind"], "additionalProperties": False}
N_TOKENS = 64
BAR_OVERHEAD = 0.01
# Below this, rounding decides between two tokens: both packages round activations to 8 bits, each in its own way, which
# moves logits by some tenths.
MARGIN = 0.5
WARMUPS = 1
MEAN = 1


class Worker:
    """A package in a process of its own: reads a scenario a line, answers with a line."""

    def __init__(self, package, python, model, args):
        environment = dict(os.environ)
        if package == "sluice" and args.python_path:
            environment["PYTHONPATH"] = str(args.python_path)
        command = [python, __file__, "--worker", package, "--model", model, "-t", args.threads]
        command += ["--chat-format", args.chat_format] if args.chat_format else []
        self.package = package
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=None if args.verbose else subprocess.DEVNULL, env=environment, text=True)

    def ask(self, scenario, *arguments):
        self.process.stdin.write(json.dumps([scenario, *arguments]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"{self.package} ended in {scenario} (--verbose tells more)")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(f"{self.package}: {scenario}: {answer['error']}")
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Scenarios:
    """What is done with either class. Each returns what is compared, and how many tokens it took."""

    def __init__(self, package, model, threads, chat_format):
        self.module = importlib.import_module(package)
        self.package = package
        self.arguments = {"model_path": str(model), "n_ctx": 1024, "n_batch": 512, "n_threads": threads, "verbose": False,
                          "seed": 1, "chat_format": chat_format}
        if package == "sluice":
            # Time, not draft tokens, is compared.
            self.arguments["spec_type"] = "none"
        else:
            self.arguments["n_threads_batch"] = threads
        self.made = {}

    def llama(self, **more):
        """An object with these arguments; made once."""
        key = json.dumps(more)
        if key not in self.made:
            self.made[key] = self.module.Llama(**self.arguments, **more)
        return self.made[key]

    def ids(self, number):
        llama = self.llama()
        tokens = llama.tokenize(prompt(number).encode())
        found = llama.generate(tokens, temp=0.0, repeat_penalty=1.0)
        ids = [int(token) for token in itertools.islice(found, N_TOKENS)]
        return {"prompt": [int(token) for token in tokens], "ids": ids}, len(ids)

    def completion(self, number, **more):
        reply = self.llama().create_completion(prompt(number), **{"max_tokens": N_TOKENS, "temperature": 0.0, **more})
        choice = reply["choices"][0]
        return [choice["text"], choice["finish_reason"]], reply["usage"]["completion_tokens"]

    def stream(self, number):
        chunks = self.llama().create_completion(prompt(number), max_tokens=N_TOKENS, temperature=0.0, stream=True)
        texts = [chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"][0]["finish_reason"] is None]
        return "".join(texts), len(texts)

    def chat(self, number):
        messages = [{"role": "system", "content": "You answer in one sentence."},
                    {"role": "user", "content": f"What is {number} and a half?"}]
        reply = self.llama().create_chat_completion(messages, max_tokens=N_TOKENS, temperature=0.0)
        return reply["choices"][0]["message"]["content"], reply["usage"]["completion_tokens"]

    def grammar(self, number):
        grammar = self.module.LlamaGrammar.from_string(GRAMMAR, verbose=False)
        return self.completion(number, grammar=grammar)

    def schema(self, number):
        messages = [{"role": "user", "content": f"Animal {number}: a name and a kind, as JSON."}]
        reply = self.llama().create_chat_completion(messages, max_tokens=N_TOKENS, temperature=0.0,
                                                    response_format={"type": "json_object", "schema": SCHEMA})
        choice = reply["choices"][0]
        if choice["finish_reason"] == "stop":
            json.loads(choice["message"]["content"])
        return choice["message"]["content"], reply["usage"]["completion_tokens"]

    def embeddings(self, number):
        texts = [f"{prompt(number)} {i}" for i in range(4)]
        reply = self.llama(embedding=True, pooling_type=MEAN).create_embedding(texts)
        return {"vectors": [data["embedding"] for data in reply["data"]]}, reply["usage"]["prompt_tokens"]

    def logprobs(self, number):
        reply = self.llama(logits_all=True).create_completion(prompt(number), max_tokens=16, temperature=0.0, logprobs=3)
        found = reply["choices"][0]["logprobs"]
        return {"tokens": found["tokens"], "logprobs": [float(x) for x in found["token_logprobs"]]}, 16

    def stop(self, number):
        return self.completion(number, stop=[".", "\n\n"])

    def echo(self, number):
        return self.completion(number, echo=True, max_tokens=16)

    def state(self, number):
        llama = self.llama()
        llama.reset()
        llama.eval(llama.tokenize(prompt(number).encode()))
        saved = llama.save_state()
        texts = []
        for _ in range(2):
            llama.load_state(saved)
            ids = []
            for _ in range(16):
                ids.append(int(llama.sample(temp=0.0, repeat_penalty=1.0)))
                llama.eval([ids[-1]])
            texts.append(ids)
        return texts, 32

    def margin(self, tokens, best, other):
        """How much better one token is than another after some tokens, in logits."""
        llama = self.llama(logits_all=True)
        llama.reset()
        llama.eval(tokens)
        row = llama.scores[len(tokens) - 1]
        return float(row[best]) - float(row[other]), 0


def prompt(number):
    # Another one each time: both keep what they have read.
    return f"Tale {number}. {PROMPT}"


def work(args):
    out = os.fdopen(os.dup(1), "w")
    # What libraries print is not part of the answer.
    os.dup2(2, 1)
    scenarios = Scenarios(args.worker, args.model[0], args.threads, args.chat_format)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        begin = time.perf_counter()
        try:
            value, n_tokens = getattr(scenarios, name)(*arguments)
            answer = {"value": value, "n_tokens": n_tokens, "seconds": time.perf_counter() - begin}
        except Exception as error:  # What the other side gets to see.
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)


def difference(name, ours, theirs, workers):
    """What differs, in words, and whether it is an error; None if nothing does."""
    if name == "ids":
        return of_ids(ours, theirs, workers)
    if name == "embeddings":
        worst = min(cosine(a, b) for a, b in zip(ours["vectors"], theirs["vectors"], strict=True))
        return (f"cosine {worst:.6f} at least", worst < 0.99)
    if name == "logprobs":
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ours["tokens"], theirs["tokens"])))
        pairs = zip(ours["logprobs"][:same], theirs["logprobs"][:same])
        worst = max((abs(a - b) for a, b in pairs), default=0)
        return (f"first {same} of {len(ours['tokens'])} tokens the same, log-probabilities within {worst:.3f}", worst > 0.5)
    if name == "state":
        return None if ours[0] == ours[1] else ("ours differ between two times", True)
    if name == "grammar" and not re.fullmatch(r"(yes|no), because [a-z ]{8,24}\.", text_of(ours)):
        return (f"ours breaks the grammar: {text_of(ours)!r}", True)
    if name == "schema" and json.loads(text_of(ours)).get("kind") not in ("cat", "dog"):
        return (f"ours breaks the schema: {text_of(ours)!r}", True)
    if ours == theirs:
        return None
    return ("texts differ", False)


def text_of(result):
    return result if isinstance(result, str) else result[0]


def of_ids(ours, theirs, workers):
    if ours["prompt"] != theirs["prompt"]:
        return ("the prompts are cut into other tokens", True)
    pairs = list(zip(ours["ids"], theirs["ids"]))
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if at is None:
        return None if len(ours["ids"]) == len(theirs["ids"]) else ("one ends before the other", True)
    before = ours["prompt"] + ours["ids"][:at]
    a, b = pairs[at]
    # Each finds its own choice the better one; by how much tells whether it is rounding.
    margins = [worker.ask("margin", before, *choices)["value"] for worker, choices in zip(workers, [(a, b), (b, a)])]
    told = ", ".join(f"{worker.package} {margin:.3f}" for worker, margin in zip(workers, margins))
    return (f"token {at + 1} differs, its logit from the other's: {told}", max(margins) > MARGIN)


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


# Numbers, which are the same where they are near.
CLOSE = ["embeddings", "logprobs"]
SCENARIOS = ["ids", "completion", "stream", "chat", "grammar", "schema", "embeddings", "logprobs", "stop", "echo", "state"]


def compare(model, args):
    """Prints a row for each scenario; whether all are well."""
    workers = [Worker("sluice", args.sluice_python, model, args), Worker("llama_cpp", args.llama_python, model, args)]
    print(f"\n{model.name}, {args.threads} threads, {args.pairs} pairs\n")
    print("| scenario | same | tokens/s, ours | llama-cpp-python | ratio | remark |")
    print("|---|---|---|---|---|---|", flush=True)
    good = True
    for name in args.scenario or SCENARIOS:
        speeds, ratios, n_same, remarks = {worker.package: [] for worker in workers}, [], 0, []
        try:
            for pair in range(args.pairs + WARMUPS):
                order = workers if pair % 2 else workers[::-1]
                found = {worker.package: worker.ask(name, pair) for worker in order}
                ours, theirs = found["sluice"], found["llama_cpp"]
                told = difference(name, ours["value"], theirs["value"], workers)
                n_same += told is None or (name in CLOSE and not told[1])
                if told is not None:
                    remarks.append(told)
                    good &= not told[1]
                if pair < WARMUPS:
                    continue
                each = {package: answer["n_tokens"] / answer["seconds"] for package, answer in found.items()}
                for package, speed in each.items():
                    speeds[package].append(speed)
                ratios.append(each["sluice"] / each["llama_cpp"])
        except Failed as error:
            print(f"| {name} | | | | | {error} |", flush=True)
            good = False
            workers = [worker if worker.process.poll() is None else
                       Worker(worker.package, args.sluice_python if worker.package == "sluice" else args.llama_python, model, args)
                       for worker in workers]
            continue
        ours, theirs = (statistics.median(speeds[worker.package]) for worker in workers)
        # What is wrong, before what is not.
        remarks.sort(key=lambda told: not told[1])
        print(f"| {name} | {n_same} of {args.pairs + WARMUPS} | {ours:.1f} | {theirs:.1f} | "
              f"{statistics.median(ratios):.2f} | {remarks[0][0] if remarks else ''} |", flush=True)
    for worker in workers:
        worker.close()
    return good


def streamed(args, model, n):
    """Tokens per second of a stream, from the first chunk to the last."""
    code = ("import json,sys,time,sluice\n"
            "path,threads,text,n=json.loads(sys.argv[1])\n"
            "llama=sluice.Llama(path,n_ctx=1024,n_threads=threads,verbose=False,spec_type='none')\n"
            "end=llama.token_eos()\n"
            "times=[time.perf_counter() for _ in llama.create_completion(text,max_tokens=n,temperature=0.0,stream=True,"
            "logit_bias={end:-100})]\n"
            "print((n-1)/(times[n-1]-times[0]) if len(times)>=n else 0)\n")
    environment = {**os.environ, "PYTHONPATH": str(args.python_path)} if args.python_path else None
    asked = json.dumps([str(model), args.threads, PROMPT, n])
    return float(run([args.sluice_python, "-c", code, asked], env=environment).stdout)


def of_program(args, model, n):
    done = run([args.sluice, "run", "-q", "-m", model, "-c", 1024, "-t", args.threads, "-p", PROMPT, "-n", n, "--temp", 0,
                "--ignore-eos", "--spec-type", "none", "--json"])
    times = json.loads(done.stdout.strip().splitlines()[-1])["timings"]
    return (times["predicted_n"] - 1) / times["predicted_ms"] * 1e3


def overhead(model, args):
    """Prints how much slower a stream is; whether the bar is met."""
    losses, found = [], []
    for pair in range(args.pairs + WARMUPS):
        both = [streamed, of_program] if pair % 2 else [of_program, streamed]
        speeds = {measure: measure(args, model, args.tokens) for measure in both}
        if pair >= WARMUPS:
            found.append((speeds[streamed], speeds[of_program]))
            losses.append(speeds[of_program] / speeds[streamed] - 1)
    loss = statistics.median(losses)
    through, program = (statistics.median(column) for column in zip(*found))
    print(f"{model.name}: {through:.1f} tokens/s through Python, {program:.1f} of `sluice run`, "
          f"{loss * 100:+.2f} % of time (median of {args.pairs} pairs, {min(losses) * 100:+.2f} to {max(losses) * 100:+.2f})")
    return loss <= BAR_OVERHEAD


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, action="append", required=True)
    parser.add_argument("--sluice-python", default=sys.executable)
    parser.add_argument("--llama-python", default=sys.executable)
    parser.add_argument("--python-path", type=pathlib.Path, help="folder that has the package sluice, if it is not installed")
    parser.add_argument("--sluice", type=pathlib.Path, default=ROOT / "target/release/sluice")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS)
    parser.add_argument("--chat-format", help="for models without a template of their own")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128, help="of --overhead")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    try:
        measure = overhead if args.overhead else compare
        good = [measure(model.resolve(), args) for model in args.model]
    except Failed as error:
        sys.exit(f"error: {error}")
    say("all is well" if all(good) else "something is not as it should be")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
