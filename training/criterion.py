"""When to stop, without labels: do the selected tokens alone still mean the sentence, and the others not?"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch

from ..inputs_hardkuma import content_mask
from ..modeling_hardkuma import HardKumaModel
from .store import StateStore


@dataclass(frozen=True)
class Quality:
    """On held-out text, with the `rate` most probable tokens of each sentence selected.

    sufficiency: cosine between the sentence's embedding and that of its selected tokens, re-encoded; higher is better.
    remainder: the same for the other tokens; lower is better.
    score: sufficiency - remainder, the criterion.
    rate: mean selection probability of a token (what the gates themselves would select).
    """

    sufficiency: float
    remainder: float
    score: float
    rate: float

    def as_dict(self) -> dict[str, float]:
        """Rounded, for logs."""
        return {name: round(value, 6) for name, value in asdict(self).items()}


@torch.inference_mode()
def selection_quality(
    model: HardKumaModel, store: StateStore, rows: np.ndarray, rate: float, batch_size: int = 64
) -> Quality:
    """The label-free criterion. Selecting at one rate for all makes models with different rates comparable.

    Args:
        rows: numbers of held-out sentences in the store.
        rate: fraction of content tokens to select, at least one.
    """
    training = model.training
    model.eval()
    sums, count, probability, tokens = [0.0, 0.0], 0, 0.0, 0.0
    for start in range(0, len(rows), batch_size):
        some = rows[start : start + batch_size]
        batch = store.fetch(some, shapes="shape" in model.config.selector_inputs)
        shapes = batch.pop("surface_ids", None)
        encoded = batch.pop("encoded", None)
        batch = {name: value.to(model.device) for name, value in batch.items()}
        if encoded is not None:
            encoded = {name: value.to(model.device) for name, value in encoded.items()}
        shapes = None if shapes is None else shapes.to(model.device)
        out = model(**batch, surface_ids=shapes, encoded=encoded, return_embeddings=False)
        probs = out.gate_probs if out.gate_probs.ndim == 3 else out.gate_probs[:, None]
        content = content_mask(model.config, batch["input_ids"], batch["attention_mask"], None)
        chosen = most_probable(probs, content, rate)
        embeddings = model.encode_subsets(**batch, kept=torch.cat([chosen, 1 - chosen], dim=1))
        cosine = torch.nn.functional.cosine_similarity(embeddings, out.anchor_embedding[:, None], dim=-1)
        half = probs.shape[1]
        valid = content.any(-1)
        sums[0] += float(cosine[valid, :half].mean(1).sum())
        sums[1] += float(cosine[valid, half:].mean(1).sum())
        count += int(valid.sum())
        probability += float(probs.sum()) / half
        tokens += float(content.sum())
    model.train(training)
    sufficiency, remainder = sums[0] / max(count, 1), sums[1] / max(count, 1)
    return Quality(sufficiency, remainder, sufficiency - remainder, probability / max(tokens, 1.0))


def most_probable(probs: torch.Tensor, content: torch.Tensor, rate: float) -> torch.Tensor:
    """1 on the round(rate * n) most probable of each row's n content tokens, at least one. (batch, K, length)

    >>> most_probable(torch.tensor([[[0.1, 0.9, 0.5, 0.8]]]), torch.tensor([[False, True, True, True]]), 0.3)
    tensor([[[0., 1., 0., 0.]]])
    """
    number = content.sum(-1, keepdim=True)
    wanted = (rate * number + 0.5).floor().clamp_min(1.0)
    masked = probs.masked_fill(~content[:, None], -1.0)
    order = masked.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return ((order < wanted[:, None]) & content[:, None]).float()
