"""Gates as columns of a table, and shards that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hardkuma import HardKumaModel, load_released
from hardkuma.engines import Outputs, add_gates
from hardkuma.engines.shards import ROWS, Shard, is_done, list_shards, write_shard

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


def test_a_shard_of_several_batches_and_one_without_rows(released: HardKumaModel, tmp_path: Path) -> None:
    long = pa.table({"n": list(range(ROWS + 3)), "text": ["Rain."] * (ROWS + 3)})
    pq.write_table(long, tmp_path / "long.parquet")
    pq.write_table(long.slice(0, 0), tmp_path / "empty.parquet")
    for name, rows in (("long", ROWS + 3), ("empty", 0)):
        shard = Shard(f"{tmp_path}/{name}.parquet", f"{tmp_path}/out/{name}.parquet")
        assert not is_done(shard)
        assert write_shard(released, shard, Outputs(kinds=["terms"])) == rows and is_done(shard)
        found = pq.read_table(shard.target)
        assert found.column_names == ["n", "text", "terms"] and found["n"].to_pylist() == list(range(rows))


def test_what_fails_leaves_nothing(released: HardKumaModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"text": ["Rain."] * 3}), tmp_path / "in.parquet")
    shard = Shard(f"{tmp_path}/in.parquet", f"{tmp_path}/out/in.parquet")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", full)
        with pytest.raises(OSError, match="No space left"):
            write_shard(released, shard, Outputs())
    assert list((tmp_path / "out").iterdir()) == [] and not is_done(shard)
    (tmp_path / "bad.parquet").write_bytes(b"nonsense")
    with pytest.raises(pa.ArrowInvalid):
        write_shard(released, Shard(f"{tmp_path}/bad.parquet", f"{tmp_path}/out/bad.parquet"), Outputs())
    assert list((tmp_path / "out").iterdir()) == []


def test_shards_of_a_folder_a_pattern_and_a_file(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.parquet", "c.txt"):
        (tmp_path / name).write_bytes(b"")
    for pattern, names in ((tmp_path, "ab"), (f"{tmp_path}/*.parquet", "ab"), (tmp_path / "b.parquet", "b")):
        shards = list_shards(str(pattern), "out/")
        assert [shard.target for shard in shards] == [f"out/{name}.parquet" for name in names]
    with pytest.raises(FileNotFoundError, match="no such file; give a folder of Parquet files"):
        list_shards(f"{tmp_path}/none-*.parquet", "out")
