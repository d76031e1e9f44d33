"""HardKumaForSequenceClassification: the class of a text by its selected words alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    Trainer,
    TrainingArguments,
    pipeline,
)

from hardkuma import HardKumaConfig, HardKumaForSequenceClassification, HardKumaModel
from hardkuma.losses_hardkuma import next_multiplier, task_loss

SENTENCES = ["marie curie moved to paris", "a team won", "google opened an office in berlin"]
CLASSES = {0: "bad", 1: "good", 2: "ugly"}
TASK = {"selectors": {"task": {"unit": "word", "function_words": True, "lambda_s": 0.1}}, "view": "reencode"}


@pytest.fixture
def classifier(make_model: Callable) -> HardKumaForSequenceClassification:
    base: HardKumaModel = make_model(**TASK, id2label=CLASSES)
    torch.manual_seed(0)
    model = HardKumaForSequenceClassification(base.config, hardkuma=base).eval()
    model.tokenizer = base.tokenizer
    return model


def inputs_of(model: HardKumaForSequenceClassification) -> dict[str, torch.Tensor]:
    return dict(model.tokenizer(SENTENCES, padding=True, return_tensors="pt"))


def test_the_classifier_sees_the_selected_words_alone(classifier: HardKumaForSequenceClassification) -> None:
    inputs, base = inputs_of(classifier), classifier.hardkuma
    for rate in (None, 0.3, 1.0):
        out = classifier(**inputs, rate=rate)
        tokens = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        alone = base.encode_subsets(**tokens, kept=out.gates[:, None])[:, 0]
        assert torch.allclose(out.logits, classifier.classifier(alone), atol=1e-5)
        assert torch.equal(out.gates, base(**inputs, rate=rate).gates)
    assert torch.allclose(out.logits, classifier.classifier(base(**inputs).anchor_embedding), atol=1e-5), "at rate 1 all"


@pytest.mark.parametrize("constraint", ["none", "penalty", "linear", "lagrangian"])
def test_task_loss_against_a_loop(constraint: str) -> None:
    selector = {"lambda_s": 0.3, "target_rate": 0.2}
    config = HardKumaConfig(selectors={"task": selector}, lambda_tv=0.7, lambda_e=2.0, rate_constraint=constraint)
    probs = torch.tensor([[0.9, 0.2, 0.5, 0.0], [0.3, 0.6, 0.0, 0.0]])
    content = torch.tensor([[True, True, True, False], [True, True, False, False]])
    multiplier = torch.tensor([0.4])
    total, terms = task_loss(torch.tensor(0.8), probs, content, config, multiplier, True, 0)
    selected = changes = rate = 0.0
    for row, words in zip(probs.tolist(), (3, 2), strict=True):
        selected += sum(row[:words]) / 2
        rate += sum(row[:words]) / 5
        for one, other in pairwise(row[:words]):
            changes += (one * (1 - other) + (1 - one) * other) / 2
    off = rate - 0.2
    expected = {"none": 0.0, "penalty": off**2, "linear": abs(off), "lagrangian": 0.4 * off + off**2}[constraint]
    assert float(terms["selected"]) == pytest.approx(selected) and float(terms["changes"]) == pytest.approx(changes)
    assert float(total) == pytest.approx(0.8 + 0.3 * selected + 0.7 * changes + 2.0 * expected, abs=1e-6)
    moved = next_multiplier(torch.tensor(0.4), torch.tensor(rate), 0.2, config.multiplier_lr)
    assert float(multiplier) == pytest.approx(float(moved) if constraint == "lagrangian" else 0.4)


def test_the_loss_reaches_gates_and_classifier(classifier: HardKumaForSequenceClassification) -> None:
    out = classifier.train()(**inputs_of(classifier), labels=torch.tensor([0, 2, 1]))
    assert set(out.losses) == {"task", "selected", "changes"}
    out.loss.backward()
    for part in (classifier.hardkuma.gate_head.selectors[0].hidden, classifier.classifier):
        assert float(part.weight.grad.abs().sum()) > 0
    assert all(parameter.grad is None for parameter in classifier.hardkuma.encoder.parameters()), "the encoder is frozen"
    with pytest.raises(TypeError, match="unexpected keyword argument 'nois'"):
        classifier(**inputs_of(classifier), nois=None)


def test_one_checkpoint_for_every_auto_class(classifier: HardKumaForSequenceClassification, tmp_path: Path) -> None:
    inputs = inputs_of(classifier)
    expected = classifier(**inputs, rate=0.4)
    for folder, save in ((tmp_path / "whole", classifier.save_pretrained),):
        save(folder)
        loaded = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
        assert loaded.config.id2label == CLASSES
        assert torch.equal(loaded(**inputs, rate=0.4).logits, expected.logits)
        base = AutoModel.from_pretrained(folder, trust_remote_code=True)
        assert torch.equal(base(**inputs, rate=0.4).gates, expected.gates)
        tokens = AutoModelForTokenClassification.from_pretrained(folder, trust_remote_code=True)
        assert tokens.config.id2label == {0: "O", 1: "ENTITY"}
        found = pipeline("text-classification", str(folder), trust_remote_code=True)(SENTENCES, top_k=None)
        best = classifier(**inputs).logits.softmax(-1)
        for row, scores in enumerate(found):
            by_name = {score["label"]: score["score"] for score in scores}
            assert by_name[CLASSES[1]] == pytest.approx(float(best[row, 1]), abs=1e-5)
        shown = pipeline("token-gates", str(folder), trust_remote_code=True)(SENTENCES[0])
        assert [word["word"] for word in shown["words"]] == SENTENCES[0].split()


def test_a_gate_head_alone_takes_its_classifier_along(tmp_path: Path) -> None:
    name = "sentence-transformers/all-MiniLM-L6-v2"
    model = HardKumaForSequenceClassification.from_encoder(name, id2label=CLASSES, **TASK).eval()
    model.save_gate_head(tmp_path)
    loaded = HardKumaForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(loaded.classifier.weight, model.classifier.weight) and loaded.config.id2label == CLASSES
    assert isinstance(HardKumaModel.from_pretrained(tmp_path), HardKumaModel)


def test_gates_without_a_classifier(make_model: Callable, tmp_path: Path) -> None:
    make_model(**TASK).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="holds gates and no classifier of texts: train one"):
        HardKumaForSequenceClassification.from_pretrained(tmp_path)
    new = AutoModelForSequenceClassification.from_pretrained(tmp_path, trust_remote_code=True, id2label=CLASSES)
    assert new.classifier.out_features == 3


def test_as_many_classes_as_the_classifier_has(classifier: HardKumaForSequenceClassification, tmp_path: Path) -> None:
    wrong, said = {i: f"class {i}" for i in range(5)}, r"id2label names 5 classes, but the classifier in .* is of 3; give"
    name = "sentence-transformers/all-MiniLM-L6-v2"
    HardKumaForSequenceClassification.from_encoder(name, id2label=CLASSES, **TASK).save_gate_head(tmp_path / "head")
    classifier.save_pretrained(tmp_path / "whole")
    for folder in (tmp_path / "head", tmp_path / "whole"):
        with pytest.raises(ValueError, match=said):
            HardKumaForSequenceClassification.from_pretrained(folder, id2label=wrong)
        assert isinstance(HardKumaModel.from_pretrained(folder, id2label=wrong), HardKumaModel), "which has no classifier"
    anew = {"id2label": wrong, "ignore_mismatched_sizes": True}
    model = HardKumaForSequenceClassification.from_pretrained(tmp_path / "whole", **anew)
    assert model.classifier.out_features == 5, "as in every transformers model"


def test_trainer(classifier: HardKumaForSequenceClassification, tmp_path: Path) -> None:
    texts = [SENTENCES[number % 3] for number in range(24)]
    rows = [{**classifier.tokenizer(text), "labels": number % 3} for number, text in enumerate(texts)]
    options = {"num_train_epochs": 10, "per_device_train_batch_size": 8, "learning_rate": 0.05, "report_to": []}
    arguments = TrainingArguments(str(tmp_path), save_strategy="no", use_cpu=True, seed=0, **options)
    trainer = Trainer(classifier, arguments, train_dataset=rows, processing_class=classifier.tokenizer)
    before = trainer.evaluate(rows)["eval_loss"]
    trainer.train()
    assert trainer.evaluate(rows)["eval_loss"] < before
    found = trainer.predict(rows)
    assert isinstance(found.predictions, np.ndarray) and found.predictions.shape == (24, 3), "logits and nothing else"


def test_pickling_and_copying(classifier: HardKumaForSequenceClassification) -> None:
    import copy
    import pickle

    inputs = inputs_of(classifier)
    for other in (pickle.loads(pickle.dumps(classifier)), copy.deepcopy(classifier)):
        assert torch.equal(other(**inputs).logits, classifier(**inputs).logits)
