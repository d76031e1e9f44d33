"""Steps of the contrastive objective, and the checkpoints from which they go on.

Everything random is a function of (seed, step), not of the process or of what ran before: one process and several draw the
same gates, and a resumed run continues as if it had never stopped. Checkpoints are safetensors and JSON, written under a
temporary name and renamed when complete.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..batch_hardkuma import to_device
from ..common.files import check_seal, seal_folder
from ..configuration_hardkuma import HardKumaConfig
from ..data.batches import neighbour_batches, random_batches, shard
from ..losses_hardkuma import LossRows
from ..modeling_hardkuma import HardKumaModel
from .objectives.settings import ContrastiveSettings
from .store import StateStore

KEPT = 2  # checkpoints: the newest, and one more should that be damaged
GOLDEN = 0x9E3779B97F4A7C15  # spreads neighbouring steps over the seeds
Loss = Callable[[LossRows], tuple[Tensor, dict[str, Tensor]]]


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """A seed of its own for every (seed, step, rank).

    >>> len({step_seed(s, t, r) for s in range(3) for t in range(50) for r in range(2)})
    300
    """
    return ((seed * 1_000_003 + step) * 64 + rank) * GOLDEN % (1 << 63)


def learning_rate(settings: ContrastiveSettings, step: int, total: int) -> float:
    """Warm-up from 0, then a cosine to 0, as a function of the step alone.

    >>> settings = ContrastiveSettings(learning_rate=1.0, warmup=0.5)
    >>> [round(learning_rate(settings, step, 4), 3) for step in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    warm = round(settings.warmup * total)
    if step < warm:
        return settings.learning_rate * (step + 1) / warm
    done = (step - warm) / max(1, total - warm)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


def local_batch(
    store: StateStore,
    batch: np.ndarray,
    config: HardKumaConfig,
    selectors: list[str],
    seed: int,
    step: int,
    accelerator: Accelerator,
) -> dict[str, Any]:
    """This process's share of a global batch for the gates of these selectors, with their noise, on its device."""
    generator = torch.Generator().manual_seed(step_seed(seed, step))
    longest = int(store.lengths_of(batch).max())
    noise = torch.rand(len(batch), len(selectors), longest, generator=generator)
    rank, world = accelerator.process_index, accelerator.num_processes
    inputs = store.fetch(shard(batch, rank, world), forms=config.reads("form"))
    own = shard(np.arange(len(batch)), rank, world)
    inputs["noise"] = noise[own, :, : inputs["input_ids"].shape[1]]
    return {**to_device(inputs, accelerator.device), "selector": selectors}


def prefetched(make: Callable[[int, np.ndarray], Any], batches: Iterable[np.ndarray], first: int) -> Iterator[Any]:
    """make(step, batch) for every batch, the next one made in a thread while the caller computes with this one.

    >>> list(prefetched(lambda step, batch: (step, batch), iter("ab"), first=7))
    [(7, 'a'), (8, 'b')]
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        current = None
        for step, batch in enumerate(batches, start=first):
            following = pool.submit(make, step, batch)
            if current is not None:
                yield current.result()
            current = following
        if current is not None:
            yield current.result()


def train_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: dict[str, Any],
    settings: ContrastiveSettings,
    accelerator: Accelerator,
    loss_of: Loss,
) -> tuple[Tensor, dict[str, Tensor], LossRows]:
    """Forward, backward, clip, update. Returns loss, terms and rows of this process; the first two are detached."""
    if settings.micro_batch is None or settings.micro_batch >= len(batch["input_ids"]):
        rows: LossRows = model(**batch, return_rows=True)
        loss, terms = loss_of(rows)
        accelerator.backward(loss)
    else:
        loss, terms, rows = _in_parts(model, batch, settings.micro_batch, accelerator, loss_of)
    if not bool(torch.isfinite(loss)):
        raise FloatingPointError(
            f"the loss became {loss.item()}: lower learning_rate ({settings.learning_rate:g}) or raise model.temperature, "
            "and go on from the last checkpoint with --resume."
        )
    accelerator.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], settings.clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach(), {name: value.detach() for name, value in terms.items()}, rows


def local_rate(probs: Tensor, content: Tensor) -> Tensor:
    """Mean selection probability of this process's content tokens, also of those where it is 0; 0 without any.

    `losses_hardkuma.selection_rate` asks all processes, a message that a log entry can do without.
    probs: (batch, K, length); content: (batch, length).

    >>> local_rate(torch.tensor([[[0.5, 0.0, 0.0]]]), torch.tensor([[True, True, False]]))
    tensor(0.2500)
    """
    inside = probs[content[:, None].expand_as(probs)]
    return inside.mean() if inside.numel() else probs.new_zeros(())


def _in_parts(
    model: torch.nn.Module, batch: dict[str, Any], size: int, accelerator: Accelerator, loss_of: Loss
) -> tuple[Tensor, dict[str, Tensor], LossRows]:
    """Gradients of the loss over the *whole* batch while only `size` sentences' graphs are in memory.

    First every part runs without a graph; the loss over the joined rows gives the gradient of each row; then every part
    runs again, with the same noise, and is given its rows' gradients. Plain accumulation would shrink the set of negatives.
    """
    parts = [_part(batch, start, size) for start in range(0, len(batch["input_ids"]), size)]
    device = accelerator.device
    # Dropout must fall alike in both runs, so the generators are put back after the first; a GPU has one of its own.
    with torch.no_grad(), torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        rows = LossRows.join([model(**part, return_rows=True) for part in parts])
    leaves = [value.detach().requires_grad_() for value in _differentiable(rows)]
    loss, terms = loss_of(LossRows(rows.content, *leaves))
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        with nullcontext() if last else accelerator.no_sync(model):
            outputs = _differentiable(model(**part, return_rows=True))
            own = slice(number * size, number * size + len(part["input_ids"]))
            pairs = [
                (value, gradient[own])
                for value, gradient in zip(outputs, gradients, strict=True)
                if gradient is not None and value.requires_grad
            ]
            surrogate = sum((value * gradient).sum() for value, gradient in pairs)
            accelerator.backward(surrogate)
    return loss, terms, rows


def _differentiable(rows: LossRows) -> list[Tensor]:
    return [rows.gates, rows.probs, rows.log_odds, rows.anchor, rows.rationale, rows.complement]


def _part(value: Any, start: int, size: int) -> Any:
    if isinstance(value, dict):
        return {name: _part(item, start, size) for name, item in value.items()}
    return value[start : start + size] if isinstance(value, Tensor) else value


def epoch_batches(
    settings: ContrastiveSettings, store: StateStore, rows: np.ndarray, seed: int, epoch: int, accelerator: Accelerator
) -> np.ndarray:
    """The global batches of an epoch as numbers of sentences, (batches, batch_size).

    The main process makes them for all: elsewhere, rounding could order near neighbours differently.
    """
    size = settings.batch_size
    batches = torch.zeros(len(rows) // size, size, dtype=torch.long)
    if accelerator.is_main_process and settings.batches == "random":
        batches = torch.from_numpy(rows[np.stack(random_batches(len(rows), size, seed=seed, epoch=epoch))])
    elif accelerator.is_main_process:
        batches = torch.from_numpy(np.stack(neighbour_batches(store.anchors(), size, seed=seed, epoch=epoch, rows=rows)))
    return broadcast(batches.to(accelerator.device)).cpu().numpy()


# ---- checkpoints ------------------------------------------------------------------------------------------------------


@dataclass
class Progress:
    """Where a run stands. Together with the recipe's seed this fixes everything that is still to come."""

    step: int = 0
    best_step: int = -1
    best_score: float = float("-inf")
    history: list[dict[str, Any]] = field(default_factory=list)


def trained_state(model: HardKumaModel) -> dict[str, Tensor]:
    """Copies of all that training may change: the gate head, and the encoder unless it is frozen."""
    prefix = "gate_head." if model.config.freeze_encoder else ""
    return {name: value.cpu().clone() for name, value in model.state_dict().items() if name.startswith(prefix)}


def load_trained_state(model: HardKumaModel, state: dict[str, Tensor]) -> None:
    """Put `trained_state` back; a tensor that does not belong is an error."""
    unexpected = model.load_state_dict(state, strict=False).unexpected_keys
    if unexpected:
        raise ValueError(f"the checkpoint holds {unexpected[0]!r}, which this model does not have.")


def save_checkpoint(
    folder: Path,
    model: HardKumaModel,
    optimizer: torch.optim.Optimizer,
    best: dict[str, Tensor] | None,
    progress: Progress,
) -> None:
    """Write `folder/step-N` completely, then make it visible, then delete all but the one before.

    Args:
        best: the best `trained_state` so far.
    """
    files = {"model.safetensors": trained_state(model), "optimizer.safetensors": _optimizer_tensors(optimizer)}
    if best is not None:
        files["best.safetensors"] = best
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{progress.step:08d}"
    temporary = folder / f".{target.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        for name, tensors in files.items():
            save_file(tensors, temporary / name)
        (temporary / "progress.json").write_text(json.dumps(asdict(progress)), encoding="utf-8")
        seal_folder(temporary)  # on the disk before it is visible, whatever happens to the machine
        shutil.rmtree(target, ignore_errors=True)
        os.rename(temporary, target)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(
            f"the checkpoint {target} could not be written ({error}); the last one before it is intact."
        ) from error
    for old in checkpoints(folder)[:-KEPT]:
        shutil.rmtree(old)


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / "progress.json").is_file())


