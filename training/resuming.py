"""Resumable checkpoints: safetensors and JSON, written under a temporary name, renamed when complete, pruned."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..modeling_hardkuma import HardKumaModel
from .sharding import cut_like, gather_whole, join_like, local_part


@dataclass
class Progress:
    """Where a run stands. Together with the recipe's seed this fixes everything that is still to come."""

    step: int = 0
    best_step: int = -1
    best_score: float = float("-inf")
    looks_without_gain: int = 0
    stopped_early: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)


def trained_state(model: HardKumaModel) -> dict[str, Tensor]:
    """Copies of all that training may change: the gate head, and the encoder unless it is frozen. Of a sharded model, this
    process's part of it."""
    return {name: local_part(value.detach()).cpu().clone() for name, value in _trained(model).items()}


def load_trained_state(model: HardKumaModel, state: dict[str, Tensor]) -> None:
    """Put `trained_state` back; a tensor that does not belong is an error."""
    own = model.state_dict()
    unexpected = [name for name in state if name not in own]
    if unexpected:
        raise ValueError(f"the checkpoint holds {unexpected[0]!r}, which this model does not have.")
    model.load_state_dict({name: join_like(value, own[name]) for name, value in state.items()}, strict=False)


def _trained(model: HardKumaModel) -> dict[str, Tensor]:
    prefix = "gate_head." if model.config.freeze_encoder else ""
    return {name: value for name, value in model.state_dict().items() if name.startswith(prefix)}


def save_checkpoint(
    folder: Path,
    model: HardKumaModel,
    optimizer: torch.optim.Optimizer,
    best: dict[str, Tensor] | None,
    progress: Progress,
    keep: int,
    writes: bool = True,
) -> None:
    """Write `folder/step-N` completely, then make it visible, then delete older ones.

    Tensors are written whole: a sharded run can be resumed by any number of processes.

    Args:
        best: the best `trained_state` so far.
        keep: how many checkpoints stay.
        writes: false in processes that only bring their parts of a sharded model.
    """
    own = model.state_dict()
    parts = {"model": _trained(model), "optimizer": _optimizer_tensors(optimizer)}
    if best is not None:
        parts["best"] = {name: join_like(value, own[name]) for name, value in best.items()}
    files = {f"{name}.safetensors": gather_whole(tensors, keeps=writes) for name, tensors in parts.items()}
    if not writes:
        return
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{progress.step:08d}"
    temporary = folder / f".{target.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        for name, tensors in files.items():
            save_file(tensors, temporary / name)
        (temporary / "progress.json").write_text(json.dumps(asdict(progress)), encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        os.rename(temporary, target)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(
            f"the checkpoint {target} could not be written ({error}); the last one before it is intact."
        ) from error
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old)


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / "progress.json").is_file())


def load_checkpoint(
    path: Path, model: HardKumaModel, optimizer: torch.optim.Optimizer
) -> tuple[Progress, dict[str, Tensor] | None]:
    """Restore model and optimiser to the bit; returns the progress and the best state so far."""
    own, best = model.state_dict(), path / "best.safetensors"
    load_trained_state(model, _read_parts(path / "model.safetensors", own))
    _restore_optimizer(optimizer, path / "optimizer.safetensors")
    progress = Progress(**json.loads((path / "progress.json").read_text(encoding="utf-8")))
    return progress, _read_parts(best, own) if best.is_file() else None


def _read_parts(path: Path, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """This process's parts of the tensors of a file, on the CPU."""
    with safe_open(path, "pt") as file:
        whole = ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118 # it is no dict
        return {name: local_part(cut_like(value, like.get(name, value))).cpu() for name, value in whole}


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": value
        for number, values in state.items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def _restore_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    with safe_open(path, "pt") as file:
        for key in file.keys():  # noqa: SIM118 # it is no dict
            number, name = key.split(".", 1)
            value, parameter = file.get_tensor(key), parameters[int(number)]
            value = cut_like(value, parameter) if value.shape == parameter.shape else value
            state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
