"""One optimisation step. Everything random is a function of (seed, step), not of the process or of what ran before:
one process and several draw the same gates, and a resumed run continues as if it had never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import Tensor

from ..batch_hardkuma import content_mask, to_device
from ..configuration_hardkuma import HardKumaConfig
from ..data.batches import length_bucketed_batches, neighbour_batches, random_batches, shard
from ..losses_hardkuma import LossRows
from .recipe import Recipe
from .store import StateStore

GOLDEN = 0x9E3779B97F4A7C15  # spreads neighbouring steps over the seeds


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """A seed of its own for every (seed, step, rank).

    >>> len({step_seed(s, t, r) for s in range(3) for t in range(50) for r in range(2)})
    300
    """
    return ((seed * 1_000_003 + step) * 64 + rank) * GOLDEN % (1 << 63)


def learning_rate(recipe: Recipe, step: int, total: int) -> float:
    """Warm-up from 0, then the schedule, as a function of the step alone.

    >>> recipe = Recipe(learning_rate=1.0, warmup=0.5, schedule="linear")
    >>> [learning_rate(recipe, step, 4) for step in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    warm = round(recipe.warmup * total)
    if step < warm:
        return recipe.learning_rate * (step + 1) / warm
    if recipe.schedule == "constant":
        return recipe.learning_rate
    done = (step - warm) / max(1, total - warm)
    factor = 1 - done if recipe.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return recipe.learning_rate * factor


def local_batch(
    store: StateStore, batch: np.ndarray, config: HardKumaConfig, seed: int, step: int, accelerator: Accelerator
) -> dict[str, Any]:
    """This process's share of a global batch, with the gates' noise, on its device."""
    generator = torch.Generator().manual_seed(step_seed(seed, step))
    longest = int(store.lengths_of(batch).max())
    noise = torch.rand(len(batch), config.num_selectors, longest, generator=generator)
    rank, world = accelerator.process_index, accelerator.num_processes
    inputs = store.fetch(shard(batch, rank, world), shapes=config.reads("shape"))
    own = shard(np.arange(len(batch)), rank, world)
    inputs["noise"] = noise[own, :, : inputs["input_ids"].shape[1]]
    return to_device(inputs, accelerator.device)


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
    recipe: Recipe,
    accelerator: Accelerator,
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Forward, backward, clip, update. Returns loss, terms and selection rate of this process, detached."""
    if recipe.micro_batch is None or recipe.micro_batch >= len(batch["input_ids"]):
        out = model(**batch, return_loss=True)
        accelerator.backward(out.loss)
        loss, losses, probs = out.loss, out.losses, out.gate_probs
    else:
        loss, losses, probs = _in_parts(model, batch, recipe.micro_batch, accelerator)
    if not bool(torch.isfinite(loss)):
        raise FloatingPointError(
            f"the loss became {loss.item()}: lower learning_rate ({recipe.learning_rate:g}) or raise model.temperature, "
            "and go on from the last checkpoint with --resume."
        )
    accelerator.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], recipe.clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    config = accelerator.unwrap_model(model).config
    content = content_mask(config, batch["input_ids"], batch["attention_mask"], None)
    rate = local_rate(probs.detach().reshape(len(content), -1, content.shape[1]), content)
    return loss.detach(), {name: value.detach() for name, value in losses.items()}, rate


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
    model: torch.nn.Module, batch: dict[str, Any], size: int, accelerator: Accelerator
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Gradients of the loss over the *whole* batch while only `size` sentences' graphs are in memory.

    First every part runs without a graph; the loss over the joined rows gives the gradient of each row; then every part
    runs again, with the same noise, and is given its rows' gradients. Plain accumulation would shrink the set of negatives.
    """
    base = accelerator.unwrap_model(model)
    parts = [_part(batch, start, size) for start in range(0, len(batch["input_ids"]), size)]
    device = accelerator.device
    # Dropout must fall alike in both runs, so the generators are put back after the first; a GPU has one of its own.
    with torch.no_grad(), torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        rows = LossRows.join([model(**part, return_rows=True) for part in parts])
    leaves = [value.detach().requires_grad_() for value in _differentiable(rows)]
    loss, losses = base.losses_of(LossRows(rows.content, *leaves))
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
    return loss, losses, rows.probs


def _differentiable(rows: LossRows) -> list[Tensor]:
    return [rows.gates, rows.probs, rows.log_odds, rows.anchor, rows.rationale, rows.complement]


def _part(value: Any, start: int, size: int) -> Any:
    if isinstance(value, dict):
        return {name: _part(item, start, size) for name, item in value.items()}
    return value[start : start + size]


def epoch_batches(recipe: Recipe, store: StateStore, rows: np.ndarray, epoch: int, accelerator: Accelerator) -> np.ndarray:
    """The global batches of an epoch as numbers of sentences, (batches, batch_size).

    The main process makes them for all: elsewhere, rounding could order near neighbours differently.
    """
    batches = torch.zeros(len(rows) // recipe.batch_size, recipe.batch_size, dtype=torch.long)
    if accelerator.is_main_process:
        batches = torch.from_numpy(np.stack(_make_batches(recipe, store, rows, epoch)))
    return broadcast(batches.to(accelerator.device)).cpu().numpy()


def _make_batches(recipe: Recipe, store: StateStore, rows: np.ndarray, epoch: int) -> list[np.ndarray]:
    size, seed = recipe.batch_size, recipe.seed
    if recipe.batches == "random":
        batches = random_batches(len(rows), size, seed=seed, epoch=epoch)
    elif recipe.batches == "length":
        batches = length_bucketed_batches(store.lengths[rows], size, seed=seed, epoch=epoch)
    else:
        return neighbour_batches(store.anchors(), size, seed=seed, epoch=epoch, rows=rows)
    return [rows[batch] for batch in batches]
