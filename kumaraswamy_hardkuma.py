"""The gate: the Kumaraswamy distribution, its stretched-and-rectified form and the samplers.

All in fp32 (or the wider dtype given) and in log space, so that values and gradients stay finite for shapes from 0.05
to 100 and for points within 1e-7 of either end of the unit interval.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution, constraints

Shape = torch.Size | list[int] | tuple[int, ...]
TensorOrFloat = TypeVar("TensorOrFloat", Tensor, float)

EULER_GAMMA = 0.5772156649015329
LN2 = math.log(2.0)


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(-x)) for x > 0, accurate at both ends; both branches of the switch are kept finite for autograd.

    >>> log1mexp(torch.tensor([1e-6, 20.0]))
    tensor([-1.3816e+01, -2.0612e-09])
    """
    minus = -x.clamp_min(math.sqrt(torch.finfo(x.dtype).tiny))
    small, large = minus.clamp_min(-LN2), minus.clamp_max(-LN2)
    return torch.where(minus > -LN2, torch.log(-torch.expm1(small)), torch.log1p(-torch.exp(large)))


def _log_softplus(x: Tensor) -> Tensor:
    """log(softplus(x)), which is x itself far below zero."""
    return torch.where(x < -15, x, torch.log(F.softplus(x.clamp_min(-15))))


