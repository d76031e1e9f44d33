"""The demo as a web server with a page of our own: one text, two texts, search, documents, other methods.

The page is page.html, page.css and page.js beside this file. It asks `show/TAB` and puts the HTML of the answer in its
place. These are all routes that there are:

    GET   /  /page.css  /page.js  /docs  /health
    POST  /show/TAB  /save/KIND                  JSON in and out; status 200, or what was wrong in the same place

Nothing is fetched from elsewhere, nothing is reported to anyone, and nothing is written to the disk. guard.py says who may
ask.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from html import escape
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...common.models import RELEASED, load_released
from ...common.rendering.style import COLOURS, RECORD_STYLE, SANS
from ...handler import MAX_NAME, MAX_SECONDS, RETRY_SECONDS, RequestError, Ticket, Turns
from ...modeling_hardkuma import HardKumaModel
from ...scoring_hardkuma import ALL, Record
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
from .guard import Guard
from .html import (
    label,
    save_text,
    show_comparison,
    show_document,
    show_matches,
    show_pair,
    show_problem,
    show_text,
)

HERE = Path(__file__).parent
START_PERCENT = 20
# What the selectors of the released head, and others with these names, are for.
EXPLAINED = {
    "meaning": "<b>Important words</b> still say what the text is about when all others are left out.",
    "entities": "<b>Names</b> are words that could be names or terms, by how they are written and used.",
}
MAX_BODY = 2_500_000  # bytes of a question as it is sent: the longest texts fit, in any script
BODY_SECONDS = 20  # that a browser may take to send it
MAX_WAITING = 16  # for the encoder, which runs for one visitor at a time
MAX_OPEN = 64  # questions at a time, those that are still being sent too; they bound the memory for what is sent
# What a tab shows: HTML by the id of the element that it goes into.
Parts = dict[str, str]


def build_app(
    model: HardKumaModel | None = None, selector: str | None = None, hosts: Iterable[str] = (), frames: Iterable[str] = ()
) -> Starlette:
    """The page and its answers as an ASGI application; `serve.serving` serves it.

    Args:
        model: in eval mode, with its tokenizer; the released gates by default. It is the application's own from now on.
        selector: the name of the selector to start with; "meaning" by default, or the first. Of a model with several
            the page has a choice.
        hosts: names that the page may be asked for by, beside those of this machine alone; "*" for any.
        frames: origins whose pages may show ours in a frame.

    >>> sorted(route.path for route in build_app().routes)
    ['/', '/docs', '/health', '/page.css', '/page.js', '/save/{name}', '/show/{name}']
    """
    demo = Demo(load_released()[0] if model is None else model, selector)
    answers = Answers(demo)
    desk = Desk(Turns(MAX_WAITING, MAX_SECONDS, demo.model.encoder))
    demo.pair(*PAIRS[0])  # what unrelated texts have in common is estimated once, before anybody waits for it

    async def show(request: Request) -> Response:
        tab = request.path_params["name"]
        return await desk.answer(request, answers.tabs.get(tab), lambda message: {tab: show_problem(message)})

    async def save(request: Request) -> Response:
        kind = request.path_params["name"]
        return await desk.answer(request, answers.files.get(kind), lambda message: {"problem": message})

    app = Starlette(
        routes=[
            _file("/", render_index(demo), "text/html"),
            _file("/page.css", render_style(), "text/css"),
            _file("/page.js", (HERE / "page.js").read_text(encoding="utf-8"), "text/javascript"),
            _file("/docs", documentation(), "text/plain"),
            _file("/health", json.dumps({"status": "ok"}), "application/json"),
            Route("/show/{name}", show, methods=["POST"]),
            Route("/save/{name}", save, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, hosts=list(hosts), frames=list(frames))],
    )
    app.router.redirect_slashes = False
    app.state.desk = desk
    return app


def documentation() -> str:
    """README.md: from the package's folder, or from what pip has installed.

    >>> "HardKuma" in documentation()
    True
    """
    path = RELEASED / "README.md"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    try:
        return str(metadata.metadata("hardkuma").get_payload())  # type: ignore[attr-defined] # an email.message.Message
    except metadata.PackageNotFoundError:
        return "HardKuma: `hardkuma --help` and `hardkuma COMMAND --help` say what it does.\n"


def _file(path: str, content: str, media_type: str) -> Route:
    """A route that always gives the same."""

    async def give(_: Request) -> Response:
        return Response(content, media_type=media_type)

    return Route(path, give, methods=["GET"])


class Desk:
    """Where questions arrive, wait for their turn and are answered: each waits in a thread of its own, and all are answered
    in one, since every thread that has ever run the encoder keeps memory for it.

    Args:
        turns: whose turn it is to have the encoder.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns, self.open = turns, 0
        self.waiting_room = ThreadPoolExecutor(MAX_OPEN, thread_name_prefix="waiting")
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="answering")

    async def answer(
        self,
        request: Request,
        function: Callable[[Query], dict[str, str]] | None,
        explain: Callable[[str], dict[str, str]],
    ) -> Response:
        """What a function makes of a request; what is wrong with the request is an answer too."""
        if function is None:
            return JSONResponse({}, status_code=404)
        try:
            if self.open >= MAX_OPEN:
                raise RequestError(429, f"Busy: {self.open} others are asking. Try again in {RETRY_SECONDS} seconds.")
            self.open += 1
            try:
                return JSONResponse(await self._answer(request, function))
            finally:
                self.open -= 1
        except ValueError as error:
            status = error.status if isinstance(error, RequestError) else 422
            headers = {"retry-after": str(RETRY_SECONDS)} if status in (429, 503) else None
            return JSONResponse(explain(str(error)), status_code=status, headers=headers)

    async def _answer(self, request: Request, function: Callable[[Query], dict[str, str]]) -> dict[str, str]:
        body, ticket = await read_body(request), Ticket(self.turns.seconds)

        def run() -> dict[str, str]:
            with self.turns.take(ticket):
                return self.worker.submit(lambda: function(Query.parse(body))).result()

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            self.turns.leave(ticket)

        watching = asyncio.create_task(watch())
        try:
            return await asyncio.get_running_loop().run_in_executor(self.waiting_room, run)
        finally:
            watching.cancel()
            self.turns.leave(ticket)  # where the server ends, nobody waits either


