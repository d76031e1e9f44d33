"""Entities of an installed spaCy pipeline: a reference, since these models were trained on labels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ...common.packages import require
from .encoder import SentenceEncoder
from .words import Span, WordScores, text_words

COMPONENT = "ner"
# Labels of numbers and times, which are not names.
NUMBERS = frozenset({"CARDINAL", "ORDINAL", "QUANTITY", "PERCENT", "MONEY", "DATE", "TIME"})
# Components that cost time and that entities do not need.
UNUSED = ("tagger", "morphologizer", "parser", "senter", "attribute_ruler", "lemmatizer")


def ner_packages() -> dict[str, str]:
    """Installed spaCy pipelines with a component `ner`: version by import name. spaCy itself is not imported.

    >>> isinstance(ner_packages(), dict)
    True
    """
    packages: dict[str, str] = {}
    for point in sorted(entry_points(group="spacy_models"), key=lambda point: point.name):
        if point.dist is None:
            continue
        path = Path(str(point.dist.locate_file(point.module.replace(".", "/")))) / "meta.json"
        meta = _read_meta(path)
        if COMPONENT in meta.get("pipeline", ()):
            packages[point.module] = str(meta.get("version", point.dist.version))
    return packages


def _read_meta(path: Path) -> dict[str, Any]:
    """What a package says of its pipeline; nothing where it does not."""
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return meta if isinstance(meta, dict) else {}


@lru_cache(maxsize=1)
def _load(package: str) -> Any:
    """The pipeline, kept: a call may be timed, and loading takes seconds."""
    return require("spacy", "spacy").load(package, exclude=list(UNUSED))


def spacy_scores(
    encoder: SentenceEncoder | None,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]] | None = None,
    *,
    package: str,
) -> list[WordScores]:
    """1 for a word of an entity of any type but numbers and times, else 0; `selected` says the same.

    spaCy gets the words that are given as its tokens, and what stands between them as further ones: nothing has to be
    aligned.

    Args:
        encoder: not used.
        package: import name of the pipeline, one of `ner_packages`.
    """
    spacy = require("spacy", "spacy")
    pipeline = _load(package)
    spans = text_words(texts, words)
    cut = [cut_text(text, row) for text, row in zip(texts, spans, strict=True)]
    documents = [
        spacy.tokens.Doc(pipeline.vocab, words=[text[start:end] for start, end in pieces], spaces=_spaces(text, pieces))
        for text, (pieces, _) in zip(texts, cut, strict=True)
    ]
    results = []
    for text, row, (_, numbers), document in zip(texts, spans, cut, pipeline.pipe(documents), strict=True):
        labels = [document[number].ent_type_ for number in numbers]
        selected = [bool(label) and label not in NUMBERS for label in labels]
        results.append(WordScores(text, row, [float(value) for value in selected], selected))
    return results


def cut_text(text: str, words: Sequence[Span]) -> tuple[list[Span], list[int]]:
    """All pieces of a text, words and what stands between them without white space; and which of them are the words.

    >>> cut_text("Hi, Bob!", [(0, 2), (4, 7)])
    ([(0, 2), (2, 3), (4, 7), (7, 8)], [0, 2])
    """
    pieces: list[Span] = []
    numbers: list[int] = []
    before = 0
    for start, end in [*words, (len(text), len(text))]:
        position = before
        for part in text[before:start].split():
            position = text.index(part, position)
            pieces.append((position, position + len(part)))
            position += len(part)
        if start < end:
            numbers.append(len(pieces))
            pieces.append((start, end))
        before = end
    return pieces, numbers


def _spaces(text: str, pieces: Sequence[Span]) -> list[bool]:
    return [text[end : end + 1].isspace() for _, end in pieces]
