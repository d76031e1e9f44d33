"""Small encoders made by hand."""

from __future__ import annotations

import pytest

from hardkuma.evaluation.baselines import SentenceEncoder
from tests.toy import toy_encoder, toy_transformer

PIECES = "the of in to is was rains rain ##y par ##is paris lon ##don london museum river open ##ed . , ! a b c"
VOCABULARY = PIECES.split()
TEXTS = ["the museum opened in Paris .", "it rains", "London , the river , the museum of rainy Paris was opened !"]


@pytest.fixture
def known() -> SentenceEncoder:
    """Mean of word vectors: "paris" is ten times as long as any other, so it decides where a sentence lies."""
    vectors = {"in": [1, 0, 0], "rains": [0, 1, 0], "it": [0.5, -1, 0], "par": [0, 0, 5], "##is": [0, 0, 10]}
    return toy_encoder(vectors, padding=[1, 1, 1])


@pytest.fixture
def transformer() -> SentenceEncoder:
    return toy_transformer(VOCABULARY)
