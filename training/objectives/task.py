"""The task objective, the original HardKuma: with labels, gates whose words alone tell a text's class.

    loss = -log p(y | X') + lambda_s E[#selected] + lambda_c E[#changes] + lambda_e constraint

where X' are the selected words, encoded without the others, and p is a linear classifier of their embedding. `steps` of it
are taken with sampled gates (`HardKumaForSequenceClassification`, `task_loss`); they alone train an encoder that is not
frozen.

Sampling gates through the encoder is slow, and it finds little from random weights. `warm_start` finds nearly all, with a
frozen encoder, in three fits:

1. A classifier of whole texts, of random subsets S of their words, and of what is left without S.
2. Gates whose log-odds, summed over S, tell how much of the class S holds. With m(.) the log-odds of the text's label,
   v(S) = m(S alone) - m(the text without S) is fitted as the removal objective fits its values (removal.py).
3. The classifier again, now also of the words that these gates select: it decides by rationales, so it learns from them.

The gates never see a class: neither label nor prediction is among what they read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from ...configuration_hardkuma import TASK
from ...modeling_hardkuma import HardKumaForSequenceClassification, HardKumaModel
from ..criterion import calibrate_rate
from ..store import BATCH, StateStore, TokenFile
from ..subsets import encode_jobs, random_subsets
from ..words import read_inputs, read_sentences
from .base import Objective, Report
from .removal import fit_sums
from .settings import ContrastiveSettings, TaskSettings

if TYPE_CHECKING:
    from ..run import Run

RATES = (0.1, 0.2, 0.3)  # of the words, at which the classifier learns from rationales
# What texts count for in the classifier's fit: each whole text once, and all of its subsets and rationales together.
SUBSETS, RATIONALES = 0.25, 1.0
DECAYS = (3e-5, 1e-4, 3e-4, 1e-3)  # of the classifier's weights, for embeddings of length 1; see `choose_decay`
CLASSIFIER_RATE = 30.0  # times the gates' learning rate: over embeddings of length 1 its weights must grow large
SPREAD = 0.3  # standard deviation of the values that gates are fitted to, in units of removal's


@dataclass(frozen=True)
class Outcome:
    """What happened, for the log and the card.

    Attributes:
        texts, classes: how many there were.
        subsets: how many were encoded.
        unexplained: what share of the subsets' values the sums of log-odds leave, as of removal; 1 without a warm start.
        steps: of the objective as written.
    """

    texts: int
    classes: int
    subsets: int
    unexplained: float
    steps: int


class Task(Objective[TaskSettings]):
    """Trains one selector and a classifier of texts."""

    UNITS = ("token", "word", "name")
    outcome: Outcome
    classifier: HardKumaForSequenceClassification

    def check(self, run: Run) -> None:
        super().check(run)
        config, name = run.model.config, self.selectors[0]
        if self.settings.warm_start and (config.view != "reencode" or config.frequency_filter != "none"):
            raise ValueError(
                f"selectors.{name}: warm_start encodes subsets of words: view reencode, without a frequency filter; got "
                f"view {config.view!r} and filter {config.frequency_filter!r}. Change them, or use warm_start: false."
            )
        if self.settings.warm_start and config.selectors[name].unit == "token":
            raise ValueError(f"selectors.{name}: warm_start fits gates of words, got unit 'token'; use unit: word.")
        if not self.settings.warm_start and not self.settings.steps:
            raise ValueError(f"selectors.{name}: nothing to do with warm_start: false and steps: 0.")
        if any(isinstance(settings, ContrastiveSettings) for settings in run.recipe.objectives.values()):
            raise ValueError(f"selectors.{name}: objective task cannot share a run with objective contrastive.")
        if self.numbers(config) != [config.find_selector(default=TASK)]:
            raise ValueError(
                f"selectors.{name}: a text's class is told by the words of the selector {TASK!r}, or of the first: "
                f"call it {TASK!r}, or name it first."
            )
        number, classes, column = len(run.labels), set(run.labels), f"column {run.recipe.label!r}"
        if len(classes) < 2:
            raise ValueError(f"{column} has one class, {run.labels[0]!r}: there is nothing to tell apart.")
        if len(classes) > number / 2:
            raise ValueError(f"{column} has {len(classes)} classes in {number} texts: is this the column of classes?")

    def fit(self, run: Run) -> bool:
        with run.interrupt:
            done = run.fit_on_main(self._fit, run)
        if not done:
            run.log("stopped; the same command begins again.")
        return bool(done)

    def report(self, run: Run) -> Report:
        name, outcome = self.selectors[0], self.outcome
        paragraph = (
            f"Gates of `{name}` and a classifier of {outcome.classes} classes, with labels, on {outcome.texts:,} texts: "
        )
        if self.settings.warm_start:
            paragraph += (
                f"{outcome.subsets:,} subsets of their words were encoded, and the gates' log-odds fitted so that their "
                f"sum over a subset tells how much of the class it holds (unexplained variance {outcome.unexplained:.2f}); "
                "the classifier learned from texts, subsets and the selected words. "
            )
        if outcome.steps:
            paragraph += f"{outcome.steps:,} steps of the HardKuma loss, with sampled gates. "
        entry = {"phase": "task", "selector": name, **vars(outcome)}
        if not len(run.held_out):
            return Report(paragraph, [entry])
        found = accuracies(self.classifier, run.store, run.held_out, self._numbers(run)[run.held_out], name)
        cells = " | ".join(f"{found[key]:.3f}" for key in found)
        evaluation = (
            f"Accuracy of the class on {len(run.held_out)} held-out texts, of which the classifier sees all words, those "
            "that the gates select by themselves, a fifth of the words, or the others alone.\n\n"
            f"| {' | '.join(found)} |\n|{'---:|' * len(found)}\n| {cells} |"
        )
        metrics = {f"accuracy, {seen}": value for seen, value in found.items()}
        return Report(paragraph, [{**entry, **found}], evaluation, metrics=metrics)

    def needed_rows(self, run: Run, tokens: TokenFile, rows: np.ndarray, stores_states: bool) -> np.ndarray | None:
        return None  # the classifier learns from all texts

    def _numbers(self, run: Run) -> Tensor:
        """(texts,) the class of every text, in the order of the store."""
        names = {name: number for number, name in enumerate(sorted(set(run.labels)))}
        return torch.tensor([names[label] for label in run.labels])

    def _fit(self, run: Run) -> bool:
        model, settings, seed = run.model.eval(), self.settings, run.recipe.seed
        classes = sorted(set(run.labels))
        model.config.id2label = dict(enumerate(classes))
        model.config.label2id = {name: number for number, name in enumerate(classes)}
        torch.manual_seed(seed)
        self.classifier = HardKumaForSequenceClassification(model.config, hardkuma=model).eval().to(model.device)
        self.classifier.tokenizer = model.tokenizer
        run.result, labels = self.classifier, self._numbers(run)
        run.fill_isolated_table()
        subsets, unexplained = 0, 1.0
        if settings.warm_start:
            found = self._warm_start(run, labels)
            if found is None:
                return False
            subsets, unexplained = found
        steps = self._take_steps(run, labels) if settings.steps else 0
        if settings.steps and model.config.rate_constraint != "none":
            calibrate_rate(model, run.store, run.rows, seed, self.numbers(model.config))
        self.outcome = Outcome(len(run.rows), len(classes), subsets, unexplained, steps)
        return steps == settings.steps

    # ---- the warm start ---------------------------------------------------------------------------------------------

    def _warm_start(self, run: Run, labels: Tensor) -> tuple[int, float] | None:
        """How many subsets were encoded, and their unexplained share; None if interrupted."""
        model, settings, seed = run.model, self.settings, run.recipe.seed
        (number,), name = self.numbers(model.config), self.selectors[0]
        sentences = read_sentences(run.store, run.rows, settings.sentences, seed, model)
        jobs = random_subsets(sentences.tokens, settings.subsets, seed)
        pairs = torch.zeros(len(jobs), 2, model.config.projection_dim, dtype=torch.float16)
        bar = tqdm(total=len(jobs), desc="removing words", unit="subset", disable=run.quiet)
        with bar:
            for chosen, vectors in encode_jobs(model, sentences.tokens, jobs):
                pairs[chosen] = vectors.half()
                bar.update(len(chosen))
                if run.is_interrupted():
                    return None
        of_jobs = labels[sentences.rows[[sentence for sentence, _ in jobs]]]
        whole = torch.from_numpy(np.asarray(run.store.anchors()[run.rows]))
        parts, decay = [(whole, labels[run.rows], 1.0)], choose_decay(whole, labels[run.rows])
        each = SUBSETS * len(sentences.rows) / len(jobs)
        parts += [(pairs[:, side].float(), of_jobs, each) for side in (0, 1)]
        fit_classifier(self.classifier.classifier, parts, decay)
        with torch.no_grad():
            margins = own_log_odds(self.classifier.classifier(pairs.float().to(model.device)).cpu(), of_jobs[:, None])
        values = margins[:, 0] - margins[:, 1]
        targets = values * (SPREAD / values.std().clamp_min(1e-6))
        inputs = read_inputs(model, run.store, sentences, number, not run.quiet)
        unexplained = fit_sums(
            model, number, inputs, sentences.counts, jobs, targets, settings, seed, progress=not run.quiet
        )
        calibrate_rate(model, run.store, run.rows, seed, [number])
        rationales = encode_selected(model, run.store, run.rows, name, (None, *RATES))
        share = RATIONALES / rationales.shape[1]
        parts += [(vectors, labels[run.rows], share) for vectors in rationales.unbind(1)]
        fit_classifier(self.classifier.classifier, parts, decay)
        return len(jobs), unexplained

    # ---- the objective as written -----------------------------------------------------------------------------------

    def _take_steps(self, run: Run, labels: Tensor) -> int:
        """How many steps were taken before an interruption."""
        settings, model, name = self.settings, self.classifier, self.selectors[0]
        selector = model.hardkuma.gate_head.selectors[self.numbers(model.config)[0]]
        gates, classifier = list(selector.parameters()), list(model.classifier.parameters())
        own = [*gates, *classifier]
        encoder = [p for part in (run.model.encoder, run.model.projections) for p in part.parameters() if p.requires_grad]
        groups = [{"params": gates, "lr": settings.learning_rate}]
        groups.append({"params": classifier, "lr": CLASSIFIER_RATE * settings.learning_rate})
        if encoder:
            groups.append({"params": encoder, "lr": settings.encoder_learning_rate})
        optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
        rates = [group["lr"] for group in optimizer.param_groups]
        generator = np.random.default_rng(run.recipe.seed)
        torch.manual_seed(run.recipe.seed)
        model.train()
        bar = tqdm(range(settings.steps), desc="training", unit="step", disable=run.quiet)
        done = 0
        for step in bar:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * (1 - step / settings.steps)
            rows = np.sort(generator.choice(run.rows, min(settings.batch_size, len(run.rows)), replace=False))
            batch = run.store.read(rows, run.model)
            if encoder:
                batch.inputs.pop("encoded", None)
            out = model(**batch.inputs, labels=labels[rows].to(model.device), selector=name)
            out.loss.backward()
            torch.nn.utils.clip_grad_norm_([*own, *encoder], 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            done += 1
            if step % settings.log_every == 0 or done == settings.steps:
                terms = {f"loss/{key}": float(value.detach()) for key, value in out.losses.items()}
                run.record({"step": step, "loss": float(out.loss.detach()), **terms})
            if run.is_interrupted():
                break
        model.eval()
        return done


def own_log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    """log p(y) - log(1 - p(y)) of each label, from logits (..., classes) and labels that broadcast to (...).

    >>> own_log_odds(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))
    tensor([ 2., -2.])
    """
    index = labels.expand(logits.shape[:-1])[..., None]
    others = logits.scatter(-1, index, -torch.inf).logsumexp(-1)
    return logits.gather(-1, index)[..., 0] - others


def choose_decay(vectors: Tensor, labels: Tensor) -> float:
    """The weight decay whose classifier, fitted to four fifths of these texts, tells the classes of the others best.

    Args:
        vectors, labels: embeddings (texts, dim) of whole texts, and their classes.
    """
    held_out = torch.arange(len(labels)) % 5 == 4
    layer, errors = torch.nn.Linear(vectors.shape[1], int(labels.max()) + 1), {}
    for decay in DECAYS:
        fit_classifier(layer, [(vectors[~held_out], labels[~held_out], 1.0)], decay)
        with torch.no_grad():
            errors[decay] = float(F.cross_entropy(layer(vectors[held_out].float()), labels[held_out]))
    return min(errors, key=errors.__getitem__)


def fit_classifier(layer: torch.nn.Linear, parts: Sequence[tuple[Tensor, Tensor, float]], decay: float) -> None:
    """Logistic regression, from nothing: weights and biases of a linear layer, by L-BFGS.

    Args:
        parts: embeddings (rows, dim), classes (rows,) and what each row counts for.
        decay: of the weights, times their squares, for embeddings of length 1.

    >>> layer = torch.nn.Linear(2, 2)
    >>> fit_classifier(layer, [(torch.eye(2), torch.tensor([1, 0]), 1.0)], decay=1e-4)
    >>> layer(torch.eye(2)).argmax(-1)
    tensor([1, 0])
    """
    x = torch.cat([vectors for vectors, _, _ in parts]).to(layer.weight)
    y = torch.cat([classes for _, classes, _ in parts]).to(x.device)
    counts = torch.cat([torch.full((len(vectors),), weight) for vectors, _, weight in parts]).to(x)
    length = x.norm(dim=-1).mean().clamp_min(1e-12)  # so that the decay means the same to every encoder
    x, counts = x / length, counts / counts.sum()
    weight = torch.zeros_like(layer.weight, requires_grad=True)
    bias = torch.zeros_like(layer.bias, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = (F.cross_entropy(F.linear(x, weight, bias), y, reduction="none") * counts).sum()
        value = value + decay * weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    with torch.no_grad():
        layer.weight.copy_(weight / length)
        layer.bias.copy_(bias)


@torch.no_grad()
def encode_selected(
    model: HardKumaModel,
    store: StateStore,
    rows: np.ndarray,
    selector: str,
    rates: Sequence[float | None],
    complements: Sequence[float | None] = (),
) -> Tensor:
    """(rows, rates + complements, dim) on the CPU: embeddings of the words selected at each rate, and of all other words.

    Args:
        rates, complements: fractions of the words; None is the selector's own decision.
    """
    result = torch.zeros(len(rows), len(rates) + len(complements), model.config.projection_dim)
    order = np.argsort(store.lengths_of(rows), kind="stable")  # less padding to encode
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        inputs = store.read(rows[chosen], model).inputs
        gates = {
            rate: model(**inputs, selector=selector, rate=rate, return_embeddings=False).gates
            for rate in {*rates, *complements}
        }
        kept = [*(gates[rate] for rate in rates), *(1 - gates[rate] for rate in complements)]
        tokens = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        result[chosen] = model.encode_subsets(**tokens, kept=torch.stack(kept, dim=1)).float().cpu()
    return result


def accuracies(
    classifier: HardKumaForSequenceClassification, store: StateStore, rows: np.ndarray, labels: Tensor, selector: str
) -> dict[str, float]:
    """Share of texts whose class is right, by what the classifier sees of them.

    Args:
        labels: (rows,) their classes.
    """
    # At rate 1 all words: the store's embeddings may be those of an encoder that has been trained since.
    vectors = encode_selected(classifier.hardkuma.eval(), store, rows, selector, (1.0, None, 0.2), (0.2,))
    found = classifier.classifier(vectors.to(classifier.device)).argmax(-1).cpu()
    names = ("all words", "own selection", "rationale at 0.2", "complement at 0.2")
    return dict(zip(names, (found == labels[:, None]).double().mean(0).tolist(), strict=True))
