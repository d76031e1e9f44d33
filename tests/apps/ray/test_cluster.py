"""A real Ray cluster of two nodes on this machine, and what may go wrong on it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hardkuma import load_released
from hardkuma.__main__ import main
from hardkuma.apps.ray import Outputs, add_gates, ray_gate_files, ray_gates
from hardkuma.data import bundled_texts
from tests.apps.ray.two_nodes import TwoNodes, time_limit, two_nodes, wait_for

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ray = pytest.importorskip("ray")

SHARDS, ROWS = 4, 80
LIMIT = 240  # seconds of a test, on a machine where everything else runs too


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoNodes]:
    with two_nodes() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards; every tenth row has no text."""
    folder = tmp_path_factory.mktemp("in")
    texts = [None if i % 10 == 3 else text for i, text in enumerate(bundled_texts())]
    for i in range(SHARDS):
        numbers = list(range(i * ROWS, (i + 1) * ROWS))
        pq.write_table(pa.table({"id": numbers, "text": [texts[n] for n in numbers]}), folder / f"part-{i}.parquet")
    return folder


class Meanwhile(threading.Thread):
    """Does something beside the test, whose failure is the test's."""

    def __init__(self, action: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.action, self.result, self.error = action, None, None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.action()
        except Exception as error:
            self.error = error

    def done(self) -> Any:
        self.join(10)
        assert self.error is None and not self.is_alive(), f"what was to happen meanwhile did not: {self.error!r}"
        return self.result


def read(folder: Path) -> list[dict]:
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def spans(rows: list[dict]) -> list[tuple]:
    return [(row["id"], row["text"], row["reason"], [span["text"] for span in row["spans"]]) for row in rows]


@pytest.mark.slow
def test_a_dataset_of_ones_own(cluster: TwoNodes, inputs: Path) -> None:
    with time_limit(LIMIT, cluster):
        dataset = ray.data.read_parquet(str(inputs / "part-0.parquet"))
        with pytest.raises(ValueError, match="2 workers take all 2 CPUs of the cluster"):
            ray_gates(dataset, workers=2)
        rows = ray_gates(dataset, Outputs(add=["terms"])).take_all()
    assert sorted(row["id"] for row in rows) == list(range(ROWS)) and any(row["terms"] for row in rows)


@pytest.mark.slow
def test_every_row_once_whatever_happens(
    cluster: TwoNodes, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker is killed, a shard is corrupt, a row has no text; then the run is resumed, and a node leaves."""
    (inputs / "part-9.parquet").write_bytes(b"nonsense")
    output = tmp_path / "out"
    words = ["gates", "--engine", "ray", "--input", str(inputs), "--output", str(output), "--quiet"]

    def kill() -> int:
        """SIGKILL for a worker in the middle of a shard."""
        victim = wait_for(lambda: cluster.writers(cluster.head, output) or cluster.writers(cluster.other, output))[0]
        os.kill(victim, signal.SIGKILL)
        return victim

    with time_limit(LIMIT, cluster):
        killing = Meanwhile(kill)
        assert main(words) == 1
        assert killing.done()
    said = capsys.readouterr().err
    assert f"{inputs}/part-9.parquet: ArrowInvalid" in said and f"{SHARDS * ROWS} rows of {SHARDS} shards written" in said
    assert sorted(path.name for path in output.iterdir()) == [
        "_settings.json",
        *(f"part-{i}.parquet" for i in range(SHARDS)),
    ]
    rows, model = read(output), load_released()[0]
    assert [row["id"] for row in rows] == list(range(SHARDS * ROWS)) and rows[3]["reason"] == "the row has no text"
    alone = [
        row for i in range(SHARDS) for row in add_gates(model, pq.read_table(inputs / f"part-{i}.parquet")).to_pylist()
    ]
    assert spans(rows) == spans(alone)

    # Resumed: what is there is left alone, what is missing is made.
    (inputs / "part-9.parquet").unlink()
    first = (output / "part-0.parquet").stat().st_mtime_ns
    (output / "part-1.parquet").rename(output / "_part-1.parquet.0123abcd.partial")  # as a killed driver leaves it
    for i in range(2, SHARDS):
        (output / f"part-{i}.parquet").unlink()

    def leave() -> int:
        """The node goes while a worker of it is in the middle of a shard; if that is late, before all is done."""
        done = lambda: len(list(output.glob("*.parquet")))  # noqa: E731
        wait_for(lambda: cluster.writers(cluster.other, output) or done() == SHARDS - 1)
        before = done()
        cluster.nodes.remove_node(cluster.other)
        return before

    with time_limit(LIMIT, cluster):
        leaving = Meanwhile(leave)
        assert main([*words, "--resume"]) == 0
        assert leaving.done() < SHARDS, "the node left when all was done: the test did not test"
    assert f"{ROWS * (SHARDS - 1)} rows of {SHARDS - 1} shards written" in capsys.readouterr().err
    assert spans(read(output)) == spans(rows) and (output / "part-0.parquet").stat().st_mtime_ns == first
    assert not list(output.glob("*.partial"))

    # What does not belong together is refused.
    assert main(words) == 1 and "add --resume" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"settings.json has rate = None, not 0.2"):
        next(ray_gate_files(str(inputs), str(output), Outputs(rate=0.2), resume=True))
    (tmp_path / "other").mkdir()
    os.link(inputs / "part-0.parquet", tmp_path / "other" / "part-0.parquet")
    with pytest.raises(ValueError, match=r"settings.json has input = "):
        next(ray_gate_files(str(tmp_path / "other"), str(output), resume=True))


def test_workers_leave_room_for_what_feeds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for resources, expected in (
        ({"CPU": 1.0}, (1, 1, {"num_cpus": 0})),  # what is fed by a task would else wait for this worker for ever
        ({}, (1, 1, {"num_cpus": 1})),  # a head that does no work, and machines that come when they are asked for
        ({"CPU": 2.0}, (1, 1, {"num_cpus": 1})),
        ({"CPU": 16.0}, (1, 15, {"num_cpus": 1})),
        ({"CPU": 16.0, "GPU": 4.0}, (1, 4, {"num_gpus": 1.0})),
    ):
        monkeypatch.setattr("hardkuma.apps.ray.cluster._cluster", lambda resources=resources: resources)
        asked: dict[str, Any] = {}
        ray_gates(SimpleNamespace(map_batches=lambda _, asked=asked, **options: asked.update(options)))
        pool = asked["compute"]
        assert (pool.min_size, pool.max_size, {k: asked[k] for k in ("num_cpus", "num_gpus") if k in asked}) == expected


def test_options_that_do_not_go_together(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, said in (
        (["--engine", "ray", "--input", str(inputs)], "--engine ray needs --input FILES and --output FOLDER"),
        (["--workers", "2", "Rain."], "--workers goes with --engine ray"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["gates", *wrong])
        assert said in capsys.readouterr().err
