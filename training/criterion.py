"""What gates do on stored text, without labels: the criterion that training is watched by, and the rates that end it.

The criterion: do the selected tokens alone still mean the sentence, and the others not? The rates: no objective holds them
exactly, so one number per selector, which is added to the log-odds of its gates (`rate_shift`) and keeps their order, sets
its mean probability to the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from ..modeling_hardkuma import HardKumaModel
from .store import StateStore

SENTENCES = 1000  # to measure a rate on: its standard error is then far below the tolerance of any use
SENTENCES_OF_PARTS = 4000  # which may be as rare as one word in two hundred
REACH = 10.0  # how far the numbers that set the rates may move
STEPS = 12  # halvings; the last moves the rate by less than one part in a thousand


@dataclass(frozen=True)
class Quality:
    """On held-out text, with the most probable tokens (or words) of each sentence selected, at the target rate.

    sufficiency: cosine between the sentence's embedding and that of its selected tokens, re-encoded; higher is better.
    remainder: the same for the other tokens; lower is better.
    score: sufficiency - remainder, the criterion.
    rate: mean selection probability of a token (what the gates themselves would select).
    """

    sufficiency: float
    remainder: float
    score: float
    rate: float

    def as_dict(self) -> dict[str, float]:
        """Rounded, for logs."""
        return {name: round(value, 6) for name, value in asdict(self).items()}


@torch.inference_mode()
def selection_quality(
    model: HardKumaModel, store: StateStore, rows: np.ndarray, selector: int = 0, batch_size: int = 64
) -> Quality:
    """The label-free criterion of one selector, at its target rate, which is counted as the model counts it.

    Selecting at one rate for all makes states of a run comparable whose gates select more or less.

    Args:
        rows: numbers of held-out sentences in the store.
        selector: the number of the selector.
    """
    training, name = model.training, model.config.names[selector]
    rate = model.config.selector(selector).target_rate
    model.eval()
    rows = rows[np.argsort(store.lengths_of(rows), kind="stable")]  # less padding to encode
    sums, count, probability, number = [0.0, 0.0], 0, 0.0, 0
    for batch in store.batches(rows, model, batch_size):
        out = model(**batch.inputs, selector=name, rate=rate, return_embeddings=False)
        selected, content = out.gates[:, None], batch.content
        tokens = {name: batch.inputs[name] for name in ("input_ids", "attention_mask")}
        embeddings = model.encode_subsets(**tokens, kept=torch.cat([selected, 1 - selected], dim=1))
        cosine = torch.nn.functional.cosine_similarity(embeddings, out.anchor_embedding[:, None], dim=-1)
        valid = content.any(-1)
        sums[0] += float(cosine[valid, 0].sum())
        sums[1] += float(cosine[valid, 1].sum())
        count += int(valid.sum())
        probability += float(out.gate_probs.sum())
        number += int(content.sum())
    model.train(training)
    sufficiency, remainder = sums[0] / max(count, 1), sums[1] / max(count, 1)
    return Quality(sufficiency, remainder, sufficiency - remainder, probability / max(number, 1))


def mean_quality(qualities: Sequence[Quality]) -> Quality:
    """The mean of several selectors' qualities.

    >>> mean_quality([Quality(0.8, 0.4, 0.4, 0.2), Quality(0.6, 0.6, 0.0, 0.2)]).score
    0.2
    """
    rows = [list(asdict(quality).values()) for quality in qualities]
    return Quality(*(float(value) for value in np.mean(rows, axis=0)))


def calibration_rows(rows: np.ndarray, seed: int, parts: bool) -> np.ndarray:
    """The random part of these sentences that rates are measured on, in random order.

    >>> len(calibration_rows(np.arange(5000), seed=0, parts=False))
    1000
    """
    return np.random.default_rng(seed).permutation(rows)[: SENTENCES_OF_PARTS if parts else SENTENCES]


@torch.inference_mode()
def calibrate_rate(
    model: HardKumaModel, store: StateStore, rows: np.ndarray, seed: int = 0, selectors: Sequence[int] | None = None
) -> list[float]:
    """Set the mean selection probability of selectors to their target rates; returns what was added to their log-odds.

    Args:
        rows: numbers of the sentences to measure on; a random thousand of them is used, for parts four thousand.
        selectors: their numbers, all by default. Parts divide the gate of meaning: its rate must be set before theirs.
    """
    model.eval()
    head, config = model.gate_head, model.config
    chosen = list(range(config.num_selectors) if selectors is None else selectors)
    targets = torch.tensor([config.selector(k).target_rate for k in chosen], dtype=torch.float64)
    sample = np.sort(calibration_rows(rows, seed, bool(set(chosen) & set(config.parts))))
    before = head.rate_shift[chosen]
    low, high = torch.full_like(before, -REACH), torch.full_like(before, REACH)
    for _ in range(STEPS):
        middle = (low + high) / 2
        head.rate_shift[chosen] = before + middle
        too_many = (mean_rate(model, store, sample)[chosen] > targets).to(before.device)
        low, high = torch.where(too_many, low, middle), torch.where(too_many, middle, high)
    added = (low + high) / 2
    head.rate_shift[chosen] = before + added
    return added.tolist()


@torch.inference_mode()
def mean_rate(model: HardKumaModel, store: StateStore, rows: np.ndarray) -> Tensor:
    """(K,) mean selection probability of content tokens, without the surface view."""
    total, number = torch.zeros(model.config.num_selectors, dtype=torch.float64), 0
    for batch in store.batches(rows, model):
        probs = batch.by_selector(model(**batch.inputs, return_embeddings=False).gate_probs)
        total += (probs.double() * batch.content[:, None]).sum((0, 2)).cpu()
        number += int(batch.content.sum())
    return total / max(1, number)
