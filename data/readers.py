"""Unlabelled text from files and from the Hub: one lazy iterator of sentences, whatever the format.

read_texts("news.txt")                      plain text, a sentence or paragraph a line; WikiText's marks understood
read_texts("tweets.jsonl.gz")               JSON lines, field text or sentence; .gz of every format
read_texts("pairs.csv", column="title")     CSV, TSV: a column by name, or by number from 1 in files without a header; of
                                            CSV with a header, commas or else semicolons or tabs separate columns
read_texts("pairs.tsv:2")                   the same, said with the file: in a list of files each has its own
read_texts("pairs.parquet", column="title") Parquet: a column by name
read_texts("train.conll")                   CoNLL columns, CoNLL-U: the words; their labels are never returned
read_texts("hf:org/name:config:split:column")   a data set of the Hub, streamed; parts may be empty or left out
read_texts("-", format="jsonl")             standard input; text a line unless the format is given
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from ..common.packages import require
from ..common.text import COLUMN_FORMATS, INPUT_FORMATS, STANDARD_INPUT
from .conll import conll_sentences, conllu_sentences, detokenise
from .lines import MAX_LINE, CorpusError, bare_suffix, check_file, read_lines
from .sentences import split_sentences as split_into_sentences

HUB_PREFIX = "hf:"
# Looked for in this order where no column is named; the last two hold lists of words.
_DEFAULT_COLUMNS = ("text", "sentence", "tokens", "words")
FORMATS = INPUT_FORMATS
_FORMAT_BY_SUFFIX = {
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
_TOKENISED = re.compile(r"\s[,.](\s|$)")

Column = str | int | None


class RowText(NamedTuple):
    """The text of one row ("" where it is missing), whether it is one sentence already, which is not to be split, and what
    other columns of the row hold, where they were asked for."""

    text: str
    is_sentence: bool
    kept: Mapping[str, object] = {}


def choose_input_format(path: str | os.PathLike[str], format: str | None = None, column: Column = None) -> str:
    """The format given, or that of the suffix, of a file that exists.

    >>> choose_input_format("hf:org/name")
    'hub'
    """
    if format is not None:
        from ..configuration_hardkuma import check_choice  # imports transformers, which reading text does not need

        check_choice("format", format, FORMATS)
    name = os.fspath(path)
    if name.startswith(HUB_PREFIX) or format == "hub":
        return "hub"
    file = check_file(path)
    chosen = format or ("text" if name == STANDARD_INPUT else _FORMAT_BY_SUFFIX.get(bare_suffix(file)))
    if chosen is None:
        fix = f"rename the file, or say which format it has with {{format}}: {', '.join(FORMATS)}"
        raise CorpusError(name, f"the suffix {file.suffix!r} names no format", fix)
    if name == STANDARD_INPUT and chosen == "parquet":
        raise ValueError("Parquet cannot be read from standard input: its index is at its end; give the file.")
    if column is not None and chosen not in COLUMN_FORMATS:
        raise CorpusError(name, f"the format {chosen!r} has no columns", "leave out {column}")
    return chosen


# ---- sentences to train on ----------------------------------------------------------------------------------------------


def read_texts(
    path: str | os.PathLike[str],
    format: str | None = None,
    column: Column = None,
    split_sentences: bool | None = None,
    left_out: Counter[str] | None = None,
) -> Iterator[str]:
    """Texts of a file or Hub data set, one at a time, without labels. Memory stays flat however large the source.

    Args:
        path: a file (plain or .gz), with ":" and a column behind it if there is one to name; or
            "hf:org/name[:config][:split][:column]".
        format: one of FORMATS; by default from the suffix.
        column: field of JSON lines, column of CSV, TSV, Parquet or a Hub data set; by default text or sentence. A number
            counts columns from 1, for CSV and TSV files without a header line.
        split_sentences: whether to split texts into sentences. By default yes, but not in CoNLL files and not in a
            column whose name begins with "sentence", which hold sentences already.
        left_out: counts what is not returned, by what it is: WikiText's headings, and sentences with <unk>.

    >>> import os, tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "wiki.txt")
    >>> _ = open(name, "w").write(" = Lobster = \\n A well @-@ known animal . It is <unk> . It is blue . \\n")
    >>> list(read_texts(name))
    ['A well-known animal.', 'It is blue.']
    """
    path, column = _named_column(os.fspath(path), column)
    name, chosen = path, choose_input_format(path, format, column)
    counts: Counter[str] = Counter() if left_out is None else left_out
    if chosen in ("conll", "conllu"):
        return _usable_texts(name, _conll(name, chosen), split_sentences, counts, undo_marks=False)
    rows = _plain(name, counts) if chosen == "text" else _READERS[chosen](name, column, ())
    return _usable_texts(name, rows, split_sentences, counts)


def _named_column(path: str, column: Column) -> tuple[str, Column]:
    """The file and the column of "pairs.tsv:2"; other paths, and those of files that exist, stay as they are.

    >>> _named_column("pairs.tsv:2", None), _named_column("pairs.tsv", "title"), _named_column("hf:org/name:a", None)
    (('pairs.tsv', '2'), ('pairs.tsv', 'title'), ('hf:org/name:a', None))
    """
    file, mark, named = path.rpartition(":")
    if not mark or path.startswith(HUB_PREFIX) or os.path.exists(path):
        return path, column
    if _FORMAT_BY_SUFFIX.get(bare_suffix(Path(file))) not in COLUMN_FORMATS:
        return path, column
    if column is not None:
        fix = f"leave out {{column}} or the :{named} of the file"
        raise CorpusError(path, f"two columns are named, {named!r} and {column!r}", fix)
    return file, named


def name_left_out(counts: Counter[str]) -> str:
    """What `read_texts` has left out, for people; "" where that is nothing.

    >>> name_left_out(Counter({"headings": 2, "sentences with <unk>": 1300}))
    'left out: 2 headings, 1,300 sentences with <unk>'
    """
    return "left out: " + ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items())) if counts else ""


def _usable_texts(
    source: str, rows: Iterator[RowText], split: bool | None, left_out: Counter[str], undo_marks: bool = True
) -> Iterator[str]:
    """Texts or their sentences, without WikiText's marks; an error about `source` where there are none."""
    read = kept = 0
    for row in rows:
        if not row.text:
            continue
        read += 1
        splits = not row.is_sentence if split is None else split
        for text in split_into_sentences(row.text) if splits else [row.text.strip()]:
            reason = _why_unusable(text) if undo_marks else None
            if reason is not None:
                left_out[reason] += 1
            elif usable := _without_marks(text) if undo_marks else text:
                kept += 1
                yield usable
    if not kept:
        problem = f"{read} texts read, none usable" if read else "no text found; the file is empty"
        raise CorpusError(source, problem, "give a source with at least one sentence")


