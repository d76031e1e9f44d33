"""Files that are written whole or not at all, and by one process at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def open_atomically(path: str | Path, durable: bool = False, temporary: str | Path | None = None) -> Iterator[BinaryIO]:
    """A binary stream to a temporary file beside `path`, which takes its name when the block ends; on an error it vanishes.

    A reader never sees half a file. Folders are made.

    Args:
        path: the file to write.
        durable: wait until the bytes are on the disk before the file gets its name, so that not even a power cut leaves
            half a file.
        temporary: name of the temporary file; by default a hidden one that no other process has. What a killed process
            leaves under a name that is always the same is overwritten by the next.

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
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp") if temporary is None else Path(temporary)
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


def lock_file(stream: BinaryIO) -> bool:
    """Claim an open file until it is closed, also by the end of the process; False where somebody else has it.

    Where neither the system (Windows) nor the disk knows locks, nobody has it.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as first, open(first.name, "rb") as second:
    ...     lock_file(first), lock_file(second)
    (True, False)
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a network disk without locks
        return True
    return True
