#!/usr/bin/env python3
"""Open WebUI, unmodified, with `sluice serve` as its Ollama server: models, two turns, a stream, embeddings, its own side tasks.

    python3 -m venv webui && webui/bin/pip install open-webui==0.12.4      # 4 GB; without CUDA less, see the package's torch
    webui/bin/python tests/clients/open_webui.py MODEL [target/release/sluice]

MODEL is a small model that follows instructions, such as SmolLM2-135M-Instruct. Everything is on loopback.
"""
import contextlib, json, os, pathlib, subprocess, sys, tempfile, time, urllib.error, urllib.request

from served import ROOT, free_port

USER = {"role": "user", "content": "Name three rivers of Europe."}


def call(url, path, body=None, token=None):
    """A reply as text."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url + path, json.dumps(body).encode() if body else None, headers)
    with urllib.request.urlopen(request, timeout=300) as reply:
        return reply.read().decode()


@contextlib.contextmanager
def started(command, url, ready, env):
    process = subprocess.Popen([str(part) for part in command], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1800):
            with contextlib.suppress(OSError):
                call(url, ready)
                break
            assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(60)


def streamed(text):
    """What the pieces of a stream say together."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    choices = [choice for line in lines for choice in json.loads(line).get("choices", [])]
    return "".join(choice.get("delta", {}).get("content") or "" for choice in choices)


def prove(own, webui):
    ask = lambda path, body=None: json.loads(call(webui, path, body, token))
    token = json.loads(call(webui, "/api/v1/auths/signin", {"email": "admin@localhost", "password": "admin"}))["token"]
    (name,) = (model["id"] for model in ask("/api/models")["data"])
    assert [model["model"] for model in ask("/ollama/api/tags")["models"]] == [name]
    assert "sluice_version" in ask("/ollama/verify", {"url": own, "key": ""})
    assert ask("/ollama/api/show", {"model": name})["model_info"]["general.architecture"]
    body = {"model": name, "messages": [USER], "stream": False, "params": {"seed": 35, "temperature": 0}}
    first = ask("/api/chat/completions", body)
    text = first["choices"][0]["message"]["content"]
    assert first["choices"][0]["finish_reason"] == "stop" and first["usage"]["completion_tokens"] > 10, first
    assert streamed(call(webui, "/api/chat/completions", body | {"stream": True}, token)) == text
    turns = [USER, {"role": "assistant", "content": text}, {"role": "user", "content": "Which is the longest?"}]
    second = ask("/api/chat/completions", body | {"messages": turns})
    assert second["usage"]["prompt_tokens"] > first["usage"]["total_tokens"], second
    for task in ("title", "tags", "follow_up"):
        reply = ask(f"/api/v1/tasks/{task}/completions", {"model": name, "messages": turns, "chat_id": "a"})
        assert reply["choices"][0]["message"]["content"], reply
    assert len(ask("/ollama/api/embed", {"model": name, "input": ["a", "b"]})["embeddings"]) == 2
    try:
        raise AssertionError(call(webui, "/ollama/api/pull", {"model": "hf.co/u/m"}, token))
    except urllib.error.HTTPError as error:
        assert error.code == 403 and "--allow-pull" in error.read().decode()
    assert len(ask("/ollama/api/ps")["models"]) == 1
    ask("/ollama/api/unload", {"model": name})
    assert ask("/ollama/api/ps")["models"] == []
    print(f"ok      Open WebUI: {first['usage']['completion_tokens']} tokens, the same as a stream; second turn, tasks, embeddings")


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    sluice = sys.argv[2] if len(sys.argv) > 2 else ROOT / "target/release/sluice"
    own, webui = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    port = lambda url: url.rpartition(":")[2]
    with tempfile.TemporaryDirectory(prefix="sluice-webui-") as folder:
        env = os.environ | {
            "DATA_DIR": folder, "WEBUI_AUTH": "False", "WEBUI_SECRET_KEY": "of the test", "OLLAMA_BASE_URL": own,
            "ENABLE_OPENAI_API": "False", "RAG_EMBEDDING_ENGINE": "ollama", "OFFLINE_MODE": "True", "ANONYMIZED_TELEMETRY": "False"}
        served = [sluice, "serve", "-m", sys.argv[1], "-c", "4096", "--port", port(own)]
        program = [pathlib.Path(sys.executable).with_name("open-webui"), "serve", "--host", "127.0.0.1", "--port", port(webui)]
        with started(served, own, "/health", os.environ), started(program, webui, "/health", env):
            prove(own, webui)


if __name__ == "__main__":
    main()
