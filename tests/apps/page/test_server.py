"""The demo as a server, over real connections: its routes, who may ask, what a question may cost, who waits, who leaves."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the demo needs uvicorn: pip install 'hardkuma[demo]'")

from hardkuma.apps.page import app as page
from hardkuma.apps.page import serve
from hardkuma.apps.page.app import MAX_BODY, build_app
from hardkuma.apps.page.demo import Remembered
from hardkuma.apps.page.serve import address, listen, main, serving
from tests.conftest import build_model

JSON = {"Content-Type": "application/json"}
TEXT = {"text": "marie curie moved to paris in 1891 ."}


class Served:
    """A running page, with the encoder's passes counted; `hold` makes the encoder wait."""

    def __init__(self, url: str, app: Any, model: Any) -> None:
        self.port, self.desk = int(url.rstrip("/").rpartition(":")[2]), app.state.desk
        self.passes, self.free = 0, threading.Event()
        self.free.set()
        model.encoder.register_forward_hook(self._pass)

    def _pass(self, *_: object) -> None:
        self.passes += 1
        self.free.wait(60)

    @contextmanager
    def hold(self) -> Iterator[None]:
        self.free.clear()
        try:
            yield
        finally:
            self.free.set()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, JSON if headers is None else headers)
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read().decode()
        finally:
            connection.close()

    def show(self, body: Any, tab: str = "text") -> tuple[int, str]:
        status, _, answer = self.ask("POST", f"/show/{tab}", body)
        return status, json.loads(answer)[tab]

    def until(self, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + 30
        while not ready():
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    model = build_model()
    app = build_app(model)
    with serving(app) as url:
        yield Served(url, app, model)


HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
ROUTES = [
    *(("GET", path, 200) for path in ("/", "/page.css", "/page.js", "/health", "/?x=1")),
    *(("HEAD", path, 200) for path in ("/", "/health")),
    *(("POST", path, 405) for path in ("/", "/page.js", "/health")),
    *(("GET", path, 405) for path in ("/show/text", "/save/json")),
    *((method, "/show/text", 405) for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW")),
    *(("GET", path, 404) for path in ("/page.html", "/app.py", "/docs/x", "/openapi.json", "/config", "/static/x", "//")),
    *(("GET", path, 404) for path in ("/../app.py", "/%2e%2e/app.py", "/page.css/", "/gradio_api/file=/etc/passwd")),
    *(("POST", path, 404) for path in ("/gradio_api/upload", "/show/nothing", "/show/text/", "/show/", "/save/exe")),
]


@pytest.mark.parametrize(("method", "path", "status"), ROUTES)
def test_our_routes_and_no_others(method: str, path: str, status: int, served: Served) -> None:
    code, headers, _ = served.ask(method, path, b"{}" if method == "POST" else None)
    assert code == status
    assert {name: headers[name] for name in HEADERS} == HEADERS
    policy = headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert "server" not in headers and not any(name.lower().startswith("access-control") for name in headers)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:80", "[::1]:7860", "127.0.0.1:7860"])
def test_names_of_this_machine(host: str, served: Served) -> None:
    assert served.ask("GET", "/", headers={"Host": host})[0] == 200
    assert served.ask("POST", "/show/text", TEXT, {**JSON, "Host": host})[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "localhost.", "a@localhost", "0.0.0.0", "[::1"],
)
def test_any_other_name_is_turned_away(host: str, served: Served) -> None:
    before = served.passes
    for method, path in (("GET", "/"), ("GET", "/page.js"), ("GET", "/health"), ("POST", "/show/text")):
        status, _, answer = served.ask(method, path, TEXT, {**JSON, "Host": host})
        assert status == 421 and "--allow-host" in answer
    assert served.passes == before


def test_a_host_must_be_named_once(served: Served) -> None:
    for head in (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"):
        with served.connect() as connection:
            connection.sendall(head)
            assert connection.recv(100).split()[1] in (b"400", b"421")


def test_further_names_and_frames_are_allowed_by_name() -> None:
    model = build_model()
    for hosts, status in ((["Demo.example"], 200), (["other.example"], 421), (["*"], 200)):
        app = build_app(model, hosts=hosts, frames=["https://huggingface.co"])
        with serving(app) as url:
            served = Served(url, app, model)
            code, headers, _ = served.ask("GET", "/", headers={"Host": "demo.example:8080"})
            assert code == status and headers["content-security-policy"].endswith("ancestors https://huggingface.co")


FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},  # another port of this machine
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "OWN"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://[broken"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_no_other_page_may_ask(headers: dict[str, str], served: Served) -> None:
    own = f"http://127.0.0.1:{served.port}"
    before, sent = served.passes, {name: value.replace("OWN", own) for name, value in headers.items()}
    for path in ("/show/text", "/save/json"):
        status, _, answer = served.ask("POST", path, {"text": "something else ."}, {**JSON, **sent})
        assert (status, answer) == (403, "Only the page itself may ask.\n")
    assert served.passes == before
    for own_headers in ({"Sec-Fetch-Site": "same-origin"}, {"Origin": own}, {}):
        assert served.ask("POST", "/show/text", TEXT, {**JSON, **own_headers})[0] == 200


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_what_a_form_can_send_is_no_question(kind: str | None, served: Served) -> None:
    status, _, answer = served.ask("POST", "/show/text", TEXT, {} if kind is None else {"Content-Type": kind})
    assert status == 415 and "must be application/json" in json.loads(answer)["text"]
    assert served.ask("POST", "/show/text", TEXT, {"Content-Type": "Application/JSON; charset=utf-8"})[0] == 200


BAD = [
    (b"", "must be JSON", 400),
    (b"\xff\xfe", "must be JSON", 400),
    (b"[" * 100_000, "must be JSON", 400),
    (b"[1]", "must be a JSON object, got a list", 400),
    (b'{"text": 3}', "text must be a text, got a int", 400),
    (b'{"text": null}', "text must be a text, got a NoneType", 400),
    (b'{"text": "a", "percent": "x"}', "percent must be a number, got a str", 400),
    (b'{"text": "a", "percent": true}', "percent must be a number, got a bool", 400),
    (b'{"text": "a", "percent": ' + b"9" * 400 + b"}", "percent has more digits", 422),
    (b'{"text": "a", "percent": ' + b"9" * 5000 + b"}", "must be JSON", 400),
    (b'{"text": "a", "selector": "nouns"}', "nouns", 422),
    (b'{"text": "a", "selector": "\\ud800"}', "ud800", 422),
    (b'{"text": "a", "selector": "' + b"x" * 100_000 + b'"}', "selector has 100,000 characters; at most 200", 422),
    (b'{"text": " "}', "Type or paste a text first", 422),
]


@pytest.mark.parametrize(("body", "message", "status"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_questions_are_answered(body: bytes, message: str, status: int, served: Served) -> None:
    for tab in ("text", "pair", "search", "document", "methods"):
        code, answer = served.show(body, tab)
        assert code in (400, 413, 422) and 'role="alert"' in answer and len(answer) < 1000
    assert served.show(body)[0] == status and message in served.show(body)[1]


ODD = [
    "half \ud83d of one",
    "\0",
    "\ufeff",
    "\u200b",
    ".",
    "e" + "\u0301" * 900,
    "\u202e\u200f",
    "a\rb\x85c\u2028d",
    "= " * 400 + "x",
]


@pytest.mark.parametrize("text", ODD)
def test_odd_texts_and_numbers_have_an_answer(text: str, served: Served) -> None:
    numbers = [None, -1, 0, 1e308, float("nan"), float("inf")]
    for tab, percent in itertools.product(("text", "pair", "search", "document", "methods"), numbers):
        status, answer = served.show({"text": text, "second": text, "percent": percent}, tab)
        assert status in (200, 422) and (status == 200) == ("hk-problem" not in answer), answer
        assert not any("\ud800" <= character <= "\udfff" for character in answer)


def reply_of(connection: socket.socket) -> bytes:
    """Headers and body, which may come one after the other; a body of ours ends with a brace."""
    reply = connection.recv(10_000)
    while not reply.endswith(b"}"):
        more = connection.recv(10_000)
        if not more:
            break
        reply += more
    return reply


def test_a_body_that_is_too_long_is_refused_before_it_is_sent(served: Served) -> None:
    head = b"POST /show/text HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with served.connect() as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % (MAX_BODY + 1))
        reply = reply_of(connection)
        assert reply.split()[1] == b"413" and f"has {MAX_BODY + 1:,} bytes".encode() in reply
    with served.connect() as connection:
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n%s\r\n" % (100_000, b"x" * 100_000)
        for _ in range(MAX_BODY // 100_000 + 1):
            connection.sendall(chunk)
        assert connection.recv(10_000).split()[1] == b"413", "before its end has come"
    assert served.show({"text": "rain .", "x": "x" * (MAX_BODY - 100)})[0] == 200


def test_who_is_slow_or_breaks_off_does_no_harm(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "BODY_SECONDS", 0.3)
    head = b"POST /show/text HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    with served.connect() as slow, served.connect() as broken:
        slow.sendall(head)
        broken.sendall(head)
        broken.close()
        reply = reply_of(slow)
        assert reply.split()[1] == b"408" and b"did not arrive within 0.3 seconds" in reply
    served.until(lambda: served.desk.open == 0)
    assert served.show(TEXT)[0] == 200


def test_tokens_are_bounded_beside_characters(served: Served) -> None:
    before = served.passes
    for tab, text in (("document", "." * 200_000), ("search", ("." * 199 + "\n") * 2000)):
        status, answer = served.show({"text": text, "second": "rain ?"}, tab)
        assert status == 413 and "The text has more than 65,536 tokens" in answer
    assert served.passes == before


def test_when_too_many_wait_the_next_is_told_to_come_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.desk.turns, "waiting", 2)
    with ThreadPoolExecutor(3) as pool:
        with served.hold():
            asked = [pool.submit(served.show, {"text": f"rain in rome {i} ."}) for i in range(3)]
            served.until(lambda: len(served.desk.turns._line) == 3)
            status, headers, answer = served.ask("POST", "/show/text", TEXT)
            assert status == 429 and headers["retry-after"] == "5"
            assert "Busy: 2 others are waiting already. Try again in 5 seconds." in json.loads(answer)["text"]
            assert served.ask("GET", "/health")[0] == 200, "files are there all the time"
        assert [future.result()[0] for future in asked] == [200] * 3
    assert served.show(TEXT)[0] == 200


def test_so_many_at_a_time_and_no_more(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_OPEN", 1)
    with served.connect() as slow:
        slow.sendall(
            b"POST /show/text HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        )
        served.until(lambda: served.desk.open == 1)
        status, headers, answer = served.ask("POST", "/save/json", TEXT)
        assert status == 429 and headers["retry-after"] == "5" and "Busy: 1 others" in json.loads(answer)["problem"]
    served.until(lambda: served.desk.open == 0)
    assert served.ask("POST", "/save/json", TEXT)[0] == 200


def request(body: Any, path: str = "/show/text") -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def test_who_leaves_the_line_gives_up_the_place_and_nothing_runs(served: Served) -> None:
    with served.hold():
        running, waiting = served.connect(), served.connect()
        running.sendall(request({"text": "the first one ."}))
        served.until(lambda: len(served.desk.turns._line) == 1)
        waiting.sendall(request({"text": "the second one ."}))
        served.until(lambda: len(served.desk.turns._line) == 2)
        waiting.close()
        served.until(lambda: len(served.desk.turns._line) == 1)
        passes = served.passes
    assert running.recv(100).split()[1] == b"200"
    running.close()
    assert served.passes == passes


def test_what_nobody_waits_for_stops_between_batches(served: Served) -> None:
    lines = "\n".join(f"line {i} ." for i in range(1500))
    before = served.passes
    assert served.show({"text": lines}, "document")[0] == 200
    whole = served.passes - before
    assert whole > 3
    with served.hold():
        running = served.connect()
        before = served.passes
        running.sendall(request({"text": f"{lines}\nand another"}, "/show/document"))
        served.until(lambda: served.passes > before)
        running.close()
        served.until(lambda: any(ticket.left for ticket in served.desk.turns._line))
    served.until(lambda: not served.desk.turns._line)
    assert served.passes - before == 1 < whole


def test_time_is_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.desk.turns, "seconds", 0.5)
    lines = "\n".join(f"number {i} ." for i in range(1500))
    with ThreadPoolExecutor(2) as pool:
        with served.hold():
            running = pool.submit(served.show, {"text": lines}, "document")
            served.until(lambda: len(served.desk.turns._line) == 1)
            status, headers, answer = served.ask("POST", "/show/text", TEXT)
            assert status == 503 and headers["retry-after"] == "5" and "did not come within 0.5 seconds" in answer
        assert running.result()[0] == 503 and "There is no answer after 0.5 seconds" in running.result()[1]


def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "IDLE_SECONDS", 0.4)
    model = build_model()
    app = build_app(model)
    with serving(app) as url:
        served = Served(url, app, model)
        with served.connect() as silent, served.connect() as slow, served.connect() as endless, served.connect() as busy:
            slow.sendall(b"GET / HT")
            endless.sendall(b"POST /show/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nx")
            assert endless.recv(10_000).split()[1] == b"404"
            with served.hold():
                busy.sendall(request(TEXT))
                time.sleep(1.5)
            assert busy.recv(1000).split()[1] == b"200", "a question that is being answered is not idle"
            for connection in (silent, slow, endless):
                with suppress(ConnectionResetError):
                    while connection.recv(
                        1000
                    ):  # the rest of an answer; a connection that stays open ends in a TimeoutError
                        pass


def test_who_takes_no_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    build, servers = serve.build_server, []
    monkeypatch.setattr(serve, "IDLE_SECONDS", 0.4)
    monkeypatch.setattr(serve, "build_server", lambda app: servers.append(build(app)) or servers[0])
    model = build_model()
    app = build_app(model)
    with serving(app) as url:
        served, connections = Served(url, app, model), servers[0].server_state.connections
        with served.connect() as deaf:
            deaf.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000)  # 30 MB of answers, which no buffer holds
            served.until(lambda: len(connections) == 1)
            served.until(lambda: not connections)
        assert served.show(TEXT)[0] == 200


def test_nonsense_is_answered_or_cut_off(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    rubbish = [b"\x16\x03\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\xff" * 100_000, b"GET " + b"a" * 100_000]
    rubbish += [b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200_000 + b"\r\n\r\n"]
    chunked = b"POST /show/text HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    rubbish += [chunked + b"\r\nzz\r\n", chunked + b"Content-Length: 5\r\n\r\n5\r\nhello\r\n", b"\r\n" * 1000]
    rubbish += [b"POST /show/nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n"]
    for data in rubbish:
        with served.connect() as connection:
            connection.settimeout(0.5)
            try:
                connection.sendall(data)
                reply = connection.recv(100)
            except OSError:  # cut off, or still listened to
                reply = b""
            assert not reply or 400 <= int(reply.split()[1]) < 500, data[:60]
    assert served.show(TEXT)[0] == 200 and "Traceback" not in capfd.readouterr().err


WRITTEN: list[str] | None = None


def watch_files(event: str, arguments: tuple[Any, ...]) -> None:
    if WRITTEN is not None and event == "open":
        path, mode, flags = arguments
        if (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or set(mode or "") & set("wax+"):
            WRITTEN.append(str(path))


def test_nothing_is_written_to_the_disk(served: Served) -> None:
    global WRITTEN
    sys.addaudithook(watch_files)
    WRITTEN = []
    try:
        for tab in ("text", "pair", "search", "document", "methods"):
            assert served.show({"text": "a text that nobody keeps .", "second": "another one ."}, tab)[0] == 200
        for kind in ("json", "html"):
            assert served.ask("POST", f"/save/{kind}", TEXT)[0] == 200
        assert WRITTEN == []
        with open(os.devnull, "w"):
            assert [os.devnull] == WRITTEN, "it would be seen"
    finally:
        WRITTEN = None


def test_what_is_remembered_is_bounded_by_its_length() -> None:
    asked: list[str] = []

    def ask(text: str) -> str:
        asked.append(text)
        return text

    remembered = Remembered(answers=3, characters=100)
    for text in ("a" * 50, "b" * 40, "a" * 50, "c" * 40, "b" * 40, "d" * 500, "d" * 500):
        assert remembered(ask, text) == text
    assert [text[0] for text in asked] == ["a", "b", "c", "b", "d"] and list(remembered.answers) == [("ask", "d" * 500)]
    for number in range(10):
        remembered(ask, str(number))
    assert [text for _, text in remembered.answers] == ["7", "8", "9"]
    assert remembered(len, "9") == 1, "another function has answers of its own"


def test_a_port_that_is_taken_is_said_and_the_next_free_one_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with listen(port=0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on port {port} of 127.0.0.1: .*; choose another --port"):
            listen(port=port)
        monkeypatch.setattr(serve, "PORT", port)
        with listen() as found:
            assert port < found.getsockname()[1] < port + serve.PORTS
    with listen("0.0.0.0", 0) as everywhere:
        assert address(everywhere) == f"http://127.0.0.1:{everywhere.getsockname()[1]}/"
    with pytest.raises(SystemExit):
        main(["--port", "70000"])
    assert "--port must be in 1 to 65535, got 70000." in capsys.readouterr().err
