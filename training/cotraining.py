"""Two weak views teach each other: what the gates know about meaning, and what a word's form says.

The contrastive gates z do not know what a name is, but on plain text they select words with a capital inside a sentence
far more often than others. That picks out, without a label, the form that goes with meaning. The selector, which may be
blind to form, is then fitted to both views: its target on token i of class c is

    y_i = sigmoid(weight * z_i + certainty * form_c - offset),    form_c = +1 if log-odds_c > MARGIN else -1

so it learns from states alone which words *could* be written that way, lower-cased or at the start of a sentence too.
Classes whose form has another cause (SILENT: the first word is always capital) teach nothing. `offset` holds the mean of
y at the target rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from ..inputs_hardkuma import content_mask
from ..modeling_hardkuma import HardKumaModel
from ..surface_hardkuma import SURFACE_CLASSES, SurfaceStatistics
from .store import StateStore

SILENT = ("unknown", "initial_start", "capitals", "single_capital", "mixed", "caseless")
MARGIN = math.log(2)  # a class teaches "select" if the gates select it at twice the odds of the average token
BATCH = 64  # sentences


@dataclass(frozen=True)
class Cotraining:
    """What happened, for the log and the card.

    Attributes:
        selected: names of the classes that the gates picked out, for each selector.
        loss: of the last tenth of the steps.
    """

    selected: list[list[str]]
    loss: float


def cotrain(
    model: HardKumaModel,
    store: StateStore,
    rows: np.ndarray,
    *,
    epochs: int = 1,
    weight: float = 0.2,
    certainty: float = 3.0,
    learning_rate: float = 1e-3,
    seed: int = 0,
    say: Callable[[str], None] = print,
    progress: bool = True,
) -> Cotraining | None:
    """Fit the selectors to both views. Returns None, and changes nothing, where form says nothing about the gates.

    Args:
        rows: numbers of the sentences to learn from.
        epochs: passes over them.
        weight, certainty: of meaning and of form in the target's logit; see above.
    """
    model.eval()
    logits, form = _views(model, store, rows)
    selected = [[name for name, value in zip(SURFACE_CLASSES, row, strict=True) if value > 0] for row in form.tolist()]
    if not all(selected):
        say("co-training is left out: the gates favour no form of words in this text (has it no capital letters?).")
        return None
    heard = [weight * z + certainty * form[:, ids] for z, ids in zip(logits.values, logits.classes, strict=True)]
    offset = _offsets(heard, form, logits.classes, model.config.target_rate)
    targets = {
        int(row): (torch.sigmoid(t - offset[:, None]), form[:, ids] != 0)
        for row, t, ids in zip(logits.rows, heard, logits.classes, strict=True)
    }
    losses = _fit(model, store, rows, targets, epochs, learning_rate, seed, progress)
    return Cotraining(selected, float(np.mean(losses[-max(1, len(losses) // 10) :])))


@dataclass
class _Logits:
    """Per sentence: its number, (K, tokens) logits of its content tokens, (tokens,) classes of their words."""

    rows: list[int]
    values: list[Tensor]
    classes: list[Tensor]


@torch.inference_mode()
def _views(model: HardKumaModel, store: StateStore, rows: np.ndarray) -> tuple[_Logits, Tensor]:
    """The gates' logits on all content tokens, and form (K, classes): 1 select, -1 do not, 0 no opinion."""
    found = _Logits([], [], [])
    statistics = SurfaceStatistics(model.config.num_selectors)
    for some in _by_length(store, rows, None):
        z, classes, content = _gates(model, store, some)
        statistics.update(torch.sigmoid(z), classes, content)
        for row, number in enumerate(some):
            found.rows.append(int(number))
            found.values.append(z[row][:, content[row]].clone())
            found.classes.append(classes[row][content[row]].clone())
    log_odds = statistics.log_odds(model.config.surface_shrinkage)
    form = torch.where(log_odds > MARGIN, 1.0, -1.0)
    silent = torch.tensor([name in SILENT for name in SURFACE_CLASSES])
    return found, form.masked_fill(silent, 0.0)


def _gates(model: HardKumaModel, store: StateStore, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """(batch, K, length) logits; (batch, length) classes and content, on the CPU."""
    batch = store.fetch(rows, shapes=True)
    classes, encoded = batch.pop("surface_ids"), batch.pop("encoded", None)
    content = content_mask(model.config, batch["input_ids"], batch["attention_mask"], None)
    batch = {name: value.to(model.device) for name, value in batch.items()}
    if encoded is not None:
        encoded = {name: value.to(model.device) for name, value in encoded.items()}
    seen = classes.to(model.device) if "shape" in model.config.selector_inputs else None
    out = model(**batch, surface_ids=seen, encoded=encoded, return_embeddings=False)
    z = model.gate_distribution(out).selection_log_odds(model.config.gate_threshold)
    return (z if z.ndim == 3 else z[:, None]).cpu(), classes, content


def _by_length(store: StateStore, rows: np.ndarray, generator: np.random.Generator | None) -> Iterator[np.ndarray]:
    """Batches of like length; with a generator, other ones in another order each time."""
    lengths = store.lengths[rows].astype(np.float64)
    if generator is not None:
        lengths += 4 * generator.random(len(rows))
    order = rows[np.argsort(lengths, kind="stable")]
    batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    if generator is not None:
        generator.shuffle(batches)
    yield from batches


def _offsets(heard: list[Tensor], form: Tensor, classes: list[Tensor], rate: float | None) -> Tensor:
    """(K,) what to subtract so that mean sigmoid over the teaching tokens is the target rate; zeros without a target."""
    if rate is None:
        return torch.zeros(len(form))
    offsets = []
    for k in range(len(form)):
        t = torch.cat([row[k][form[k, ids] != 0] for row, ids in zip(heard, classes, strict=True)]).double()
        low, high = float(t.min()) - 20, float(t.max()) + 20
        for _ in range(60):  # the mean falls as the offset grows
            middle = (low + high) / 2
            low, high = (middle, high) if float(torch.sigmoid(t - middle).mean()) > rate else (low, middle)
        offsets.append((low + high) / 2)
    return torch.tensor(offsets)


def _fit(
    model: HardKumaModel,
    store: StateStore,
    rows: np.ndarray,
    targets: dict[int, tuple[Tensor, Tensor]],
    epochs: int,
    learning_rate: float,
    seed: int,
    progress: bool,
) -> list[float]:
    generator = np.random.default_rng(seed)
    # From random weights: what the contrastive gates know is in the targets, and their saturated shapes learn slowly.
    torch.manual_seed(seed)
    for module in model.gate_head.selectors.modules():
        if isinstance(module, torch.nn.Linear):
            module.reset_parameters()
    parameters = list(model.gate_head.selectors.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.01)
    total, losses = epochs * math.ceil(len(rows) / BATCH), []
    with tqdm(total=total, desc="co-training", unit="step", disable=not progress) as bar:
        for _ in range(epochs):
            for some in _by_length(store, rows, generator):
                optimizer.param_groups[0]["lr"] = learning_rate * (1 - len(losses) / total)
                with torch.enable_grad():
                    z, _, content = _gates(model, store, some)
                    wanted, taught = torch.zeros_like(z), torch.zeros_like(z, dtype=torch.bool)
                    for row, number in enumerate(some):
                        wanted[row][:, content[row]], taught[row][:, content[row]] = targets[int(number)]
                    loss = F.binary_cross_entropy_with_logits(z[taught], wanted[taught])
                    loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                losses.append(float(loss.detach()))
                bar.update()
    return losses
