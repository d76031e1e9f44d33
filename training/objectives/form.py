"""The objective `form`: which words could be names, learned without labels from how words are written.

In plain text a capital inside a sentence mostly marks a name. The selector reads states of the encoder, not the form, and
is fitted to that mark; so it learns which words *could* be written so, in lower case or at the start of a sentence too:

    target of a word = 0.9 if it has a capital inside a sentence, 0.1 if it is in lower case, a number or a sign

Words capitalised for other reasons are masked: the first word of a sentence, or after a colon, bracket or quotation mark;
words in capitals; handles; numbers with letters; all of a sentence that is a title, shouted, or without any capital. Days,
months and a retweet's RT have capitals by convention (`CONVENTIONAL`): they are no names however they are written.

Where every noun has a capital (German), it marks no name. Such a text shows it: more than `NOUNS` of its words have a
capital inside a sentence, and fewer than `BESIDE` of these stand beside another one, as the words of names do. There a
name is two capitals side by side, and a single one teaches that a word is none.

Frequent words would be learned by heart, so a word counts by (number of its occurrences)^(-1/4).

Where form finds little in a sentence, the gates can go by those of `meaning`: see `backoff` in the configuration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from ...batch_hardkuma import vocabulary_tokens
from ...modeling_hardkuma import HardKumaModel
from ...words_hardkuma import SURFACE_CLASSES, find_words, word_classes
from ..criterion import calibrate_rate
from ..store import StateStore, StoredBatch, TokenFile
from .base import Objective, Report, fresh_selector, training_with_dropout
from .settings import FormSettings

if TYPE_CHECKING:
    from ..run import Run

SMOOTHING = 0.1  # how far targets stay away from 0 and 1: capitals are a noisy mark
COMMONNESS = 0.25  # power of a word's count that its weight is divided by
STEPS, SMALLEST, LARGEST = 125, 256, 2048  # about so many steps a pass, of so many words at least and at most
DROPOUT = 0.3
# Capitals inside sentences to learn from. On parts of the bundled corpus with 60, 260, 570 and 1,140 of them the
# gates found 0, 33, 71 and 80% of the capitalised words; on text with few names they select others instead.
ENOUGH = 2000
# English alone: where other languages write days and months small, these words teach the same.
MONTHS = "january february march april may june july august september october november december"
DAYS = "monday tuesday wednesday thursday friday saturday sunday"
CONVENTIONAL = frozenset(f"{MONTHS} {DAYS} rt".split())
# In English, Spanish, Dutch and French texts .06 to .20 of the words have capitals, of which .37 to .63 stand beside
# another; in a German one .30 and .19.
NOUNS, BESIDE = 0.2, 0.3
OPENERS = frozenset(":;([{\"'“”‘’«»‹›`")
_CLASS = {name: number for number, name in enumerate(SURFACE_CLASSES)}


@dataclass(frozen=True)
class Outcome:
    """What happened, for the log and the card.

    Attributes:
        words, names: how many words taught, and how many of them that they are names.
        nouns: whether capitals mark nouns in this text, and names are two of them side by side.
        loss: of the last tenth of the steps.
    """

    words: int
    names: int
    nouns: bool
    loss: float


class Form(Objective[FormSettings]):
    """Fits one selector to the written form of words."""

    outcome: Outcome
    nouns = False

    def check(self, run: Run) -> None:
        super().check(run)
        name = self.selectors[0]
        if "form" in run.model.config.selectors[name].reads:
            raise ValueError(
                f"selectors.{name} reads 'form', which is what objective form fits it to: it would learn nothing else; "
                "leave it out of reads."
            )
        found = count_capitals(run.texts, ENOUGH)
        if not found.capitals or found.caseless > found.lower:
            few = "its script has none" if found.caseless > found.lower else "no word of it has one"
            raise ValueError(
                f"this text is without capitals inside of sentences ({few}): selectors.{name} (objective form) cannot tell "
                f"names from other words. Give text as it was written, or leave the selector out (--selectors.{name} null)."
            )
        self.nouns = found.mark_nouns
        if self.nouns:
            run.log(
                f"{found.capitals / (found.capitals + found.lower):.0%} of the words of this text have a capital inside a "
                f"sentence, and {found.beside / found.capitals:.0%} of these stand beside another: capitals mark nouns "
                f"here, as in German, not names. {name} learns names from capitals side by side."
            )
        taught = found.beside if self.nouns else found.capitals
        if taught < ENOUGH:
            run.log(
                f"warning: {taught:,} words of this text have a capital "
                f"{'beside another' if self.nouns else 'inside a sentence'}; {name} learns names "
                f"from them, and with fewer than {ENOUGH:,} it misses many and selects other words instead. Give more text."
            )

    def fit(self, run: Run) -> bool:
        self.outcome = run.fit_on_main(self._fit, run)
        return True

    def report(self, run: Run) -> Report:
        name, outcome = self.selectors[0], self.outcome
        paragraph = (
            f"Gates of `{name}`: fitted to how {outcome.words:,} words of the same text are written, of which "
            f"{outcome.names:,} have a capital inside a sentence, as names mostly have. The selector reads states of "
            "the encoder, not form; the surface view, where it is used, sees form."
        )
        if outcome.nouns:
            paragraph += " Capitals mark nouns in this text, so that two of them side by side were taken for a name."
        if run.model.config.selectors[name].backoff > 0:
            paragraph += " Where form finds little in a sentence, it goes by the gates of `meaning`."
        return Report(paragraph, [{"phase": "form", "selector": name, **vars(outcome)}])

    def needed_rows(self, run: Run, tokens: TokenFile, rows: np.ndarray, stores_states: bool) -> np.ndarray | None:
        return None if stores_states else rows[:0]

    def _fit(self, run: Run) -> Outcome:
        run.fill_isolated_table()
        (number,), seed = self.numbers(run.model.config), run.recipe.seed
        outcome = fit_form(run.model, number, run.store, run.rows, self.settings, seed, not run.quiet, self.nouns)
        calibrate_rate(run.model, run.store, run.rows, seed, [number])
        return outcome


def fit_form(
    model: HardKumaModel,
    selector: int,
    store: StateStore,
    rows: np.ndarray,
    settings: FormSettings,
    seed: int,
    progress: bool,
    nouns: bool = False,
) -> Outcome:
    """Fit a selector, from random weights, to the written form of the words of these sentences.

    Args:
        nouns: whether capitals mark nouns in this text.
    """
    model.eval()
    vocabulary = Vocabulary.read(model.tokenizer, model.config.vocab_size)
    counts, taught, names = _count_words(model, store, rows, vocabulary, nouns)
    if not names:
        raise ValueError(f"none of {len(rows):,} training sentences has a capital that teaches names: give more text.")
    reader = fresh_selector(model, selector, seed)
    generator = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(reader.parameters(), lr=settings.learning_rate, weight_decay=0.01)
    size = min(max(taught // STEPS, SMALLEST), LARGEST)
    total = settings.epochs * math.ceil(taught / size)
    losses: list[float] = []
    bar = tqdm(total=total, desc="learning from form", unit="step", disable=not progress)
    with training_with_dropout(reader, DROPOUT), bar:
        for _ in range(settings.epochs):
            order = generator.permutation(rows)
            for lesson in _steps(_lessons(model, store, order, selector, vocabulary, counts, nouns), size):
                for group in optimizer.param_groups:
                    group["lr"] = settings.learning_rate * (1 - len(losses) / total)
                loss = _loss(model, selector, lesson)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                losses.append(float(loss.detach()))
                bar.update()
    return Outcome(taught, names, nouns, float(np.mean(losses[-max(1, len(losses) // 10) :])))


@dataclass
class Capitals:
    """How the words of a text are written, as far as they teach.

    Attributes:
        capitals: with a capital inside a sentence.
        beside: of these, beside another one.
        lower: in lower case.
        caseless: of a script without capitals.
    """

    capitals: int = 0
    beside: int = 0
    lower: int = 0
    caseless: int = 0

    @property
    def mark_nouns(self) -> bool:
        """Whether capitals mark nouns; see above."""
        many = self.capitals >= ENOUGH // 4 and self.capitals > NOUNS * (self.capitals + self.lower)
        return many and self.beside < BESIDE * self.capitals


def count_capitals(texts: Sequence[str], enough: int) -> Capitals:
    """Of these texts, no further than `enough` capitals beside another.

    >>> count_capitals(["We met Anna Smith in the old town of Rome.", "Say: Berlin is far."], enough=10)
    Capitals(capitals=3, beside=2, lower=8, caseless=0)
    """
    found = Capitals()
    for text in texts:
        words = find_words(text)
        classes = torch.tensor(word_classes(text, words), dtype=torch.long)
        opened = [False, *(text[end:start].rstrip()[-1:] in OPENERS for (_, end), (start, _) in pairwise(words))]
        conventional = torch.tensor([text[start:end].lower() in CONVENTIONAL for start, end in words], dtype=torch.bool)
        opinions = word_opinions(classes, torch.tensor(opened[: len(words)], dtype=torch.bool), classes < 0)
        opinions = opinions.masked_fill(conventional, -1.0)
        found.capitals += int((opinions > 0).sum())
        found.beside += int((_names_beside(opinions) > 0).sum())
        found.lower += int(((opinions < 0) & (classes == _CLASS["lower"])).sum())
        found.caseless += int((classes == _CLASS["caseless"]).sum())
        if found.beside >= enough:
            break
    return found


def _names_beside(opinions: Tensor) -> Tensor:
    """The opinions where a name is two capitals side by side, and a single one is none."""
    named = torch.nn.functional.pad(opinions > 0, (1, 1))
    return torch.where((opinions > 0) & ~(named[:-2] | named[2:]), -opinions, opinions)


def word_opinions(classes: Tensor, after_opener: Tensor, letters_and_digits: Tensor) -> Tensor:
    """What form says of the words of one sentence: 1 a name, -1 none, 0 nothing.

    Args:
        classes: (words,) of their written form; see `SURFACE_CLASSES`.
        after_opener: (words,) bool, true right after a colon, a bracket or a quotation mark.
        letters_and_digits: (words,) bool, true for words that hold both.

    >>> lower, inside, start = (_CLASS[name] for name in ("lower", "initial_inside", "initial_start"))
    >>> classes, no = torch.tensor([start, lower, inside, lower, inside]), torch.zeros(5, dtype=torch.bool)
    >>> word_opinions(classes, torch.tensor([False] * 4 + [True]), no)
    tensor([ 0., -1.,  1., -1.,  0.])
    """
    inside, lower = classes == _CLASS["initial_inside"], classes == _CLASS["lower"]
    shouted = classes == _CLASS["capitals"]
    capitals = sum(int((classes == _CLASS[name]).sum()) for name in ("initial_start", "single_capital", "mixed"))
    number_inside, number_lower = int(inside.sum()), int(lower.sum())
    is_title = number_inside > number_lower and number_inside >= 3
    if is_title or int(shouted.sum()) > number_lower or capitals + number_inside + int(shouted.sum()) == 0:
        return torch.zeros(len(classes))
    no_name = lower | (classes == _CLASS["symbol"]) | ((classes == _CLASS["digit"]) & ~letters_and_digits)
    return (inside & ~after_opener).float() - no_name.float()


@dataclass(frozen=True)
class Vocabulary:
    """What tokens are made of, (vocabulary,) bool each: a sign after which a capital says nothing, letters; and the tokens
    of each word of `CONVENTIONAL`."""

    opens: Tensor
    has_letter: Tensor
    conventional: frozenset[bytes]

    @classmethod
    def read(cls, tokenizer: PreTrainedTokenizerBase, size: int) -> Vocabulary:
        """Of every token of a tokenizer.

        >>> from hardkuma import load_released
        >>> tokenizer = load_released()[1]
        >>> found = Vocabulary.read(tokenizer, len(tokenizer))
        >>> numbers = tokenizer.convert_tokens_to_ids([":", "paris", "7"])
        >>> found.opens[numbers].tolist(), found.has_letter[numbers].tolist()
        ([True, False, False], [False, True, False])
        """
        opens, has_letter = torch.zeros(size, dtype=torch.bool), torch.zeros(size, dtype=torch.bool)
        for number, text, _ in vocabulary_tokens(tokenizer):
            if number < size and text:
                opens[number] = text[-1] in OPENERS
                has_letter[number] = any(character.isalpha() for character in text)
        # As they stand inside of a text and at its start, whatever the case: tokenizers may tell these apart.
        forms = [
            f"{space}{form}" for word in CONVENTIONAL for form in (word, word.title(), word.upper()) for space in ("", " ")
        ]
        tokens = tokenizer(sorted(forms), add_special_tokens=False)["input_ids"]
        return cls(
            opens, has_letter, frozenset(np.array(row).tobytes() for row in tokens if tokenizer.unk_token_id not in row)
        )


@dataclass(frozen=True)
class _Words:
    """The words of one sentence: the first token of each, what form says of it, and its tokens' ids."""

    firsts: np.ndarray
    opinions: Tensor
    types: list[bytes]


