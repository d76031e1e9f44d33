"""Small encoders made by hand, and the embedded MiniLM."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

from hardkuma import HardKumaModel
from hardkuma.attribution import SentenceEncoder
from hardkuma.attribution.toy import toy_encoder, toy_transformer

VOCABULARY = "the of in to is was rains rain ##y par ##is paris lon ##don london museum river open ##ed . , ! a b c".split()
TEXTS = ["the museum opened in Paris .", "it rains", "London , the river , the museum of rainy Paris was opened !"]


@pytest.fixture
def known() -> SentenceEncoder:
    """Mean of word vectors: "paris" is ten times as long as any other, so it decides where a sentence lies."""
    return toy_encoder({"in": [1, 0, 0], "rains": [0, 1, 0], "it": [0.5, -1, 0], "par": [0, 0, 5], "##is": [0, 0, 10]})


@pytest.fixture
def transformer() -> SentenceEncoder:
    return toy_transformer(VOCABULARY)


@pytest.fixture(scope="session")
def minilm() -> HardKumaModel:
    torch.manual_seed(0)
    return HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