def _why_unusable(text: str) -> str | None:
    """What makes a text of WikiText no sentence of its language, if anything does."""
    if "<unk>" in text:
        return "sentences with <unk>"
    return "headings" if _is_heading(text) else None


def _is_heading(text: str) -> bool:
    """Whether this is a heading of WikiText.

    >>> _is_heading(" = = Habitat = = "), _is_heading("a = b")
    (True, False)
    """
    words = text.split()
    return len(words) > 2 and words[0] == words[-1] == "="


def _without_marks(text: str) -> str:
    """The text as written: WikiText's @-@ @,@ @.@ undone, tokenised punctuation closed up.

    >>> _without_marks("1 @,@ 200 sea @-@ birds ( and more ) .")
    '1,200 sea-birds (and more).'
    """
    text = re.sub(r"\s?@([-,.])@\s?", r"\1", text)
    # No language puts a space before a comma or a full stop; French does before ; : ! and ?
    if _TOKENISED.search(text):
        text = detokenise(text.split())[0]
    return text


def _plain(path: str, left_out: Counter[str]) -> Iterator[RowText]:
    for _, line in read_lines(path):
        if _is_heading(line):
            left_out["headings"] += 1
        elif line.strip():
            yield RowText(line, False)


def _conll(path: str, format: str) -> Iterator[RowText]:
    if format == "conllu":
        for sentence in conllu_sentences(path):
            yield RowText(sentence.text, True)
    else:
        for _, rows in conll_sentences(path):
            yield RowText(detokenise([row[0] for row in rows])[0], True)


# ---- rows as they stand -------------------------------------------------------------------------------------------------


def read_rows(path: str | os.PathLike[str], format: str | None = None, column: Column = None) -> Iterator[str]:
    """One text a row, unchanged, in order; "" for a missing or blank value. Memory stays flat however large the file.

    Args:
        path: a file (plain or .gz), "-" for standard input, or "hf:org/name[:config][:split][:column]".
        format: one of FORMATS; by default from the suffix.
        column: field of JSON lines; column of CSV, TSV, Parquet or a Hub data set. By default text or sentence.

    >>> import tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "three.txt")
    >>> _ = open(name, "w").write("One. Two.\\n\\nThree <unk>\\n")
    >>> list(read_rows(name))
    ['One. Two.', '', 'Three <unk>']
    """
    return (row.text for row in read_kept_rows(path, format, column))


def read_kept_rows(
    path: str | os.PathLike[str], format: str | None = None, column: Column = None, keep: Sequence[str] = ()
) -> Iterator[RowText]:
    """What `read_rows` gives, each with the values of other columns as `kept`.

    Args:
        path, format, column: as in `read_rows`.
        keep: names of the other columns; a file without columns has none.

    >>> import tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "one.csv")
    >>> _ = open(name, "w").write("id,text\\n7,Rain fell.\\n")
    >>> [(row.text, row.kept) for row in read_kept_rows(name, keep=["id"])]
    [('Rain fell.', {'id': '7'})]
    """
    name, chosen = os.fspath(path), choose_input_format(path, format, column)
    if keep and chosen not in COLUMN_FORMATS:
        raise CorpusError(name, f"the format {chosen!r} has no columns", "leave out {keep}")
    if chosen in ("conll", "conllu"):
        return (RowText(text, True) for text in read_texts(name, chosen, split_sentences=False))
    if chosen == "text":
        return (RowText(line, False) for _, line in read_lines(name))
    return _READERS[chosen](name, column, keep)


