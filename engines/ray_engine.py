"""Gates by a Ray cluster: a dataset of one's own (`ray_gates`), or files by shards with resuming (`ray_gate_files`).

Ray finds the machines, starts a model on each worker, and starts it again where a worker dies; what is done by then stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..common.models import load_model
from ..common.packages import require
from .columns import Outputs, add_gates
from .shards import Shard, is_done, list_shards, open_address, write_shard

if TYPE_CHECKING:
    import pyarrow
    from ray.data import Dataset

SETTINGS = "settings.json"


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
        workers: how many at a time, or (fewest, most) for a cluster that grows; by default as many as it has GPUs, or CPUs.
        gpus: of each worker; by default 1 where the cluster has any.

    `ray_gates(ray.data.read_parquet("in/"), Outputs(kinds=["terms"]), workers=(1, 8)).write_parquet("out/")` is a job.
    """
    return dataset.map_batches(
        GateWorker,
        fn_constructor_args=(model, outputs or Outputs()),
        batch_format="pyarrow",
        batch_size=1024,
        **_resources(workers, gpus),
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
    workers: int | tuple[int, int] | None = None,
    gpus: float | None = None,
) -> Iterator[FileReport]:
    """Gates of Parquet files, shard by shard, into files of the same names; yields a report as each is done.

    A shard is written whole or not at all, so that one that was being worked on when its worker died is done again by
    another, and `resume` leaves out those that are there. A shard that cannot be read or written is reported; the rest is
    done.

    Args:
        pattern: a folder, or a pattern such as "in/*.parquet"; local, or an address that Arrow can open.
        output: a folder; every machine of the cluster must reach it under this name.
        resume: go on with a run that was interrupted; its settings must be these.
        model, workers, gpus: as of `ray_gates`.
    """
    ray = require("ray", "ray")
    outputs = outputs or Outputs()
    shards = list_shards(pattern, output)
    _claim(output, {"model": model, **asdict(outputs), "kinds": list(outputs.kinds)}, resume)
    waiting = [shard for shard in shards if not is_done(shard)]
    if not waiting:
        return
    from ray.data import from_items

    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = False
    # A block a shard: what a worker takes is one file, and what is lost with it is no more. Ray restarts workers.
    rows = from_items([asdict(shard) for shard in waiting], override_num_blocks=len(waiting))
    done = rows.map_batches(
        ShardWorker,
        fn_constructor_args=(model, outputs),
        batch_format="numpy",
        batch_size=1,
        **_resources(workers or min(len(waiting), _capacity(gpus)), gpus),
    )
    for row in done.iter_rows():
        yield FileReport(**row)


def _resources(workers: int | tuple[int, int] | None, gpus: float | None) -> dict[str, Any]:
    """Arguments of `map_batches`: a worker is one CPU, or one GPU where there are any."""
    number = workers or _capacity(gpus)
    fewest, most = (number, number) if isinstance(number, int) else number
    strategy = require("ray.data", "ray").ActorPoolStrategy(min_size=fewest, max_size=most)
    gpus = _gpus(gpus)
    return {"compute": strategy, "num_gpus": gpus} if gpus else {"compute": strategy, "num_cpus": 1}


def _capacity(gpus: float | None) -> int:
    """How many workers the cluster has room for."""
    resources, each = _cluster(), _gpus(gpus)
    return max(1, int(resources.get("GPU", 0) / each if each else resources.get("CPU", 1)))


def _gpus(gpus: float | None) -> float:
    return (1.0 if _cluster().get("GPU") else 0.0) if gpus is None else gpus


def _cluster() -> dict[str, float]:
    """The resources of the cluster that this process belongs to, or of this machine, which becomes one."""
    ray = require("ray", "ray")
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
            changed = next(name for name in settings if settings[name] != known.get(name))
            raise ValueError(
                f"{output}/{SETTINGS} has {changed} = {known.get(changed)!r}, not {settings[changed]!r}: go on with the "
                "same settings, or write to another folder."
            )
        return
    with system.open_output_stream(f"{path}.partial") as stream:
        stream.write(json.dumps(settings, indent=1).encode())
    system.move(f"{path}.partial", path)
