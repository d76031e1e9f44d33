"""Labelled sentences for evaluation: what `hardkuma.corpora` reads, with words as character offsets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..attribution.words import Span
from ..corpora import read_conll as read_labelled


@dataclass
class TaggedSentence:
    """A sentence with one tag per word.

    Attributes:
        text: the sentence as a reader would write it.
        words: (start, end) character offsets.
        tags: one per word.
    """

    text: str
    words: list[Span]
    tags: list[str]


def join_words(forms: list[str], tags: list[str]) -> TaggedSentence:
    """Words joined by spaces, with their offsets.

    >>> join_words(["In", "Paris"], ["O", "B-LOC"]).words
    [(0, 2), (3, 8)]
    """
    words, place = [], 0
    for form in forms:
        words.append((place, place + len(form)))
        place += len(form) + 1
    return TaggedSentence(" ".join(forms), words, tags)


def read_tagged(path: str | Path) -> Iterator[TaggedSentence]:
    """Sentences of a CoNLL file (entity tags) or a CoNLL-U file (parts of speech), by suffix.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "x.conll"
    ...     _ = path.write_text("In O\\nRome B-LOC\\n. O\\n")
    ...     [(sentence.text, sentence.words) for sentence in read_tagged(path)]
    [('In Rome.', [(0, 2), (3, 7), (7, 8)])]
    """
    for sentence in read_labelled(path):
        yield TaggedSentence(sentence.text, list(sentence.offsets), list(sentence.tags))
