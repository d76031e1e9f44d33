"""Many clients, many machines, much text: servers under load, gates by a Ray cluster, memory of training.

    python benchmarks/scale.py load                                          50 clients for a minute, handler and demo
    python benchmarks/scale.py load --target handler --clients 10 --seconds 5
    python benchmarks/scale.py cluster --data FOLDER                         200,000 rows, a worker killed on the way
    python benchmarks/scale.py cluster --rows 2000 --shards 8 --kill node    a quick look, on the bundled corpus
    python benchmarks/scale.py memory --data FOLDER                          100,000 and 1,000,000 sentences
    python benchmarks/scale.py memory --sizes 2000 20000 --removal-sentences 1000

- load: `handler.py`, called from the threads of a small HTTP server as an endpoint does it, and the page of
  `hardkuma demo`, each in a process of its own on 127.0.0.1. Every question is asked alone first, which gives the right
  answers; then all clients ask at once. Among the questions are the longest texts, empty ones, half characters, wrong
  types, no JSON, a megabyte of each, and bodies that come slowly or never end. An answer is right if it equals the first
  one to the last digit; a refusal is status 503. Exit code 0: the server lives, no answer was wrong, memory grew by at most
  --memory megabytes.
- cluster: two plain processes share the shards, then two Ray nodes of one CPU each on this machine do the same by
  `ray_gate_files`. The overhead is the ratio of their times. It ends with a plan for a billion sentences from what was
  measured. Exit code 0: every row is there once, with the same record.
- memory: training with few steps (contrastive) or one pass (default) on sentences that are recombined from those of
  FOLDER/wikitext2, in a process for each size. The encoder is random, without layers, as wide as MiniLM, so that what is
  stored has its real size. Exit code 0: the peak of the largest is at most 1.3 times that of the smallest plus one copy of
  its embeddings.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from transformers import AutoModel, AutoTokenizer, BertConfig

from hardkuma import load_released
from hardkuma.data import bundled_texts, clean, read_texts
from hardkuma.encoder_hardkuma import resolve_encoder

ROOT = Path(__file__).resolve().parents[1]
MEGABYTE = 1_000_000


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


# ---- load: questions ----------------------------------------------------------------------------------------------------

BUSY = 503
LARGEST_BODY = 8 * MEGABYTE  # that the handler's server reads
SOCKET_SECONDS, PATIENCE = 20, 120  # of the server for a body, of a client for an answer


@dataclass(frozen=True)
class Question:
    """What a client sends, and the status that it must get when nobody else asks.

    Attributes:
        manner: "whole"; "slowly", in pieces; "broken", a body that never ends and gets no answer.
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
        Question("the longest text", "/", as_json({"inputs": ("Rain in Oslo. " * 1429)[:20_000]}), weight=0.1),
    ]


