"""What the words of a pair are shaded by, in HTML and in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def strongest_fall(pair: Mapping[str, Any]) -> float:
    """The largest fall of the similarity without one word of either side, which gets the full shade; 1.0 where none falls.

    >>> strongest_fall({"a": {"words": [{"fall": 0.1}, {"fall": 0.4}]}, "b": {"words": [{"fall": -0.2}]}})
    0.4
    """
    falls = [word["fall"] for side in (pair["a"], pair["b"]) for word in side["words"]]
    return max([fall for fall in falls if fall > 0], default=1.0)
