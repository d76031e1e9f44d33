"""Correlation of numbers and of their ranks."""

from __future__ import annotations

from collections.abc import Sequence

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
