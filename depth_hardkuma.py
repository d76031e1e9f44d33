"""The lower layers of an encoder as an encoder of their own: gates that read layer 4 of 6 need nothing above it."""

from __future__ import annotations

import copy

import torch
from torch import nn
from transformers import PreTrainedModel

from .attention_hardkuma import run_encoder


def layers_below(layer: int, number: int) -> int:
    """How many of `number` layers run until `hidden_states[layer]` is there; the first state is the embeddings'.

    >>> layers_below(4, 6), layers_below(-1, 6), layers_below(-2, 6)
    (4, 6, 5)
    """
    return layer if layer >= 0 else number + 1 + layer


def lower_layers(encoder: PreTrainedModel, layer: int) -> PreTrainedModel | None:
    """The encoder with its first layers alone, sharing every weight: its last state is `hidden_states[layer]` of the whole.

    None where that cannot be had: no layer above, no single list of layers, or another last state (some families end with a
    norm), which is tried out.

    >>> from transformers import BertConfig, BertModel
    >>> sizes = {"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    >>> whole = BertModel(BertConfig(num_hidden_layers=3, **sizes)).eval()
    >>> ids = torch.tensor([[1, 2, 3]])
    >>> torch.equal(lower_layers(whole, 2)(ids).last_hidden_state, whole(ids, output_hidden_states=True).hidden_states[2])
    True
    """
    number = encoder.config.num_hidden_layers
    depth = layers_below(layer, number)
    lists = [
        name for name, module in encoder.named_modules() if isinstance(module, nn.ModuleList) and len(module) == number
    ]
    if len(lists) != 1 or not 0 < depth < number:
        return None
    part = _cut(encoder, lists[0], depth)
    ids = torch.arange(4, device=encoder.device)[None] % encoder.config.vocab_size
    mask = torch.ones_like(ids)
    with torch.no_grad():
        expected = run_encoder(encoder, ids, mask, output_hidden_states=True).hidden_states[depth]
        return part if torch.equal(run_encoder(part, ids, mask).last_hidden_state, expected) else None


def _cut(encoder: PreTrainedModel, layers: str, depth: int) -> PreTrainedModel:
    part = parent = _shallow(encoder)
    part.config = copy.copy(encoder.config)
    part.config.num_hidden_layers = depth
    *above, name = layers.split(".")
    for step in above:
        # Only the modules on the way to the list are copied; all others, and their weights, are those of the encoder.
        parent._modules[step] = _shallow(parent._modules[step])
        parent = parent._modules[step]
    parent._modules[name] = nn.ModuleList(list(parent._modules[name])[:depth])
    return part


def _shallow(module: nn.Module) -> nn.Module:
    clone = copy.copy(module)
    clone._modules = dict(module._modules)
    return clone
