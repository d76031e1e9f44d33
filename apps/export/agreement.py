"""How well one set of token probabilities agrees with another: ranking, correlation, decisions."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from ...evaluation.statistics import pearson, ranks, spearman


@dataclass(frozen=True)
class Agreement:
    """Of an export with the gates, over the content tokens of text that took no part in the fit. Higher is better.

    auroc: P(a token that the gates select scores above one that they do not), ties half.
    pearson, spearman: correlation of the probabilities, and of their ranks.
    decisions: share of tokens on which both decide alike.
    selected, selected_by_gates: share of tokens that each selects (no direction is better).
    """

    auroc: float
    pearson: float
    spearman: float
    decisions: float
    selected: float
    selected_by_gates: float
    tokens: int

    def as_dict(self) -> dict[str, float]:
        """Rounded, for reports."""
        return {name: round(value, 5) for name, value in asdict(self).items()}


def agreement(
    probabilities: np.ndarray, gates: np.ndarray, *, threshold: float = 0.5, gate_threshold: float = 0.5
) -> Agreement:
    """Compare (n,) probabilities of an export with (n,) of the gates, each under its own decision threshold.

    >>> measured = agreement(np.array([0.1, 0.7, 0.8]), np.array([0.2, 0.4, 0.9]))
    >>> measured.auroc, measured.spearman, round(measured.decisions, 2)
    (1.0, 1.0, 0.67)
    """
    if probabilities.shape != gates.shape or probabilities.ndim != 1 or len(gates) < 2:
        raise ValueError(f"two rows of at least 2 probabilities are compared, got {probabilities.shape} and {gates.shape}.")
    ours, theirs = probabilities > threshold, gates > gate_threshold
    rank = ranks(probabilities)
    positives, negatives = int(theirs.sum()), int((~theirs).sum())
    auroc = float("nan")
    if positives and negatives:
        auroc = float((rank[theirs].sum() - positives * (positives + 1) / 2) / (positives * negatives))
    return Agreement(
        auroc=auroc,
        pearson=pearson(probabilities, gates),
        spearman=spearman(probabilities, gates),
        decisions=float((ours == theirs).mean()),
        selected=float(ours.mean()),
        selected_by_gates=float(theirs.mean()),
        tokens=len(gates),
    )
