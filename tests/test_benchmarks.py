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
