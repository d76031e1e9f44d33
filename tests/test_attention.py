"""Attention features against the eager weights; the gated attention against really removed tokens; sdpa stays."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch

from hardkuma import attention_hardkuma
from hardkuma.attention_hardkuma import AttentionTap, attention_features, routes_attention, run_encoder
from tests.conftest import FAMILIES, SENTENCES

READS_ATTENTION = {"meaning": {"reads": ["state", "attention"]}}
WITH_ATTENTION = [family for family in FAMILIES if family != "hardkuma_static"]


def naive_features(weights: torch.Tensor, mask: torch.Tensor, content: torch.Tensor) -> torch.Tensor:
    """weights: (layers, heads, length, length) of one sentence."""
    length = weights.shape[-1]
    result = torch.zeros(length, 2)
    n, total = int(content.sum()), int(mask.sum())
    mean = weights.mean((0, 1))
    for i in range(length):
        if content[i]:
            received = sum(float(mean[q, i]) for q in range(length) if content[q])
            given = sum(float(mean[i, k]) for k in range(length) if content[k] and k != i)
            result[i, 0] = received / (n / total)
            result[i, 1] = given / ((n - 1) / total) if n > 1 else 0.0
    return result


@pytest.mark.parametrize("family", WITH_ATTENTION)
def test_features_agree_with_a_naive_loop_over_eager_weights(family: str, make_model: Callable, tokenize: Callable) -> None:
    model = make_model(family)
    inputs = tokenize(model, SENTENCES)
    mask = inputs["attention_mask"]
    content = mask.bool() & ~torch.isin(inputs["input_ids"], torch.tensor([0, 1, 3]))
    with torch.no_grad():
        tap = AttentionTap(content=content, layers=frozenset({0, 1}))
        run_encoder(model.encoder, inputs["input_ids"], mask, tap=tap)
        got = attention_features(tap, mask)
        if routes_attention(model.encoder):
            model.encoder.set_attn_implementation("eager")
        eager = model.encoder(input_ids=inputs["input_ids"], attention_mask=mask, output_attentions=True)
    for row in range(len(SENTENCES)):
        weights = torch.stack([layer[row] for layer in eager.attentions])
        expected = naive_features(weights, mask[row], content[row])
        assert torch.allclose(got[row], expected, atol=1e-4), family


def test_features_do_not_depend_on_length_under_uniform_attention() -> None:
    """Every token gets 1 and 1, whatever the number of tokens and of padding."""
    for length, padding in [(5, 0), (20, 3), (60, 10)]:
        mask = torch.tensor([[1] * length + [0] * padding])
        content = mask.bool().clone()
        content[0, 0] = content[0, length - 1] = False
        weights = mask[:, None, None, :].expand(1, 2, length + padding, -1) / length
        tap = AttentionTap(content=content, layers=frozenset({0}))
        tap.keep(weights)
        features = attention_features(tap, mask)
        assert torch.allclose(features[content], torch.ones(length - 2, 2), atol=1e-5)
        assert torch.equal(features[~content], torch.zeros(padding + 2, 2))


@pytest.mark.parametrize("family", [f for f in WITH_ATTENTION if f != "mpnet"])
def test_the_kernel_stays_sdpa(family: str, make_model: Callable, tokenize: Callable) -> None:
    model = make_model(family, selectors=READS_ATTENTION)
    real = torch.nn.functional.scaled_dot_product_attention
    with mock.patch("torch.nn.functional.scaled_dot_product_attention", side_effect=real) as sdpa:
        model(**tokenize(model, SENTENCES))
    assert sdpa.call_count == 2, "one sdpa call per layer"


@pytest.mark.parametrize("family", WITH_ATTENTION)
def test_features_leave_the_encoders_result_alone(family: str, make_model: Callable, tokenize: Callable) -> None:
    plain, tapped = make_model(family), make_model(family, selectors=READS_ATTENTION)
    inputs = tokenize(plain, SENTENCES)
    difference = plain(**inputs).anchor_embedding - tapped(**inputs).anchor_embedding
    assert difference.abs().max() < 1e-5


@pytest.mark.parametrize("family", WITH_ATTENTION)
def test_gated_keys_equal_masked_keys(family: str, make_model: Callable, tokenize: Callable) -> None:
    """log g with g in {0, 1} must give what the attention mask gives."""
    model = make_model(family)
    inputs = tokenize(model, SENTENCES)
    mask = inputs["attention_mask"]
    keep = (torch.rand(mask.shape) > 0.4) | torch.isin(inputs["input_ids"], torch.tensor([0, 3]))
    kept = mask.bool() & keep
    with torch.no_grad():
        tap = AttentionTap(key_bias=torch.where(keep, 0.0, -1e9))
        soft = run_encoder(model.encoder, inputs["input_ids"], mask, tap=tap).last_hidden_state
        hard = run_encoder(model.encoder, inputs["input_ids"], kept.long()).last_hidden_state
    assert torch.allclose(soft[kept], hard[kept], atol=1e-4), family


def test_static_encoder_has_zero_features(make_model: Callable, tokenize: Callable) -> None:
    model = make_model("hardkuma_static", selectors=READS_ATTENTION)
    inputs = tokenize(model, SENTENCES)
    mask = inputs["attention_mask"]
    tap = AttentionTap(content=mask.bool(), layers=frozenset({0}))
    run_encoder(model.encoder, inputs["input_ids"], mask, tap=tap)
    assert torch.equal(attention_features(tap, mask), torch.zeros(*mask.shape, 2))
    assert torch.isfinite(model(**inputs).gate_probs).all()


def test_a_family_that_takes_no_bias_says_so(make_model: Callable, tokenize: Callable) -> None:
    model = make_model("mpnet", view="reencode").train()
    model.encoder.config.model_type = "deberta-v2"
    with pytest.raises(ValueError, match=r"'reencode' cannot be trained with a 'deberta-v2' encoder.*use the view"):
        model(**tokenize(model, SENTENCES), return_loss=True)


def test_an_encoder_that_swallows_the_tap_says_so(
    make_model: Callable, tokenize: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("mpnet", selectors=READS_ATTENTION)
    monkeypatch.setattr(attention_hardkuma, "routes_attention", lambda encoder: True)
    with pytest.raises(ValueError, match=r"MPNetModel does not pass keyword arguments on.*no 'attention' among what"):
        model(**tokenize(model, SENTENCES))
