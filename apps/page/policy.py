"""The content security policy of the page: it can fetch and run nothing that does not come from its own server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

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
