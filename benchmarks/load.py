"""handler.py and the demo under many clients at once, hostile ones among them.

    python benchmarks/load.py                                            both, 50 clients, a minute each
    python benchmarks/load.py --target handler --clients 10 --seconds 5  a quick look

Each server is a process of its own, reached on 127.0.0.1 only. The handler is loaded from a checkpoint's folder and called
from the threads of a small HTTP server, as an endpoint's server does; that one answers with the status of the error, where
the endpoint's own says 400 to all of them. The demo is served by Gradio, as `hardkuma demo` does it.

First every question is asked alone, which gives the right answers; then all clients ask at once, in random order. Among the
questions are texts of the longest kind, empty ones, half characters, NUL, wrong types, what is no JSON, a megabyte of each,
bodies that come drop by drop and bodies that never end. An answer is right if it is the one that was given before, to the
last digit; a refusal is status 503. Memory is the server's resident size, five times a second.

Exit code 0 means: the server lives, no answer was wrong, and memory grew by no more than --memory.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hardkuma import load_released
from hardkuma.data import bundled_texts

BUSY = 503
LARGEST_BODY = 8_000_000  # that the handler's server reads
SOCKET_SECONDS = 20  # that it waits for a body
PATIENCE = 120  # seconds that a client waits for an answer
MEGABYTE = 1_000_000


# ---- questions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """What a client sends, and the status that it must get when nobody else asks.

    Attributes:
        manner: "whole"; "slowly", in pieces; "broken", which is a body that never ends and gets no answer.
        weight: how often it is asked.
    """

    name: str
    path: str
    body: bytes
    status: int = 200
    manner: str = "whole"
    weight: float = 1.0


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def hostile(path: str, field: str, refused: int) -> list[Question]:
    """What no client should send, for a server that takes JSON; `refused` is the status of what it cannot read."""
    return [
        Question("no JSON", path, b"{", refused),
        Question("a megabyte of no JSON", path, b"\xff" * MEGABYTE, refused, weight=0.3),
        Question("nested deeply", path, b"[" * 100_000, refused, weight=0.3),
        Question("a number as text", path, as_json({field: 7}), refused),
        Question("a list as everything", path, as_json([1, 2]), refused),
        Question("an empty body", path, b"", refused),
        Question("an empty text", path, as_json({field: ""})),
        Question("NUL", path, as_json({field: "Marie\0Curie moved to \0 Paris."})),
        Question(
            "marks without letters", path, as_json({field: "e" + "\u0301" * 500 + " \u202e\u200f " + "\U0001f600" * 50})
        ),
        Question("a body that never ends", path, as_json({field: "Rain."}), manner="broken"),
    ]


def handler_questions(seed: int = 0) -> list[Question]:
    texts = random.Random(seed).sample(bundled_texts(), 200)
    polite = [Question("a text", "/", as_json({"inputs": text}), weight=0.5) for text in texts[:40]]
    polite += [
        Question("eight texts", "/", as_json({"inputs": texts[i : i + 8], "parameters": {"rate": 0.3}}), weight=0.5)
        for i in range(40, 120, 8)
    ]
    entities = {"selector": "entities", "threshold": 0.5}
    return [
        *polite,
        *hostile("/", "inputs", 400),
        Question("drop by drop", "/", as_json({"inputs": texts[150], "parameters": entities}), manner="slowly"),
        Question("two texts", "/", as_json({"inputs": {"a": texts[160], "b": texts[161]}}), 400),
        Question("half a character", "/", b'{"inputs": "half \\ud83d of one"}', 400),
        Question("a rate that is none", "/", b'{"inputs": "x", "parameters": {"rate": NaN}}', 422),
        Question("a selector that is none", "/", as_json({"inputs": "x", "parameters": {"selector": "nouns"}}), 422),
        Question("a megabyte of text", "/", as_json({"inputs": "rain " * (MEGABYTE // 5)}), 413, weight=0.5),
        Question("too many texts", "/", as_json({"inputs": ["rain"] * 20_000}), 413, weight=0.5),
        Question("the longest text", "/", as_json({"inputs": ("Rain in Oslo. " * 1429)[:20_000]}), weight=0.1),
    ]


def demo_questions(seed: int = 0) -> list[Question]:
    texts = random.Random(seed).sample(bundled_texts(), 400)
    # More texts than the page remembers, so that most of them are encoded again.
    polite = [Question("a text", "/show/text", as_json({"text": text, "percent": 20}), weight=0.3) for text in texts[:80]]
    for i in range(80, 100, 2):
        pair = {"text": texts[i][:300], "second": texts[i + 1][:300]}
        polite.append(Question("a pair", "/show/pair", as_json(pair), weight=0.3))
    lines = "\n".join(texts[100:150])
    polite += [
        Question("search", "/show/search", as_json({"text": lines, "second": text[:200]})) for text in texts[150:155]
    ]
    polite += [
        Question("a document", "/show/document", as_json({"text": " ".join(texts[i : i + 40])})) for i in (160, 200, 240)
    ]
    return [
        *polite,
        *hostile("/show/text", "text", 200),  # the page says in its own place what is wrong
        Question("a file", "/save/json", as_json({"text": texts[300], "selector": "all"})),
        Question("drop by drop", "/show/text", as_json({"text": texts[301]}), manner="slowly"),
        Question("half a character", "/show/text", b'{"text": "half \\ud83d of one", "percent": NaN}'),
        Question("a selector that is none", "/show/text", as_json({"text": "x", "selector": "nouns"})),
        Question("a megabyte of text", "/show/text", as_json({"text": "rain " * (MEGABYTE // 5)}), weight=0.5),
        Question("five megabytes", "/show/text", b'"' + b"x" * 5 * MEGABYTE + b'"', 413, weight=0.2),
        Question("no such tab", "/show/nothing", b"{}", 404),
        Question("the longest text", "/show/text", as_json({"text": ("Rain in Oslo. " * 715)[:10_000]}), weight=0.1),
    ]


QUESTIONS = {"handler": handler_questions, "demo": demo_questions}


# ---- clients ------------------------------------------------------------------------------------------------------------


def ask(address: str, question: Question, timeout: float = PATIENCE) -> tuple[int, Any]:
    """Status and answer; 0 where the question is broken off."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.putrequest("POST", question.path)
        announced = len(question.body) + (1000 if question.manner == "broken" else 0)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(announced))):
            connection.putheader(name, value)
        connection.endheaders()
        pieces = 1 if question.manner == "whole" else 8
        size = -(-len(question.body) // pieces) or 1
        for start in range(0, len(question.body), size):
            connection.send(question.body[start : start + size])
            if pieces > 1:
                time.sleep(0.1)
        if question.manner == "broken":
            return 0, None
        reply = connection.getresponse()
        content = reply.read()
        return reply.status, json.loads(content) if content else None
    finally:
        connection.close()


@dataclass
class Tally:
    """What became of all questions."""

    right: int = 0
    refused: int = 0
    broken: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    by_name: Counter[str] = field(default_factory=Counter)

    @property
    def asked(self) -> int:
        return self.right + self.refused + self.broken + len(self.wrong)


def known_answers(address: str, questions: list[Question]) -> list[Any]:
    """Every question, asked alone; one whose status is not the one that it must get is an error."""
    answers = []
    for question in questions:
        status, answer = ask(address, question)
        if status != (0 if question.manner == "broken" else question.status):
            raise RuntimeError(f"{question.name}: status {status}, not {question.status}: {str(answer)[:300]}")
        answers.append(answer)
    return answers


def crowd(
    address: str, questions: list[Question], answers: list[Any], clients: int, seconds: float, most: int = 100_000
) -> Tally:
    """All clients at once, for so many seconds or `most` questions; every answer is compared with the known one."""
    tally, lock, end = Tally(), threading.Lock(), time.monotonic() + seconds
    weights = [question.weight for question in questions]

    def client(seed: int) -> None:
        draw = random.Random(seed)
        while time.monotonic() < end and tally.asked < most:
            number = draw.choices(range(len(questions)), weights)[0]
            question, start = questions[number], time.monotonic()
            try:
                status, answer = ask(address, question)
                problem = ""
            except (OSError, http.client.HTTPException, ValueError) as error:
                status, answer, problem = -1, None, f"{type(error).__name__}: {error}"
            taken = time.monotonic() - start
            with lock:
                tally.by_name[question.name] += 1
                if status == BUSY:
                    tally.refused += 1
                elif status == 0:
                    tally.broken += 1
                elif status == question.status and answer == answers[number]:
                    tally.right += 1
                    if question.manner == "whole":
                        tally.seconds.append(taken)
                else:
                    tally.wrong.append(f"{question.name}: {problem or f'status {status}, {str(answer)[:200]}'}")
            if status == BUSY:
                time.sleep(draw.uniform(0.05, 0.3))  # as it was told

    threads = [threading.Thread(target=client, args=(seed,), daemon=True) for seed in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + PATIENCE + 10)
    return tally


# ---- servers ------------------------------------------------------------------------------------------------------------


class Service(BaseHTTPRequestHandler):
    """JSON in and out; every exception is an answer with its message."""

    timeout = SOCKET_SECONDS

    def do_POST(self) -> None:
        status, answer = 200, None
        try:
            length = int(self.headers.get("Content-Length") or 0)
            if not 0 <= length <= LARGEST_BODY:
                raise ValueError(f"a body of {length} bytes; at most {LARGEST_BODY}.")
            body = self.rfile.read(length)
            if len(body) < length:
                return
            answer = self.server.handler(json.loads(body))  # type: ignore[attr-defined]
        except OSError:  # too slow, or gone
            self.close_connection = True
            return
        except Exception as error:
            status, answer = getattr(error, "status", 400), {"error": str(error)}
        content = json.dumps(answer, allow_nan=False).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:  # nobody waits for it any more
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Quiet."""


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


def serve_handler(folder: Path) -> Server:
    """The handler of a checkpoint's folder, on a free port; `serve_forever` serves."""
    spec = importlib.util.spec_from_file_location("handler", folder / "handler.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    server = Server(("127.0.0.1", 0), Service)
    server.handler = module.EndpointHandler(str(folder))  # type: ignore[attr-defined]
    return server


def serve(target: str) -> None:
    """Serve until standard input ends; the first line of standard output is the address."""
    if target == "handler":
        with tempfile.TemporaryDirectory() as name:
            load_released()[0].save_pretrained(name)
            server = serve_handler(Path(name))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            print(f"http://127.0.0.1:{server.server_port}", flush=True)
            sys.stdin.read()
    else:
        from hardkuma.apps.page.app import build_app, start

        app = start(build_app(load_released()[0]), server_port=free_port())
        print(app.local_url.rstrip("/"), flush=True)
        sys.stdin.read()
        app.close(verbose=False)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Memory(threading.Thread):
    """Resident megabytes of a process, five times a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.status, self.sizes = Path(f"/proc/{pid}/status"), [0.0]
        self.stopped = threading.Event()

    def read(self) -> float:
        try:
            line = next(line for line in self.status.read_text().splitlines() if line.startswith("VmRSS"))
        except (OSError, StopIteration):  # it has ended
            return 0.0
        return int(line.split()[1]) / 1024

    def run(self) -> None:
        while not self.stopped.wait(0.2):
            self.sizes.append(self.read())


# ---- a run --------------------------------------------------------------------------------------------------------------


def try_target(target: str, clients: int, seconds: float, memory: float) -> bool:
    words = [sys.executable, __file__, "--serve", target]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        address = process.stdout.readline().strip() if process.stdout else ""
        if not address:
            raise RuntimeError(f"the {target} did not start")
        questions = QUESTIONS[target]()
        answers = known_answers(address, questions)
        meter = Memory(process.pid)
        before = meter.read()
        meter.start()
        start = time.monotonic()
        tally = crowd(address, questions, answers, clients, seconds)
        taken = time.monotonic() - start
        meter.stopped.set()
        alive = process.poll() is None
        after = meter.read()
        same = alive and known_answers(address, questions) == answers
    finally:
        process.stdin.close() if process.stdin else None
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
    peak, right = max(meter.sizes), sorted(tally.seconds) or [0.0]
    quantile = statistics.quantiles(right, n=100) if len(right) > 1 else right * 99
    print(
        f"{target}: {clients} clients, {taken:.0f} s: {tally.asked} questions, {tally.right} answered as before, "
        f"{tally.refused} refused (status {BUSY}), {tally.broken} broken off, {len(tally.wrong)} WRONG\n"
        f"  {tally.right / taken:.1f} right answers a second; seconds for one: median {quantile[49]:.2f}, "
        f"95% {quantile[94]:.2f}, 99% {quantile[98]:.2f}\n"
        f"  memory before {before:.0f} MB, peak {peak:.0f} MB, after {after:.0f} MB; "
        f"the server {'lives and answers as before' if same else 'IS DOWN OR ANSWERS OTHERWISE'}",
        flush=True,
    )
    for name, number in Counter(tally.wrong).most_common(5):
        print(f"  {number} x {name}")
    return same and not tally.wrong and tally.right > 0 and peak - before <= memory


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", nargs="+", choices=list(QUESTIONS), default=list(QUESTIONS), help="default: both")
    parser.add_argument("--clients", type=int, default=50, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=60, help="of each target (default: %(default)s)")
    parser.add_argument("--memory", type=float, default=500, help="megabytes that it may grow (default: %(default)s)")
    parser.add_argument("--serve", choices=list(QUESTIONS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return 0
    held = [try_target(target, arguments.clients, arguments.seconds, arguments.memory) for target in arguments.target]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
