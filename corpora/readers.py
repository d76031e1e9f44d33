"""Unlabelled text from files and from the Hub: one lazy iterator of sentences, whatever the format.

read_texts("news.txt")                      plain text, a sentence or paragraph a line; WikiText's marks understood
read_texts("tweets.jsonl.gz")               JSON lines, field text or sentence; .gz of every format
read_texts("pairs.csv", column="title")     CSV, TSV: a column by name, or by number from 1 in files without a header
read_texts("pairs.parquet", column="title") Parquet: a column by name
read_texts("train.conll")                   CoNLL columns, CoNLL-U: the words; their labels are never returned
read_texts("hf:org/name:config:split:column")   a data set of the Hub, streamed; parts may be empty or left out
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from .conll import conll_sentences, conllu_sentences
from .detokenise import detokenise
from .errors import CorpusError
from .lines import bare_suffix, check_file, read_lines
from .sentences import split_sentences as split_into_sentences

FORMATS = ("text", "conll", "conllu", "jsonl", "csv", "tsv", "parquet", "hub")
_BY_SUFFIX = {
    ".txt": "text",
    ".md": "text",
    ".text": "text",
    ".raw": "text",
    ".tokens": "text",
    ".conll": "conll",
    ".iob": "conll",
    ".bio": "conll",
    ".conllu": "conllu",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
# Looked for in this order where no column is named; the last two hold lists of words.
_DEFAULT_COLUMNS = ("text", "sentence", "tokens", "words")
_HEADING = re.compile(r"\s*(=\s)+.*\S\s+=(\s=)*\s*")
_TOKENISED = re.compile(r"\s[,.](\s|$)")
_HUB = "hf:"
# (text, whether it is a sentence already); None for a row without text.
Value = tuple[str, bool] | None


def read_texts(
    path: str | os.PathLike[str],
    format: str | None = None,
    column: str | int | None = None,
    split_sentences: bool | None = None,
) -> Iterator[str]:
    """Texts of a file or Hub data set, one at a time, without labels. Memory stays flat however large the source.

    Args:
        path: a file (plain or .gz), or "hf:org/name[:config][:split][:column]".
        format: one of FORMATS; by default from the suffix.
        column: field of JSON lines, column of CSV, TSV, Parquet or a Hub data set; by default text or sentence. A number
            counts columns from 1, for CSV and TSV files without a header line.
        split_sentences: whether to split texts into sentences. By default yes, but not in CoNLL files and not in a
            column whose name begins with "sentence", which hold sentences already.

    >>> import os, tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "wiki.txt")
    >>> _ = open(name, "w").write(" = Lobster = \\n A well @-@ known animal . It is <unk> . It is blue . \\n")
    >>> list(read_texts(name))
    ['A well-known animal.', 'It is blue.']
    """
    name, chosen = os.fspath(path), choose_format(path, format, column)
    if chosen in ("conll", "conllu"):
        return _units(name, _conll(name, chosen), split_sentences, marks=False)
    if chosen == "text":
        return _units(name, _plain(name), split_sentences)
    return _units(name, VALUES[chosen](name, column, chosen), split_sentences)


def choose_format(path: str | os.PathLike[str], format: str | None = None, column: str | int | None = None) -> str:
    """The format given, or that of the suffix, of a file that exists.

    >>> choose_format("hf:org/name")
    'hub'
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    name = os.fspath(path)
    if name.startswith(_HUB) or format == "hub":
        return "hub"
    file = check_file(path)
    chosen = format or _BY_SUFFIX.get(bare_suffix(file))
    if chosen is None:
        raise ValueError(
            f"{name}: the suffix {file.suffix!r} names no format; rename it, or pass format= one of {', '.join(FORMATS)}"
        )
    if column is not None and chosen in ("text", "conll", "conllu"):
        raise ValueError(f"{name}: column={column!r} has no meaning for format {chosen!r}; leave it out")
    return chosen


# --- from raw texts to units


def _units(place: str, raw: Iterator[Value], split: bool | None, marks: bool = True) -> Iterator[str]:
    """Texts or their sentences, without WikiText's marks."""
    read = kept = 0
    for text, whole in filter(None, raw):
        read += 1
        for unit in split_into_sentences(text) if (not whole if split is None else split) else [text.strip()]:
            if cleaned := _without_marks(unit) if marks else unit:
                kept += 1
                yield cleaned
    if not kept:
        problem = f"{read} texts read, none usable" if read else "no text found; the file is empty"
        raise CorpusError(place, problem, "give a source with at least one sentence")


def _without_marks(text: str) -> str:
    """The text as written: WikiText's @-@ @,@ @.@ undone, tokenised punctuation closed up; "" for a text with <unk>.

    >>> _without_marks("1 @,@ 200 sea @-@ birds ( and more ) ."), _without_marks("The <unk> , too .")
    ('1,200 sea-birds (and more).', '')
    """
    if "<unk>" in text or _HEADING.fullmatch(text):
        return ""
    text = re.sub(r"\s?@([-,.])@\s?", r"\1", text)
    # No language puts a space before a comma or a full stop; French does before ; : ! and ?
    if _TOKENISED.search(text):
        text = detokenise(text.split())[0]
    return text


