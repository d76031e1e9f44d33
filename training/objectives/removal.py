"""The removal objective: gates whose most probable words, at any rate, keep a sentence's embedding, and lose it if removed.

Subsets S of a sentence's words are encoded (training/subsets.py), and the gates' log-odds are fitted so that their sum over
S tells what S is worth. With z_w the log-odds of word w and v(S) the value of S,

    loss = mean over subsets of (SCALE * (sum_{w in S} z_w - mean over S' ~ S) - (v(S) - mean over S' ~ S of v(S')))^2

where S' ~ S are the measured subsets of the same sentence *and* size: that a larger subset is worth more does not tell
which words to take. The sum of scores that fits random subsets best is an estimate of Shapley values. (Further rounds, with
subsets that the gates themselves would choose, brought nothing: docs/experiments.md.)

No label takes part. The encoder is frozen, so what the selector reads of each word is computed once. All processes share
the encoding of subsets; the main process fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from ...modeling_hardkuma import HardKumaModel
from ..criterion import calibrate_rate
from ..store import BATCH, TokenFile
from ..subsets import Job, ValueStore, random_subsets
from ..words import Sentences, WordInputs, choose_sentences, read_inputs, read_sentences
from .base import Objective, Report, fresh_selector, training_with_dropout
from .settings import ContrastiveSettings, RemovalSettings, TaskSettings

if TYPE_CHECKING:
    from ..run import Run

SCALE = 0.1  # what one unit of log-odds is worth: of .05, .1 and .2 the best on dev (docs/experiments.md)
INPUT_DROPOUT, HIDDEN_DROPOUT = 0.2, 0.3


@dataclass(frozen=True)
class Outcome:
    """What happened, for the log and the card.

    Attributes:
        sentences, subsets: how many were used.
        unexplained: what share of the values' variance, within a sentence and a size, the sums of log-odds leave; of the
            fitted subsets themselves, in the last pass, with dropout.
    """

    sentences: int
    subsets: int
    unexplained: float


class Removal(Objective[RemovalSettings]):
    """Fits one selector to what subsets of words are worth. The values of subsets stay on disk beside the store: a run that
    is started again does not measure them again."""

    outcome: Outcome

    def check(self, run: Run) -> None:
        super().check(run)
        trains_encoder = not run.model.config.freeze_encoder
        if trains_encoder and any(isinstance(settings, ContrastiveSettings) for settings in run.recipe.objectives.values()):
            raise ValueError(
                f"selectors.{self.selectors[0]}: objective removal needs a frozen encoder, and model.freeze_encoder: false "
                "trains it by the objective contrastive; leave one of them out."
            )

    def fit(self, run: Run) -> bool:
        model, seed = run.model.eval(), run.recipe.seed
        sentences = read_sentences(run.store, run.rows, self.settings.sentences, seed, model)
        anchors = torch.from_numpy(np.asarray(run.store.anchors()[sentences.rows]))
        jobs = random_subsets(sentences.tokens, self.settings.subsets, seed)
        with run.interrupt:
            values = ValueStore(run, sentences).measure(anchors, jobs)
        if values is None:
            run.log("stopped; the same command goes on where it was.")
            return False
        self.outcome = run.fit_on_main(self._fit, run, sentences, jobs, values[:, 0] + (1 - values[:, 1]))
        return True

    def report(self, run: Run) -> Report:
        name, outcome = self.selectors[0], self.outcome
        paragraph = (
            f"Gates of `{name}`: {outcome.subsets:,} subsets of the words of {outcome.sentences:,} sentences were encoded, "
            "and the gates' log-odds fitted so that their sum over a subset tells how much of the sentence's embedding it "
            f"keeps and how much is lost without it (unexplained variance {outcome.unexplained:.2f})."
        )
        return Report(paragraph, [{"phase": "removal", "selector": name, **vars(outcome)}])

    def needed_rows(self, run: Run, tokens: TokenFile, rows: np.ndarray, stores_states: bool) -> np.ndarray | None:
        return choose_sentences(tokens, rows, self.settings.sentences, run.recipe.seed, run.model)

    def _fit(self, run: Run, sentences: Sentences, jobs: Sequence[Job], targets: Tensor) -> Outcome:
        (number,), model = self.numbers(run.model.config), run.model
        run.fill_isolated_table()
        inputs = read_inputs(model, run.store, sentences, number, not run.quiet)
        unexplained = fit_sums(
            model, number, inputs, sentences.counts, jobs, targets, self.settings, run.recipe.seed, not run.quiet
        )
        calibrate_rate(model, run.store, run.rows, run.recipe.seed, [number])
        return Outcome(len(sentences.rows), len(jobs), unexplained)


class _SubsetTable:
    """Subsets of all sentences as padded arrays: a batch of sentences is one matrix product."""

    def __init__(self, jobs: Sequence[Job], targets: Tensor, counts: np.ndarray):
        per_sentence = np.bincount([sentence for sentence, _ in jobs], minlength=len(counts))
        slots = int(per_sentence.max())
        self.members = torch.zeros(len(counts), slots, int(counts.max()), dtype=torch.uint8)
        self.targets = torch.zeros(len(counts), slots)
        self.sizes = torch.zeros(len(counts), slots, dtype=torch.long)  # 0 marks an empty slot
        self.counts = torch.from_numpy(counts)
        filled = np.zeros(len(counts), dtype=np.int64)
        for (sentence, words), target in zip(jobs, targets.tolist(), strict=True):
            slot = filled[sentence]
            self.members[sentence, slot, words] = 1
            self.targets[sentence, slot] = target
            self.sizes[sentence, slot] = len(words)
            filled[sentence] += 1
        self.sentences = np.flatnonzero(per_sentence)

    def batch(self, numbers: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """members (batch, slots, words), targets and sizes (batch, slots), counts (batch, 1)."""
        words = int(self.counts[numbers].max())
        parts = (self.members[numbers, :, :words].float(), self.targets[numbers], self.sizes[numbers])
        members, targets, sizes = (part.to(device) for part in parts)
        return members, targets, sizes, self.counts[numbers][:, None].to(device)


def _centred(values: Tensor, sizes: Tensor) -> Tensor:
    """(batch, slots) values minus the mean of those of the same row and size; 0 in empty slots."""
    same = (sizes[:, :, None] == sizes[:, None, :]).float()
    return (values - (same @ values[..., None])[..., 0] / same.sum(-1)) * (sizes > 0)


def _drop(x: Tensor, measures: int) -> Tensor:
    """Dropout of what the selector reads, but for the measures: they are few, and reach the gate directly."""
    vectors = F.dropout(x[..., : x.shape[-1] - measures], INPUT_DROPOUT)
    return torch.cat([vectors, x[..., x.shape[-1] - measures :]], dim=-1)


def fit_sums(
    model: HardKumaModel,
    selector: int,
    inputs: WordInputs,
    counts: np.ndarray,
    jobs: Sequence[Job],
    targets: Tensor,
    settings: RemovalSettings | TaskSettings,
    seed: int,
    progress: bool,
) -> float:
    """Fit a selector, from random weights, so that sums of log-odds tell the values; returns the unexplained share.

    A word is worth less in a larger subset and in a longer sentence. How much less is a factor of its own for each sum,
    exp(a log size + b log words + c size / words), which is fitted along and then forgotten: it orders no words.
    """
    table = _SubsetTable(jobs, targets, counts)
    reader = fresh_selector(model, selector, seed)
    # The measures speak first, and from nothing: random weights would decide a short run.
    for layer in (reader.shapes, *([reader.direct] if reader.measures else [])):
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    factors = torch.nn.Parameter(torch.zeros(3, device=model.device))
    parameters = [*reader.parameters(), factors]
    rate = settings.learning_rate
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.1)
    generator = np.random.default_rng(seed)
    total, step = settings.epochs * math.ceil(len(table.sentences) / BATCH), 0
    errors, spread = 0.0, 0.0
    bar = tqdm(total=total, desc="fitting gates", unit="step", disable=not progress, leave=False)
    with training_with_dropout(reader, HIDDEN_DROPOUT), bar:
        for epoch in range(settings.epochs):
            lengths = counts[table.sentences] + 4 * generator.random(len(table.sentences))
            order = table.sentences[np.argsort(lengths, kind="stable")]
            batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
            generator.shuffle(batches)
            for numbers in batches:
                optimizer.param_groups[0]["lr"] = rate * (1 - step / total)
                members, wanted, sizes, words = table.batch(numbers, model.device)
                x = _drop(inputs.padded(numbers, counts).to(model.device), reader.measures)
                sums = SCALE * (members @ model.gate_head.log_odds(selector, x)[..., None])[..., 0]
                size = sizes.clamp_min(1)
                exponent = torch.stack([size.log(), (words.log() - 3).expand_as(wanted), size / words], dim=-1)
                difference = _centred(sums * (exponent @ factors).exp(), sizes) - _centred(wanted, sizes)
                loss = difference.square().sum() / (sizes > 0).sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                if epoch == settings.epochs - 1:
                    errors += float(difference.detach().square().sum())
                    spread += float(_centred(wanted, sizes).square().sum())
                step += 1
                bar.update()
    return errors / max(spread, 1e-12)
