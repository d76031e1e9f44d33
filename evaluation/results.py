"""Results on disk: one JSON file per corpus and method, written whole or not at all, found again by its settings."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..common.files import write_atomically
from .bootstrap import Interval

FORMAT = 2  # raise it when the numbers of an older version are no longer comparable


@dataclass
class MethodResult:
    """One method on one corpus.

    Attributes:
        method, title, kind, cost: from the registry.
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
    kind: str
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


def settings_key(settings: Mapping[str, Any]) -> str:
    """A digest of settings: equal settings, equal key.

    >>> settings_key({"a": 1, "b": 2}) == settings_key({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


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
    if settings is not None and settings_key(result.settings) != settings_key(settings):
        return None
    return result


def result_path(folder: Path, corpus: str, method: str) -> Path:
    """Where the result of a method on a corpus lies."""
    return folder / "results" / corpus / f"{method.replace('@', '--')}.json"
