"""What is shown: records and pairs, and what the words of a pair are shaded by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Plain JSON values. A record is what `ScoredText.select`, the pipeline and `hardkuma gates` give for one text, a word or
# span is an entry of its "words" or "spans", and a pair is what `explain_pair` gives for two texts.
Record = Mapping[str, Any]
Word = Mapping[str, Any]
Pair = Mapping[str, Any]


def strongest_fall(pair: Pair) -> float:
    """The largest fall of the similarity without one word of either side, which gets the full shade; 1.0 where none falls.

    >>> strongest_fall({"a": {"words": [{"fall": 0.1}, {"fall": 0.4}]}, "b": {"words": [{"fall": -0.2}]}})
    0.4
    """
    falls = [word["fall"] for side in (pair["a"], pair["b"]) for word in side["words"]]
    return max([fall for fall in falls if fall > 0], default=1.0)
