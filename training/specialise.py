"""Selectors that part: K selectors that divide the words of a sentence among themselves by kind, found without labels.

A kind of word is what a word and its context each tell: "the _ of" asks for a noun, and "bridge" is one. So every selector
k has two views of a word w, and two log-odds: l_k, the gate's own, from the word itself, and c_k from its two neighbours on
each side without the word (a reader that is fitted along and then forgotten). With the gates' odds,

    p(k|w) = exp(l_k) / sum_j exp(l_j)      that gate k opens, given that exactly one opens; q(k|w) the same from c
    m(w)                                    how probably the selector of meaning selects w, at the sum R of all K rates
    p(k)   = mean of m(w)^2 p(k|w) / mean of m(w)^2

the loss is the sum of four terms, of which the first two are means over words, weighed by m^2 (with m, adjectives and verbs
were one kind: docs/experiments.md):

    separate    -(mutual information of selector and word) = KL(p(k) || rate_k / R) + mean entropy of p(.|w)
    align       the symmetric KL of the two views, (KL(p || q) + KL(q || p)) / 2
    unite       the symmetric KL between the gate of meaning and the odds that any gate opens, sum_k exp(l_k)
    untie       mean over pairs of selectors of max(0, correlation of l_j and l_k over words)^2

The first makes selectors differ, the second makes the views agree on what word and context share, a kind and not a topic or
a spelling, the third keeps the level of the log-odds near that of meaning, and the fourth says that words which two
selectors leave to a third tell nothing of each other. (A word that is surely of one kind would else be low for all others.)
At first `align` weighs three times as much, and at half of the steps as much as the others.

What a model gives as the gate of a kind is its share of the gate of meaning, p(meaning selects w) p(k|w), whose selector
reads the whole sentence (`GateHead._divide_meaning`): so all kinds together select what `meaning` does, which `unite` alone
did not bring about (docs/experiments.md).

Rates: a list of target rates gives each selector its own, and p(k) is drawn to it. A single number is the mean over
selectors: each gets the share of the sum that falls to it by the log-odds l, and that becomes its own target rate, in the
config. The encoder is frozen and what is read of words is computed once.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from ..configuration_hardkuma import PER_SELECTOR, HardKumaConfig
from ..evaluation.parts import measure_parts
from ..modeling_hardkuma import HardKumaModel
from ..scoring_hardkuma import ALL
from .fitting import fresh_selector, training_with_dropout
from .recipe import Recipe
from .sentences import Sentences, read_inputs, read_sentences, read_words
from .store import StateStore, StoredBatch

NEIGHBOURS = 2  # on each side
CONTEXT_WIDTH = 128  # of the hidden layer of the reader of contexts
WORDS = 512  # of a step
DROPOUT = 0.1
# What is added to the weight 1 of `align` at the start, falling to 0 at half of the steps: selectors that part before the
# views agree end with kinds that context does not know, such as two of nouns and none of adjectives.
EAGERNESS = 2.0
FOCUS = 2  # power of m(w) by which words are weighed: content words are to be divided first
NAME_CANDIDATES = 12  # typical words that a name may be made of
# Inputs that know a word's neighbours: with them a view of the word would be a view of its context too.
CONTEXTUAL = ("state", "norm", "attention", "anchor")


@dataclass(frozen=True)
class Specialisation:
    """What happened, for the log.

    Attributes:
        words: how many there were to divide.
        terms: the terms of the loss, by name, over the last tenth of the steps.
    """

    words: int
    terms: dict[str, float]


class PartingTerms(NamedTuple):
    """The terms of the loss, () each; see above."""

    separate: Tensor
    align: Tensor
    unite: Tensor
    untie: Tensor


def parting_terms(log_odds: Tensor, context: Tensor, meaning: Tensor, rates: Tensor) -> PartingTerms:
    """The terms of the loss.

    Args:
        log_odds, context: (words, K) of the gates, and of the view of the context.
        meaning: (words,) log-odds of the selector of meaning, at the sum of all rates.
        rates: (K,) target rates.

    >>> apart, alike = 9 * torch.eye(2), torch.zeros(2, 2)
    >>> none, half = torch.zeros(2), torch.tensor([0.5, 0.5])
    >>> [round(float(parting_terms(odds, odds, none, half).separate), 2) for odds in (apart, alike)]
    [0.0, 0.69]
    """
    weights = torch.sigmoid(meaning) ** FOCUS
    weights = weights / weights.sum()
    own, other = log_odds.log_softmax(-1), context.log_softmax(-1)
    share = weights @ own.exp()
    target = rates / rates.sum()
    separate = (share * (share.clamp_min(1e-9) / target).log()).sum() - weights @ (own.exp() * own).sum(-1)
    align = weights @ ((own.exp() - other.exp()) * (own - other)).sum(-1) / 2
    union = log_odds.logsumexp(-1)
    unite = ((torch.sigmoid(union) - torch.sigmoid(meaning)) * (union - meaning)).mean() / 2
    ties = torch.corrcoef(log_odds.T)
    pairs = torch.triu_indices(len(ties), len(ties), offset=1, device=ties.device)
    untie = ties[pairs[0], pairs[1]].clamp_min(0.0).square().mean()
    return PartingTerms(separate, align, unite, untie)


def specialise(
    model: HardKumaModel,
    store: StateStore,
    rows: np.ndarray,
    recipe: Recipe,
    *,
    selectors: Sequence[int],
    progress: bool = True,
) -> Specialisation:
    """Fit K selectors, from random weights, so that they divide the words among themselves.

    Args:
        rows: numbers of the sentences to learn from; at most `removal_sentences` of them are used.
        recipe: its `kinds_...` settings and seed.
        selectors: numbers of the selectors to fit; the model's selector of meaning is fitted already.
    """
    model.eval()
    _check(model, selectors)
    sentences = read_sentences(store, rows, recipe.removal_sentences, recipe.seed, model)
    readers = [fresh_selector(model, number, recipe.seed * len(model.gate_head.selectors) + number) for number in selectors]
    x = read_inputs(model, store, sentences, selectors[0], progress).x
    for reader in readers[1:]:
        if reader.num_measures:
            reader.center.copy_(readers[0].center)
            reader.spread.copy_(readers[0].spread)
    rates = torch.tensor([model.config.of_selector("target_rate", number) for number in selectors], device=model.device)
    meaning = _at_rate(_meaning(model, store, sentences, progress), float(rates.sum()))
    around = _Neighbours(x[:, : sum(readers[0].vector_sizes)], sentences.counts)
    torch.manual_seed(recipe.seed)
    context = nn.Sequential(
        nn.Linear(around.size, CONTEXT_WIDTH), nn.GELU(), nn.Dropout(DROPOUT), nn.Linear(CONTEXT_WIDTH, len(readers))
    ).to(model.device)
    parameters = [parameter for part in (*readers, context) for parameter in part.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=recipe.kinds_learning_rate, weight_decay=0.01)
    generator = np.random.default_rng(recipe.seed)
    history: list[PartingTerms] = []
    steps = tqdm(range(recipe.kinds_steps), desc="parting selectors", unit="step", disable=not progress, leave=False)
    with ExitStack() as stack:
        for reader in readers:
            stack.enter_context(training_with_dropout(reader, DROPOUT))
        for step in steps:
            optimizer.param_groups[0]["lr"] = recipe.kinds_learning_rate * (1 - step / recipe.kinds_steps)
            words = torch.from_numpy(generator.integers(0, len(x), WORDS))
            own = x[words].float().to(model.device)
            log_odds = torch.stack([model.gate_head.log_odds(number, own) for number in selectors], dim=-1)
            seen = context(around.read(words).to(model.device))
            terms = parting_terms(log_odds, seen, meaning[words].to(model.device), rates)
            eagerness = EAGERNESS * max(0.0, 1 - 2 * step / recipe.kinds_steps)
            (torch.stack(terms).sum() + eagerness * terms.align).backward()
            torch.nn.utils.clip_grad_norm_(parameters, recipe.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            history.append(PartingTerms(*(term.detach() for term in terms)))
    _keep_rates(model, selectors, x, float(rates.sum()))
    last = history[-max(1, len(history) // 10) :]
    means = torch.stack([torch.stack(terms) for terms in last]).mean(0).tolist()
    return Specialisation(len(x), dict(zip(PartingTerms._fields, means, strict=True)))


@torch.inference_mode()
def _keep_rates(model: HardKumaModel, selectors: Sequence[int], x: Tensor, total: float) -> None:
    """Where selectors were given one target rate, that of each becomes the share of their sum that falls to it."""
    config = model.config
    if len({config.of_selector("target_rate", number) for number in selectors}) > 1:
        return
    sample = x[:: max(1, len(x) // 20000)].float().to(model.device)
    means = [float(torch.sigmoid(model.gate_head.log_odds(number, sample)).mean()) for number in selectors]
    rates = {name: config.of_selector("target_rate", number) for number, name in enumerate(config.names)}
    for number, mean in zip(selectors, means, strict=True):
        rates[config.names[number]] = round(total * mean / sum(means), 4)
    config.target_rate = rates


def _check(model: HardKumaModel, selectors: Sequence[int]) -> None:
    config = model.config
    inputs = config.of_selector("selector_inputs", selectors[0])
    if any(config.of_selector("selector_inputs", number) != inputs for number in selectors):
        raise ValueError("selectors that part must read the same: give one value of selector_inputs for all of them.")
    contextual = [name for name in inputs if name in CONTEXTUAL]
    if contextual:
        raise ValueError(
            f"selectors that part read {contextual[0]!r}, which knows a word's neighbours; use 'input', and 'pooled', "
            "'removal' or 'shape' if you like."
        )


def _meaning(model: HardKumaModel, store: StateStore, sentences: Sentences, progress: bool) -> Tensor:
    """(words,) log-odds of the selector of meaning."""
    number = model.config.find_selector()

    def read(batch: StoredBatch) -> Tensor:
        return model.gate_head.log_odds(number, model.selector_inputs(number, **batch.inputs))

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


def name_kinds(model: HardKumaModel, texts: Sequence[str], names: Sequence[str] | None = None) -> None:
    """Call the selectors that part by these names, in their order, or by their two most typical words."""
    config = model.config
    if names is None:
        names = typical_names(measure_parts(model, texts).typical(NAME_CANDIDATES), taken=config.names)
    new = dict(zip(config.kinds, names, strict=True))
    _rename_selectors(config, [new.get(number, name) for number, name in enumerate(config.names)])


def typical_names(typical: Sequence[Sequence[str]], taken: Sequence[str] = ()) -> list[str]:
    """A name for each list of words, all different: the first two words, and further ones where two lists share these.

    >>> typical_names([["go", "don't", "be"], [",", "the"], ["go", "dont", "was"]])
    ['go-dont', 'comma-the', 'go-dont-was']
    """
    names: list[str] = []
    for number, words in enumerate(typical):
        parts = [part for part in map(_as_name, words) if part] or [f"kind-{number + 1}"]
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


def _rename_selectors(config: HardKumaConfig, names: Sequence[str]) -> None:
    """Give all selectors other names, in their order; settings follow them."""
    names = HardKumaConfig(selector_names=list(names)).names  # checked
    new = dict(zip(config.names, names, strict=True))
    for setting in PER_SELECTOR:
        value = getattr(config, setting)
        if isinstance(value, dict):
            setattr(config, setting, {new[name]: item for name, item in value.items()})
    config.selector_names = names
