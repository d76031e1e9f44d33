"""Integrated gradients: complete, and by hand."""

from __future__ import annotations

import pytest
import torch

from hardkuma.evaluation.baselines import METHODS, SentenceEncoder
from hardkuma.evaluation.baselines.integrated_gradients import attribute

from .conftest import TEXTS


def test_integrated_gradients_are_complete(transformer: SentenceEncoder) -> None:
    """Attributions sum to f(sentence) - f(baseline), the better the more steps."""
    pytest.importorskip("captum")
    _, batch = next(transformer.batches(transformer.tokenize(TEXTS)))
    gaps = []
    for steps in (1, 50):
        found = attribute(transformer, batch, steps)
        assert found.difference.abs().min() > 0.01
        gaps.append((found.values.sum(1) - found.difference).abs().max().item())
    assert gaps[1] < 1e-4 < 1e-3 < gaps[0]


def test_integrated_gradients_by_hand(known: SentenceEncoder) -> None:
    """A path of one step (Gauss-Legendre: the midpoint) is the gradient there times the difference."""
    pytest.importorskip("captum")
    _, batch = next(known.batches(known.tokenize(["it rains"])))
    words, padding = torch.tensor([[0.5, -1.0, 0.0], [0.0, 1.0, 0.0]]), torch.ones(2, 3)
    half = ((words + padding) / 2).requires_grad_()
    target = torch.nn.functional.normalize(words.mean(0), dim=0)
    torch.nn.functional.cosine_similarity(half.mean(0), target, dim=0).backward()
    expected = (half.grad * (words - padding)).sum(1)
    assert expected.abs().min() > 0.1
    torch.testing.assert_close(attribute(known, batch, 1).values[0], expected, atol=1e-5, rtol=0)


def test_integrated_gradients_count_passes_and_check_steps(known: SentenceEncoder) -> None:
    pytest.importorskip("captum")
    with known.counting() as used:
        METHODS["integrated_gradients"].scores(known, ["it rains"], steps=7)
    assert used.backward == 7 and used.forward >= 8
    with pytest.raises(ValueError, match="steps must be >= 1, got 0"):
        METHODS["integrated_gradients"].scores(known, ["it rains"], steps=0)
