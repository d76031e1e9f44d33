"""Gates by a Ray cluster: a dataset of one's own (`ray_gates`), or files by shards with resuming (`ray_gate_files`).

Ray finds the machines, starts a model on each worker, and starts it again where a worker dies; what is done by then stays.

A shard is a Parquet file; the same rows come out with their gates. A worker may be killed at any moment and its shard given
to another. So the output gets its name when its last row is written: what has a name is complete, and nothing is there
twice. Until then it has a name that no other worker takes, since one that is believed dead may still be writing.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from ...common.files import hold_output
from ...common.models import load_model
from ...common.packages import require
from ...modeling_hardkuma import HardKumaModel
from .tables import Outputs, add_gates

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.fs import FileSystem
    from ray.data import Dataset

# Readers of a folder of Parquet files pass over names that begin with an underscore.
SETTINGS = "_settings.json"
PATIENCE = 24 * 3600.0
ROWS = 4096  # of a shard that are in memory at a time
PARTIAL = ".partial"


class GateWorker:
    """Holds one model and adds gates to tables; Ray makes one for each worker."""

    def __init__(self, model: str | None, outputs: Outputs) -> None:
        self.model, self.outputs = load_model(model), outputs

    def __call__(self, table: pyarrow.Table) -> pyarrow.Table:
        return add_gates(self.model, table, self.outputs)


class ShardWorker(GateWorker):
    """The same for whole files: takes rows with a shard each, gives rows with what became of it."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        results: dict[str, list[Any]] = {"source": [], "rows": [], "problem": []}
        for source, target in zip(batch["source"], batch["target"], strict=True):
            rows, problem = 0, ""
            try:
                rows = write_shard(self.model, Shard(str(source), str(target)), self.outputs)
            except Exception as error:  # the others are to be done all the same
                problem = f"{type(error).__name__}: {error}"
            for name, value in (("source", str(source)), ("rows", rows), ("problem", problem)):
                results[name].append(value)
        return results


def ray_gates(
    dataset: Dataset,
    outputs: Outputs | None = None,
    *,
    model: str | None = None,
    workers: int | tuple[int, int] | None = None,
    gpus: float | None = None,
) -> Dataset:
    """A Ray dataset with gates: its rows and columns as they are, and the columns of `outputs`.

    Args:
        dataset: with a column of texts.
        model: checkpoint folder or Hub id that every worker can read; the released gates by default.
        workers: how many at a time, or (fewest, most) for a pool that grows with what waits; by default up to as many as
            the cluster has GPUs, or CPUs but one: what feeds the workers needs one too, and would wait for it for ever.
        gpus: of each worker; by default 1 where the cluster has any.

    `ray_gates(ray.data.read_parquet("in/"), Outputs(add=["terms"]), workers=(1, 8)).write_parquet("out/")` is a job.
    """
    each, room = _gpus(gpus), _capacity(gpus)
    workers = workers or (1, room if each else max(1, room - 1))
    fewest, most = (workers, workers) if isinstance(workers, int) else workers
    if not each and fewest >= room > 1:
        raise ValueError(
            f"{fewest} workers take all {room} CPUs of the cluster, and none is left to feed them: use fewer, or a range "
            f"such as (1, {most}) on a cluster that grows."
        )
    resources = {"num_gpus": each} if each else {"num_cpus": 0 if _cluster().get("CPU") == 1 else 1}
    return dataset.map_batches(
        GateWorker,
        fn_constructor_args=(model, outputs or Outputs()),
        batch_format="pyarrow",
        batch_size=1024,
        compute=require("ray.data", "ray").ActorPoolStrategy(min_size=fewest, max_size=most),
        **resources,
    )


@dataclass(frozen=True)
class FileReport:
    """What became of a shard: its rows, or the problem that it has."""

    source: str
    rows: int
    problem: str


def ray_gate_files(
    pattern: str,
    output: str,
    outputs: Outputs | None = None,
    *,
    model: str | None = None,
    resume: bool = False,
    workers: int | None = None,
    gpus: float | None = None,
    patience: float = PATIENCE,
) -> Iterator[FileReport]:
    """Gates of Parquet files, shard by shard, into files of the same names; yields a report as each is done.

    A shard is written whole or not at all, so that one that was being worked on when its worker died is done again by
    another, and `resume` leaves out those that are there. A shard that cannot be read or written is reported; the rest is
    done.

    Args:
        pattern: a folder, or a pattern such as "in/*.parquet"; local, or an address that Arrow can open.
        output: a folder; every machine of the cluster must reach it under this name.
        resume: go on with a run that was interrupted; its settings must be these.
        workers: how many at a time; by default as many as the cluster has GPUs, or CPUs. Those beyond wait until the
            cluster grows, as one that scales by itself does for them.
        patience: seconds without a shard that is done after which the run is given up. Ray's own 30 minutes are less than
            a large shard may take.
        model, gpus: as of `ray_gates`.
    """
    fs = require("pyarrow.fs", "ray")
    system, folder = open_address(output)
    # Elsewhere (s3://) there are no locks. Shards get their names when they are whole, and all are of the same settings.
    with hold_output(folder) if isinstance(system, fs.LocalFileSystem) else nullcontext():
        yield from _gate_files(
            list_shards(pattern, output), output, outputs or Outputs(), model, resume, workers, gpus, patience
        )


