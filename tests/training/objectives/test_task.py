"""The task objective: its rationales tell the class, what is left does not, and without labels nothing is learned."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from hardkuma.modeling_hardkuma import HardKumaForSequenceClassification, HardKumaModel
from hardkuma.train import main
from hardkuma.training.criterion import mean_rate
from hardkuma.training.objectives.task import Task, accuracies
from hardkuma.training.recipe import Recipe, load_recipe
from hardkuma.training.run import Run
from hardkuma.training.store import StateStore
from hardkuma.training.texts import TextFile
from tests.conftest import build_model
from tests.training.conftest import build_store

DECIDING = {"negative": ("lost", "closed", "sold"), "positive": ("won", "opened", "built")}
FILLERS = (
    "the",
    "a",
    "of",
    "in",
    "to",
    "and",
    "paris",
    "london",
    "marie",
    "google",
    "river",
    "bank",
    "city",
    "train",
    "museum",
)
ROWS, HELD_OUT = np.arange(480), np.arange(480, 600)
MODEL = load_recipe("task").config_settings()


def texts_with_classes() -> Iterator[tuple[str, str]]:
    """One word of six decides, wherever it stands."""
    generator = random.Random(0)
    for number in range(len(ROWS) + len(HELD_OUT)):
        label = ("negative", "positive")[number % 2]
        words = generator.choices(FILLERS, k=5)
        words.insert(generator.randrange(6), generator.choice(DECIDING[label]))
        yield " ".join(words), label


TEXTS, LABELS = (list(part) for part in zip(*texts_with_classes(), strict=True))


def new_model() -> HardKumaModel:
    return build_model(**MODEL)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    return build_store(new_model(), TEXTS, tmp_path_factory.mktemp("store"), "float16")


def fitted(store: StateStore, labels: Sequence[str], **train: object) -> Run:
    settings = {"objective": "task", **train}
    run = Run(Recipe(selectors={"task": {"train": settings}}, label="label"), new_model())
    run.store, run.rows, run.held_out = store, ROWS, HELD_OUT
    run.__dict__["_labelled"] = TextFile(TEXTS), list(labels)
    (objective,) = run.objectives
    assert isinstance(objective, Task) and objective.fit(run)
    return run


def found(run: Run) -> dict[str, float]:
    assert isinstance(run.result, HardKumaForSequenceClassification)
    numbers = torch.tensor([int(label == "positive") for label in LABELS])
    return accuracies(run.result, run.store, HELD_OUT, numbers[HELD_OUT], "task")


def test_rationales_hold_the_class_and_the_rest_does_not(store: StateStore) -> None:
    run = fitted(store, LABELS)
    accuracy = found(run)
    assert min(accuracy["rationale at 0.2"], accuracy["own selection"]) > 0.9 and accuracy["all words"] > 0.8
    assert accuracy["complement at 0.2"] < 0.65
    assert float(mean_rate(run.model, store, ROWS)[0]) == pytest.approx(0.2, rel=0.1), "at its target rate"
    assert run.result.config.id2label == {0: "negative", 1: "positive"}
    report = run.objectives[0].report(run)
    assert "with labels" in report.paragraph and "complement at 0.2" in report.evaluation


def test_shuffled_labels_teach_nothing(store: StateStore) -> None:
    """The mechanism taken away: the same fit, of classes that have nothing to do with the texts."""
    shuffled = np.random.default_rng(1).permutation(LABELS).tolist()
    assert found(fitted(store, shuffled))["rationale at 0.2"] < 0.7


def test_steps_of_the_loss_as_written(store: StateStore) -> None:
    run = fitted(store, LABELS, warm_start=False, steps=24, batch_size=16, learning_rate=0.003, log_every=1)
    losses = [entry["loss/task"] for entry in run.history]
    assert len(losses) == 24 and np.mean(losses[-6:]) < np.mean(losses[:3]) - 0.05
    assert {"loss/selected", "loss/changes", "loss/constraint"} <= run.history[0].keys()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "reviews.tsv"
    path.write_text("".join(f"{label}\t{text}\n" for text, label in zip(TEXTS[:60], LABELS[:60], strict=True)))
    words = ["--objective", "task", "--data", str(path), "--label", "1", "--column", "2", "--output", str(tmp_path / "run")]
    assert main([*words, "--train.subsets", "2", "--train.epochs", "2"]) == 0, capsys.readouterr().err
    model = HardKumaForSequenceClassification.from_pretrained(tmp_path / "run" / "model")
    assert model.config.id2label == {0: "negative", 1: "positive"}
    assert "with labels" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_a_column_that_holds_no_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for labels, message in (("aaaa", "has one class, 'a'"), ("abcd", "has 4 classes in 4 texts: is this the column")):
        path = tmp_path / "texts.csv"
        path.write_text("text,class\n" + "".join(f"one two three {label},{label}\n" for label in labels))
        assert main(["--objective", "task", "--data", str(path), "--label", "class", "--output", str(tmp_path / "o")]) == 1
        assert message in capsys.readouterr().err and not (tmp_path / "o").exists()


def test_the_selector_that_is_trained_is_the_one_that_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["task", "--output", str(tmp_path / "o"), "--selectors.task", "{train: {objective: removal}, unit: word}"]
    assert main([*words, "--selectors.mood", "{train: {objective: task}, unit: word}"]) == 1
    assert "selectors.mood: a text's class is told by the words of the selector 'task'" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"label": None}, "objective task needs classes: name their column, --label COLUMN"),
        ({"selectors.task.train": {"objective": "removal"}}, "label 'label' is for objective task alone"),
        ({"selectors.more": {"train": {"objective": "task"}}}, "a checkpoint has one classifier"),
        ({"column": "label"}, "label and column are both 'label'"),
    ],
)
def test_recipes_that_make_no_sense(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_recipe("task", overrides)
