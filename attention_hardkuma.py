"""Reaching into the encoder's attention while it keeps running sdpa.

transformers lets one register an attention function. Ours calls sdpa and, when the call carries an `AttentionTap`, adds a
bias to the keys (gated input) or sums up the weights of a few layers (attention features). The tap travels as a keyword
argument of one forward call; nothing is stored on a module.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

# Families whose attention bypasses transformers' AttentionInterface but takes a ready additive (batch, 1, 1, length) mask.
ADDITIVE_MASK_FAMILIES = ("mpnet",)


class AttentionTap:
    """What one encoder call wants of the attention.

    No dataclass: FSDP copies those on their way into a layer, and what the layer sums would be lost.

    Attributes:
        key_bias: (batch, length), added to every query's logits; log g for a gated input.
        content: (batch, length), 1 on content tokens; with `layers`, asks for attention sums.
        layers: indices (from 0) of the layers whose attention is summed.
        return_weights: give every layer's weights back to the encoder, as `output_attentions` wants them.
        calls: of the attention so far.
        sums: attention received and given, of each of these layers.
    """

    def __init__(self, key_bias: Tensor | None = None, content: Tensor | None = None, layers: frozenset[int] = frozenset()):
        self.key_bias, self.content, self.layers = key_bias, content, layers
        self.return_weights = False
        self.calls = 0
        self.sums: list[tuple[Tensor, Tensor]] = []

    def keep(self, weights: Tensor) -> None:
        """Add one layer's weights, (batch, heads, query, key), to the sums; see `attention_features`."""
        assert self.content is not None, "a tap with layers has content"
        content = self.content.to(weights.dtype)[:, None, :, None]  # (batch, 1, length, 1)
        received = (weights.transpose(-1, -2) @ content).squeeze(-1).mean(1)
        to_self = torch.diagonal(weights, dim1=-2, dim2=-1) * content.squeeze(-1)
        given = ((weights @ content).squeeze(-1) - to_self).mean(1)
        self.sums.append((received, given))