async def read_body(request: Request) -> bytes:
    """The body of a request; of one that is too long no more is read than shows it."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # no other page can send it without asking first
        raise RequestError(415, f"The question must be application/json, got {kind[:60]!r}.")
    announced = request.headers.get("content-length", "0")
    body = bytearray()
    try:
        if int(announced) > MAX_BODY:
            raise RequestError(413, f"The question has {int(announced):,} bytes; at most {MAX_BODY:,} fit here.")
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    raise RequestError(413, f"The question has more than {MAX_BODY:,} bytes, which is what fits here.")
    except TimeoutError:
        raise RequestError(408, f"The question did not arrive within {BODY_SECONDS} seconds.") from None
    except ClientDisconnect:
        raise RequestError(400, "The question was broken off.") from None
    return bytes(body)


@dataclass(frozen=True)
class Query:
    """One question of the page.

    Attributes:
        text: the text, the first of two, or the passages, one a line.
        second: the second text, or the question to the passages.
        selector: the name of a selector; None for the one that the page starts with.
        percent: the share of words to select; None for the model's own decision.
        keep: how much of one text's meaning its words are to keep, in per cent; None for the same.
    """

    text: str = ""
    second: str = ""
    selector: str | None = None
    percent: float | None = None
    keep: float | None = None

    @classmethod
    def parse(cls, body: bytes) -> Query:
        """The query of a request's body; a `RequestError` says what is wrong with it.

        >>> Query.parse(b'{"text": "Hi", "percent": 20}')
        Query(text='Hi', second='', selector=None, percent=20.0, keep=None)
        """
        try:
            values = json.loads(body)
        except (ValueError, RecursionError):
            raise RequestError(400, "The question must be JSON.") from None
        if not isinstance(values, dict):
            raise RequestError(400, f"The question must be a JSON object, got a {type(values).__name__}.")
        return cls(
            **{field.name: _checked(field.name, values[field.name]) for field in fields(cls) if field.name in values}
        )


def _checked(name: str, value: Any) -> Any:
    if value is None and name in ("selector", "percent", "keep"):
        return None
    if name not in ("percent", "keep"):
        if not isinstance(value, str):
            raise RequestError(400, f"{name} must be a text, got a {type(value).__name__}.")
        if name == "selector" and len(value) > MAX_NAME:  # it would be repeated in the message
            raise RequestError(422, f"selector has {len(value):,} characters; at most {MAX_NAME}.")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(400, f"{name} must be a number, got a {type(value).__name__}.")
    try:
        return float(value)
    except OverflowError:
        raise RequestError(422, f"{name} has more digits than a number can have here.") from None


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
        shown, numbers = show_text(self._records(query))
        return {"text": shown, "numbers": numbers}

    def pair(self, query: Query) -> Parts:
        """What links two texts."""
        return {"pair": show_pair(self.demo.pair(query.text, query.second, query.percent, self._one(query)))}

    def search(self, query: Query) -> Parts:
        """The passages nearest to a question."""
        return {"search": show_matches(*self.demo.search(query.text, query.second, query.percent, self._one(query)))}

    def document(self, query: Query) -> Parts:
        """A long text with its key phrases."""
        return {"document": show_document(*self.demo.document(query.text, query.percent, query.selector))}

    def methods(self, query: Query) -> Parts:
        """The gates beside other methods."""
        return {"methods": show_comparison(self.demo.compare(query.text, self._one(query)), query.percent)}

    def file(self, query: Query, kind: str) -> dict[str, str]:
        """One text as a file, with the gates that the page shows."""
        return save_text(self._records(query), kind)

    def _records(self, query: Query) -> dict[str, Record]:
        return self.demo.records(query.text, query.selector, query.percent, query.keep)

    def _one(self, query: Query) -> str | None:
        """The selector where one is needed: that of the start where all are chosen."""
        return None if query.selector == ALL else query.selector


def render_style() -> str:
    """The style sheet: our colours in light and dark, the rules of records, and those of the page."""
    fonts = f":root {{ --sans: {SANS}; }}\n"
    return COLOURS + fonts + RECORD_STYLE + (HERE / "page.css").read_text(encoding="utf-8")


def render_index(demo: Demo) -> str:
    """The page with the first text's answer in it: something is there before any script has run."""
    shown, numbers = show_text(demo.records(TEXTS[0]))
    names = {name: label(name) for name in demo.names}
    if len(names) > 1:
        names[ALL] = "both" if len(names) == 2 else "all"
    values: dict[str, Any] = {
        "model": escape(demo.describe()),
        "selectors": "".join(_choice(name, shown_as, name == demo.selector) for name, shown_as in names.items()),
        "several": "" if len(demo.names) > 1 else "hidden",
        "explained": " ".join(EXPLAINED[name] for name in demo.names if name in EXPLAINED),
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
        "max_body": MAX_BODY,
        "low": RATES[0],
        "high": RATES[1],
        "percent": START_PERCENT,
    }
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(values)


def _choice(name: str, shown: str, checked: bool) -> str:
    state = " checked" if checked else ""
    field = f'<input type="radio" name="selector" value="{escape(name)}"{state}>'
    return f"<label>{field}<span>{escape(shown)}</span></label>"


def _example(label: str, **fields: str) -> str:
    data = " ".join(f'data-{name}="{escape(value)}"' for name, value in fields.items())
    return f'<button type="button" class="example" {data}>{escape(label)}</button>'