# --- sources of values


def _plain(path: str) -> Iterator[Value]:
    for _, line in read_lines(path):
        if line.strip() and not _HEADING.fullmatch(line):
            yield line, False


def _conll(path: str, format: str) -> Iterator[Value]:
    if format == "conllu":
        for sentence in conllu_sentences(path):
            yield sentence.text, True
    else:
        for _, rows in conll_sentences(path):
            yield detokenise([row[0] for row in rows])[0], True


def _find_column(place: str, column: str | int | None, names: list[str]) -> str:
    if column is None:
        found = next((name for name in _DEFAULT_COLUMNS if name in names), None)
        problem = "no column 'text' or 'sentence'"
    else:
        found = str(column) if str(column) in names else None
        problem = f"no column {column!r}"
    if found is None:
        shown = ", ".join(map(repr, names[:12])) + (", ..." if len(names) > 12 else "")
        raise CorpusError(place, f"{problem} among {shown}", "name one of these with column= (--field of the command)")
    return found


def _value(place: str, name: str, value: Any) -> Value:
    if value is None:
        return None
    if isinstance(value, str):
        return value, name.startswith("sentence")
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return detokenise([word for word in value if word])[0], True
    fix = "name a column of strings, or of lists of words, with column= (--field of the command)"
    raise CorpusError(place, f"{name!r} holds {repr(value)[:60]}, which is no text", fix)


def _json_lines(path: str, column: str | int | None, format: str) -> Iterator[Value]:
    for number, line in read_lines(path):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            fix = "write one whole JSON object a line"
            if number == 1 and line.lstrip()[0] in "[{":
                fix += "; a JSON file that spans lines can be converted with: jq -c '.[]' in.json > out.jsonl"
            raise CorpusError(place, f"broken JSON ({error})", fix) from error
        if isinstance(record, str):
            yield record, False
            continue
        if not isinstance(record, dict):
            fix = 'write one object a line, such as {"text": "..."}'
            raise CorpusError(place, f"a JSON {type(record).__name__} where an object is expected", fix)
        name = _find_column(place, column, list(record))
        yield _value(place, name, record[name])


def _csv(path: str, column: str | int | None, format: str) -> Iterator[Value]:
    rows = _tsv_rows(path) if format == "tsv" else _csv_rows(path)
    header: list[str] = []
    index = None
    for number, row in rows:
        place = f"{path}, line {number}"
        if index is None:
            header = [name.strip() for name in row]
            if column is not None and str(column).isdigit() and str(column) not in header:
                index, header = int(column) - 1, []  # a file without a header: this line is text already
                if index < 0:
                    raise ValueError("column=0: columns are counted from 1")
            else:
                if len(header) == 1 and "\t" in header[0]:
                    raise CorpusError(place, "one column with tabs in it", "pass format='tsv'")
                index = header.index(_find_column(place, column, header))
                continue
        if header and len(row) != len(header):
            fix = "quote fields that hold the separator" if format == "csv" else "remove tabs inside of fields"
            raise CorpusError(place, f"{len(row)} columns where the header has {len(header)}", fix)
        if index >= len(row):
            raise CorpusError(place, f"column {index + 1} asked for, {len(row)} found", "give a column that every line has")
        blank = not row[index].strip()
        yield None if blank else (row[index], bool(header) and header[index].startswith("sentence"))


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


def _parquet(path: str, column: str | int | None, format: str) -> Iterator[Value]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(f"{path}: reading Parquet needs the package pyarrow; pip install pyarrow") from error
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise CorpusError(path, f"broken Parquet ({error})", "write or download the file again") from error
    with file:
        name = _find_column(path, column, file.schema_arrow.names)
        number = 0
        for batch in file.iter_batches(batch_size=1024, columns=[name]):
            for value in batch.column(0).to_pylist():
                number += 1
                yield _value(f"{path}, row {number}", name, value)


def _hub(address: str, column: str | int | None, format: str) -> Iterator[Value]:
    parts = address.removeprefix(_HUB).split(":")
    if not parts[0] or len(parts) > 4:
        raise ValueError(f"{address!r} is not of the form hf:org/name[:config][:split][:column]")
    name, config, split, field = parts + [""] * (4 - len(parts))
    return _hub_rows(address, name, config or None, split or "train", column if column is not None else field or None)


def _hub_rows(address: str, name: str, config: str | None, split: str, column: str | int | None) -> Iterator[Value]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError(f"{address}: reading from the Hub needs the package datasets; pip install datasets") from error
    try:
        rows = load_dataset(name, config, split=split, streaming=True)
    except (ValueError, OSError, RuntimeError) as error:
        fix = "check name, config and split; hf:org/name::test is the split test of the default config"
        raise CorpusError(address, f"cannot be loaded ({error})", fix) from error
    for number, row in enumerate(rows, start=1):
        place = f"{address}, row {number}"
        found = _find_column(place, column, list(row))
        yield _value(place, found, row[found])


# Formats whose rows have columns: (path, column, format) -> values.
VALUES = {"jsonl": _json_lines, "csv": _csv, "tsv": _csv, "parquet": _parquet, "hub": _hub}
