"""Correlation of numbers and of their ranks; confidence intervals by drawing sentences again, with replacement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


def ranks(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Ranks from 1, (n,) -> (n,); equal values share their mean rank.

    >>> ranks([10, 30, 10]).tolist()
    [1.5, 3.0, 1.5]
    """
    _, inverse, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def pearson(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float:
    """Linear correlation; NaN for fewer than two values or where one side is constant.

    >>> round(pearson([1, 2, 3], [1, 2, 4]), 3)
    0.982
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} values against {len(second)}; a correlation needs pairs.")
    if len(first) < 2:
        return float("nan")
    a, b = (np.asarray(values, dtype=float) - np.mean(values, dtype=float) for values in (first, second))
    scale = np.sqrt((a @ a) * (b @ b))
    return float(np.clip(a @ b / scale, -1, 1)) if scale > 0 else float("nan")


def spearman(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float:
    """Rank correlation; NaN for fewer than two values or where one side is constant.

    >>> spearman([1, 2, 3], [2, 4, 9])
    1.0
    """
    return pearson(ranks(first), ranks(second))


@dataclass
class Interval:
    """A value with its percentile interval; NaN bounds where no draw had a defined value."""

    value: float
    low: float
    high: float


def bootstrap(
    statistic: Callable[[np.ndarray], Mapping[str, float]],
    sentences: int,
    samples: int = 1000,
) -> dict[str, Interval]:
    """95% intervals of several statistics at once.

    Args:
        statistic: weights (sentences,), how often each sentence was drawn -> named values.
        sentences: how many there are.
        samples: draws; 0 leaves the bounds NaN.

    >>> values = np.arange(100.0)
    >>> mean = bootstrap(lambda w: {"mean": float(w @ values / w.sum())}, 100)["mean"]
    >>> mean.value, 40 < mean.low < 49.5 < mean.high < 60
    (49.5, True)
    """
    point = statistic(np.ones(sentences))
    generator = np.random.default_rng(0)
    draws: dict[str, list[float]] = {name: [] for name in point}
    for _ in range(samples if sentences else 0):
        weights = np.bincount(generator.integers(0, sentences, sentences), minlength=sentences)
        for name, value in statistic(weights.astype(float)).items():
            draws[name].append(value)
    return {name: Interval(float(value), *_bounds(draws[name])) for name, value in point.items()}


def _bounds(draws: list[float]) -> tuple[float, float]:
    defined = [value for value in draws if np.isfinite(value)]
    if not defined:
        return float("nan"), float("nan")
    low, high = np.quantile(defined, [0.025, 0.975])
    return float(low), float(high)


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> float:
    """Mean of the finite values under weights; NaN if there are none.

    >>> weighted_mean(np.array([1.0, np.nan, 3.0]), np.array([1.0, 1.0, 3.0]))
    2.5
    """
    finite = np.isfinite(values)
    total = weights[finite].sum()
    return float(values[finite] @ weights[finite] / total) if total else float("nan")
