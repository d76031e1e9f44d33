"""A model on its way to other processes: pickled, copied, and in sentence-transformers' pool."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer

from hardkuma import HardKumaForTokenClassification, HardKumaModel
from tests.conftest import SENTENCES, several


@pytest.mark.parametrize(
    "settings", [{}, {"selectors": {"meaning": {"layer": 1}}, "view": "reencode"}, {"selectors": several(2)}]
)
@pytest.mark.parametrize("family", ["bert", "mpnet", "qwen3"])
def test_pickled_and_loaded_gives_the_same(family: str, settings: dict, make_model: Callable) -> None:
    model = make_model(family, **settings)
    inputs = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    before = model(**inputs)  # after it the encoder carries hooks of transformers
    again = pickle.loads(pickle.dumps(model))
    after = again(**inputs)
    assert type(again) is HardKumaModel and not again.training
    assert torch.equal(before.gate_probs, after.gate_probs)
    assert torch.equal(before.rationale_embedding, after.rationale_embedding)
    trainable = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trainable == {name for name, weight in again.named_parameters() if weight.requires_grad}
    assert again.tokenizer(SENTENCES[0])["input_ids"] == model.tokenizer(SENTENCES[0])["input_ids"]


def test_a_token_classifier_is_pickled_too(make_model: Callable, tmp_path: Path) -> None:
    make_model(selectors={"meaning": {"layer": 1}}).save_pretrained(tmp_path / "model")
    model = HardKumaForTokenClassification.from_pretrained(tmp_path / "model").eval()
    inputs = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    before = model(**inputs).logits
    assert torch.equal(pickle.loads(pickle.dumps(model))(**inputs).logits, before)


def test_a_copy_has_weights_of_its_own(make_model: Callable) -> None:
    model = make_model()
    inputs = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    before = model(**inputs).gate_probs
    clone = copy.deepcopy(model)
    with torch.no_grad():
        clone.gate_head.selectors[0].shapes.bias.add_(1.0)
    assert torch.equal(model(**inputs).gate_probs, before)
    assert not torch.equal(clone(**inputs).gate_probs, before)


def test_a_pool_of_processes(make_model: Callable, tmp_path: Path) -> None:
    make_model(selectors={"meaning": {"layer": 1}}, view="reencode").save_pretrained(tmp_path / "model")
    model = SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True, device="cpu")
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    try:
        together = model.encode(SENTENCES, pool=pool, chunk_size=2)
    finally:
        model.stop_multi_process_pool(pool)
    assert torch.allclose(torch.from_numpy(together), torch.from_numpy(model.encode(SENTENCES)), atol=1e-5)
