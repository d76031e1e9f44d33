"""Files that are written whole or not at all, and by one process at a time; results kept in one; a folder uploaded."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


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
    """Write a whole file at once, as `open_atomically` does."""
    with open_atomically(path, durable) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


class OutputHeld(OSError):
    """Another run is writing this output; commands end with status 2."""


@contextmanager
def hold_output(output: str | Path) -> Iterator[None]:
    """Be the only run that writes an output, a file or a folder, while the block lasts; `OutputHeld` where another one is.

    `.NAME.lock` beside the output (inside of a folder whose own folder cannot be written) says who has it: process, host,
    and since when. The system frees the lock of a process that ends, however it ends. On a disk without locks the file
    itself counts: that of a process of this host that is gone is taken over.
    """
    output = Path(os.path.abspath(output))
    output.parent.mkdir(parents=True, exist_ok=True)
    place = output.with_name(f".{output.name}.lock")
    if output.is_dir() and not os.access(output.parent, os.W_OK):
        place = output / ".lock"
    stream = _open_lock(output, place)
    try:
        stream.seek(0)
        stream.truncate()
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        stream.write(json.dumps({"process": os.getpid(), "host": socket.gethostname(), "since": since}).encode())
        stream.flush()
        yield
    finally:
        place.unlink(missing_ok=True)  # before it is free: who opened it meanwhile sees that it has no name any more
        stream.close()


def _open_lock(output: Path, place: Path) -> BinaryIO:
    patience = 100  # looks, until who has just taken it has written who it is
    while True:
        stream = os.fdopen(os.open(place, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        is_free = _lock(stream)
        holder = _holder(stream)
        if is_free is False and not holder and patience:
            stream.close()
            patience -= 1
            time.sleep(0.01)
            continue
        if is_free is None:  # nobody knows but what is written there
            is_free = not holder or (holder.get("host") == socket.gethostname() and not _is_running(holder.get("process")))
        if not is_free:
            stream.close()
            who = f"process {holder.get('process', '?')} on {holder.get('host', '?')} since {holder.get('since', '?')}"
            raise OutputHeld(
                f"{output} is being written by {who}: wait for it or end it, or write somewhere else. "
                f"(If there is no such process, remove {place}.)"
            )
        try:
            if os.path.samestat(os.fstat(stream.fileno()), place.stat()):
                return stream
        except FileNotFoundError:
            pass
        stream.close()  # the one before has just removed it: once more


def _lock(stream: BinaryIO) -> bool | None:
    """Whether this process has the file now, until it is closed; None where the disk knows no locks."""
    try:
        if sys.platform == "win32":
            stream.seek(1 << 20)  # bytes that are locked cannot be read, and others read who it is
            msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def _holder(stream: BinaryIO) -> dict[str, Any]:
    stream.seek(0)
    try:
        return dict(json.loads(stream.read(1 << 12)))
    except (ValueError, TypeError):  # it has just been made
        return {}


def _is_running(process: object) -> bool:
    if sys.platform == "win32":  # where asking would end it
        return True
    try:
        os.kill(int(str(process)), 0)
    except (ProcessLookupError, ValueError):
        return False
    except OSError:  # somebody else's
        return True
    return True


SEAL = "sealed.json"


def seal_folder(folder: Path) -> None:
    """Put all files of a folder on the disk, and write down their sizes and checksums; `check_seal` compares."""
    known = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SEAL):
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())
        known[path.relative_to(folder).as_posix()] = _checksum(path)
    write_atomically(folder / SEAL, json.dumps(known), durable=True)


def check_seal(folder: Path) -> None:
    """Raise OSError where a file of a sealed folder is missing or changed, or nobody has sealed it."""
    try:
        known = dict(json.loads((folder / SEAL).read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise OSError(f"{folder / SEAL} is damaged") from error
    for name, checksum in known.items():
        if not (folder / name).is_file() or _checksum(folder / name) != checksum:
            raise OSError(f"{folder / name} is not what was written")


def _checksum(path: Path) -> list[int]:
    size, checksum = 0, 0
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return [size, checksum]


def push_folder(folder: Path, repo: str, message: str) -> str:
    """Upload a folder as it is to a repository of the Hub, made where it is missing; the repository's full name."""
    from huggingface_hub import HfApi

    from ..checkpoint_hardkuma import name_repository

    api = HfApi()
    name = api.create_repo(repo, exist_ok=True).repo_id
    name_repository(folder, name)
    api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    return name
