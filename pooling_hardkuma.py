"""From token states and token weights to sentence vectors: the encoder's own pooling, generalised to weights in [0, 1]."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .attention_hardkuma import AttentionTap, run_encoder
from .batch_hardkuma import TokenBatch, attendable
from .configuration_hardkuma import HardKumaConfig
from .gate_head_hardkuma import GateHead

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


# A removed token's g in the attention of `reencode` while training. Attention logits of sharp encoders differ by 20 and
# more, so it must be small for the token to vanish; the gradient a / g of the weight a that is left stays of ordinary size.
GATE_FLOOR = 1e-15


class GatedEncoder(Protocol):
    """What the views need of a model; `HardKumaModel` is one."""

    config: HardKumaConfig
    encoder: PreTrainedModel
    projections: nn.ModuleList
    gate_head: GateHead
    training: bool


def sentence_embedding(model: GatedEncoder, pooled: Tensor) -> Tensor:
    """The encoder's own last steps, from pooled states (..., hidden) to embeddings (..., dim): what
    `SentenceTransformer.encode` gives, without any filter."""
    vectors = _project(model, pooled)
    return normalize(vectors) if model.config.normalize else vectors


def view_embedding(model: GatedEncoder, pooled: Tensor, project: bool = True) -> Tensor:
    """The same with the frequency filter before normalisation: what rationale, complement and the losses' anchor get."""
    config = model.config
    vectors = _project(model, pooled) if project else pooled
    vectors = frequency_filter(vectors, config.frequency_filter, config.frequency_low, config.frequency_high)
    return normalize(vectors) if config.normalize else vectors


def _project(model: GatedEncoder, vectors: Tensor) -> Tensor:
    for projection in model.projections:
        vectors = projection(vectors)
    return vectors


def contrasted_embeddings(
    model: GatedEncoder, batch: TokenBatch, states: Tensor, embeddings: Tensor | None, gates: Tensor, pooled: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What the losses compare: anchor (batch, dim), rationale and complement (batch, K, dim), all of one view.

    Args:
        states: (batch, length, hidden) the encoder's last states.
        embeddings: (batch, length, size) its input embeddings; for the view of them alone.
        gates: (batch, K, length)
        pooled: (batch, 1, hidden) the states pooled over all tokens.
    """
    count, both = gates.shape[1], [gates, 1 - gates]
    if model.config.view != "input":
        vectors = gated_embeddings(model, batch, states, embeddings, torch.cat(both, dim=1))
        return view_embedding(model, pooled)[:, 0], vectors[:, :count], vectors[:, count:]
    # Input embeddings live in a space of their own, so the anchor is pooled from them too.
    everything = torch.ones_like(gates[:, :1])
    vectors = gated_embeddings(model, batch, states, embeddings, torch.cat([everything, *both], dim=1))
    return vectors[:, 0], vectors[:, 1 : count + 1], vectors[:, count + 1 :]


def gated_embeddings(
    model: GatedEncoder, batch: TokenBatch, states: Tensor, embeddings: Tensor | None, gates: Tensor
) -> Tensor:
    """Embeddings of the sentences under gates (batch, sets, length), by the model's view: (batch, sets, dim)."""
    modes = model.config.pooling_modes
    mask, content = batch.mask[:, None].float(), batch.content[:, None].float()
    if model.config.view == "hidden":
        # As written: special tokens have g = 0, so they are part of the complement.
        return view_embedding(model, pool(states, mask * gates, modes))
    if model.config.view == "input":
        assert embeddings is not None
        centred = embeddings.float() - model.gate_head.input_center.float()
        return view_embedding(model, pool(centred, content * gates, modes), project=False)
    # Special tokens always stay, as they would around a shorter sentence.
    return view_embedding(model, pool_reencoded(model, batch, mask * (1 - content) + content * gates))


def pool_reencoded(model: GatedEncoder, batch: TokenBatch, kept: Tensor) -> Tensor:
    """Run the encoder on gated inputs and pool. kept: (batch, sets, length) in [0, 1] -> (batch, sets, hidden)."""
    sets = kept.shape[1]
    weights = kept.flatten(0, 1)
    ids, embeddings, types = (
        None if tensor is None else tensor.repeat_interleave(sets, 0)
        for tensor in (batch.input_ids, batch.inputs_embeds, batch.token_type_ids)
    )
    if model.training:
        tap = AttentionTap(key_bias=torch.log(weights * (1 - GATE_FLOOR) + GATE_FLOOR))
        mask = attendable(batch.mask).repeat_interleave(sets, 0)
    else:
        tap, mask = None, attendable(weights > 0)  # hard gates: the removed tokens are simply not there
    with torch.autocast(device_type=weights.device.type, enabled=batch.autocast):
        states = run_encoder(model.encoder, ids, mask, types, tap, embeddings).last_hidden_state
    return pool(states, weights[:, None], model.config.pooling_modes)[:, 0].unflatten(0, (-1, sets))
