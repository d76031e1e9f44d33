"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def open_atomically(path: str | Path, durable: bool = False) -> Iterator[BinaryIO]:
    """A binary stream to a temporary file beside `path`, which takes its name when the block ends; on an error it vanishes.

    A reader never sees half a file. Folders are made.

    Args:
        path: the file to write.
        durable: wait until the bytes are on the disk before the file gets its name, so that not even a power cut leaves
            half a file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open_atomically(Path(folder) / "a.txt") as stream:
    ...         _ = stream.write(b"who")
    ...         _ = stream.write(b"le")
    ...     (Path(folder) / "a.txt").read_text()
    'whole'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as stream:
            yield stream
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: str | Path, content: str | bytes, durable: bool = False) -> None:
    """Write a whole file at once, as `open_atomically` does.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "new" / "a.txt", "whole")
    ...     [file.name for file in (Path(folder) / "new").iterdir()]
    ['a.txt']
    """
    with open_atomically(path, durable) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)
