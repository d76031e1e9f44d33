"""FSDP2: the weights of a model shared out among processes, and put together group by group while they are needed.

A group for every layer of the encoder, one for its input embeddings, which selectors may read by themselves, one for every
other part of it that has weights, and one for the rest, the gate head above all. The encoder itself is no group:
transformers knows a model by its class, which sharding changes, and would no longer record the states of its layers. Nor is
the gate head: what it returns is no tensor, by which FSDP would know that its backward pass begins.

Mixed precision is the encoder's alone: gates and losses stay in fp32, and so do the numbers that gates are drawn with.
(accelerate's own grouping has one precision for all, inputs and losses too, and with BERT it shards the input embeddings
twice, which is an error.)
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from ..modeling_hardkuma import HardKumaModel

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def shard_model(model: HardKumaModel, accelerator: Accelerator) -> None:
    """Shard the weights in place; an optimizer is made of them after this."""
    plugin, half = accelerator.state.fsdp_plugin, _HALF.get(accelerator.mixed_precision)
    of_encoder = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=None if half is None else torch.float32)
    for module in encoder_groups(model):
        reshard = bool(plugin.reshard_after_forward)
        fully_shard(module, mp_policy=of_encoder, reshard_after_forward=reshard, offload_policy=plugin.cpu_offload)
    fully_shard(model, offload_policy=plugin.cpu_offload)
    register_fsdp_forward_method(model, "encode_subsets")  # which the criterion calls


def encoder_groups(model: HardKumaModel) -> list[nn.Module]:
    """Parts of the encoder that are put together one at a time, what is inside of another before it.

    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2")
    >>> [type(module).__name__ for module in encoder_groups(model)][:3]
    ['Embedding', 'BertLayer', 'BertLayer']
    """
    encoder, inputs = model.encoder, model.get_input_embeddings()
    names = set(getattr(encoder, "_no_split_modules", None) or [])
    layers = [module for module in encoder.modules() if type(module).__name__ in names]
    groups = [inputs, *(module for module in reversed(layers) if module not in (inputs, encoder))]
    grouped = {parameter for module in groups for parameter in module.parameters()}
    others = [module for module in encoder.modules() if set(module.parameters(recurse=False)) - grouped]
    return [*groups, *(module for module in others if module is not encoder)]


def local_part(value: Tensor) -> Tensor:
    """What this process has of a tensor: all of it, where it is not sharded."""
    return value.to_local() if isinstance(value, DTensor) else value


def gather_whole(tensors: Mapping[str, Tensor], keeps: bool) -> dict[str, Tensor]:
    """Whole copies on the CPU, one after the other; nothing in processes that do not keep them.

    Where tensors are sharded, all processes must call this together.
    """
    own = ((name, value.detach()) for name, value in tensors.items())
    whole = ((name, value.full_tensor() if isinstance(value, DTensor) else value) for name, value in own)
    return {name: value.cpu().clone() for name, value in whole if keeps}


def cut_like(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor sharded as `like` is, if it is: this process keeps its part, and no process talks to another."""
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def join_like(part: Tensor, like: Tensor) -> Tensor:
    """A tensor that is sharded as `like`, of which this process has this part; the part itself, if `like` is not."""
    if not isinstance(like, DTensor):
        return part
    local, shape, stride = part.to(like.device), like.shape, like.stride()
    return DTensor.from_local(local, like.device_mesh, like.placements, run_check=False, shape=shape, stride=stride)
