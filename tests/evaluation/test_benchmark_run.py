"""The benchmark: what it writes, that it resumes, that results carry their history."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hardkuma import HardKumaModel
from hardkuma.cli.benchmark import main, named_models
from hardkuma.common.files import write_atomically
from hardkuma.evaluation import benchmark as module
from hardkuma.evaluation.baselines import METHODS, SentenceEncoder, WordScores
from hardkuma.evaluation.benchmark import Settings, run_benchmark
from hardkuma.evaluation.measure import label_metrics, top_of_corpus
from hardkuma.evaluation.results import load_result
from hardkuma.evaluation.table import BEGIN, END, card_table, markdown_table

from .conftest import join_words

QUICK = {"bootstrap": 20, "expensive_sample": 3, "faithfulness_sample": 2, "examples": 2}
FEW = ["random", "norm", "loo", "capitals"]


def test_writes_everything(conll: Path, tmp_path: Path, encoder: SentenceEncoder) -> None:
    out = tmp_path / "out"
    done = run_benchmark(conll, FEW, sample=5, output=out, encoder=encoder, command="the command", **QUICK)
    assert [result.method for result in done.results] == ["encoder", *FEW]
    assert sorted(path.name for path in out.iterdir()) == ["benchmark.md", "report.html", "results"]
    assert sorted(path.name for path in (out / "results" / "toy").iterdir()) == sorted(f"{name}.json" for name in FEW)
    values = json.loads((out / "results" / "toy" / "loo.json").read_text())
    assert values["command"] == "the command" and values["versions"]["torch"] and values["created"]
    assert values["sentences"] == 3 and values["forward_passes"] > 3 * 5 and values["seconds"] > 0
    random_row = next(result for result in done.results if result.method == "random")
    assert random_row.runs == 3 and random_row.forward_passes == 0
    assert -1 <= random_row.value("stability_spearman") <= 1
    ap = random_row.metrics["average_precision"]
    assert ap["low"] <= ap["value"] <= ap["high"]
    assert {"sufficiency", "comprehensiveness", "alignment", "uniformity_rationale"} <= set(random_row.metrics)
    assert set(random_row.metrics) >= {"auroc", "best_f1", "f1_at_gold_rate", "precision_at_rate", "span_f1_exact"}
    capitals = next(result for result in done.results if result.method == "capitals")
    assert {"f1_own", "selection_rate", "span_f1_overlap_own"} <= set(capitals.metrics)
    table = done.table.read_text()
    assert "the command" in table and "| *capital letters (reference)* |" in table
    assert len([load_result(path) for path in (out / "results").glob("*/*.json")]) == 4


def test_resumes_and_notices_changes(
    conll: Path, tmp_path: Path, encoder: SentenceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr("hardkuma.evaluation.report.write_report", lambda *arguments: None)  # drawing takes longest
    measure = module._measure
    monkeypatch.setattr(module, "_measure", lambda c, one, *rest: ran.append(one.method.name) or measure(c, one, *rest))

    def run(**changes: object) -> list[str]:
        ran.clear()
        options = {"sample": 5, "output": tmp_path / "out", "encoder": encoder, **QUICK, **changes}
        run_benchmark(conll, ["random", "norm"], **options)
        return list(ran)

    assert run() == ["random", "norm"]
    assert run() == []
    assert run(resume=False) == ["random", "norm"]
    assert run(sample=4) == ["random", "norm"]
    (tmp_path / "out" / "results" / "toy" / "norm.json").write_text('{"format": 1, "method"')  # cut short
    assert run(sample=4) == ["norm"]
    conll.write_text(conll.read_text() + "\nmore\tO\n")
    assert run(sample=4) == ["random", "norm"]


def test_gates_of_several_checkpoints(conll: Path, tmp_path: Path, minilm: HardKumaModel) -> None:
    one = SentenceEncoder.from_model(minilm)
    models = {"": [one, one], "other recipe": [one]}
    done = run_benchmark(conll, ["gates", "norm"], sample=4, output=tmp_path / "out", models=models, **QUICK)
    rows = {result.method: result for result in done.results}
    assert rows["gates"].runs == 2 and rows["gates"].value("stability_spearman") == pytest.approx(1.0)
    assert rows["gates@other-recipe"].runs == 1
    assert rows["gates"].value("average_precision") == rows["gates@other-recipe"].value("average_precision")
    # The peers run on the models' own encoder.
    assert rows["norm"].value("average_precision") is not None


def test_what_cannot_run_is_said(
    conll: Path, tmp_path: Path, encoder: SentenceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"sample": 3, "output": tmp_path / "out", "encoder": encoder, **QUICK}
    done = run_benchmark(conll, ["gates", "position"], **options)
    assert done.notes == ["Left out: HardKuma gates (max) needs a HardKuma checkpoint (--model)."]
    monkeypatch.setattr("hardkuma.evaluation.baselines.registry.available", lambda name: False)
    with pytest.raises(ImportError, match=r"pip install 'hardkuma\[keywords\]', or leave 'yake' out"):
        run_benchmark(conll, ["yake"], **options)
    with pytest.raises(ValueError, match="unknown method 'magic'"):
        run_benchmark(conll, ["magic"], **options)
    with pytest.raises(ValueError, match="sample must be at least 1 sentence, got 0"):
        Settings(sample=0)
    with pytest.raises(ValueError, match="an encoder without gates"):
        run_benchmark(conll, ["position"], models=[encoder], **{k: v for k, v in options.items() if k != "encoder"})


def test_command_line(conll: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["--data", str(conll), "--methods", "position", "capitals", "--sample", "4", "--bootstrap", "5"]
    assert main([*arguments, "--faithfulness-sample", "1", "--output", str(out), "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "position (first words)" in printed and "report.html" in printed
    assert "hardkuma benchmark --data" in (out / "benchmark.md").read_text()
    assert named_models(["runs/a", "x=runs/b"]) == {"": ["runs/a"], "x": ["runs/b"]}


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


def test_files_are_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x.json"
    write_atomically(target, "old")

    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("hardkuma.common.files.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(target, "new")
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]
    assert load_result(tmp_path / "absent.json") is None


def test_perfect_scores_have_perfect_metrics() -> None:
    sentences = [join_words(["In", "New", "York"], ["O", "B-L", "I-L"]), join_words(["Ana", "sings"], ["B-P", "O"])]
    perfect = [
        WordScores(s.text, list(s.offsets), [float(t != "O") for t in s.tags], [t != "O" for t in s.tags])
        for s in sentences
    ]
    found = label_metrics(sentences, [perfect], samples=50)
    for name in (
        "average_precision",
        "auroc",
        "best_f1",
        "f1_own",
        "f1_at_gold_rate",
        "span_f1_exact",
        "span_f1_overlap_own",
    ):
        assert found[name].value == found[name].low == found[name].high == 1.0, name
    assert found["selection_rate"].value == pytest.approx(3 / 5)


def test_runs_are_averaged_under_the_same_draws() -> None:
    sentences = [join_words(["a", "B", "c"], ["O", "B-X", "O"]) for _ in range(30)]
    texts, words = [s.text for s in sentences], [s.offsets for s in sentences]
    runs = [METHODS["random"].scores(None, [f"{t}" for t in texts], words, seed=seed) for seed in range(4)]
    alone = [label_metrics(sentences, [run], samples=0)["average_precision"].value for run in runs]
    assert label_metrics(sentences, runs, samples=0)["average_precision"].value == pytest.approx(np.mean(alone))


def test_top_of_corpus_selects_the_gold_number() -> None:
    run = [WordScores("a b c", [(0, 1), (2, 3), (4, 5)], [1.0, 1.0, 1.0]), WordScores("d", [(0, 1)], [2.0])]
    chosen = top_of_corpus([[1, 0, 0], [1]], run)
    assert sum(map(sum, chosen)) == 2 and chosen[1] == [True]
    assert chosen == top_of_corpus([[1, 0, 0], [1]], run)


def test_table_escapes_and_orders(conll: Path, tmp_path: Path, encoder: SentenceEncoder) -> None:
    done = run_benchmark(conll, FEW, sample=5, output=tmp_path / "out", encoder=encoder, **QUICK)
    done.results[1].title = "a | b"
    lines = markdown_table(done.results).splitlines()
    assert any("a \\| b" in line for line in lines)
    assert lines[-2].startswith("| *capital letters") and lines[-1].startswith("| *the encoder alone*")
    short = markdown_table(done.results, ["average_precision"]).splitlines()
    assert short[0] == "| method | AP ↑ |" and len(short) == 2 + 4


def test_baselines_on_real_text(real_data: Path, tmp_path: Path) -> None:
    """A small sample of WNUT17 dev: norm and attention find names better than chance and rollout do."""
    methods = ["random", "norm", "attention_sum", "rollout"]
    options = {"sample": 40, "expensive_sample": 10, "faithfulness_sample": 2, "bootstrap": 0}
    done = run_benchmark(real_data, methods, output=tmp_path / "out", corpora=["wnut17-dev"], **options)
    found = {result.method: result.value("average_precision") for result in done.results}
    assert found["norm"] > 1.5 * found["random"] and found["attention_sum"] > 1.5 * found["random"]
    assert found["rollout"] < found["norm"]
