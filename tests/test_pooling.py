"""Pooling against sentence-transformers for masks, against loops for weights; the frequency filter."""

from __future__ import annotations

import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling

from hardkuma.configuration_hardkuma import POOLING_MODES
from hardkuma.pooling_hardkuma import frequency_filter, normalize, pool

STATES = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]])


@pytest.mark.parametrize("mode", POOLING_MODES)
def test_a_mask_gives_the_encoders_own_pooling(mode: str) -> None:
    expected = Pooling(5, pooling_mode=mode)({"token_embeddings": STATES, "attention_mask": MASK})["sentence_embedding"]
    assert torch.allclose(pool(STATES, MASK[:, None].float(), [mode])[:, 0], expected, atol=1e-6)


@pytest.mark.parametrize("mode", POOLING_MODES)
def test_hard_selection_is_pooling_of_the_selected_tokens(mode: str) -> None:
    """Selecting tokens 1, 3 and 4 is the same as pooling a sentence of just those (weightedmean keeps positions)."""
    weights = torch.tensor([[[0.0, 1.0, 0.0, 1.0, 1.0, 0.0]]])
    got = pool(STATES[:1], weights, [mode])[0, 0]
    chosen = STATES[0, [1, 3, 4]]
    expected = {
        "mean": chosen.mean(0),
        "cls": chosen[0],
        "max": chosen.amax(0),
        "lasttoken": chosen[-1],
        "weightedmean": (chosen * torch.tensor([2.0, 4.0, 5.0])[:, None]).sum(0) / 11,
        "mean_sqrt_len_tokens": chosen.sum(0) / 3**0.5,
    }[mode]
    assert torch.allclose(got, expected, atol=1e-6)


def test_relaxed_first_token_is_the_expectation_over_hard_selections() -> None:
    weights = torch.tensor([0.3, 0.8, 0.5])
    states = STATES[:1, :3]
    expected = torch.zeros(5)
    for bits in range(8):
        chosen = [(bits >> i) & 1 for i in range(3)]
        probability = torch.prod(torch.stack([w if c else 1 - w for w, c in zip(weights, chosen, strict=True)]))
        if any(chosen):
            expected += probability * states[0, chosen.index(1)]
    assert torch.allclose(pool(states, weights[None, None], ["cls"])[0, 0], expected, atol=1e-6)


@pytest.mark.parametrize("mode", POOLING_MODES)
def test_empty_selection_is_zero_with_a_finite_gradient(mode: str) -> None:
    weights = torch.zeros(1, 1, 6, requires_grad=True)
    vector = normalize(pool(STATES[:1], weights, [mode]))
    assert torch.equal(vector, torch.zeros(1, 1, 5))
    (gradient,) = torch.autograd.grad(vector.sum(), weights)
    assert torch.isfinite(gradient).all() and gradient.abs().max() < 100


@pytest.mark.parametrize("mode", POOLING_MODES)
def test_gradcheck(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "float", lambda self: self)
    states = STATES[:1].double()
    weights = (torch.rand(1, 2, 6, dtype=torch.float64) * 0.8 + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: normalize(pool(states, w, [mode])), (weights,))


@pytest.mark.parametrize("mode", POOLING_MODES)
def test_half_precision_is_pooled_in_full(mode: str) -> None:
    half = STATES.to(torch.bfloat16)
    found = pool(half, MASK[:, None], [mode])
    assert found.dtype == torch.float32 and torch.equal(found, pool(half.float(), MASK[:, None].float(), [mode]))


@pytest.mark.parametrize("mode", POOLING_MODES)
def test_padding_does_not_matter(mode: str) -> None:
    longer = torch.cat([STATES, 1e6 * torch.ones(3, 4, 5)], dim=1)
    weights = torch.rand(3, 2, 6) * MASK[:, None]
    padded = pool(longer, torch.nn.functional.pad(weights, (0, 4)), [mode])
    assert torch.allclose(padded, pool(STATES, weights, [mode]), atol=1e-5)


def test_several_modes_are_concatenated() -> None:
    both = pool(STATES, MASK[:, None].float(), ["mean", "max"])
    assert both.shape == (3, 1, 10)
    assert torch.equal(both[..., 5:], pool(STATES, MASK[:, None].float(), ["max"]))


@pytest.mark.parametrize("size", [8, 9])
def test_filters_partition_the_spectrum(size: int) -> None:
    vectors = torch.randn(2, size)
    low = frequency_filter(vectors, "low", 0.0, 0.4)
    rest = frequency_filter(vectors, "high", 0.40001, 1.0)
    assert torch.allclose(low + rest, vectors, atol=1e-5)
    assert torch.allclose(frequency_filter(vectors, "band", 0.0, 1.0), vectors, atol=1e-5)
    assert torch.allclose(frequency_filter(low, "low", 0.0, 0.4), low, atol=1e-5), "a projection"
    assert frequency_filter(vectors, "none", 0.2, 0.3) is vectors


def test_filter_against_the_naive_transform() -> None:
    x = torch.randn(6, dtype=torch.float64)
    n = torch.arange(6, dtype=torch.float64)
    total = torch.zeros(6, dtype=torch.complex128)
    for k in range(6):
        fraction = min(k, 6 - k) / 3
        if 0.3 <= fraction <= 0.7:
            coefficient = (x * torch.exp(-2j * torch.pi * k * n / 6)).sum()
            total += coefficient * torch.exp(2j * torch.pi * k * n / 6) / 6
    assert torch.allclose(frequency_filter(x.float(), "band", 0.3, 0.7).double(), total.real, atol=1e-5)