def tapped_sdpa(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    hardkuma_tap: AttentionTap | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """sdpa, with the tap's bias on the keys and the tap's sums taken beside it."""
    if hardkuma_tap is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    layer, hardkuma_tap.calls = hardkuma_tap.calls, hardkuma_tap.calls + 1
    if hardkuma_tap.key_bias is not None:
        bias = hardkuma_tap.key_bias.to(query.dtype)[:, None, None, :]
        attention_mask = _additive(module, query, key, attention_mask, kwargs.get("is_causal")) + bias
    if layer in hardkuma_tap.layers:
        with torch.no_grad():
            hardkuma_tap.keep(_weights(module, query, key, attention_mask, kwargs))
    output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if not hardkuma_tap.return_weights:
        return output, None
    return output, _weights(module, query, key, attention_mask, kwargs).to(query.dtype)


def _additive(module: torch.nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool | None) -> Tensor:
    """Any mask that sdpa would take, as an additive one (a missing mask may still mean causal)."""
    if mask is not None and mask.dtype != torch.bool:
        return mask
    if mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        mask = (mask.tril() if causal else mask)[None, None]
    zero = torch.zeros((), dtype=query.dtype, device=query.device)
    return torch.where(mask, zero, torch.finfo(query.dtype).min)


def _weights(module: torch.nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, kwargs: dict[str, Any]) -> Tensor:
    """softmax(q k^T / sqrt(d) + mask) in fp32, without dropout: (batch, heads, query, key)."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key = key.repeat_interleave(groups, dim=1)
    scaling = kwargs.get("scaling")
    scores = query.float() @ key.float().transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if kwargs.get("position_bias") is not None:
        scores = scores + kwargs["position_bias"].float()
    if mask is not None or kwargs.get("is_causal") or getattr(module, "is_causal", False):
        scores = scores + _additive(module, query, key, mask, kwargs.get("is_causal")).float()
    return scores.softmax(-1)


# A name of its own for every copy of this file: checkpoints bring theirs, and two versions in one process must not meet.
KERNEL = f"hardkuma_sdpa_{id(tapped_sdpa):x}"
AttentionInterface.register(KERNEL, tapped_sdpa)
AttentionMaskInterface.register(KERNEL, sdpa_mask)


def routes_attention(encoder: PreTrainedModel) -> bool:
    """Whether the encoder's family calls the registered attention function (most do; mpnet and deberta do not)."""
    return bool(encoder._can_set_attn_implementation()) and getattr(encoder.config, "num_hidden_layers", 0) > 0


def run_encoder(
    encoder: PreTrainedModel,
    input_ids: Tensor | None,
    attention_mask: Tensor,
    token_type_ids: Tensor | None = None,
    tap: AttentionTap | None = None,
    inputs_embeds: Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """One encoder call: only the arguments that the family takes, with or without a tap.

    A tapped encoder runs our attention function from then on, and not for one call alone: layers that gradient
    checkpointing runs again during the backward pass, and other threads' calls, must find the same one. Without a tap it
    is sdpa.
    """
    accepted = inspect.signature(encoder.forward).parameters
    if token_type_ids is not None and "token_type_ids" in accepted:
        kwargs["token_type_ids"] = token_type_ids
    if inputs_embeds is None:
        kwargs["input_ids"] = input_ids
    elif "inputs_embeds" in accepted:
        kwargs["inputs_embeds"] = inputs_embeds
    else:
        raise ValueError(f"{type(encoder).__name__} takes no inputs_embeds; pass input_ids.")
    if tap is None or encoder.config.num_hidden_layers == 0:  # a static encoder has no attention to tap
        return encoder(attention_mask=attention_mask, **kwargs)
    if not routes_attention(encoder):
        return _run_without_interface(encoder, attention_mask, tap, **kwargs)
    if encoder.config._attn_implementation != KERNEL:
        encoder.config._attn_implementation = KERNEL
    tap.return_weights = bool(kwargs.get("output_attentions"))
    output = encoder(attention_mask=attention_mask, hardkuma_tap=tap, **kwargs)
    if tap.calls == 0:
        raise ValueError(
            f"{type(encoder).__name__} does not pass keyword arguments on to its attention; "
            "use the view 'hidden' or 'input' and no 'attention' among what selectors read."
        )
    return output


def _run_without_interface(encoder: PreTrainedModel, attention_mask: Tensor, tap: AttentionTap, **kwargs: Any) -> Any:
    """Families with an attention of their own: an additive mask for the bias, returned weights for the sums."""
    if tap.key_bias is not None:
        if encoder.config.model_type not in ADDITIVE_MASK_FAMILIES:
            raise ValueError(
                f"the view 'reencode' cannot be trained with a {encoder.config.model_type!r} encoder, whose attention "
                "takes no bias; use the view 'hidden' or 'input'."
            )
        floor = torch.finfo(tap.key_bias.dtype).min
        bias = tap.key_bias.masked_fill(attention_mask == 0, floor)[:, None, None, :]
        return encoder(attention_mask=bias.to(encoder.dtype), **kwargs)
    output = encoder(attention_mask=attention_mask, **{**kwargs, "output_attentions": True})
    for layer in sorted(tap.layers):
        tap.keep(output.attentions[layer].detach().float())
    return output


def attention_features(tap: AttentionTap, attention_mask: Tensor) -> Tensor:
    """Attention received and given by each content token, averaged over heads and the tapped layers: (batch, length, 2).

    received_j = sum over content queries i of A_ij; given_i = sum over content keys j != i of A_ij. A plain row sum is
    always 1, which is why a token itself and the special tokens are left out of "given". Both are divided by what uniform
    attention would give, n / L and (n - 1) / L for n content tokens among L, so that 1 means "as much as any token" at
    every length. Zero on other tokens.
    """
    assert tap.content is not None, "a tap with layers has content"
    content = tap.content.to(torch.float32)
    if not tap.sums:  # an encoder without attention
        return content.new_zeros(*content.shape, 2)
    received = torch.stack([r for r, _ in tap.sums]).mean(0)
    given = torch.stack([g for _, g in tap.sums]).mean(0)
    number = content.sum(-1, keepdim=True)
    total = attention_mask.sum(-1, keepdim=True)
    received = received * total / number.clamp_min(1.0)
    given = given * total / (number - 1).clamp_min(1.0)
    return torch.stack([received, given], dim=-1) * content[..., None]
