"""The benchmark: what it writes, that it resumes, that results carry their history."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hardkuma import HardKumaModel
from hardkuma.cli.benchmark import find_models, main
from hardkuma.evaluation import benchmark as module
from hardkuma.evaluation.baselines import SentenceEncoder
from hardkuma.evaluation.benchmark import Settings, run_benchmark
from hardkuma.evaluation.results import load_result

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
    ap = random_row.metrics["average_precision"]
    assert ap["low"] <= ap["value"] <= ap["high"]
    assert {"sufficiency", "comprehensiveness"} <= set(random_row.metrics)
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
    monkeypatch.setattr(module, "report_html", lambda *arguments: "")  # drawing takes longest
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
    assert rows["gates"].runs == 2
    assert rows["gates@other-recipe"].runs == 1
    assert rows["gates"].value("average_precision") == rows["gates@other-recipe"].value("average_precision")
    # The baselines run on the models' own encoder.
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
    assert find_models(["runs/a", "x=runs/b"]) == {"": ["runs/a"], "x": ["runs/b"]}


def test_baselines_on_real_text(real_data: Path, tmp_path: Path) -> None:
    """A small sample of WNUT17 dev: norm and attention find names better than chance and rollout do."""
    methods = ["random", "norm", "attention_sum", "rollout"]
    options = {"sample": 40, "expensive_sample": 10, "faithfulness_sample": 2, "bootstrap": 0}
    done = run_benchmark(real_data, methods, output=tmp_path / "out", corpora=["wnut17-dev"], **options)
    found = {result.method: result.value("average_precision") for result in done.results}
    assert found["norm"] > 1.5 * found["random"] and found["attention_sum"] > 1.5 * found["random"]
    assert found["rollout"] < found["norm"]
