"""Cards of saved, trained and exported models, read by huggingface_hub's own classes, offline."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from hardkuma import HardKumaConfig, load_released
from hardkuma.apps.export.cards import Agreement, native_card, onnx_card
from hardkuma.checkpoint_hardkuma import CARD_PATH, CARD_TEMPLATE, name_repository, read_card_values, render_card

ROOT = Path(__file__).resolve().parents[1]
RESULTS = [
    {"dataset": "held-out text of news.txt", "type": "held-out", "metrics": {"sufficiency of a at rate 0.2": 0.8125}},
    {"dataset": "dev.conll", "type": "development", "metrics": {"average precision": 0.5, "F1": 0.25}},
]


def check(text: str) -> ModelCard:
    """The card as the Hub's own library reads it: what it asks for is there, and writing it again changes nothing."""
    card = ModelCard(text, ignore_metadata_errors=False)
    data = card.data
    again = ModelCardData(**ModelCard(str(card), ignore_metadata_errors=False).data.to_dict(), ignore_metadata_errors=False)
    assert again.to_dict() == data.to_dict()
    assert data.license == "apache-2.0" and data.library_name in ("transformers", "onnx")
    assert data.pipeline_tag in ("token-classification", "text-classification")
    for mark in ("{{", "PATH_OR_REPO", "None"):
        assert mark not in card.content, mark
    return card


def template() -> str:
    return (ROOT / CARD_TEMPLATE).read_text(encoding="utf-8")


def test_a_card_holds_what_was_measured_of_its_checkpoint_and_nothing_else() -> None:
    config = HardKumaConfig(encoder_name_or_path="sentence-transformers/all-MiniLM-L6-v2")
    values = {"language": ["en"], "datasets": ["org/set"], "results": RESULTS, "name": 'Gates "of" news: №1'}
    card = check(render_card(template(), config, values))
    assert card.data.language == ["en"] and card.data.datasets == ["org/set"]
    assert card.data.base_model == config.encoder_name_or_path and len(card.data.widget) >= 3
    assert card.data.eval_results == [
        EvalResult(
            "token-classification", result["type"], result["dataset"], re.sub(r"\W+", "_", name.lower()), value,
            metric_name=name,
        )
        for result in RESULTS
        for name, value in result["metrics"].items()
    ]  # fmt: skip
    assert card.data.model_name == 'Gates "of" news: №1'
    # The released head's own figures are on its card alone.
    released = read_card_values(str(ROOT))
    figures = {value for result in released["results"] for value in result["metrics"].values()}
    assert figures and not [value for value in figures if f"{value:.3f}".removeprefix("0") in card.content]


def test_a_card_of_gates_that_nobody_measured_claims_nothing() -> None:
    card = check(render_card(template(), HardKumaConfig()))
    assert card.data.eval_results is None and card.data.language is None and card.data.base_model is None


def test_a_classifier_of_texts_is_found_as_such() -> None:
    config = HardKumaConfig(id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1})
    card = check(render_card(template(), config, {"results": RESULTS[:1]}))
    assert card.data.pipeline_tag == card.data.eval_results[0].task_type == "text-classification"


def test_a_saved_card_says_how_to_load_it_and_a_pushed_one_where_it_is(make_model: Callable, tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "model", card={"results": RESULTS, "language": ["en"]})
    check((tmp_path / "model" / "README.md").read_text(encoding="utf-8"))
    assert CARD_PATH in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    name_repository(tmp_path / "model", "someone/gates")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert CARD_PATH not in card and '\npath = "someone/gates"\n' in card
    again = type(make_model()).from_pretrained(tmp_path / "model")
    again.save_pretrained(tmp_path / "again")
    card = check((tmp_path / "again" / "README.md").read_text(encoding="utf-8"))
    assert [result.metric_value for result in card.data.eval_results] == [0.8125, 0.5, 0.25]
    assert card.data.language == ["en"] and CARD_PATH in card.content


@pytest.mark.parametrize("damaged", ['{"results": [1]}', '{"results": [{"dataset": "x"}]}', "[]", '{"language": "en"}'])
def test_damaged_fields_of_a_card_are_left_out(damaged: str, make_model: Callable, tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "card.json").write_text(damaged)
    type(make_model()).from_pretrained(tmp_path / "model").save_pretrained(tmp_path / "again")
    card = check((tmp_path / "again" / "README.md").read_text(encoding="utf-8"))
    assert card.data.eval_results is None and card.data.language is None


def test_the_card_of_the_released_head(tmp_path: Path) -> None:
    values = json.loads((ROOT / "card.json").read_text(encoding="utf-8"))
    card = check(render_card(template(), load_released()[0].config, values))
    assert card.data.language == ["en"] and card.data.datasets and len(card.data.eval_results) >= 6
    for result in card.data.eval_results:  # the same figures as in words
        assert f"{result.metric_value:.3f}".removeprefix("0") in values["evaluation"], result.metric_name


def test_the_repository_is_shown_by_the_hub_as_the_released_head() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    values = json.loads((ROOT / "card.json").read_text(encoding="utf-8"))
    rendered = check(render_card(template(), load_released()[0].config, values)).data.to_dict()
    assert ModelCard(readme, ignore_metadata_errors=False).data.to_dict() == rendered, (
        "python -m tests.test_cards prints it"
    )


def test_cards_of_exports() -> None:
    model = load_released()[0]
    agreements = {"gates": Agreement(0.99, 0.9, 0.8, 0.95, 0.2, 0.2, 100)}
    card = check(native_card(model, agreements, "news.txt", 10, 5, selector="entities"))
    assert [result.metric_value for result in card.data.eval_results] == [0.99, 0.9, 0.95]
    assert "not the gates" in card.text and CARD_PATH in card.text and card.data.language == ["en"]
    undefined = {"gates": Agreement(float("nan"), 0.9, 0.8, 0.95, 0.0, 0.0, 100)}
    assert len(check(native_card(model, undefined, "news.txt", 10, 5)).data.eval_results) == 2
    report = {
        "fp32": {"megabytes": 90.0, "batches": 3, "largest_difference": 1e-6},
        "int8": {
            "megabytes": 23.0, "speed": 2.0, "pearson": 0.99, "decisions_changed": 0.01, "anchor_cosine": 0.999,
            "texts": 5, "tokens": 60, "threads": 1,
        },
        "selectors": ["meaning", "entities"], "inputs": ["input_ids"], "outputs": ["gate_probs"],
    }  # fmt: skip
    card = check(onnx_card(model, report, "news.txt"))
    assert card.data.library_name == "onnx" and [r.metric_value for r in card.data.eval_results] == [0.99, 0.01, 0.999]


if __name__ == "__main__":  # the header of README.md
    values = json.loads((ROOT / "card.json").read_text(encoding="utf-8"))
    print(f"---\n{check(render_card(template(), load_released()[0].config, values)).data.to_yaml()}\n---")
