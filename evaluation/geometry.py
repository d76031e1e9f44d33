"""Alignment and uniformity of embeddings on the unit sphere (Wang and Isola, 2020). Lower is better for both."""

from __future__ import annotations

import torch
from torch import Tensor

from ..pooling_hardkuma import normalize


def alignment(first: Tensor, second: Tensor, power: float = 2.0) -> float:
    """Mean of ||x - y||^power over pairs (rows) of unit vectors.

    >>> alignment(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])).__round__(4)
    2.0
    """
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"pairs of (number, dim) vectors expected, got {tuple(first.shape)} and {tuple(second.shape)}.")
    return float((normalize(first.float()) - normalize(second.float())).norm(dim=-1).pow(power).mean())


def uniformity(vectors: Tensor, scale: float = 2.0) -> float:
    """log of the mean over pairs of exp(-scale ||x - y||^2), for unit vectors.

    >>> uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])).__round__(4)  # -2 x 4
    -8.0
    """
    if vectors.ndim != 2 or len(vectors) < 2:
        raise ValueError(f"at least 2 vectors (number, dim) expected, got {tuple(vectors.shape)}.")
    distances = torch.pdist(normalize(vectors.double()))
    return float(torch.logsumexp(-scale * distances.square(), 0) - torch.tensor(float(len(distances))).log())
