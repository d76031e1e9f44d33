"""The demo as a Gradio server with a page of our own: one text, two texts, search, documents, other methods.

The page is page.html, page.css and page.js beside this file. It asks `show/TAB` and puts the HTML of the answer in its
place. Nothing is fetched from elsewhere, nothing is reported to anyone and no text is stored. A content security policy
holds the browser to that.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import gradio as gr
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from ...common.models import load_released
from ...common.rendering.style import COLOURS, RECORD_STYLE, SANS
from ...handler import RequestError
from ...modeling_hardkuma import HardKumaModel
from ...scoring_hardkuma import ALL
from .demo import (
    MAX_CHARACTERS,
    MAX_CHARACTERS_COMPARED,
    MAX_CHARACTERS_DOCUMENT,
    MAX_CHARACTERS_PASSAGES,
    MAX_PASSAGES,
    RATES,
    Demo,
)
from .examples import DOCUMENT, PAIRS, PASSAGES, QUESTIONS, TEXTS
from .html import (
    as_file,
    show_comparison,
    show_document,
    show_matches,
    show_pair,
    show_problem,
    show_record,
    show_selectors,
)

HERE = Path(__file__).parent
START_PERCENT = 20
MAX_BODY = 4_000_000  # bytes of a question as it is sent: the longest texts fit, in any script
BODY_SECONDS = 30  # that a browser may take to send it
# The types of ASGI, as https://asgi.readthedocs.io names them.
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

# No script within the page, not even our own, ever runs; shades are style attributes, and saved files are blobs.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
# What a tab shows: HTML by the id of the element that it goes into.
Parts = dict[str, str]


def build_app(model: HardKumaModel | None = None, selector: str | None = None) -> gr.Server:
    """The page and its answers as a `gradio.Server`; `start` starts it.

    Args:
        model: in eval mode, with its tokenizer; the released gates by default.
        selector: the name of the selector to start with; "meaning" by default, or the first. Of a model with several
            the page has a choice.

    >>> build_app().title
    'HardKuma'
    """
    demo = Demo(load_released()[0] if model is None else model, selector)
    app = gr.Server(title="HardKuma", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(PolicyHeader)
    page, style = render_index(demo), render_style()
    script = (HERE / "page.js").read_text(encoding="utf-8")
    answers = Answers(demo)
    demo.pair(*PAIRS[0])  # what unrelated texts have in common is estimated once, before anybody waits for it

    @app.get("/", response_class=HTMLResponse)
    def index() -> str:
        return page

    @app.get("/page.css")
    def stylesheet() -> Response:
        return Response(style, media_type="text/css")

    @app.get("/page.js")
    def javascript() -> Response:
        return Response(script, media_type="text/javascript")

    @app.post("/show/{tab}")
    async def show(tab: str, request: Request) -> Response:
        return await answer(answers.tabs.get(tab), request, lambda message: {tab: show_problem(message)})

    @app.post("/save/{kind}")
    async def save(kind: str, request: Request) -> Response:
        return await answer(answers.files.get(kind), request, lambda message: {"problem": message})

    return app


async def answer(
    function: Callable[[Query], dict[str, str]] | None, request: Request, explain: Callable[[str], dict[str, str]]
) -> Response:
    """What a function makes of a request, in a thread of its own; what is wrong with the request is an answer too."""
    if function is None:
        return JSONResponse({}, status_code=404)
    try:
        query = Query.parse(await read_body(request))
        return JSONResponse(await run_in_threadpool(function, query))
    except RequestError as error:  # too large, too slow, or too many at once
        return JSONResponse(explain(str(error)), status_code=error.status)
    except ValueError as error:
        return JSONResponse(explain(str(error)))


async def read_body(request: Request) -> bytes:
    """The body of a request. Of one that is too long no more is kept; whoever sends it hears why when all is sent."""
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= MAX_BODY:
                    body += chunk
    except TimeoutError:
        raise RequestError(408, f"The question did not arrive within {BODY_SECONDS} seconds.") from None
    except ClientDisconnect:
        raise RequestError(400, "The question was broken off.") from None
    if size > MAX_BODY:
        raise RequestError(413, f"The question has {size:,} bytes; at most {MAX_BODY:,} fit here.")
    return bytes(body)


@dataclass(frozen=True)
class Query:
    """One question of the page.

    Attributes:
        text: the text, the first of two, or the passages, one a line.
        second: the second text, or the question to the passages.
        selector: the name of a selector; None for the one that the page starts with.
        percent: the share of words to select; None for the model's own decision.
    """

    text: str = ""
    second: str = ""
    selector: str | None = None
    percent: float | None = None

    @classmethod
    def parse(cls, body: bytes) -> Query:
        """The query of a request's body; a ValueError says what is wrong with it.

        >>> Query.parse(b'{"text": "Hi", "percent": 20}')
        Query(text='Hi', second='', selector=None, percent=20.0)
        """
        try:
            values = json.loads(body)
        except (ValueError, RecursionError):
            raise ValueError("The question must be JSON.") from None
        if not isinstance(values, dict):
            raise ValueError(f"The question must be a JSON object, got a {type(values).__name__}.")
        return cls(
            **{field.name: _checked(field.name, values[field.name]) for field in fields(cls) if field.name in values}
        )


def _checked(name: str, value: Any) -> Any:
    if value is None and name in ("selector", "percent"):
        return None
    if name != "percent":
        if not isinstance(value, str):
            raise ValueError(f"{name} must be a text, got a {type(value).__name__}.")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"percent must be a number, got a {type(value).__name__}.")
    return float(value)


class Answers:
    """What each tab shows for a query, and each kind of file that is saved.

    >>> from hardkuma import load_released
    >>> sorted(Answers(Demo(load_released()[0])).tabs["text"](Query("Marie Curie moved to Paris.")))
    ['numbers', 'text']
    """

    def __init__(self, demo: Demo) -> None:
        self.demo = demo
        tabs = (self.text, self.pair, self.search, self.document, self.methods)
        self.tabs: dict[str, Callable[[Query], Parts]] = {tab.__name__: tab for tab in tabs}
        self.files = {kind: lambda query, kind=kind: self.file(query, kind) for kind in ("json", "html")}

    def text(self, query: Query) -> Parts:
        """The gates of one text."""
        if query.selector == ALL:
            shown, numbers = show_selectors(self.demo.score_all(query.text), query.percent)
        else:
            shown, numbers = show_record(self.demo.score(query.text, query.selector), query.percent)
        return {"text": shown, "numbers": numbers}

    def pair(self, query: Query) -> Parts:
        """What links two texts."""
        return {"pair": show_pair(self.demo.pair(query.text, query.second, query.percent, self._one(query)))}

    def search(self, query: Query) -> Parts:
        """The passages nearest to a question."""
        return {"search": show_matches(*self.demo.search(query.text, query.second, query.percent, self._one(query)))}

    def document(self, query: Query) -> Parts:
        """A long text with its terms."""
        scored, terms = self.demo.document(query.text, query.percent, query.selector)
        return {"document": show_document(scored, terms, query.percent)}

    def methods(self, query: Query) -> Parts:
        """The gates beside other methods."""
        return {"methods": show_comparison(self.demo.compare(query.text, self._one(query)), query.percent)}

    def file(self, query: Query, kind: str) -> dict[str, str]:
        """One text as a file, with the gates that the page shows: of one selector, or of all."""
        if query.selector == ALL:
            return as_file(self.demo.score_all(query.text), query.percent, kind)
        name = query.selector or self.demo.selector
        return as_file({name: self.demo.score(query.text, name)}, query.percent, kind)

    def _one(self, query: Query) -> str | None:
        """The selector where one is needed: that of the start where all are chosen, which the page does not offer there."""
        return None if query.selector == ALL else query.selector


def render_style() -> str:
    """The style sheet: our colours in light and dark, the rules of records, and those of the page."""
    fonts = f":root {{ --sans: {SANS}; }}\n"
    return COLOURS + fonts + RECORD_STYLE + (HERE / "page.css").read_text(encoding="utf-8")


def render_index(demo: Demo) -> str:
    """The page with the first text's answer in it: something is there before any script has run."""
    shown, numbers = show_record(demo.score(TEXTS[0]))
    choices = [*demo.names, *([ALL] if len(demo.names) > 1 else [])]
    values: dict[str, Any] = {
        "selectors": "".join(_choice("selector", name, name == demo.selector) for name in choices),
        "several": "" if len(demo.names) > 1 else "hidden",
        "shown": shown,
        "numbers": numbers,
        "text": escape(TEXTS[0]),
        "compared": escape(TEXTS[2]),
        "first": escape(PAIRS[0][0]),
        "second": escape(PAIRS[0][1]),
        "texts": "".join(_example(text, text=text) for text in TEXTS),
        "pairs": "".join(_example(" / ".join(pair), text=pair[0], second=pair[1]) for pair in PAIRS),
        "passages": escape("\n".join(PASSAGES)),
        "question": escape(QUESTIONS[0]),
        "questions": "".join(_example(question, second=question) for question in QUESTIONS),
        "document": escape(DOCUMENT),
        "limit": MAX_CHARACTERS,
        "limit_document": MAX_CHARACTERS_DOCUMENT,
        "limit_passages": MAX_CHARACTERS_PASSAGES,
        "max_passages": f"{MAX_PASSAGES:,}",
        "limit_compared": MAX_CHARACTERS_COMPARED,
        "low": RATES[0],
        "high": RATES[1],
        "percent": START_PERCENT,
    }
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(values)


