"""The `hardkuma` command as a user runs it."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hardkuma.__main__ import main, paint
from hardkuma.words_hardkuma import WordGate


@pytest.fixture
def folder(make_model: Callable, tmp_path: Path) -> Path:
    make_model().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_gates_of_arguments_and_of_standard_input(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["gates", "--model", str(folder), "--rate", "0.2", "marie curie moved to paris", "a team won"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"[\[\]]", "", line) for line in lines] == ["marie curie moved to paris", "a team won"]
    assert all(line.count("[") == 1 for line in lines), "a fifth of five words is one; never none"
    monkeypatch.setattr("sys.stdin", io.StringIO("einstein moved\n"))
    assert main(["gates", "--model", str(folder), "--numbers"]) == 0
    assert re.search(r"einstein \d\.\d\d  moved \d\.\d\d", capsys.readouterr().out)


def test_errors_are_one_sentence_and_exit_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gates", "--model", str(folder), "--rate", "7", "x"]) == 1
    assert capsys.readouterr().err == "hardkuma: rate must be a fraction in (0, 1], got 7.0.\n"
    with pytest.raises(SystemExit) as caught:
        main(["gates", "x"])
    assert caught.value.code == 2


def test_broken_pipe_is_no_error(folder: Path) -> None:
    texts = ["marie curie moved to paris"] * 3000
    command = f"{sys.executable} -m hardkuma gates --model {folder} | head -1"
    done = subprocess.run(command, shell=True, input="\n".join(texts), capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 1 and "Traceback" not in done.stderr and "Broken" not in done.stderr


def test_train_is_handed_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    assert "accelerate launch" in capsys.readouterr().out
    assert main(["train", "--epoch", "3"]) == 1
    assert "did you mean 'epochs'" in capsys.readouterr().err


def test_benchmark_is_handed_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "tiny.conll"
    corpus.write_text("Marie B-PER\nmoved O\nto O\nParis B-LOC\n\nrain O\nagain O\nin O\nRome B-LOC\n")
    words = ["benchmark", "--data", str(corpus), "--output", str(tmp_path / "out"), "--methods", "random", "capitals"]
    assert main([*words, "--quiet", "--bootstrap", "20"]) == 0
    assert "capital letters" in capsys.readouterr().out.lower()
    assert main(["benchmark", "--data", str(tmp_path / "nowhere"), "--quiet"]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_paint() -> None:
    words = [WordGate(0, 2, 0.9, True), WordGate(3, 5, 0.1, False)]
    assert paint("ab cd!", words, colour=False) == "[ab] cd!"
    coloured = paint("ab cd!", words, colour=True)
    assert "\033[" in coloured and re.sub(r"\033\[[\d;]*m", "", coloured) == "ab cd!"
