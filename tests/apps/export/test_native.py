"""The native export as its users call it: stock classes, no custom code, agreement as the card says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

from hardkuma.apps.export.cards import agreement
from hardkuma.apps.export.native import export_native
from hardkuma.batch_hardkuma import content_mask
from hardkuma.data import bundled_texts
from hardkuma.data.tokens import token_batches
from tests.conftest import WORDS, several
from tests.forks import COMMAND, ForkServer


def sentences(number: int) -> list[str]:
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(WORDS, generator.integers(4, 12))) for _ in range(number)]


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "mpnet", "distilbert", "modernbert", "qwen3"])
def test_stock_classes_load_without_trust_and_agree_as_reported(family: str, make_model: Callable, tmp_path: Path) -> None:
    model = make_model(family)
    texts = sentences(300)
    export_native(model, tmp_path / "out", texts)
    assert not list((tmp_path / "out").glob("*.py"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "auto_map" not in config and config["id2label"] == {"0": "O", "1": "ENTITY"}
    stock, info = AutoModelForTokenClassification.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert type(stock).__module__.startswith("transformers.")
    assert not info["missing_keys"] and not info["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.model_max_length == model.config.max_seq_length
    ours, gates = [], []
    with torch.no_grad():
        for batch in token_batches(tokenizer, texts[::5], 40):
            keep = content_mask(model.config, batch["input_ids"], batch["attention_mask"], None)
            ours.append(stock.eval()(**batch).logits.softmax(-1)[..., 1][keep])
            gates.append(model(**batch).gate_probs[keep])
    again = agreement(torch.cat(ours).numpy(), torch.cat(gates).numpy(), gate_threshold=model.config.decision_threshold)
    reported = json.loads((tmp_path / "out" / "agreement.json").read_text())["gates"]
    assert reported == pytest.approx(again.as_dict(), abs=2e-4)
    assert reported["pearson"] > 0.5, "a head fitted to noise would have none"


def test_the_decision_falls_as_often_as_the_gates_own(make_model: Callable, tmp_path: Path) -> None:
    model = make_model(decision_threshold=0.7)
    found = export_native(model, tmp_path / "out", sentences(400))["gates"]
    assert found.selected == pytest.approx(found.selected_by_gates, abs=0.05)
    assert found.decisions > 0.8


def test_layers_above_the_selectors_are_left_out(make_model: Callable, tmp_path: Path) -> None:
    for family in ("bert", "modernbert"):
        export_native(make_model(family, selectors={"meaning": {"layer": 1}}), tmp_path / family, sentences(200))
        stock = AutoModelForTokenClassification.from_pretrained(tmp_path / family)
        assert stock.config.num_hidden_layers == 1
        assert "its first 1 layers" in (tmp_path / family / "README.md").read_text()
    export_native(make_model(selectors={"meaning": {"layer": -1}}), tmp_path / "whole", sentences(20))
    assert "first" not in (tmp_path / "whole" / "README.md").read_text().split("```")[0]


def test_several_selectors_and_the_surface_view_are_reported(make_model: Callable, tmp_path: Path) -> None:
    model = make_model(selectors=several(2))
    model.gate_head.surface_log_odds[:, 3] = 2.0
    found = export_native(model, tmp_path / "out", sentences(100))
    assert set(found) == {"gates", "surface"} and found["surface"].selected_by_gates > found["gates"].selected_by_gates
    assert "surface view" in (tmp_path / "out" / "README.md").read_text()


def test_an_encoder_without_a_stock_class_is_refused(make_model: Callable, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no token-classification class for an encoder of type 'hardkuma_static'"):
        export_native(make_model("hardkuma_static"), tmp_path / "out", sentences(10))
    assert not (tmp_path / "out").exists()


def test_the_command_on_the_released_head(forks: ForkServer, tmp_path: Path) -> None:
    done = forks.run(COMMAND, "export", "native", "--output", tmp_path / "out", "--sentences", "150", "--quiet")
    assert done.returncode == 0, done.stderr
    reported = json.loads((tmp_path / "out" / "agreement.json").read_text())["gates"]
    assert reported["auroc"] > 0.9 and f"AUROC {reported['auroc']:.3f}" in done.stdout
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.pipeline_tag == "token-classification" and card.data.license == "apache-2.0"
    assert card.data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    assert len(card.data.widget) >= 3 and all(entry["text"] for entry in card.data.widget)
    assert f"{reported['auroc']:.3f}" in card.text and f"{reported['pearson']:.3f}" in card.text
    # The card's own example, with its path filled in.
    find = pipeline("token-classification", model=str(tmp_path / "out"), aggregation_strategy="max")
    text = bundled_texts(20)[7]
    for item in find(text):
        assert item["entity_group"] == "ENTITY" and 0 <= item["start"] < item["end"] <= len(text)


def test_gates_of_words_are_imitated(make_two: Callable, tmp_path: Path) -> None:
    model = make_two(layers=4)
    found = export_native(model, tmp_path / "entities", sentences(200))["gates"]
    assert found.pearson > 0.5, "of the words of the text, which all have one gate"
    stock = AutoModelForTokenClassification.from_pretrained(tmp_path / "entities")
    assert stock.config.num_hidden_layers == 2, "as far as the entities read"
    export_native(model, tmp_path / "meaning", sentences(200), selector="meaning")
    assert AutoModelForTokenClassification.from_pretrained(tmp_path / "meaning").config.num_hidden_layers == 4
    assert "selector `meaning`" in (tmp_path / "meaning" / "README.md").read_text()
    assert json.loads((tmp_path / "meaning" / "agreement.json").read_text())["selector"] == "meaning"