def load_last_checkpoint(
    folder: Path, model: HardKumaModel, optimizer: torch.optim.Optimizer, log: Callable[[str], None]
) -> tuple[Progress, dict[str, Tensor] | None]:
    """Restore model and optimiser to the bit, from the newest checkpoint that can be read; the progress and the best state.

    Args:
        log: told of checkpoints that are damaged.
    """
    for path in reversed(checkpoints(folder)):
        try:
            progress, state, best, moments = _read_checkpoint(path)
        except (OSError, ValueError, TypeError, SafetensorError) as error:
            log(f"{path} cannot be read ({error}): trying the checkpoint before it.")
            continue
        load_trained_state(model, state)
        _restore_optimizer(optimizer, moments)
        return progress, best
    return Progress(), None


def _read_checkpoint(
    path: Path,
) -> tuple[Progress, dict[str, Tensor], dict[str, Tensor] | None, dict[str, Tensor]]:
    check_seal(path)
    progress = Progress(**json.loads((path / "progress.json").read_text(encoding="utf-8")))
    best = path / "best.safetensors"
    found = load_file(best) if best.is_file() else None
    return progress, load_file(path / "model.safetensors"), found, load_file(path / "optimizer.safetensors")


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": value.cpu()
        for number, values in state.items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def _restore_optimizer(optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in moments.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
