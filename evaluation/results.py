"""Results: one JSON file per corpus and method, found again by its settings, and gates compared with each baseline."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..common.files import write_atomically
from .baselines.registry import GATES
from .statistics import Interval, bootstrap, weighted_mean

FORMAT = 3  # raise it when the numbers of an older version are no longer comparable


@dataclass
class MethodResult:
    """One method on one corpus.

    Attributes:
        method, title, role, cost: from the registry.
        corpus: name of the corpus; sentences, words: size of the sample.
        runs: seeds or checkpoints that the numbers are a mean of.
        settings: all that the numbers depend on.
        command, versions, created: how, with what and when they were made.
        seconds, forward_passes, backward_passes: for the word scores of all runs, nothing else.
        metrics: name -> value, low, high (95%), None where undefined; of average precision also that of all runs.
        common: average precision on the sentences that every method has in common.
        curves: `precision_recall` and `faithfulness`, for plots.
        selector: of gates; empty for other methods.
        areas: sufficiency and comprehensiveness of each sentence, by name; None for sentences without words.
        differences: how much more sufficient and comprehensive the gates are on the same sentences, by name: value, low,
            high (95%, paired); see `compare_faithfulness`.
        examples: scores (and decisions) of the first run on the example sentences.
    """

    method: str
    title: str
    role: str
    cost: str
    corpus: str
    sentences: int
    words: int
    runs: int
    settings: dict[str, Any]
    command: str
    versions: dict[str, str]
    created: str
    seconds: float
    forward_passes: int
    backward_passes: int
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    common: dict[str, float | None] = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)
    selector: str = ""
    areas: dict[str, list[float | None]] = field(default_factory=dict)
    differences: dict[str, dict[str, float | None]] = field(default_factory=dict)

    @property
    def seconds_per_sentence(self) -> float:
        return self.seconds / max(1, self.sentences * self.runs)

    @property
    def passes_per_sentence(self) -> float:
        """Forward and backward passes together."""
        return (self.forward_passes + self.backward_passes) / max(1, self.sentences * self.runs)

    def value(self, metric: str) -> float | None:
        """The value of a metric, or None where it was not measured."""
        return self.metrics.get(metric, {}).get("value")


def as_json(interval: Interval) -> dict[str, float | None]:
    """A value with its bounds; NaN, which JSON does not know, as None.

    >>> as_json(Interval(0.5, float("nan"), 0.75))
    {'value': 0.5, 'low': None, 'high': 0.75}
    """
    return {name: round(value, 6) if math.isfinite(value) else None for name, value in asdict(interval).items()}


def save_result(folder: Path, result: MethodResult) -> Path:
    """Write a result to `folder/corpus/method.json`."""
    path = result_path(folder, result.corpus, result.method)
    write_atomically(path, json.dumps({"format": FORMAT, **asdict(result)}, ensure_ascii=False, indent=1, allow_nan=False))
    return path


def load_result(path: Path, settings: Mapping[str, Any] | None = None) -> MethodResult | None:
    """A result, if it is there, whole, of this format and (if given) of these settings; else None."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("format") != FORMAT:
            return None
        result = MethodResult(**values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if settings is not None and result.settings != json.loads(json.dumps(settings)):
        return None
    return result


def result_path(folder: Path, corpus: str, method: str) -> Path:
    """Where the result of a method on a corpus lies."""
    return folder / "results" / corpus / f"{method.replace('@', '--')}.json"


def paired_differences(ours: Sequence[MethodResult], theirs: Sequence[MethodResult], samples: int) -> dict[str, Interval]:
    """Mean over sentences of (ours - theirs) for sufficiency and comprehensiveness, where both have values.

    Each draw takes the same sentences of both, so that what makes a sentence hard for all cancels out.

    Args:
        ours, theirs: results on the same corpora, in the same order.
        samples: draws for the intervals.

    >>> def result(*values):
    ...     areas = {"sufficiency": values}
    ...     return MethodResult("m", "m", "baseline", "1", "c", 3, 9, 1, {}, "", {}, "", 0, 0, 0, areas=areas)
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
    """The gates that baselines are compared with: the row of meaning, or the first whose faithfulness was measured."""
    gates = [result for result in results if result.role == GATES and result.areas]
    return min(gates, key=lambda result: not result.method.startswith("gates_meaning"), default=None)


def compare_faithfulness(results: Sequence[MethodResult], samples: int) -> None:
    """Write `differences` into the results of one corpus; none where there are no gates, or for these themselves."""
    gates = faithful_gates(results)
    for result in results:
        result.differences = {}
        if gates is not None and result.areas and result is not gates:
            found = paired_differences([gates], [result], samples)
            result.differences = {name: as_json(interval) for name, interval in found.items()}
