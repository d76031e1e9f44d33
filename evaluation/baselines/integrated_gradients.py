"""Integrated gradients (captum) of the similarity between a sentence and its own embedding, or of another value."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ...batch_hardkuma import TokenBatch
from ...common.packages import require
from .encoder import SentenceEncoder, Value, similarity


@dataclass
class Attributions:
    """Token attributions of a batch.

    Attributes:
        values: (batch, length) one attribution per token.
        difference: (batch,) f(sentence) - f(baseline), which the values sum up to as steps grow (completeness).
    """

    values: Tensor
    difference: Tensor


def attribute(encoder: SentenceEncoder, batch: TokenBatch, steps: int = 20, value: Value = similarity) -> Attributions:
    """Integrated gradients from a baseline of the same length to the sentence, over the input embeddings.

    f(x) = value(embedding of x, embedding of the sentence), by default their cosine; in the baseline every content token is
    [PAD], special tokens stay, and everything is attended to.
    """
    captum = require("captum.attr", "benchmark")
    padding = encoder.tokenizer.pad_token_id
    if padding is None:
        raise ValueError(
            f"{type(encoder.tokenizer).__name__} has no padding token, which the baseline is made of; set one."
        )
    with torch.no_grad(), _called_embedding(encoder) as called:
        target = _embed(encoder, batch)
    ids, types = batch.input_ids, batch.token_type_ids
    assert ids is not None, "baselines read token ids"

    def value_of(ids: Tensor, mask: Tensor, target: Tensor, types: Tensor | None = None) -> Tensor:
        return value(_embed(encoder, replace(batch, input_ids=ids, mask=mask, token_type_ids=types)), target)

    empty = torch.where(batch.content, padding, ids)
    extra = (batch.mask, target) if types is None else (batch.mask, target, types)
    with torch.no_grad():
        difference = value_of(ids, *extra) - value_of(empty, *extra)
    values = captum.LayerIntegratedGradients(value_of, called[0]).attribute(
        ids,
        baselines=empty,
        additional_forward_args=extra,
        n_steps=steps,
        internal_batch_size=max(len(ids), encoder.token_budget // ids.shape[1]),
    )
    encoder.passes.backward += steps * len(ids)
    return Attributions(values.detach().sum(-1) * batch.content, difference)


@contextlib.contextmanager
def _called_embedding(encoder: SentenceEncoder) -> Iterator[list[nn.Module]]:
    """The input embedding that the encoder really calls inside the block: some (T5) name one module and call another
    that shares its weight."""
    weight = encoder.encoder.get_input_embeddings().weight
    called: list[nn.Module] = []
    alike = [m for m in encoder.encoder.modules() if isinstance(m, nn.Embedding) and m.weight is weight]
    hooks = [module.register_forward_hook(lambda module, *_: called.append(module)) for module in alike]
    try:
        yield called
    finally:
        for hook in hooks:
            hook.remove()


def _embed(encoder: SentenceEncoder, batch: TokenBatch) -> Tensor:
    return encoder.pooled(encoder.states(batch), batch.mask[:, None])[:, 0]


def attributions(encoder: SentenceEncoder, batch: TokenBatch, steps: int = 20, value: Value = similarity) -> Tensor:
    """(batch, length): what each token adds to the similarity (or another value), on the way from an empty one.

    Args:
        steps: points of the path; each costs a forward and a backward pass.
    """
    if steps < 1:
        raise ValueError(f"steps must be >= 1, got {steps}.")
    return attribute(encoder, batch, steps, value).values