class Kumaraswamy(Distribution):
    """Kumaraswamy(alpha, beta) on (0, 1): F(u) = 1 - (1 - u^alpha)^beta.

    Args:
        alpha, beta: shapes > 0, any broadcastable tensors; half precision is widened to fp32.

    >>> gate = Kumaraswamy(torch.tensor(2.0), torch.tensor(3.0))
    >>> gate.cdf(torch.tensor(0.5)), gate.icdf(torch.tensor(0.578125)), gate.mean
    (tensor(0.5781), tensor(0.5000), tensor(0.4571))
    """

    arg_constraints = {"alpha": constraints.positive, "beta": constraints.positive}
    support = constraints.unit_interval
    has_rsample = True

    def __init__(self, alpha: Tensor | float, beta: Tensor | float, validate_args: bool | None = None):
        alpha, beta = torch.as_tensor(alpha), torch.as_tensor(beta)
        dtype = torch.promote_types(torch.promote_types(alpha.dtype, beta.dtype), torch.float32)
        self.alpha, self.beta = torch.broadcast_tensors(alpha.to(dtype), beta.to(dtype))
        super().__init__(self.alpha.shape, validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Distribution:
        return type(self)(self.alpha.expand(batch_shape), self.beta.expand(batch_shape), validate_args=False)

    def _log_survival(self, log_u: Tensor | float) -> Tensor:
        """log P(U > u) = beta log(1 - u^alpha), from log u < 0."""
        return self.beta * log1mexp(-self.alpha * log_u)

    def _inside(self, u: Tensor) -> Tensor:
        info = torch.finfo(self.alpha.dtype)
        return u.clamp(info.tiny, 1.0 - info.eps / 2)

    def cdf(self, value: Tensor) -> Tensor:
        """F(u) = 1 - (1 - u^alpha)^beta, shape of the batch; 0 and 1 outside the unit interval."""
        inner = -torch.expm1(self._log_survival(self._inside(value).log()))
        return torch.where(value <= 0, torch.zeros_like(inner), torch.where(value >= 1, torch.ones_like(inner), inner))

    def icdf(self, value: Tensor) -> Tensor:
        """u = (1 - (1 - v)^(1/beta))^(1/alpha) for v in (0, 1)."""
        eps = torch.finfo(self.alpha.dtype).eps
        v = value.to(self.alpha.dtype).clamp(eps, 1.0 - eps)
        log_u = log1mexp(-torch.log1p(-v) / self.beta) / self.alpha
        return self._inside(log_u.exp())

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Reparameterised samples: the inverse CDF of uniform noise; shape sample_shape + batch."""
        shape = self._extended_shape(torch.Size(sample_shape))
        return self.icdf(torch.rand(shape, dtype=self.alpha.dtype, device=self.alpha.device))

    def log_prob(self, value: Tensor) -> Tensor:
        """log alpha + log beta + (alpha - 1) log u + (beta - 1) log(1 - u^alpha)."""
        log_u = self._inside(value).log()
        tail = (self.beta - 1) * log1mexp(-self.alpha * log_u)
        return self.alpha.log() + self.beta.log() + (self.alpha - 1) * log_u + tail

    def _moment(self, order: int) -> Tensor:
        """E[U^n] = beta B(1 + n/alpha, beta). lgamma differences cancel, hence double precision where it exists."""
        wide = torch.float32 if self.alpha.device.type == "mps" else torch.float64
        a, b = self.alpha.to(wide), self.beta.to(wide)
        first = 1 + order / a
        return (b.log() + torch.lgamma(first) + torch.lgamma(b) - torch.lgamma(first + b)).exp().to(self.alpha.dtype)

    @property
    def mean(self) -> Tensor:
        return self._moment(1)

    @property
    def variance(self) -> Tensor:
        return (self._moment(2) - self._moment(1) ** 2).clamp_min(0.0)

    def entropy(self) -> Tensor:
        """(1 - 1/beta) + (1 - 1/alpha) H(beta) - log(alpha beta); harmonic number H(b) = digamma(b + 1) + gamma."""
        harmonic = torch.digamma(self.beta + 1) + EULER_GAMMA
        return (1 - 1 / self.beta) + (1 - 1 / self.alpha) * harmonic - self.alpha.log() - self.beta.log()

    def _log_threshold(self, threshold: float) -> float:
        """log of the point of the *unstretched* variable at which the gate crosses `threshold`."""
        return math.log(max(threshold, torch.finfo(self.alpha.dtype).tiny))

    def log_selection_probability(self, threshold: float = 0.5) -> Tensor:
        """log P(gate > threshold), closed form."""
        return self._log_survival(self._log_threshold(threshold))

    def selection_log_odds(self, threshold: float = 0.5) -> Tensor:
        """logit P(gate > threshold), finite where the probability itself rounds to 0 or 1."""
        log_p = self.log_selection_probability(threshold)
        return log_p - log1mexp(-log_p)

    def selection_probability(self, threshold: float = 0.5) -> Tensor:
        """P(gate > threshold), closed form; shape of the batch.

        >>> Kumaraswamy(torch.tensor(1.0), torch.tensor(1.0)).selection_probability(0.25)
        tensor(0.7500)
        """
        return self.log_selection_probability(threshold).exp()

    def shift_logit(self, log_odds: Tensor, threshold: float = 0.5, before: Tensor | None = None) -> Kumaraswamy:
        """The member of the family with the same alpha whose selection log-odds are larger by `log_odds`.

        P(gate > t) = (1 - u_t^alpha)^beta, so beta' = beta log p' / log p is exact, and every other quantity of the gate
        (samples, P(0), P(1), mean) moves with it. `before` is `selection_log_odds(threshold)`, for a caller who knows it.

        >>> gate = Kumaraswamy(torch.tensor(1.0), torch.tensor(1.0)).shift_logit(torch.tensor(2.0))
        >>> torch.logit(gate.selection_probability())
        tensor(2.)
        """
        before = self.selection_log_odds(threshold) if before is None else before
        # -log p = softplus(-logit p). The ratio is taken in log space: both may be far below the smallest float.
        log_ratio = _log_softplus(-before - log_odds) - _log_softplus(-before)
        # No shift means no change, to the bit.
        return self._with_beta(torch.where(log_odds == 0, self.beta, self.beta * log_ratio.clamp(-30.0, 30.0).exp()))

    def _with_beta(self, beta: Tensor) -> Kumaraswamy:
        return Kumaraswamy(self.alpha, beta, validate_args=False)


class StretchedKumaraswamy(Kumaraswamy):
    """HardKuma proper: g = min(1, max(0, l + (r - l) u)) with l < 0 < 1 < r, which puts exact mass on 0 and on 1.

    Its entropy has no closed form and is not offered.

    >>> gate = StretchedKumaraswamy(torch.tensor(0.5), torch.tensor(0.5))
    >>> [round(float(p), 4) for p in (gate.p_zero, gate.p_between, gate.p_one, gate.mean)]
    [0.1566, 0.6371, 0.2063, 0.5365]
    """

    def __init__(
        self,
        alpha: Tensor | float,
        beta: Tensor | float,
        low: float = -0.1,
        high: float = 1.1,
        validate_args: bool | None = None,
    ):
        if not (low < 0.0 and high > 1.0):
            raise ValueError(f"the stretch needs low < 0 and high > 1, got low={low}, high={high}.")
        self.low, self.high = float(low), float(high)
        super().__init__(alpha, beta, validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Distribution:
        alpha, beta = self.alpha.expand(batch_shape), self.beta.expand(batch_shape)
        return StretchedKumaraswamy(alpha, beta, self.low, self.high, validate_args=False)

    def _with_beta(self, beta: Tensor) -> Kumaraswamy:
        return StretchedKumaraswamy(self.alpha, beta, self.low, self.high, validate_args=False)

    def _unstretch(self, gate: TensorOrFloat) -> TensorOrFloat:
        return (gate - self.low) / (self.high - self.low)

    def _log_threshold(self, threshold: float) -> float:
        return math.log(self._unstretch(threshold))

    def cdf(self, value: Tensor) -> Tensor:
        """P(g <= x): jumps by P(0) at 0 and by P(1) at 1."""
        inner = super().cdf(self._unstretch(value.clamp(0.0, 1.0)))
        return torch.where(value < 0, torch.zeros_like(inner), torch.where(value >= 1, torch.ones_like(inner), inner))

    def icdf(self, value: Tensor) -> Tensor:
        """Smallest g with P(g <= x) >= v; this is also the sampler's path from noise to gate."""
        return (self.low + (self.high - self.low) * super().icdf(value)).clamp(0.0, 1.0)

    @property
    def p_zero(self) -> Tensor:
        """P(g = 0) = F(-l / (r - l))."""
        return -torch.expm1(self._log_survival(self._log_threshold(0.0)))

    @property
    def p_one(self) -> Tensor:
        """P(g = 1) = 1 - F((1 - l) / (r - l))."""
        return self._log_survival(self._log_threshold(1.0)).exp()

    @property
    def p_between(self) -> Tensor:
        """P(0 < g < 1)."""
        return (self._log_survival(self._log_threshold(0.0)).exp() - self.p_one).clamp_min(0.0)

    def log_prob(self, value: Tensor) -> Tensor:
        """log density inside (0, 1); log of the point mass at 0 and at 1."""
        tiny = torch.finfo(self.alpha.dtype).tiny
        inner = super().log_prob(self._unstretch(value.clamp(0.0, 1.0))) - math.log(self.high - self.low)
        zero, one = self.p_zero.clamp_min(tiny).log(), self.p_one.clamp_min(tiny).log()
        return torch.where(value <= 0, zero, torch.where(value >= 1, one, inner))

    def _integral(self, power: int) -> Tensor:
        """E[g^n] = integral over (0, 1) of n x^(n-1) P(g > x) dx, by Gauss-Legendre between the gate's own quantiles.

        The survival function falls within a narrow band when shapes are large; cutting the interval at quantiles puts
        nodes there. The cuts carry no gradient: the integral does not depend on where it is cut.
        """
        nodes, weights = _gauss_legendre(12)
        nodes, weights = nodes.to(self.alpha), weights.to(self.alpha)
        levels = torch.tensor(
            [1e-6, 1e-3, 0.05, 0.25, 0.5, 0.75, 0.95, 0.999, 1 - 1e-6], dtype=nodes.dtype, device=nodes.device
        )
        with torch.no_grad():
            base = Kumaraswamy(self.alpha[..., None], self.beta[..., None], validate_args=False)
            low, high = self._unstretch(0.0), self._unstretch(1.0)
            inner = base.icdf(levels).clamp(low, high)
            ends = inner.new_ones((*inner.shape[:-1], 1))
            cuts = torch.cat([low * ends, inner, high * ends], dim=-1)
            half = (cuts[..., 1:] - cuts[..., :-1])[..., None] / 2
            u = cuts[..., :-1, None] + half * (1 + nodes)
            gate = (self.low + (self.high - self.low) * u).clamp(0.0, 1.0)
        survival = (self.beta[..., None, None] * log1mexp(-self.alpha[..., None, None] * u.log())).exp()
        integrand = survival * power * gate ** (power - 1) * (half * weights)
        return (self.high - self.low) * integrand.sum((-1, -2))

    @property
    def mean(self) -> Tensor:
        """E[g] of the *stretched* gate, by quadrature; differentiable in the shapes."""
        return self._integral(1)

    @property
    def variance(self) -> Tensor:
        return (self._integral(2) - self._integral(1) ** 2).clamp_min(0.0)

    def entropy(self) -> Tensor:
        """Not offered: the interior part has no closed form."""
        return Distribution.entropy(self)


@lru_cache
def _gauss_legendre(order: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights on (-1, 1): eigenvalues of the Jacobi matrix (Golub and Welsch). Always on the CPU, in double."""
    k = torch.arange(1, order, dtype=torch.float64, device="cpu")
    off = k / torch.sqrt(4 * k**2 - 1)
    nodes, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return nodes, 2 * vectors[0] ** 2


def make_gate(alpha: Tensor, beta: Tensor, sampler: str, low: float, high: float) -> Kumaraswamy:
    """The distribution that a sampler draws from: stretched, or plain for `relaxed` and `straight_through`."""
    if sampler == "stretched":
        return StretchedKumaraswamy(alpha, beta, low, high, validate_args=False)
    return Kumaraswamy(alpha, beta, validate_args=False)


def sample_gate(gate: Kumaraswamy, noise: Tensor, sampler: str, threshold: float = 0.5) -> Tensor:
    """Gates from uniform noise of the batch's shape.

    `relaxed`: g = u. `stretched`: g = min(1, max(0, l + (r - l) u)). `straight_through`: forward 1[u > t], gradient of u.

    >>> gate = make_gate(torch.ones(3), torch.ones(3), "straight_through", -0.1, 1.1)
    >>> sample_gate(gate, torch.tensor([0.2, 0.6, 0.9]), "straight_through")
    tensor([0., 1., 1.])
    """
    soft = gate.icdf(noise)
    if sampler != "straight_through":
        return soft
    # The usual `soft + (hard - soft).detach()` rounds to 1 +- 1e-7; this is exactly 0 or 1.
    return _StraightThrough.apply(soft, (soft > threshold).to(soft.dtype))


class _StraightThrough(torch.autograd.Function):
    """Forward: the hard value, exactly. Backward: the gradient goes to the soft value."""

    @staticmethod
    def forward(ctx: Any, soft: Tensor, hard: Tensor) -> Tensor:
        return hard.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def expected_selected(probs: Tensor, content: Tensor) -> Tensor:
    """E[number of selected tokens]: sum of selection probabilities over content. (..., length) -> (...)

    >>> expected_selected(torch.tensor([0.5, 0.25, 0.9]), torch.tensor([1.0, 1.0, 0.0]))
    tensor(0.7500)
    """
    return (probs * content).sum(-1)


def expected_changes(probs: Tensor, content: Tensor) -> Tensor:
    """E[number of neighbours that differ] = sum p_i (1 - p_{i+1}) + (1 - p_i) p_{i+1} over neighbouring content tokens.

    Gates are independent given the encoder's states. (..., length) -> (...)

    >>> expected_changes(torch.tensor([1.0, 0.0, 0.5]), torch.ones(3))
    tensor(1.5000)
    """
    left, right = probs[..., :-1], probs[..., 1:]
    both = content[..., :-1] * content[..., 1:]
    return ((left * (1 - right) + (1 - left) * right) * both).sum(-1)