def _gate_files(
    shards: Sequence[Shard],
    output: str,
    outputs: Outputs,
    model: str | None,
    resume: bool,
    workers: int | None,
    gpus: float | None,
    patience: float,
) -> Iterator[FileReport]:
    ray = require("ray", "ray")
    kept = {"input": str(PurePosixPath(shards[0].source).parent), "model": model, **asdict(outputs)}
    _claim(output, {**kept, "add": list(outputs.add)}, resume)
    remove_partial(output)
    waiting = waiting_shards(shards, output)
    if not waiting:
        return
    each, room = _gpus(gpus), _capacity(gpus)
    # A block a shard: what a worker takes is one file, and what is lost with it is no more. Ray restarts workers.
    rows = ray.data.from_items([asdict(shard) for shard in waiting], override_num_blocks=len(waiting))
    rows.context.enable_progress_bars = False
    rows.context.execution_no_progress_timeout_s = patience
    size = min(len(waiting), workers or room)
    done = rows.map_batches(
        ShardWorker,
        fn_constructor_args=(model, outputs),
        batch_format="numpy",
        batch_size=1,
        # One shard at a time: none waits behind another while a worker is idle.
        compute=ray.data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=1),
        **({"num_gpus": each} if each else {"num_cpus": 1}),
    )
    for row in done.iter_rows():
        yield FileReport(**row)
    remove_partial(output)


def _capacity(gpus: float | None) -> int:
    """How many workers the cluster has room for."""
    resources, each = _cluster(), _gpus(gpus)
    return max(1, int(resources.get("GPU", 0) / each if each else resources.get("CPU", 1)))


def _gpus(gpus: float | None) -> float:
    return (1.0 if _cluster().get("GPU") else 0.0) if gpus is None else gpus


def _cluster() -> dict[str, float]:
    """The resources of the cluster that this process belongs to, or of this machine, which becomes one."""
    ray = require("ray", "ray")
    require("ray.data", "ray")
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    return ray.cluster_resources()


def _claim(output: str, settings: dict[str, Any], resume: bool) -> None:
    """The folder belongs to one set of settings: shards of another must not stand among these."""
    fs = require("pyarrow.fs", "ray")
    system, folder = open_address(output)
    system.create_dir(folder, recursive=True)
    if not resume and system.get_file_info(fs.FileSelector(folder)):
        raise FileExistsError(f"{output} is not empty: add --resume to go on with it, or write to another folder.")
    path = f"{folder}/{SETTINGS}"
    if system.get_file_info(path).is_file:
        known = json.loads(system.open_input_file(path).read())
        if known != settings:
            changed = next(name for name in {**settings, **known} if settings.get(name) != known.get(name))
            raise ValueError(
                f"{output}/{SETTINGS} has {changed} = {known.get(changed)!r}, not {settings.get(changed)!r}: go on with "
                "the same settings, or write to another folder."
            )
        return
    with system.open_output_stream(path + PARTIAL) as stream:
        stream.write(json.dumps(settings, indent=1).encode())
    system.move(path + PARTIAL, path)


# ---- shards ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """Where a file is and where its rows go; addresses are local paths or what Arrow can open (s3://, gs://, hdfs://)."""

    source: str
    target: str


def list_shards(pattern: str, output: str) -> list[Shard]:
    """The Parquet files of a pattern (`folder/*.parquet`), a folder or one file, in order; each with its place there."""
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
    """Those whose file is not there yet; one that is there is whole."""
    fs = require("pyarrow.fs", "ray")
    system, folder = open_address(output)
    infos = system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    done = {PurePosixPath(info.path).name for info in infos if info.is_file}
    return [shard for shard in shards if PurePosixPath(shard.target).name not in done]


def write_shard(model: HardKumaModel, shard: Shard, outputs: Outputs) -> int:
    """Read, score and write one shard; returns its number of rows."""
    arrow, parquet = require("pyarrow", "ray"), require("pyarrow.parquet", "ray")
    source_system, source = open_address(shard.source)
    target_system, target = open_address(shard.target)
    target_system.create_dir(str(PurePosixPath(target).parent), recursive=True)
    name = PurePosixPath(target).name
    partial = str(PurePosixPath(target).with_name(f"_{name}.{uuid.uuid4().hex[:8]}{PARTIAL}"))
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
    """Remove what killed workers have left in the folder; for when nobody works in it."""
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
