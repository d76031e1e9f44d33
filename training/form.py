"""Gates of entities: what could be a name, learned without labels from how words are written.

In plain text a capital inside a sentence marks a name, mostly. The selector, which may be blind to form, is fitted to that
mark, so it learns from states alone which words *could* be written so, in lower case or at the start of a sentence too:

    target of a word = 0.9 if it has a capital inside a sentence, 0.1 if it is in lower case, a number or a sign

Words whose form has another cause teach nothing: the first word of a sentence, or after a colon, bracket or quotation
mark; words in capitals; handles; numbers with letters; all of a sentence that is a title, shouted, or without any capital.
Frequent words would be learned by heart, so a word counts by (number of its occurrences)^(-1/4).

Meaning has its say where form finds little: see `meaning_weight` in the configuration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from ..batch_hardkuma import vocabulary_tokens
from ..configuration_hardkuma import ENTITIES
from ..modeling_hardkuma import HardKumaModel
from ..words_hardkuma import SURFACE_CLASSES
from .fitting import fresh_selector, training_with_dropout
from .recipe import Recipe
from .store import StateStore, StoredBatch, TokenFile

SMOOTHING = 0.1  # how far targets stay away from 0 and 1: capitals are a noisy mark
COMMONNESS = 0.25  # power of a word's count that its weight is divided by
STEPS, SMALLEST, LARGEST = 125, 256, 2048  # about so many steps a pass, of so many words at least and at most
DROPOUT = 0.3
OPENERS = frozenset(":;([{\"'“”‘’«»‹›`")
_CLASS = {name: number for number, name in enumerate(SURFACE_CLASSES)}


@dataclass(frozen=True)
class FormTraining:
    """What happened, for the log and the card.

    Attributes:
        words, capitals: how many words taught, and how many of them by a capital.
        loss: of the last tenth of the steps.
        adds_meaning: whether heavy words gain where form finds nothing.
    """

    words: int
    capitals: int
    loss: float
    adds_meaning: bool

    def describe(self) -> str:
        """A paragraph for the card."""
        text = (
            f"Gates of `{ENTITIES}`: fitted to how {self.words:,} words of the same text are written, of which "
            f"{self.capitals:,} have a capital inside a sentence, for names mostly have one. The selector is given states "
            "of the encoder, not form; the surface view, where it is used, sees form. All of it is learned from text "
            "without labels."
        )
        if self.adds_meaning:
            text += " Meaning is added, by the weight of words, where form finds nothing in a sentence."
        return text


def train_by_form(
    model: HardKumaModel,
    store: StateStore,
    rows: np.ndarray,
    recipe: Recipe,
    *,
    selector: int,
    progress: bool = True,
) -> FormTraining:
    """Fit one selector to the written form of words.

    Args:
        rows: numbers of the sentences to learn from.
        recipe: its `entities_epochs`, learning rate and seed.
        selector: the number of the selector to fit.
    """
    model.eval()
    check_capitals(model, store, rows)
    vocabulary = Vocabulary.read(model.tokenizer, model.config.vocab_size)
    counts, taught, capitals = _count_words(model, store, rows, vocabulary)
    reader = fresh_selector(model, selector, recipe.seed)
    generator = np.random.default_rng(recipe.seed)
    optimizer = torch.optim.AdamW(reader.parameters(), lr=recipe.entities_learning_rate, weight_decay=0.01)
    size = min(max(taught // STEPS, SMALLEST), LARGEST)
    total = recipe.entities_epochs * math.ceil(taught / size)
    losses: list[float] = []
    bar = tqdm(total=total, desc="learning from form", unit="step", disable=not progress)
    with training_with_dropout(reader, DROPOUT), bar:
        for _ in range(recipe.entities_epochs):
            order = generator.permutation(rows)
            for lesson in _steps(_lessons(model, store, order, selector, vocabulary, counts), size):
                for group in optimizer.param_groups:
                    group["lr"] = recipe.entities_learning_rate * (1 - len(losses) / total)
                loss = _loss(model, selector, lesson)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                losses.append(float(loss.detach()))
                bar.update()
    adds_meaning = model.config.of_selector("meaning_weight", selector) > 0
    return FormTraining(taught, capitals, float(np.mean(losses[-max(1, len(losses) // 10) :])), adds_meaning)


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
    """What tokens are made of, (vocabulary,) bool each: a sign after which a capital says nothing, letters."""

    opens: Tensor
    has_letter: Tensor

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
        return cls(opens, has_letter)


@dataclass(frozen=True)
class _Words:
    """The words of one sentence: the first token of each, what form says of it, and its tokens' ids."""

    firsts: np.ndarray
    opinions: Tensor
    types: list[bytes]


def _words(batch: StoredBatch, vocabulary: Vocabulary) -> Iterator[_Words]:
    """Of each sentence of a batch."""
    ids, classes = batch.inputs["input_ids"].cpu(), batch.shapes.cpu()
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
        kinds = classes[row, firsts]
        mixed = torch.tensor([bool(letters[row, a:b].any()) for a, b in zip(firsts, ends, strict=True)])
        mixed &= kinds == _CLASS["digit"]
        before = torch.cat([torch.zeros(1, dtype=torch.bool), opens[row, ends[:-1] - 1]])
        yield _Words(firsts.numpy(), word_opinions(kinds, before, mixed), types)


def check_capitals(model: HardKumaModel, store: TokenFile, rows: np.ndarray) -> None:
    """ValueError for text of which form teaches nothing. Text that teaches is read up to its first capital only."""
    vocabulary = Vocabulary.read(model.tokenizer, model.config.vocab_size)
    taught = 0
    for numbers in _parts(rows):
        for words in _words(store.read(numbers, model, states=False), vocabulary):
            if bool((words.opinions > 0).any()):
                return
            taught += int((words.opinions != 0).sum())
    raise ValueError(
        f"none of the {taught:,} words of this text that could teach {ENTITIES!r} has a capital inside a sentence: "
        "names cannot be told from other words. Give text as it was written, or train 'meaning' alone "
        "(model.selector_names: [meaning])."
    )


def _parts(rows: np.ndarray) -> list[np.ndarray]:
    return np.array_split(rows, math.ceil(len(rows) / 512))


def _count_words(
    model: HardKumaModel, store: StateStore, rows: np.ndarray, vocabulary: Vocabulary
) -> tuple[Counter[bytes], int, int]:
    """How often each word occurs, how many teach, and how many of them by a capital."""
    counts: Counter[bytes] = Counter()
    taught = capitals = 0
    for numbers in _parts(rows):
        for words in _words(store.read(numbers, model, states=False), vocabulary):
            counts.update(words.types)
            taught += int((words.opinions != 0).sum())
            capitals += int((words.opinions > 0).sum())
    return counts, taught, capitals


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
) -> Iterator[_Lesson]:
    for batch in store.batches(rows, model):
        x = model.selector_inputs(selector, **batch.inputs)
        for row, words in enumerate(_words(batch, vocabulary)):
            teaches = words.opinions != 0
            firsts = torch.from_numpy(words.firsts)[teaches]
            targets = 0.5 + words.opinions[teaches] * (0.5 - SMOOTHING)
            common = [counts[kind] for kind, wanted in zip(words.types, teaches.tolist(), strict=True) if wanted]
            yield _Lesson(x[row, firsts].cpu(), targets, torch.tensor(common).float() ** -COMMONNESS)


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
