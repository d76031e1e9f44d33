"""Do two runs say the same? Rank correlation, overlap at a rate, and rate itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from ..common.correlation import spearman
from .baselines.words import WordScores
from .ranking import top_words


def jaccard(first: Sequence[int], second: Sequence[int]) -> float:
    """|A and B| / |A or B|; 1 if both are empty.

    >>> jaccard([1, 2], [2, 3]).__round__(4)
    0.3333
    """
    union = set(first) | set(second)
    return len(set(first) & set(second)) / len(union) if union else 1.0


def stability(runs: Sequence[Sequence[WordScores]], rate: float = 0.2, seed: int = 0) -> dict[str, float]:
    """Agreement between runs (seeds): the mean over pairs of runs and over sentences of two words or more.

    Args:
        runs: for each seed, the word scores of the same texts.
        rate: fraction of words that counts as selected, for the overlap.

    Returns:
        `spearman` of the scores and `jaccard` of the selections; higher is better. NaN for a single run.

    >>> run = [WordScores("a b c", [(0, 1), (2, 3), (4, 5)], [0.1, 0.2, 0.3])]
    >>> stability([run, run])
    {'spearman': 1.0, 'jaccard': 1.0}
    """
    correlations, overlaps = [], []
    for one, other in combinations(runs, 2):
        for a, b in zip(one, other, strict=True):
            if a.words != b.words:
                raise ValueError(f"the runs saw different words of {a.text[:40]!r}; give the same texts and offsets.")
            if len(a.words) < 2:
                continue
            correlations.append(spearman(a.scores, b.scores))
            picks = [top_words(x.scores, rate, np.random.default_rng([seed, *x.text.encode()])) for x in (a, b)]
            overlaps.append(jaccard(*picks))
    return {"spearman": _mean(correlations), "jaccard": _mean(overlaps)}


def selection_rate(selected: Sequence[Sequence[int]]) -> float:
    """Share of words that are selected.

    >>> selection_rate([[1, 0], [0, 0]])
    0.25
    """
    flat = [bool(value) for row in selected for value in row]
    return sum(flat) / len(flat) if flat else float("nan")


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else float("nan")
