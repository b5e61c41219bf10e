"""Models of a stand-in of Hugging Face's server on this machine."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import sluice

COMMIT = "c" * 40
REPO = "nobody/tales-GGUF"


class Hub(ThreadingHTTPServer):
    """A repository of files, by their paths."""

    daemon_threads = True

    def __init__(self, files):
        self.files = files
        self.fetched = []
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        files, path = self.server.files, self.path.partition("?")[0]
        if path == f"/api/models/{REPO}/revision/main":
            listed = [
                {
                    "rfilename": name,
                    "size": len(data),
                    "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)},
                }
                for name, data in files.items()
            ]
            return self.send(200, json.dumps({"sha": COMMIT, "siblings": listed}).encode())
        name = path.removeprefix(f"/{REPO}/resolve/{COMMIT}/")
        if name not in files:
            return self.send(404, b"{}")
        self.server.fetched.append(name)
        return self.send(200, files[name])

    def send(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tale, tmp_path, monkeypatch):
    data = tale.read_bytes()
    names = ["tale-Q4_K_M.gguf", "small/tale-q8_0.gguf", "old/tale-F16.gguf", "old/tale-BF16.gguf"]
    hub = Hub(
        {"README.md": b"tales", "mmproj-F32.gguf": b"eyes", **{name: data + name.encode() for name in names}}
    )
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_address[1]}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in ("HF_HUB_OFFLINE", "LLAMA_ARG_OFFLINE", "LLAMA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    yield hub
    hub.shutdown()
    hub.server_close()


def pretrained(filename=None, **more):
    with sluice.Llama.from_pretrained(REPO, filename, vocab_only=True, verbose=False, **more) as llama:
        assert llama.n_vocab() == 4096
        return llama.model_path


def test_patterns_are_those_of_fnmatch(hub):
    for filename, name in [
        ("*Q4_K_M.gguf", "tale-Q4_K_M.gguf"),
        ("*q8_0*", "small/tale-q8_0.gguf"),
        ("small/*", "small/tale-q8_0.gguf"),
        ("*-F1[5-7].gguf", "old/tale-F16.gguf"),
        ("old/tale-?F16.gguf", "old/tale-BF16.gguf"),
        ("old/tale-F16.gguf", "old/tale-F16.gguf"),
        (None, "tale-Q4_K_M.gguf"),
    ]:
        assert pretrained(filename).endswith(f"/snapshots/{COMMIT}/{name}")
    # Each came once, and those that were not asked for did not.
    assert sorted(hub.fetched) == sorted(name for name in hub.files if "tale" in name)


def test_a_pattern_means_one_model(hub):
    for filename, word in [
        ("*Q8_0*", r"no file matches \*Q8_0\*; available: README.md, mmproj-F32.gguf, tale-Q4_K_M.gguf"),
        (
            "*F16.gguf",
            r"several files match \*F16.gguf; available: old/tale-F16.gguf, old/tale-BF16.gguf",
        ),
        ("nothing.gguf", "no file nothing.gguf"),
    ]:
        with pytest.raises(ValueError, match=f"{REPO}.*{word}"):
            pretrained(filename)
    assert hub.fetched == []


def test_files_in_a_folder_of_its_own(hub, tmp_path):
    folder = tmp_path / "models"
    for _ in range(2):
        path = pretrained("*q8_0.gguf", local_dir=folder, additional_files=["mmproj-*", "README.md"])
        assert path == str(folder / "small/tale-q8_0.gguf")
    assert (folder / "mmproj-F32.gguf").read_bytes() == b"eyes"
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    assert files == ["README.md", "mmproj-F32.gguf", "small/tale-q8_0.gguf"]
    assert not any(file.is_symlink() for file in folder.rglob("*"))
    assert sorted(hub.fetched) == sorted(files)


def test_what_is_in_the_cache_needs_no_server(hub, monkeypatch):
    path = pretrained("*q8_0.gguf")
    hub.shutdown()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert pretrained("*q8_0.gguf") == path
    with pytest.raises(ValueError, match="no file matches"):
        pretrained("*Q4_K_M.gguf")
    with pytest.raises(ValueError, match="nobody/nothing-GGUF is not in the cache"):
        sluice.Llama.from_pretrained("nobody/nothing-GGUF", "*.gguf")
