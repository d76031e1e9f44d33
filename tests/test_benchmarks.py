"""Benchmarks can be imported, say what they do, and speak the language of today's recipes; long runs are nobody's test."""

from __future__ import annotations

import json
import math
import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from hardkuma import explain_pair, load_released
from hardkuma.data import LabelledSentence
from hardkuma.evaluation.baselines import METHODS, SentenceEncoder, WordScores
from hardkuma.evaluation.corpora import Corpus
from hardkuma.evaluation.faithfulness import Faithfulness
from hardkuma.evaluation.parts import Parts, measure_parts
from hardkuma.training.recipe import load_recipe
from tests.evaluation.test_parts import make_parts
from tests.toy import toy_transformer

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
BENCHMARKS = sorted(FOLDER.glob("*.py"))
COMMANDS = {
    "scale": ("cluster", "memory"),
    "uses": ("pairs",),
}


@pytest.fixture(autouse=True)
def _beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python looks when it is given one of these files."""
    monkeypatch.syspath_prepend(FOLDER)


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / f"{name}.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=[path.stem for path in BENCHMARKS])
def test_help(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("", *COMMANDS.get(path.stem, ())):
        monkeypatch.setattr(sys, "argv", [str(path), *([command] if command else []), "--help"])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(path), run_name="__main__")
        shown = capsys.readouterr().out
        assert end.value.code == 0
        assert command or f"python benchmarks/{path.name}" in shown, "help holds the manual"
        assert path.stem == "gpu_smoke" or command == "" or "--data" in shown


def settings_of_benchmarks() -> dict[str, tuple[str, dict[str, Any]]]:
    """Recipe and changes of every training run that a benchmark starts, by a name."""
    rows = load("experiments")
    found = {f"experiments, {row}": rows["overrides_of"](row) for row in rows["ROWS"]}
    found |= {f"divisions, {name}": value for name, value in rows["DIVISIONS"].items()}
    scale = load("scale")
    for recipe, changes in scale["RECIPES"].items():
        extra = {scale["REMOVAL_SENTENCES"]: 10} if recipe == "default" else {}
        found[f"scale, {recipe}"] = recipe, {**changes, **extra}
    smoke, speed = load("gpu_smoke"), load("speed")
    found["gpu_smoke, contrastive"] = "contrastive", {**smoke["CONTRASTIVE"], smoke["BATCH_SIZE"]: 16}
    found["gpu_smoke, default"] = "default", smoke["DEFAULT"]
    found["speed"] = "contrastive", {**speed["STORE_SETTINGS"], speed["CACHE"]: "never", speed["STEPS"]: 3}
    found["resilience"] = "contrastive", load("resilience")["TRAINING"]
    return found


def test_training_runs_are_valid_recipes() -> None:
    for name, (recipe, changes) in settings_of_benchmarks().items():
        values = {key: yaml.safe_load(value) if isinstance(value, str) else value for key, value in changes.items()}
        try:
            load_recipe(recipe, values).check_model()
        except ValueError as error:
            pytest.fail(f"{name}: {error}")


def test_encoder_arms_list_results_of_their_own_settings_and_head_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = load("encoder_arms")
    known = {**dict.fromkeys(arms["MEASURES"], 50.0), "settings": arms["SETTINGS"], "head": None}
    gates = {**known, "arm": "lowest gates", "options": arms["ARMS"]["lowest gates"]}
    entries = [
        {**known, "arm": "crop 10%", "seed": 0, "options": arms["ARMS"]["crop 10%"]},
        {**known, "arm": "ADD naive", "seed": 0, "options": {"view": {"attention_naive": {"t": 4}}}},  # another view
        {**known, "arm": "ConSERT", "seed": 0, "options": arms["ARMS"]["ConSERT"], "settings": {"max_steps": 3}},
        {**known, "arm": "an arm of old", "seed": 0, "options": {"view": {"dropout": None}}},
        {**gates, "seed": 0, "head": arms["head_digest"]()},
        {**gates, "seed": 1, "head": "of another head"},
        {**gates, "seed": 2},
    ]
    kept = tmp_path / "results.jsonl"
    kept.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    path = FOLDER / "encoder_arms.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--results", str(kept), "--table"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(path), run_name="__main__")
    shown = capsys.readouterr().out
    assert "| crop 10% | 1 | 50.00 |" in shown and "| lowest gates | 1 | 50.00 |" in shown
    assert not any(name in shown for name in ("ADD naive", "ConSERT", "an arm of old"))


def test_encoder_arms_that_are_kept_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    arms = load("encoder_arms")
    kept = [json.loads(line) for line in arms["RESULTS"].read_text(encoding="utf-8").splitlines()]
    assert all(arms["is_current"](entry) for entry in kept)
    document = (FOLDER.parent / "docs" / "encoder.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in arms["table"](kept).splitlines() if line not in document] == []


def test_experiments_that_are_kept_are_documented() -> None:
    """Every kept row has three seeds, and a line in the table; every line of the table is of a kept row."""
    experiments = load("experiments")
    kept = [json.loads(line) for line in experiments["RESULTS"].read_text(encoding="utf-8").splitlines()]
    rows = {entry["row"] for entry in kept}
    assert rows <= set(experiments["ROWS"]) and "default" in rows
    assert {(entry["row"], entry["seed"]) for entry in kept} == {(row, seed) for row in rows for seed in range(3)}
    lines = {experiments["table_line"](row, kept, experiments["FAITHFULNESS_COLUMNS"]) for row in rows}
    document = (FOLDER.parent / "docs" / "experiments.md").read_text(encoding="utf-8")
    section = document.split("\n## Rows\n")[1].split("\n## ")[0].splitlines()
    assert {line for line in section if line.startswith("|") and "±" in line} == lines


def test_speed_is_measured_by_turns() -> None:
    speed, calls = load("speed"), []
    names = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = speed["interleave"](names, rounds=2, clock="wall")
    assert calls == ["b", "a", "a", "b", "b", "a"]
    assert [len(values) for values in times.values()] == [2, 2]
    assert speed["ratios_to_first"]({"a": [1.0, 2.0, 4.0], "b": [2.0, 6.0, 4.0]}) == {"b": 2.0}


def test_speed_calls_what_there_is() -> None:
    speed = load("speed")
    assert set(speed["measure_lengths"]("wall", 1, (32, 64))) == {"64 / 32 tokens"}
    model, tokenizer = load_released()
    inputs = tokenizer(["Rain again."], return_tensors="pt")
    assert all(call(model, inputs) is not None for call in speed["CALLS"].values())


def test_measures_of_a_task_by_hand() -> None:
    """Two classes, a logit each; the text says 0, its one word says 0 but less, the rest says 1."""
    task = load("task")
    whole, alone, rest = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    nothing, rates = np.zeros((1, 3)), len(task["RATES"])
    of_rates = [vectors[:, None].repeat(1, rates, 1) for vectors in (alone, rest)]
    found = Faithfulness(list(task["RATES"]), nothing, nothing, whole, *of_rates)
    head = torch.nn.Linear(2, 2)
    torch.nn.init.eye_(head.weight)
    torch.nn.init.zeros_(head.bias)
    row = task["measure"](found, head, torch.tensor([0]))
    assert (row["all"], row["alone"], row["rest"]) == ([[1.0]], [[1.0] * rates], [[0.0] * rates])
    before, kept = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-1))
    assert row["sufficiency"][0] == pytest.approx([before - kept] * rates)
    assert row["comprehensiveness"][0] == pytest.approx([before - (1 - kept)] * rates)


def test_intervals_of_a_task_are_over_texts() -> None:
    """Of 100 texts 80 are right with all words and 40 with some: half, and as sure as 100 coins are."""
    values = np.zeros((100, 2))
    values[:80, 0] = values[:40, 1] = 1.0
    value, _, half = load("task")["with_interval"](values, lambda means: means[1:] / means[0]).partition(" ± ")
    assert value == ".500" and 0.08 < float(half) < 0.14


def test_words_of_a_pair_are_removed_by_every_method() -> None:
    uses, model = load("uses"), load_released()[0]
    texts = ("A cat sleeps on the mat.", "The cat is asleep on a mat.")
    found = uses["falls"](SentenceEncoder.from_model(model), explain_pair(model, *texts), texts)
    assert set(found) == {"explain_pair", "leave-one-out", "KeyBERT's way"} and min(found.values()) > 0.1
    assert uses["without"]("one two three", [{"start": 4, "end": 7}]) == "one three"


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_weights_that_are_information_follow_it(sign: float, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wordfreq")
    weighting = load("word_weighting")

    def information(encoder: object, texts: list, words: list, **options: object) -> list[WordScores]:
        found = METHODS["self_information"].scores(None, texts, words)
        return [WordScores(r.text, r.words, [sign * score for score in r.scores]) for r in found]

    monkeypatch.setitem(METHODS, "norm", replace(METHODS["norm"], function=information))
    text = "the museum of science ran"
    words = tuple((match.start(), match.end()) for match in re.finditer(r"\S+", text))
    corpus = Corpus("ud-ewt", [LabelledSentence(text, words, ("DET", "NOUN", "ADP", "NOUN", "VERB"))] * 15)
    models = {name: toy_transformer(["the", "museum"]) for name in ("before", "after")}
    rows = weighting["correlate"](models, corpus, ["norm", "gates"], draws=5)
    assert {row.method for row in rows} == {"norm"}, "a bare encoder has no gates"
    assert {row.tag: row.words for row in rows} == {"all": 75, "NOUN": 30}, "tags of at least 30 words"
    own = [row for row in rows if row.information == "self_information"]
    assert [row.pooled.value for row in own] == [pytest.approx(sign)] * 4
    table = weighting["correlation_table"](rows)
    assert "## ud-ewt, all words (75 words)" in table and "| norm of the state (max) | after |" in table


def test_two_writers_keep_each_others_results(tmp_path: Path) -> None:
    one, two = (load("experiments")["KeptResults"](tmp_path / "r.jsonl", ["row", "seed"]) for _ in range(2))
    one.put({"row": "b", "seed": 0, "x": 1})
    two.put({"row": "a", "seed": 1, "x": 2})
    one.put({"row": "a", "seed": 1, "x": 3})
    assert [(entry["row"], entry["x"]) for entry in two.entries()] == [("a", 3), ("b", 1)]


@pytest.mark.parametrize("line", ["{", '{"row": "a"}', "3"])
def test_a_broken_line_is_named_and_the_file_left_alone(tmp_path: Path, line: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"row": "a", "seed": 0}\n' + line + "\n")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"r\.jsonl, line 2"):
        load("experiments")["KeptResults"](path, ["row", "seed"]).put({"row": "b", "seed": 0})
    assert path.read_bytes() == before


def test_runs_are_matched() -> None:
    one, tools = make_parts(), load("experiments")
    other = Parts(one.names, one.targets, one.words, one.probabilities[[2, 0, 1]], one.tags)
    assert tools["match_selectors"](one, other) == [1, 2, 0]
    assert tools["stability_of_parts"]([one, other]) == pytest.approx({"spearman": 1.0, "agreement": 1.0, "nmi": 1.0})
    stranger = Parts(one.names, one.targets, one.words, make_parts(1).probabilities, one.tags)
    assert tools["stability_of_parts"]([one, stranger])["agreement"] < 0.6
    with pytest.raises(ValueError, match="different words"):
        tools["match_selectors"](one, make_parts(1))


def test_selectors_without_parts_are_all_measured(make_model: Callable) -> None:
    model, texts = make_model(selectors={"a": {"unit": "word"}, "b": {"unit": "word"}}), ["paris is big", "rain fell"]
    scores = load("experiments")["scores_of_parts"](model, texts)
    assert list(scores) == [*measure_parts(model, texts).names, "union"] == ["a", "b", "union"]
    for a, b, union in zip(*scores.values(), strict=True):
        expected = [1 - (1 - p) * (1 - q) for p, q in zip(a.scores, b.scores, strict=True)]
        assert list(union.scores) == pytest.approx(expected)