def _choice(name: str, value: str, checked: bool) -> str:
    state = " checked" if checked else ""
    return f'<label><input type="radio" name="{name}" value="{escape(value)}"{state}><span>{escape(value)}</span></label>'


def _example(label: str, **fields: str) -> str:
    data = " ".join(f'data-{name}="{escape(value)}"' for name, value in fields.items())
    return f'<button type="button" class="example" {data}>{escape(label)}</button>'


def start(app: gr.Server, **options: Any) -> gr.Blocks:
    """Serve the page, to this machine only and with nothing of Gradio's own pages; returns at once.

    Args:
        options: of `gradio.Server.launch`, for example `server_port`.

    Returns:
        what runs: it has `local_url`, `is_running` and `close()`.
    """
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # a server has no argument for it
    own: dict[str, Any] = {"ssr_mode": False, "pwa": False, "mcp_server": False, "run_history": False, "footer_links": []}
    app.launch(share=False, quiet=True, prevent_thread_lock=True, **own, **options)
    return app.get_blocks()


class PolicyHeader:
    """ASGI middleware that adds the policy to every answer.

    >>> import asyncio
    >>> async def app(scope, receive, send):
    ...     await send({"type": "http.response.start", "headers": []})
    >>> async def send(message):
    ...     print(message["headers"][0][0])
    >>> asyncio.run(PolicyHeader(app)({}, None, send))
    b'content-security-policy'
    """

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(b"content-security-policy", POLICY.encode()), (b"x-content-type-options", b"nosniff")]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self.app(scope, receive, send_with_policy)
