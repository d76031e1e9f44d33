"""Batches of views: from numbers of sentences to what the encoder takes, everything random from the seed and the draw."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .objectives import KEPT, LABELS, MASKED
from .sentence import Sentence
from .views import Sequential

ROW, DRAW = "row", "draw"  # columns of the dataset: which sentence, and how many were drawn before
MASK_RATE = 0.15


@dataclass
class ViewCollator:
    """Rows of (pair, draw) to one column of features per view: `anchor`, `positive_1`, `positive_2`, ..., `negative_1`, ...

    Attributes:
        sentences: all of them, scored.
        augmentation: makes the other views.
        tokenizer: for padding and masking.
        encoder: says how positions are counted and how large embeddings are.
        views: how many other views.
        seed: with a draw's number it fixes its views.
        mask_words: add the anchor with masked tokens, for masked language modelling.
        both_sides: the anchor is a view too, by a draw of its own.
        pairs: numbers of the sentences of each row: anchor, positive, hard negatives. None: each sentence with itself.
    """

    sentences: Sequence[Sentence]
    augmentation: Sequential
    tokenizer: PreTrainedTokenizerBase
    encoder: PreTrainedModel
    views: int = 1
    seed: int = 0
    mask_words: bool = False
    both_sides: bool = False
    pairs: Sequence[Sequence[int]] | None = None
    valid_label_columns: list[str] = field(default_factory=list)  # the trainer asks for it

    def __call__(self, rows: Sequence[Mapping[str, int]]) -> dict[str, Any]:
        columns: dict[str, list[Sentence]] = defaultdict(list)
        for row in rows:
            random = np.random.default_rng([self.seed, row[DRAW]])
            numbers = (row[ROW], row[ROW]) if self.pairs is None else self.pairs[row[ROW]]
            anchor, positive, *negatives = (self.sentences[number] for number in numbers)
            columns["anchor"].append(self.augmentation(anchor, random) if self.both_sides else anchor)
            for view in range(1, self.views + 1):
                columns[f"positive_{view}"].append(self.augmentation(positive, random))
            for number, negative in enumerate(negatives, 1):
                columns[f"negative_{number}"].append(negative)
        batch = {f"{name}_{key}": value for name, column in columns.items() for key, value in self.pad(column).items()}
        if self.mask_words:
            masked, labels = self._mask(columns["anchor"], batch["anchor_input_ids"], [row[DRAW] for row in rows])
            batch |= {f"anchor_{MASKED}": masked, f"anchor_{LABELS}": labels}
        return batch

    def pad(self, sentences: Sequence[Sentence]) -> dict[str, Tensor]:
        """What the encoder takes, (batch, length) each, padding on the right; positions and cuts where a view has any."""
        length, pad = max(map(len, sentences)), self.tokenizer.pad_token_id or 0
        ids = np.full((len(sentences), length), pad)
        mask = np.zeros_like(ids)
        for row, sentence in enumerate(sentences):
            ids[row, : len(sentence)], mask[row, : len(sentence)] = sentence.ids, 1
        inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        if any(sentence.positions is not None for sentence in sentences):
            inputs["position_ids"] = self._positions(sentences, length)
        if any(sentence.cut_tokens is not None or sentence.cut_features is not None for sentence in sentences):
            inputs[KEPT] = self._kept(sentences, length)
        return inputs

    def _positions(self, sentences: Sequence[Sentence], length: int) -> Tensor:
        if "position_ids" not in inspect.signature(self.encoder.forward).parameters:
            raise ValueError(f"{type(self.encoder).__name__} takes no position_ids: leave token_shuffling out.")
        positions = np.tile(np.arange(length), (len(sentences), 1))
        for row, sentence in enumerate(sentences):
            if sentence.positions is not None:
                positions[row, : len(sentence)] = sentence.positions
        # RoBERTa and its kin count from behind the padding token's position.
        padding = getattr(getattr(self.encoder, "embeddings", None), "padding_idx", None)
        return torch.from_numpy(positions) + (0 if padding is None else padding + 1)

    def _kept(self, sentences: Sequence[Sentence], length: int) -> Tensor:
        kept = torch.ones(len(sentences), length, self.encoder.config.hidden_size, dtype=torch.bool)
        for row, sentence in enumerate(sentences):
            if sentence.cut_tokens is not None:
                kept[row, : len(sentence)][torch.from_numpy(sentence.cut_tokens)] = False
            if sentence.cut_features is not None:
                kept[row, :, torch.from_numpy(sentence.cut_features)] = False
        return kept

    def _mask(self, sentences: Sequence[Sentence], ids: Tensor, draws: Sequence[int]) -> tuple[Tensor, Tensor]:
        """15% of the tokens of words: of these 80% become the mask, 10% any token, and 10% stay (Devlin et al., 2019)."""
        if self.tokenizer.mask_token_id is None:
            raise ValueError("the tokenizer has no mask token: leave mlm_weight at 0.")
        masked, labels = ids.clone(), torch.full_like(ids, -100)
        for row, (sentence, draw) in enumerate(zip(sentences, draws, strict=True)):
            random = np.random.default_rng([self.seed, draw, 1])
            for place in np.flatnonzero(sentence.content & (random.uniform(size=len(sentence)) < MASK_RATE)):
                labels[row, place] = ids[row, place]
                chance = random.uniform()
                if chance < 0.8:
                    masked[row, place] = self.tokenizer.mask_token_id
                elif chance < 0.9:
                    masked[row, place] = int(random.integers(len(self.tokenizer)))
        return masked, labels
