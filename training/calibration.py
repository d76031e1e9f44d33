"""The last step of training: the selection rate, exactly.

A Lagrangian or a penalty brings the rate near its target while it trains; where it ends depends on how long that was. The
selection probability falls as beta grows, so one number per selector, added to the bias of beta's output, sets the mean
probability to the target. It moves all tokens alike and costs no gradient.
"""

from __future__ import annotations

import numpy as np
import torch

from ..inputs_hardkuma import content_mask
from ..modeling_hardkuma import HardKumaModel
from .store import StateStore

SENTENCES = 1000  # the rate's standard error is then far below the tolerance of any use
STEPS = 12  # halvings; the last moves the rate by less than one part in a thousand
BATCH = 64


@torch.inference_mode()
def calibrate_rate(model: HardKumaModel, store: StateStore, rows: np.ndarray, rate: float, seed: int = 0) -> list[float]:
    """Set the mean selection probability of content tokens to `rate`; returns what was added to each selector's bias.

    Args:
        rows: numbers of the sentences to measure on; a random thousand of them is used.
    """
    model.eval()
    if len(rows) > SENTENCES:
        rows = np.sort(np.random.default_rng(seed).choice(rows, SENTENCES, replace=False))
    selectors = [selector.shapes.bias for selector in model.gate_head.selectors]
    before = torch.stack([bias[1].clone() for bias in selectors])
    low, high = torch.full_like(before, -8.0), torch.full_like(before, 8.0)
    for _ in range(STEPS):
        middle = (low + high) / 2
        _set(selectors, before + middle)
        too_many = mean_rate(model, store, rows) > rate
        low, high = torch.where(too_many, middle, low), torch.where(too_many, high, middle)
    _set(selectors, before + (low + high) / 2)
    return ((low + high) / 2).tolist()


def _set(biases: list[torch.Tensor], values: torch.Tensor) -> None:
    for bias, value in zip(biases, values, strict=True):
        bias[1] = value


@torch.inference_mode()
def mean_rate(model: HardKumaModel, store: StateStore, rows: np.ndarray) -> torch.Tensor:
    """(K,) mean selection probability of content tokens, without the surface view."""
    total, number = torch.zeros(model.config.num_selectors, dtype=torch.float64), 0
    for start in range(0, len(rows), BATCH):
        batch = store.fetch(rows[start : start + BATCH], shapes="shape" in model.config.selector_inputs)
        shapes, encoded = batch.pop("surface_ids", None), batch.pop("encoded", None)
        content = content_mask(model.config, batch["input_ids"], batch["attention_mask"], None)
        batch = {name: value.to(model.device) for name, value in batch.items()}
        if encoded is not None:
            encoded = {name: value.to(model.device) for name, value in encoded.items()}
        shapes = None if shapes is None else shapes.to(model.device)
        probs = model(**batch, surface_ids=shapes, encoded=encoded, return_embeddings=False).gate_probs
        probs = (probs if probs.ndim == 3 else probs[:, None]).double().cpu()
        total += (probs * content[:, None]).sum((0, 2))
        number += int(content.sum())
    return total / max(1, number)
