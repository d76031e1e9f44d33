"""In Chromium: a page of another origin can neither read from a running demo nor write to it, by whatever means it has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the demo needs uvicorn: pip install 'hardkuma[demo]'")

from hardkuma.apps.page.app import build_app
from hardkuma.apps.page.serve import serving
from tests.browser import chromium, needs_chromium
from tests.conftest import build_model

pytestmark = needs_chromium

# Each gives what it could read, or how it was kept from that.
MEANS = {
    "read the page": "fetch(at).then((reply) => reply.text())",
    "read its health": "fetch(at + 'health').then((reply) => reply.json()).then(JSON.stringify)",
    "ask as the page does": "fetch(at + 'show/text', {method: 'POST', headers: json, body}).then((reply) => reply.text())",
    "ask without reading": "fetch(at + 'show/text', {method: 'POST', mode: 'no-cors', body}).then((reply) => reply.text())",
    "send a beacon": "new Promise((done) => { navigator.sendBeacon(at + 'show/text', body); setTimeout(done, 300); })",
    "run its script": """new Promise((done) => { const tag = document.createElement('script'); tag.src = at + 'page.js';
        tag.onload = () => done('ran'); tag.onerror = () => done(''); document.body.append(tag); })""",
    "use its style": """new Promise((done) => { const tag = document.createElement('link'); tag.rel = 'stylesheet';
        tag.href = at + 'page.css'; tag.onload = () => done('used'); tag.onerror = () => done('');
        document.head.append(tag); })""",
    "show it in a frame": """new Promise((done) => { const tag = document.createElement('iframe'); tag.src = at;
        tag.onload = () => { try { done(tag.contentDocument ? 'read' : ''); } catch { done(''); } };
        document.body.append(tag); })""",
}
FORM = """([at, kind]) => { const form = document.createElement('form'); form.method = 'POST'; form.enctype = kind;
    form.action = at + 'show/text'; const field = document.createElement('input');
    field.name = '{"text": "written by another page", "x": "'; field.value = '"}'; form.append(field);
    document.body.append(form); form.submit(); }"""


class Elsewhere(BaseHTTPRequestHandler):
    """A page of somebody else."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!DOCTYPE html><title>evil</title><body></body>")

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def other() -> Iterator[int]:
    """The port of another server of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """For this one every name is that of this machine: as if evil.example had its address changed."""
    with chromium(
        "--host-resolver-rules=MAP *.example 127.0.0.1", "--disable-features=LocalNetworkAccessChecks"
    ) as browser:
        yield browser


class Demo:
    """A running demo, what it was asked for and with which status, and how often its encoder ran."""

    def __init__(self) -> None:
        model = build_model()
        self.asked: list[tuple[str, str, int]] = []
        self.passes = 0
        self.app = build_app(model)
        model.encoder.register_forward_hook(self._pass)

    def _pass(self, *_: object) -> None:
        self.passes += 1

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def record(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.asked.append((scope["method"], scope["path"], message["status"]))
            await send(message)

        await self.app(scope, receive, record)


@pytest.fixture(scope="module")
def demo() -> Iterator[tuple[Demo, str]]:
    demo = Demo()
    with serving(demo) as url:
        yield demo, url


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1", "localhost"])
def test_a_page_of_another_origin_can_neither_read_nor_write(
    name: str, browser: Any, demo: tuple[Demo, str], other: int
) -> None:
    served, url = demo
    page = browser.new_page()
    passes = served.passes
    setup = (
        f"const at = '{url}', json = {{'Content-Type': 'application/json'}}, body = '{{\"text\": \"by another page\"}}';"
    )
    page.goto(f"http://{name}:{other}/")
    for means, script in MEANS.items():
        del served.asked[:]
        read = page.evaluate(f"async () => {{ {setup} try {{ return await {script} || ''; }} catch {{ return ''; }} }}")
        assert read == "", means
        assert served.asked, f"{means}: it must have been tried"
        assert not any(method == "POST" and status != 403 for method, _, status in served.asked), (means, served.asked)
    for _ in range(100):  # the driver hears of the frame's address after the page does
        if page.frames[1].url:
            break
        page.wait_for_timeout(100)
    assert page.frames[1].url.startswith("chrome-error:") and "HardKuma" not in page.frames[1].content()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        del served.asked[:]
        page.goto(f"http://{name}:{other}/")
        with page.expect_navigation():
            page.evaluate(FORM, [url, kind])
        assert ("POST", "/show/text", 403) in served.asked and page.inner_text(
            "body"
        ).strip() == "Only the page itself may ask."
    assert served.passes == passes, "the encoder never ran"
    page.close()


def test_a_name_that_is_made_to_point_here_shows_nothing(browser: Any, demo: tuple[Demo, str]) -> None:
    served, url = demo
    port = url.rstrip("/").rpartition(":")[2]
    page, passes = browser.new_page(), served.passes
    reply = page.goto(f"http://rebound.example:{port}/")
    assert reply.status == 421 and "HardKuma" not in page.content()
    # The page is now of that origin, and asks as our own would.
    script = """async () => { const headers = {'Content-Type': 'application/json'}, body = '{"text": "rebound"}';
        const replies = [await fetch('/'), await fetch('/health')];
        replies.push(await fetch('/show/text', {method: 'POST', headers, body}));
        return replies.map((reply) => reply.status); }"""
    assert page.evaluate(script) == [421] * 3 and served.passes == passes
    page.close()


def test_the_page_itself_can(browser: Any, demo: tuple[Demo, str]) -> None:
    """So that what is refused above is refused for what it is."""
    served, url = demo
    page = browser.new_page()
    page.goto(url)
    page.wait_for_selector("#text mark")
    passes = served.passes
    page.get_by_role("textbox", name="Text", exact=True).fill("written by the page itself")
    page.wait_for_function("() => document.querySelector('#text .hk-text').textContent.startsWith('written by')")
    assert served.passes > passes and ("POST", "/show/text", 200) in served.asked
    page.close()
