"""The last step of training: the selection rate, exactly.

Nothing in the removal objective or in form holds a rate, and a Lagrangian or a penalty brings it only near its target. One
number per selector sets the mean probability to the target: where gates belong to words, the log-odds that are added to all
of them (`rate_shift`), which keeps their order; else what is added to the bias of beta's output, as beta grows the
probability falls.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..gate_head_hardkuma import GateHead
from ..modeling_hardkuma import HardKumaModel
from .store import StateStore

SENTENCES = 1000  # the rate's standard error is then far below the tolerance of any use
SENTENCES_OF_KINDS = 4000  # which may be as rare as one word in two hundred
REACH = 10.0  # how far the numbers may move
STEPS = 12  # halvings; the last moves the rate by less than one part in a thousand


def calibration_rows(rows: np.ndarray, seed: int, kinds: bool) -> np.ndarray:
    """The random part of these sentences that rates are measured on, in random order.

    >>> len(calibration_rows(np.arange(5000), seed=0, kinds=False))
    1000
    """
    return np.random.default_rng(seed).permutation(rows)[: SENTENCES_OF_KINDS if kinds else SENTENCES]


@torch.inference_mode()
def calibrate_rate(model: HardKumaModel, store: StateStore, rows: np.ndarray, seed: int = 0) -> list[float]:
    """Set each selector's mean selection probability to its target rate; returns what was added.

    Args:
        rows: numbers of the sentences to measure on; a random thousand of them is used, for kinds four thousand.

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
    head, targets = model.gate_head, torch.tensor(model.config.target_rates, dtype=torch.float64)
    before = _read(head)
    added = torch.zeros_like(before)
    # Kinds divide the gate of meaning, so they come when that has its rate.
    kinds = torch.zeros_like(before, dtype=torch.bool)
    kinds[model.config.kinds] = True
    for turn, of_kinds in ((~kinds, False), (kinds, True)):
        sample = np.sort(calibration_rows(rows, seed, of_kinds))
        low, high = torch.full_like(before, -REACH), torch.full_like(before, REACH)
        for _ in range(STEPS if turn.any() else 0):
            middle = (low + high) / 2
            _write(head, before + torch.where(turn, middle, added))
            too_many = (mean_rate(model, store, sample) > targets).to(before.device)
            # More log-odds select more, a larger beta selects less.
            falls = too_many if not hasattr(head, "rate_shift") else ~too_many
            low, high = torch.where(falls, middle, low), torch.where(falls, high, middle)
        added = torch.where(turn, (low + high) / 2, added)
    _write(head, before + added)
    return added.tolist()


def _read(head: GateHead) -> Tensor:
    """(K,) the numbers that set the rates."""
    if hasattr(head, "rate_shift"):
        return head.rate_shift.clone()
    return torch.stack([bias[1] for bias in _biases(head)])


def _write(head: GateHead, values: Tensor) -> None:
    if hasattr(head, "rate_shift"):
        head.rate_shift.copy_(values)
    else:  # the second output of each selector is what beta comes from
        for bias, value in zip(_biases(head), values, strict=True):
            bias[1] = value


def _biases(head: GateHead) -> list[Tensor]:
    return [head.get_parameter(f"selectors.{k}.shapes.bias") for k in range(len(head.selectors))]


@torch.inference_mode()
def mean_rate(model: HardKumaModel, store: StateStore, rows: np.ndarray) -> Tensor:
    """(K,) mean selection probability of content tokens, without the surface view."""
    total, number = torch.zeros(model.config.num_selectors, dtype=torch.float64), 0
    for batch in store.batches(rows, model):
        probs = batch.by_selector(model(**batch.inputs, return_embeddings=False).gate_probs)
        total += (probs.double() * batch.content[:, None]).sum((0, 2)).cpu()
        number += int(batch.content.sum())
    return total / max(1, number)
