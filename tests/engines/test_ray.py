"""A real Ray cluster of two nodes on this machine, where the extra `ray` is installed: requirements.txt leaves it out."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hardkuma import HardKumaModel, load_released
from hardkuma.__main__ import main
from hardkuma.corpora import bundled_texts
from hardkuma.engines import Outputs, add_gates, ray_gates

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ray = pytest.importorskip("ray")

pytestmark = pytest.mark.slow
SHARDS, ROWS = 4, 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    from ray.cluster_utils import Cluster

    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - its name; workers would wait for all other tests
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in")
    texts = bundled_texts()
    for i in range(SHARDS):
        numbers = list(range(i * ROWS, (i + 1) * ROWS))
        pq.write_table(pa.table({"id": numbers, "text": [texts[n] for n in numbers]}), folder / f"part-{i}.parquet")
    return folder


def workers() -> list[int]:
    """Processes of the cluster that work on shards."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"ShardWorker" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def kill_one_when(folder: Path, killed: list[int]) -> None:
    """SIGKILL for a worker as soon as the first shard is done, that is, in the middle of another."""
    while not list(folder.glob("*.parquet")):
        time.sleep(0.02)
    killed.append(workers()[0])
    os.kill(killed[0], signal.SIGKILL)


def test_every_row_once_though_a_worker_is_killed(cluster: None, inputs: Path, tmp_path: Path) -> None:
    from hardkuma.engines.ray_engine import ray_gate_files

    (inputs / "part-9.parquet").write_bytes(b"nonsense")
    output, killed = tmp_path / "out", []
    thread = threading.Thread(target=kill_one_when, args=(output, killed), daemon=True)
    thread.start()
    reports = {Path(report.source).name: report for report in ray_gate_files(str(inputs), str(output))}
    thread.join(timeout=5)
    assert killed, "no worker was killed: the test did not test"
    bad = reports.pop("part-9.parquet")
    assert "ArrowInvalid" in bad.problem and bad.rows == 0
    assert {report.rows for report in reports.values()} == {ROWS} and len(reports) == SHARDS
    assert not list(output.glob("*.partial"))
    (inputs / "part-9.parquet").unlink()
    rows = [row for path in sorted(output.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert [row["id"] for row in rows] == list(range(SHARDS * ROWS))
    model: HardKumaModel = load_released()[0]
    alone = add_gates(model, pq.read_table(inputs / "part-3.parquet")).to_pylist()
    for one, other in zip(rows[3 * ROWS : 4 * ROWS], alone, strict=True):
        assert one["text"] == other["text"] and [span["text"] for span in one["spans"]] == [
            span["text"] for span in other["spans"]
        ]

    # Resumed: what is there is left alone, what is missing is made; other settings are refused.
    times = {path.name: path.stat().st_mtime_ns for path in output.glob("*.parquet")}
    (output / "part-2.parquet").unlink()
    again = list(ray_gate_files(str(inputs), str(output), resume=True))
    assert [Path(report.source).name for report in again] == ["part-2.parquet"]
    assert all((output / name).stat().st_mtime_ns == when for name, when in times.items() if name != "part-2.parquet")
    with pytest.raises(ValueError, match=r"settings.json has rate = None, not 0.2"):
        next(ray_gate_files(str(inputs), str(output), Outputs(rate=0.2), resume=True))
    with pytest.raises(FileExistsError, match="add --resume"):
        next(ray_gate_files(str(inputs), str(output)))


def test_a_dataset_of_ones_own(cluster: None, inputs: Path) -> None:
    rows = ray_gates(ray.data.read_parquet(str(inputs / "part-0.parquet")), Outputs(kinds=["terms"]), workers=1).take_all()
    assert sorted(row["id"] for row in rows) == list(range(ROWS)) and any(row["terms"] for row in rows)


def test_the_command(cluster: None, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "gates",
        "--engine",
        "ray",
        "--input",
        f"{inputs}/part-1.parquet",
        "--output",
        str(tmp_path / "out"),
        "--quiet",
    ]
    assert main([*words, "--add", "terms", "--rate", "0.2"]) == 0
    assert f"{ROWS} rows of 1 shards written" in capsys.readouterr().err
    assert pq.read_table(tmp_path / "out" / "part-1.parquet").column_names == ["id", "text", "terms"]
    assert main(words) == 1 and "add --resume" in capsys.readouterr().err
    for wrong, said in (
        (["--engine", "ray", "--input", str(inputs)], "--engine ray needs --input FILES and --output FOLDER"),
        (["--workers", "2", "Rain."], "--workers goes with --engine ray"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["gates", *wrong])
        assert said in capsys.readouterr().err
