"""Sources whose rows have columns: JSON lines, CSV, TSV, Parquet, data sets of the Hub. Each row gives one text."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ..common.packages import require
from .detokenise import detokenise
from .errors import CorpusError
from .lines import read_lines

HUB_PREFIX = "hf:"
# Looked for in this order where no column is named; the last two hold lists of words.
_DEFAULT_COLUMNS = ("text", "sentence", "tokens", "words")

Column = str | int | None


class RowText(NamedTuple):
    """The text of one row, and whether it is one sentence already, which is not to be split."""

    text: str
    is_sentence: bool


def _find_column(location: str, column: Column, names: list[str]) -> str:
    """The column that was asked for, or the first of the default ones; an error with the names that there are."""
    wanted = _DEFAULT_COLUMNS if column is None else (str(column),)
    for name in wanted:
        if name in names:
            return name
    problem = "no column 'text' or 'sentence'" if column is None else f"no column {column!r}"
    shown = ", ".join(map(repr, names[:12])) + (", ..." if len(names) > 12 else "")
    raise CorpusError(location, f"{problem} among {shown}", "name one of these with column= (--field of the command)")


def _row_text(location: str, name: str, value: object) -> RowText | None:
    """The text that the column `name` of one row holds; None where it is missing."""
    if value is None:
        return None
    if isinstance(value, str):
        return RowText(value, name.startswith("sentence"))
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return RowText(detokenise([word for word in value if word])[0], True)
    fix = "name a column of strings, or of lists of words, with column= (--field of the command)"
    raise CorpusError(location, f"{name!r} holds {repr(value)[:60]}, which is not text", fix)


def _read_json_lines(path: str, column: Column) -> Iterator[RowText | None]:
    for number, line in read_lines(path):
        if not line.strip():
            continue
        location = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            fix = "write one whole JSON object a line"
            if number == 1 and line.lstrip()[0] in "[{":
                fix += "; a JSON file that spans lines can be converted with: jq -c '.[]' in.json > out.jsonl"
            raise CorpusError(location, f"broken JSON ({error})", fix) from error
        if isinstance(record, str):
            yield RowText(record, False)
            continue
        if not isinstance(record, dict):
            fix = 'write one object a line, such as {"text": "..."}'
            raise CorpusError(location, f"a JSON {type(record).__name__} where an object is expected", fix)
        name = _find_column(location, column, list(record))
        yield _row_text(location, name, record[name])


def _read_csv(path: str, column: Column) -> Iterator[RowText | None]:
    return _read_separated(path, column, _csv_rows(path), "quote fields that hold the separator")


def _read_tsv(path: str, column: Column) -> Iterator[RowText | None]:
    return _read_separated(path, column, _tsv_rows(path), "remove tabs inside of fields")


def _read_separated(
    path: str, column: Column, rows: Iterator[tuple[int, list[str]]], width_fix: str
) -> Iterator[RowText | None]:
    """Texts of the rows, which are (line number, fields); `width_fix` mends a row of another width than the header's."""
    header: list[str] = []
    index: int | None = None
    for number, row in rows:
        location = f"{path}, line {number}"
        if index is None:
            header = [name.strip() for name in row]
            if column is not None and str(column).isdigit() and str(column) not in header:
                index, header = int(column) - 1, []  # a file without a header: this line is text already
                if index < 0:
                    raise ValueError("column=0: columns are counted from 1")
            else:
                if len(header) == 1 and "\t" in header[0]:
                    raise CorpusError(location, "one column with tabs in it", "pass format='tsv'")
                index = header.index(_find_column(location, column, header))
                continue
        if header and len(row) != len(header):
            raise CorpusError(location, f"{len(row)} columns where the header has {len(header)}", width_fix)
        if index >= len(row):
            problem = f"column {index + 1} asked for, {len(row)} found"
            raise CorpusError(location, problem, "give a column that every line has")
        blank = not row[index].strip()
        yield None if blank else RowText(row[index], bool(header) and header[index].startswith("sentence"))


def _csv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for _, line in read_lines(path)), strict=True)
    started = 1
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fix = "close or double the quotes, pass format='tsv' if tabs separate columns, or raise csv.field_size_limit"
            raise CorpusError(f"{path}, lines {started} to {reader.line_num}", f"broken CSV ({error})", fix) from error
        if row:
            yield started, row
        started = reader.line_num + 1


def _tsv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Tabs always separate. Quotes are text, except those that spreadsheets put around a field and double inside it."""
    for number, line in read_lines(path):
        if line.strip():
            yield number, [_unquoted(field) for field in line.split("\t")]


def _unquoted(field: str) -> str:
    inner = field[1:-1]
    quoted = len(field) > 1 and field[0] == field[-1] == '"' and '"' not in inner.replace('""', "")
    return inner.replace('""', '"') if quoted else field


def _read_parquet(path: str, column: Column) -> Iterator[RowText | None]:
    pyarrow, parquet = require("pyarrow", "parquet"), require("pyarrow.parquet", "parquet")
    try:
        file = parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise CorpusError(path, f"broken Parquet ({error})", "write or download the file again") from error
    with file:
        name = _find_column(path, column, file.schema_arrow.names)
        number = 0
        for batch in file.iter_batches(batch_size=1024, columns=[name]):
            for value in batch.column(0).to_pylist():
                number += 1
                yield _row_text(f"{path}, row {number}", name, value)


def _read_hub(address: str, column: Column) -> Iterator[RowText | None]:
    parts = address.removeprefix(HUB_PREFIX).split(":")
    if not parts[0] or len(parts) > 4:
        raise ValueError(f"{address!r} is not of the form hf:org/name[:config][:split][:column]")
    name, config, split, field = parts + [""] * (4 - len(parts))
    return _hub_rows(address, name, config or None, split or "train", column if column is not None else field or None)


def _hub_rows(address: str, name: str, config: str | None, split: str, column: Column) -> Iterator[RowText | None]:
    load_dataset = require("datasets", "corpora").load_dataset
    try:
        rows = load_dataset(name, config, split=split, streaming=True)
    except (ValueError, OSError, RuntimeError) as error:
        fix = "check name, config and split; hf:org/name::test is the split test of the default config"
        raise CorpusError(address, f"cannot be loaded ({error})", fix) from error
    for number, row in enumerate(rows, start=1):
        location = f"{address}, row {number}"
        field = _find_column(location, column, list(row))
        yield _row_text(location, field, row[field])


_READERS: Mapping[str, Callable[[str, Column], Iterator[RowText | None]]] = {
    "jsonl": _read_json_lines,
    "csv": _read_csv,
    "tsv": _read_tsv,
    "parquet": _read_parquet,
    "hub": _read_hub,
}
COLUMN_FORMATS = tuple(_READERS)


def read_column(path: str, format: str, column: Column = None) -> Iterator[RowText | None]:
    """The texts of one column, a row at a time; None for a row whose text is missing.

    Args:
        path: a file (plain or .gz), or "hf:org/name[:config][:split][:column]".
        format: one of COLUMN_FORMATS.
        column: its name, or its number from 1 in CSV and TSV files without a header line; by default text or sentence.

    >>> import os, tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "two.jsonl")
    >>> _ = open(name, "w").write('{"title": "One. Two."}\\n{"title": null}\\n')
    >>> list(read_column(name, "jsonl", "title"))
    [RowText(text='One. Two.', is_sentence=False), None]
    """
    return _READERS[format](path, column)
