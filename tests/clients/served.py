"""What the clients' tests share: a server on loopback, and a list of checks."""
import contextlib, os, pathlib, socket, subprocess, sys, tempfile, time, traceback, urllib.request

from pydantic import BaseModel

ROOT = pathlib.Path(__file__).resolve().parents[2]
TALE = ROOT / "hosted/models/tale-5.8m-Q4_K_M.gguf"
KEY = "a-key-of-the-test"
# Tools and reasoning as Hermes and Qwen write them, up to the answer.
CONVERSATION = """{%- if tools %}<|im_start|>system
# Tools
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
For each call return <tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{%- if message.reasoning_content %}
<think>
{{ message.reasoning_content }}
</think>
{%- endif %}
{%- if message.content %}
{{ message.content }}
{%- endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
"""
# An answer that begins with reasoning, and one that does not.
TEMPLATE = CONVERSATION + "<think>\n{% if not enable_thinking %}\n</think>\n\n{% endif %}{% endif %}"
PLAIN_TEMPLATE = CONVERSATION + "{% endif %}"

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def checked(value):
    """Refuses fields that the package's types do not have."""
    extra = getattr(value, "model_extra", None)
    assert not extra, f"{type(value).__name__} has no {extra}"
    for name in type(value).model_fields:
        for part in (field if isinstance(field := getattr(value, name), list) else [field]):
            if isinstance(part, BaseModel):
                checked(part)
    return value


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def running(*flags, env=None):
    """A server with these flags; its address."""
    port = free_port()
    sluice = sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release/sluice"
    command = [sluice, "serve", "--port", port, *flags]
    process = subprocess.Popen([str(part) for part in command], env=os.environ | (env or {}))
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(300):
            with contextlib.suppress(OSError):
                if urllib.request.urlopen(url + "/health", timeout=5).status == 200:
                    break
            if process.poll() is not None:
                raise SystemExit(f"the server ended with {process.returncode}")
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        code = process.wait(30)
        assert code == 0, f"the server ended with {code}"


@contextlib.contextmanager
def server(encoder, n_ctx=2048):
    with tempfile.TemporaryDirectory() as folder:
        template = pathlib.Path(folder, "template.jinja")
        template.write_text(TEMPLATE)
        with running("-m", f"tale={TALE}", "-m", f"encoder={encoder}", "--api-key", KEY, "-np", "4", "-c", n_ctx,
                     "--chat-template-file", template, "--max-queue", "64", "--metrics", "--slots") as url:
            yield url


def main(context, n_ctx=2048):
    """Runs all checks against a server with `n_ctx` tokens; `context` makes their argument from its address. Returns the exit code."""
    encoder = ROOT / "tests/fixtures/embed/tiny-bert-f16.gguf"
    failed = 0
    with server(encoder, n_ctx) as url:
        made = context(url)
        for function in CHECKS:
            start = time.time()
            try:
                function(made)
                print(f"ok      {function.__name__} ({time.time() - start:.1f} s)", flush=True)
            except Exception as error:
                failed += 1
                traceback.print_exc()
                print(f"FAILED  {function.__name__}: {error}", flush=True)
    # As cargo's test binaries end, for who adds them up.
    print(f"test result: {'FAILED' if failed else 'ok'}. {len(CHECKS) - failed} passed; {failed} failed")
    return 1 if failed else 0
