"""The gate distributions against numerical integration, samples, gradcheck and the edges of floating point."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from hardkuma.gate_head_hardkuma import count_at_rate
from hardkuma.kumaraswamy_hardkuma import (
    Kumaraswamy,
    StretchedKumaraswamy,
    expected_changes,
    expected_selected,
    make_gate,
    sample_gate,
    select_best_word,
    select_rate,
    select_words,
)

SHAPES = [0.05, 0.3, 1.0, 2.5, 10.0, 100.0]
GRID = [(a, b) for a in SHAPES for b in SHAPES]
STRETCHES = [(-0.1, 1.1), (-0.01, 1.01), (-0.5, 1.2)]


def survival(u: float, a: float, b: float) -> float:
    """P(U > u) in double precision, by the definition."""
    return math.exp(b * math.log1p(-(u**a))) if 0 < u < 1 else float(u <= 0)


def quantiles(a: float, b: float) -> list[float]:
    """Where the distribution's mass sits, so that adaptive quadrature does not overlook it."""
    levels = (1e-9, 1e-6, 1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 1e-6, 1 - 1e-9)
    return sorted({u for v in levels if 0 < (u := (1 - (1 - v) ** (1 / b)) ** (1 / a)) < 1})


def integral(function: object, a: float, b: float) -> float:
    """scipy's adaptive quadrature over (0, 1), told where the distribution's mass sits."""
    edges = [0.0, *quantiles(a, b), 1.0]
    return sum(integrate.quad(function, x, y, epsabs=1e-12, limit=400)[0] for x, y in pairwise(edges))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_agree_with_integration(dtype: torch.dtype) -> None:
    for a, b in GRID:
        gate = Kumaraswamy(torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype))
        mean = integral(lambda u, a=a, b=b: survival(u, a, b), a, b)  # E[U] = integral of P(U > u)
        square = integral(lambda u, a=a, b=b: 2 * u * survival(u, a, b), a, b)
        assert float(gate.mean) == pytest.approx(mean, abs=1e-5), (a, b)
        assert float(gate.variance) == pytest.approx(square - mean**2, abs=1e-5), (a, b)


def test_density_integrates_to_the_cdf() -> None:
    for a, b in [(0.5, 0.5), (1.0, 1.0), (2.0, 5.0), (5.0, 0.7), (10.0, 10.0)]:
        gate = Kumaraswamy(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
        for low, high in [(0.05, 0.3), (0.3, 0.9), (0.2, 0.99)]:
            mass = integrate.quad(
                lambda u, g=gate: float(g.log_prob(torch.tensor(u, dtype=torch.float64)).exp()), low, high
            )[0]
            difference = gate.cdf(torch.tensor(high)) - gate.cdf(torch.tensor(low))
            assert float(difference) == pytest.approx(mass, abs=1e-6), (a, b)


def test_entropy_agrees_with_integration() -> None:
    for a, b in [(0.5, 0.5), (1.0, 1.0), (2.0, 5.0), (5.0, 0.7), (10.0, 10.0)]:
        gate = Kumaraswamy(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))

        def integrand(v: float, gate: Kumaraswamy = gate) -> float:  # E[-log p(U)] over the quantile
            return -float(gate.log_prob(gate.icdf(torch.tensor(v, dtype=torch.float64))))

        assert float(gate.entropy()) == pytest.approx(integrate.quad(integrand, 0, 1, limit=200)[0], abs=1e-5)


@pytest.mark.parametrize(("low", "high"), STRETCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stretched_closed_forms_agree_with_integration(low: float, high: float, dtype: torch.dtype) -> None:
    width = high - low
    for a, b in GRID:
        gate = StretchedKumaraswamy(torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype), low, high)

        def above(x: float, a: float = a, b: float = b) -> float:
            return survival((x - low) / width, a, b)

        assert float(gate.p_zero) == pytest.approx(1 - above(0.0), abs=1e-5), (a, b)
        assert float(gate.p_one) == pytest.approx(above(1.0), abs=1e-5), (a, b)
        assert float(gate.p_zero + gate.p_between + gate.p_one) == pytest.approx(1.0, abs=1e-5)
        assert float(gate.selection_probability(0.5)) == pytest.approx(above(0.5), abs=1e-5)
        # E[g] = integral over (0, 1) of P(g > x)
        low_u, high_u = -low / width, (1 - low) / width
        parts = [x for x in quantiles(a, b) if low_u < x < high_u]
        exact = width * sum(
            integrate.quad(lambda u, a=a, b=b: survival(u, a, b), x, y, epsabs=1e-12, limit=400)[0]
            for x, y in pairwise([low_u, *parts, high_u])
        )
        assert float(gate.mean) == pytest.approx(exact, abs=1e-5), (a, b)


