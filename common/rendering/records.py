"""What is shown: records and pairs, and what the words of a pair are shaded by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Plain JSON values. A record is what `ScoredText.select`, the pipeline and `hardkuma gates` give for one text, a word or
# span is an entry of its "words" or "spans", and a pair is what `explain_pair` gives for two texts.
Record = Mapping[str, Any]
Word = Mapping[str, Any]
Pair = Mapping[str, Any]


# The fall that has the full shade, in every pair: one word of a short paraphrase often makes so much of the similarity.
FULL_FALL = 0.25


def fall_share(pair: Pair, fall: float) -> float:
    """The shade of a word, in [0, 1], by how far the similarity falls without it; none in a pair that is not explained.

    >>> [fall_share({"explained": True}, fall) for fall in (-0.1, 0.125, 0.4)], fall_share({"explained": False}, 0.4)
    ([0.0, 0.5, 1.0], 0.0)
    """
    return min(max(fall / FULL_FALL, 0.0), 1.0) if pair["explained"] else 0.0
