"""Gates as columns of a table, and shards that are written whole or not at all."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from hardkuma import HardKumaModel, load_released
from hardkuma.apps.ray import Outputs, add_gates
from hardkuma.apps.ray.ray_engine import ShardWorker
from hardkuma.apps.ray.shards import ROWS, Shard, list_shards, remove_partial, waiting_shards, write_shard

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = ["Our flight to Oslo was delayed by snow.", None, "", "Marie Curie moved to Paris.", "\ud800 half", "..."]


@pytest.fixture(scope="module")
def released() -> HardKumaModel:
    return load_released()[0]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    texts = [text if text is None else text.encode("utf-8", "replace").decode() for text in TEXTS]
    return pa.table({"id": list(range(len(texts))), "text": texts})


def test_columns_are_the_records_row_for_row(released: HardKumaModel, table: pa.Table) -> None:
    found = add_gates(released, table, Outputs(kinds=["gates", "terms"], selector="entities", rate=0.3))
    assert found.column_names == ["id", "text", "words", "spans", "rate", "windows", "reason", "terms"]
    assert found.select(["id", "text"]).equals(table)
    for row in found.to_pylist():
        if row["text"] is None:
            assert row["reason"] == "the row has no text" and row["words"] == row["spans"] == row["terms"] == []
            continue
        record = released.gate_records([row["text"]], rate=0.3, selector="entities")[0]
        assert [word["word"] for word in row["words"] if word["selected"]] == [
            word["word"] for word in record["words"] if word["selected"]
        ]
        assert row["terms"] == [span["text"] for span in record["spans"]]
        assert [word["probability"] for word in row["words"]] == pytest.approx(
            [word["probability"] for word in record["words"]], abs=1e-5
        )


def test_a_dataset_of_datasets(released: HardKumaModel, table: pa.Table) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset(table).with_format("arrow")
    mapped = dataset.map(partial(add_gates, released, outputs=Outputs(kinds=["terms"])), batched=True, batch_size=4)
    expected = add_gates(released, table, Outputs(kinds=["terms"]))
    assert mapped.with_format(None)[:] == expected.to_pydict()


def test_embeddings_are_those_of_the_model(released: HardKumaModel, table: pa.Table) -> None:
    found = add_gates(released, table, Outputs(kinds=["anchor", "rationale"], rate=0.5, batch_size=2)).to_pylist()
    inputs = released.tokenizer([TEXTS[0]], return_tensors="pt")
    with torch.no_grad():
        out = released(**inputs, selector="meaning", rate=0.5)
    assert found[0]["anchor"] == pytest.approx(out.anchor_embedding[0].tolist(), abs=1e-5)
    assert found[0]["rationale"] == pytest.approx(out.rationale_embedding[0].tolist(), abs=1e-5)
    assert found[1]["anchor"] is None


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"body": ["a"]}, {}, "there is no column 'text'; there are: body"),
        ({"text": ["a"], "spans": [1]}, {}, "the input has a column 'spans' already"),
        ({"text": [1]}, {}, "holds int64, not text"),
    ],
)
def test_tables_that_do_not_fit(released: HardKumaModel, columns: dict, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        add_gates(released, pa.table(columns), Outputs(**options))


def test_unknown_kinds_and_rates_are_said_at_once() -> None:
    with pytest.raises(ValueError, match="kinds must be one of gates, terms, anchor, rationale"):
        Outputs(kinds=["sums"])
    with pytest.raises(ValueError, match="rate must be a fraction"):
        Outputs(rate=20)
    with pytest.raises(ValueError, match="rationale embeddings are those of one selector"):
        Outputs(kinds=["gates", "rationale"], selector="all")


def test_a_shard_of_several_batches_and_one_without_rows(released: HardKumaModel, tmp_path: Path) -> None:
    long = pa.table({"n": list(range(ROWS + 3)), "text": ["Rain."] * (ROWS + 3)})
    pq.write_table(long, tmp_path / "long.parquet")
    pq.write_table(long.slice(0, 0), tmp_path / "empty.parquet")
    for name, rows in (("long", ROWS + 3), ("empty", 0)):
        shard = Shard(f"{tmp_path}/{name}.parquet", f"{tmp_path}/out/{name}.parquet")
        assert waiting_shards([shard], f"{tmp_path}/out") == [shard]
        assert write_shard(released, shard, Outputs(kinds=["terms"])) == rows
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
    for name in ("a.parquet", "b.parquet.0123abcd.partial", "settings.json"):
        (tmp_path / name).write_bytes(b"")
    remove_partial(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "settings.json"]


def test_a_column_that_is_empty_in_every_row(released: HardKumaModel) -> None:
    table = pa.table({"text": pa.nulls(2)})
    assert add_gates(released, table)["reason"].to_pylist() == ["the row has no text"] * 2


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
