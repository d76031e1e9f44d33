"""Starts the demo, or writes it as a Hugging Face Space.

    hardkuma demo                      # http://127.0.0.1:7860
    hardkuma demo --model FOLDER       # another checkpoint
    hardkuma demo --write-space DIR    # write a folder that is a complete Space instead

Only this machine can reach it, unless --host says otherwise (as it does inside a Space).
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...common.arguments import Parser
from ...common.models import load_model
from ...common.packages import require
from .space import write_space

if TYPE_CHECKING:
    import uvicorn

    from .guard import App

EXAMPLES = """\
examples:
  hardkuma demo                                             the released gates, at http://127.0.0.1:7860
  hardkuma demo --model runs/default/model --open           another checkpoint, in the browser at once
  hardkuma demo --host 0.0.0.0 --allow-host pc.example      for the machines of this network, which call this one so
  hardkuma demo --write-space DIR                           a folder that is a complete Hugging Face Space
"""
HOST, PORT, PORTS = "127.0.0.1", 7860, 100
MAX_CONNECTIONS = 256
IDLE_SECONDS = 10  # after which a connection is closed that brings no whole question, or takes no answer
END_SECONDS = 3  # that questions have to be answered when the server ends


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the demo and serve until Ctrl-C, or write the Space; returns the exit status."""
    description = "Start the demo in a browser, on this machine only."
    parser = Parser(prog="hardkuma demo", description=description, epilog=EXAMPLES)
    parser.add_argument("--model", help="checkpoint folder or Hub id (default: the released gates)")
    parser.add_argument("--selector", metavar="NAME", help="the one to start with, where it has several (default: meaning)")
    parser.add_argument("--host", default=HOST, help="address to listen on (default: %(default)s, this machine alone)")
    parser.add_argument("--port", type=int, help=f"default: the first free one from {PORT} on")
    parser.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a name that the page may be asked for by, beside 127.0.0.1, localhost and --host; * for any",
    )
    parser.add_argument(
        "--allow-frame", metavar="ORIGIN", action="append", default=[], help="whose pages may show this one in a frame"
    )
    parser.add_argument("--open", action="store_true", help="open the browser")
    parser.add_argument("--write-space", metavar="DIR", help="write a folder that is a complete Space, and stop")
    options = parser.parse_args(arguments)
    if options.port is not None and not 0 < options.port < 1 << 16:
        parser.error(f"--port must be in 1 to 65535, got {options.port}.")
    if options.write_space:
        write_space(options.write_space, load_model(options.model, "cpu") if options.model else None)
        print(f"Push it with: hf upload --repo-type space USER/NAME {options.write_space} .")
        return 0
    require("starlette", "demo")
    require("uvicorn", "demo")
    from .app import build_app

    listening = listen(options.host, options.port)
    hosts = [options.host, *options.allow_host]
    app = build_app(load_model(options.model, "cpu"), options.selector, hosts, options.allow_frame)
    url = address(listening)
    print(f"The demo is at {url} (Ctrl+C stops it).", flush=True)
    if options.open:
        webbrowser.open(url)
    build_server(app).run(sockets=[listening])
    return 0


def listen(host: str = HOST, port: int | None = None) -> socket.socket:
    """A socket that listens; on the first free port from 7860 on, where none is given.

    >>> with listen(port=0) as listening:
    ...     address(listening).startswith("http://127.0.0.1:")
    True
    """
    ports = [port] if port is not None else range(PORT, PORT + PORTS)
    for number in ports:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, number), family=family, backlog=128)
        except OSError as error:
            problem = error
    wanted = f"port {port}" if port is not None else f"any port of {PORT} to {PORT + PORTS - 1}"
    raise OSError(f"cannot listen on {wanted} of {host}: {problem.strerror or problem}; choose another --port or --host.")


def address(listening: socket.socket) -> str:
    """Where a browser of this machine finds it."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": HOST, "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}/"


def build_server(app: App) -> uvicorn.Server:
    """What serves the application: no routes, logs or headers of its own, and no patience with idle connections."""
    import uvicorn
    from h11 import LocalProtocolError
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Bounded(H11Protocol):
        """Closes a connection on which nothing has moved between two looks, and no question is being answered."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(IDLE_SECONDS, self._look, (None, 0))

        def _look(self, before: tuple[object, int]) -> None:
            unsent = self.transport.get_write_buffer_size()
            if self.transport.is_closing() and not unsent:
                return
            busy = self.cycle is not None and not self.cycle.response_started
            now = (self if busy else self.cycle), unsent
            if now == before and (unsent or not busy):
                self.transport.abort()  # not close, which would wait for whoever takes no answer
                return
            self.loop.call_later(IDLE_SECONDS, self._look, now)

        def data_received(self, data: bytes) -> None:
            try:
                super().data_received(data)
            except LocalProtocolError:  # nonsense behind what has been answered already
                self.transport.abort()

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=Bounded,
            ws="none",
            lifespan="off",
            access_log=False,
            log_level="error",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=END_SECONDS,
        )
    )


@contextmanager
def serving(app: App, port: int = 0) -> Iterator[str]:
    """Serve to this machine, in a thread, until the block ends; gives the address.

    Args:
        port: a free one by default.
    """
    listening, server = listen(port=port), build_server(app)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield address(listening)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
