"""Gates by a Ray cluster of two nodes on this machine beside two plain processes: same shards, same threads, one run.

    python benchmarks/ray_cluster.py --data FOLDER                   200,000 rows in 20 shards, a worker killed on the way
    python benchmarks/ray_cluster.py --data FOLDER --kill node       a node leaves instead, without a word; or --kill none
    python benchmarks/ray_cluster.py --data FOLDER --kill command    the command is killed, and resumed
    python benchmarks/ray_cluster.py --rows 2000 --shards 8          a quick look, on the bundled corpus

1. Two processes of one thread each share the shards: whoever is free takes the next one.
2. Two nodes of one CPU each do the same by `ray_gate_files`. The cluster runs already, as clusters do; workers start and
   load their models within the time, as do the processes of part 1.
3. Every shard must hold the rows of part 1, once and in their order, with the same records; what differs in numbers is
   shown, with the largest difference of a probability.

The overhead is the time of part 2 over that of part 1; on a machine that others use too the ratio of processor time says
more. What a killed worker costs (its shard again, its start) is in part 2. Rows are drawn from the sentences of the .txt
and .conll files in FOLDER. Exit code 0 means that part 3 holds.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hardkuma.apps.ray import Outputs
from hardkuma.data import bundled_texts, read_texts

NODES = 2
# A worker with Ray's own niceness of 15 would wait for everybody else on this machine; the plain processes do not.
SETTINGS = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


def make_shards(folder: Path, data: str | None, rows: int, shards: int) -> None:
    texts = bundled_texts()
    if data:
        files = sorted(path for path in Path(data).rglob("*") if path.suffix in (".txt", ".conll"))
        texts = [text for path in files for text in read_texts(str(path)) if text.strip()]
        if not texts:
            raise SystemExit(f"--data {data}: no .txt or .conll file with a sentence in it.")
    drawn = random.Random(0).choices(texts, k=rows)
    folder.mkdir()
    for number in range(shards):
        ids = list(range(number * rows // shards, (number + 1) * rows // shards))
        pq.write_table(pa.table({"id": ids, "text": [drawn[i] for i in ids]}), folder / f"part-{number:03d}.parquet")


# ---- part 1: processes --------------------------------------------------------------------------------------------------


def work(inputs: str, output: str) -> None:
    """A plain process: take the next shard until there is none. Shards are taken by making a file."""
    import torch

    from hardkuma.apps.ray.cluster import list_shards, write_shard
    from hardkuma.common.models import load_model

    torch.set_num_threads(1)
    model = load_model(None, "cpu")
    for shard in list_shards(inputs, output):
        try:
            os.close(os.open(f"{shard.target}.taken", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        write_shard(model, shard, Outputs())


def by_processes(inputs: Path, output: Path) -> tuple[float, float]:
    """Seconds, and processor seconds."""
    output.mkdir()
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    words = [sys.executable, __file__, "--work", str(inputs), str(output)]
    processes = [subprocess.Popen(words) for _ in range(NODES)]
    if any(process.wait() for process in processes):
        raise SystemExit("a plain process failed")
    taken, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# ---- part 2: a cluster --------------------------------------------------------------------------------------------------


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


def raylets(nodes: Any) -> list[int]:
    return [node.all_processes["raylet"][0].process.pid for node in nodes.list_all_nodes()]


def stat(pid: str) -> list[str]:
    """The fields of /proc/PID/stat behind the name; none where it has ended."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def descendants(roots: list[int]) -> list[int]:
    parents = {folder.name: stat(folder.name) for folder in Path("/proc").glob("[0-9]*")}
    found, new = set(roots), set(roots)
    while new:
        new = {int(pid) for pid, fields in parents.items() if fields and int(fields[1]) in new} - found
        found |= new
    return sorted(found)


