"""What the selector reads of each token: states of one layer, input embeddings, attention, norms, word shapes."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .attention_hardkuma import AttentionTap, attention_features, layer_indices, run_encoder
from .configuration_hardkuma import HardKumaConfig
from .inputs_hardkuma import TokenBatch, attendable
from .surface_hardkuma import NUM_SURFACE_CLASSES


def read_features(
    encoder: PreTrainedModel,
    config: HardKumaConfig,
    batch: TokenBatch,
    encoded: dict[str, Tensor] | None = None,
    lower: PreTrainedModel | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The encoder's last states (batch, length, hidden), and the selector's features by name, each (batch, length, size).

    Args:
        encoded: what the encoder gave for this batch earlier, instead of running it; see `HardKumaModel.forward`.
        lower: the encoder up to the selector's layer, to be run in its place. The last states are then those of that layer.
    """
    with torch.set_grad_enabled(torch.is_grad_enabled() and not config.freeze_encoder):
        if encoded is not None:
            last, features = _stored(config, batch, encoded)
        elif lower is not None:
            last = run_encoder(lower, batch.input_ids, attendable(batch.mask), batch.token_type_ids).last_hidden_state
            features = {"state": last}
        else:
            last, features = _run(encoder, config, batch)
        features["input"] = encoder.get_input_embeddings()(batch.input_ids)
    if "norm" in config.selector_inputs:
        features["norm"] = features["state"].float().square().mean(-1, keepdim=True).sqrt()
    if "shape" in config.selector_inputs:
        ids = torch.zeros_like(batch.input_ids) if batch.surface_ids is None else batch.surface_ids
        features["shape"] = nn.functional.one_hot(ids, NUM_SURFACE_CLASSES)
    return last, features


def _stored(config: HardKumaConfig, batch: TokenBatch, encoded: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    if config.selector_layer != -1 and "layer_states" not in encoded:
        raise ValueError(f"selector_layer is {config.selector_layer}, but encoded has no 'layer_states'.")
    for name, tensor in encoded.items():
        if tensor.shape[:2] != batch.input_ids.shape:
            raise ValueError(
                f"encoded {name!r} has shape {tuple(tensor.shape)} for input_ids {tuple(batch.input_ids.shape)}."
            )
    return encoded["states"], {**encoded, "state": encoded["states" if config.selector_layer == -1 else "layer_states"]}


def _run(encoder: PreTrainedModel, config: HardKumaConfig, batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
    tap = None
    if "attention" in config.selector_inputs:
        layers = encoder.config.num_hidden_layers
        chosen = layer_indices(config.attention_layers, layers) if layers else frozenset()
        tap = AttentionTap(content=batch.content, layers=chosen)
    wanted = {} if config.selector_layer == -1 else {"output_hidden_states": True}
    output = run_encoder(encoder, batch.input_ids, attendable(batch.mask), batch.token_type_ids, tap, **wanted)
    last = output.last_hidden_state
    features = {"state": _layer(output.hidden_states, config.selector_layer) if wanted else last}
    if tap is not None:
        features["attention"] = attention_features(tap, batch.mask)
    return last, features


def _layer(hidden_states: tuple[Tensor, ...], layer: int) -> Tensor:
    number = len(hidden_states)
    if not -number <= layer < number:
        raise ValueError(f"selector_layer is {layer}, but the encoder has states 0 to {number - 1}.")
    return hidden_states[layer]


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
