"""Texts of a file exactly as they stand, one for each row: for results that must line up with their input.

`read_texts` is for training: it splits, cleans and leaves out. Here every line, record or row gives one text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ..common.formats import COLUMN_FORMATS, STANDARD_INPUT
from ..common.packages import require
from .columns import Column, RowText, read_column
from .lines import read_lines
from .readers import choose_input_format, read_texts


def read_rows(path: str | os.PathLike[str], format: str | None = None, column: Column = None) -> Iterator[str]:
    """One text a row, unchanged, in order; "" for a missing or blank value. Memory stays flat however large the file.

    Args:
        path: a file (plain or .gz), "-" for standard input, or "hf:org/name[:config][:split][:column]".
        format: one of `corpora.readers.FORMATS`; by default from the suffix.
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
        raise ValueError(f"{name}: keep={list(keep)} names columns, and the format {chosen!r} has none; leave it out.")
    if chosen in ("conll", "conllu"):
        return (RowText(text, True) for text in read_texts(name, chosen, split_sentences=False))
    if chosen == "text":
        return (RowText(line, False) for _, line in read_lines(name))
    return read_column(name, chosen, column, keep)


def count_rows(path: str | os.PathLike[str], format: str | None = None) -> int | None:
    """How many rows `read_rows` will give, where that is cheap to know (for a progress bar); None where it is not.

    Blank lines of JSON lines, which give no row, are counted.

    >>> import tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "three.txt")
    >>> _ = open(name, "w").write("One. Two.\\n\\nThree")
    >>> count_rows(name)
    3
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
