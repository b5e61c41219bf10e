"""A client for streamed answers (SSE over HTTP/1.1) that hardly disturbs what it measures.

It runs on the cores of the server. So there is one thread and one epoll; a piece that arrives gets its time
and is kept, and everything is parsed after the last one: a few microseconds for a token.
"""
import bisect, errno, gc, json, select, socket, time

from llama import Failed

# How every event but "[DONE]" begins. Within JSON the quotation mark would be escaped.
EVENT = b'data: {"'
PIECE_LEN_MAX = 1 << 16


def completion(prompt, n_tokens):
    """The body of a request to /v1/completions: `prompt` is token ids, the answer has `n_tokens` tokens."""
    return {"prompt": prompt, "max_tokens": n_tokens, "ignore_eos": True, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True}}


class Stream:
    """A request and what came back, piece by piece; the answer's events once it has ended."""

    def __init__(self, body, path="/v1/completions", n_tokens=None):
        self.n_tokens = n_tokens or body["max_tokens"]
        text = json.dumps(body).encode()
        self.request = (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                        f"Connection: close\r\nContent-Length: {len(text)}\r\n\r\n").encode() + text
        self.socket, self.sent_at, self.n_events = None, None, 0
        self.pieces, self.times = [], []
        self.is_done, self.is_left, self.then = False, False, None

    def events(self):
        """The answer's events: the time each was whole, and its JSON."""
        raw = b"".join(self.pieces)
        ends, n = [], 0
        for piece in self.pieces:
            n += len(piece)
            ends.append(n)
        head, _, _ = raw.partition(b"\r\n\r\n")
        status = head.split(b"\r\n")[0].decode(errors="replace")
        if " 200 " not in status + " ":
            raise Failed(f"{status or 'no answer'}: {raw[len(head) + 4:][:300].decode(errors='replace')}")
        # Where in `raw` each part of the body is, and where in the body.
        parts, at, in_body = [], len(head) + 4, 0
        if b"chunked" in head.lower():
            while (line := raw.find(b"\r\n", at)) >= 0 and (size := int(raw[at:line].partition(b";")[0], 16)):
                parts.append((in_body, line + 2, min(size, len(raw) - line - 2)))
                in_body, at = in_body + size, line + 2 + size + 2
        else:
            parts.append((0, at, len(raw) - at))
        body = b"".join(raw[start:start + size] for _, start, size in parts).replace(b"\r\n", b"\n ")
        starts, found, at = [part[0] for part in parts], [], 0
        # What follows the last line's end is a part of an event.
        for block in body.split(b"\n")[:-1]:
            end = at + len(block)
            if block.strip().startswith(EVENT):
                part = parts[bisect.bisect_right(starts, end - 1) - 1]
                in_raw = part[1] + end - 1 - part[0]
                found.append((self.times[bisect.bisect_right(ends, in_raw)], json.loads(block.strip()[6:])))
            at = end + 1
        return found

    def token_times(self):
        """When each piece of text came. An answer that was not left has all its tokens."""
        times, usage = [], None
        for at, event in self.events():
            if "error" in event:
                raise Failed(f"the server's error: {event['error']}")
            usage = event.get("usage") or usage
            if any(choice.get("text") or choice.get("finish_reason") is None
                   for choice in event.get("choices") or []):
                times.append(at)
        if not times:
            raise Failed("an answer has no text")
        if not self.is_left:
            n = usage["completion_tokens"] if usage else len(times)
            if n != self.n_tokens:
                raise Failed(f"an answer has {n} tokens instead of {self.n_tokens}")
        return times


class Client:
    """Streams from one port."""

    def __init__(self, port):
        self.port = port
        self.poll = select.epoll()
        self.open = {}
        # CPU time that sending and receiving took.
        self.cpu_s = 0

    def __enter__(self):
        gc.collect()
        gc.disable()
        return self

    def __exit__(self, *_):
        gc.enable()
        for stream in list(self.open.values()):
            self.leave(stream)
        self.poll.close()

    def start(self, stream, then=None):
        """Sends the request; `then(stream)` is called when the answer has ended."""
        stream.then = then
        stream.socket = socket.socket()
        stream.socket.setblocking(False)
        stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.sent_at = time.perf_counter()
        code = stream.socket.connect_ex(("127.0.0.1", self.port))
        if code not in (0, errno.EINPROGRESS):
            raise Failed(f"connecting: {errno.errorcode[code]}")
        self.open[stream.socket.fileno()] = stream
        self.poll.register(stream.socket, select.EPOLLOUT)

    def leave(self, stream):
        """Closes the connection before the answer's end."""
        stream.is_left = not stream.is_done
        self.close(stream)

    def close(self, stream):
        if self.open.pop(stream.socket.fileno(), None):
            self.poll.unregister(stream.socket)
            stream.socket.close()

    def run(self, until=lambda: False, timeout_s=900):
        """Receives until no stream is open, or until `until()`."""
        stop_at = time.perf_counter() + timeout_s
        cpu_before = time.process_time()
        while self.open and not until():
            if time.perf_counter() > stop_at:
                raise Failed(f"no end of the answers after {timeout_s} s")
            self.turn(1)
        self.cpu_s += time.process_time() - cpu_before

    def turn(self, wait_s):
        """Sends and receives what can be, once something can be; waits at most so long for it."""
        for number, event in self.poll.poll(wait_s):
            stream = self.open.get(number)
            if stream is None:
                continue
            if event & select.EPOLLOUT and not event & (select.EPOLLERR | select.EPOLLHUP):
                self.send(stream)
            else:
                self.receive(stream)

    def send(self, stream):
        n = stream.socket.send(stream.request)
        stream.request = stream.request[n:]
        if not stream.request:
            self.poll.modify(stream.socket, select.EPOLLIN)

    def receive(self, stream):
        try:
            piece = stream.socket.recv(PIECE_LEN_MAX)
        except OSError as error:
            self.close(stream)
            raise Failed(f"receiving: {error}") from None
        now = time.perf_counter()
        if piece:
            stream.times.append(now)
            stream.pieces.append(piece)
            stream.n_events += piece.count(EVENT)
        if not piece or piece.endswith(b"0\r\n\r\n"):
            stream.is_done = True
            self.close(stream)
            if stream.then:
                stream.then(stream)


def fetch(port, path, timeout_s=30):
    """The status and the body of a GET."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        raw = b""
        while piece := connection.recv(PIECE_LEN_MAX):
            raw += piece
    head, _, body = raw.partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        whole = b""
        while (line := body.find(b"\r\n")) >= 0 and (size := int(body[:line].partition(b";")[0], 16)):
            whole, body = whole + body[line + 2:line + 2 + size], body[line + size + 4:]
        body = whole
    try:
        return int(head.split()[1]), body.decode(errors="replace")
    except (IndexError, ValueError):
        raise Failed(f"GET {path}: no HTTP answer") from None
