"""From token states and token weights to sentence vectors: the encoder's own pooling, generalised to weights in [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor

# Below this a weight sum or a norm counts as zero. The result is then the zero vector, with a gradient of ordinary size
# (the denominator is taken as 1), so that an empty selection can still be left by gradient steps.
EMPTY = 1e-6


def _or_one(total: Tensor) -> Tensor:
    return torch.where(total > EMPTY, total, torch.ones_like(total))


def pool(states: Tensor, weights: Tensor, modes: list[str]) -> Tensor:
    """Pool token states under token weights, in fp32; an empty selection gives the zero vector.

    With weights that are 0 or 1 each mode is the ordinary one over the tokens of weight 1:

    - mean: sum w h / sum w; mean_sqrt_len_tokens: sum w h / sqrt(sum w)
    - weightedmean: the mean with weights w times position (first token 1)
    - max: max over tokens of h + log w
    - cls: the first selected token, sum_i w_i prod_{j<i} (1 - w_j) h_i; lasttoken: the same from the end

    Args:
        states: (batch, length, dim).
        weights: (batch, sets, length), each in [0, 1]; every set is pooled by itself.
        modes: one or several pooling modes, concatenated.

    Returns:
        (batch, sets, dim * len(modes))

    >>> states = torch.tensor([[[1.0], [2.0], [6.0]]])
    >>> pool(states, torch.tensor([[[1.0, 1.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]]), ["mean"]).flatten()
    tensor([3., 4., 0.])
    """
    states, weights = states.float(), weights.float()
    return torch.cat([_POOLERS[mode](states, weights) for mode in modes], dim=-1)


def _mean(states: Tensor, weights: Tensor) -> Tensor:
    return weights.bmm(states) / _or_one(weights.sum(-1, keepdim=True))


def _mean_sqrt_len(states: Tensor, weights: Tensor) -> Tensor:
    return weights @ states / _or_one(weights.sum(-1, keepdim=True)).sqrt()


def _weighted_mean(states: Tensor, weights: Tensor) -> Tensor:
    position = torch.arange(1, states.shape[1] + 1, dtype=states.dtype, device=states.device)
    return _mean(states, weights * position)


def _max(states: Tensor, weights: Tensor) -> Tensor:
    # log w is 0 for a selected token; a token of weight 0 cannot win.
    absent = weights <= EMPTY
    log_weight = weights.masked_fill(absent, 1.0).log().masked_fill(absent, -torch.inf)
    # One set at a time: (batch, sets, length, dim) would be large.
    best = torch.stack([(states + w[..., None]).amax(1) for w in log_weight.unbind(1)], dim=1)
    return best.masked_fill(absent.all(-1, keepdim=True), 0.0)


def _first(states: Tensor, weights: Tensor) -> Tensor:
    before = torch.cat([torch.ones_like(weights[..., :1]), torch.cumprod(1 - weights, dim=-1)[..., :-1]], dim=-1)
    return (weights * before) @ states


def _last(states: Tensor, weights: Tensor) -> Tensor:
    return _first(states.flip(1), weights.flip(-1))


_POOLERS = {
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "max": _max,
    "cls": _first,
    "lasttoken": _last,
}


def normalize(vectors: Tensor) -> Tensor:
    """Vectors (..., dim) scaled to length 1; the zero vector stays zero, with a finite gradient.

    >>> normalize(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    squares = vectors.square().sum(-1, keepdim=True)
    # The square root's gradient is infinite at 0: replace the argument first.
    return vectors / torch.where(squares > EMPTY**2, squares, torch.ones_like(squares)).sqrt()


def frequency_filter(vectors: Tensor, kind: str, low: float, high: float) -> Tensor:
    """Inverse FFT of the masked FFT of each vector (..., dim), in fp32.

    Frequencies are fractions of the highest one: "low" keeps f <= high, "high" keeps f >= low, "band" keeps both.

    >>> wave = torch.tensor([1.0, -1.0, 1.0, -1.0])
    >>> frequency_filter(wave + 3, "low", 0.0, 0.5), frequency_filter(wave + 3, "high", 0.5, 1.0)
    (tensor([3., 3., 3., 3.]), tensor([ 1., -1.,  1., -1.]))
    """
    if kind == "none":
        return vectors
    spectrum = torch.fft.rfft(vectors.float(), dim=-1)
    fraction = torch.linspace(0.0, 1.0, spectrum.shape[-1], device=vectors.device)
    keep = torch.ones_like(fraction, dtype=torch.bool)
    if kind in ("low", "band"):
        keep &= fraction <= high
    if kind in ("high", "band"):
        keep &= fraction >= low
    return torch.fft.irfft(spectrum * keep, n=vectors.shape[-1], dim=-1)
