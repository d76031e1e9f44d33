"""Every term against a naive loop, and gradcheck."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hardkuma import HardKumaConfig
from hardkuma.losses_hardkuma import (
    LossRows,
    contrastive_loss,
    info_nce,
    loss_weights,
    mean_over_rows,
    next_multiplier,
    nt_xent,
    rate_lagrangian,
    rate_penalty,
    selection_rate,
    sparsity,
    symmetric_kl,
    total_variation,
)


def cosine(x: Tensor, y: Tensor) -> float:
    return float((x @ y) / (x.norm() * y.norm()))


def naive_info_nce(anchor: Tensor, other: Tensor, tau: float, valid: list[bool]) -> float:
    total, rows = 0.0, [i for i, ok in enumerate(valid) if ok]
    for i in rows:
        scores = {j: cosine(anchor[i], other[j]) / tau for j in rows}
        total -= scores[i] - math.log(sum(math.exp(score) for score in scores.values()))
    return total / len(rows)


def naive_nt_xent(anchor: Tensor, other: Tensor, tau: float, valid: list[bool]) -> float:
    rows = [i for i, ok in enumerate(valid) if ok]
    views = [(i, 0, anchor[i]) for i in rows] + [(i, 1, other[i]) for i in rows]
    total = 0.0
    for i, side, x in views:
        scores = {(j, s): cosine(x, y) / tau for j, s, y in views if (j, s) != (i, side)}
        total -= scores[(i, 1 - side)] - math.log(sum(math.exp(score) for score in scores.values()))
    return total / len(views)


@pytest.mark.parametrize(("loss", "naive"), [(info_nce, naive_info_nce), (nt_xent, naive_nt_xent)])
@pytest.mark.parametrize("valid", [[True] * 5, [True, False, True, True, False]])
def test_contrastive_losses(loss: object, naive: object, valid: list[bool]) -> None:
    anchor, other = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    got = loss(anchor, other, 0.3, torch.tensor(valid))
    assert float(got) == pytest.approx(naive(anchor, other, 0.3, valid), abs=1e-5)


def test_dot_similarity_equals_cosine_for_unit_vectors() -> None:
    anchor = torch.nn.functional.normalize(torch.randn(4, 6), dim=-1)
    other = torch.nn.functional.normalize(torch.randn(4, 6), dim=-1)
    assert float(info_nce(anchor, other, 0.1, similarity="dot")) == pytest.approx(
        float(info_nce(anchor, other, 0.1)), rel=1e-5
    )
    assert float(info_nce(3 * anchor, other, 0.1, similarity="dot")) != pytest.approx(float(info_nce(anchor, other, 0.1)))


def test_zero_vectors_and_invalid_rows_are_finite() -> None:
    anchor, other = torch.randn(3, 4, requires_grad=True), torch.zeros(3, 4, requires_grad=True)
    for loss in (info_nce, nt_xent):
        for valid in (
            torch.tensor([True, True, True]),
            torch.tensor([True, False, False]),
            torch.zeros(3, dtype=torch.bool),
        ):
            value = loss(anchor, other, 0.05, valid)
            gradients = torch.autograd.grad(value, (anchor, other))
            assert torch.isfinite(value) and all(torch.isfinite(g).all() for g in gradients)


CONTENT = torch.tensor([[False, True, True, True, False, False], [False, True, False, True, True, False], [False] * 6])


def naive_sparsity(gates: Tensor) -> float:
    rows = []
    for row, mask in zip(gates.tolist(), CONTENT.tolist(), strict=True):
        kept = [g for g, c in zip(row, mask, strict=True) if c]
        if kept:
            rows.append(sum(kept) / len(kept))
    return sum(rows) / len(rows)


def naive_total_variation(gates: Tensor) -> float:
    rows = []
    for row, mask in zip(gates.tolist(), CONTENT.tolist(), strict=True):
        if any(mask):
            steps = [abs(row[i + 1] - row[i]) for i in range(len(row) - 1) if mask[i] and mask[i + 1]]
            rows.append(sum(steps) / sum(mask))
    return sum(rows) / len(rows)


def test_sparsity_and_total_variation() -> None:
    gates = torch.rand(3, 6)
    assert float(sparsity(gates, CONTENT)) == pytest.approx(naive_sparsity(gates), abs=1e-6)
    assert float(total_variation(gates, CONTENT)) == pytest.approx(naive_total_variation(gates), abs=1e-6)


def test_selection_rate_counts_tokens_not_sentences() -> None:
    probs = torch.rand(3, 6)
    assert float(selection_rate(probs, CONTENT)) == pytest.approx(float(probs[CONTENT].mean()), abs=1e-6)
    assert float(selection_rate(probs, torch.zeros_like(CONTENT))) == 0.0


def test_constraint_terms() -> None:
    rate = torch.tensor(0.35, requires_grad=True)
    assert rate_penalty(rate, 0.2).item() == pytest.approx(0.15**2)
    multiplier = torch.tensor(0.7, requires_grad=True)
    term = rate_lagrangian(rate, 0.2, multiplier)
    assert term.item() == pytest.approx(0.7 * 0.15 + 0.15**2)
    term.backward()
    assert multiplier.grad is None, "the multiplier is moved by its own rule, not by the optimiser"
    assert float(rate.grad) == pytest.approx(0.7 + 2 * 0.15)
    assert float(next_multiplier(torch.tensor(0.0), rate, 0.2, 0.1)) > 0
    assert float(next_multiplier(torch.tensor(0.0), torch.tensor(0.1), 0.2, 0.1)) < 0


def test_lagrangian_reaches_the_target_where_a_penalty_cannot() -> None:
    """Minimise (x - 1)^2 + constraint with rate sigmoid(x): the multiplier removes the penalty's bias."""

    def solve(lagrangian: bool) -> float:
        x, multiplier = torch.tensor(0.0, requires_grad=True), torch.tensor(0.0)
        for _ in range(8000):
            rate = torch.sigmoid(x)
            term = rate_lagrangian(rate, 0.2, multiplier) if lagrangian else rate_penalty(rate, 0.2)
            (gradient,) = torch.autograd.grad((x - 1) ** 2 + term, x)
            multiplier = next_multiplier(multiplier, rate, 0.2, 0.02)
            x = (x - 0.05 * gradient).detach().requires_grad_()
        return torch.sigmoid(x).item()

    assert solve(True) == pytest.approx(0.2, abs=0.005)
    assert solve(False) > 0.4


