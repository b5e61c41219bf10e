"""pytest's side of `run.py`: what `expected.toml` says becomes marks of the tests, and nothing leaves this machine.

A difference has an `outcome`:

- `fails`: the test fails, and its report contains the text `error`;
- `words`: everything holds but what their models write (`match_regex`); ours are not trained alike, or draw otherwise;
- `not run`.

The first difference that names a test holds.
"""
import collections, os, pathlib, re, signal, socket, sys, tomllib

import pytest

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1]))
from hub import Hub  # noqa: E402

EXPECTED = pathlib.Path(__file__).with_name("expected.toml")
SECONDS = 120
LISTED = pytest.StashKey()
COUNTS, MISSED = collections.Counter(), []


def pytest_configure(config):
    sys.path.insert(0, str(config.rootpath))
    import utils

    # The presets are started to download their models; ours are here.
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.wget.download = lambda url, **_: pytest.fail(f"{url}: nothing is downloaded")
    matches, resolve = utils.match_regex, socket.getaddrinfo

    def match_regex(regex, text):
        if not matches(regex, text):
            MISSED.append(f"{text!r} does not match {regex!r}")
        return True

    def loopback(host, *rest, **more):
        if host not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"{host}: only this machine is asked")
        return resolve(host, *rest, **more)

    utils.match_regex, socket.getaddrinfo = match_regex, loopback
    as_theirs(utils)
    # The model that their router's tests download.
    data = pathlib.Path(os.environ["STAND_IN_MODEL"]).read_bytes()
    hub = Hub("ggml-org/test-model-router-download", "test-model-router-download-F16.gguf", data).serving()
    os.environ["HF_ENDPOINT"] = hub.__enter__()
    config.add_cleanup(lambda: hub.__exit__(None, None, None))


def as_theirs(utils):
    """Three things that many of their tests look at first, and that stay as they are: a fingerprint identifies weights, not
    a build; the first piece of a streamed chat has the content "", as OpenAI's has, not null; names of headers have no case."""
    server = utils.ServerProcess
    request, stream = server.make_request, server.make_stream_request

    def changed(reply):
        if isinstance(reply, dict):
            if "system_fingerprint" in reply:
                reply["system_fingerprint"] = "b" + reply["system_fingerprint"]
            for choice in reply.get("choices", []):
                if choice.get("delta", {}).get("role") and choice["delta"]["content"] == "":
                    choice["delta"]["content"] = None
        return reply

    def make_request(*arguments, **more):
        response = request(*arguments, **more)
        response.body = changed(response.body)
        response.headers = utils.requests.structures.CaseInsensitiveDict(response.headers)
        return response

    server.make_request = make_request
    server.make_stream_request = lambda *arguments, **more: map(changed, stream(*arguments, **more))


def is_of(pattern, test):
    """`file::test` means all its parameters; `*` is any text."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*") + r"(\[.*\])?", test, re.DOTALL)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    tests = {item.nodeid.removeprefix("unit/"): item for item in items}
    whole = config.args == [str(config.rootpath)] and not config.option.keyword
    for difference in tomllib.loads(EXPECTED.read_text())["difference"]:
        for pattern in difference["tests"]:
            found = [item for test, item in tests.items() if is_of(pattern, test) and LISTED not in item.stash]
            if not found and whole:
                raise pytest.UsageError(f"{EXPECTED.name}: {pattern} names no test that is not named before")
            for item in found:
                item.stash[LISTED] = difference
                if difference["outcome"] == "not run":
                    item.add_marker(pytest.mark.skip(reason=difference["reason"]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    def late(*_):
        pytest.fail(f"no end after {SECONDS} s")

    MISSED.clear()
    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        result = yield
        if MISSED:
            pytest.fail(f"other words: {MISSED[0]}", pytrace=False)
        return result
    finally:
        signal.alarm(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    difference = item.stash.get(LISTED, None)
    if report.when == "teardown" or (report.when == "setup" and report.passed):
        return report
    text = {"words": "other words: ", "not run": ""}.get(difference["outcome"], difference.get("error")) if difference else None
    if report.passed:
        if difference:
            report.outcome, report.longrepr = "failed", f"passes, but is listed: {difference['reason']}"
    elif difference is None:
        if report.skipped:
            report.outcome, report.longrepr = "failed", f"skips itself, but is not listed: {report.longrepr}"
    elif report.skipped != (difference["outcome"] == "not run") or text not in report.longreprtext:
        report.outcome = "failed"
        report.longrepr = f"{report.longreprtext}\ndiffers otherwise than listed: {difference['reason']}"
    else:
        COUNTS[difference["outcome"], difference["reason"]] += 1
        report.outcome, report.wasxfail = "skipped", f"{difference['outcome']}: {difference['reason']}"
    return report


def pytest_terminal_summary(terminalreporter):
    for outcome in ("fails", "words", "not run"):
        terminalreporter.write_line(f"{outcome}:")
        for (which, reason), n in COUNTS.most_common():
            if which == outcome:
                terminalreporter.write_line(f"  {n:3}  {reason}")
