"""One shard: a Parquet file in, the same rows with their gates out, whole or not at all.

A worker may be killed at any moment and the shard given to another. The file appears under its name when its last row is
written, so what has a name is complete, and nothing is there twice. Until then it has a name that no other worker takes:
one that is believed dead may still be writing.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ...common.packages import require
from ...modeling_hardkuma import HardKumaModel
from .columns import Outputs, add_gates

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

ROWS = 4096  # of a shard that are in memory at a time
PARTIAL = ".partial"


@dataclass(frozen=True)
class Shard:
    """Where a file is and where its rows go; addresses are local paths or what Arrow can open (s3://, gs://, hdfs://)."""

    source: str
    target: str


def list_shards(pattern: str, output: str) -> list[Shard]:
    """The Parquet files of a pattern (`folder/*.parquet`), a folder or one file, in order; each with its place in `output`.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("b.parquet", "a.parquet", "c.txt"):
    ...     _ = (folder / name).write_bytes(b"")
    >>> [PurePosixPath(shard.target).name for shard in list_shards(f"{folder}/*.parquet", "out")]
    ['a.parquet', 'b.parquet']
    """
    fs = require("pyarrow.fs", "ray")
    system, path = open_address(pattern)
    folder, name = (
        (path, "*.parquet") if _is_folder(system, path) else (str(PurePosixPath(path).parent), PurePosixPath(path).name)
    )
    infos = system.get_file_info(fs.FileSelector(folder)) if _is_folder(system, folder) else []
    found = sorted(info.path for info in infos if info.type == fs.FileType.File and PurePosixPath(info.path).match(name))
    if not found:
        raise FileNotFoundError(
            f"{pattern}: no such file; give a folder of Parquet files, or a pattern such as 'in/*.parquet'."
        )
    target_system, target_folder = open_address(output)
    if (target_system, target_folder) == (system, folder):
        raise ValueError(f"{output} is the folder of the input: write to another one.")
    # Whole addresses: a worker need not run in the folder that this process runs in.
    return [
        Shard(_scheme(pattern) + path, f"{_scheme(output)}{target_folder}/{PurePosixPath(path).name}") for path in found
    ]


def waiting_shards(shards: Sequence[Shard], output: str) -> list[Shard]:
    """Those whose file is not there yet; one that is there is whole.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.parquet").write_bytes(b"")
    >>> shards = [Shard(f"in/{name}.parquet", f"{folder}/{name}.parquet") for name in "ab"]
    >>> [shard.source for shard in waiting_shards(shards, str(folder))]
    ['in/b.parquet']
    """
    fs = require("pyarrow.fs", "ray")
    system, folder = open_address(output)
    infos = system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    done = {PurePosixPath(info.path).name for info in infos if info.is_file}
    return [shard for shard in shards if PurePosixPath(shard.target).name not in done]


def write_shard(model: HardKumaModel, shard: Shard, outputs: Outputs) -> int:
    """Read, score and write one shard; returns its number of rows.

    >>> import tempfile, pyarrow, pyarrow.parquet
    >>> from hardkuma import load_released
    >>> folder = tempfile.mkdtemp()
    >>> pyarrow.parquet.write_table(pyarrow.table({"text": ["Rain again.", None]}), f"{folder}/in.parquet")
    >>> write_shard(load_released()[0], Shard(f"{folder}/in.parquet", f"{folder}/out.parquet"), Outputs())
    2
    >>> pyarrow.parquet.read_table(f"{folder}/out.parquet")["reason"].to_pylist()
    [None, 'the row has no text']
    """
    arrow, parquet = require("pyarrow", "ray"), require("pyarrow.parquet", "ray")
    source_system, source = open_address(shard.source)
    target_system, target = open_address(shard.target)
    target_system.create_dir(str(PurePosixPath(target).parent), recursive=True)
    partial = f"{target}.{uuid.uuid4().hex[:8]}{PARTIAL}"
    rows, writer = 0, None
    try:
        with parquet.ParquetFile(source_system.open_input_file(source)) as file:
            empty = add_gates(model, file.schema_arrow.empty_table(), outputs)  # a file without rows has columns too
            writer = parquet.ParquetWriter(partial, empty.schema, filesystem=target_system)
            for batch in file.iter_batches(batch_size=ROWS):
                table = add_gates(model, arrow.Table.from_batches([batch]), outputs)
                writer.write_table(table)
                rows += table.num_rows
            if rows != file.metadata.num_rows:
                raise OSError(f"{file.metadata.num_rows} rows are announced, {rows} were read.")
        writer.close()
        _sync(target_system, partial)
        target_system.move(partial, target)
    except BaseException:
        with suppress(Exception):  # on a full disk closing fails too, and that would hide the reason
            if writer is not None:
                writer.close()
        if target_system.get_file_info(partial).is_file:
            target_system.delete_file(partial)
        raise
    return rows


def remove_partial(output: str) -> None:
    """Remove what killed workers have left in the folder; for when nobody works in it.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("a.parquet", "b.parquet.0a1b2c3d.partial"):
    ...     _ = (folder / name).write_bytes(b"")
    >>> remove_partial(str(folder))
    >>> [path.name for path in folder.iterdir()]
    ['a.parquet']
    """
    system, folder = open_address(output)
    for info in system.get_file_info(require("pyarrow.fs", "ray").FileSelector(folder)):
        if info.path.endswith(PARTIAL):
            system.delete_file(info.path)


def _sync(system: FileSystem, path: str) -> None:
    """Wait until the file is on the disk, so that not even a power cut leaves half of it under its later name."""
    if isinstance(system, require("pyarrow.fs", "ray").LocalFileSystem):
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())


def open_address(address: str) -> tuple[FileSystem, str]:
    """The file system of an address, and the path in it."""
    fs = require("pyarrow.fs", "ray")
    if "://" in address:
        system, path = fs.FileSystem.from_uri(address)
        return system, path.rstrip("/")
    return fs.LocalFileSystem(), os.path.abspath(address)


def _scheme(address: str) -> str:
    return f"{address.split('://')[0]}://" if "://" in address else ""


def _is_folder(system: FileSystem, path: str) -> bool:
    return system.get_file_info(path).type == require("pyarrow.fs", "ray").FileType.Directory
