"""Resumable checkpoints: safetensors and JSON, written under a temporary name, renamed when complete, pruned."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..modeling_hardkuma import HardKumaModel


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
    """Copies of all that training may change: the gate head, and the encoder unless it is frozen."""
    prefix = "gate_head." if model.config.freeze_encoder else ""
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items() if name.startswith(prefix)}


def load_trained_state(model: HardKumaModel, state: dict[str, Tensor]) -> None:
    """Put `trained_state` back; a tensor that does not belong is an error."""
    missing = model.load_state_dict(state, strict=False)
    if missing.unexpected_keys:
        raise ValueError(f"the checkpoint holds {missing.unexpected_keys[0]!r}, which this model does not have.")


def save_checkpoint(
    folder: Path,
    model: HardKumaModel,
    optimizer: torch.optim.Optimizer,
    best: dict[str, Tensor] | None,
    progress: Progress,
    keep: int,
) -> Path:
    """Write `folder/step-N` completely, then make it visible, then delete older ones."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{progress.step:08d}"
    temporary = folder / f".{target.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        save_file(trained_state(model), temporary / "model.safetensors")
        save_file(_optimizer_tensors(optimizer), temporary / "optimizer.safetensors")
        if best is not None:
            save_file(best, temporary / "best.safetensors")
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
    return target


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / "progress.json").is_file())


def load_checkpoint(
    path: Path, model: HardKumaModel, optimizer: torch.optim.Optimizer
) -> tuple[Progress, dict[str, Tensor] | None]:
    """Restore model and optimiser to the bit; returns the progress and the best state so far."""
    load_trained_state(model, load_file(path / "model.safetensors"))
    _restore_optimizer(optimizer, load_file(path / "optimizer.safetensors"))
    best = path / "best.safetensors"
    progress = Progress(**json.loads((path / "progress.json").read_text(encoding="utf-8")))
    return progress, load_file(best) if best.is_file() else None


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": value.detach().cpu().clone()
        for number, values in state.items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    whole = optimizer.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": whole["param_groups"]})
