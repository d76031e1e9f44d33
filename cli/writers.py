"""Records as bytes of a file, in parts that can be written apart and joined: text, JSON lines, HTML, Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from ..common.arrow import arrow_record, record_fields
from ..common.packages import require
from ..common.rendering.html import page_foot, page_head, render_record
from ..common.rendering.terminal import paint

if TYPE_CHECKING:
    from ..scoring_hardkuma import Record

FORMATS = ("text", "jsonl", "parquet", "html")
RECORD_FIELDS = ("text", "words", "spans", "rate", "rates", "windows", "reason")
_FORMAT_BY_SUFFIX = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".html": "html",
    ".htm": "html",
}


class RecordFormat(Protocol):
    """A part is the bytes of several records; joined in order the parts give the file, however the records were divided."""

    def part(self, records: Sequence[Record]) -> bytes:
        """The bytes of these records."""

    def join(self, parts: Iterable[Path], stream: BinaryIO) -> None:
        """Write the whole file from the files of its parts, in order."""


class SequentialFormat:
    """Formats whose file is a head, the records one after the other, and a foot: text, JSON lines, HTML.

    >>> word = {"word": "Al", "start": 0, "end": 2, "probability": 0.9, "selected": True}
    >>> SequentialFormat("text", numbers=True).part([{"text": "Al!", "words": [word]}])
    b'[Al]!\\n  Al 0.90\\n'
    """

    def __init__(self, format: str, numbers: bool = False, colour: bool = False):
        self.head = page_head("HardKuma gates").encode() if format == "html" else b""
        self.foot = page_foot().encode() if format == "html" else b""
        self._render = {"text": self._text, "jsonl": self._json, "html": self._html}[format]
        # Other columns may hold anything, such as dates.
        self._dumps = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), default=str).encode
        self.numbers, self.colour = numbers, colour

    def part(self, records: Sequence[Record]) -> bytes:
        """The records one after the other, each with a line end."""
        return "".join([self._render(record) + "\n" for record in records]).encode()

    def join(self, parts: Iterable[Path], stream: BinaryIO) -> None:
        """Head, parts, foot."""
        stream.write(self.head)
        for part in parts:
            stream.write(part.read_bytes())
        stream.write(self.foot)

    def _json(self, record: Record) -> str:
        return self._dumps(record)

    def _html(self, record: Record) -> str:
        if "rates" not in record:
            return render_record(record)
        from ..scoring_hardkuma import split_record

        return "\n".join(f"<h3>{name}</h3>\n{render_record(part)}" for name, part in split_record(record).items())

    def _text(self, record: Record) -> str:
        if "rates" in record:  # of several selectors, one line each
            from ..scoring_hardkuma import split_record

            return "\n".join(f"{name}: {self._text(part)}" for name, part in split_record(record).items())
        line = paint(record, self.colour)
        if self.numbers:
            numbers = "  ".join(f"{word['word']} {word['probability']:.2f}" for word in record["words"])
            line += "\n  " + (numbers or f"({record.get('reason', 'no word')})")
        return line


class ParquetFormat:
    """One row group a part; columns are the fields of a record (or of one that has the gates of several selectors), and
    before them those that are kept of the input, as text: strings as they are, all else as JSON (a file's parts must agree
    on types, and JSON lines need not)."""

    def __init__(self, keep: Sequence[str] = (), joined: bool = False) -> None:
        self._arrow, self._parquet = require("pyarrow", "parquet"), require("pyarrow.parquet", "parquet")
        arrow = self._arrow
        self._keep = list(keep)
        texts = [arrow.field(name, arrow.string()) for name in (*keep, "text")]
        self.schema = arrow.schema([*texts, *record_fields(joined)])

    def part(self, records: Sequence[Record]) -> bytes:
        """A Parquet file of its own, with one row group."""
        sink = self._arrow.BufferOutputStream()
        rows = [{**arrow_record(record), **{name: _as_text(record[name]) for name in self._keep}} for record in records]
        table = self._arrow.Table.from_pylist(rows, schema=self.schema)
        self._parquet.write_table(table, sink, row_group_size=max(len(records), 1))
        return sink.getvalue().to_pybytes()

    def join(self, parts: Iterable[Path], stream: BinaryIO) -> None:
        """The row groups of all parts in one file."""
        with self._parquet.ParquetWriter(stream, self.schema) as writer:
            for part in parts:
                table = self._parquet.read_table(part)
                writer.write_table(table, row_group_size=max(len(table), 1))


def _as_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def choose_output_format(format: str | None, output: Path | None) -> str:
    """The format given, or that of the output's suffix; text for a terminal or pipe.

    >>> choose_output_format(None, Path("out.jsonl")), choose_output_format(None, None)
    ('jsonl', 'text')
    """
    if format is not None or output is None:
        chosen = format or "text"
        if chosen == "parquet" and output is None:
            raise ValueError("Parquet is written to a file: add --output FILE.parquet")
        return chosen
    if output.suffix.lower() not in _FORMAT_BY_SUFFIX:
        known = ", ".join(_FORMAT_BY_SUFFIX)
        raise ValueError(f"{output}: the suffix {output.suffix!r} names no format; use one of {known}, or add --format.")
    return _FORMAT_BY_SUFFIX[output.suffix.lower()]


def make_format(
    name: str, numbers: bool = False, colour: bool = False, keep: Sequence[str] = (), joined: bool = False
) -> RecordFormat:
    """The writer of a format; `keep` are the columns of the input that a Parquet file has too, `joined` says that records
    have the gates of several selectors.

    >>> make_format("jsonl").part([{"text": "Hi", "words": []}])
    b'{"text":"Hi","words":[]}\\n'
    """
    return ParquetFormat(keep, joined) if name == "parquet" else SequentialFormat(name, numbers=numbers, colour=colour)
