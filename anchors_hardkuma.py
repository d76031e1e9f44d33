"""The encoder's own sentence embeddings (anchors) of texts, and how similar texts are that have nothing in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from .scoring_hardkuma import GateModel, encodable

# Sentences of our own about things that have nothing to do with each other, short and long, as people write them.
UNRELATED = (
    "The ferry to the island was cancelled because of fog.",
    "Add two eggs and stir until the dough is smooth.",
    "Interest rates rose again in the third quarter.",
    "My sister plays the violin in a small orchestra.",
    "The patient should not take this medicine with alcohol.",
    "A goalkeeper saved two penalties in the last minutes.",
    "They found a Roman coin under the kitchen floor.",
    "Restart the server after you have changed the password.",
    "Whales can hold their breath for more than an hour.",
    "The court dismissed the appeal without a hearing.",
    "He painted the old bicycle green and sold it.",
    "Volcanic ash covered the villages in the valley.",
    "Please bring your own cup to the meeting.",
    "The novel tells of three brothers who inherit a farm.",
    "Electric buses will replace diesel ones by next spring.",
    "A child is feeding ducks at the pond.",
    "The senator refused to answer questions about the budget.",
    "Light from that galaxy left before the sun was born.",
    "I lost my suitcase at the airport and nobody helped.",
    "Bees visit apple trees earlier when winters are mild.",
    "The theatre closes for repairs until September.",
    "She teaches mathematics to adults in the evening.",
    "Heavy rain damaged the railway bridge near the border.",
    "Our team shipped the update two days late.",
)
# Of the spread of their cosines, above their mean.
CHANCE_SPREADS = 3.0


class AnchorModel(GateModel, Protocol):
    """A model that gives the encoder's own embeddings beside gates; a `HardKumaModel` does."""

    def __call__(self, *inputs: Any, **options: Any) -> Any: ...

    def sentence_features(self, *inputs: Any, **options: Any) -> dict[str, Any]:
        """{"embedding": (batch, dim)}."""
        ...


@torch.inference_mode()
def embed_texts(
    model: AnchorModel,
    texts: Sequence[str],
    embedding: str = "anchor",
    *,
    rate: float | None = None,
    selector: str | None = None,
    batch_size: int = 32,
) -> Tensor:
    """Embeddings (texts, dim), on the CPU, as `sentence_features` gives them; texts of like length run together.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> embed_texts(model, ["Marie Curie moved to Paris.", "It rains."], "rationale", rate=0.5).shape
    torch.Size([2, 384])
    """
    readable = [encodable(text) for text in texts]
    encoded = model.tokenizer(readable, truncation=True, max_length=model.max_length)["input_ids"]
    order = sorted(range(len(texts)), key=lambda i: len(encoded[i]))
    vectors: dict[int, Tensor] = {}
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        batch = model.tokenizer.pad({"input_ids": [encoded[i] or [0] for i in rows]}, return_tensors="pt").to(model.device)
        mask = batch["attention_mask"] * torch.tensor([[bool(encoded[i])] for i in rows], device=model.device)
        found = model.sentence_features(batch["input_ids"], mask, embedding=embedding, rate=rate, selector=selector)
        vectors.update(zip(rows, found["embedding"].float().cpu(), strict=True))
    return torch.stack([vectors[i] for i in range(len(texts))])


def embed_anchors(model: AnchorModel, texts: Sequence[str], batch_size: int = 32) -> Tensor:
    """Unit vectors of the encoder's own sentence embeddings, (texts, dim), on the CPU; zeros where there is no token.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> embed_anchors(model, ["Marie Curie moved to Paris.", "It rains."]).shape
    torch.Size([2, 384])
    """
    return torch.nn.functional.normalize(embed_texts(model, texts, batch_size=batch_size), dim=-1)


def chance_similarity(model: AnchorModel, texts: Sequence[str] = UNRELATED) -> float:
    """The cosine that two texts reach although they have nothing in common: mean + 3 standard deviations over all pairs.

    Encoders differ much in this: for some every two texts are at .1, for others at .7.

    Args:
        model: in eval mode, with its tokenizer.
        texts: at least three, unrelated to each other and of the kind to be compared. By default sentences of our own.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> 0.1 < chance_similarity(model) < 0.4
    True
    """
    if len(texts) < 3:
        raise ValueError(f"chance is estimated from pairs of at least three texts, got {len(texts)}.")
    vectors = embed_anchors(model, texts)
    cosines = (vectors @ vectors.T)[*torch.triu_indices(len(texts), len(texts), offset=1)]
    return float(cosines.mean() + CHANCE_SPREADS * cosines.std())
