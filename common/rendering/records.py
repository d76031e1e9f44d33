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


def mark_side(pair: Pair, name: str, differences: bool = True) -> tuple[list[Word], list[Word]]:
    """The words and spans of one text of a pair, "a" or "b", as they are shown. A word is shaded by how far the similarity
    falls without it, or, within a difference ("different": True), by how much it differs. Spans are the words that carry
    the similarity, and the differences. Where texts have nothing in common everything differs, and nothing is marked. Of
    what `find_differences` gives, which knows nothing of similarity, the differences are marked alone.

    Args:
        differences: show them.

    >>> cat = {"word": "cat", "start": 0, "end": 3, "fall": 0.125, "carries": True, "differs": 0.1}
    >>> sat = {"word": "sat", "start": 4, "end": 7, "fall": 0.0, "carries": False, "differs": 0.8}
    >>> side = {"text": "cat sat", "words": [cat, sat], "differences": [{"start": 4, "end": 7, "differs": 0.8}]}
    >>> words, spans = mark_side({"similarity": 0.5, "chance": 0.2, "explained": True, "a": side}, "a")
    >>> [(word["probability"], word["different"]) for word in words], [span["different"] for span in spans]
    ([(0.5, False), (0.8, True)], [False, True])
    """
    side = pair[name]
    unrelated = "chance" in pair and pair["similarity"] <= pair["chance"]
    found = side.get("differences", []) if differences and not unrelated else []
    words: list[Word] = []
    for word in side["words"]:
        if any(span["start"] <= word["start"] < span["end"] for span in found):
            shade = {"probability": word["differs"], "note": differs_note(word["differs"]), "different": True}
        elif "fall" in word:
            fall = word["fall"]
            share = min(max(fall / FULL_FALL, 0.0), 1.0) if pair["explained"] else 0.0
            note = f"the similarity {'falls' if fall >= 0 else 'rises'} by {abs(fall):.3f} without it"
            shade = {"probability": share, "note": note, "different": False}
        else:
            shade = {"probability": 0.0, "note": differs_note(word["differs"]), "different": False}
        words.append({**word, **shade})
    marked = [
        {**span, "probability": span["differs"], "note": differs_note(span["differs"]), "different": True} for span in found
    ]
    carrying = [word for word in words if word.get("carries")]
    return words, sorted([*carrying, *marked], key=lambda span: span["start"])


def differs_note(differs: float) -> str:
    """What is said of a word or span that differs.

    >>> differs_note(0.5)
    'differs from the other text by 0.50'
    """
    return f"differs from the other text by {differs:.2f}"
