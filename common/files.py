"""Files that are written whole or not at all, and by one process at a time; results kept in one; a folder uploaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

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


class KeptResults:
    """Results of long experiments in a file of JSON lines. A result takes the place of the one with the same keys.

    The file is read anew before it is written, so that several runs beside each other may share it.

    Args:
        path: the file; it need not exist.
        keys: fields whose values together name a result.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "results.jsonl"
    >>> results = KeptResults(path, ["arm", "seed"])
    >>> results.put({"arm": "a", "seed": 1, "average": 3.0})
    >>> results.put({"arm": "a", "seed": 0, "average": 2.0})
    >>> results.put({"arm": "a", "seed": 1, "average": 4.0})
    >>> [entry["average"] for entry in KeptResults(path, ["arm", "seed"]).entries()]
    [2.0, 4.0]
    """

    def __init__(self, path: Path, keys: Sequence[str]):
        self.path, self.keys = path, list(keys)

    def entries(self) -> list[dict[str, Any]]:
        """All results, in the order of their keys."""
        if not self.path.is_file():
            return []
        found = []
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                entry = json.loads(line)
                missing = [key for key in self.keys if key not in entry]
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"{self.path}, line {number}, is not a JSON object: {error}; mend or delete it."
                ) from error
            if missing:
                raise ValueError(f"{self.path}, line {number}, has no {', '.join(missing)}; mend or delete it.")
            found.append(entry)
        return found

    def put(self, entry: dict[str, Any]) -> None:
        """Keep a result."""
        others = [known for known in self.entries() if self._key(known) != self._key(entry)]
        ordered = sorted([*others, entry], key=lambda known: [str(part) for part in self._key(known)])
        write_atomically(self.path, "".join(json.dumps(known) + "\n" for known in ordered))

    def _key(self, entry: dict[str, Any]) -> list[Any]:
        return [entry[key] for key in self.keys]


def push_folder(folder: Path, repo: str, message: str) -> str:
    """Upload a folder as it is to a repository of the Hub, made where it is missing; the repository's full name."""
    from huggingface_hub import HfApi

    api = HfApi()
    name = api.create_repo(repo, exist_ok=True).repo_id
    api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    return name
