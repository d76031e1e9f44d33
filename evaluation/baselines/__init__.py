"""Baselines: every way to say which words of a sentence matter, under one signature.

    scores(encoder, texts, words=None, ...) -> list[WordScores]

>>> from hardkuma.evaluation.baselines import METHODS
>>> METHODS["capitals"].scores(None, ["we met Ana"])[0].scores
[0.0, 0.0, 1.0]
"""

from .encoder import SentenceEncoder
from .registry import METHODS, find_method
from .words import WordScores

__all__ = ["METHODS", "SentenceEncoder", "WordScores", "find_method"]
