"""What people see of two texts in a terminal. One text: scoring_hardkuma.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...scoring_hardkuma import paint, safe
from .records import Pair, Record, Word, mark_side

SHOWN_LINKS = 3


def paint_pair(pair: Pair, colour: bool, terminal: bool) -> str:
    """What `explain_pair` gives, in lines for people: both texts, the words that carry the similarity and those that
    differ, and the check.

    Args:
        pair: the result of `explain_pair`.
        colour: shade the words by how far the similarity falls without them, and those that differ in another colour;
            otherwise the words that carry the similarity are in [brackets], the differences in {braces}.
        terminal: make control characters visible.

    >>> def side(text):
    ...     word = {"word": text[:3], "start": 0, "end": 3, "fall": 0.4, "carries": True, "differs": 0.0}
    ...     said = {"word": text[4:], "start": 4, "end": 8, "fall": 0.0, "carries": False, "differs": 0.9}
    ...     different = {"text": text[4:], "start": 4, "end": 8, "differs": 0.9}
    ...     return {"text": text, "words": [word, said], "differences": [different], "truncated": False}
    >>> faithfulness = {"similarity_without": {"carrying": 0.1, "random": 0.4}, "faithful": True}
    >>> links = [{"a": 0, "b": 0, "strength": 0.9}]
    >>> pair = {"similarity": 0.5, "chance": 0.3, "explained": True, "reason": None, "notes": [], "links": links}
    >>> pair |= {"a": side("cat runs"), "b": side("Cat naps"), "faithfulness": faithfulness}
    >>> print(paint_pair(pair, colour=False, terminal=True).replace("\\n\\n", "\\n"))
    similarity 0.500
    A  [cat] {runs}
       carried by cat 0.400; differs in runs 0.90
    B  [Cat] {naps}
       carried by Cat 0.400; differs in naps 0.90
    together: cat - Cat
    without one side's words 0.100, without as many random ones 0.400
    """
    first, second = (safe(pair[name]) if terminal else pair[name] for name in "ab")
    lines = [f"similarity {pair['similarity']:.3f}"]
    if not pair["explained"]:
        lines.append(f"not explained: {pair['reason']}.")
    lines += [*(f"note: {note}." for note in pair["notes"]), ""]
    for name, side in (("A", first), ("B", second)):
        words, spans = mark_side(pair, name.lower())
        shown = [{**word, "selected": word["carries"] or word["different"]} for word in words]
        end = "  (the encoder does not see the end)" if side["truncated"] else ""
        lines.append(f"{name}  {paint({**side, 'words': shown, 'spans': spans}, colour)}{end}")
        carrying = sorted((word for word in words if word["carries"]), key=lambda word: -word["fall"])
        listed = ", ".join(f"{_text_of(side, word)} {word['fall']:.3f}" for word in carrying)
        differing = ", ".join(f"{_text_of(side, span)} {span['differs']:.2f}" for span in spans if span["different"])
        lines.append(
            f"   {f'carried by {listed}' if listed else 'no word carries it'}"
            f"{f'; differs in {differing}' if differing else ''}"
        )
    links = [
        f"{_text_of(first, first['words'][link['a']])} - {_text_of(second, second['words'][link['b']])}"
        for link in pair["links"][:SHOWN_LINKS]
    ]
    if links:
        lines += ["", f"together: {', '.join(links)}"]
    if any(word["carries"] for side in (first, second) for word in side["words"]):
        lines += ["", *_check_lines(pair["faithfulness"])]
    return "\n".join(lines)


def paint_change(change: Record, colour: bool, terminal: bool) -> str:
    """What `compare_texts` gives of a sentence, in lines for people: - the sentence of a, + that of b.

    Args:
        colour: shade the words that differ; {braces} otherwise.
        terminal: make control characters visible.

    >>> word = {"word": "two", "start": 0, "end": 3, "differs": 1.0}
    >>> side = {"text": "two", "words": [word], "differences": [{"text": "two", **word}], "row": 7, "truncated": False}
    >>> print(paint_change({"change": "new", "similarity": 0.1, "notes": [], "a": None, "b": side}, False, False))
    new
    + 7: {two}
    """
    both = change["a"] is not None and change["b"] is not None
    lines = [f"{change['change']}  {change['similarity']:.3f}" if both else change["change"]]
    lines += [f"note: {note}." for note in change["notes"]]
    for name, sign in (("a", "-"), ("b", "+")):
        if change[name] is None:
            continue
        side = safe(change[name]) if terminal else change[name]
        words, spans = mark_side(change, name)
        shown = [{**word, "selected": word["different"]} for word in words]
        lines.append(f"{sign} {side['row']}: {paint({**side, 'words': shown, 'spans': spans}, colour)}")
    return "\n".join(lines)


def _check_lines(faithfulness: Mapping[str, Any]) -> list[str]:
    without = faithfulness["similarity_without"]
    lines = [f"without one side's words {without['carrying']:.3f}, without as many random ones {without['random']:.3f}"]
    if faithfulness["faithful"] is False:
        lines.append("The check fails: these words do not carry the similarity more than others do.")
    return lines


def _text_of(side: Record, word: Word) -> str:
    return side["text"][word["start"] : word["end"]]
