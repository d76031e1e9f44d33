"""Baselines that count words, against libraries and naive loops."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from hardkuma.evaluation.baselines import METHODS
from hardkuma.evaluation.baselines.counts import WordCounts

from ..conftest import whitespace_words

CORPUS = ["the cat sat", "the dog sat down", "The End", "a cat and a dog"]


def test_self_information_against_wordfreq() -> None:
    wordfreq = pytest.importorskip("wordfreq")
    text = "the zymurgy , qqqqzzzq"
    result = METHODS["self_information"].scores(None, [text], [whitespace_words(text)])[0].scores
    assert result[0] == pytest.approx(-math.log2(wordfreq.word_frequency("the", "en")))
    assert result[1] > result[0]
    assert result[2] == 0.0  # punctuation is not in the list, but it is not rare
    assert result[3] == pytest.approx(-math.log2(1e-9))


def test_corpus_self_information_by_hand() -> None:
    counts = WordCounts(CORPUS)  # 14 words, 8 different: the 3, cat 2, sat 2, dog 2, a 2, down, end, and
    assert (counts.total, len(counts.words)) == (14, 8)
    result = METHODS["self_information_corpus"].scores(None, ["The cat vanished"], counts=counts)[0].scores
    assert result == pytest.approx([-math.log2(4 / 23), -math.log2(3 / 23), -math.log2(1 / 23)])


def test_inverse_document_frequency_against_scikit_learn() -> None:
    text_module = pytest.importorskip("sklearn.feature_extraction.text")
    vectorizer = text_module.TfidfVectorizer(token_pattern=r"\w+").fit(CORPUS)
    expected = dict(zip(vectorizer.get_feature_names_out(), vectorizer.idf_, strict=True))
    for text, result in zip(CORPUS, METHODS["idf"].scores(None, CORPUS), strict=True):
        assert result.scores == pytest.approx([expected[word.lower()] for word in text.split()])


def test_information_gain_against_a_naive_loop() -> None:
    """KL of the neighbours' distribution against the corpus', summed over the whole vocabulary."""
    counts = WordCounts(CORPUS)
    sentences = [text.lower().split() for text in CORPUS]
    prior = Counter(word for sentence in sentences for word in sentence)
    for word in prior:
        around = Counter()
        for sentence in sentences:
            if word in sentence:
                around.update(other for other in sentence if other != word)
        number, expected = sum(around.values()), 0.0
        for other, count in prior.items():
            given = around[other] / number
            expected += given * math.log2(given / (count / 14)) if given else 0.0
        assert counts.information_gain(word) == pytest.approx(expected, abs=1e-12)
        assert expected >= 0


def test_information_gain_of_unseen_words_is_that_of_words_seen_once() -> None:
    counts = WordCounts(CORPUS)
    once = [counts.information_gain(word) for word in ("down", "end", "and")]
    assert counts.information_gain("unheard") == pytest.approx(sum(once) / 3)
