"""Records as bytes of a file (text, JSON lines, tables, HTML), and the file of a run that can be killed at any moment.

A block is the bytes of several records. Blocks are kept in a partial file while a run lasts; joined in order they are the
output, whose bytes depend on the records alone and not on interruptions.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..common.arrow import arrow_record, record_fields
from ..common.files import hold_output, open_atomically
from ..common.packages import require
from ..common.rendering.html import page_foot, page_head, render_record

if TYPE_CHECKING:
    from ..scoring_hardkuma import Record

FORMATS = ("text", "jsonl", "csv", "tsv", "parquet", "html")
KEEPING = ("jsonl", "csv", "tsv", "parquet")  # whose records have fields, other columns too
TABLES = {"csv": ",", "tsv": "\t"}  # what stands between their fields
RECORD_FIELDS = ("text", "words", "spans", "rate", "rates", "windows", "reason", "note", "kept", "lost")
_FORMAT_BY_SUFFIX = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".html": "html",
    ".htm": "html",
}


_LINE_ENDS = dict.fromkeys(map(ord, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " ")


class SequentialFormat:
    """Formats whose file is a head, the records one after the other, and a foot: text, JSON lines, CSV, TSV, HTML.

    >>> word = {"word": "Al", "start": 0, "end": 2, "probability": 0.9, "selected": True}
    >>> SequentialFormat("text", numbers=True).block([{"text": "Al!", "words": [word]}])
    b'[Al]!\\n  Al 0.90\\n'
    >>> SequentialFormat("csv", keep=["id"]).block([{"id": 7, "text": "Al!", "words": [word], "spans": [word]}])
    b'7,Al!,Al\\n'
    """

    def __init__(
        self, format: str, numbers: bool = False, colour: bool = False, keep: Sequence[str] = (), verified: bool = False
    ):
        self.head = page_head("HardKuma gates").encode() if format == "html" else b""
        self.foot = page_foot().encode() if format == "html" else b""
        self._keep, self._separator = list(keep), TABLES.get(format, "")
        self._columns = [*keep, "text", "words", *(["kept"] if verified else [])]
        if self._separator:
            self.head = f"{self._row(self._columns)}\n".encode()
        # Other columns may hold anything, such as dates.
        dumps = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), default=str).encode
        self._render = {"text": self._text, "jsonl": dumps, "html": self._html}.get(format, self._table)
        self.numbers, self.colour = numbers, colour

    def block(self, records: Sequence[Record]) -> bytes:
        """The records one after the other, each with a line end."""
        return "".join([self._render(record) + "\n" for record in records]).encode()

    def join(self, blocks: Iterable[bytes], stream: BinaryIO) -> None:
        """Head, blocks, foot."""
        stream.write(self.head)
        stream.writelines(blocks)
        stream.write(self.foot)

    def _table(self, record: Record) -> str:
        text = record["text"]
        words = "; ".join(text[span["start"] : span["end"]] for span in record["spans"])
        kept = record.get("kept")
        fields = {**record, "words": words, "kept": "" if kept is None else f"{kept:.4f}"}
        return self._row([_as_text(fields[name]) or "" for name in self._columns])

    def _row(self, fields: Sequence[str]) -> str:
        """Fields with what separates them; in TSV, where a row is a line, tabs and line ends of a field are spaces."""
        if self._separator == "\t":
            fields = [re.sub(r"[\t\r\n]", " ", field) for field in fields]
        line = io.StringIO()
        csv.writer(line, delimiter=self._separator).writerow(fields)
        return line.getvalue().removesuffix("\r\n")

    def _html(self, record: Record) -> str:
        if "rates" not in record:
            return render_record(record)
        from ..scoring_hardkuma import split_record

        return "\n".join(f"<h3>{name}</h3>\n{render_record(part)}" for name, part in split_record(record).items())

    def _text(self, record: Record) -> str:
        from ..scoring_hardkuma import paint, split_record

        if "rates" in record:  # of several selectors, one line each
            return "\n".join(f"{name}: {self._text(part)}" for name, part in split_record(record).items())
        # A row is a line, whatever ends lines within it (as str.splitlines knows them); offsets stay right.
        line = paint({**record, "text": record["text"].translate(_LINE_ENDS)}, self.colour)
        if "kept" in record and record["words"]:
            kept = record["kept"]
            line += "  (not verified: longer than the encoder takes)" if kept is None else f"  (keeps {kept:.2f})"
        if self.numbers:
            numbers = "  ".join(f"{word['word']} {word['probability']:.2f}" for word in record["words"])
            line += "\n  " + (numbers or f"({record.get('reason', 'no word')})")
        return line


class ParquetFormat:
    """One row group a block; columns are the fields of a record (or of one that has the gates of several selectors), and
    before them those that are kept of the input, as text: strings as they are, all else as JSON (a file's blocks must agree
    on types, and JSON lines need not)."""

    def __init__(self, keep: Sequence[str] = (), joined: bool = False) -> None:
        self._arrow, self._parquet = require("pyarrow", "parquet"), require("pyarrow.parquet", "parquet")
        arrow = self._arrow
        self._keep = list(keep)
        texts = [arrow.field(name, arrow.string()) for name in (*keep, "text")]
        self.schema = arrow.schema([*texts, *record_fields(joined)])

    def block(self, records: Sequence[Record]) -> bytes:
        """A Parquet file of its own, with one row group."""
        sink = self._arrow.BufferOutputStream()
        rows = [{**arrow_record(record), **{name: _as_text(record[name]) for name in self._keep}} for record in records]
        table = self._arrow.Table.from_pylist(rows, schema=self.schema)
        self._parquet.write_table(table, sink, row_group_size=max(len(records), 1))
        return sink.getvalue().to_pybytes()

    def join(self, blocks: Iterable[bytes], stream: BinaryIO) -> None:
        """The row groups of all blocks in one file."""
        with self._parquet.ParquetWriter(stream, self.schema) as writer:
            for block in blocks:
                table = self._parquet.read_table(self._arrow.BufferReader(block))
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


# ---- a run that can be killed at any moment -----------------------------------------------------------------------------


class PartialOutput:
    """The blocks of a run on disk, from which a killed run goes on, and the output once all are there.

        out.jsonl.partial   a line with the settings of the run; for each block a line [rows, bytes, CRC-32] and its bytes
        out.jsonl.joined    the output while it is put together
        out.jsonl           appears when it is whole; then the partial file is removed

    Every block is on the disk before the next one is begun. One that was cut short does not count, so that a kill at any
    moment, also at the end, leaves what `resume` or a new run accepts. One process at a time has the output.
    """

    _START = b'{"hardkuma gates": '

    def __init__(self, output: Path):
        if output.is_dir():
            raise IsADirectoryError(f"{output} is a folder; give a file to write.")
        if not output.parent.is_dir():
            raise FileNotFoundError(f"{output.parent} is not a folder: make it first.")
        self.output, self.path = output, output.with_name(f"{output.name}.partial")
        self.settings: dict[str, Any] | None = None

    def __enter__(self) -> PartialOutput:
        """Claim the partial file; `settings` are those of the run that it is of, None where there is none."""
        with ExitStack() as stack:
            stack.enter_context(hold_output(self.output))
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            self._stream = stack.enter_context(os.fdopen(descriptor, "r+b"))
            self._is_empty = os.fstat(descriptor).st_size == 0
            self._read_settings()
            self._held = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        with self._held:
            if self._is_empty:  # nothing to go on from
                self.path.unlink(missing_ok=True)

    def _read_settings(self) -> None:
        line = self._stream.readline()
        if not line.startswith(self._START) and not self._START.startswith(line):
            raise FileExistsError(f"{self.path} exists, but no run of this command made it: move it away.")
        if line.endswith(b"}\n"):  # else the run was stopped in its first moment
            try:
                self.settings = dict(json.loads(line)["hardkuma gates"])
            except (ValueError, TypeError):  # damaged: those of no run
                self.settings = {}

    def begin(self, settings: Mapping[str, object], resume: bool = False) -> int:
        """Start, or go on with a run of the same settings; the number of rows that are done.

        Args:
            settings: plain JSON values, all that the bytes of the output depend on.
            resume: keep the blocks of a run with these settings, an error where it has others; else they are thrown away.
        """
        if resume and self.settings is not None:
            changed = sorted(key for key in {*self.settings, *settings} if self.settings.get(key) != settings.get(key))
            if changed:
                raise ValueError(
                    f"{self.path} is of a run with other settings ({', '.join(changed)} changed): "
                    "use the same, or start again without --resume."
                )
            self._rows = sum(rows for rows, _ in self._blocks())
            self._stream.truncate(self._stream.seek(self._end))
            return self._rows
        self._is_empty, self._rows = True, 0
        self._stream.seek(0)
        self._stream.truncate()
        self._write(self._START + json.dumps(settings).encode() + b"}\n")
        return 0

    def add(self, rows: int, content: bytes) -> None:
        """Append a block of so many rows."""
        self._write(json.dumps([rows, len(content), zlib.crc32(content)]).encode() + b"\n" + content)
        self._is_empty, self._rows = False, self._rows + rows

    def finish(self, join: Callable[[Iterable[bytes], BinaryIO], None]) -> None:
        """Put the blocks together as the output, and remove them."""
        joined = self.output.with_name(f"{self.output.name}.joined")
        with open_atomically(self.output, durable=True, temporary=joined) as stream:
            join(self._contents(), stream)
        self.path.unlink()

    def _contents(self) -> Iterator[bytes]:
        count = 0
        for rows, content in self._blocks():
            count += rows
            yield content
        if count != self._rows:
            raise OSError(f"{self.path} holds {count} rows of {self._rows}: it is damaged; run again with --resume.")

    def _write(self, content: bytes) -> None:
        self._stream.write(content)
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """(rows, content) of every whole block; `_end` is where the last one ends."""
        self._stream.seek(0)
        self._end = len(self._stream.readline())
        while line := self._stream.readline():
            try:
                rows, size, checksum = json.loads(line)
            except (ValueError, TypeError):  # cut short, or garbage that a power cut has left
                return
            content = self._stream.read(size)
            if len(content) < size or zlib.crc32(content) != checksum:
                return
            self._end = self._stream.tell()
            yield rows, content
