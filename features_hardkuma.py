"""What the selector reads of each token: states of one layer, input embeddings, attention, norms, word shapes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .attention_hardkuma import AttentionTap, attention_features, layer_indices, run_encoder
from .configuration_hardkuma import HardKumaConfig
from .inputs_hardkuma import TokenBatch, attendable, tracing
from .outputs_hardkuma import EncodedTokens
from .surface_hardkuma import NUM_SURFACE_CLASSES


@dataclass
class Encoding:
    """One pass of the encoder, padded on the right.

    Attributes:
        states: (batch, length, hidden) the last states.
        features: what the selector may read, each (batch, length, size), by name.
        hidden_states: of every layer, the embeddings first; if asked for.
        attentions: of every layer, (batch, heads, query, key); if asked for.
    """

    states: Tensor
    features: dict[str, Tensor]
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


def read_features(
    encoder: PreTrainedModel,
    config: HardKumaConfig,
    batch: TokenBatch,
    encoded: EncodedTokens | None = None,
    lower: PreTrainedModel | None = None,
    output_hidden_states: bool = False,
    output_attentions: bool = False,
) -> Encoding:
    """Run the encoder, or take what it gave earlier, and put together what the selector reads.

    Args:
        encoded: what the encoder gave for this batch earlier, instead of running it.
        lower: the encoder up to the selector's layer, to be run in its place. The last states are then those of that layer.
        output_hidden_states, output_attentions: keep these too.
    """
    if encoded is not None:
        if output_hidden_states or output_attentions:
            raise ValueError("encoded holds no hidden_states or attentions of every layer: leave it out, or do not ask.")
        result = _from_stored(config, batch, encoded)
    elif lower is not None:
        states = _run(lower, batch).last_hidden_state
        result = Encoding(states, {"state": states})
    else:
        result = _run_whole(encoder, config, batch, output_hidden_states, output_attentions)
    features = result.features
    if batch.inputs_embeds is None:
        features["input"] = encoder.get_input_embeddings()(batch.input_ids)
    else:
        features["input"] = batch.inputs_embeds
    if "norm" in config.selector_inputs:
        features["norm"] = features["state"].float().square().mean(-1, keepdim=True).sqrt()
    if "shape" in config.selector_inputs:
        ids = torch.zeros_like(batch.mask, dtype=torch.long) if batch.surface_ids is None else batch.surface_ids
        features["shape"] = nn.functional.one_hot(ids, NUM_SURFACE_CLASSES)
    return result


def _from_stored(config: HardKumaConfig, batch: TokenBatch, encoded: EncodedTokens) -> Encoding:
    wanted = {
        "states": True,
        "layer_states": config.selector_layer != -1,
        "attention": "attention" in config.selector_inputs,
    }
    tensors: dict[str, Tensor] = {}
    for name, needed in wanted.items():
        if not needed:
            continue
        tensor = encoded.get(name)
        if not isinstance(tensor, Tensor):
            why = f"selector_layer is {config.selector_layer}" if name == "layer_states" else "the selector reads it"
            raise ValueError(f"{why}, but encoded has no {name!r}; take it from model.encode_tokens.")
        if tensor.shape[:2] != batch.mask.shape:
            raise ValueError(f"encoded {name!r} has shape {tuple(tensor.shape)} for input_ids {tuple(batch.mask.shape)}.")
        tensors[name] = batch.align(tensor)
    features = {"state": tensors.get("layer_states", tensors["states"])}
    if "attention" in tensors:
        features["attention"] = tensors["attention"]
    return Encoding(tensors["states"], features)


def _run(encoder: PreTrainedModel, batch: TokenBatch, tap: AttentionTap | None = None, **outputs: bool) -> Any:
    ids, mask = batch.input_ids, attendable(batch.mask)
    return run_encoder(encoder, ids, mask, batch.token_type_ids, tap, batch.inputs_embeds, **outputs)


def _run_whole(
    encoder: PreTrainedModel, config: HardKumaConfig, batch: TokenBatch, hidden_states: bool, attentions: bool
) -> Encoding:
    tap = None
    if "attention" in config.selector_inputs:
        layers = encoder.config.num_hidden_layers
        chosen = layer_indices(config.attention_layers, layers) if layers else frozenset()
        tap = AttentionTap(content=batch.content, layers=chosen)
    inner = config.selector_layer != -1
    # Only what is wanted is named: families differ in what they take.
    wanted = {"output_hidden_states": hidden_states or inner, "output_attentions": attentions}
    with _differentiable(encoder, hidden_states or attentions):
        output = _run(encoder, batch, tap, **{name: True for name, value in wanted.items() if value})
    states = output.last_hidden_state
    result = Encoding(states, {"state": _layer(output.hidden_states, config.selector_layer) if inner else states})
    if tap is not None:
        result.features["attention"] = attention_features(tap, batch.mask)
    if hidden_states:
        result.hidden_states = output.hidden_states
    if attentions:
        result.attentions = getattr(output, "attentions", None)
    return result


@contextmanager
def _differentiable(encoder: PreTrainedModel, wanted: bool) -> Iterator[None]:
    """While `wanted`, states and attentions are part of the graph although the encoder is frozen: whoever asks for them
    with gradients on wants gradients with respect to them, and gets them from every other model."""
    if not wanted or tracing():
        yield
        return

    def require_gradient(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if torch.is_grad_enabled():
            output.requires_grad_()

    hook = encoder.get_input_embeddings().register_forward_hook(require_gradient)
    try:
        yield
    finally:
        hook.remove()


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
    part = _shallow(encoder)
    part.config = copy.copy(encoder.config)
    part.config.num_hidden_layers = depth
    *above, name = layers.split(".")
    parent: nn.Module = part
    for step in above:
        # Only the modules on the way to the list are copied; all others, and their weights, are those of the encoder.
        parent._modules[step] = _shallow(parent.get_submodule(step))
        parent = parent.get_submodule(step)
    whole = parent.get_submodule(name)
    assert isinstance(whole, nn.ModuleList)
    parent._modules[name] = nn.ModuleList(list(whole)[:depth])
    return part


AnyModule = TypeVar("AnyModule", bound=nn.Module)


def _shallow(module: AnyModule) -> AnyModule:
    clone = copy.copy(module)
    clone._modules = dict(module._modules)
    return clone
