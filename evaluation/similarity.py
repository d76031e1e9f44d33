"""Semantic textual similarity: does the cosine of two sentences rank pairs as people do? Higher is better.

Files are those of SemEval's STS 2012 to 2016 and SICK-R in one plain form (subset, score, sentence, sentence), and the STS
benchmark in its own (genre, ..., score, sentence, sentence); columns are separated by tabs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..common.correlation import spearman

# Task, its file in the data folder, and the columns of subset, score, sentence and sentence.
_PLAIN = (0, 1, 2, 3)
STS_FILES: Mapping[str, tuple[str, tuple[int, int, int, int]]] = {
    **{f"STS{year}": (f"sts/sts{year}.tsv", _PLAIN) for year in (12, 13, 14, 15, 16)},
    "STS-B": ("stsb/sts-test.csv", (0, 4, 5, 6)),
    "SICK-R": ("sts/sick-r.tsv", _PLAIN),
}


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of sentences with people's scores.

    Attributes:
        subsets, scores, first, second: (pairs,) each.
        skipped: lines without a score, which are left out.
    """

    subsets: list[str]
    scores: list[float]
    first: list[str]
    second: list[str]
    skipped: int = 0


@dataclass(frozen=True)
class Similarity:
    """Spearman's correlation of cosines and scores.

    Attributes:
        together: over all pairs at once (the "all" setting).
        mean: of the correlations within each subset.
    """

    together: float
    mean: float


def read_scored_pairs(path: Path, columns: tuple[int, int, int, int] = _PLAIN) -> ScoredPairs:
    """The pairs of a file; lines whose score is missing are skipped and counted.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "sts.tsv"
    >>> _ = path.write_text("news\\t4.5\\tone\\ttwo\\nnews\\t\\tthree\\tfour\\n")
    >>> read_scored_pairs(path)
    ScoredPairs(subsets=['news'], scores=[4.5], first=['one'], second=['two'], skipped=1)
    """
    pairs, skipped = ScoredPairs([], [], [], []), 0
    for number, row in read_rows(path, max(columns) + 1):
        subset, score, first, second = (row[column] for column in columns)
        try:
            value = float(score) if score.strip() else math.nan
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: the score must be a number or empty, got {score!r}.") from error
        if not math.isfinite(value):
            skipped += 1
            continue
        for column, item in zip((pairs.subsets, pairs.first, pairs.second), (subset, first, second), strict=True):
            column.append(item)
        pairs.scores.append(value)
    if not pairs.scores:
        raise ValueError(f"{path} holds no pair with a score.")
    return ScoredPairs(pairs.subsets, pairs.scores, pairs.first, pairs.second, skipped)


def read_rows(path: Path, columns: int) -> list[tuple[int, list[str]]]:
    """Lines of a file by number, cut at tabs into at least so many columns; empty lines are left out."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        row = line.rstrip("\r").split("\t")
        if not line.strip():
            continue
        if len(row) < columns:
            raise ValueError(f"{path}, line {number}: {columns} columns separated by tabs expected, got {len(row)}.")
        rows.append((number, row))
    return rows


def measure_similarity(pairs: ScoredPairs, embed: Callable[[Sequence[str]], np.ndarray]) -> Similarity:
    """Spearman's correlation, over all pairs and within subsets.

    Args:
        embed: (texts) -> (texts, dim) vectors.

    >>> vectors = {"a": [1.0, 0.0], "b": [1.0, 0.1], "c": [0.0, 1.0]}
    >>> pairs = ScoredPairs(["x", "x", "x"], [5.0, 1.0, 0.0], ["a", "b", "a"], ["b", "c", "c"])
    >>> measure_similarity(pairs, lambda texts: np.array([vectors[text] for text in texts])).together
    1.0
    """
    first, second = embed(pairs.first), embed(pairs.second)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines, scores = (first * second).sum(1) / np.maximum(lengths, 1e-12), np.array(pairs.scores)
    subsets = np.array(pairs.subsets)
    within = [spearman(cosines[subsets == name], scores[subsets == name]) for name in dict.fromkeys(pairs.subsets)]
    return Similarity(spearman(cosines, scores), float(np.mean(within)))
