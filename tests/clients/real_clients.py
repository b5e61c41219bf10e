#!/usr/bin/env python3
"""Claude Code, Codex and OpenCode, unmodified, started by `sluice launch`: one edit each, by a model that follows a script.

    npm install --prefix clients @anthropic-ai/claude-code@2.1.197 @openai/codex@0.171.0 opencode-ai@1.18.33
    cargo build --release -p sluice-cli && cargo build --release -p sluice-tests --example scripted_server
    tests/clients/real_clients.py clients [claude codex opencode]

The model is Tale with a context of 65,536 tokens, its sampler `tests/examples/scripted_server.rs`: the prompts, the tools,
the mask and the cache are the server's own. Each client has to call its tool for edits, change the file and end well.
goose is in no registry for packages; if it is installed, it runs, too. Nothing but loopback is needed.
"""
import json, os, pathlib, re, shutil, subprocess, sys, tempfile, time, urllib.request

from served import PLAIN_TEMPLATE, ROOT, TALE, free_port

N_CTX = 65536
TASK = "Change the word calm to rough in sea.txt."
BEFORE, AFTER = "The sea was calm.\n", "The sea was rough.\n"
PATCH = "*** Begin Patch\n*** Update File: sea.txt\n@@\n-The sea was calm.\n+The sea was rough.\n*** End Patch"


def claude(file):
    edit = {"file_path": str(file), "old_string": "calm", "new_string": "rough"}
    steps = [("Read", {"file_path": str(file)}), ("Edit", edit)]
    return steps, ["-p", TASK, "--permission-mode", "acceptEdits", "--output-format", "json"]


def codex(file):
    command = f"apply_patch <<'EOF'\n{PATCH}\nEOF"
    return [("exec_command", {"cmd": command})], ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK]


def opencode(file):
    edit = {"filePath": str(file), "oldString": "calm", "newString": "rough"}
    return [("read", {"filePath": str(file)}), ("edit", edit)], ["run", TASK]


def goose(file):
    edit = {"path": str(file), "before": "calm", "after": "rough"}
    return [("edit", edit)], ["run", "--no-session", "--with-builtin", "developer", "-t", TASK]


CLIENTS = {"claude": claude, "codex": codex, "opencode": opencode, "goose": goose}


def wait_for(url, process):
    for _ in range(600):
        try:
            if urllib.request.urlopen(url + "/health", timeout=5).status == 200:
                return
        except OSError:
            pass
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode}")
        time.sleep(0.1)
    raise SystemExit("the server is not ready")


def run(name, bin_folder, folder):
    """Whether the client changed the file and ended well."""
    work, home, port = folder / "work", folder / "home", free_port()
    for made in (work, home):
        made.mkdir()
    file = work / "sea.txt"
    file.write_text(BEFORE)
    subprocess.run(["git", "init", "-q", work], check=True)
    steps, arguments = CLIENTS[name](file)
    script = {"steps": [{"tool": tool, "arguments": given} for tool, given in steps], "last": "Done."}
    (folder / "script.json").write_text(json.dumps(script))
    (folder / "template.jinja").write_text(PLAIN_TEMPLATE)
    log = folder / "server.log"
    command = [ROOT / "target/release/examples/scripted_server", TALE, folder / "template.jinja", folder / "script.json", port, N_CTX]
    with log.open("w") as out:
        server = subprocess.Popen([str(part) for part in command], stdout=out, stderr=out)
    url = f"http://127.0.0.1:{port}"
    start = time.time()
    try:
        wait_for(url, server)
        environment = {name: os.environ[name] for name in ("LANG", "TERM", "TMPDIR") if name in os.environ}
        environment |= {"HOME": str(home), "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "IS_SANDBOX": "1"}
        launch = [str(ROOT / "target/release/sluice"), "launch", name, "--url", url, "--", *arguments]
        client = subprocess.run(launch, cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        assert server.poll() is None, "launch stopped a server that it had not started"
    finally:
        server.terminate()
        server.wait(60)
    said = log.read_text()
    prompts = [int(n) for n in re.findall(r"prompt of (\d+) tokens", said)]
    good = client.returncode == 0 and file.read_text() == AFTER
    print(f"{'ok     ' if good else 'FAILED '} {name}: exit code {client.returncode}, {len(prompts)} prompts of up to "
          f"{max(prompts, default=0)} tokens, {time.time() - start:.0f} s", flush=True)
    if not good:
        print(f"{client.stdout}\n{client.stderr}\n{said}\nfile: {file.read_text()!r}")
    return good


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    bin_folder = pathlib.Path(sys.argv[1]).resolve() / "node_modules/.bin"
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    asked = sys.argv[2:] or [name for name in CLIENTS if shutil.which(name, path=path)]
    results = []
    for name in asked:
        with tempfile.TemporaryDirectory(prefix="sluice-client-", ignore_cleanup_errors=True) as folder:
            results.append(run(name, bin_folder, pathlib.Path(folder)))
    for name in CLIENTS:
        if not shutil.which(name, path=path):
            print(f"SKIPPED {name}: not installed")
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
