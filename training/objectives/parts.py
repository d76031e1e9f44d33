"""The objective `parts`: K selectors that divide the words of a sentence among themselves, found without labels.

A part of the vocabulary is what a word and its context each tell: "the _ of" asks for a noun, and "bridge" is one. So every
selector k has two views of a word w, and two log-odds: l_k, the gate's own, from the word itself, and c_k from its two
neighbours on each side without the word (by a reader that is fitted along and then forgotten). With the gates' odds,

    p(k|w) = exp(l_k) / sum_j exp(l_j)      that gate k opens, given that exactly one opens; q(k|w) the same from c
    m(w)                                    how probably the selector of meaning selects w, at the sum R of all K rates
    p(k)   = mean of m(w)^2 p(k|w) / mean of m(w)^2

the loss is the sum of four terms, of which the first two are means over words, weighed by m^2 (with m, adjectives and verbs
were one part: docs/experiments.md):

    information     -(mutual information of selector and word) = KL(p(k) || rate_k / R) + mean entropy of p(.|w)
    agreement       the symmetric KL of the two views, (KL(p || q) + KL(q || p)) / 2
    coverage        the symmetric KL between the gate of meaning and the odds that any gate opens, sum_k exp(l_k)
    decorrelation   mean over pairs of selectors of max(0, correlation of l_j and l_k over words)^2

The first makes selectors differ. The second makes the views agree on what word and context share, which is neither a topic
nor a spelling. The third keeps the level of the log-odds near that of meaning. Without the fourth, a word that surely
belongs to one selector would be low for all others, and those would correlate. At first `agreement` weighs three times as
much as the others, and from half of the steps on as much as they do.

The gate of a part is its share of the gate of meaning, p(meaning selects w) p(k|w), whose selector reads the whole
sentence: so all parts together select what `meaning` does; `coverage` alone did not bring that about (docs/experiments.md).

Rates: a list of target rates gives each selector its own, and p(k) is drawn to it. A single number is the mean over
selectors: each gets the share of the sum that falls to it by the log-odds l, and that becomes its own target rate, in the
config. The encoder is frozen, and what is read of words is computed once.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from ...evaluation.corpora import read_corpus
from ...evaluation.parts import PARTS_OF_SPEECH, draw_shares, measure_parts
from ...modeling_hardkuma import HardKumaModel
from ...scoring_hardkuma import ALL
from ..criterion import calibrate_rate
from ..store import StateStore, StoredBatch, TokenFile
from ..words import Sentences, choose_sentences, read_inputs, read_sentences, read_words
from .base import Objective, Report, fresh_selector, training_with_dropout
from .settings import PartsSettings

if TYPE_CHECKING:
    from ..run import Run

SENTENCES = 6000  # to learn from, a random choice
NEIGHBOURS = 2  # on each side
CONTEXT_WIDTH = 128  # of the hidden layer of the reader of contexts
WORDS = 512  # of a step
DROPOUT = 0.1
CLIP = 1.0  # largest norm of the gradient
# What is added to the weight 1 of `agreement` at the start, falling to 0 at half of the steps: selectors that differ before
# the views agree end with parts that context does not know, such as two of nouns and none of adjectives.
EAGERNESS = 2.0
FOCUS = 2  # power of m(w) by which words are weighed: content words are to be divided first
EXAMPLES = 2000  # texts by whose words the selectors are named
NAME_CANDIDATES = 12  # typical words that a name may be made of
PICTURE = "parts.png"
# Inputs that know a word's neighbours: with them a view of the word would be a view of its context too.
CONTEXTUAL = ("state", "norm", "attention", "anchor")


@dataclass(frozen=True)
class Outcome:
    """What happened, for the log.

    Attributes:
        words: how many there were to divide.
        terms: the terms of the loss, by name, over the last tenth of the steps.
    """

    words: int
    terms: dict[str, float]


class Parts(Objective[PartsSettings]):
    """Fits several selectors that divide the words which the selector of meaning selects."""

    UNITS = ("part",)
    outcome: Outcome

    def check(self, run: Run) -> None:
        super().check(run)
        config = run.model.config
        contextual = [name for name in config.selectors[self.selectors[0]].reads if name in CONTEXTUAL]
        if contextual:
            raise ValueError(
                f"selectors of objective parts read {contextual[0]!r}, which knows a word's neighbours; use 'input', and "
                "'pool_share', 'leave_one_out', 'isolated' or 'form' if you like."
            )

    def fit(self, run: Run) -> bool:
        self.outcome, self.selectors = run.fit_on_main(self._fit, run)
        return True

    def report(self, run: Run) -> Report:
        """With a table of the parts, on the development file if that has parts of speech, or else on training text."""
        sentences = [] if run.recipe.dev is None else read_corpus(run.recipe.dev).sentences
        tagged = bool(sentences) and {tag for sentence in sentences for tag in sentence.tags} <= PARTS_OF_SPEECH
        found = measure_parts(run.model, sentences if tagged else self._examples(run))
        plots = [PICTURE] if tagged else []
        if tagged:
            draw_shares(found, run.output / PICTURE)
        meaning = run.model.config.names[run.model.config.find_selector()]
        paragraph = (
            f"Gates of {', '.join(f'`{name}`' for name in self.selectors)}: they divide the words that `{meaning}` selects "
            "among themselves. Each sees a word as itself and as a gap between its neighbours; the two views are made to "
            "agree and the selectors to differ. No label takes part: their names are their most typical words, unless "
            "somebody gave others."
        )
        where = "the development file, whose tags took no part in training" if tagged else "some training text"
        entry = {"phase": "parts", "words": self.outcome.words, **self.outcome.terms}
        return Report(paragraph, [entry], f"Parts, on {where}:\n\n{found.describe()}", plots)

    def needed_rows(self, run: Run, tokens: TokenFile, rows: np.ndarray, stores_states: bool) -> np.ndarray | None:
        return choose_sentences(tokens, rows, SENTENCES, run.recipe.seed, run.model) if stores_states else rows[:0]

    def _fit(self, run: Run) -> tuple[Outcome, list[str]]:
        model, seed, numbers = run.model, run.recipe.seed, self.numbers(run.model.config)
        run.fill_isolated_table()
        sentences = read_sentences(run.store, run.rows, SENTENCES, seed, model)
        outcome = fit_parts(model, numbers, run.store, sentences, self.settings, seed, not run.quiet)
        calibrate_rate(model, run.store, run.rows, seed, numbers)
        if self.settings.names is None:
            name_parts(model, numbers, self._examples(run))
        return outcome, [model.config.names[number] for number in numbers]

    def _examples(self, run: Run) -> list[str]:
        sample = np.random.default_rng(run.recipe.seed).permutation(run.rows)[:EXAMPLES]
        return [run.texts[row] for row in sample]


class Terms(NamedTuple):
    """The terms of the loss, () each; see above."""

    information: Tensor
    agreement: Tensor
    coverage: Tensor
    decorrelation: Tensor


def division_terms(log_odds: Tensor, context: Tensor, meaning: Tensor, rates: Tensor) -> Terms:
    """The terms of the loss.

    Args:
        log_odds, context: (words, K) of the gates, and of the view of the context.
        meaning: (words,) log-odds of the selector of meaning, at the sum of all rates.
        rates: (K,) target rates.

    >>> apart, alike = 9 * torch.eye(2), torch.zeros(2, 2)
    >>> none, half = torch.zeros(2), torch.tensor([0.5, 0.5])
    >>> [round(float(division_terms(odds, odds, none, half).information), 2) for odds in (apart, alike)]
    [0.0, 0.69]
    """
    weights = torch.sigmoid(meaning) ** FOCUS
    weights = weights / weights.sum()
    own, other = log_odds.log_softmax(-1), context.log_softmax(-1)
    share = weights @ own.exp()
    target = rates / rates.sum()
    information = (share * (share.clamp_min(1e-9) / target).log()).sum() - weights @ (own.exp() * own).sum(-1)
    agreement = weights @ ((own.exp() - other.exp()) * (own - other)).sum(-1) / 2
    union = log_odds.logsumexp(-1)
    coverage = ((torch.sigmoid(union) - torch.sigmoid(meaning)) * (union - meaning)).mean() / 2
    ties = torch.corrcoef(log_odds.T)
    pairs = torch.triu_indices(len(ties), len(ties), offset=1, device=ties.device)
    decorrelation = ties[pairs[0], pairs[1]].clamp_min(0.0).square().mean()
    return Terms(information, agreement, coverage, decorrelation)


def fit_parts(
    model: HardKumaModel,
    selectors: Sequence[int],
    store: StateStore,
    sentences: Sentences,
    settings: PartsSettings,
    seed: int,
    progress: bool,
) -> Outcome:
    """Fit selectors, from random weights, so that they divide the words among themselves.

    Args:
        selectors: their numbers; the model's selector of meaning is fitted already.
    """
    model.eval()
    readers = [fresh_selector(model, number, seed * len(model.gate_head.selectors) + number) for number in selectors]
    x = read_inputs(model, store, sentences, selectors[0], progress).x
    for reader in readers[1:]:
        if reader.measures:
            reader.center.copy_(readers[0].center)
            reader.spread.copy_(readers[0].spread)
    rates = torch.tensor([model.config.selector(k).target_rate for k in selectors], device=model.device)
    meaning = _at_rate(_meaning(model, store, sentences, progress), float(rates.sum()))
    around = _Neighbours(x[:, : x.shape[1] - readers[0].measures], sentences.counts)
    torch.manual_seed(seed)
    context = nn.Sequential(
        nn.Linear(around.size, CONTEXT_WIDTH), nn.GELU(), nn.Dropout(DROPOUT), nn.Linear(CONTEXT_WIDTH, len(readers))
    ).to(model.device)
    parameters = [parameter for part in (*readers, context) for parameter in part.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=settings.learning_rate, weight_decay=0.01)
    generator = np.random.default_rng(seed)
    history: list[Terms] = []
    steps = tqdm(range(settings.steps), desc="dividing words", unit="step", disable=not progress, leave=False)
    with ExitStack() as stack:
        for reader in readers:
            stack.enter_context(training_with_dropout(reader, DROPOUT))
        for step in steps:
            optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - step / settings.steps)
            words = torch.from_numpy(generator.integers(0, len(x), WORDS))
            own = x[words].float().to(model.device)
            log_odds = torch.stack([model.gate_head.log_odds(number, own) for number in selectors], dim=-1)
            seen = context(around.read(words).to(model.device))
            terms = division_terms(log_odds, seen, meaning[words].to(model.device), rates)
            eagerness = EAGERNESS * max(0.0, 1 - 2 * step / settings.steps)
            (torch.stack(terms).sum() + eagerness * terms.agreement).backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            history.append(Terms(*(term.detach() for term in terms)))
    _keep_rates(model, selectors, x, float(rates.sum()))
    last = history[-max(1, len(history) // 10) :]
    means = torch.stack([torch.stack(terms) for terms in last]).mean(0).tolist()
    return Outcome(len(x), dict(zip(Terms._fields, means, strict=True)))


@torch.inference_mode()
def _keep_rates(model: HardKumaModel, selectors: Sequence[int], x: Tensor, total: float) -> None:
    """Where selectors were given one target rate, that of each becomes the share of their sum that falls to it."""
    configs = [model.config.selector(number) for number in selectors]
    if len({config.target_rate for config in configs}) > 1:
        return
    sample = x[:: max(1, len(x) // 20000)].float().to(model.device)
    means = [float(torch.sigmoid(model.gate_head.log_odds(number, sample)).mean()) for number in selectors]
    for config, mean in zip(configs, means, strict=True):
        config.target_rate = round(total * mean / sum(means), 4)


def _meaning(model: HardKumaModel, store: StateStore, sentences: Sentences, progress: bool) -> Tensor:
    """(words,) log-odds of the selector of meaning."""
    number = model.config.find_selector()

    def read(batch: StoredBatch) -> Tensor:
        return model.gate_head.log_odds(number, model.selector_inputs(number, **batch.inputs)[0])

    return read_words(model, store, sentences, read, progress)


def _at_rate(log_odds: Tensor, rate: float) -> Tensor:
    """Log-odds, all shifted alike so that their mean probability is this rate.

    >>> torch.sigmoid(_at_rate(torch.tensor([-1.0, 0.0, 3.0]), 0.25)).mean()
    tensor(0.2500)
    """
    low, high = -50.0, 50.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if float(torch.sigmoid(log_odds + middle).mean()) > rate else (middle, high)
    return log_odds + (low + high) / 2


class _Neighbours:
    """What surrounds words: the vectors of the words on both sides, zeros beyond the sentence."""

    def __init__(self, x: Tensor, counts: np.ndarray):
        self.x, self.sentence = x, torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
        self.offsets = [offset for offset in range(-NEIGHBOURS, NEIGHBOURS + 1) if offset]
        self.size = len(self.offsets) * x.shape[1]

    def read(self, words: Tensor) -> Tensor:
        """(words, size) of the neighbours of these words, by their numbers."""
        parts = []
        for offset in self.offsets:
            other = (words + offset).clamp(0, len(self.x) - 1)
            inside = (self.sentence[other] == self.sentence[words]) & (other == words + offset)
            parts.append(self.x[other].float() * inside[:, None])
        return torch.cat(parts, dim=-1)


def name_parts(model: HardKumaModel, selectors: Sequence[int], texts: Sequence[str]) -> None:
    """Call these selectors by their two most typical words."""
    names = list(model.config.names)
    found = typical_names(measure_parts(model, texts).typical(NAME_CANDIDATES), taken=names)
    for number, name in zip(selectors, found, strict=True):
        names[number] = name
    model.config.selectors = dict(zip(names, model.config.selectors.values(), strict=True))


def typical_names(typical: Sequence[Sequence[str]], taken: Sequence[str] = ()) -> list[str]:
    """A name for each list of words, all different: the first two words, and further ones where two lists share these.

    >>> typical_names([["go", "don't", "be"], [",", "the"], ["go", "dont", "was"]])
    ['go-dont', 'comma-the', 'go-dont-was']
    """
    names: list[str] = []
    for number, words in enumerate(typical):
        parts = [part for part in map(_as_name, words) if part] or [f"part-{number + 1}"]
        size = 2
        while "-".join(parts[:size]) in {*names, *taken, ALL} and size < len(parts):
            size += 1
        name = "-".join(parts[:size])
        names.append(name if name not in names else f"{name}-{number + 1}")
    return names


def _as_name(word: str) -> str:
    """A word as part of a name: letters and digits; a sign goes by its name in Unicode."""
    letters = re.sub(r"[\W_]", "", word)
    return letters or unicodedata.name(word[:1], "").lower().replace(" ", "-")
