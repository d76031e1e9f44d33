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

from ..modeling_hardkuma import HardKumaModel
from ..surface_hardkuma import SURFACE_CLASSES, SurfaceStatistics
from .store import BATCH, StateStore, StoredBatch

SILENT = ("unknown", "initial_start", "capitals", "single_capital", "mixed", "caseless")
MARGIN = math.log(2)  # a class teaches "select" if the gates select it at twice the odds of the average token


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
    log: Callable[[str], None] = print,
    progress: bool = True,
) -> Cotraining | None:
    """Fit the selectors to both views. Returns None, and changes nothing, where form says nothing about the gates.

    Args:
        rows: numbers of the sentences to learn from.
        epochs: passes over them.
        weight, certainty: of meaning and of form in the target's logit; see above.

    >>> import tempfile
    >>> from hardkuma.training.store import build_store
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = build_store(model, ["Rain again.", "Marie Curie moved."], folder, "float16", progress=False)
    ...     cotrain(model, store, np.arange(2), progress=False)
    co-training is left out: the gates favour no form of words in this text (has it no capital letters?).
    """
    model.eval()
    sentences, log_odds = _read_views(model, store, rows)
    form = _opinions(log_odds)
    selected = [[name for name, value in zip(SURFACE_CLASSES, row, strict=True) if value > 0] for row in form.tolist()]
    if not all(selected):
        log("co-training is left out: the gates favour no form of words in this text (has it no capital letters?).")
        return None
    views = {row: weight * view.logits + certainty * form[:, view.classes] for row, view in sentences.items()}
    taught = {row: form[:, view.classes] != 0 for row, view in sentences.items()}
    offset = _offsets(list(views.values()), list(taught.values()), model.config.target_rate)
    targets = {row: (torch.sigmoid(view - offset[:, None]), taught[row]) for row, view in views.items()}
    losses = _fit(model, store, rows, targets, epochs, learning_rate, seed, progress)
    return Cotraining(selected, float(np.mean(losses[-max(1, len(losses) // 10) :])))


@dataclass(frozen=True)
class _Views:
    """Both views of one sentence's content tokens: (K, tokens) logits of the gates, (tokens,) classes of their words."""

    logits: Tensor
    classes: Tensor


@torch.inference_mode()
def _read_views(model: HardKumaModel, store: StateStore, rows: np.ndarray) -> tuple[dict[int, _Views], Tensor]:
    """Both views of every sentence by its number, and (K, classes) log-odds of the gates given a word's class."""
    sentences: dict[int, _Views] = {}
    statistics = SurfaceStatistics(model.config.num_selectors)
    for numbers in _by_length(store, rows, None):
        batch = store.read(numbers, model)
        logits = _gate_logits(model, batch)
        classes, content = batch.shapes.cpu(), batch.content.cpu()
        statistics.update(torch.sigmoid(logits), classes, content)
        for position, row in enumerate(numbers.tolist()):
            inside = content[position]
            sentences[row] = _Views(logits[position][:, inside].clone(), classes[position][inside].clone())
    return sentences, statistics.log_odds(model.config.surface_shrinkage)


def _opinions(log_odds: Tensor) -> Tensor:
    """What form says of each class, (K, classes): 1 select, -1 do not, 0 nothing."""
    form = torch.where(log_odds > MARGIN, 1.0, -1.0)
    return form.masked_fill(torch.tensor([name in SILENT for name in SURFACE_CLASSES]), 0.0)


def _gate_logits(model: HardKumaModel, batch: StoredBatch) -> Tensor:
    """(batch, K, length) log-odds of selection, on the CPU."""
    out = model(**batch.inputs, return_embeddings=False)
    log_odds = model.gate_distribution(out).selection_log_odds(model.config.gate_threshold)
    return batch.by_selector(log_odds).cpu()


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


def _offsets(views: list[Tensor], taught: list[Tensor], rate: float) -> Tensor:
    """(K,) what to subtract so that mean sigmoid over the teaching tokens is the target rate.

    views, taught: (K, tokens) of each sentence.
    """
    offsets = []
    for k in range(len(views[0])):
        values = torch.cat([view[k][teaches[k]] for view, teaches in zip(views, taught, strict=True)]).double()
        low, high = float(values.min()) - 20, float(values.max()) + 20
        for _ in range(60):  # the mean falls as the offset grows
            middle = (low + high) / 2
            low, high = (middle, high) if float(torch.sigmoid(values - middle).mean()) > rate else (low, middle)
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
    total = epochs * math.ceil(len(rows) / BATCH)
    losses: list[float] = []
    with tqdm(total=total, desc="co-training", unit="step", disable=not progress) as bar:
        for _ in range(epochs):
            for numbers in _by_length(store, rows, generator):
                optimizer.param_groups[0]["lr"] = learning_rate * (1 - len(losses) / total)
                batch = store.read(numbers, model)
                content = batch.content.cpu()
                with torch.enable_grad():
                    logits = _gate_logits(model, batch)
                    wanted, taught = torch.zeros_like(logits), torch.zeros_like(logits, dtype=torch.bool)
                    for position, row in enumerate(numbers.tolist()):
                        inside = content[position]
                        wanted[position][:, inside], taught[position][:, inside] = targets[row]
                    loss = F.binary_cross_entropy_with_logits(logits[taught], wanted[taught])
                    loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                losses.append(float(loss.detach()))
                bar.update()
    return losses