def naive_symmetric_kl(probs: Tensor, content: Tensor, bounded: bool) -> float:
    rows = []
    for b in range(probs.shape[0]):
        tokens = [i for i in range(probs.shape[2]) if content[b, i]]
        if not tokens:
            continue
        total, pairs = 0.0, 0
        for i in range(probs.shape[1]):
            for j in range(i):
                pairs += 1
                for t in tokens:
                    p, q = float(probs[b, i, t]), float(probs[b, j, t])
                    kl = sum(x * math.log(x / y) for x, y in [(p, q), (1 - p, 1 - q), (q, p), (1 - q, 1 - p)]) / 2
                    total += kl / (1 + kl) if bounded else kl
        rows.append(total / pairs / len(tokens))
    return sum(rows) / len(rows)


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("selectors", [2, 3])
def test_symmetric_kl(selectors: int, bounded: bool) -> None:
    probs = torch.rand(3, selectors, 6, dtype=torch.float64) * 0.9 + 0.05
    got = symmetric_kl(torch.logit(probs), CONTENT, bounded=bounded)
    assert float(got) == pytest.approx(naive_symmetric_kl(probs, CONTENT, bounded), abs=1e-8)


def test_separating_cannot_run_away_and_aligning_is_zero_at_equality() -> None:
    far = torch.tensor([[[-60.0], [60.0]]])
    one = torch.ones(1, 1, dtype=torch.bool)
    assert float(symmetric_kl(far, one, bounded=True)) < 1.0
    assert float(symmetric_kl(far, one)) > 50
    assert float(symmetric_kl(torch.full((1, 2, 1), 0.3), one)) == 0.0
    assert float(symmetric_kl(torch.zeros(1, 1, 1), one)) == 0.0


@pytest.mark.parametrize(("loss", "others"), [(info_nce, 5), (nt_xent, 9)])
def test_bound_at_chance_row_by_row(loss: Callable[..., Tensor], others: int) -> None:
    anchor = torch.randn(5, 7, dtype=torch.float64)
    away = torch.cat([anchor[:2], -anchor[2:]]).requires_grad_()  # three rows are worse than chance
    free, bounded = loss(anchor, away, 0.1), loss(anchor, away, 0.1, bounded=True)
    assert float(bounded.detach()) < float(free.detach()) and float(bounded.detach()) <= math.log(others)
    if loss is info_nce:
        rows = [min(float(x), math.log(5)) for x in row_losses(anchor, away.detach(), 0.1)]
        assert float(bounded.detach()) == pytest.approx(sum(rows) / 5, abs=1e-5)


def row_losses(anchor: Tensor, other: Tensor, tau: float) -> list[float]:
    scores = [[cosine(a, o) / tau for o in other] for a in anchor]
    return [math.log(sum(math.exp(x) for x in row)) - row[i] for i, row in enumerate(scores)]


def test_mean_over_rows_without_valid_rows_is_zero() -> None:
    assert float(mean_over_rows(torch.tensor([5.0, float("nan")]), torch.tensor([False, False]))) == 0.0


