"""KeyBERT and YAKE on our words."""

from __future__ import annotations

import pytest
import torch

from hardkuma.evaluation.baselines import METHODS, SentenceEncoder

from ..conftest import whitespace_words


def test_keybert_is_the_cosine_of_word_and_text(known: SentenceEncoder) -> None:
    pytest.importorskip("keybert")
    text = "it rains , rains in Paris"
    result = METHODS["keybert"].scores(known, [text], [whitespace_words(text)])[0]
    words, whole = known.encode(["it", "rains", ",", "rains", "in", "paris"]), known.encode([text])
    expected = torch.cosine_similarity(words, whole).tolist()
    assert result.scores == pytest.approx(expected, abs=1e-3)  # keybert rounds to 4 digits


def test_yake_prefers_content_words() -> None:
    pytest.importorskip("yake")
    text = "the museum of the city opened the museum"
    result = METHODS["yake"].scores(None, [text])[0]
    by_word = dict(zip(text.split(), result.scores, strict=True))
    assert by_word["museum"] > by_word["the"] == by_word["of"] == -10  # stop words are no candidates
    assert min(by_word[word] for word in ("museum", "city", "opened")) > -10
