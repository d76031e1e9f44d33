"""Each objective against a loop over plain numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from hardkuma.training.encoder.objectives import (
    AlignmentAndDistribution,
    Bilinear,
    MaskedWords,
    Objective,
    Ranking,
    SoftNeighbours,
    Triplets,
    encoder_of,
)
from hardkuma.training.encoder.recipe import EncoderRecipe


@pytest.fixture
def views() -> list[Tensor]:
    """Three views of five sentences."""
    base = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    return [base + 0.7 * torch.randn(5, 6, generator=torch.Generator().manual_seed(n)) for n in (1, 2, 3)]


@pytest.fixture
def model(encoder_folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(encoder_folder), device="cpu")


def cosine(u: Tensor, v: Tensor) -> float:
    return float(sum(a * b for a, b in zip(u, v, strict=True)) / math.sqrt(sum(u * u) * sum(v * v)))


def naive_infonce(anchors: Tensor, others: Tensor, tau: float) -> float:
    total = 0.0
    for i, anchor in enumerate(anchors):
        total -= math.log(
            math.exp(cosine(anchor, others[i]) / tau) / sum(math.exp(cosine(anchor, other) / tau) for other in others)
        )
    return total / len(anchors)


def naive_nt_xent(first: Tensor, second: Tensor, tau: float) -> float:
    """Over all 2n: the positive against everything but itself."""
    everything, total = [*first, *second], 0.0
    n = len(first)
    for i, one in enumerate(everything):
        below = sum(math.exp(cosine(one, other) / tau) for k, other in enumerate(everything) if k != i)
        total -= math.log(math.exp(cosine(one, everything[(i + n) % (2 * n)]) / tau) / below)
    return total / (2 * n)


def test_infonce(model: SentenceTransformer, views: list[Tensor]) -> None:
    for learned in (False, True):
        ranking = Ranking(model, 0.3, learned)
        assert float(ranking(views[:2])) == pytest.approx(naive_infonce(views[0], views[1], 0.3), rel=1e-4)
        both = [naive_infonce(views[0], view, 0.3) for view in views[1:]]
        assert float(ranking(views)) == pytest.approx(sum(both) / 2, rel=1e-4)


def test_infonce_with_hard_negatives(model: SentenceTransformer, views: list[Tensor]) -> None:
    """Those of every text are negatives of all texts."""
    anchors, positives, negatives = views
    total = 0.0
    for i, anchor in enumerate(anchors):
        terms = [math.exp(cosine(anchor, other) / 0.3) for other in [*positives, *negatives]]
        total -= math.log(terms[i] / sum(terms)) / len(anchors)
    assert float(Ranking(model, 0.3)([anchors, positives], [negatives])) == pytest.approx(total, rel=1e-4)


def test_nt_xent(model: SentenceTransformer, views: list[Tensor]) -> None:
    for learned in (False, True):
        ranking = Ranking(model, 0.3, learned, symmetric=True)
        assert float(ranking(views[:2])) == pytest.approx(naive_nt_xent(views[0], views[1], 0.3), rel=1e-4)


def test_a_learned_temperature_has_the_gradient_of_the_loop(model: SentenceTransformer, views: list[Tensor]) -> None:
    ranking = Ranking(model, 0.3, learned=True)
    ranking(views[:2]).backward()
    names = [name for name, parameter in ranking.named_parameters() if ".model." not in name]
    assert names == ["log_scale"]
    # The scale is 1 / tau: d/d(log scale) by a difference of the loop's values.
    step = 1e-3
    around = [naive_infonce(views[0], views[1], 0.3 * math.exp(-sign * step)) for sign in (1, -1)]
    assert float(ranking.log_scale.grad) == pytest.approx((around[0] - around[1]) / (2 * step), rel=1e-2)


@pytest.mark.parametrize("squared", [False, True])
def test_triplets_with_semi_hard_negatives(squared: bool, model: SentenceTransformer, views: list[Tensor]) -> None:
    """The nearest negative that is further away than the positive; where there is none, the furthest."""
    margin, points, total, count = 5.0 if squared else 0.5, [*views[0], *views[1]], 0.0, 0
    power = 2 if squared else 1
    for i, anchor in enumerate(points):
        for j, positive in enumerate(points):
            if i == j or i % 5 != j % 5:
                continue
            near = float((anchor - positive).norm()) ** power
            negatives = [float((anchor - other).norm()) ** power for k, other in enumerate(points) if k % 5 != i % 5]
            beyond = [distance for distance in negatives if distance > near]
            total += max(0.0, near - (min(beyond) if beyond else max(negatives)) + margin)
            count += 1
    assert total > 0
    assert float(Triplets(model, margin, squared)(views[:2])) == pytest.approx(total / count, rel=1e-3)


def test_bilinear(views: list[Tensor]) -> None:
    """-log f(z, c) / sum f(z', c) with f(z, c) = exp(z^T W c), W of no symmetry."""
    contrast, total = Bilinear(6, 0.5), 0.0
    assert torch.equal(contrast.weight.detach(), 2 * torch.eye(6)), "over the temperature"
    with torch.no_grad():
        contrast.weight.copy_(torch.randn(6, 6, generator=torch.Generator().manual_seed(9)))
    weight = contrast.weight.detach()
    for view in views[1:]:
        for i, c in enumerate(views[0]):
            f = [math.exp(sum(float(z[p] * weight[p, q] * c[q]) for p in range(6) for q in range(6))) for z in view]
            total -= math.log(f[i] / sum(f)) / 10
    assert float(contrast(views)) == pytest.approx(total, rel=1e-4)


def test_nt_xent_is_alignment_and_distribution(views: list[Tensor]) -> None:
    tau, points = 0.3, [*views[0], *views[1]]
    alignment = -sum(cosine(point, points[(i + 5) % 10]) for i, point in enumerate(points)) / 10
    distribution = 0.0
    for i, point in enumerate(points):
        distribution += tau / 10 * math.log(sum(math.exp(cosine(point, o) / tau) for k, o in enumerate(points) if k != i))
    parts = AlignmentAndDistribution(tau)(views[:2])
    assert float(parts["alignment"]) == pytest.approx(alignment, rel=1e-4)
    assert float(parts["distribution"]) == pytest.approx(distribution, rel=1e-4)
    assert sum(map(float, parts.values())) == pytest.approx(tau * naive_nt_xent(views[0], views[1], tau), rel=1e-4)


def test_soft_neighbours_unnormalised_with_a_learned_temperature(views: list[Tensor]) -> None:
    def naive(temperature: float) -> float:
        points, total = [point for view in views for point in view], 0.0
        for i, point in enumerate(points):
            terms = {
                k: math.exp(-float((point - other).square().sum()) / temperature)
                for k, other in enumerate(points)
                if k != i
            }
            total -= math.log(sum(value for k, value in terms.items() if k % 5 == i % 5) / sum(terms.values())) / 15
        return total

    contrast = SoftNeighbours(4.0, learned=True, normalized=False)
    loss = contrast(views)
    assert float(loss) == pytest.approx(naive(4.0), rel=1e-4)
    loss.backward()
    slope = (naive(4.0 * math.exp(1e-3)) - naive(4.0 * math.exp(-1e-3))) / 2e-3
    assert float(contrast.log_temperature.grad) == pytest.approx(slope, rel=1e-2)
    assert not list(SoftNeighbours(4.0).parameters()) and not SoftNeighbours(4.0).state_dict()


def test_soft_neighbours_with_several_positives(views: list[Tensor]) -> None:
    points = [point / point.norm() for view in views for point in view]
    total = 0.0
    for i, point in enumerate(points):
        terms = {k: math.exp(-float((point - other).square().sum()) / 0.4) for k, other in enumerate(points) if k != i}
        total -= math.log(sum(value for k, value in terms.items() if k % 5 == i % 5) / sum(terms.values()))
    assert float(SoftNeighbours(0.4)(views)) == pytest.approx(total / 15, rel=1e-4)
    many = [view.clone().requires_grad_() for view in views]
    SoftNeighbours(0.4)(many).backward()
    assert all(torch.isfinite(view.grad).all() for view in many)


def test_masked_words(model: SentenceTransformer) -> None:
    encoder = encoder_of(model)
    head, table = MaskedWords(encoder), encoder.get_input_embeddings().weight
    states, labels = torch.randn(2, 3, 32), torch.tensor([[-100, 5, -100], [7, -100, -100]])
    expected = 0.0
    for row, place in ((0, 1), (1, 0)):
        logits = [
            float(head.transform(states[row, place]) @ word + bias) for word, bias in zip(table, head.bias, strict=True)
        ]
        expected += math.log(sum(map(math.exp, logits))) - logits[int(labels[row, place])]
    assert float(head(states, labels, table)) == pytest.approx(expected / 2, rel=1e-4)
    assert float(head(states, torch.full_like(labels, -100), table)) == 0


def test_what_is_trained_beside_the_encoder(model: SentenceTransformer) -> None:
    assert Objective(model, EncoderRecipe()).own_state() == {}
    both = Objective(model, EncoderRecipe(learn_temperature=True, mlm_weight=0.1)).own_state()
    assert "contrast.weight" in Objective(model, EncoderRecipe(objective="bilinear")).own_state()
    assert "contrast.log_scale" in both and "masked_words.bias" in both
    assert not [name for name in both if "embeddings" in name]


def test_unknown_objectives_are_told() -> None:
    with pytest.raises(ValueError, match=r"objective must be one of infonce, nt_xent, .*, soft_neighbours; got 'mse'"):
        EncoderRecipe(objective="mse")
    with pytest.raises(
        ValueError, match="learn_temperature works with infonce, nt_xent, soft_neighbours, not with triplet"
    ):
        EncoderRecipe(objective="triplet", learn_temperature=True)
