"""Handler and page under attack: 50 clients for a minute, honest and hostile ones, each server in a process of its own.

    python benchmarks/hostile_clients.py                                     50 clients for a minute, handler and page
    python benchmarks/hostile_clients.py --target page --clients 10 --seconds 5

`handler.py` is called from the threads of a small HTTP server, as an endpoint does it; the page is `hardkuma demo`. Every
question is asked alone first, which gives the right answers; then all clients ask at once. Among the questions are the
longest texts, empty ones, half characters, wrong types, numbers of 400 digits, no JSON, a megabyte of each, texts of too
many tokens, bodies that are too long, come slowly, never end or are cut off, names of other hosts, pages of other origins,
odd methods, and what is no HTTP at all. An answer is right if it equals the first one to the last digit; a refusal is
status 429 or 503. Exit code 0: the servers live, no answer was wrong, none had status 500, memory grew by at most --memory
megabytes.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hardkuma import load_released
from hardkuma.data import bundled_texts

MEGABYTE = 1_000_000
MEMORY = 500  # megabytes that a server may grow


class Memory(threading.Thread):
    """Peaks of a process's memory in MB, looked at 20 times a second: its own (RssAnon), mapped files, both (VmRSS)."""

    FIELDS = ("RssAnon", "RssFile", "VmRSS")

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.status, self.stopped = Path(f"/proc/{pid}/status"), threading.Event()
        self.first = self.read()
        self.peaks = dict(self.first)
        self.start()

    def read(self) -> dict[str, float]:
        try:
            lines = dict(line.split(":", 1) for line in self.status.read_text().splitlines())
        except OSError:  # it has ended
            return dict.fromkeys(self.FIELDS, 0.0)
        return {name: int(lines[name].split()[0]) * 1024 / MEGABYTE for name in self.FIELDS if name in lines}

    def run(self) -> None:
        while not self.stopped.wait(0.05):
            for name, size in self.read().items():
                self.peaks[name] = max(self.peaks[name], size)


# ---- questions ----------------------------------------------------------------------------------------------------

BUSY = (429, 503)
LARGEST_BODY = 8 * MEGABYTE  # that the handler's server reads
SOCKET_SECONDS, PATIENCE = 20, 120  # of the server for a body, of a client for an answer


@dataclass(frozen=True)
class Question:
    """What a client sends, and the status that it must get when nobody else asks.

    Attributes:
        manner: "whole"; "slowly", in pieces; "broken", a body that never ends and gets no answer; "cut", a whole question
            whose connection is closed at once; "raw", a body that is all that is sent, and may get an answer or none.
        weight: how often it is asked.
        headers: beside the type and length of the body, or instead of them.
    """

    name: str
    path: str
    body: bytes
    status: int = 200
    manner: str = "whole"
    weight: float = 1.0
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


# What a server answers with a 4xx, or by closing the connection.
NO_HTTP = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
    b"\0" * 10_000 + b"\r\n\r\n",
)


def hostile(path: str, field: str, refused: int) -> list[Question]:
    """What no client should send; `refused` is the status of what the server cannot read."""
    marks = "e" + "\u0301" * 500 + " \u202e\u200f " + "\U0001f600" * 50
    return [
        Question("no JSON", path, b"{", refused),
        Question("a megabyte of no JSON", path, b"\xff" * MEGABYTE, refused, weight=0.3),
        Question("nested deeply", path, b"[" * 100_000, refused, weight=0.3),
        Question("a number as text", path, as_json({field: 7}), refused),
        Question("a list as everything", path, as_json([1, 2]), refused),
        Question("an empty body", path, b"", refused),
        Question("an empty text", path, as_json({field: ""})),
        Question("NUL", path, as_json({field: "Marie\0Curie moved to \0 Paris."})),
        Question("marks without letters", path, as_json({field: marks})),
        Question("a body that never ends", path, as_json({field: "Rain."}), manner="broken"),
        Question("cut off", path, as_json({field: "Rain in Oslo, and nobody who waits. " * 100}), manner="cut"),
        *(Question("no HTTP", path, data, manner="raw", weight=0.2) for data in NO_HTTP),
    ]


