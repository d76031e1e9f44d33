"""The table of differences: files, baselines against naive counts, correlation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hardkuma.__main__ import main
from hardkuma.evaluation.corpora import find_json_lines
from hardkuma.evaluation.differences import (
    DifferenceResult,
    best_cosine,
    difference_table,
    isolated_words,
    measure_differences,
    read_pairs,
    removal,
)
from tests.toy import toy_encoder

PAIR = {"text_a": "red cat .", "text_b": "cat dog", "labels_a": [1, 0, -1], "labels_b": [0, 1]}
VECTORS = {"red": [1.0, 0.0, 0.0], "cat": [0.0, 1.0, 0.0], "dog": [0.0, 0.6, 0.8]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(PAIR) + "\n\n")
    return path


def test_methods_find_what_differs(file: Path) -> None:
    encoder, pairs = toy_encoder(VECTORS), read_pairs(file)
    cosine = best_cosine(encoder)(pairs)[0]
    assert cosine[0][:2] == pytest.approx([1.0, 0.0], abs=1e-5) and cosine[1] == pytest.approx([0.0, 0.4], abs=1e-5)
    assert isolated_words(encoder, whole=False)(pairs)[0][1] == pytest.approx([0.0, 0.4], abs=1e-5)
    for how in ("leave_one_out", "shap", "lime"):
        red, cat, _ = removal(encoder, how)(pairs)[0][0]
        assert red > cat, how
    # Without "red" the text is closer to the other one, by exactly this.
    whole, without = np.array([1.0, 1.0, 0.0]), np.array([0.0, 1.0, 0.0])
    other = np.array([0.0, 1.6, 0.8])
    cosines = [vector @ other / np.linalg.norm(vector) / np.linalg.norm(other) for vector in (whole, without)]
    assert removal(encoder, "leave_one_out")(pairs)[0][0][0] == pytest.approx(cosines[1] - cosines[0], abs=1e-5)


def test_the_table(file: Path) -> None:
    encoder = toy_encoder(VECTORS)
    results = list(measure_differences({"cosine": best_cosine(encoder)}, {"pairs": file}, encoder))
    assert results[0].gold[0].tolist() == [1, 0, 0, 1] and results[0].passes == 2
    table = difference_table(results, draws=5).splitlines()
    assert table[0] == "| method | pairs (1) | passes a pair | pairs a second |"
    assert table[2].startswith("| cosine | 0.943 (0.943 to 0.943) | 2.0 |")


def test_pairs_on_which_settings_were_chosen_are_left_out_once_more(tmp_path: Path) -> None:
    path = tmp_path / "ists.jsonl"
    path.write_text((json.dumps(PAIR) + "\n") * 52)
    encoder = toy_encoder(VECTORS)
    whole, rest = measure_differences({"cosine": best_cosine(encoder)}, find_json_lines(path, "differences"), encoder)
    assert (len(whole.gold), len(rest.gold), rest.corpus) == (52, 2, "ists, from pair 51 on")


def test_the_command(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", str(file), "--methods", "ours", "cosine", "isolated", "leave_one_out", "--bootstrap", "5"]
    assert main(["benchmark", "--table", "differences", *words, "--output", str(tmp_path / "out")]) == 0
    table = (tmp_path / "out" / "differences.md").read_text()
    assert table in capsys.readouterr().out and "`hardkuma benchmark --table differences --data" in table
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows[1:]] == [
        "| `find_differences`",
        "| 1 - best cosine of states (DiffAlign's rule)",
        "| 1 - best cosine of isolated words",
        "| leave-one-out",
    ]


def test_a_pair_drawn_twice_counts_twice() -> None:
    rows = [np.array([0.0, 1.0]), np.array([0.0, 1.0])], [np.array([0.0, 1.0]), np.array([1.0, 0.0])]
    result = DifferenceResult("x", "y", *rows, seconds=1.0, passes=1)
    assert result.correlation(np.array([2.0, 0.0])) == 1 and result.correlation(np.array([1.0, 1.0])) == pytest.approx(0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1: a pair is a JSON object with text_a"),
        ('{"text_a": "x"}', "line 1: a pair is a JSON object"),
        (json.dumps(PAIR | {"labels_b": [0]}), r"line 1: a pair is .* \(text_b has 2 words and 1 labels\)"),
        ("", "has no pair"),
    ],
)
def test_bad_files(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match=said):
        read_pairs(path)
    with pytest.raises(FileNotFoundError, match=r"no \.jsonl file"):
        find_json_lines(tmp_path / "nowhere", "differences")
