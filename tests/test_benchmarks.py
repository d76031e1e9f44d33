"""Every benchmark can be imported and says what it does; running them is nobody's test."""

from __future__ import annotations

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