class Busy(threading.Thread):
    """Processor seconds of this process and all of its descendants, from the start on.

    Looked up twice a second: nobody waits for Ray's workers, so what they have used is gone when they end.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stopped, self.before = threading.Event(), self.look()
        self.used: dict[int, int] = {}
        self.start()

    def look(self) -> dict[int, int]:
        ticks = {pid: stat(str(pid))[11:13] for pid in descendants([os.getpid()])}
        return {pid: sum(map(int, values)) for pid, values in ticks.items() if values}

    def run(self) -> None:
        while not self.stopped.wait(0.5):
            self.used.update(self.look())

    def seconds(self) -> float:
        self.stopped.set()
        self.used.update(self.look())
        ticks = sum(used - self.before.get(pid, 0) for pid, used in self.used.items())
        return ticks / os.sysconf("SC_CLK_TCK")


def writes(pid: int, folder: Path) -> bool:
    try:
        return any(os.readlink(link).startswith(f"{folder}/") for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def kill(kind: str, nodes: Any, output: Path, shards: int, killed: list[str]) -> None:
    """When a quarter of the shards is done: SIGKILL for a worker in the middle of one, or for a whole node."""
    while len(list(output.glob("*.parquet"))) < max(1, shards // 4):
        time.sleep(0.05)
    if kind == "node":
        other = next(iter(nodes.worker_nodes))
        nodes.remove_node(other, allow_graceful=False)
        killed.append("a node")
        return
    while not (busy := [pid for pid in descendants(raylets(nodes)) if writes(pid, output)]):
        time.sleep(0.02)
    os.kill(busy[0], signal.SIGKILL)
    killed.append(f"worker {busy[0]}")


def resume_by_command(address: str, inputs: Path, output: Path, shards: int) -> str:
    """The command itself is killed when a quarter of the shards is done, and started again with --resume."""
    words = [sys.executable, "-m", "hardkuma", "gates", "--engine", "ray", "--quiet"]
    words += ["--input", str(inputs), "--output", str(output), "--batch-size", str(Outputs().batch_size)]
    environment = {**os.environ, "RAY_ADDRESS": address}
    process = subprocess.Popen(words, env=environment)
    while len(list(output.glob("*.parquet"))) < max(1, shards // 4) and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    if process.wait() != -signal.SIGKILL:
        raise SystemExit("the command ended before it could be killed: use more --rows")
    done = len(list(output.glob("*.parquet")))
    subprocess.run([*words, "--resume"], env=environment, check=True)
    return f"the command, when {done} of {shards} shards were done; it was resumed"


def by_cluster(inputs: Path, output: Path, shards: int, kind: str) -> tuple[float, float, str]:
    """Seconds, processor seconds, and what was killed."""
    from hardkuma.apps.ray import ray_gate_files

    logging.getLogger("ray").setLevel(logging.WARNING)
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    start = time.perf_counter()
    with cluster() as nodes:
        print(f"a cluster of {NODES} nodes, up in {time.perf_counter() - start:.1f} s (not counted)", flush=True)
        killed: list[str] = []
        if kind == "command":
            busy, start = Busy(), time.perf_counter()
            killed.append(resume_by_command(nodes.address, inputs, output, shards))
            return time.perf_counter() - start, busy.seconds(), killed[0]
        if kind != "none":
            threading.Thread(target=kill, args=(kind, nodes, output, shards, killed), daemon=True).start()
        busy, start = Busy(), time.perf_counter()
        first = None
        for report in ray_gate_files(str(inputs), str(output), patience=1800):
            first = first or time.perf_counter() - start
            if report.problem:
                raise SystemExit(f"{report.source}: {report.problem}")
        taken = time.perf_counter() - start
        print(f"the first shard was done after {first or 0:.1f} s", flush=True)
        return taken, busy.seconds(), killed[0] if killed else "nothing"


# ---- part 3: the same? --------------------------------------------------------------------------------------------------


def compare(inputs: Path, one: Path, other: Path) -> bool:
    """Row by row; says what it found."""
    largest, records, exact = 0.0, 0, 0
    for path in sorted(inputs.glob("*.parquet")):
        source, a, b = (pq.read_table(folder / path.name) for folder in (inputs, one, other))
        if not (a.select(["id", "text"]).equals(source) and b.select(["id", "text"]).equals(source)):
            print(f"{path.name}: rows are MISSING, TWICE OR OUT OF ORDER")
            return False
        records += source.num_rows
        if a.equals(b):
            exact += source.num_rows
            continue
        for mine, yours in zip(a.to_pylist(), b.to_pylist(), strict=True):
            exact += mine == yours
            words = zip(mine["words"], yours["words"], strict=True)
            largest = max([largest, *(abs(x["probability"] - y["probability"]) for x, y in words)])
    names = {path.name for path in other.glob("*")} - {path.name for path in inputs.glob("*.parquet")}
    print(f"{records:,} rows, each once: {exact:,} records are the same, largest difference of a probability {largest:g}")
    if names != {"_settings.json"}:
        print(f"what is LEFT in the output: {sorted(names)}")
    return names == {"_settings.json"} and largest < 1e-5


def in_turn(first: Callable[[], Any], second: Callable[[], Any], swap: bool) -> tuple[Any, Any]:
    if swap:
        later = second()
        return first(), later
    return first(), second()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FOLDER", help="corpora to draw rows from (default: the bundled one)")
    parser.add_argument("--rows", type=int, default=200_000, help="default: %(default)s")
    parser.add_argument("--shards", type=int, default=20, help="default: %(default)s")
    parser.add_argument(
        "--kill", choices=("none", "worker", "node", "command"), default="worker", help="default: %(default)s"
    )
    parser.add_argument("--cluster-first", action="store_true", help="part 2 before part 1")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.update(SETTINGS)
    if arguments.work:
        work(*arguments.work)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs, plain, ray = folder / "in", folder / "plain", folder / "ray"
        make_shards(inputs, arguments.data, arguments.rows, arguments.shards)
        print(f"{arguments.rows:,} rows in {arguments.shards} shards, {os.cpu_count()} cores", flush=True)
        (alone, work_alone), (together, work_together, killed) = in_turn(
            lambda: by_processes(inputs, plain),
            lambda: by_cluster(inputs, ray, arguments.shards, arguments.kill),
            arguments.cluster_first,
        )
        each = arguments.rows / work_alone
        print(f"{NODES} processes: {alone:8.1f} s, {arguments.rows / alone:7.1f} rows a second, {work_alone:8.1f} s busy")
        print(
            f"cluster:     {together:8.1f} s, {arguments.rows / together:7.1f} rows a second, {work_together:8.1f} s busy"
        )
        print(f"killed: {killed}")
        overhead = together / alone
        print(f"overhead: {overhead:.3f} of time, {work_together / work_alone:.3f} of processor time; lower is better")
        size = sum(path.stat().st_size for path in ray.glob("*.parquet")) / arguments.rows
        print(
            f"plan: python benchmarks/plan.py --throughput {each:.0f} --overhead {max(1, overhead):.2f} --bytes {size:.0f}",
            flush=True,
        )
        for path in plain.glob("*.taken"):
            path.unlink()
        return 0 if compare(inputs, plain, ray) else 1


if __name__ == "__main__":
    sys.exit(main())
