"""Sentences of two texts, and `hardkuma diff`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hardkuma import HardKumaModel, compare_texts
from hardkuma.__main__ import main
from hardkuma.apps.diff import compare_pairs, read_sentences

OLD = ["The library opens at 9 am on weekdays.", "Members may borrow five books. Fines are 20 cents a day.", "No dogs."]
NEW = ["Fines are 50 cents a day.", "The library opens at 9 am on weekdays.", "A café sells coffee and cake."]


def summary(items: list[dict]) -> list[tuple]:
    sides = [[item[name] and item[name]["row"] for name in "ab"] for item in items]
    return [(item["change"], *rows) for item, rows in zip(items, sides, strict=True)]


def test_sentences_find_each_other_wherever_they_stand(minilm: HardKumaModel) -> None:
    found = list(compare_texts(minilm, OLD, NEW))
    assert summary(found) == [
        ("changed", 2, 1),
        ("same", 1, 2),
        ("new", None, 3),
        ("missing", 2, None),
        ("missing", 3, None),
    ]
    assert [span["text"] for span in found[0]["a"]["differences"]] == ["20"]
    assert found[3]["a"]["text"] == "Members may borrow five books."
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_text_against_itself_and_against_nothing(minilm: HardKumaModel) -> None:
    twice = [*OLD, *OLD]  # repeated sentences are counterparts of those at their own place
    found = list(compare_texts(minilm, twice, twice))
    assert {item["change"] for item in found} == {"same"} and all(item["a"]["row"] == item["b"]["row"] for item in found)
    assert [item["change"] for item in compare_texts(minilm, [], OLD[:1])] == ["new"]
    assert [item["change"] for item in compare_texts(minilm, OLD[:1], ["", " "])] == ["missing"]
    assert list(compare_texts(minilm, [], [])) == list(compare_pairs(minilm, [])) == []


def test_rows_of_wrapped_lines() -> None:
    rows = ["The first sentence goes", "on here. The second", "one too.", "A heading", "", "e-mail is late.", "\ud83d x"]
    assert [tuple(sentence) for sentence in read_sentences(rows)] == [
        ("The first sentence goes on here.", 1),
        ("The second one too.", 2),
        ("A heading", 4),
        ("e-mail is late.", 6),
        ("\ufffd x", 7),
    ]


def test_pairs_row_by_row(minilm: HardKumaModel) -> None:
    pairs = [("It rains.", "It rains."), ("He has 2 cats.", "He has 3 cats."), ("It rains.", "Rates rose."), ("", "")]
    assert [item["change"] for item in compare_pairs(minilm, pairs)] == ["same", "changed", "new", "same"]
    with pytest.raises(ValueError, match="b must be a text"):
        list(compare_pairs(minilm, [("a", None)]))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["diff", *map(str, words)])
    return status, *capsys.readouterr()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new, table = (tmp_path / name for name in ("old.txt", "new.txt", "pairs.tsv"))
    old.write_text("We meet at 3 pm. It <b>rains</b>.\n")
    new.write_text("We meet at 5 pm.\nIt <b>rains</b>.\n")
    table.write_text("first\tsecond\nIt rains.\tIt rains.\nTwo {cats}.\tThree cats.\n")
    status, out, error = run(capsys, old, new)
    assert status == 0 and out.splitlines()[1:] == ["- 1: We meet at {3} pm.", "+ 1: We meet at {5} pm."]
    assert "2 compared: 1 changed, 1 same." in error
    status, out, _ = run(capsys, "--columns", "first", "second", table)
    assert status == 0 and out.splitlines()[1:] == ["- 2: {Two} \\{cats\\}.", "+ 2: {Three} cats."]
    output = tmp_path / "out.jsonl"
    assert run(capsys, "--all", "--output", output, old, new)[:2] == (0, "")
    assert [json.loads(line)["change"] for line in output.read_text().splitlines()] == ["changed", "same"]
    page = run(capsys, "--all", "--format", "html", old, new)[1]
    assert "&lt;<mark" in page and "<b>rains" not in page and 'class="hk-span hk-different"' in page


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["{old}"], 2, "give a second file, or --columns"),
        (["--columns", "a", "b", "{old}", "{old}"], 2, "--columns are of one file"),
        (["--columns", "a", "b", "--field", "a", "{old}"], 2, "--field belongs to two files"),
        (["-", "-"], 2, "standard input is one text"),
        (["--batch-size", "0", "{old}", "{old}"], 2, "--batch-size must be a whole number >= 1, got 0"),
        (["--output", "x.parquet", "{old}", "{old}"], 2, "differences are written as text, jsonl, html, not parquet"),
        (["--columns", "a", "z", "{table}"], 1, "no column 'z' among 'a', 'b'; name one of these with --columns"),
        (["{old}", "{old}.gone"], 1, "gone"),
    ],
)
def test_what_is_wrong_is_said(
    words: list[str], status: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, table = tmp_path / "old.txt", tmp_path / "pairs.tsv"
    old.write_text("It rains.\n")
    table.write_text("a\tb\nIt rains.\tIt rains.\n")
    given = ["diff", *(word.format(old=old, table=table) for word in words)]
    if status == 2:
        with pytest.raises(SystemExit) as stopped:
            main(given)
        assert stopped.value.code == 2
    else:
        assert main(given) == status
    assert said in capsys.readouterr().err
