"""Every command that writes, while another run has its output: who has it is said, status 2, and nothing is touched."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hardkuma.__main__ import main
from hardkuma.common.files import hold_output

COMMANDS = {
    "gates": ["gates", "--quiet", "--file", "TEXT", "--output", "OUT.jsonl"],
    "train": ["train", "--data", "[TEXT]", "--output", "OUT"],
    "encoder": ["encoder", "--data", "[TEXT]", "--output", "OUT"],
    "adapt": ["adapt", "--quiet", "--data", "TEXT", "--output", "OUT"],
    "export": ["export", "native", "--quiet", "--data", "TEXT", "--output", "OUT"],
    "search": ["search", "OUT", "--quiet", "--build", "TEXT"],
    "benchmark": ["benchmark", "--quiet", "--model", "none", "--data", "CONLL", "--output", "OUT"],
    "ray": ["gates", "--quiet", "--engine", "ray", "--input", "PARQUET", "--output", "OUT"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_second_run_says_who_has_the_output(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "ray":
        pytest.importorskip("ray.data")
        pyarrow = pytest.importorskip("pyarrow")
        (tmp_path / "in").mkdir()
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"text": ["x"]}), tmp_path / "in" / "a.parquet")
    (tmp_path / "a.txt").write_text("Rain fell.\n")
    (tmp_path / "a.conll").write_text("in O\nRome B-LOC\n")
    places = {"TEXT": "a.txt", "CONLL": "a.conll", "PARQUET": "in", "OUT": "out"}
    words = COMMANDS[name]
    for short, file in places.items():
        words = [word.replace(short, str(tmp_path / file)) for word in words]
    output = next(Path(word) for word in words if word.startswith(str(tmp_path / "out")))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with hold_output(output):
        assert main(words) == 2
        shown = capsys.readouterr().err
        assert f"{output} is being written by process {os.getpid()} on {socket.gethostname()} since 20" in shown
        assert "Traceback" not in shown
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