def _words(batch: StoredBatch, vocabulary: Vocabulary, nouns: bool) -> Iterator[_Words]:
    """Of each sentence of a batch; `nouns` as of `fit_form`."""
    ids, classes = batch.inputs["input_ids"].cpu(), batch.forms.cpu()
    content, leading = batch.content.cpu(), batch.leading.cpu()
    opens = vocabulary.opens[ids]
    letters = vocabulary.has_letter[ids]
    for row in range(len(ids)):
        inside = content[row]
        firsts = leading[row].nonzero()[:, 0]
        if not len(firsts):
            yield _Words(firsts.numpy(), torch.zeros(0), [])
            continue
        length = int(inside.nonzero()[-1]) + 1
        ends = torch.cat([firsts[1:], firsts.new_tensor([length])])
        numbers = ids[row].numpy()
        types = [numbers[a:b].tobytes() for a, b in zip(firsts.tolist(), ends.tolist(), strict=True)]
        forms = classes[row, firsts]
        mixed = torch.tensor([bool(letters[row, a:b].any()) for a, b in zip(firsts, ends, strict=True)])
        mixed &= forms == _CLASS["digit"]
        before = torch.cat([torch.zeros(1, dtype=torch.bool), opens[row, ends[:-1] - 1]])
        conventional = torch.tensor([word in vocabulary.conventional for word in types])
        opinions = word_opinions(forms, before, mixed).masked_fill(conventional, -1.0)
        yield _Words(firsts.numpy(), _names_beside(opinions) if nouns else opinions, types)


