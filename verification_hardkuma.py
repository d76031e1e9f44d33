"""What words keep of a text's embedding, verified by encoding them alone: `keep=`, and how good an answer is.

    kept(S) = cos(anchor, encoder on the words S alone)        lost(S) = 1 - cos(anchor, encoder without the words S)

`keep=0.8` asks for the fewest words with kept(S) >= 0.8. Words are ranked by their gates, and the shortest prefix of that
ranking is searched in packed passes of three prefixes each: a quarter of the interval is left after every one, so that
three passes do for 64 words. Before them come one for the gates and one for the anchor, behind them one for kept and lost.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .words_hardkuma import Span, WordIndex

PREFIXES = 3  # of a pass
DRAWS = 5  # random answers that an answer is compared with


@runtime_checkable
class SubsetModel(Protocol):
    """A model that encodes tokens without the others; a `HardKumaModel` does."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...

    @property
    def max_length(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def encode_subsets(self, input_ids: Tensor, attention_mask: Tensor, kept: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Kept:
    """A verified answer for one text.

    Attributes:
        chosen: whether each word is selected.
        kept: cosine of these words' own embedding with the text's.
        lost: 1 - cosine of what is left without them.
    """

    chosen: list[bool]
    kept: float
    lost: float


class _Subsets:
    """Some texts, tokenised, and what subsets of their words keep."""

    def __init__(self, model: SubsetModel, texts: Sequence[str], words: Sequence[Sequence[Span]]):
        self.model = model
        encoded = model.tokenizer(
            list(texts),
            truncation=True,
            max_length=model.max_length,
            padding=True,
            return_tensors="pt",
            return_offsets_mapping=True,
        )
        index = WordIndex(words, [len(text) for text in texts])
        starts, ends = encoded["offset_mapping"].unbind(-1)
        first, count = index.touched(torch.arange(len(texts)), starts, ends)
        self.size = max(map(len, words), default=0)
        # (batch, length) the number of each token's word in its text; the last slot for tokens of no word.
        self._words = torch.where(count > 0, first - torch.tensor(index.firsts[:-1])[:, None], self.size)
        self._inputs = encoded["input_ids"].to(model.device), encoded["attention_mask"].to(model.device)
        self._anchor = self._encode(torch.ones(len(texts), 1, starts.shape[1], dtype=torch.bool))

    def _encode(self, tokens: Tensor) -> Tensor:
        """(batch, sets, dim) of length 1, from tokens (batch, sets, length) bool."""
        vectors = self.model.encode_subsets(*self._inputs, tokens.to(self.model.device)).float().cpu()
        return torch.nn.functional.normalize(vectors, dim=-1)

    def kept(self, chosen: Tensor) -> Tensor:
        """(batch, sets) of the words `chosen`, (batch, sets, size) bool."""
        return self._cosines(self._tokens(chosen))

    def kept_and_lost(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, sets) each, in one pass."""
        tokens = self._tokens(chosen)
        kept, left = self._cosines(torch.cat([tokens, ~tokens], dim=1)).chunk(2, dim=1)
        return kept, 1 - left

    def _tokens(self, chosen: Tensor) -> Tensor:
        """(batch, sets, length) those of the chosen words."""
        padded = torch.cat([chosen, torch.zeros_like(chosen[..., :1])], dim=-1)
        return padded.gather(-1, self._words[:, None].expand(-1, chosen.shape[1], -1))

    def _cosines(self, tokens: Tensor) -> Tensor:
        return (self._encode(tokens) * self._anchor).sum(-1).clamp(-1.0, 1.0)


def _groups(texts: Sequence[str], size: int) -> Iterator[list[int]]:
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    return (order[first : first + size] for first in range(0, len(order), size))


@torch.inference_mode()
def keep_words(
    model: SubsetModel,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]],
    ranks: Sequence[Sequence[int]],
    keep: float,
    batch_size: int = 32,
) -> list[Kept]:
    """The shortest prefix of each text's ranking that keeps a cosine of `keep`, as the search finds it; all words where
    none does.

    Args:
        words: (start, end) of the words of each text, at least one.
        ranks: the place of each word in the ranking, 0 for the best.

    >>> from hardkuma import load_released
    >>> model, _ = load_released()
    >>> found = keep_words(model, ["Marie Curie moved"], [[(0, 5), (6, 11), (12, 17)]], [[1, 0, 2]], keep=0.5)[0]
    >>> found.kept >= 0.5, found.chosen[1]
    (True, True)
    """
    results: dict[int, Kept] = {}
    for numbers in _groups(texts, batch_size):
        subsets = _Subsets(model, [texts[i] for i in numbers], [words[i] for i in numbers])
        rank = torch.full((len(numbers), subsets.size), subsets.size)
        for row, i in enumerate(numbers):
            rank[row, : len(ranks[i])] = torch.tensor(ranks[i])
        low = torch.zeros(len(numbers), dtype=torch.long)  # does not keep enough
        high = torch.tensor([len(words[i]) for i in numbers])  # keeps enough, or is all there is
        while bool((high - low > 1).any()):
            step = torch.arange(1, PREFIXES + 1) / (PREFIXES + 1)
            counts = low[:, None] + ((high - low)[:, None] * step).round().long().clamp_min(1)
            enough = subsets.kept(rank[:, None] < counts[..., None]) >= keep
            passed = torch.where(enough, counts, high[:, None]).amin(-1)
            low = torch.maximum(low, torch.where(counts < passed[:, None], counts, 0).amax(-1)).minimum(passed - 1)
            high = passed
        chosen = rank[:, None] < high[:, None, None]
        kept, lost = subsets.kept_and_lost(chosen)
        for row, i in enumerate(numbers):
            results[i] = Kept(chosen[row, 0, : len(words[i])].tolist(), float(kept[row]), float(lost[row]))
    return [results[i] for i in range(len(texts))]


@torch.inference_mode()
def measure_answers(
    model: SubsetModel,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]],
    chosen: Sequence[Sequence[bool]],
    batch_size: int = 32,
) -> list[dict[str, float]]:
    """How good answers are: what the chosen words keep and lose, beside as many random words (the mean of five draws,
    seeded by the text).

    Returns:
        `{"kept", "lost", "random_kept", "random_lost"}` of each text

    >>> from hardkuma import load_released
    >>> model, _ = load_released()
    >>> sorted(measure_answers(model, ["Rain fell"], [[(0, 4), (5, 9)]], [[True, False]])[0])
    ['kept', 'lost', 'random_kept', 'random_lost']
    """
    results: dict[int, dict[str, float]] = {}
    for numbers in _groups(texts, batch_size):
        subsets = _Subsets(model, [texts[i] for i in numbers], [words[i] for i in numbers])
        sets = torch.zeros(len(numbers), 1 + DRAWS, subsets.size, dtype=torch.bool)
        for row, i in enumerate(numbers):
            sets[row, 0, : len(chosen[i])] = torch.tensor(chosen[i])
            generator = random.Random(texts[i])
            for draw in range(DRAWS):
                drawn = generator.sample(range(len(words[i])), sum(chosen[i]))
                sets[row, 1 + draw, drawn] = True
        kept, lost = subsets.kept_and_lost(sets)
        for row, i in enumerate(numbers):
            results[i] = {
                "kept": float(kept[row, 0]),
                "lost": float(lost[row, 0]),
                "random_kept": float(kept[row, 1:].mean()),
                "random_lost": float(lost[row, 1:].mean()),
            }
    return [results[i] for i in range(len(texts))]