def demo_questions(seed: int = 0) -> list[Question]:
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
        *hostile("/show/text", "text", 200),  # the page says in its own place what is wrong
        Question("a file", "/save/json", as_json({"text": texts[300], "selector": "all"})),
        Question("slowly", "/show/text", as_json({"text": texts[301]}), manner="slowly"),
        Question("half a character", "/show/text", b'{"text": "half \\ud83d of one", "percent": NaN}'),
        Question("an unknown selector", "/show/text", as_json({"text": "x", "selector": "nouns"})),
        Question("a megabyte of text", "/show/text", as_json({"text": "rain " * (MEGABYTE // 5)}), weight=0.5),
        Question("five megabytes", "/show/text", b'"' + b"x" * 5 * MEGABYTE + b'"', 413, weight=0.2),
        Question("an unknown tab", "/show/nothing", b"{}", 404),
        Question("the longest text", "/show/text", as_json({"text": ("Rain in Oslo. " * 715)[:10_000]}), weight=0.1),
    ]


QUESTIONS = {"handler": handler_questions, "demo": demo_questions}


# ---- load: clients and servers ------------------------------------------------------------------------------------------


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

    @property
    def asked(self) -> int:
        return self.right + self.refused + self.broken + len(self.wrong)


def known_answers(address: str, questions: list[Question]) -> list[Any]:
    """Every question, asked alone; RuntimeError where the status is not the one that it must get."""
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
            except (OSError, http.client.HTTPException, ValueError) as error:
                status, answer = -1, f"{type(error).__name__}: {error}"
            taken = time.monotonic() - start
            with lock:
                if status == BUSY:
                    tally.refused += 1
                elif status == 0:
                    tally.broken += 1
                elif status == question.status and answer == answers[number]:
                    tally.right += 1
                    if question.manner == "whole":
                        tally.seconds.append(taken)
                else:
                    tally.wrong.append(f"{question.name}: status {status}, {str(answer)[:200]}")
            if status == BUSY:
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
    from hardkuma.apps.page.app import build_app, start

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    app = start(build_app(load_released()[0]), server_port=port)
    print(app.local_url.rstrip("/"), flush=True)
    sys.stdin.read()
    app.close(verbose=False)


def try_target(target: str, clients: int, seconds: float, memory: float) -> bool:
    words = [sys.executable, __file__, "load", "--serve", target]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip() if process.stdout else ""
        if not address:
            raise RuntimeError(f"the {target} did not start")
        questions = QUESTIONS[target]()
        answers = known_answers(address, questions)
        meter, start = Memory(process.pid), time.monotonic()
        tally = crowd(address, questions, answers, clients, seconds)
        taken = time.monotonic() - start
        meter.stopped.set()
        after = meter.read()["VmRSS"]
        same = process.poll() is None and known_answers(address, questions) == answers
    finally:
        process.stdin.close() if process.stdin else None
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
    before, peak = meter.first["VmRSS"], meter.peaks["VmRSS"]
    quantile = statistics.quantiles(tally.seconds, n=100) if len(tally.seconds) > 1 else [0.0] * 99
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


def measure_load(options: argparse.Namespace) -> bool:
    if options.serve:
        serve(options.serve)
        return True
    return all([try_target(target, options.clients, options.seconds, options.memory) for target in options.target])


# ---- cluster ------------------------------------------------------------------------------------------------------------

NODES = 2
# A worker with Ray's own niceness of 15 would wait for everybody else on this machine; the plain processes do not.
RAY_SETTINGS = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


def make_shards(folder: Path, data: Path | None, rows: int, shards: int) -> None:
    import pyarrow
    from pyarrow import parquet

    files = sorted(path for path in data.rglob("*") if path.suffix in (".txt", ".conll")) if data else []
    texts = [text for path in files for text in read_texts(str(path))] if files else bundled_texts()
    drawn = random.Random(0).choices(texts, k=rows)
    folder.mkdir()
    for number in range(shards):
        ids = list(range(number * rows // shards, (number + 1) * rows // shards))
        table = pyarrow.table({"id": ids, "text": [drawn[i] for i in ids]})
        parquet.write_table(table, folder / f"part-{number:03d}.parquet")


def take_shards(inputs: str, output: str) -> None:
    """A plain process: take the next shard until there is none. Shards are taken by making a file."""
    from pyarrow import parquet

    from hardkuma.apps.ray import Outputs, add_gates

    torch.set_num_threads(1)
    model = load_released()[0]
    for shard in sorted(Path(inputs).glob("*.parquet")):
        try:
            os.close(os.open(f"{output}/{shard.name}.taken", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        parquet.write_table(add_gates(model, parquet.read_table(shard), Outputs()), f"{output}/{shard.name}")


def by_processes(inputs: Path, output: Path) -> float:
    """Seconds."""
    output.mkdir()
    start = time.perf_counter()
    words = [sys.executable, __file__, "cluster", "--take", str(inputs), str(output)]
    processes = [subprocess.Popen(words) for _ in range(NODES)]
    if any(process.wait() for process in processes):
        raise SystemExit("a plain process failed")
    taken = time.perf_counter() - start
    for path in output.glob("*.taken"):
        path.unlink()
    return taken


@contextmanager
def cluster() -> Iterator[Any]:
    """Two nodes, in a folder whose name is short: sockets are in it, and their paths have at most 107 characters."""
    import ray
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        # Cluster writes its address into the folder that Ray has by default, which is there only where Ray has run before.
        os.environ["RAY_TMPDIR"] = folder
        Path(folder, "ray").mkdir()
        own = {"temp_dir": folder, "include_dashboard": False, "dashboard_agent_listen_port": 0, "no_monitor": True}
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **own})
        for _ in range(NODES - 1):
            nodes.add_node(num_cpus=1)
        ray.init(address=nodes.address, log_to_driver=False)
        try:
            yield nodes
        finally:
            ray.shutdown()
            nodes.shutdown()


def find_writer(nodes: Any, folder: Path) -> int | None:
    """The process of a worker that has a file of this folder open."""
    import psutil

    for node in nodes.list_all_nodes():
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        for process in raylet.children(recursive=True):
            try:
                if any(Path(file.path).parent == folder for file in process.open_files()):
                    return process.pid
            except psutil.Error:  # it has ended
                continue
    return None


def kill(kind: str, nodes: Any, output: Path, shards: int, killed: list[str]) -> None:
    """When a quarter of the shards is done: SIGKILL for a worker in the middle of one, or for a whole node."""
    while len(list(output.glob("*.parquet"))) < max(1, shards // 4):
        time.sleep(0.05)
    if kind == "node":
        nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
    else:
        while (worker := find_writer(nodes, output)) is None:
            time.sleep(0.02)
        os.kill(worker, signal.SIGKILL)
    killed.append(kind)


def by_cluster(inputs: Path, output: Path, shards: int, kind: str) -> tuple[float, str]:
    """Seconds, and what was killed."""
    from hardkuma.apps.ray import ray_gate_files

    killed: list[str] = []
    with cluster() as nodes:
        if kind != "none":
            threading.Thread(target=kill, args=(kind, nodes, output, shards, killed), daemon=True).start()
        start = time.perf_counter()
        for report in ray_gate_files(str(inputs), str(output), patience=1800):
            if report.problem:
                raise SystemExit(f"{report.source}: {report.problem}")
        return time.perf_counter() - start, killed[0] if killed else "nothing"


def compare_shards(inputs: Path, one: Path, other: Path) -> bool:
    """Row by row; says what it found."""
    from pyarrow import parquet

    rows = exact = 0
    largest = 0.0
    for path in sorted(inputs.glob("*.parquet")):
        source, a, b = (parquet.read_table(folder / path.name) for folder in (inputs, one, other))
        if not (a.select(["id", "text"]).equals(source) and b.select(["id", "text"]).equals(source)):
            print(f"{path.name}: rows are MISSING, TWICE OR OUT OF ORDER")
            return False
        rows += source.num_rows
        for mine, yours in [] if a.equals(b) else zip(a.to_pylist(), b.to_pylist(), strict=True):
            words = zip(mine["words"], yours["words"], strict=True)
            largest = max([largest, *(abs(x["probability"] - y["probability"]) for x, y in words)])
        exact += source.num_rows if a.equals(b) else 0
    print(f"{rows:,} rows, each once; {exact:,} in shards that are the same; largest difference {largest:g}")
    return largest < 1e-5


def measure_cluster(options: argparse.Namespace) -> bool:
    os.environ.update(RAY_SETTINGS)
    if options.take:
        take_shards(*options.take)
        return True
    with tempfile.TemporaryDirectory() as name:
        inputs, plain, ray = (Path(name) / part for part in ("in", "plain", "ray"))
        make_shards(inputs, options.data, options.rows, options.shards)
        alone = by_processes(inputs, plain)
        together, killed = by_cluster(inputs, ray, options.shards, options.kill)
        each, overhead = options.rows / alone / NODES, together / alone
        print(f"{options.rows:,} rows: {NODES} processes {alone:.1f} s, cluster {together:.1f} s, killed: {killed}")
        print(f"overhead of the cluster: {overhead:.3f}; lower is better")
        size = sum(path.stat().st_size for path in ray.glob("*.parquet")) / options.rows
        hours = 1e9 / each * max(1.0, overhead) / 3600
        print(f"a billion sentences: {hours:,.0f} core-hours at {each:.0f} a second and core; {size:.0f} GB of output")
        return compare_shards(inputs, plain, ray)


# ---- memory of training -------------------------------------------------------------------------------------------------

# Names of the recipe's keys; the fewest steps that go through everything.
RECIPES: dict[str, dict[str, Any]] = {
    "default": {"selectors.meaning.train.epochs": 1},
    "contrastive": {"train.max_steps": 1, "train.epochs": 1},
}
REMOVAL_SENTENCES = "selectors.meaning.train.sentences"
WIDTH = 384  # of an embedding
FACTOR = 1.3  # by which the peak may grow, beside the embeddings


def recombine(sentences: Iterable[str], count: int, seed: int = 0) -> Iterator[str]:
    """`count` sentences, each the first words of one and the last words of another of as many words."""
    by_length: dict[int, list[list[str]]] = defaultdict(list)
    for sentence in sentences:
        by_length[len(sentence.split())].append(sentence.split())
    draw = random.Random(seed)
    lengths, shares = list(by_length), [len(group) for group in by_length.values()]
    for length in draw.choices(lengths, shares, k=count):
        head, tail = draw.choices(by_length[length], k=2)
        cut = draw.randint(1, length)
        yield " ".join([*head[:cut], *tail[cut:]])


def write_encoder(folder: Path) -> None:
    """A random encoder without layers, of MiniLM's width and with its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_encoder("sentence-transformers/all-MiniLM-L6-v2"))
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=WIDTH, num_hidden_layers=0, num_attention_heads=12)
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def peak_of_training(recipe: str, text: Path, folder: Path, removal_sentences: int) -> dict[str, float]:
    """Peaks of `train.py` on a file, in MB, and its seconds."""
    changes = {"encoder": folder / "encoder", "data": f"[{text}]", "split_sentences": "false", "output": folder / "run"}
    changes |= RECIPES[recipe] | ({REMOVAL_SENTENCES: removal_sentences} if recipe == "default" else {})
    words = [sys.executable, str(ROOT / "train.py"), recipe]
    words += [word for key, value in changes.items() for word in (f"--{key}", str(value))]
    start = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    watch = Memory(process.pid)
    if process.wait():
        raise SystemExit(f"training failed: {' '.join(words)}")
    watch.stopped.set()
    shutil.rmtree(folder / "run")
    return {**watch.peaks, "seconds": time.perf_counter() - start}


def measure_memory(options: argparse.Namespace) -> bool:
    files = sorted((options.data / "wikitext2").glob("*.txt")) if options.data else []
    texts = list(clean(chain.from_iterable(map(read_texts, files)) if files else bundled_texts()))
    passed, columns = True, (*Memory.FIELDS, "seconds")
    print(
        f"MB and seconds\n| recipe | sentences | {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) + 1)}", flush=True
    )
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        folder, peaks = Path(name), {}
        write_encoder(folder / "encoder")
        small, large = min(options.sizes), max(options.sizes)
        for recipe in RECIPES:
            for size in sorted(options.sizes):
                file = folder / f"{size}.txt"
                with file.open("w", encoding="utf-8") as out:
                    out.writelines(f"{sentence}\n" for sentence in recombine(texts, size))
                found = peak_of_training(recipe, file, folder, options.removal_sentences)
                peaks[size] = found["VmRSS"]
                cells = " | ".join(f"{found[column]:,.0f}" for column in columns)
                print(f"| {recipe} | {size:,} | {cells} |", flush=True)
            allowed = FACTOR * peaks[small] + large * WIDTH * 4 / MEGABYTE
            passed &= peaks[large] <= allowed
            print(f"{recipe}: peak {peaks[large]:,.0f} MB, allowed {allowed:,.0f}", flush=True)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)

    def part(name: str, run: Callable[[argparse.Namespace], bool]) -> Callable[..., Any]:
        command = parts.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--data", type=Path, metavar="FOLDER", help="text (default: the bundled corpus)")
        return command.add_argument

    add = part("load", measure_load)
    add("--target", nargs="+", choices=list(QUESTIONS), default=list(QUESTIONS), help="default: both")
    add("--clients", type=int, default=50)
    add("--seconds", type=float, default=60, help="of each target (default: %(default)s)")
    add("--memory", type=float, default=500, help="megabytes that it may grow (default: %(default)s)")
    add("--serve", choices=list(QUESTIONS), help=argparse.SUPPRESS)
    add = part("cluster", measure_cluster)
    add("--rows", type=int, default=200_000)
    add("--shards", type=int, default=20)
    add("--kill", choices=("none", "worker", "node"), default="worker", help="default: %(default)s")
    add("--take", nargs=2, help=argparse.SUPPRESS)
    add = part("memory", measure_memory)
    add("--sizes", type=int, nargs="+", default=[100_000, 1_000_000], metavar="N", help="default: %(default)s")
    add("--removal-sentences", type=int, default=16_000, help="default: %(default)s")
    add("--scratch", help="folder for text and stores, 20 GB for a million (default: the system's)")
    options = parser.parse_args()
    return 0 if options.run(options) else 1


if __name__ == "__main__":
    sys.exit(main())
