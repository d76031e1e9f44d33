"""Sources whose rows have columns: JSON lines, CSV, TSV, Parquet, data sets of the Hub. Each row gives one text."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..common.packages import require
from .detokenise import detokenise
from .errors import CorpusError, format_fix
from .lines import read_lines

HUB_PREFIX = "hf:"
# Looked for in this order where no column is named; the last two hold lists of words.
_DEFAULT_COLUMNS = ("text", "sentence", "tokens", "words")

Column = str | int | None


class RowText(NamedTuple):
    """The text of one row ("" where it is missing), whether it is one sentence already, which is not to be split, and what
    other columns of the row hold, where they were asked for."""

    text: str
    is_sentence: bool
    kept: Mapping[str, object] = {}


def _find_column(location: str, column: Column, names: Sequence[str], option: str = "--field (column= in Python)") -> str:
    """The column that was asked for, or the first of the default ones; an error with the names that there are."""
    wanted = _DEFAULT_COLUMNS if column is None else (str(column),)
    for name in wanted:
        if name in names:
            return name
    problem = "no column 'text' or 'sentence'" if column is None else f"no column {column!r}"
    shown = ", ".join(map(repr, names[:12])) + (", ..." if len(names) > 12 else "")
    raise CorpusError(location, f"{problem} among {shown}", f"name one of these with {option}")


def _check_kept(location: str, keep: Sequence[str], names: Sequence[str]) -> None:
    for name in keep:
        _find_column(location, name, names, option="--keep (keep= in Python)")


def _row_text(location: str, name: str, value: object, kept: Mapping[str, object]) -> RowText:
    """The text that the column `name` of one row holds."""
    if value is None:
        return RowText("", False, kept)
    if isinstance(value, str):
        return RowText(value, name.startswith("sentence"), kept)
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return RowText(detokenise([word for word in value if word])[0], True, kept)
    fix = "name a column of strings, or of lists of words, with --field (column= in Python)"
    raise CorpusError(location, f"{name!r} holds {repr(value)[:60]}, which is not text", fix)


def _read_json_lines(path: str, column: Column, keep: Sequence[str]) -> Iterator[RowText]:
    checked = False
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
            _check_kept(location, keep, ())
            yield RowText(record, False)
            continue
        if not isinstance(record, dict):
            fix = 'write one object a line, such as {"text": "..."}'
            raise CorpusError(location, f"a JSON {type(record).__name__} where an object is expected", fix)
        name = _find_column(location, column, list(record))
        if not checked:  # a field that later rows lack is null: one of them must not end a run of hours
            _check_kept(location, keep, list(record))
            checked = True
        yield _row_text(location, name, record[name], {field: record.get(field) for field in keep})


def _read_csv(path: str, column: Column, keep: Sequence[str]) -> Iterator[RowText]:
    return _read_separated(path, column, keep, _csv_rows(path), "quote fields that hold the separator")


def _read_tsv(path: str, column: Column, keep: Sequence[str]) -> Iterator[RowText]:
    return _read_separated(path, column, keep, _tsv_rows(path), "remove tabs inside of fields")


def _read_separated(
    path: str, column: Column, keep: Sequence[str], rows: Iterator[tuple[int, list[str]]], width_fix: str
) -> Iterator[RowText]:
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
                if keep:
                    raise ValueError(f"{path} has no header (column={column}), so keep={list(keep)} names nothing in it.")
            else:
                if len(header) == 1 and "\t" in header[0]:
                    raise CorpusError(location, "one column with tabs in it", format_fix("tsv"))
                index = header.index(_find_column(location, column, header))
                _check_kept(location, keep, header)
                continue
        if header and len(row) != len(header):
            raise CorpusError(location, f"{len(row)} columns where the header has {len(header)}", width_fix)
        if index >= len(row):
            problem = f"column {index + 1} asked for, {len(row)} found"
            raise CorpusError(location, problem, "give a column that every line has")
        text = row[index] if row[index].strip() else ""
        kept = {name: row[header.index(name)] for name in keep}
        yield RowText(text, bool(header) and header[index].startswith("sentence"), kept)


def _csv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for _, line in read_lines(path)), strict=True)
    started = 1
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            tabs = f"{format_fix('tsv')} if tabs separate columns"
            fix = f"close or double the quotes, {tabs}, or raise csv.field_size_limit"
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


def _read_parquet(path: str, column: Column, keep: Sequence[str]) -> Iterator[RowText]:
    pyarrow, parquet = require("pyarrow", "parquet"), require("pyarrow.parquet", "parquet")
    try:
        file = parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise CorpusError(path, f"broken Parquet ({error})", "write or download the file again") from error
    with file:
        name = _find_column(path, column, file.schema_arrow.names)
        _check_kept(path, keep, file.schema_arrow.names)
        number = 0
        for batch in file.iter_batches(batch_size=1024, columns=list(dict.fromkeys([name, *keep]))):
            for row in batch.to_pylist():
                number += 1
                yield _row_text(f"{path}, row {number}", name, row[name], {field: row[field] for field in keep})


def _read_hub(address: str, column: Column, keep: Sequence[str]) -> Iterator[RowText]:
    parts = address.removeprefix(HUB_PREFIX).split(":")
    if not parts[0] or len(parts) > 4:
        raise ValueError(f"{address!r} is not of the form hf:org/name[:config][:split][:column]")
    name, config, split, field = parts + [""] * (4 - len(parts))
    field_or_column = column if column is not None else field or None
    return _hub_rows(address, name, config or None, split or "train", field_or_column, keep)


def _hub_rows(
    address: str, name: str, config: str | None, split: str, column: Column, keep: Sequence[str]
) -> Iterator[RowText]:
    load_dataset = require("datasets", "corpora").load_dataset
    try:
        rows = load_dataset(name, config, split=split, streaming=True)
    except (ValueError, OSError, RuntimeError) as error:
        fix = "check name, config and split; hf:org/name::test is the split test of the default config"
        raise CorpusError(address, f"cannot be loaded ({error})", fix) from error
    for number, row in enumerate(rows, start=1):
        location = f"{address}, row {number}"
        field = _find_column(location, column, list(row))
        _check_kept(location, keep, list(row))
        yield _row_text(location, field, row[field], {other: row[other] for other in keep})


class _Reader(Protocol):
    def __call__(self, path: str, column: Column, keep: Sequence[str], /) -> Iterator[RowText]: ...


_READERS: Mapping[str, _Reader] = {
    "jsonl": _read_json_lines,
    "csv": _read_csv,
    "tsv": _read_tsv,
    "parquet": _read_parquet,
    "hub": _read_hub,
}


def read_column(path: str, format: str, column: Column = None, keep: Sequence[str] = ()) -> Iterator[RowText]:
    """The texts of one column, a row at a time; "" for a row whose text is missing.

    Args:
        path: a file (plain or .gz), "-" for standard input, or "hf:org/name[:config][:split][:column]".
        format: one of COLUMN_FORMATS.
        column: its name, or its number from 1 in CSV and TSV files without a header line; by default text or sentence.
        keep: names of other columns whose values come along.

    >>> import os, tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "two.jsonl")
    >>> _ = open(name, "w").write('{"title": "One. Two.", "id": 7}\\n{"title": null}\\n')
    >>> [(row.text, row.kept) for row in read_column(name, "jsonl", "title", keep=["id"])]
    [('One. Two.', {'id': 7}), ('', {'id': None})]
    """
    return _READERS[format](path, column, keep)
