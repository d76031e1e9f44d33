"""Sentences of a store by their words, and what a selector reads of each: computed once, since the encoder is frozen."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ..gate_head_hardkuma import Selector
from ..modeling_hardkuma import HardKumaModel
from .store import BATCH, StateStore, StoredBatch, TokenFile

CHUNK = 1024  # sentences whose tokens are read together
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


def choose_sentences(tokens: TokenFile, rows: np.ndarray, most: int, seed: int, model: HardKumaModel) -> np.ndarray:
    """Numbers of at most `most` of these sentences, a random choice of those with enough words to choose among."""
    counts = [
        tokens.read(part, model, states=False).leading.sum(-1).cpu().numpy()
        for part in np.array_split(rows, math.ceil(len(rows) / CHUNK))
    ]
    kept = rows[np.concatenate(counts) >= MIN_WORDS]
    if not len(kept):
        raise ValueError(f"no sentence has {MIN_WORDS} words or more: training by removal has nothing to choose among.")
    return kept[np.sort(np.random.default_rng(seed).permutation(len(kept))[:most])]


def read_sentences(tokens: TokenFile, rows: np.ndarray, most: int, seed: int, model: HardKumaModel) -> Sentences:
    """The tokens and words of the sentences that `choose_sentences` chooses."""
    chosen = choose_sentences(tokens, rows, most, seed, model)
    found: list[TokenWords] = []
    for numbers in np.array_split(chosen, math.ceil(len(chosen) / CHUNK)):
        batch = tokens.read(numbers, model, states=False)
        words = torch.where(batch.content, batch.leading.long().cumsum(-1) - 1, -1).cpu().numpy()
        ids = batch.inputs["input_ids"].cpu().numpy()
        for row, length in enumerate(tokens.lengths_of(numbers).tolist()):
            # Copies: a view would keep the padding of all others.
            found.append(TokenWords(ids[row, :length].copy(), words[row, :length].copy()))
    return Sentences(chosen, found, np.array([sentence.number for sentence in found]))


@dataclass(frozen=True)
class WordInputs:
    """What a selector reads of all words: x (words, size) in half precision, memory-mapped, and where each sentence's first
    word is."""

    x: Tensor
    firsts: np.ndarray

    def padded(self, numbers: np.ndarray, counts: np.ndarray) -> Tensor:
        """(sentences, most words, size) of these sentences, zeros behind the last word."""
        index = self.firsts[numbers][:, None] + np.arange(counts[numbers].max())
        inside = torch.from_numpy(np.arange(index.shape[1]) < counts[numbers][:, None])
        x = self.x[torch.from_numpy(np.minimum(index, len(self.x) - 1))].float()
        return x * inside[..., None]


def read_inputs(model: HardKumaModel, store: StateStore, sentences: Sentences, selector: int, progress: bool) -> WordInputs:
    """Run or read the encoder once. Mean and spread of measures are taken from the first sentences."""
    standardise_measures(model, selector, store, sentences.rows)

    def read(batch: StoredBatch) -> Tensor:
        return model.selector_inputs(selector, **batch.inputs)[0].half()

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
    """(words, ...) of all sentences, in their order, in a file without a name beside the store, memory-mapped.

    Args:
        read: a batch of sentences -> (words, ...) of its words, row after row.
    """
    firsts = np.concatenate([[0], np.cumsum(sentences.counts)])
    flat: Tensor | None = None
    order = np.argsort([len(tokens.ids) for tokens in sentences.tokens], kind="stable")
    bar = tqdm(total=len(order), desc="reading words", unit="sentence", disable=not progress, leave=False)
    for numbers in np.array_split(order, math.ceil(len(order) / BATCH)):
        values = read(store.read(sentences.rows[numbers], model)).cpu()
        if flat is None:
            flat = _mapped_zeros((int(firsts[-1]), *values.shape[1:]), values.numpy().dtype, store.folder)
        for number, own in zip(numbers, values.split(sentences.counts[numbers].tolist()), strict=True):
            flat[firsts[number] : firsts[number + 1]] = own
        bar.update(len(numbers))
    bar.close()
    assert flat is not None
    return flat


def _mapped_zeros(shape: tuple[int, ...], dtype: np.dtype, folder: Path) -> Tensor:
    """Zeros in a file that is gone with the tensor."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return torch.from_numpy(np.memmap(file, dtype=dtype, mode="w+", shape=shape))


@torch.inference_mode()
def standardise_measures(model: HardKumaModel, selector: int, store: StateStore, rows: np.ndarray) -> None:
    """Set mean and spread of the measures that a selector reads, if any, to those of the words of the first sentences."""
    reader = model.gate_head.selectors[selector]
    assert isinstance(reader, Selector)
    if not reader.measures:
        return
    reader.center.zero_()
    reader.spread.fill_(1.0)
    inputs = (model.selector_inputs(selector, **batch.inputs)[0] for batch in store.batches(rows[:CHUNK], model))
    # With center 0 and spread 1, a selector reads asinh of them.
    measures = torch.cat([x[:, -reader.measures :] for x in inputs]).sinh()
    reader.center.copy_(measures.mean(0))
    reader.spread.copy_(measures.std(0).clamp_min(1e-6))
