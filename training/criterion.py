"""When to stop, without labels: do the selected tokens alone still mean the sentence, and the others not?"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch

from ..gates_hardkuma import select_rate
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

    >>> import tempfile
    >>> from hardkuma.training.store import build_store
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = build_store(model, ["Rain again.", "Marie Curie moved."], folder, "float16", progress=False)
    ...     quality = selection_quality(model, store, np.arange(2), 0.5)
    >>> 0 < quality.rate < 1 and quality.score == quality.sufficiency - quality.remainder
    True
    """
    training = model.training
    model.eval()
    sums, count, probability, number = [0.0, 0.0], 0, 0.0, 0
    for batch in store.batches(rows, model, batch_size):
        out = model(**batch.inputs, return_embeddings=False)
        probs, content = batch.by_selector(out.gate_probs), batch.content
        selected = select_rate(probs, content[:, None], rate)
        tokens = {name: batch.inputs[name] for name in ("input_ids", "attention_mask")}
        embeddings = model.encode_subsets(**tokens, kept=torch.cat([selected, 1 - selected], dim=1))
        cosine = torch.nn.functional.cosine_similarity(embeddings, out.anchor_embedding[:, None], dim=-1)
        half = probs.shape[1]
        valid = content.any(-1)
        sums[0] += float(cosine[valid, :half].mean(1).sum())
        sums[1] += float(cosine[valid, half:].mean(1).sum())
        count += int(valid.sum())
        probability += float(probs.sum()) / half
        number += int(content.sum())
    model.train(training)
    sufficiency, remainder = sums[0] / max(count, 1), sums[1] / max(count, 1)
    return Quality(sufficiency, remainder, sufficiency - remainder, probability / max(number, 1))
