"""Counts of words over a corpus, and what information theory makes of them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property

from .words import Span, WordScores, text_words


class WordCounts:
    """Word, document and co-occurrence counts of unlabelled text. Words are compared without case.

    >>> counts = WordCounts(["the cat", "the dog", "the end"])
    >>> counts.total, counts.words["the"], counts.documents["cat"]
    (6, 3, 1)
    """

    def __init__(self, texts: Sequence[str], words: Sequence[Sequence[Span]] | None = None):
        spans = text_words(texts, words)
        pairs = zip(texts, spans, strict=True)
        self._sentences = [[fold(text[start:end]) for start, end in row] for text, row in pairs]
        self.words = Counter(word for sentence in self._sentences for word in sentence)
        self.documents = Counter(word for sentence in self._sentences for word in set(sentence))
        self.total = sum(self.words.values())
        self.number = len(self._sentences)

    def self_information(self, word: str) -> float:
        """-log2 of the word's probability, with one occurrence added to every word and one word kept for the unseen.

        >>> round(WordCounts(["a a a b"]).self_information("b"), 3)  # -log2(2 / (4 + 3))
        1.807
        """
        return -math.log2((self.words[fold(word)] + 1) / (self.total + len(self.words) + 1))

    def inverse_document_frequency(self, word: str) -> float:
        """log((1 + N) / (1 + n_w)) + 1 for a word in n_w of N texts.

        >>> WordCounts(["a b", "a c", "a d"]).inverse_document_frequency("a")
        1.0
        """
        return math.log((1 + self.number) / (1 + self.documents[fold(word)])) + 1

    def information_gain(self, word: str, shrinkage: float = 0.0) -> float:
        """KL(p(. | w) || p) in bits: how far the words around w differ from the words of the corpus.

        p(v | w) counts the other words of the sentences that hold w. Counts of rare words overstate it (w seen once
        has a handful of neighbours and looks very specific); `shrinkage` adds that many draws from p to every
        p(. | w). A word never seen gets the mean of the words seen once.

        >>> counts = WordCounts(["new york", "new york", "the new", "the the"])
        >>> counts.information_gain("york") > counts.information_gain("new")
        True
        """
        if shrinkage < 0:
            raise ValueError(f"shrinkage must be >= 0, got {shrinkage}.")
        word = fold(word)
        return self._gain(word, shrinkage) if word in self.words else self._unseen_gain(shrinkage)

    def _gain(self, word: str, shrinkage: float) -> float:
        key = (word, shrinkage)
        if key not in self._gains:
            neighbours = self._neighbours[word]
            number = sum(neighbours.values())
            gain, seen = 0.0, 0.0
            for other, count in neighbours.items():
                prior = self.words[other] / self.total
                given = (count + shrinkage * prior) / (number + shrinkage)
                gain += given * math.log2(given / prior)
                seen += prior
            if number + shrinkage > 0 and shrinkage > 0:  # the words never seen beside w
                share = shrinkage / (number + shrinkage)
                gain += (1 - seen) * share * math.log2(share) if share < 1 else 0.0
            self._gains[key] = gain
        return self._gains[key]

    def _unseen_gain(self, shrinkage: float) -> float:
        if shrinkage not in self._unseen:
            once = [self._gain(word, shrinkage) for word, count in self.words.items() if count == 1]
            self._unseen[shrinkage] = sum(once) / len(once) if once else 0.0
        return self._unseen[shrinkage]

    @cached_property
    def _gains(self) -> dict[tuple[str, float], float]:
        return {}

    @cached_property
    def _unseen(self) -> dict[float, float]:
        return {}

    @cached_property
    def _neighbours(self) -> dict[str, Counter[str]]:
        neighbours: dict[str, Counter[str]] = defaultdict(Counter)
        for sentence in self._sentences:
            around = Counter(sentence)
            for word in around:
                neighbours[word].update(around)
                neighbours[word][word] -= around[word]
                if neighbours[word][word] == 0:
                    del neighbours[word][word]
        return neighbours


def fold(word: str) -> str:
    """The form under which a word is counted."""
    return word.casefold()


def score_words(
    texts: Sequence[str], words: Sequence[Sequence[Span]] | None, value: Callable[[str], float]
) -> list[WordScores]:
    """Word scores of a function of the word alone.

    >>> score_words(["in Paris"], None, len)[0].scores
    [2.0, 5.0]
    """
    return [
        WordScores(text, spans, [float(value(text[start:end])) for start, end in spans])
        for text, spans in zip(texts, text_words(texts, words), strict=True)
    ]
