"""The released head says of fifty texts what it said when tests/data/golden.json was written."""

from __future__ import annotations

import json

import pytest

from hardkuma import load_released
from hardkuma.scoring_hardkuma import score_selectors
from tests.golden import FILE, make


def test_released_head_is_unchanged() -> None:
    expected, found = json.loads(FILE.read_text(encoding="utf-8")), make(load_released()[0], score_selectors)
    assert list(found) == list(expected)
    for name, texts in expected.items():
        for number, (now, then) in enumerate(zip(found[name], texts, strict=True)):
            where = f"{name}, text {number}"
            assert now["words"] == then["words"], where
            assert now["probabilities"] == pytest.approx(then["probabilities"], abs=1e-5), where
            assert (now["own"], now["rate"]) == (then["own"], then["rate"]), where
