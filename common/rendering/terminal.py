"""What people see of two texts in a terminal. One text: highlight_hardkuma.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...highlight_hardkuma import paint, safe
from .records import Pair, Record, Word, fall_share

SHOWN_LINKS = 3


def paint_pair(pair: Pair, colour: bool, terminal: bool) -> str:
    """What `explain_pair` gives, in lines for people: both texts, the words that carry the similarity, and the check.

    Args:
        pair: the result of `explain_pair`.
        colour: shade the words by how far the similarity falls without them; [brackets] otherwise.
        terminal: make control characters visible.

    >>> def side(text):
    ...     word = {"word": text, "start": 0, "end": 3, "fall": 0.4, "carries": True}
    ...     return {"text": text, "words": [word], "truncated": False}
    >>> faithfulness = {"similarity_without": {"carrying": 0.1, "random": 0.4}, "faithful": True}
    >>> links = [{"a": 0, "b": 0, "strength": 0.9}]
    >>> pair = {"similarity": 0.5, "chance": 0.3, "explained": True, "reason": None, "notes": [], "links": links}
    >>> pair |= {"a": side("cat"), "b": side("Cat"), "faithfulness": faithfulness}
    >>> print(paint_pair(pair, colour=False, terminal=True).replace("\\n\\n", "\\n"))
    similarity 0.500
    A  [cat]
       cat 0.400
    B  [Cat]
       Cat 0.400
    together: cat - Cat
    without one side's words 0.100, without as many random ones 0.400
    """
    first, second = (safe(pair[name]) if terminal else pair[name] for name in "ab")
    lines = [f"similarity {pair['similarity']:.3f}"]
    if not pair["explained"]:
        lines.append(f"not explained: {pair['reason']}.")
    lines += [*(f"note: {note}." for note in pair["notes"]), ""]
    for name, side in (("A", first), ("B", second)):
        words = [
            {**word, "probability": fall_share(pair, word["fall"]), "selected": word["carries"]} for word in side["words"]
        ]
        end = "  (the encoder does not see the end)" if side["truncated"] else ""
        lines.append(f"{name}  {paint({**side, 'words': words}, colour)}{end}")
        carrying = sorted((word for word in words if word["carries"]), key=lambda word: -word["fall"])
        listed = ", ".join(f"{_text_of(side, word)} {word['fall']:.3f}" for word in carrying)
        lines.append(f"   {listed or 'no word carries it'}")
    links = [
        f"{_text_of(first, first['words'][link['a']])} - {_text_of(second, second['words'][link['b']])}"
        for link in pair["links"][:SHOWN_LINKS]
    ]
    if links:
        lines += ["", f"together: {', '.join(links)}"]
    if any(word["carries"] for side in (first, second) for word in side["words"]):
        lines += ["", *_check_lines(pair["faithfulness"])]
    return "\n".join(lines)


def _check_lines(faithfulness: Mapping[str, Any]) -> list[str]:
    without = faithfulness["similarity_without"]
    lines = [f"without one side's words {without['carrying']:.3f}, without as many random ones {without['random']:.3f}"]
    if faithfulness["faithful"] is False:
        lines.append("The check fails: these words do not carry the similarity more than others do.")
    return lines


def _text_of(side: Record, word: Word) -> str:
    return side["text"][word["start"] : word["end"]]
