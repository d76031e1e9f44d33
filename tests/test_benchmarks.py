"""Every benchmark can be imported and says what it does; running them is nobody's test."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).resolve().parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=[path.stem for path in BENCHMARKS])
def test_help(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(path), run_name="__main__")
    shown = capsys.readouterr().out
    assert end.value.code == 0 and f"python benchmarks/{path.name}" in shown, "help holds the manual"


def test_there_are_benchmarks() -> None:
    assert len(BENCHMARKS) >= 9


def test_encoder_arms_list_results_of_their_own_settings_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(path for path in BENCHMARKS if path.stem == "encoder_arms")
    arms = runpy.run_path(str(path))
    known = {"average": 50.0, "settings": arms["SETTINGS"]}
    entries = [
        {**known, "arm": "cropping", "seed": 0, "view": arms["ARMS"]["cropping"]},
        {**known, "arm": "random drop", "seed": 0, "view": {"random_deletion": {"t": 4}}},  # another view
        {**known, "arm": "dropout only", "seed": 0, "view": {"dropout": None}, "settings": {"max_steps": 3}},
        {**known, "arm": "an arm of old", "seed": 0, "view": {"dropout": None}},
    ]
    kept = tmp_path / "results.jsonl"
    kept.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    monkeypatch.setattr(sys, "argv", [str(path), "--results", str(kept), "--table"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(path), run_name="__main__")
    shown = capsys.readouterr().out
    assert "| cropping | 1 | 50.00 |" in shown
    assert not any(name in shown for name in ("random drop", "dropout only", "an arm of old"))


def test_experiments_that_are_kept_are_current_and_documented() -> None:
    """Every row has three seeds of today's recipe and settings, and stands in the document as it was measured."""
    path = next(path for path in BENCHMARKS if path.stem == "experiments")
    experiments = runpy.run_path(str(path))
    kept = [json.loads(line) for line in experiments["RESULTS"].read_text(encoding="utf-8").splitlines()]
    assert all(experiments["is_current"](entry) for entry in kept)
    assert {(entry["row"], entry["seed"]) for entry in kept} == {(row, n) for row in experiments["ROWS"] for n in range(3)}
    document = (path.parents[1] / "docs" / "experiments.md").read_text(encoding="utf-8").splitlines()
    shown = [line for line in experiments["table"](kept).splitlines() if line.startswith("|") and "± " in line]
    assert len(shown) == 2 * len(experiments["ROWS"])
    assert [line for line in shown if line not in document] == []
    for change in ({"recipe": "of another day"}, {"changes": {"epochs": 1}}, {"row": "a row of old"}):
        assert not experiments["is_current"]({**kept[0], **change})
