"""Gates against each peer on the same sentences: how much more their words say, with paired intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .bootstrap import Interval, bootstrap, weighted_mean
from .results import MethodResult, as_json


def paired_differences(ours: Sequence[MethodResult], theirs: Sequence[MethodResult], samples: int) -> dict[str, Interval]:
    """Mean over sentences of (ours - theirs) for sufficiency and comprehensiveness, where both have values.

    Each draw takes the same sentences of both, so that what makes a sentence hard for all cancels out.

    Args:
        ours, theirs: results on the same corpora, in the same order.
        samples: draws for the intervals.

    >>> def result(*values):
    ...     return MethodResult("m", "m", "peer", "1", "c", 3, 9, 1, {}, "", {}, "", 0, 0, 0, areas={"sufficiency": values})
    >>> paired_differences([result(0.5, 0.75, 0.25)], [result(0.25, 0.5, None)], 10)
    {'sufficiency': Interval(value=0.25, low=0.25, high=0.25)}
    """
    gaps = {
        name: np.concatenate([_gap(a.areas[name], b.areas[name]) for a, b in zip(ours, theirs, strict=True)])
        for name in ours[0].areas
    }

    def statistic(weights: np.ndarray) -> dict[str, float]:
        return {name: weighted_mean(values, weights) for name, values in gaps.items()}

    return bootstrap(statistic, max(map(len, gaps.values()), default=0), samples)


def _gap(ours: Sequence[float | None], theirs: Sequence[float | None]) -> np.ndarray:
    return np.array(ours, dtype=float) - np.array(theirs, dtype=float)


def faithful_gates(results: Sequence[MethodResult]) -> MethodResult | None:
    """The gates that peers are compared with: the row of meaning, or the first gates whose faithfulness was measured."""
    gates = [result for result in results if result.kind == "gates" and result.areas]
    return min(gates, key=lambda result: not result.method.startswith("gates_meaning"), default=None)


def compare_faithfulness(results: Sequence[MethodResult], samples: int) -> None:
    """Write `differences` into the results of one corpus; none where there are no gates, or for these themselves."""
    gates = faithful_gates(results)
    for result in results:
        result.differences = {}
        if gates is not None and result.areas and result is not gates:
            found = paired_differences([gates], [result], samples)
            result.differences = {name: as_json(interval) for name, interval in found.items()}
