"""Markdown tables: every one on one set of sentences, in order, escaped, and written into cards."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardkuma import HardKumaModel
from hardkuma.cli.benchmark import main
from hardkuma.evaluation.baselines import SentenceEncoder
from hardkuma.evaluation.benchmark import run_benchmark
from hardkuma.evaluation.tables import BEGIN, END, card_table, markdown_report

from .test_results import with_areas

QUICK = {"bootstrap": 20, "expensive_sample": 3, "faithfulness_sample": 2, "examples": 2}
FEW = ["random", "norm", "loo", "capitals"]


def test_a_card_compares_over_all_corpora() -> None:
    results = [
        with_areas(name, values, role, corpus)
        for corpus, ours in (("a", [0.5, 0.75]), ("b", [0.5, 0.5]))
        for name, values, role in (("other", [0.25, 0.25], "baseline"), ("gates", ours, "gates"))
    ]
    card = card_table(results, "it")
    line = next(line for line in card.splitlines() if line.startswith("| other |") and "[" in line)
    assert line.startswith("| other | .500 | .500 | +.312 [")  # mean of .25, .5, .25, .25
    assert "| **gates** | .500 | .500 |  |" in card
    assert "Sentences, the same for every row: 9 of a, 9 of b." in card and "AP on the first 2 of each" in card
    # The second table goes by what it shows: on the same sentences the other is better.
    for result in results:
        result.common["value"] = 0.75 if result.method == "other" else 0.25
        result.metrics["average_precision"]["value"] = 0.25 if result.method == "other" else 0.75
    first, second = card_table(results, "it").split("Sentences, the same")
    assert first.index("**gates**") < first.index("| other |") and second.index("| other |") < second.index("**gates**")
    assert "gates - method" not in card_table([result for result in results if result.role == "baseline"], "it")


def test_the_table_is_written_into_cards(conll: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, other = tmp_path / "model", tmp_path / "other.md"
    folder.mkdir()
    (folder / "README.md").write_text(f"# Card\n\n{BEGIN}\nstale\n{END}\n\nafter\n")
    quick = ["--bootstrap", "5", "--faithfulness-sample", "2", "--quiet", "--output", str(tmp_path / "out")]
    words = ["--data", str(conll), "--methods", "random", "capitals", *quick]
    assert main([*words, "--card", str(folder)]) == 0
    card = (folder / "README.md").read_text()
    assert card.startswith("# Card") and card.endswith("after\n") and "stale" not in card
    assert "| method | AP toy ↑ |" in card and "*capital letters (reference)* | 1.000 |" in card
    assert "hardkuma benchmark --data" in card and card.index("| random |") < card.index("*capital")
    other.write_text("no place")
    with pytest.raises(ValueError, match="has no place for the table"):
        main([*words, "--card", str(other)])
    assert other.read_text() == "no place"


def test_the_table_says_how_far_seeds_are_apart(conll: Path, tmp_path: Path, minilm: HardKumaModel) -> None:
    models = [SentenceEncoder.from_model(minilm)] * 2
    done = run_benchmark(conll, ["gates"], sample=4, output=tmp_path / "out", models=models, **QUICK)
    table = card_table(done.results, "it")
    assert "Gates: mean of 2 seeds (HardKuma gates (max) on toy" in table and "Made with `it`" in table


def test_table_escapes_and_orders(conll: Path, tmp_path: Path, encoder: SentenceEncoder) -> None:
    done = run_benchmark(conll, FEW, sample=5, output=tmp_path / "out", encoder=encoder, **QUICK)
    done.results[1].title = "a | b"
    report = markdown_report(done.results, "it").split("### ")
    assert report[1].startswith("Entity words\n") and "a \\| b" in report[1]
    lines = [line for line in report[1].splitlines() if line.startswith("| ")]
    assert lines[0].startswith("| method | AP ↑ |") and len(lines) == 1 + 4  # leave one out has fewer sentences
    assert lines[-2].startswith("| *capital letters") and lines[-1].startswith("| *the encoder alone*")
