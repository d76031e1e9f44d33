"""Sentences of a store by their words, and what a selector reads of each: computed once, since the encoder is frozen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ..modeling_hardkuma import HardKumaModel
from ..selectors_hardkuma import Selector
from .store import BATCH, StateStore, StoredBatch

MIN_WORDS = 4  # a sentence of fewer has no choice to make


@dataclass(frozen=True)
class TokenWords:
    """The tokens of a sentence, and which word each belongs to.

    Attributes:
        ids: (length,) token ids.
        words: (length,) number of each token's word, -1 for special tokens, which are never removed.
    """

    ids: np.ndarray
    words: np.ndarray

    @property
    def number(self) -> int:
        """How many words there are."""
        return int(self.words.max(initial=-1)) + 1


@dataclass(frozen=True)
class Sentences:
    """Sentences of a store by their words.

    Attributes:
        rows: (sentences,) their numbers in the store.
        tokens: of each.
        counts: (sentences,) how many words each has.
    """

    rows: np.ndarray
    tokens: list[TokenWords]
    counts: np.ndarray


def read_sentences(store: StateStore, rows: np.ndarray, most: int, seed: int, model: HardKumaModel) -> Sentences:
    """At most `most` of these sentences, a random choice of those with enough words to choose among."""
    kept, tokens = [], []
    for numbers in np.array_split(rows, math.ceil(len(rows) / 1024)):
        batch = store.read(numbers, model, states=False)
        words = torch.where(batch.content, batch.leading.long().cumsum(-1) - 1, -1).cpu().numpy()
        ids = batch.inputs["input_ids"].cpu().numpy()
        for row, number in enumerate(numbers.tolist()):
            length = int(store.lengths[number])
            sentence = TokenWords(ids[row, :length], words[row, :length])
            if sentence.number >= MIN_WORDS:
                kept.append(number)
                tokens.append(sentence)
    if not kept:
        raise ValueError(f"no sentence has {MIN_WORDS} words or more: training by removal has nothing to choose among.")
    order = np.sort(np.random.default_rng(seed).permutation(len(kept))[:most])
    chosen = [tokens[i] for i in order]
    return Sentences(np.array(kept)[order], chosen, np.array([sentence.number for sentence in chosen]))


@dataclass(frozen=True)
class WordInputs:
    """What a selector reads of all words: x (words, size) in half precision, and where each sentence's first word is."""

    x: Tensor
    firsts: np.ndarray

    def padded(self, numbers: np.ndarray, counts: np.ndarray) -> Tensor:
        """(sentences, most words, size) of these sentences, zeros behind the last word."""
        index = self.firsts[numbers][:, None] + np.arange(counts[numbers].max())
        inside = torch.from_numpy(np.arange(index.shape[1]) < counts[numbers][:, None])
        x = self.x[torch.from_numpy(np.minimum(index, len(self.x) - 1))].float()
        return x * inside[..., None]


def read_inputs(model: HardKumaModel, store: StateStore, sentences: Sentences, selector: int, progress: bool) -> WordInputs:
    """Run or read the encoder once. The spread of what is measured is taken from the first sentences."""
    reader = model.gate_head.selectors[selector]
    assert isinstance(reader, Selector)
    if reader.num_measures:
        _standardise(model, selector, reader, store, sentences.rows[:1024])

    def read(batch: StoredBatch) -> Tensor:
        return model.selector_inputs(selector, **batch.inputs).half()

    firsts = np.concatenate([[0], np.cumsum(sentences.counts)])
    return WordInputs(read_words(model, store, sentences, read, progress), firsts[:-1])


@torch.inference_mode()
def read_words(
    model: HardKumaModel,
    store: StateStore,
    sentences: Sentences,
    read: Callable[[StoredBatch], Tensor],
    progress: bool,
) -> Tensor:
    """(words, ...) of all sentences, in their order: what `read` says of the first token of each word.

    Args:
        read: a batch of sentences -> (batch, length, ...).
    """
    firsts = np.concatenate([[0], np.cumsum(sentences.counts)])
    flat: Tensor | None = None
    order = np.argsort([len(tokens.ids) for tokens in sentences.tokens], kind="stable")
    bar = tqdm(total=len(order), desc="reading words", unit="sentence", disable=not progress, leave=False)
    for numbers in np.array_split(order, math.ceil(len(order) / BATCH)):
        values = read(store.read(sentences.rows[numbers], model)).cpu()
        if flat is None:
            flat = values.new_zeros(int(firsts[-1]), *values.shape[2:])
        for row, number in enumerate(numbers):
            words = sentences.tokens[number].words
            leading = np.flatnonzero((words >= 0) & (np.diff(words, prepend=-1) != 0))
            flat[firsts[number] : firsts[number + 1]] = values[row, leading]
        bar.update(len(numbers))
    bar.close()
    assert flat is not None
    return flat


@torch.inference_mode()
def _standardise(model: HardKumaModel, selector: int, reader: Selector, store: StateStore, rows: np.ndarray) -> None:
    """Set mean and spread of the measures to those of the words of these sentences."""
    reader.center.zero_()
    reader.spread.fill_(1.0)
    parts = []
    for batch in store.batches(rows, model):
        x = model.selector_inputs(selector, **batch.inputs)
        parts.append(x[batch.leading][:, -reader.num_measures :])
    measures = torch.cat(parts).sinh()  # with center 0 and spread 1, a selector reads asinh of them
    reader.center.copy_(measures.mean(0))
    reader.spread.copy_(measures.std(0).clamp_min(1e-6))
