"""Baselines that count words: self-information, inverse document frequency, information gain."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property

from ...common.packages import require
from .encoder import SentenceEncoder
from .words import Span, WordScores, score_words, text_words

RAREST = 1e-9  # wordfreq knows words down to about one in a hundred million


class WordCounts:
    """Word, document and co-occurrence counts of unlabelled text. Words are compared without case.

    >>> counts = WordCounts(["the cat", "the dog", "the end"])
    >>> counts.total, counts.words["the"], counts.documents["cat"]
    (6, 3, 1)
    """

    def __init__(self, texts: Sequence[str], words: Sequence[Sequence[Span]] | None = None):
        pairs = zip(texts, text_words(texts, words), strict=True)
        self._sentences = [[fold(text[start:end]) for start, end in spans] for text, spans in pairs]
        self.words = Counter(word for sentence in self._sentences for word in sentence)
        self.documents = Counter(word for sentence in self._sentences for word in set(sentence))
        self.total = sum(self.words.values())
        self._gains: dict[str, float] = {}

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
        return math.log((1 + len(self._sentences)) / (1 + self.documents[fold(word)])) + 1

    def information_gain(self, word: str) -> float:
        """KL(p(. | w) || p) in bits: how far the words around w differ from the words of the corpus.

        p(v | w) counts the other words of the sentences that hold w. A word never seen gets the mean of the words seen
        once.

        >>> counts = WordCounts(["new york", "new york", "the new", "the the"])
        >>> counts.information_gain("york") > counts.information_gain("new")
        True
        """
        word = fold(word)
        if word not in self.words:
            return self._unseen_gain
        if word not in self._gains:
            neighbours = self._neighbours[word]
            number = sum(neighbours.values())
            shares = [(count / number, self.words[other] / self.total) for other, count in neighbours.items()]
            self._gains[word] = sum((given * math.log2(given / prior) for given, prior in shares), 0.0)
        return self._gains[word]

    @cached_property
    def _unseen_gain(self) -> float:
        once = [self.information_gain(word) for word, count in self.words.items() if count == 1]
        return sum(once) / len(once) if once else 0.0

    @cached_property
    def _neighbours(self) -> dict[str, Counter[str]]:
        neighbours: dict[str, Counter[str]] = defaultdict(Counter)
        for sentence in self._sentences:
            around = Counter(sentence)
            for word in around:
                neighbours[word].update(around)
        for word, counted in neighbours.items():
            del counted[word]
        return neighbours


def fold(word: str) -> str:
    """The form under which a word is counted."""
    return word.casefold()


def count_scores(
    encoder: SentenceEncoder | None,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    measure: str,
    counts: WordCounts | None = None,
) -> list[WordScores]:
    """What `counts`, or those of `texts` themselves, say of each word.

    Args:
        measure: the method of `WordCounts`: "self_information", "inverse_document_frequency" or "information_gain".

    >>> count_scores(None, ["a b", "a c", "a d"], measure="inverse_document_frequency")[0].scores
    [1.0, 1.6931471805599454]
    """
    value = getattr(counts or WordCounts(texts, words), measure)
    return score_words(
        lambda text, spans: WordScores(text, spans, [value(text[s:e]) for s, e in spans]), None, texts, words
    )


def rarity(text: str, words: list[Span]) -> WordScores:
    """-log2 p(word) by wordfreq's list of English: rare words say more.

    A word without any letter or digit is not in that list, which does not make it rare: it scores 0.
    """
    frequency = require("wordfreq", "benchmark").word_frequency

    def value(word: str) -> float:
        if not any(character.isalnum() for character in word):
            return 0.0
        return -math.log2(frequency(word, "en", minimum=RAREST))

    return WordScores(text, words, [value(text[start:end]) for start, end in words])
