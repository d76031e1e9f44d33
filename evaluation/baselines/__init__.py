"""Baselines: every way to say which words of a sentence matter, under one signature.

    scores(encoder, texts, words=None, ...) -> list[WordScores]

>>> from hardkuma.evaluation.baselines import METHODS
>>> METHODS["capitals"].scores(None, ["we met Ana"])[0].scores
[0.0, 0.0, 1.0]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.packages import lazy_exports

if TYPE_CHECKING:  # for type checkers and editors, which do not follow __getattr__
    from .counts import WordCounts as WordCounts
    from .encoder import SentenceEncoder as SentenceEncoder
    from .registry import METHODS as METHODS
    from .registry import Method as Method
    from .registry import find_method as find_method
    from .words import WordScores as WordScores
    from .words import text_words as text_words

_EXPORTS = {
    "METHODS": "registry",
    "Method": "registry",
    "find_method": "registry",
    "SentenceEncoder": "encoder",
    "WordCounts": "counts",
    "WordScores": "words",
    "text_words": "words",
}
__all__ = list(_EXPORTS)
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
