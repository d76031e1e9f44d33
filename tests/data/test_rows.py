"""Rows as they stand: one text for each row of any format, in order, nothing cleaned or left out."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from hardkuma.data import CorpusError, read_texts
from hardkuma.data.rows import count_rows, read_rows

TEXTS = ["One. Two.", "", "Three <unk> , four", ' "quoted", with a comma\t', "ähm 😀 e\u0301", "= Heading ="]


def write(folder: Path, format: str) -> Path:
    path = folder / f"some.{format}"
    if format == "txt":
        path.write_bytes("\r\n".join(TEXTS).encode())
    elif format == "txt.gz":
        path.write_bytes(gzip.compress("".join(f"{text}\n" for text in TEXTS).encode()))
    elif format == "jsonl":
        path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    elif format == "csv":
        with path.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([["id", "text"], *([i, text] for i, text in enumerate(TEXTS))])
    else:
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"id": list(range(len(TEXTS))), "text": TEXTS}), path)
    return path


@pytest.mark.parametrize("format", ["txt", "txt.gz", "jsonl", "csv", "parquet"])
def test_every_row_is_a_text(format: str, tmp_path: Path) -> None:
    path = write(tmp_path, format)
    assert list(read_rows(path)) == TEXTS
    assert count_rows(path) == (None if format in ("txt.gz", "csv") else len(TEXTS))


def test_parquet_is_text_to_train_on_too(tmp_path: Path) -> None:
    assert list(read_texts(write(tmp_path, "parquet"), split_sentences=False))[:1] == ["One. Two."]


def test_missing_values_are_empty_and_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text('{"body": null}\n{"body": "x"}\n')
    assert list(read_rows(path, column="body")) == ["", "x"]
    with pytest.raises(CorpusError, match="no column 'title' among 'body'"):
        list(read_rows(path, column="title"))


def test_a_broken_parquet_file_is_explained(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "some.parquet"
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(CorpusError, match="broken Parquet"):
        list(read_rows(path))
