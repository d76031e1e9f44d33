"""What is shown: records and pairs, and what the words of a pair are shaded by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Plain JSON values. A record is what `ScoredText.select`, the pipeline and `hardkuma gates` give for one text, a word or
# span is an entry of its "words" or "spans", and a pair is what `explain_pair` gives for two texts.
Record = Mapping[str, Any]
Word = Mapping[str, Any]
Pair = Mapping[str, Any]


def share_of_similarity(pair: Pair, fall: float) -> float:
    """Which part of a pair's similarity a fall of it is, from 0 to 1: an absolute scale, the same for every pair.

    >>> pair = {"similarity": 0.8}
    >>> share_of_similarity(pair, 0.2), share_of_similarity(pair, -0.1), share_of_similarity({"similarity": -0.1}, 0.1)
    (0.25, 0.0, 0.0)
    """
    return min(max(fall / pair["similarity"], 0.0), 1.0) if pair["similarity"] > 0 else 0.0


def is_explained(pair: Pair) -> bool:
    """Whether any word is said to carry the similarity.

    >>> is_explained({"a": {"words": [{"carries": False}]}, "b": {"words": []}})
    False
    """
    return any(word["carries"] for name in "ab" for word in pair[name]["words"])
