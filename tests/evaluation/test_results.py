"""Results: on disk, and compared on the same sentences."""

from __future__ import annotations

import numpy as np
import pytest

from hardkuma.evaluation.results import MethodResult, compare_faithfulness, faithful_gates, paired_differences


def with_areas(name: str, values: list[float | None], role: str = "baseline", corpus: str = "c") -> MethodResult:
    areas = {"sufficiency": values}
    common = {"value": 0.5, "low": None, "high": None, "sentences": 2}
    metrics = {"sufficiency": {"value": 0.5}, "average_precision": {"value": 0.5}}
    return MethodResult(
        name, name, role, "1", corpus, 9, 9, 1, {}, "", {}, "", 0, 0, 0, metrics=metrics, common=common, areas=areas
    )


def test_intervals_against_a_naive_loop() -> None:
    generator = np.random.default_rng(1)
    hard = generator.random(30)  # what makes a sentence hard for both
    ours, theirs = hard + 0.1 + 0.01 * generator.random(30), hard
    gates, other = with_areas("gates", ours.tolist(), "gates"), with_areas("other", [*theirs[:-1].tolist(), None])
    gap = paired_differences([gates], [other], 200)["sufficiency"]
    draws, again = [], np.random.default_rng(0)
    for _ in range(200):
        drawn = again.integers(0, 30, 30)
        kept = [i for i in drawn if i < 29]  # the last has no value for the other one
        draws.append(np.mean([ours[i] - theirs[i] for i in kept]))
    assert gap.value == pytest.approx(np.mean(ours[:-1] - theirs[:-1]))
    assert (gap.low, gap.high) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])))
    assert gap.high - gap.low < 0.01 < np.std(hard) / np.sqrt(30)  # unpaired it would be far wider
    compare_faithfulness([other], 10)
    assert other.differences == {}
    meaning = with_areas("gates_meaning@new", ours.tolist(), "gates")
    assert faithful_gates([other, gates, meaning]) is meaning and faithful_gates([other]) is None
