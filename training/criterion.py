"""When to stop, without labels: do the selected tokens alone still mean the sentence, and the others not?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from ..modeling_hardkuma import HardKumaModel
from .store import StateStore


@dataclass(frozen=True)
class Quality:
    """On held-out text, with the most probable tokens (or words) of each sentence selected, at the target rate.

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
    model: HardKumaModel, store: StateStore, rows: np.ndarray, selector: int = 0, batch_size: int = 64
) -> Quality:
    """The label-free criterion of one selector, at its target rate, which is counted as the model counts it.

    Selecting at one rate for all makes states of a run comparable whose gates select more or less.

    Args:
        rows: numbers of held-out sentences in the store.
        selector: the number of the selector.

    >>> import tempfile
    >>> from hardkuma.training.store import build_store
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", target_rate=0.5).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = build_store(model, ["Rain again.", "Marie Curie moved."], folder, "float16", progress=False)
    ...     quality = selection_quality(model, store, np.arange(2))
    >>> 0 < quality.rate < 1 and quality.score == quality.sufficiency - quality.remainder
    True
    """
    training, name = model.training, model.config.names[selector]
    rate = model.config.of_selector("target_rate", selector)
    model.eval()
    rows = rows[np.argsort(store.lengths_of(rows), kind="stable")]  # less padding to encode
    sums, count, probability, number = [0.0, 0.0], 0, 0.0, 0
    for batch in store.batches(rows, model, batch_size):
        out = model(**batch.inputs, selector=name, rate=rate, return_embeddings=False)
        selected, content = out.gates[:, None], batch.content
        tokens = {name: batch.inputs[name] for name in ("input_ids", "attention_mask")}
        embeddings = model.encode_subsets(**tokens, kept=torch.cat([selected, 1 - selected], dim=1))
        cosine = torch.nn.functional.cosine_similarity(embeddings, out.anchor_embedding[:, None], dim=-1)
        valid = content.any(-1)
        sums[0] += float(cosine[valid, 0].sum())
        sums[1] += float(cosine[valid, 1].sum())
        count += int(valid.sum())
        probability += float(out.gate_probs.sum())
        number += int(content.sum())
    model.train(training)
    sufficiency, remainder = sums[0] / max(count, 1), sums[1] / max(count, 1)
    return Quality(sufficiency, remainder, sufficiency - remainder, probability / max(number, 1))


def mean_quality(qualities: Sequence[Quality]) -> Quality:
    """The mean of several selectors' qualities.

    >>> mean_quality([Quality(0.8, 0.4, 0.4, 0.2), Quality(0.6, 0.6, 0.0, 0.2)]).score
    0.2
    """
    rows = [list(asdict(quality).values()) for quality in qualities]
    return Quality(*(float(value) for value in np.mean(rows, axis=0)))