def test_closed_forms_agree_with_samples() -> None:
    count = 200_000
    for a, b in [(0.3, 0.3), (0.7, 2.0), (1.0, 1.0), (3.0, 0.5), (5.0, 9.0), (0.05, 0.05), (100.0, 100.0)]:
        torch.manual_seed(1)
        gate = StretchedKumaraswamy(torch.tensor(a), torch.tensor(b))
        draws = gate.rsample((count,)).double()
        for exact, hits in [
            (gate.p_zero, draws == 0),
            (gate.p_one, draws == 1),
            (gate.p_between, (draws > 0) & (draws < 1)),
            (gate.selection_probability(0.5), draws > 0.5),
            (gate.mean, draws),
        ]:
            hits = hits.double()
            error = 3 * float(hits.std()) / math.sqrt(count) + 1e-6
            assert abs(float(exact) - float(hits.mean())) <= error, (a, b)


def test_expected_counts_agree_with_samples() -> None:
    count = 200_000
    alpha, beta = torch.rand(6) * 2 + 0.2, torch.rand(6) * 2 + 0.2
    content = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    gate = StretchedKumaraswamy(alpha, beta)
    selected = (gate.rsample((count,)) > 0.5).double() * content
    probs = gate.selection_probability(0.5)
    number = selected.sum(-1)
    changes = (selected[:, 2:5] - selected[:, 1:4]).abs().sum(-1)
    for exact, draws in [(expected_selected(probs, content), number), (expected_changes(probs, content), changes)]:
        assert abs(float(exact) - float(draws.mean())) <= 3 * float(draws.std()) / math.sqrt(count)


def test_mean_is_that_of_the_stretched_gate() -> None:
    """A defect of reference code: the unstretched mean reported for the stretched gate."""
    gate = StretchedKumaraswamy(torch.tensor(0.4), torch.tensor(2.0))
    assert abs(float(gate.mean) - float(Kumaraswamy(0.4, 2.0).mean)) > 0.01


