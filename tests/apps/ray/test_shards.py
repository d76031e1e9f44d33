"""Shards are written whole or not at all, and each is done once."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hardkuma import HardKumaModel, load_released
from hardkuma.apps.ray import Outputs, cluster
from hardkuma.apps.ray.cluster import Shard, ShardWorker, list_shards, remove_partial, waiting_shards, write_shard

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def released() -> HardKumaModel:
    return load_released()[0]


def test_a_shard_of_several_batches_and_one_without_rows(
    released: HardKumaModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "ROWS", 40)
    long = pa.table({"n": list(range(83)), "text": ["Rain."] * 83})
    pq.write_table(long, tmp_path / "long.parquet")
    pq.write_table(long.slice(0, 0), tmp_path / "empty.parquet")
    for name, rows in (("long", 83), ("empty", 0)):
        shard = Shard(f"{tmp_path}/{name}.parquet", f"{tmp_path}/out/{name}.parquet")
        assert waiting_shards([shard], f"{tmp_path}/out") == [shard]
        assert write_shard(released, shard, Outputs(add=["terms"])) == rows
        assert waiting_shards([shard], f"{tmp_path}/out") == []
        found = pq.read_table(shard.target)
        assert found.column_names == ["n", "text", "terms"] and found["n"].to_pylist() == list(range(rows))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The kernel refuses to write more than this to a file, as a disk that is full does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_shards_that_fail_are_named_leave_nothing_and_the_rest_is_done(released: HardKumaModel, tmp_path: Path) -> None:
    texts = {"small": ["Rain again in Oslo."], "nothing": None, "large": [f"It rains in Oslo {i}." for i in range(400)]}
    for name, column in texts.items():
        if column is None:
            (tmp_path / f"{name}.parquet").write_bytes(b"nonsense")
        else:
            pq.write_table(pa.table({"text": column}), tmp_path / f"{name}.parquet")
    (tmp_path / "torn.parquet").write_bytes((tmp_path / "large.parquet").read_bytes()[:-50])
    names = ["large", "nothing", "torn", "absent", "small"]
    shards = [Shard(f"{tmp_path}/{name}.parquet", f"{tmp_path}/out/{name}.parquet") for name in names]
    worker = ShardWorker.__new__(ShardWorker)
    worker.model, worker.outputs = released, Outputs()
    with largest_file(8_000):
        found = worker({"source": [shard.source for shard in shards], "target": [shard.target for shard in shards]})
    assert [Path(source).stem for source in found["source"]] == names and found["rows"] == [0, 0, 0, 0, 1]
    for problem, said in zip(found["problem"], ("File too large", "Parquet", "Parquet", "No such file", ""), strict=True):
        assert said in problem and bool(said) == bool(problem)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["small.parquet"]
    # With room it is done: what is there stays, what is missing is made.
    again = waiting_shards(shards[:1] + shards[-1:], f"{tmp_path}/out")
    assert again == shards[:1] and write_shard(released, again[0], Outputs()) == 400


def test_what_killed_workers_leave_is_removed(tmp_path: Path) -> None:
    for name in ("a.parquet", "_b.parquet.0123abcd.partial", "_settings.json"):
        (tmp_path / name).write_bytes(b"")
    remove_partial(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_settings.json", "a.parquet"]


def test_the_output_can_be_read_as_a_folder_at_any_time(
    released: HardKumaModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pandas = pytest.importorskip("pandas")
    for name in "ab":
        pq.write_table(pa.table({"id": [name], "text": ["Rain in Oslo."]}), tmp_path / f"{name}.parquet")
    output = tmp_path / "out"
    cluster._claim(str(output), {"rate": None}, resume=False)
    first, second = list_shards(str(tmp_path), str(output))
    write_shard(released, first, Outputs())
    read: list[list[str]] = []

    def look(system: object, path: str) -> None:
        """While the second shard is written and has no name yet."""
        read.append(pandas.read_parquet(output)["id"].tolist())

    monkeypatch.setattr(cluster, "_sync", look)
    write_shard(released, second, Outputs())
    read.append(pandas.read_parquet(output)["id"].tolist())
    assert read == [["a"], ["a", "b"]]


def test_shards_of_a_folder_a_pattern_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b.parquet", "a.parquet", "c.txt"):
        (tmp_path / name).write_bytes(b"")
    for pattern, names in ((tmp_path, "ab"), (f"{tmp_path}/*.parquet", "ab"), ("b.parquet", "b"), ("*.parquet", "ab")):
        shards = list_shards(str(pattern), "out/")
        assert [shard.source for shard in shards] == [f"{tmp_path}/{name}.parquet" for name in names]
        assert [shard.target for shard in shards] == [f"{tmp_path}/out/{name}.parquet" for name in names]
    shard = list_shards(f"file://{tmp_path}/b*", f"file://{tmp_path}/out/")[0]
    assert shard == Shard(f"file://{tmp_path}/b.parquet", f"file://{tmp_path}/out/b.parquet")
    with pytest.raises(FileNotFoundError, match="no such file; give a folder of Parquet files"):
        list_shards(f"{tmp_path}/none-*.parquet", "out")
    with pytest.raises(ValueError, match="is the folder of the input"):
        list_shards("*.parquet", str(tmp_path))
