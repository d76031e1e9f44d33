"""Every method: found by name, right where the answer is known, the same in any batch, on every family of encoders."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hardkuma import HardKumaModel
from hardkuma.common import packages
from hardkuma.evaluation.baselines import METHODS, SentenceEncoder, find_method
from hardkuma.evaluation.baselines.counts import WordCounts
from hardkuma.evaluation.baselines.registry import BASELINE
from hardkuma.training.encoder.scorers import score_sentences
from hardkuma.training.encoder.sentence import read_sentences
from hardkuma.training.encoder.views import make_augmentation
from tests.conftest import FAMILIES, SENTENCES

from .conftest import TEXTS


def test_registry_is_complete() -> None:
    for name, method in METHODS.items():
        assert method.name == name and method.title and method.cost
        assert bool(method.needs) == bool(method.extra)
    with pytest.raises(ValueError, match="unknown method 'magic'; known: random"):
        find_method("magic")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("loo_word", [-0.5, 0.5, 0.0]),
        ("loo_pooled_word", [-0.5, 0.5, 0.0]),
        ("integrated_gradients", [-2 / 3, 0.0, -1 / 3]),  # from padding, [1, 1, 1]
        ("shap", None),
    ],
)
def test_methods_explain_another_value(known: SentenceEncoder, name: str, expected: list[float] | None) -> None:
    """The second number of the mean of word vectors, instead of the cosine."""
    scores = METHODS[name].scores(known, ["it rains in"], value=lambda vectors, whole: vectors[:, 1])[0].scores
    assert np.argsort(scores).tolist() == ([0, 2, 1] if expected is None else np.argsort(expected).tolist())
    assert expected is None or scores == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["keybert", "yake", "shap", "integrated_gradients", "self_information"])
def test_a_missing_package_is_one_clear_sentence(
    name: str, known: SentenceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(module: str) -> None:
        raise ImportError(f"No module named {module!r}")

    function = METHODS[name].function
    monkeypatch.setattr(packages.importlib, "import_module", absent)
    with pytest.raises(ImportError, match=r"pip install 'hardkuma\[(benchmark|keywords)\]'"):
        function(known, ["it rains in"])


FINDS_THE_LONGEST = [
    name
    for name in METHODS
    if name.startswith(("norm", "cosine", "loo", "integrated", "shap", "keybert")) and not METHODS[name].missing
]


@pytest.mark.parametrize("name", FINDS_THE_LONGEST)
def test_the_important_word_is_found(known: SentenceEncoder, name: str) -> None:
    text = "it rains in Paris"
    result = METHODS[name].scores(known, ["rains in", text])[1]
    assert result.words == [(0, 2), (3, 8), (9, 11), (12, 17)]
    assert result.ranked()[0][0] == "Paris", result
    # And it is not found where it is absent.
    assert METHODS[name].scores(known, ["it rains in"])[0].words == result.words[:3]


@pytest.mark.parametrize("name", [n for n in METHODS if METHODS[n].role == BASELINE and not METHODS[n].missing])
def test_results_do_not_depend_on_the_batch(transformer: SentenceEncoder, name: str) -> None:
    method = METHODS[name]
    extra = {"counts": _counts()} if method.counted else {}
    together = method.scores(transformer, TEXTS, **extra)
    transformer.token_budget = 1
    for text, result in zip(TEXTS, together, strict=True):
        alone = method.scores(transformer, [text], **extra)[0]
        assert alone.scores == pytest.approx(result.scores, abs=1e-4)
        assert len(result.scores) == len(result.words) > 0


def _counts() -> object:

    return WordCounts(TEXTS)


ONE_PASS = ("norm", "cosine", "attention", "rollout", "loo_pooled", "gates")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(make_model: Callable[..., HardKumaModel], family: str) -> None:
    model = make_model(family)
    encoder = SentenceEncoder.from_model(model, token_budget=40)
    inputs = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        anchor = model(inputs["input_ids"], inputs["attention_mask"]).anchor_embedding
    torch.testing.assert_close(encoder.encode(SENTENCES), anchor, atol=1e-4, rtol=1e-4)
    names = [*ONE_PASS, "loo"] + ([] if METHODS["integrated_gradients"].missing else ["integrated_gradients"])
    for name in names:
        if family == "hardkuma_static" and name in ("attention", "rollout"):
            continue  # it has no attention
        for result in METHODS[name].scores(encoder, SENTENCES):
            assert len(result.scores) == len(result.words) and not result.missing
            assert torch.isfinite(torch.tensor(result.scores)).all(), name
    if family != "hardkuma_static":
        sentences = read_sentences(encoder.tokenizer, SENTENCES, model.max_length)
        drop = make_augmentation({"attention_naive": {"k": 1, "t": 1}})
        scored = score_sentences(encoder, SENTENCES, sentences, ["attention"])
        dropped = [len(sentence) - len(drop(sentence, np.random.default_rng(0))) for sentence in scored]
        assert set(dropped) <= {0, 1} and sum(dropped) > len(dropped) / 2
