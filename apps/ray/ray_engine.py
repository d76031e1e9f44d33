"""Gates by a Ray cluster: a dataset of one's own (`ray_gates`), or files by shards with resuming (`ray_gate_files`).

Ray finds the machines, starts a model on each worker, and starts it again where a worker dies; what is done by then stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from ...common.models import load_model
from ...common.packages import require
from .columns import Outputs, add_gates
from .shards import PARTIAL, Shard, list_shards, open_address, remove_partial, waiting_shards, write_shard

if TYPE_CHECKING:
    import pyarrow
    from ray.data import Dataset

SETTINGS = "settings.json"
PATIENCE = 24 * 3600.0


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

    `ray_gates(ray.data.read_parquet("in/"), Outputs(kinds=["terms"]), workers=(1, 8)).write_parquet("out/")` is a job.
    """
    each, room = _gpus(gpus), _capacity(gpus)
    fewest, most = _range(workers or (1, room if each else max(1, room - 1)))
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
    ray = require("ray", "ray")
    outputs = outputs or Outputs()
    shards = list_shards(pattern, output)
    kept = {"input": str(PurePosixPath(shards[0].source).parent), "model": model, **asdict(outputs)}
    _claim(output, {**kept, "kinds": list(outputs.kinds)}, resume)
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


def _range(workers: int | tuple[int, int]) -> tuple[int, int]:
    return (workers, workers) if isinstance(workers, int) else workers


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
