"""Records as bytes of a file, in parts that can be written apart and joined: text, JSON lines, HTML, Parquet."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..rendering.html import page_foot, page_head, render_record
from ..rendering.terminal import paint

FORMATS = ("text", "jsonl", "parquet", "html")
_BY_SUFFIX = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".html": "html", ".htm": "html"}

Record = dict[str, Any]


class Format(Protocol):
    """A part is the bytes of some records; joining parts in order gives the file, however the records were divided up."""

    def part(self, records: Sequence[Record]) -> bytes: ...

    def join(self, parts: Iterable[Path], target: Path) -> None: ...


class Lines:
    """Formats whose file is a head, the records one after the other, and a foot."""

    def __init__(self, format: str, title: str = "HardKuma gates", numbers: bool = False, colour: bool = False):
        self.head = page_head(title).encode() if format == "html" else b""
        self.foot = page_foot().encode() if format == "html" else b""
        self._one = {"text": self._text, "jsonl": self._json, "html": render_record}[format]
        self._dumps = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
        self.numbers, self.colour = numbers, colour

    def part(self, records: Sequence[Record]) -> bytes:
        return "".join([self._one(record) + "\n" for record in records]).encode()

    def join(self, parts: Iterable[Path], target: Path) -> None:
        with open(target, "wb") as stream:
            stream.write(self.head)
            for part in parts:
                stream.write(part.read_bytes())
            stream.write(self.foot)
            sync(stream)

    def _json(self, record: Record) -> str:
        return self._dumps(record)

    def _text(self, record: Record) -> str:
        line = paint(record, self.colour)
        if self.numbers:
            line += "\n  " + "  ".join(f"{word['word']} {word['probability']:.2f}" for word in record["words"])
        return line


class Parquet:
    """One row group a part; columns are the fields of a record."""

    def __init__(self) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ImportError("Parquet needs the package pyarrow: pip install pyarrow") from error
        self._arrow, self._parquet = pyarrow, pyarrow.parquet
        place = [("start", pyarrow.int32()), ("end", pyarrow.int32()), ("probability", pyarrow.float32())]
        word = pyarrow.struct([("word", pyarrow.string()), *place, ("selected", pyarrow.bool_())])
        span = pyarrow.struct([("text", pyarrow.string()), *place])
        self.schema = pyarrow.schema(
            [
                ("text", pyarrow.string()),
                ("words", pyarrow.list_(word)),
                ("spans", pyarrow.list_(span)),
                ("rate", pyarrow.float64()),
                ("windows", pyarrow.int32()),
            ]
        )

    def part(self, records: Sequence[Record]) -> bytes:
        sink = self._arrow.BufferOutputStream()
        table = self._arrow.Table.from_pylist(list(records), schema=self.schema)
        self._parquet.write_table(table, sink, row_group_size=max(len(records), 1))
        return sink.getvalue().to_pybytes()

    def join(self, parts: Iterable[Path], target: Path) -> None:
        with open(target, "wb") as stream:
            with self._parquet.ParquetWriter(stream, self.schema) as writer:
                for part in parts:
                    table = self._parquet.read_table(part)
                    writer.write_table(table, row_group_size=max(len(table), 1))
            sync(stream)


def choose_format(format: str | None, output: Path | None) -> str:
    """The format given, or that of the output's suffix; text for a terminal or pipe.

    >>> choose_format(None, Path("out.jsonl")), choose_format(None, None)
    ('jsonl', 'text')
    """
    if format is not None or output is None:
        chosen = format or "text"
        if chosen == "parquet" and output is None:
            raise ValueError("Parquet is written to a file: add --output FILE.parquet")
        return chosen
    if output.suffix.lower() not in _BY_SUFFIX:
        known = ", ".join(_BY_SUFFIX)
        raise ValueError(f"{output}: the suffix {output.suffix!r} names no format; use one of {known}, or add --format.")
    return _BY_SUFFIX[output.suffix.lower()]


def make_format(name: str, numbers: bool = False, colour: bool = False) -> Format:
    """The writer of a format."""
    return Parquet() if name == "parquet" else Lines(name, numbers=numbers, colour=colour)


def sync(stream: Any) -> None:
    """Bytes reach the disk before anybody counts on them."""
    stream.flush()
    os.fsync(stream.fileno())
