"""Views that leave words out: those of least attention, of the lowest gates, or random ones; and cropping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ...configuration_hardkuma import check_whole
from ...kumaraswamy_hardkuma import Kumaraswamy
from .sentence import LETTERS, Sentence

# Measures of importance, under which `scorers.py` gives them.
NAIVE, ROLLOUT, GATES, GATE_SHAPES = "attention", "rollout", "gates", "gate_shapes"


def number_to_drop(tokens: int, k: int | None = None, t: int = 10) -> int:
    """How many of a sequence's non-padding tokens go.

    Static: k, if there are at least t tokens (0 otherwise). Dynamic (k=None): floor(tokens / t).

    >>> [number_to_drop(n, k=2) for n in (9, 10, 30)], [number_to_drop(n) for n in (9, 10, 30)]
    ([0, 2, 2], [0, 1, 3])
    """
    return tokens // t if k is None else k if tokens >= t else 0


def lowest(values: np.ndarray, droppable: np.ndarray, number: int) -> np.ndarray:
    """(length,) true on the `number` lowest droppable values; of equal ones the first goes first.

    >>> lowest(np.array([5.0, 1.0, 3.0, 2.0]), np.ones(4, dtype=bool), 2).tolist()
    [False, True, False, True]
    """
    order = [i for i in np.argsort(values, kind="stable") if droppable[i]]
    chosen = np.zeros(len(values), dtype=bool)
    chosen[order[:number]] = True
    return chosen


@dataclass(frozen=True)
class Dropping:
    """How many go: a constant k from t tokens on, or floor(tokens / t). Special tokens count, padding does not."""

    k: int | None = None
    t: int = 10
    measure: ClassVar[str] = LETTERS  # of importance; what is not `LETTERS` must have been scored

    def __post_init__(self) -> None:
        if self.k is not None:
            check_whole("k", self.k, minimum=0)
        check_whole("t", self.t, minimum=1)

    def number(self, sentence: Sentence) -> int:
        """How many of this sentence."""
        return number_to_drop(len(sentence), self.k, self.t)

    def _drop_words(self, sentence: Sentence, values: np.ndarray) -> Sentence:
        """Without the words whose values (words,) are lowest."""
        gone = sentence.word_numbers[lowest(values, np.ones(len(values), dtype=bool), self.number(sentence))]
        return sentence.without(np.isin(sentence.words, gone), self.measure)


@dataclass(frozen=True)
class NaiveAttentionDropout(Dropping):
    """Attention-Driven Dropout: without the tokens that receive the least attention, summed over layers, heads and queries.

    Args:
        keep_special: never drop [CLS] and [SEP]. The reference implementation may drop them.
    """

    keep_special: bool = True
    measure: ClassVar[str] = NAIVE

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        droppable = sentence.content if self.keep_special else np.ones(len(sentence), dtype=bool)
        removed = lowest(sentence.scores[self.measure], droppable, self.number(sentence))
        spared = sentence.spare(removed, self.measure)
        return sentence.take(np.flatnonzero(~(spared | (removed & ~sentence.content))))


@dataclass(frozen=True)
class RolloutAttentionDropout(NaiveAttentionDropout):
    """Attention-Driven Dropout by attention rollout, summed over layers."""

    measure: ClassVar[str] = ROLLOUT


@dataclass(frozen=True)
class LowestGateDropout(Dropping):
    """Without the words that the selector `meaning` finds least important."""

    measure: ClassVar[str] = GATES

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        return self._drop_words(sentence, sentence.importance(GATES))


@dataclass(frozen=True)
class SampledGateDropout(Dropping):
    """Without the words whose gates are lowest in one draw of the gates: u = (1 - (1 - v)^(1/beta))^(1/alpha), v uniform.

    A word that nearly always opens its gate stays nearly always; of words alike, another one goes each time.
    """

    measure: ClassVar[str] = GATES

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        shapes = np.array([sentence.scores[GATE_SHAPES][sentence.words == word][0] for word in sentence.word_numbers])
        alpha, beta = torch.from_numpy(shapes.reshape(-1, 2)).T
        noise = torch.from_numpy(random.uniform(size=len(shapes)))
        return self._drop_words(sentence, Kumaraswamy(alpha, beta).icdf(noise).numpy())


@dataclass(frozen=True)
class RandomDeletion(Dropping):
    """Without random words; with a rate, floor(rate x words) of them.

    >>> sentence = Sentence(np.array([2, 5, 6, 7, 8, 3]), np.array([-1, 0, 1, 2, 3, -1]))
    >>> len(RandomDeletion(rate=0.5)(sentence, np.random.default_rng(0)))
    4
    """

    rate: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate is not None:
            check_rate(self.rate)

    def number(self, sentence: Sentence) -> int:
        """How many of this sentence."""
        return super().number(sentence) if self.rate is None else int(self.rate * len(sentence.word_numbers))

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        return self._drop_words(sentence, random.permutation(len(sentence.word_numbers)).astype(float))


@dataclass(frozen=True)
class Cropping:
    """A random run of words: floor(rate x words) go, at both ends together.

    >>> sentence = Sentence(np.array([2, 5, 6, 7, 8, 3]), np.array([-1, 0, 1, 2, 3, -1]))
    >>> Cropping(0.5)(sentence, np.random.default_rng(0)).ids.tolist()
    [2, 7, 8, 3]
    """

    rate: float = 0.1
    measure: ClassVar[str] = LETTERS

    def __post_init__(self) -> None:
        check_rate(self.rate)

    def __call__(self, sentence: Sentence, random: np.random.Generator) -> Sentence:
        words = sentence.word_numbers
        length = len(words) - int(self.rate * len(words))
        first = int(random.integers(0, len(words) - length + 1))
        kept = np.isin(sentence.words, words[first : first + length])
        return sentence.without(~kept)


def check_rate(rate: float) -> None:
    """Raise ValueError where a rate is no number or no fraction.

    >>> check_rate(20)
    Traceback (most recent call last):
    ValueError: rate must be a fraction in [0, 1], got 20.
    """
    if not isinstance(rate, (int, float)) or isinstance(rate, bool) or not 0 <= rate <= 1:
        raise ValueError(f"rate must be a fraction in [0, 1], got {rate!r}.")
