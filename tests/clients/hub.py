"""A stand-in of Hugging Face's hub on loopback, with one file. Only the standard library."""
import contextlib, hashlib, http.server, json, threading, time


class Hub:
    """A hub with the repository `repo`, which has `file`. It waits `delay` seconds after each part that it sends."""

    def __init__(self, repo, file, data):
        self.repo, self.file, self.data = repo, file, data
        self.sha256 = hashlib.sha256(data).hexdigest()
        # Where downloads began.
        self.starts, self.delay = [], 0.0

    @contextlib.contextmanager
    def serving(self):
        """Its address, for HF_ENDPOINT."""
        handler = type("Handler", (Handler,), {"hub": self})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.hub
        size, tag = len(hub.data), f'"{hub.sha256}"'
        if self.path.startswith(f"/api/models/{hub.repo}/revision/"):
            lfs = {"sha256": hub.sha256, "size": size, "pointerSize": 1}
            file = {"rfilename": hub.file, "size": size, "blobId": "0" * 40, "lfs": lfs}
            return self.answer(200, json.dumps({"sha": "a" * 40, "siblings": [file]}).encode())
        if not self.path.startswith(f"/{hub.repo}/resolve/"):
            return self.answer(404, b"")
        start = int(self.headers.get("range", "bytes=0-")[6:].split("-")[0])
        headers = {"X-Linked-Etag": tag, "X-Linked-Size": str(size), "ETag": tag}
        if start:
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
        if self.command == "GET":
            hub.starts.append(start)
        self.answer(206 if start else 200, hub.data[start:], headers)

    def answer(self, status, body, headers={}):
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(OSError):
                for at in range(0, len(body), 1 << 18):
                    self.wfile.write(body[at:at + (1 << 18)])
                    time.sleep(self.hub.delay)

    def log_message(self, *_):
        pass
