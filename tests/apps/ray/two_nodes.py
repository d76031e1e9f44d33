"""A Ray cluster of two nodes on this machine, with a time limit on all that is done with it.

Ray waits for ever where it cannot go on: for a CPU that nobody gives back, for a node that was too slow to say that it
lives. Here that is a failure, with the ends of Ray's logs.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

# As read by the processes of the cluster when they start. On a busy machine these would wait their turn behind every test
# (niceness), take each other for dead (health checks), or be ended since others need the memory.
SETTINGS = {
    "RAY_worker_niceness": "0",
    "RAY_health_check_failure_threshold": "60",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
}


class TwoNodes:
    """The cluster: `head`, where this process is connected, and `other`; one CPU each."""

    def __init__(self, folder: Path) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self.folder = folder
        # The sockets are in this folder, and a socket's path has at most 107 characters: TMPDIR may be too long for it.
        small: dict[str, Any] = {"num_cpus": 1, "include_log_monitor": False}
        own = {"temp_dir": str(folder), "include_dashboard": False, "dashboard_agent_listen_port": 0, "no_monitor": True}
        self.nodes = Cluster(initialize_head=True, head_node_args={**small, **own})
        self.head, self.other = self.nodes.head_node, self.nodes.add_node(**small)
        ray.init(address=self.nodes.address, log_to_driver=False)

    def writers(self, node: Any, folder: Path) -> list[int]:
        """Workers of a node that have a file of this folder open."""
        raylet = node.all_processes["raylet"][0].process.pid
        return [pid for pid in children(raylet) if writes(pid, folder)]

    def close(self) -> None:
        import ray

        ray.shutdown()
        self.nodes.shutdown()

    def logs(self, lines: int = 25) -> str:
        """The ends of the logs that say most."""
        names = ("raylet.out", "raylet.1.out", "gcs_server.out", "ray-data/ray-data.log", "dashboard_agent.log")
        found = [self.folder / "session_latest" / "logs" / name for name in names]
        ends = {path.name: path.read_text(errors="replace").splitlines()[-lines:] for path in found if path.is_file()}
        return "\n".join(f"--- {name}\n" + "\n".join(line[:300] for line in end) for name, end in ends.items())


@contextmanager
def two_nodes(start: float = 150) -> Iterator[TwoNodes]:
    """The cluster, started and stopped."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    # Cluster writes its address into the folder that Ray has by default, which is there only where Ray has run before.
    settings = SETTINGS | {"RAY_TMPDIR": str(folder)}
    (folder / "ray").mkdir()
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        with time_limit(start):
            cluster = TwoNodes(folder)
        try:
            yield cluster
        finally:
            with time_limit(60):
                cluster.close()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def time_limit(seconds: float, cluster: TwoNodes | None = None) -> Iterator[None]:
    """What takes longer is a failure that shows where it was, and Ray's logs."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"still running after {seconds} seconds\n{cluster.logs() if cluster else ''}")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---- processes, by Linux' own files --------------------------------------------------------------------------------------


def children(parent: int) -> list[int]:
    """Processes that were started by this one."""
    states = {folder.name: _read(folder / "stat") for folder in Path("/proc").glob("[0-9]*")}
    return [int(pid) for pid, state in states.items() if state and int(state.rpartition(")")[2].split()[1]) == parent]


def writes(pid: int, folder: Path) -> bool:
    """Whether a process has a file of this folder open."""
    try:
        return any(os.readlink(link).startswith(f"{folder}/") for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it has ended
        return False


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:  # it has ended
        return ""


T = TypeVar("T")


def wait_for(condition: Callable[[], T], seconds: float = 120) -> T:
    """The first value of the condition that is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.04)
    raise TimeoutError(f"nothing after {seconds} seconds")
