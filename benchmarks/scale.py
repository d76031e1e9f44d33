"""Many machines, much text: gates by a Ray cluster, memory of training.

    python benchmarks/scale.py cluster --data FOLDER                         200,000 rows, a worker killed on the way
    python benchmarks/scale.py cluster --rows 2000 --shards 8 --kill node    a quick look, on the bundled corpus
    python benchmarks/scale.py memory --data FOLDER                          100,000 and 1,000,000 sentences
    python benchmarks/scale.py memory --sizes 2000 20000 --removal-sentences 1000

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
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from hostile_clients import MEGABYTE, Memory
from transformers import AutoModel, AutoTokenizer, BertConfig

from hardkuma import load_released
from hardkuma.data import bundled_texts, clean, read_texts
from hardkuma.encoder_hardkuma import resolve_encoder

ROOT = Path(__file__).resolve().parents[1]


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