def _count_words(
    model: HardKumaModel, store: StateStore, rows: np.ndarray, vocabulary: Vocabulary, nouns: bool
) -> tuple[Counter[bytes], int, int]:
    """How often each word occurs, how many teach, and how many of them that they are names."""
    counts: Counter[bytes] = Counter()
    taught = names = 0
    for numbers in np.array_split(rows, math.ceil(len(rows) / 512)):
        for words in _words(store.read(numbers, model, states=False), vocabulary, nouns):
            counts.update(words.types)
            taught += int((words.opinions != 0).sum())
            names += int((words.opinions > 0).sum())
    return counts, taught, names


@dataclass(frozen=True)
class _Lesson:
    """Words that teach: what the selector reads of them (words, size), their targets and weights (words,)."""

    x: Tensor
    targets: Tensor
    weights: Tensor


def _lessons(
    model: HardKumaModel,
    store: StateStore,
    rows: np.ndarray,
    selector: int,
    vocabulary: Vocabulary,
    counts: Counter[bytes],
    nouns: bool,
) -> Iterator[_Lesson]:
    for batch in store.batches(rows, model):
        x, counts_of_rows = model.selector_inputs(selector, **batch.inputs)
        of_rows = x.cpu().split(counts_of_rows.tolist())
        for own, words in zip(of_rows, _words(batch, vocabulary, nouns), strict=True):
            teaches = words.opinions != 0
            targets = 0.5 + words.opinions[teaches] * (0.5 - SMOOTHING)
            common = [counts[word] for word, wanted in zip(words.types, teaches.tolist(), strict=True) if wanted]
            yield _Lesson(own[teaches], targets, torch.tensor(common).float() ** -COMMONNESS)


def _steps(lessons: Iterator[_Lesson], size: int) -> Iterator[_Lesson]:
    """Lessons of `size` words each, in their order; the last has what is left."""
    parts: list[_Lesson] = []
    held = 0
    for lesson in lessons:
        parts.append(lesson)
        held += len(lesson.targets)
        while held >= size:
            whole = _join(parts)
            yield _Lesson(whole.x[:size], whole.targets[:size], whole.weights[:size])
            parts = [_Lesson(whole.x[size:], whole.targets[size:], whole.weights[size:])]
            held -= size
    if held:
        yield _join(parts)


def _join(parts: list[_Lesson]) -> _Lesson:
    return _Lesson(*(torch.cat([getattr(part, name) for part in parts]) for name in ("x", "targets", "weights")))


def _loss(model: HardKumaModel, selector: int, lesson: _Lesson) -> Tensor:
    log_odds = model.gate_head.log_odds(selector, lesson.x.to(model.device))
    targets, weights = lesson.targets.to(model.device), lesson.weights.to(model.device)
    return F.binary_cross_entropy_with_logits(log_odds, targets, weight=weights / weights.mean())
