"""ONNX files under onnxruntime against the model, at other shapes than they were exported with."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import hardkuma.apps.export.onnx as graphs
from hardkuma.__main__ import main
from hardkuma.apps.export.onnx import export_onnx
from hardkuma.words_hardkuma import NUM_SURFACE_CLASSES
from tests.apps.export.test_native import sentences
from tests.conftest import SENTENCES, several

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def check(model: object, file: Path, outputs: list[str]) -> None:
    session = onnxruntime.InferenceSession(str(file))
    assert [output.name for output in session.get_outputs()] == outputs
    for texts in (SENTENCES, SENTENCES[:1], SENTENCES[3:4], SENTENCES * 3):
        inputs = model.tokenizer(texts, padding=True, return_tensors="pt")
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        for shapes in (torch.zeros_like(ids), torch.randint(0, NUM_SURFACE_CLASSES, ids.shape)):
            given = {"input_ids": ids, "attention_mask": mask, "surface_ids": shapes}
            if model.gate_head.roles is not None:
                given["continues"] = torch.randint(0, 2, ids.shape)
            assert [item.name for item in session.get_inputs()] == list(given)
            with torch.no_grad():
                expected = model(**given)
            feed = {name: value.numpy() for name, value in given.items()}
            for name, values in zip(outputs, session.run(None, feed), strict=True):
                assert np.abs(values - expected[name].numpy()).max() < 1e-4, name


# Tracing takes seconds, so a second layer, which is traced as the first, is left out everywhere. Of the view reencode there
# is a family without position ids here, and one with them below; of the view hidden the command's.
def test_equals_the_model_at_other_shapes(make_model: Callable, tmp_path: Path) -> None:
    model = make_model("mpnet", layers=1, view="reencode")
    model.gate_head.surface_log_odds.normal_()
    report = export_onnx(model, tmp_path / "out", sentences(40), rationale=True, int8=False)
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report
    assert report["fp32"]["largest_difference"] < 1e-4 and "int8" not in report
    check(model, tmp_path / "out" / "model.onnx", ["gate_probs", "anchor_embedding", "rationale_embedding"])


def test_the_command_writes_several_selectors_a_filtered_embedding_and_int8(
    make_model: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a process of its own the command runs in tests/test_extras.py."""
    low = {"frequency_filter": "low", "frequency_high": 0.5}
    model = make_model("distilbert", layers=1, view="hidden", selectors=several(2), **low)
    model.save_pretrained(tmp_path / "model")
    data, out = tmp_path / "some.txt", tmp_path / "out"
    data.write_text("\n".join(sentences(80)))
    words = ["export", "onnx", "--model", str(tmp_path / "model"), "--output", str(out), "--data", str(data)]
    assert main([*words, "--rationale"]) == 0
    said = capsys.readouterr().out
    assert "model.onnx differs from the model by at most" in said and "times as fast" in said
    check(model, out / "model.onnx", ["gate_probs", "anchor_embedding", "rationale_embedding"])
    report = json.loads((out / "report.json").read_text())
    session = onnxruntime.InferenceSession(str(out / "model_int8.onnx"))
    assert session.get_modelmeta().custom_metadata_map["decision_threshold"] == "0.5"
    assert 0.5 < report["int8"]["pearson"] < 1.0, "int8 is close to fp32, and not the same"
    assert 0 <= report["int8"]["decisions_changed"] < 0.3 and report["int8"]["speed"] > 0
    card = (out / "README.md").read_text()
    assert f"{report['int8']['pearson']:.4f}" in card and "`some.txt`" in card and str(tmp_path) not in card
    found = run_example(card, out)
    assert found["selected"].shape == found["ids"].shape
    assert AutoTokenizer.from_pretrained(out).model_max_length == 40


def test_gates_of_words(make_two: Callable, tmp_path: Path) -> None:
    model = make_two("roberta", layers=1, view="reencode")
    model.gate_head.surface_log_odds.normal_()
    report = export_onnx(model, tmp_path / "out", sentences(20), rationale=True, int8=False)
    check(model, tmp_path / "out" / "model.onnx", ["gate_probs", "anchor_embedding", "rationale_embedding"])
    assert report["selectors"] == ["meaning", "entities"] and report["inputs"][-1] == "continues"
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    assert session.get_modelmeta().custom_metadata_map["selectors"] == "meaning,entities"
    card = (tmp_path / "out" / "README.md").read_text()
    found = run_example(card, tmp_path / "out")
    assert found["selected"].shape == found["ids"].shape and not found["continues"][:, 0].any()
    assert "`meaning` (0), `entities` (1)" in card and "[:, 0]  # of meaning" in card
    with pytest.raises(ValueError, match="no selector 'x': this model has 'meaning', 'entities'"):
        export_onnx(model, tmp_path / "none", sentences(20), selector="x")
    assert not (tmp_path / "none").exists()


def test_one_selector_of_several(make_two: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written about it; tests/apps/export/test_backends.py has the graph, whose tracing takes seconds."""
    traced = []
    monkeypatch.setattr(graphs, "write_graph", lambda graph, path, feed: traced.append(graph) or path.write_bytes(b""))
    monkeypatch.setattr(graphs, "measure_difference", lambda *_: (0.0, 0.0))
    report = export_onnx(make_two(layers=1), tmp_path / "out", sentences(20), int8=False, selector="entities")
    assert traced[0].selector == "entities" and traced[0].outputs == ["gate_probs", "anchor_embedding"]
    assert report["selectors"] == ["entities"]
    assert "those of the selector `entities`" in (tmp_path / "out" / "README.md").read_text()


def run_example(card: str, folder: Path) -> dict[str, object]:
    """What the example on a card computes, with its path filled in."""
    example = (
        re.search(r"```python\n(.*?)```", card, flags=re.DOTALL).group(1).replace('path = "."', f"path = {str(folder)!r}")
    )
    found: dict[str, object] = {}
    exec(example, found)
    return found


@pytest.mark.parametrize("kind", [RuntimeError, torch.onnx.errors.OnnxExporterError])
def test_what_cannot_be_exported_is_said(
    kind: type[Exception], make_model: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise kind("no such operator\nand a long story")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    reason = (
        r"torch\.onnx cannot export BertModel with these settings \(no such operator\); `hardkuma export native` may do"
    )
    with pytest.raises(ValueError, match=reason):
        export_onnx(make_model(), tmp_path / "out", sentences(10), int8=False)
    assert not (tmp_path / "out").exists()
