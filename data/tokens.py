"""From texts to tokenised batches of like length, as the model takes them; nothing is cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..words_hardkuma import ENGLISH, Language, continues_batch, surface_batch

CHUNK = 2048  # texts tokenised and sorted by length at a time


def token_batches(
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    max_length: int,
    batch_size: int = 32,
    shapes: bool = False,
    words: bool = False,
    language: Language = ENGLISH,
) -> Iterator[dict[str, Tensor]]:
    """Right-padded batches, (batch, length) each; a text longer than `max_length` tokens comes as several rows.

    Args:
        texts: read once, a chunk at a time, so that memory stays flat.
        shapes: add `surface_ids`.
        words: add `continues`.
        language: `model.config.language`, where any of these is added.

    >>> from hardkuma import load_released
    >>> [batch] = token_batches(load_released()[1], ["Rain.", "Marie Curie moved to Paris."], 256, shapes=True)
    >>> {name: tuple(tensor.shape) for name, tensor in batch.items() if name != "token_type_ids"}
    {'input_ids': (2, 9), 'attention_mask': (2, 9), 'surface_ids': (2, 9)}
    """
    remaining = iter(texts)
    while chunk := list(islice(remaining, CHUNK)):
        yield from _batches_of(tokenizer, chunk, max_length, batch_size, shapes, words, language)


def _batches_of(
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    max_length: int,
    batch_size: int,
    shapes: bool,
    words: bool,
    language: Language,
) -> Iterator[dict[str, Tensor]]:
    encoded = tokenizer(
        texts,
        truncation=True,
        max_length=max_length,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    owners: list[int] = encoded.pop("overflow_to_sample_mapping", None) or list(range(len(texts)))
    offsets = encoded.pop("offset_mapping")
    order = sorted((i for i in range(len(owners)) if encoded["input_ids"][i]), key=lambda i: len(encoded["input_ids"][i]))
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        batch: dict[str, Tensor] = dict(
            tokenizer.pad(
                {name: [values[i] for i in rows] for name, values in encoded.items()},
                padding_side="right",
                return_tensors="pt",
            )
        )
        width = batch["input_ids"].shape[1]
        padded = [list(offsets[i]) + [(0, 0)] * (width - len(offsets[i])) for i in rows]
        if shapes:
            batch["surface_ids"] = surface_batch([texts[owners[i]] for i in rows], padded, language)
        if words:
            batch["continues"] = continues_batch([texts[owners[i]] for i in rows], padded, language)
        yield batch
