"""Text to train on and to evaluate on: readers, cleaning, the bundled corpus, and the batches that training takes."""

from __future__ import annotations

from .batches import neighbour_batches, random_batches, shard
from .bundled import DOMAINS, bundled_examples, bundled_texts
from .cleaning import clean
from .conll import LabelledSentence, read_conll
from .lines import CorpusError
from .readers import read_texts
from .sentences import split_sentences

__all__ = [
    "DOMAINS",
    "CorpusError",
    "LabelledSentence",
    "bundled_examples",
    "bundled_texts",
    "clean",
    "neighbour_batches",
    "random_batches",
    "read_conll",
    "read_texts",
    "shard",
    "split_sentences",
]
