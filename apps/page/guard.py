"""What stands before the page: who may ask, and the headers of every answer.

A page of another site runs in the same browser as ours, and can send requests to this machine. Its name is in `Host` where
it has its own name resolve to this machine (DNS rebinding), and its browser says in `Sec-Fetch-Site` or `Origin` where else
a request comes from. Both are checked before anything is read.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANY = "*"
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9.-]+))(?::[0-9]{1,5})?", re.ASCII)
# The types of ASGI, as https://asgi.readthedocs.io names them.
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def host_name(value: str | None) -> str | None:
    """The name in a `Host` header, without its port; None where it is none.

    >>> host_name("localhost:7860"), host_name("[::1]:7860"), host_name("a@b"), host_name(None)
    ('localhost', '::1', None, None)
    """
    match = _HOST.fullmatch(value or "")
    return None if match is None else (match[1] or match[2]).lower()


def policy(frames: Iterable[str] = ()) -> str:
    """The content security policy: nothing but our own files, and no script within the page, not even our own.

    Shades are style attributes, and saved files are blobs.

    Args:
        frames: origins whose pages may show ours in a frame.

    >>> policy(["https://huggingface.co"]).split("; ")[-1]
    'frame-ancestors https://huggingface.co'
    """
    own = "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:"
    around = " ".join(frames) or "'none'"
    return f"{own}; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors {around}"


class Guard:
    """ASGI middleware that turns away what comes under another name or from another page, and adds the headers.

    Args:
        hosts: names that the page may be asked for by, beside those of this machine alone; "*" for any.
        frames: origins whose pages may show ours in a frame.

    >>> Guard(None, ["Demo.example"]).hosts == {"127.0.0.1", "localhost", "::1", "demo.example"}
    True
    """

    def __init__(self, app: App, hosts: Iterable[str] = (), frames: Iterable[str] = ()) -> None:
        self.app = app
        self.hosts = {*LOOPBACK, *(name.lower() for name in hosts)}
        self.headers = {
            "content-security-policy": policy(frames),
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            # No other page can have our files or answers, nor a hand on our window.
            "cross-origin-resource-policy": "same-origin",
            "cross-origin-opener-policy": "same-origin",
            "cache-control": "no-store",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # nothing else is served
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in self.headers.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        problem = self.problem(scope["method"], Headers(scope=scope))
        app = self.app if problem is None else PlainTextResponse(problem[1], status_code=problem[0])
        await app(scope, receive, send_with_headers)

    def problem(self, method: str, headers: Headers) -> tuple[int, str] | None:
        """Status and message for a request that is turned away.

        >>> Guard(None).problem("GET", Headers({"host": "evil.example:7860"}))[0]
        421
        >>> Guard(None).problem("POST", Headers({"host": "localhost", "sec-fetch-site": "same-site"}))[0]
        403
        """
        hosts = headers.getlist("host")
        name = host_name(hosts[0]) if len(hosts) == 1 else None
        if name is None or (ANY not in self.hosts and name not in self.hosts):
            return 421, "This page is not served under that name; `hardkuma demo --allow-host NAME` allows it.\n"
        if method in ("GET", "HEAD"):  # which change nothing, and what they give no other page can read
            return None
        if (site := headers.get("sec-fetch-site")) is not None:
            own = site == "same-origin"
        else:  # an old browser says where from, and no browser at all does not
            origin = headers.get("origin")
            own = origin is None or _netloc(origin) == hosts[0].lower()
        return None if own else (403, "Only the page itself may ask.\n")


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None
