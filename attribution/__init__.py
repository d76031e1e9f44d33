"""The peers: every way to say which words of a sentence matter, under one signature.

    scores(encoder, texts, words=None, ...) -> list[WordScores]

>>> from hardkuma.attribution import METHODS
>>> METHODS["capitals"].scores(None, ["we met Ana"])[0].scores
[0.0, 0.0, 1.0]
"""

from .counts import WordCounts
from .dropout_policy import KeptTokens, attention_dropout
from .encoder import SentenceEncoder
from .registry import METHODS, Method, find_method
from .words import WordScores, text_words, whitespace_words

__all__ = [
    "METHODS",
    "KeptTokens",
    "Method",
    "SentenceEncoder",
    "WordCounts",
    "WordScores",
    "attention_dropout",
    "find_method",
    "text_words",
    "whitespace_words",
]