@pytest.mark.parametrize("sampler", ["relaxed", "stretched"])
def test_gradcheck_of_the_relaxed_path(sampler: str) -> None:
    noise = torch.tensor([0.2, 0.35, 0.5, 0.65, 0.8], dtype=torch.float64)
    alpha = torch.tensor([0.5, 1.0, 2.0, 3.0, 0.9], dtype=torch.float64, requires_grad=True)
    beta = torch.tensor([0.6, 1.5, 2.0, 0.7, 5.0], dtype=torch.float64, requires_grad=True)

    def sample(alpha: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        return sample_gate(make_gate(alpha, beta, sampler, -0.1, 1.1), noise, sampler)

    assert torch.autograd.gradcheck(sample, (alpha, beta))


def test_straight_through_is_hard_forward_and_relaxed_backward() -> None:
    noise = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    alpha = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    beta = torch.full((3,), 1.3, dtype=torch.float64, requires_grad=True)
    hard = sample_gate(make_gate(alpha, beta, "straight_through", -0.1, 1.1), noise, "straight_through", 0.5)
    soft = sample_gate(make_gate(alpha, beta, "relaxed", -0.1, 1.1), noise, "relaxed")
    assert torch.equal(hard, (soft > 0.5).double())
    weights = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    got = torch.autograd.grad((hard * weights).sum(), (alpha, beta))
    expected = torch.autograd.grad((soft * weights).sum(), (alpha, beta))
    assert all(torch.equal(g, e) for g, e in zip(got, expected, strict=True))


def test_gradcheck_of_closed_forms() -> None:
    alpha = torch.tensor([0.5, 1.2, 3.0], dtype=torch.float64, requires_grad=True)
    beta = torch.tensor([0.6, 2.0, 0.9], dtype=torch.float64, requires_grad=True)
    values = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    for function in (
        lambda a, b: StretchedKumaraswamy(a, b).mean,
        lambda a, b: StretchedKumaraswamy(a, b).p_zero,
        lambda a, b: StretchedKumaraswamy(a, b).p_one,
        lambda a, b: StretchedKumaraswamy(a, b).log_prob(values),
        lambda a, b: StretchedKumaraswamy(a, b).shift_logit(values).selection_probability(),
        lambda a, b: Kumaraswamy(a, b).mean,
        lambda a, b: Kumaraswamy(a, b).entropy(),
        lambda a, b: Kumaraswamy(a, b).log_prob(values),
        lambda a, b: Kumaraswamy(a, b).cdf(values),
        lambda a, b: Kumaraswamy(a, b).selection_log_odds(0.3),
    ):
        assert torch.autograd.gradcheck(function, (alpha, beta))


@pytest.mark.parametrize("autocast", [False, True])
def test_finite_over_a_grid_of_extremes(autocast: bool) -> None:
    shapes = torch.tensor([0.05, 0.1, 0.5, 1.0, 3.0, 10.0, 100.0])
    points = torch.tensor([0.0, 1e-30, 1e-7, 1e-3, 0.5, 1 - 1e-3, 1 - 1e-7, 1.0])
    grid = torch.cartesian_prod(shapes, shapes, points)
    dtype = torch.bfloat16 if autocast else torch.float32
    alpha = grid[:, 0].to(dtype).requires_grad_()
    beta = grid[:, 1].to(dtype).requires_grad_()
    v = grid[:, 2]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        plain, stretched = Kumaraswamy(alpha, beta), StretchedKumaraswamy(alpha, beta)
        values = {
            "sample": plain.icdf(v),
            "cdf": plain.cdf(v),
            "log_prob": plain.log_prob(v),
            "mean": plain.mean,
            "entropy": plain.entropy(),
            "stretched sample": stretched.icdf(v),
            "stretched log_prob": stretched.log_prob(v),
            "p_zero": stretched.p_zero,
            "p_one": stretched.p_one,
            "stretched mean": stretched.mean,
            "variance": stretched.variance,
            "probability": stretched.selection_probability(0.5),
            "log odds": stretched.selection_log_odds(0.5),
            "shifted": stretched.shift_logit(torch.full_like(v, 3.0)).selection_probability(0.5),
            "straight through": sample_gate(plain, v, "straight_through"),
        }
    for name, value in values.items():
        assert value.dtype == torch.float32, name
        assert torch.isfinite(value).all(), name
        gradients = torch.autograd.grad(value.sum(), (alpha, beta), retain_graph=True)
        assert all(torch.isfinite(gradient).all() for gradient in gradients), name


shape = st.floats(0.05, 100.0)
unit = st.floats(1e-6, 1 - 1e-6)


@settings(deadline=None, max_examples=200)
@given(a=shape, b=shape, v=unit)
def test_icdf_inverts_cdf(a: float, b: float, v: float) -> None:
    gate = Kumaraswamy(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
    u = gate.icdf(torch.tensor(v, dtype=torch.float64))
    # Where u is within rounding of an end, the inverse cannot be better than the spacing of floats there.
    if 1e-300 < float(u) < 1 - 1e-9:
        assert float(gate.cdf(u)) == pytest.approx(v, rel=1e-4, abs=1e-6)


@settings(deadline=None, max_examples=200)
@given(a=shape, b=shape, x=unit, y=unit)
def test_cdf_is_monotone_and_bounded(a: float, b: float, x: float, y: float) -> None:
    for gate in (Kumaraswamy(a, b), StretchedKumaraswamy(a, b)):
        low, high = gate.cdf(torch.tensor(min(x, y))), gate.cdf(torch.tensor(max(x, y)))
        assert 0 <= float(low) <= float(high) <= 1


@settings(deadline=None, max_examples=200)
@given(a=shape, b=shape)
def test_masses_are_probabilities_that_add_up(a: float, b: float) -> None:
    gate = StretchedKumaraswamy(a, b)
    masses = [float(gate.p_zero), float(gate.p_between), float(gate.p_one)]
    assert all(0 <= mass <= 1 for mass in masses)
    assert sum(masses) == pytest.approx(1.0, abs=1e-6)
    assert float(gate.p_one) - 1e-6 <= float(gate.mean) <= 1 - float(gate.p_zero) + 1e-6


@settings(deadline=None, max_examples=200)
@given(a=st.floats(0.05, 20.0), b=st.floats(0.05, 20.0), shift=st.floats(-6, 6))
def test_shift_moves_the_logit_exactly(a: float, b: float, shift: float) -> None:
    for family in (Kumaraswamy, StretchedKumaraswamy):
        gate = family(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
        before = float(gate.selection_log_odds(0.5))
        moved = gate.shift_logit(torch.tensor(shift, dtype=torch.float64), 0.5)
        if before < 40:  # beyond, the probability is 1 in any precision
            assert float(moved.selection_log_odds(0.5)) == pytest.approx(before + shift, abs=1e-6)


def test_no_shift_changes_nothing_to_the_bit() -> None:
    gate = StretchedKumaraswamy(torch.rand(50) * 5 + 0.1, torch.rand(50) * 5 + 0.1)
    assert torch.equal(gate.shift_logit(torch.zeros(50)).beta, gate.beta)


def test_thresholds_of_the_stretched_gate() -> None:
    gate = StretchedKumaraswamy(torch.tensor(0.7), torch.tensor(1.3))
    assert float(gate.selection_probability(0.0)) == pytest.approx(1 - float(gate.p_zero), abs=1e-6)
    assert float(gate.cdf(torch.tensor(-0.1))) == 0.0
    assert float(gate.cdf(torch.tensor(0.0))) == pytest.approx(float(gate.p_zero), abs=1e-6)
    assert float(gate.cdf(torch.tensor(1.0))) == 1.0


def test_distribution_interface() -> None:
    gate = StretchedKumaraswamy(torch.rand(3) + 0.5, torch.rand(3) + 0.5)
    assert gate.expand((4, 3)).rsample((2,)).shape == (2, 4, 3)
    assert gate.expand((4, 3)).high == gate.high
    assert gate.sample().requires_grad is False
    with pytest.raises(ValueError, match="alpha"):
        Kumaraswamy(torch.tensor(-1.0), torch.tensor(1.0), validate_args=True)
    with pytest.raises(ValueError, match=r"low < 0 and high > 1, got low=0.1"):
        StretchedKumaraswamy(1.0, 1.0, 0.1, 1.1)
    with pytest.raises(NotImplementedError):
        gate.entropy()


@pytest.mark.parametrize("rate", [0.01, 0.13, 0.2, 0.29, 0.3, 0.35, 0.5, 0.95, 1.0])
def test_one_rule_for_a_number_and_for_tensors(rate: float) -> None:
    numbers = torch.arange(0, 513)
    content = torch.arange(512) < numbers[:, None]
    chosen = select_rate(torch.rand(513, 512), content, rate).sum(-1).int().tolist()
    expected = [count_at_rate(number, rate) for number in numbers.tolist()]
    assert chosen == expected == [math.ceil(round(rate * number, 6)) for number in numbers.tolist()]


# ---- gates of words -----------------------------------------------------------------------------------------------------


def words_of(content: list[bool], continues: list[bool]) -> list[list[int]]:
    words: list[list[int]] = []
    for i, (inside, goes_on) in enumerate(zip(content, continues, strict=True)):
        if inside and goes_on:
            words[-1].append(i)
        elif inside:
            words.append([i])
    return words


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.5, 1.0])
def test_rates_count_words(rate: float) -> None:
    content = torch.arange(20) < torch.tensor([0, 1, 2, 7, 13, 20])[:, None]
    continues = (torch.rand(6, 20) < 0.4) & content
    continues[:, 0] = False
    probs = torch.rand(6, 2, 20)
    found, best = select_words(probs, content, continues, rate), select_best_word(probs, content, continues)
    for row in range(6):
        words = words_of(content[row].tolist(), continues[row].tolist())
        for k in range(2):
            ranked = sorted(words, key=lambda word: -float(probs[row, k, word[0]]))
            for result, count in ((found, count_at_rate(len(words), rate)), (best, min(1, len(words)))):
                expected = sorted(i for word in ranked[:count] for i in word)
                assert result[row, k].nonzero().flatten().tolist() == expected


def test_the_first_of_equal_words_is_the_best() -> None:
    content = torch.tensor([[False, True, True, True]])
    continues = torch.tensor([[False, False, True, False]])
    for value in (0.0, 0.5):
        found = select_best_word(torch.full((1, 1, 4), value), content, continues)
        assert found.tolist() == [[[0.0, 1.0, 1.0, 0.0]]]
    assert not select_best_word(torch.full((1, 1, 4), 0.5), torch.zeros_like(content), continues).any()