def test_gradcheck(monkeypatch: pytest.MonkeyPatch) -> None:
    # Losses are fp32 by design; for the check `.float()` must keep doubles.
    monkeypatch.setattr(Tensor, "float", lambda self: self)
    anchor = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    other = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    valid = torch.tensor([True, True, False, True])
    for similarity in ("cosine", "dot"):
        for loss in (info_nce, nt_xent):
            assert torch.autograd.gradcheck(lambda a, o, f=loss, s=similarity: f(a, o, 0.5, valid, s), (anchor, other))
    gates = torch.rand(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda g: sparsity(g, CONTENT), (gates,))
    assert torch.autograd.gradcheck(lambda g: total_variation(g, CONTENT), (gates,))
    assert torch.autograd.gradcheck(lambda g: rate_penalty(selection_rate(g, CONTENT), 0.2), (gates,))
    multiplier = torch.tensor(0.4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda g: rate_lagrangian(selection_rate(g, CONTENT), 0.2, multiplier), (gates,))
    log_odds = torch.randn(3, 2, 6, dtype=torch.float64, requires_grad=True)
    for bounded in (False, True):
        assert torch.autograd.gradcheck(lambda x, b=bounded: symmetric_kl(x, CONTENT, b), (log_odds,))


# ---- all terms together -------------------------------------------------------------------------------------------------


def random_rows(selectors: int) -> LossRows:
    """Three sentences, of which the last has no content."""
    gates, log_odds = torch.rand(3, selectors, 6), torch.randn(3, selectors, 6)
    anchor, others = torch.randn(3, 7), torch.randn(2, 3, selectors, 7)
    return LossRows(CONTENT, gates, torch.sigmoid(log_odds), log_odds, anchor, *others)


def two_selectors(**settings: object) -> HardKumaConfig:
    selectors = {"a": {"lambda_s": 0.5, "target_rate": 0.3}, "b": {"lambda_s": 2.0, "target_rate": 0.1}}
    weights = {"lambda_cmp": 0.7, "lambda_tv": 0.3, "lambda_e": 1.5, "lambda_kl": 0.4, "temperature": 0.3}
    return HardKumaConfig(selectors=selectors, **{**weights, **settings})


@pytest.mark.parametrize("chosen", [[0, 1], [1, 0], [1], [0]])
@pytest.mark.parametrize(("contrastive", "naive"), [("infonce", naive_info_nce), ("nt_xent", naive_nt_xent)])
@pytest.mark.parametrize("constraint", ["none", "penalty", "lagrangian"])
def test_the_total_is_the_weighted_sum_of_naive_terms(
    constraint: str, contrastive: str, naive: Callable[..., float], chosen: list[int]
) -> None:
    config = two_selectors(contrastive=contrastive, rate_constraint=constraint)
    rows, multiplier = random_rows(len(chosen)), torch.tensor([0.6, -0.4])
    total, losses = contrastive_loss(rows, config, multiplier, training=False, selectors=chosen)
    valid, expected = [True, True, False], 0.0
    for place, number in enumerate(chosen):
        selector, gates = config.selector(number), rows.gates[:, place]
        expected += naive(rows.anchor, rows.rationale[:, place], 0.3, valid)
        expected -= 0.7 * naive(rows.anchor, rows.complement[:, place], 0.3, valid)
        expected += selector.lambda_s * naive_sparsity(gates) + 0.3 * naive_total_variation(gates)
        over = float(rows.probs[:, place][CONTENT].mean()) - selector.target_rate
        if constraint != "none":
            expected += 1.5 * (over**2 + (float(multiplier[number]) * over if constraint == "lagrangian" else 0.0))
    if len(chosen) == 2:
        expected += 0.4 * naive_symmetric_kl(rows.probs.double(), CONTENT, bounded=False)
    assert float(total) == pytest.approx(expected, abs=1e-4)
    assert losses["rationale"].shape == ((2,) if len(chosen) == 2 else ())
    assert ("kl" in losses) == (len(chosen) == 2) and ("constraint" in losses) == (constraint != "none")
    weights = loss_weights(config, chosen)
    again = sum((value * torch.tensor(weights[name])).sum() for name, value in losses.items())
    assert float(again) == pytest.approx(float(total), abs=1e-5)
    assert multiplier.tolist() == pytest.approx([0.6, -0.4]), "evaluation moves nothing"


def test_training_moves_the_multipliers_of_the_chosen_alone() -> None:
    config, rows = two_selectors(rate_constraint="lagrangian"), random_rows(1)
    multiplier = torch.tensor([0.6, -0.4])
    contrastive_loss(rows, config, multiplier, training=True, selectors=[1])
    expected = next_multiplier(torch.tensor(-0.4), selection_rate(rows.probs[:, 0], CONTENT), 0.1, config.multiplier_lr)
    assert multiplier.tolist() == pytest.approx([0.6, float(expected)])
    before = multiplier.clone()
    contrastive_loss(rows, two_selectors(rate_constraint="penalty"), multiplier, training=True, selectors=[1])
    assert torch.equal(multiplier, before), "a penalty has none"


def test_rows_are_joined_in_order() -> None:
    parts = [random_rows(2) for _ in range(3)]
    joined = LossRows.join(parts)
    for name, tensor in vars(joined).items():
        assert torch.equal(tensor, torch.cat([getattr(part, name) for part in parts])), name
    total, _ = contrastive_loss(joined, two_selectors(), torch.zeros(2), training=False)
    assert len(joined.content) == 9 and math.isfinite(float(total))
