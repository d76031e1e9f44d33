"""The last step of training: the selection rate, exactly.

A Lagrangian or a penalty brings the rate near its target while it trains; where it ends depends on how long that was. The
selection probability falls as beta grows, so one number per selector, added to the bias of beta's output, sets the mean
probability to the target. It moves all tokens alike and costs no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..modeling_hardkuma import HardKumaModel
from .store import StateStore

SENTENCES = 1000  # the rate's standard error is then far below the tolerance of any use
STEPS = 12  # halvings; the last moves the rate by less than one part in a thousand


@torch.inference_mode()
def calibrate_rate(model: HardKumaModel, store: StateStore, rows: np.ndarray, seed: int = 0) -> list[float]:
    """Set each selector's mean selection probability to its target rate; returns what was added to its bias.

    Args:
        rows: numbers of the sentences to measure on; a random thousand of them is used.

    >>> import tempfile
    >>> from hardkuma.training.store import build_store
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", target_rate=0.3).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = build_store(model, ["Rain again.", "Marie Curie moved."], folder, "float16", progress=False)
    ...     added = calibrate_rate(model, store, np.arange(2))
    ...     [round(rate, 2) for rate in mean_rate(model, store, np.arange(2)).tolist()]
    [0.3]
    """
    model.eval()
    if len(rows) > SENTENCES:
        rows = np.sort(np.random.default_rng(seed).choice(rows, SENTENCES, replace=False))
    biases = [model.gate_head.get_parameter(f"selectors.{k}.shapes.bias") for k in range(model.config.num_selectors)]
    before = torch.stack([bias[1].clone() for bias in biases])
    targets = torch.tensor(model.config.target_rates, dtype=torch.float64)
    low, high = torch.full_like(before, -8.0), torch.full_like(before, 8.0)
    for _ in range(STEPS):
        middle = (low + high) / 2
        _set_beta(biases, before + middle)
        too_many = mean_rate(model, store, rows) > targets
        low, high = torch.where(too_many, middle, low), torch.where(too_many, high, middle)
    _set_beta(biases, before + (low + high) / 2)
    return ((low + high) / 2).tolist()


def _set_beta(biases: Sequence[Tensor], values: Tensor) -> None:
    """The second output of each selector is what beta comes from."""
    for bias, value in zip(biases, values, strict=True):
        bias[1] = value


@torch.inference_mode()
def mean_rate(model: HardKumaModel, store: StateStore, rows: np.ndarray) -> Tensor:
    """(K,) mean selection probability of content tokens, without the surface view."""
    total, number = torch.zeros(model.config.num_selectors, dtype=torch.float64), 0
    for batch in store.batches(rows, model):
        probs = batch.by_selector(model(**batch.inputs, return_embeddings=False).gate_probs)
        total += (probs.double() * batch.content[:, None]).sum((0, 2)).cpu()
        number += int(batch.content.sum())
    return total / max(1, number)
