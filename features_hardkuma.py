"""What the selector reads of each token: states of one layer, input embeddings, attention, norms, word shapes."""

from __future__ import annotations

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
