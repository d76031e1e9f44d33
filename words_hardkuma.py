"""From token gates to words of the original text: character offsets, long texts in windows, selection by rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .surface_hardkuma import find_words, surface_batch


@dataclass(frozen=True)
class WordGate:
    """One word: `text[start:end]`, its selection probability (the largest of its tokens'), and the decision."""

    start: int
    end: int
    probability: float
    selected: bool


def gate_words(
    model: Any,
    texts: Sequence[str],
    *,
    batch_size: int = 32,
    rate: float | None = None,
    threshold: float | None = None,
    use_surface: bool = True,
    selector: int = 0,
) -> list[list[WordGate]]:
    """Gates of the words of each text, in order of the texts; nothing is cut, and batch-mates do not matter.

    Args:
        model: a HardKumaModel in eval mode, with its tokenizer.
        texts: any number of texts of any length; long ones run in overlapping windows.
        batch_size: windows per forward pass.
        rate: select this fraction of each text's words, the most probable ones; in (0, 1].
        threshold: select words whose probability exceeds this; by default the model's own.
        use_surface: apply the word-shape log-odds that the model holds.
        selector: which selector, where there are several.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> text = "Marie Curie moved to Paris."
    >>> [text[word.start : word.end] for word in gate_words(model, [text])[0]]
    ['Marie', 'Curie', 'moved', 'to', 'Paris']
    """
    if isinstance(texts, str):
        raise ValueError("texts must be a list of texts, got one string; wrap it: [text].")
    if rate is not None and not 0 < rate <= 1:
        raise ValueError(f"rate must be a fraction in (0, 1], got {rate}.")
    if model.training:
        raise ValueError("the model is in training mode, whose gates are random; call model.eval() first.")
    if not 0 <= selector < model.config.num_selectors:
        raise ValueError(f"selector must be in [0, {model.config.num_selectors - 1}], got {selector}.")
    threshold = model.config.decision_threshold if threshold is None else threshold
    probabilities = character_probabilities(model, texts, batch_size, use_surface, selector)
    return [_decide(text, characters, rate, threshold) for text, characters in zip(texts, probabilities, strict=True)]


def _decide(text: str, characters: Tensor, rate: float | None, threshold: float) -> list[WordGate]:
    spans = find_words(text)
    values = [float(characters[start:end].max()) for start, end in spans]
    if rate is not None and values:
        count = max(1, math.floor(rate * len(values) + 0.5))
        chosen = set(sorted(range(len(values)), key=lambda i: (-values[i], i))[:count])
    else:
        chosen = {i for i, value in enumerate(values) if value > threshold}
    return [WordGate(s, e, value, i in chosen) for i, ((s, e), value) in enumerate(zip(spans, values, strict=True))]


@torch.inference_mode()
def character_probabilities(
    model: Any, texts: Sequence[str], batch_size: int = 32, use_surface: bool = True, selector: int = 0
) -> list[Tensor]:
    """Selection probability of every character's token, (len(text),) for each text; 0 where no token covers it.

    Where windows overlap, a character takes the value of the window in which it stands furthest from an edge.
    """
    if not texts:
        return []
    tokenizer = model.tokenizer
    length = model.config.max_seq_length or min(tokenizer.model_max_length, 512)
    encoded = tokenizer(
        list(texts),
        truncation=True,
        max_length=length,
        stride=length // 4,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    owners = encoded.pop("overflow_to_sample_mapping", None) or list(range(len(texts)))
    offsets = encoded.pop("offset_mapping")
    results = [torch.zeros(max(len(text), 1)) for text in texts]
    margins = [torch.full((max(len(text), 1),), -1.0) for text in texts]
    order = sorted(range(len(owners)), key=lambda i: len(encoded["input_ids"][i]))
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        batch = tokenizer.pad({name: [values[i] for i in rows] for name, values in encoded.items()}, return_tensors="pt")
        if batch["input_ids"].shape[1] == 0:  # an encoder without special tokens, and nothing but empty texts
            continue
        if use_surface and bool(model.gate_head.surface_log_odds.any()):
            width = batch["input_ids"].shape[1]
            padded = [list(offsets[i]) + [(0, 0)] * (width - len(offsets[i])) for i in rows]
            batch["surface_ids"] = surface_batch([texts[owners[i]] for i in rows], padded)
        batch = {name: value.to(model.device) for name, value in batch.items()}
        probs = model(**batch, return_embeddings=False).gate_probs
        probs = (probs[:, selector] if probs.ndim == 3 else probs).cpu()
        for row, i in enumerate(rows):
            _merge(results[owners[i]], margins[owners[i]], offsets[i], probs[row])
    return results


def _merge(result: Tensor, margins: Tensor, offsets: Sequence[tuple[int, int]], probs: Tensor) -> None:
    for place, (start, end) in enumerate(offsets):
        if end > start:
            margin = float(min(place, len(offsets) - 1 - place))
            better = margins[start:end] < margin
            result[start:end] = torch.where(better, probs[place], result[start:end])
            margins[start:end] = torch.where(better, margin, margins[start:end])
