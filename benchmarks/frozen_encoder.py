"""A frozen encoder says the same of the same tokens in every row of a table: within a process it is asked once.

Rows differ in their gates. Those read the encoder's states of the same sentences, and often select the same words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from hardkuma import features_hardkuma
from hardkuma.attribution.encoder import SentenceEncoder, Tokens
from hardkuma.inputs_hardkuma import content_mask
from hardkuma.modeling_hardkuma import HardKumaModel
from hardkuma.training.subsets import SubsetEncoder

# By the encoder's fingerprint: embeddings of subsets of tokens, and outputs for batches of whole sentences.
_embeddings: dict[str | None, dict[tuple[bytes, bytes], Tensor]] = {}
_outputs: dict[str | None, dict[tuple[Any, ...], Any]] = {}

Subset = tuple[np.ndarray, np.ndarray]  # token ids, and which of them are kept


def embed_subsets(model: HardKumaModel, rows: Sequence[Subset]) -> Tensor:
    """Embeddings, (rows, dim); removed tokens are left out instead of masked, which is the same up to rounding."""
    known = _embeddings.setdefault(model.config.encoder_fingerprint, {})
    keys = [(ids.tobytes(), kept.tobytes()) for ids, kept in rows]
    missing = {key: row for key, row in zip(keys, rows, strict=True) if key not in known}
    if missing:
        known.update(zip(missing, SubsetEncoder(model).embed(list(missing.values())), strict=True))
    return torch.stack([known[key] for key in keys])


class FrozenEncoder(SentenceEncoder):
    """The encoder of a model with gates."""

    def embed(
        self,
        tokens: Sequence[Tokens],
        kept: Sequence[Sequence[bool]] | None = None,
        progress: bool = False,
        label: str = "",
    ) -> Tensor:
        """As of every `SentenceEncoder`."""
        assert self.model is not None, "made with from_model"
        chosen = [[True] * len(item) for item in tokens] if kept is None else kept
        pairs = zip(tokens, chosen, strict=True)
        return embed_subsets(
            self.model, [(np.array(item.ids), np.array(row) | ~np.array(item.content)) for item, row in pairs]
        )


@contextmanager
def remembered_subsets() -> Iterator[None]:
    """Inside, `HardKumaModel.encode_subsets`, by which a run looks how good its gates are, embeds a subset once."""

    def encode_subsets(model: HardKumaModel, input_ids: Tensor, attention_mask: Tensor, kept: Tensor) -> Tensor:
        content = content_mask(model.config, input_ids, attention_mask, None)
        rows: list[Subset] = []
        for ids, mask, free, sets in zip(input_ids, attention_mask.bool(), content, kept.bool(), strict=True):
            rows += [(ids[mask].numpy(), (row | ~free)[mask].numpy()) for row in sets]
        return embed_subsets(model, rows).unflatten(0, kept.shape[:2])

    with patch.object(HardKumaModel, "encode_subsets", encode_subsets):
        yield


@contextmanager
def remembered_states(model: HardKumaModel) -> Iterator[None]:
    """Inside, gates read the states of a batch that was encoded before; not where they tap its attention."""
    known, run = _outputs.setdefault(model.config.encoder_fingerprint, {}), features_hardkuma.run_encoder

    def run_once(
        encoder: Any, ids: Tensor, mask: Tensor, types: Any = None, tap: Any = None, *rest: Any, **wanted: bool
    ) -> Any:
        if tap is not None:
            return run(encoder, ids, mask, types, tap, *rest, **wanted)
        # Where gates read lower layers alone, the encoder is one of fewer layers.
        key = (ids.shape, ids.numpy().tobytes(), mask.numpy().tobytes(), encoder.config.num_hidden_layers, *wanted)
        if key not in known:
            known[key] = run(encoder, ids, mask, types, tap, *rest, **wanted)
        return known[key]

    with patch.object(features_hardkuma, "run_encoder", run_once):
        yield