def count_rows(path: str | os.PathLike[str], format: str | None = None) -> int | None:
    """How many rows `read_rows` will give, where that is cheap to know (for a progress bar); None where it is not.

    Blank lines of JSON lines, which give no row, are counted.
    """
    chosen = choose_input_format(path, format)
    if os.fspath(path) == STANDARD_INPUT:
        return None
    if chosen == "parquet":
        return require("pyarrow.parquet", "parquet").read_metadata(path).num_rows
    if chosen not in ("text", "jsonl") or os.fspath(path).lower().endswith(".gz"):
        return None
    lines, last = 0, b"\n"
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            lines, last = lines + block.count(b"\n"), block
    return lines + (not last.endswith(b"\n"))


# ---- formats with columns -----------------------------------------------------------------------------------------------


def _find_column(location: str, column: Column, names: Sequence[str], option: str = "{column}") -> str:
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
        _find_column(location, name, names, option="{keep}")


def _row_text(location: str, name: str, value: object, kept: Mapping[str, object]) -> RowText:
    """The text that the column `name` of one row holds."""
    if value is None:
        return RowText("", False, kept)
    if isinstance(value, str):
        return RowText(value, name.startswith("sentence"), kept)
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return RowText(detokenise([word for word in value if word])[0], True, kept)
    fix = "name a column of strings, or of lists of words, with {column}"
    raise CorpusError(location, f"{name!r} holds {repr(value)[:60]}, which is not text", fix)


def _read_json_lines(path: str, column: Column, keep: Sequence[str]) -> Iterator[RowText]:
    checked = False
    for number, line in read_lines(path):
        if not line.strip():
            continue
        location = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # the latter for brackets in brackets in brackets
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
                    raise CorpusError(path, "there is no column 0", "columns are counted from 1")
                for name in keep:
                    if not name.isdigit() or name == "0":
                        problem = f"it has no header, since its column is a number, {column}: {name!r} is none"
                        raise CorpusError(path, problem, "count columns from 1, or leave out {keep}")
            else:
                index = header.index(
                    _find_column(location, column, header, "{column}, or its number if there is no header")
                )
                _check_kept(location, keep, header)
                continue
        if header and len(row) != len(header):
            raise CorpusError(location, f"{len(row)} columns where the header has {len(header)}", width_fix)
        if index >= len(row):
            problem = f"column {index + 1} asked for, {len(row)} found"
            raise CorpusError(location, problem, "give a column that every line has")
        text = row[index] if row[index].strip() else ""
        places = {name: header.index(name) if header else int(name) - 1 for name in keep}
        if max(places.values(), default=0) >= len(row):
            problem = f"column {max(places.values()) + 1} asked for, {len(row)} found"
            raise CorpusError(location, problem, "give columns that every line has")
        kept = {name: row[place] for name, place in places.items()}
        yield RowText(text, bool(header) and header[index].startswith("sentence"), kept)


def _csv_rows(path: str, column: Column) -> Iterator[tuple[int, list[str]]]:
    lines = (line + "\n" for _, line in read_lines(path))
    first = next(lines, "")
    # Without a header the first line is text, which may hold any mark.
    separator = "," if str(column).isdigit() else _find_separator(first)
    reader = csv.reader(chain([first], lines), delimiter=separator, strict=True)
    started = 1
    while True:
        usual = csv.field_size_limit(MAX_LINE)  # 131,072 characters, too few for a document; it holds for all readers
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fix = "close or double the quotes; if tabs separate the columns this is tsv: say so with {format}"
            raise CorpusError(f"{path}, lines {started} to {reader.line_num}", f"broken CSV ({error})", fix) from error
        finally:
            csv.field_size_limit(usual)
        if row:
            yield started, row
        started = reader.line_num + 1


def _find_separator(header: str) -> str:
    """What separates the columns of CSV with a header: a comma; where the header has none, semicolons (spreadsheets of
    countries with decimal commas write them) or tabs, whichever are more.

    >>> [_find_separator(line) for line in ("id;comment", "id;a,comment", "id\\tcomment", "text")]
    [';', ',', '\\t', ',']
    """
    header = re.sub('"[^"]*"', "", header)
    return "," if "," in header else max(",;\t", key=header.count)


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
    return _hub_rows(address, name, config or None, split or "train", field or None if column is None else column, keep)


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


_CSV_FIX = "quote fields that hold what separates the columns"
_READERS: Mapping[str, Callable[[str, Column, Sequence[str]], Iterator[RowText]]] = {
    "jsonl": _read_json_lines,
    "csv": lambda path, column, keep: _read_separated(path, column, keep, _csv_rows(path, column), _CSV_FIX),
    "tsv": lambda path, column, keep: _read_separated(path, column, keep, _tsv_rows(path), "remove tabs inside of fields"),
    "parquet": _read_parquet,
    "hub": _read_hub,
}
