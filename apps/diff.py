"""Which sentences of one text say something else than another text, and in which words?

Sentences are aligned by their embeddings, so that moved ones find each other. In what a sentence and its counterpart differ
is in differences.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.sentences import split_sentences
from ..scoring_hardkuma import check_count, encodable
from .differences import DIFFERENT, check_pair, find_differences
from .reading import AnchorModel, chance_of, embed_anchors

SAME, CHANGED, NEW, MISSING = CHANGES = ("same", "changed", "new", "missing")
_ALIGNED = 1024  # rows of the matrix of cosines that are in memory at once
_COMPARED = 512  # pairs that are compared together


class Sentence(NamedTuple):
    """A sentence, and the number of the row (line, record) that it begins in, from 1."""

    text: str
    row: int


def read_sentences(rows: Iterable[str]) -> list[Sentence]:
    """The sentences of rows of text. A row that begins with a small letter goes on with the one before it, as in text of
    hard-wrapped lines.

    >>> [tuple(sentence) for sentence in read_sentences(["Rain fell on", "the town. It", "flooded.", "", "NASA"])]
    [('Rain fell on the town.', 1), ('It flooded.', 2), ('NASA', 5)]
    """
    sentences: list[Sentence] = []
    paragraph: list[Sentence] = []  # its rows
    for number, row in enumerate(rows, start=1):
        line = " ".join(encodable(row).split())
        if not line[:1].islower():
            sentences += _split(paragraph)
            paragraph = []
        if line:
            paragraph.append(Sentence(line, number))
    return [*sentences, *_split(paragraph)]


def _split(rows: Sequence[Sentence]) -> Iterator[Sentence]:
    text, position = " ".join(row.text for row in rows), 0
    starts: list[tuple[int, int]] = []  # where each row begins, and its number
    for row in rows:
        starts.append((position, row.row))
        position += len(row.text) + 1
    position = 0
    for sentence in split_sentences(text):
        position = text.index(sentence, position)
        yield Sentence(sentence, max(number for start, number in starts if start <= position))
        position += len(sentence)


def compare_texts(
    model: AnchorModel, a: Iterable[str], b: Iterable[str], *, batch_size: int = 32
) -> Iterator[dict[str, Any]]:
    """The sentences of text b, in order, each with its counterpart in text a; then those of a that b has not.

    Args:
        model: a HardKumaModel in eval mode, with its tokenizer.
        a, b: rows of text, such as lines of a file.

    Yields:
        {"change", "similarity", "notes", "a", "b"}, of plain JSON values. "change" is "same" (no word differs), "changed",
        "new" (every word differs from the nearest sentence of a, or it is no closer than unrelated ones are; a is None), or
        "missing" (a sentence of a that is nobody's counterpart, and differs from the nearest sentence of b; b is None).
        Sides are as `find_differences` gives them, with "row", the number of the row that the sentence begins in.

    >>> from hardkuma import load_released
    >>> old, new = ["The shop opens at 9. It rains."], ["It rains.", "The shop opens at 10."]
    >>> changes = list(compare_texts(load_released()[0], old, new))
    >>> [(item["change"], [span["text"] for span in item["b"]["differences"]]) for item in changes]
    [('same', []), ('changed', ['10'])]
    """
    check_count("batch_size", batch_size)
    first, second = read_sentences(a), read_sentences(b)
    of_second, of_first = _nearest(model, first, second, batch_size)
    taken = set()
    for sentence, number, item in _compare_nearest(model, second, first, of_second, batch_size):
        if item["change"] == NEW:
            yield {**item, "a": None, "b": {**item["a"], "row": sentence.row}}
        else:
            taken.add(number)
            yield {**item, "a": {**item["b"], "row": first[number].row}, "b": {**item["a"], "row": sentence.row}}
    rest = [i for i in range(len(first)) if i not in taken]
    left = [first[i] for i in rest], second, [of_first[i] for i in rest]
    for sentence, _, item in _compare_nearest(model, *left, batch_size):
        if item["a"]["differences"]:
            yield {**item, "change": MISSING, "a": {**item["a"], "row": sentence.row}, "b": None}


def compare_pairs(
    model: AnchorModel, pairs: Iterable[tuple[str, str]], *, batch_size: int = 32
) -> Iterator[dict[str, Any]]:
    """What `compare_texts` says of texts that are pairs already, such as two columns of a table: each is "same", "changed",
    or "new" where the two have nothing in common. Both sides are there in every case.

    >>> from hardkuma import load_released
    >>> [item["change"] for item in compare_pairs(load_released()[0], [("It rains.", "It rains."), ("Yes.", "A cat.")])]
    ['same', 'new']
    """
    check_count("batch_size", batch_size)
    chance, rows = chance_of(model), enumerate(pairs, start=1)
    while part := list(islice(rows, _COMPARED)):
        for _, pair in part:
            check_pair(pair)
        texts = [(encodable(a), encodable(b)) for _, (a, b) in part]
        for (row, _), found in zip(part, find_differences(model, texts, batch_size=batch_size), strict=True):
            yield {**_describe(found, chance, "b"), **{name: {**found[name], "row": row} for name in "ab"}}


def _describe(found: dict[str, Any], chance: float, name: str) -> dict[str, Any]:
    """What `find_differences` gives of a pair, with the change that it is for one of its sides."""
    change = CHANGED if any(found[side]["differences"] for side in "ab") else SAME
    if change == CHANGED:
        words = found[name]["words"]
        if found["similarity"] <= chance or all(word["differs"] >= DIFFERENT for word in words):
            change = NEW
    return {"change": change, **found}


def _compare_nearest(
    model: AnchorModel, sentences: Sequence[Sentence], others: Sequence[Sentence], nearest: Sequence[int], batch_size: int
) -> Iterator[tuple[Sentence, int, dict[str, Any]]]:
    """Each sentence, the number of the nearest one of the other text, and how the two compare: the sentence is side a."""
    chance = chance_of(model)
    texts = [others[number].text if others else "" for number in nearest]
    for start in range(0, len(sentences), _COMPARED):
        part = range(start, min(start + _COMPARED, len(sentences)))
        pairs = [(sentences[i].text, texts[i]) for i in part]
        for i, found in zip(part, find_differences(model, pairs, batch_size=batch_size), strict=True):
            yield sentences[i], nearest[i], _describe(found, chance, "a")


@torch.inference_mode()
def _nearest(
    model: AnchorModel, first: Sequence[Sentence], second: Sequence[Sentence], batch_size: int
) -> tuple[list[int], list[int]]:
    """For each sentence of the second text the number of the nearest one of the first, and the other way round; zeros where
    there is none."""
    if not first or not second:
        return [0] * len(second), [0] * len(first)
    texts = list(dict.fromkeys(sentence.text for sentence in (*first, *second)))
    rows = {text: row for row, text in enumerate(texts)}
    vectors = embed_anchors(model, texts, batch_size)
    a, b = (vectors[[rows[sentence.text] for sentence in sentences]] for sentences in (first, second))
    return _best(b, a), _best(a, b)


def _best(vectors: Tensor, others: Tensor) -> list[int]:
    """The number of the nearest of the others; of those that are equally near, such as repeated sentences, the one at the
    same place of its text."""
    places, other_places = (torch.arange(len(rows)) / len(rows) for rows in (vectors, others))
    nearest: list[int] = []
    for start in range(0, len(vectors), _ALIGNED):
        rows = slice(start, start + _ALIGNED)
        apart = (places[rows, None] - other_places).abs()
        nearest += (vectors[rows] @ others.T - 1e-4 * apart).argmax(-1).tolist()
    return nearest