def handler_questions(seed: int = 0) -> list[Question]:
    texts = random.Random(seed).sample(bundled_texts(), 200)
    polite = [Question("a text", "/", as_json({"inputs": text}), weight=0.5) for text in texts[:40]]
    for i in range(40, 120, 8):
        eight = {"inputs": texts[i : i + 8], "parameters": {"rate": 0.3}}
        polite.append(Question("eight texts", "/", as_json(eight), weight=0.5))
    entities = {"selector": "entities", "threshold": 0.5}
    return [
        *polite,
        *hostile("/", "inputs", 400),
        Question("slowly", "/", as_json({"inputs": texts[150], "parameters": entities}), manner="slowly"),
        Question("half a character", "/", b'{"inputs": "half \\ud83d of one"}', 400),
        Question("an unknown rate", "/", b'{"inputs": "x", "parameters": {"rate": NaN}}', 422),
        Question("an unknown selector", "/", as_json({"inputs": "x", "parameters": {"selector": "nouns"}}), 422),
        Question("a megabyte of text", "/", as_json({"inputs": "rain " * (MEGABYTE // 5)}), 413, weight=0.5),
        Question("too many texts", "/", as_json({"inputs": ["rain"] * 20_000}), 413, weight=0.5),
        Question("too many tokens", "/", as_json({"inputs": ["." * 20_000] * 6}), 413, weight=0.5),
        Question("a rate of 400 digits", "/", b'{"inputs": "x", "parameters": {"rate": ' + b"9" * 400 + b"}}", 422),
        Question(
            "the name of a megabyte", "/", as_json({"inputs": "x", "parameters": {"x" * MEGABYTE: 1}}), 400, weight=0.2
        ),
        Question("an odd method", "/", b"{}", 501, method="BREW"),
        Question("the longest text", "/", as_json({"inputs": ("Rain in Oslo. " * 1429)[:20_000]}), weight=0.03),
    ]


def page_questions(seed: int = 0) -> list[Question]:
    texts = random.Random(seed).sample(bundled_texts(), 400)
    # More texts than the page remembers, so that most of them are encoded again.
    polite = [Question("a text", "/show/text", as_json({"text": text, "percent": 20}), weight=0.3) for text in texts[:80]]
    for i in range(80, 100, 2):
        pair = {"text": texts[i][:300], "second": texts[i + 1][:300]}
        polite.append(Question("a pair", "/show/pair", as_json(pair), weight=0.3))
    for text in texts[150:155]:
        search = {"text": "\n".join(texts[100:150]), "second": text[:200]}
        polite.append(Question("search", "/show/search", as_json(search)))
    for i in (160, 200, 240):
        polite.append(Question("a document", "/show/document", as_json({"text": " ".join(texts[i : i + 40])})))
    return [
        *polite,
        *(
            replace(question, status=422) if question.name == "an empty text" else question
            for question in hostile("/show/text", "text", 400)
        ),
        Question("a file", "/save/json", as_json({"text": texts[300], "selector": "all"})),
        Question("slowly", "/show/text", as_json({"text": texts[301]}), manner="slowly"),
        Question("half a character", "/show/text", b'{"text": "half \\ud83d of one", "percent": NaN}'),
        Question("an unknown selector", "/show/text", as_json({"text": "x", "selector": "nouns"}), 422),
        Question("a megabyte of text", "/show/text", as_json({"text": "rain " * (MEGABYTE // 5)}), 422, weight=0.5),
        Question("a percentage of 400 digits", "/show/text", b'{"text": "x", "percent": ' + b"9" * 400 + b"}", 422),
        Question("too many tokens", "/show/document", as_json({"text": "." * 200_000}), 413, weight=0.3),
        Question("another host", "/show/text", as_json({"text": "x"}), 421, headers={"Host": "evil.example"}),
        Question("another site", "/show/text", as_json({"text": "x"}), 403, headers={"Sec-Fetch-Site": "cross-site"}),
        Question("another origin", "/show/text", as_json({"text": "x"}), 403, headers={"Origin": "http://evil.example"}),
        Question("a form", "/show/text", b"text=x", 415, headers={"Content-Type": "application/x-www-form-urlencoded"}),
        *(
            Question("an odd method", "/show/text", b"{}", 405, method=name)
            for name in ("PUT", "DELETE", "BREW", "OPTIONS")
        ),
        Question("a file of the server", "/../../etc/passwd", b"", 404, method="GET"),
        Question("an upload", "/gradio_api/upload", b"x" * 1000, 404),
        Question("five megabytes", "/show/text", b'"' + b"x" * 5 * MEGABYTE + b'"', 413, weight=0.2),
        Question("an unknown tab", "/show/nothing", b"{}", 404),
        Question("the longest text", "/show/text", as_json({"text": ("Rain in Oslo. " * 715)[:10_000]}), weight=0.03),
    ]


SILENT = ("broken", "cut", "raw")  # manners that have no answer to compare
QUESTIONS = {"handler": handler_questions, "page": page_questions}


# ---- clients and servers ------------------------------------------------------------------------------------------


def ask(address: str, question: Question, timeout: float = PATIENCE) -> tuple[int, Any]:
    """Status and answer; 0 where the question is broken off, or no question at all."""
    parts = urlsplit(address)
    if question.manner == "raw":
        return send_raw(parts.hostname or "", parts.port or 0, question.body), None
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    try:
        announced = len(question.body) + (1000 if question.manner == "broken" else 0)
        headers = {"Host": parts.netloc, "Content-Type": "application/json", "Content-Length": str(announced)}
        connection.putrequest(question.method, question.path, skip_host=True)
        for name, value in {**headers, **question.headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        pieces = 8 if question.manner in ("slowly", "broken") else 1
        size = -(-len(question.body) // pieces) or 1
        for start in range(0, len(question.body), size):
            connection.send(question.body[start : start + size])
            if pieces > 1:
                time.sleep(0.1)
        if question.manner in ("broken", "cut"):
            return 0, None
        reply = connection.getresponse()
        content = reply.read()
        kind = reply.headers.get_content_type()
        return reply.status, json.loads(content) if kind == "application/json" else content.decode()
    finally:
        connection.close()


def send_raw(host: str, port: int, data: bytes) -> int:
    """0 where a server answers nonsense as it should: with a 4xx, or by closing the connection, or by waiting for more."""
    try:
        with socket.create_connection((host, port), timeout=2) as connection:
            connection.sendall(data)
            reply = connection.recv(1000)
    except OSError:
        return 0
    words = reply.split()
    return int(words[1]) if reply.startswith(b"HTTP/") and len(words) > 1 and not words[1].startswith(b"4") else 0


@dataclass
class Tally:
    """What became of all questions."""

    right: int = 0
    refused: int = 0
    broken: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def asked(self) -> int:
        return self.right + self.refused + self.broken + len(self.wrong)


def known_answers(address: str, questions: list[Question]) -> list[Any]:
    """Every question, asked alone; RuntimeError where the status is not the one that it must get."""
    answers = []
    for question in questions:
        status, answer = ask(address, question)
        if status != (0 if question.manner in SILENT else question.status):
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
            except (OSError, http.client.HTTPException, ValueError) as error:
                status, answer = -1, f"{type(error).__name__}: {error}"
            taken = time.monotonic() - start
            with lock:
                if status in BUSY:
                    tally.refused += 1
                elif status == 0:
                    tally.broken += 1
                elif status == question.status and answer == answers[number]:
                    tally.right += 1
                    if question.manner == "whole":
                        tally.seconds.append(taken)
                else:
                    tally.wrong.append(f"{question.name}: status {status}, {str(answer)[:200]}")
            if status in BUSY:
                time.sleep(draw.uniform(0.05, 0.3))  # as it was told

    threads = [threading.Thread(target=client, args=(seed,), daemon=True) for seed in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + PATIENCE + 10)
    return tally


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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is no error of the handler's."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


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
        return
    from hardkuma.apps.page.app import build_app
    from hardkuma.apps.page.serve import serving

    with serving(build_app(load_released()[0])) as url:
        print(url.rstrip("/"), flush=True)
        sys.stdin.read()


def attack_one(target: str, seconds: float, clients: int) -> dict[str, Any]:
    """What became of one server; see `attack`."""
    words = [sys.executable, __file__, "--serve", target]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            address = process.stdout.readline().strip() if process.stdout else ""
            if not address:
                errors.seek(0)
                raise RuntimeError(f"the {target} did not start: {errors.read()[-2000:]}")
            questions = QUESTIONS[target]()
            answers = known_answers(address, questions)
            meter, start = Memory(process.pid), time.monotonic()
            tally = crowd(address, questions, answers, clients, seconds)
            taken = time.monotonic() - start
            meter.stopped.set()
            lives = process.poll() is None and known_answers(address, questions) == answers
        finally:
            process.stdin.close() if process.stdin else None
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
        errors.seek(0)
        tracebacks = errors.read().count("Traceback")
    quantile = statistics.quantiles(tally.seconds, n=100) if len(tally.seconds) > 1 else [0.0] * 99
    return {
        "clients": clients,
        "seconds": round(taken, 1),
        "questions": tally.asked,
        "right": tally.right,
        "refused": tally.refused,
        "broken off": tally.broken,
        "wrong": len(tally.wrong),
        "status 5xx": sum(f"status {status}" in line for line in tally.wrong for status in range(500, 600)),
        "tracebacks": tracebacks,
        "median seconds": round(quantile[49], 2),
        "95% seconds": round(quantile[94], 2),
        "MB before": round(meter.first["VmRSS"]),
        "MB peak": round(meter.peaks["VmRSS"]),
        "answers as before": lives,
        "examples of wrong": [f"{number} x {line}" for line, number in Counter(tally.wrong).most_common(5)],
    }


def attack(seconds: float = 60, clients: int = 50, targets: tuple[str, ...] = tuple(QUESTIONS)) -> dict[str, Any]:
    """Attack handler and page, one after the other, for so many seconds each.

    Returns:
        by the name of the server what became of the questions, its memory, and `held`: whether it lives and answers as
        before, nothing was wrong, there is no traceback and memory grew by at most `MEMORY` megabytes; and `held` of all.
    """
    results: dict[str, Any] = {}
    for target in targets:
        found = attack_one(target, seconds, clients)
        bounded = found["MB peak"] - found["MB before"] <= MEMORY
        sound = found["answers as before"] and not found["wrong"] and not found["tracebacks"] and found["right"] > 0
        results[target] = {**found, "held": sound and bounded}
    return {**results, "held": all(found["held"] for found in results.values())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", nargs="+", choices=list(QUESTIONS), default=list(QUESTIONS), help="default: both")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60, help="of each target (default: %(default)s)")
    parser.add_argument("--serve", choices=list(QUESTIONS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    found = attack(options.seconds, options.clients, tuple(options.target))
    print(json.dumps(found, indent=1))
    return 0 if found["held"] else 1


if __name__ == "__main__":
    sys.exit(main())
