"""Texts, read once by the encoder: embeddings, states of words, and what cosine unrelated texts have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..batch_hardkuma import EncodedTokens
from ..common.text import keep_words, remove_words
from ..scoring_hardkuma import GateModel, encodable
from ..words_hardkuma import Span, WordIndex, find_words

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
# Of the spread of their cosines, above their mean. The tail is long: three are passed by pairs of these very sentences.
CHANCE_SPREADS = 3.5


class AnchorModel(GateModel, Protocol):
    """A model that gives the encoder's own embeddings beside gates; a `HardKumaModel` does."""

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor) -> EncodedTokens:
        """{"states": (batch, length, hidden), "anchor": (batch, dim)}."""
        ...

    def sentence_features(self, *inputs: Any, **options: Any) -> dict[str, Any]:
        """{"embedding": (batch, dim)}."""
        ...

    def encoder_fingerprint(self) -> str:
        """A digest of the encoder's weights as they are now."""
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
        inputs = _pad(model, [encoded[i] for i in rows])
        found = model.sentence_features(*inputs, embedding=embedding, rate=rate, selector=selector)
        vectors.update(zip(rows, found["embedding"].float().cpu(), strict=True))
    return torch.stack([vectors[i] for i in range(len(texts))])


def _pad(model: AnchorModel, rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, (batch, length), of rows that may be empty."""
    batch = model.tokenizer.pad({"input_ids": [row or [0] for row in rows]}, return_tensors="pt")
    mask = batch["attention_mask"] * torch.tensor([[bool(row)] for row in rows])
    return batch["input_ids"].to(model.device), mask.to(model.device)


def embed_anchors(model: AnchorModel, texts: Sequence[str], batch_size: int = 32) -> Tensor:
    """Unit vectors of the encoder's own sentence embeddings, (texts, dim), on the CPU; zeros where there is no token.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> embed_anchors(model, ["Marie Curie moved to Paris.", "It rains."]).shape
    torch.Size([2, 384])
    """
    return torch.nn.functional.normalize(embed_texts(model, texts, batch_size=batch_size), dim=-1)


def chance_similarity(model: AnchorModel, texts: Sequence[str] = UNRELATED) -> float:
    """The cosine that two texts reach although they have nothing in common: mean + 3.5 standard deviations over all pairs.

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


class SeenText:
    """A text, as far as the encoder sees it."""

    def __init__(self, model: AnchorModel, text: str, words: Sequence[Span]):
        readable = encodable(text)
        encoded = model.tokenizer(readable, truncation=True, max_length=model.max_length, return_offsets_mapping=True)
        whole = model.tokenizer(readable, truncation=False, return_attention_mask=False, verbose=False)
        self.truncated = len(whole["input_ids"]) > len(encoded["input_ids"])
        self.whole, self.all_words = text, list(words)
        self.text, self.language = text, model.config.language
        if self.truncated:
            self.text = text[: max(end for _, end in encoded["offset_mapping"])]
        self.words = [span for span in words if span[1] <= len(self.text)]
        self.input_ids: list[int] = encoded["input_ids"]
        self.offsets: list[Span] = [tuple(span) for span in encoded["offset_mapping"]]

    def without(self, chosen: Iterable[int]) -> str:
        return remove_words(self.text, [self.words[i] for i in sorted(chosen)])

    def only(self, chosen: Iterable[int]) -> str:
        return keep_words(self.text, [self.words[i] for i in sorted(chosen)])

    def word(self, number: int) -> str:
        return self.text[slice(*self.words[number])]

    def named(self) -> list[str]:
        """The words, as they are written."""
        return [self.word(i) for i in range(len(self.words))]

    def members(self) -> Tensor:
        """(words, tokens): 1 where a token touches a word."""
        index = WordIndex([self.words], [len(self.text)])
        starts, ends = torch.tensor([self.offsets]).unbind(-1)
        first, count = index.touched(torch.tensor([0]), starts, ends)
        numbers = torch.arange(len(self.words))[:, None]
        return ((numbers >= first) & (numbers < first + count)).float()


@dataclass(frozen=True)
class ReadText:
    """What one pass over a text gives."""

    seen: SeenText
    anchor: Tensor  # (dim,), of length 1
    states: Tensor  # (tokens, hidden)

    @property
    def pooled(self) -> Tensor:
        """The mean of the states."""
        return self.states.mean(0) if len(self.states) else self.states.new_zeros(self.states.shape[-1])

    def word_states(self) -> Tensor:
        """(words, hidden): the mean state of each word's tokens; zeros for a word that no token touches."""
        members = self.seen.members()
        return (members @ self.states) / members.sum(-1, keepdim=True).clamp_min(1)


@torch.inference_mode()
def read_texts(
    model: AnchorModel, texts: Sequence[str], words: Sequence[Sequence[Span]] | None = None, batch_size: int = 32
) -> list[ReadText]:
    """One pass over the texts, as far as the encoder sees them; texts of like length run together.

    Args:
        words: (start, end) of the words of each text; by default those that `find_words` sees.

    >>> from hardkuma import load_released
    >>> read_texts(load_released()[0], ["Marie Curie moved to Paris."])[0].word_states().shape
    torch.Size([5, 384])
    """
    if model.training:
        raise ValueError("the model is in training mode, whose states are random; call model.eval() first.")
    spans = [find_words(text, model.config.language) for text in texts] if words is None else words
    seen = [SeenText(model, text, chosen) for text, chosen in zip(texts, spans, strict=True)]
    order = sorted(range(len(seen)), key=lambda i: len(seen[i].input_ids))
    read: dict[int, ReadText] = {}
    for first in range(0, len(order), batch_size):
        numbers = order[first : first + batch_size]
        ids, mask = _pad(model, [seen[i].input_ids for i in numbers])
        encoded = model.encode_tokens(ids, mask)
        anchors = torch.nn.functional.normalize(encoded["anchor"].float().cpu(), dim=-1)
        rows = zip(numbers, anchors, encoded["states"].float().cpu(), mask.bool().cpu(), strict=True)
        read |= {i: ReadText(seen[i], anchor, row[among]) for i, anchor, row, among in rows}
    return [read[i] for i in range(len(seen))]


def chance_of(model: AnchorModel) -> float:
    """`chance_similarity`, computed once for an encoder's weights and pooling."""
    key = model.encoder_fingerprint(), str(model.config.pooling_mode)
    if key not in _CHANCES:
        _CHANCES[key] = chance_similarity(model)
    return _CHANCES[key]


_CHANCES: dict[tuple[str, str], float] = {}
