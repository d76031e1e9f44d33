"""The table of key phrases: F1 by hand, files, methods that are missing, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hardkuma.__main__ import main
from hardkuma.evaluation.corpora import find_json_lines
from hardkuma.evaluation.keyphrases import (
    CHOSEN,
    OTHERS,
    Extractor,
    Hits,
    KeyphraseResult,
    MarkedDocument,
    keyphrase_table,
    measure_extractor,
    read_marked,
    stem_phrases,
)

DOCUMENTS = [
    MarkedDocument("Deep networks learn.", ("deep network", "Deep Networks", "learning", "data")),
    MarkedDocument("Rain.", ("snow",)),
]


def test_f1_is_that_of_a_naive_loop() -> None:
    found = [["deep networks", "Deep network", "rain", "a", "b", "c", "learn"], []]
    hits = Hits.count(found, DOCUMENTS)
    expected = []
    for phrases, document in zip(found, DOCUMENTS, strict=True):
        gold, mine, row = set(stem_phrases(document.phrases)), stem_phrases(phrases), []
        for k in (5, 10, 15):
            right = len(set(mine[:k]) & gold)
            precision, recall = right / max(1, len(mine[:k])), right / len(gold)
            row.append(2 * precision * recall / (precision + recall) if right else 0.0)
        expected.append(row)
    assert hits.marked.tolist() == [3, 1], "two of four marks are one phrase"
    assert hits.f1() == pytest.approx(np.array(expected))
    assert hits.f1()[0].tolist() == pytest.approx([2 / 8, 4 / 9, 4 / 9]), "the second phrase is the first, in the plural"
    assert hits.macro().tolist() == pytest.approx([1 / 8, 2 / 9, 2 / 9])
    assert hits.pooled().tolist() == pytest.approx([2 / (5 + 4), 4 / (6 + 4), 4 / (6 + 4)])


def test_the_table_has_intervals_differences_and_published_figures() -> None:
    ours = Extractor("ours", lambda texts, number: [["deep network", "snow"]] * len(texts))
    other = Extractor("other", lambda texts, number: [["rain"]] * len(texts))
    results = [
        measure_extractor(ours, "inspec", DOCUMENTS * 10),
        measure_extractor(other, "inspec", DOCUMENTS),
        measure_extractor(ours, "own", DOCUMENTS),
    ]
    assert results[0].seconds > 0 and results[0].number == 20
    lines = keyphrase_table(results, draws=50).splitlines()
    first = next(line for line in lines if line.startswith("| ours"))
    value = 100 * results[0].hits.macro()[0]
    assert f"| 20 | {value:.1f} (" in first
    assert f"+{value:.1f} (" in next(line for line in lines if line.startswith("| other | 2 | 0.0 (0.0 to 0.0)"))
    published = [line for line in lines if "not run here" in line]
    assert len(published) == 2 and "31.7 | 37.9 | 38.2" in published[0]
    assert "Kong et al." in lines[-1]


def test_files(tmp_path: Path) -> None:
    (tmp_path / "keyphrases").mkdir()
    file = tmp_path / "keyphrases" / "some.jsonl"
    file.write_text(json.dumps({"text": "Rain.", "keyphrases": ["rain"]}) + "\n")
    assert [find_json_lines(path, "keyphrases") for path in (tmp_path, file.parent, file)] == [{"some": file}] * 3
    assert read_marked(file) == [MarkedDocument("Rain.", ("rain",))]
    for content, problem in (
        ('{"text": "x"}', "line 1: a document is"),
        ("", "has no document"),
        ("[1]", "line 1: a document is"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=problem):
            read_marked(file)
    with pytest.raises(FileNotFoundError, match=r"no \.jsonl file"):
        find_json_lines(tmp_path / "nowhere", "keyphrases")


def test_a_method_that_is_not_installed_is_left_out() -> None:
    assert Extractor("x", lambda texts, number: [], needs=("math", "no_such_package")).missing == ["no_such_package"]
    row = KeyphraseResult("x", "own", Hits(np.zeros((1, 3)), np.zeros((1, 3)), np.zeros(1)), 1.0)
    assert row.hits.macro().tolist() == [0, 0, 0]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHOSEN, "some", 1)
    file = tmp_path / "some.jsonl"
    rows = [{"text": "The kraken is a sea monster.", "keyphrases": ["krakens", "sea monster"]}] * 3
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--data", str(file), "--methods", "gates", "yake", "--bootstrap", "20", "--output", str(tmp_path / "out")]
    assert main(["benchmark", "--table", "keyphrases", *words]) == 0
    shown = capsys.readouterr().out
    table = (tmp_path / "out" / "keyphrases.md").read_text()
    assert table in shown and "`hardkuma benchmark --table keyphrases" in table
    assert "| HardKuma | 3 | 100.0 (100.0 to 100.0)" in table and "| YAKE | 3 |" in table
    assert "**some without the 1 documents of our choices**, 2 documents" in table
    with pytest.raises(SystemExit) as end:
        main(["benchmark", "--table", "keyphrases", "--data", str(file), "--sample", "0"])
    assert end.value.code == 2 and "--sample must be a whole number >= 1, got 0" in capsys.readouterr().err


@pytest.mark.parametrize("name", OTHERS)
def test_other_methods_give_phrases(name: str) -> None:
    if OTHERS[name].missing:
        pytest.skip(f"{OTHERS[name].missing[0]} is not installed")
    texts = ["The kraken is a sea monster of Norwegian legends.", "Rain fell on the old harbour."]
    found = OTHERS[name].extract(texts, 3)
    assert [0 < len(row) <= 3 for row in found] == [True, True]
    assert all(phrase.split()[0].lower() in text.lower() for text, row in zip(texts, found, strict=True) for phrase in row)
