"""Lines of a text file, plain or gzipped, read one at a time; an error names file, line, problem and fix."""

from __future__ import annotations

import gzip
import logging
import os
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from ..common.text import STANDARD_INPUT

_BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
# Bytes of a line at most: a text of this size takes gigabytes to tokenise, and a small .gz can hold a line of any size.
MAX_LINE = 1 << 25


logger = logging.getLogger(__name__)


class CorpusError(ValueError):
    """A corpus that cannot be used as it is.

    Attributes:
        location: "file, line 3", or the address of a data set.
        problem: what is wrong there, with the value.
        fix: what to do. {column}, {format} and {keep} in it are parameters of the readers. Recipes and `hardkuma train`
            call them as Python does, other commands do not: see `explain`.

    >>> error = CorpusError("a.jsonl, line 3", "no column 'text' among 'body'", "name one with {column}")
    >>> str(error)
    "a.jsonl, line 3: no column 'text' among 'body'; name one with --column (column= in Python)"
    >>> error.explain({"column": "--field"})
    "a.jsonl, line 3: no column 'text' among 'body'; name one with --field"
    """

    def __init__(self, location: str, problem: str, fix: str):
        super().__init__(location, problem, fix)  # all three, so that it can be pickled: data loader workers do
        self.location, self.problem, self.fix = location, problem, fix

    def __str__(self) -> str:
        return self.explain({})

    def explain(self, options: Mapping[str, str]) -> str:
        """The message for a caller who gives parameters by these options; by default that of the same name."""
        fix = self.fix
        for name in ("column", "format", "keep"):
            fix = fix.replace(f"{{{name}}}", options.get(name, f"--{name} ({name}= in Python)"))
        return f"{self.location}: {self.problem}; {fix}"


def check_file(path: str | os.PathLike[str]) -> Path:
    """The path, if it is a file that can be read; otherwise an error that says what to give instead.

    >>> check_file("no/such/file.txt")
    Traceback (most recent call last):
    FileNotFoundError: no/such/file.txt: no such file; give an existing file, or hf:org/name for a data set of the Hub
    """
    file = Path(path)
    if os.fspath(path) == STANDARD_INPUT:
        return file
    if file.is_dir():
        names = sorted(child.name for child in file.iterdir() if child.is_file() and child.name[0] != ".")
        inside = f"its files, such as {file / names[0]} or {file / '*'}" if names else "a file; this folder holds none"
        raise IsADirectoryError(f"{file}: this is a folder, not a file; give {inside}")
    if not file.exists():
        raise FileNotFoundError(f"{file}: no such file; give an existing file, or hf:org/name for a data set of the Hub")
    return file


def bare_suffix(path: str | os.PathLike[str]) -> str:
    """Suffix in lower case, without a final .gz.

    >>> bare_suffix("news/train.JSONL.gz"), bare_suffix("README")
    ('.jsonl', '')
    """
    file = Path(path)
    return (file.with_suffix("") if file.suffix.lower() == ".gz" else file).suffix.lower()


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    r"""(line number from 1, line without its end) of a UTF-8 file, or of standard input where the path is "-". Only \n and
    \r\n end a line; memory stays flat. A line beyond MAX_LINE bytes is named in a warning and given as an empty one.

    >>> import os, tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "two.txt")
    >>> _ = open(name, "wb").write("\ufeffé\r\n2".encode())
    >>> list(read_lines(name))
    [(1, 'é'), (2, '2')]
    """
    file = check_file(path)
    if os.fspath(path) == STANDARD_INPUT:
        yield from decoded_lines(sys.stdin.buffer, "standard input")
        return
    with gzip.open(file, "rb") if file.suffix.lower() == ".gz" else open(file, "rb") as stream:
        yield from decoded_lines(stream, file)


def decoded_lines(stream: IO[bytes] | gzip.GzipFile, name: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of an open binary stream, as `read_lines` gives them; `name` is for errors.

    >>> import io
    >>> list(decoded_lines(io.BytesIO(b"one\\r\\ntwo"), "standard input"))
    [(1, 'one'), (2, 'two')]
    """
    number = 0

    def read_piece() -> bytes:
        try:
            return stream.readline(MAX_LINE + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            fix = "download or compress the file again, or rename it if it is not gzipped"
            raise CorpusError(f"{name}, line {number + 1}", f"not a whole gzip file ({error})", fix) from error

    while raw := read_piece():
        number += 1
        if len(raw) > MAX_LINE:
            logger.warning("%s, line %d: longer than %d MB: refused, it counts as empty.", name, number, MAX_LINE >> 20)
            while raw and not raw.endswith(b"\n"):  # to its end, a piece at a time
                raw = read_piece()
            yield number, ""
            continue
        if number == 1:
            raw = raw.removeprefix(_BOM)
        yield number, _decode(raw, name, number).removesuffix("\n").removesuffix("\r")


def _decode(raw: bytes, name: str | Path, number: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        wide = number == 1 and raw.startswith(_WIDE_BOMS)
        if b"\0" in raw and not wide:  # no encoding of text that is in use has them, UTF-16 apart
            raise CorpusError(f"{name}, line {number}", "a NUL byte: this is no text", "give a text file") from error
        encoding = "utf-16" if wide else "latin-1"
        problem = f"byte {error.start + 1} of the line (0x{raw[error.start]:02x}) is not UTF-8"
        files = f" {name.name} > utf8-{name.name}" if isinstance(name, Path) else ""
        fix = f"convert it, for example with: iconv -f {encoding} -t utf-8{files}"
        raise CorpusError(f"{name}, line {number}", problem, fix) from error
