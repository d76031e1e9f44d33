"""From token gates to words of the original text: character offsets, long texts in windows, selection by rate.

`score_texts` runs the encoder once; `ScoredText.select` decides, at any rate or threshold, without running it again.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor

from .surface_hardkuma import Span, SurfaceIndex, WordIndex, check_words, find_words

# Texts that are tokenised and sorted together, in batches: enough to sort well, few enough to keep memory flat.
BATCHES_PER_CHUNK = 64

# What may stand between two selected words of one span. A line break or any other punctuation ends a span.
_BETWEEN = re.compile(r"[^\S\n\r\f\v\x85\u2028\u2029]*(?:&[^\S\n\r\f\v\x85\u2028\u2029]*)?|–")
_AFTER_INITIAL = re.compile(r"\.[^\S\n\r\f\v\x85\u2028\u2029]*")

_SURROGATE = re.compile("[\ud800-\udfff]")

Record = dict[str, Any]


@dataclass(frozen=True)
class ScoredText:
    """A text whose words have their probabilities; nothing is decided yet.

    Attributes:
        text: as it was given.
        words: (start, end) of each word, in order.
        probabilities: one for each word, in [0, 1]: the largest of its tokens'.
        windows: how many times the encoder ran over parts of the text; 1 for a text that fits into it, also if empty.
        threshold: the model's own, which decides where neither rate nor threshold is given.
    """

    text: str
    words: list[Span]
    probabilities: list[float]
    windows: int
    threshold: float

    def decide(self, rate: float | None = None, threshold: float | None = None) -> list[bool]:
        """Which words are selected: the `rate` most probable ones (earlier before later), or those above `threshold`.

        >>> scored = ScoredText("Marie moved", [(0, 5), (6, 11)], [0.9, 0.2], windows=1, threshold=0.5)
        >>> scored.decide(), scored.decide(threshold=0.1), scored.decide(rate=1.0)
        ([True, False], [True, True], [True, True])
        """
        check_selection(rate, threshold)
        values = self.probabilities
        if rate is None:
            bar = self.threshold if threshold is None else threshold
            return [value > bar for value in values]
        chosen = [False] * len(values)
        # At least one word of any text that has words.
        count = min(len(values), max(1, math.floor(rate * len(values) + 0.5)))
        for i in sorted(range(len(values)), key=values.__getitem__, reverse=True)[:count]:
            chosen[i] = True
        return chosen

    def select(self, rate: float | None = None, threshold: float | None = None) -> Record:
        """The record of this text, of plain JSON values; the encoder does not run again.

        Args:
            rate: select this fraction of the words, the most probable ones, but at least one; in (0, 1].
            threshold: select words whose probability exceeds this; in [0, 1]. By default the model's own.

        Returns:
            `{"text", "words": [{"word", "start", "end", "probability", "selected"}],
            "spans": [{"text", "start", "end", "probability"}], "rate", "windows"}`. A span joins selected words that have
            nothing but spaces, an & or an en dash between them (or the full stop of an initial: J. Smith); its probability
            is the largest of its words'. "rate" is the fraction of words that are selected, 0.0 where there are none.

        >>> scored = ScoredText("Marie Curie moved", [(0, 5), (6, 11), (12, 17)], [0.9, 0.8, 0.2], 1, 0.5)
        >>> record = scored.select()
        >>> record["spans"], round(record["rate"], 2)
        ([{'text': 'Marie Curie', 'start': 0, 'end': 11, 'probability': 0.9}], 0.67)
        """
        text, chosen = self.text, self.decide(rate, threshold)
        words = [
            {"word": text[start:end], "start": start, "end": end, "probability": value, "selected": selected}
            for (start, end), value, selected in zip(self.words, self.probabilities, chosen, strict=True)
        ]
        return {
            "text": text,
            "words": words,
            "spans": self._spans(chosen),
            "rate": sum(chosen) / len(chosen) if chosen else 0.0,
            "windows": self.windows,
        }

    def _spans(self, chosen: Sequence[bool]) -> list[dict[str, Any]]:
        spans: list[dict[str, Any]] = []
        before = -2  # number of the last selected word
        for i, selected in enumerate(chosen):
            if not selected:
                continue
            (start, end), value = self.words[i], self.probabilities[i]
            if before == i - 1 and self._adjacent(*self.words[before], start):
                span = spans[-1]
                span["end"], span["probability"] = end, max(span["probability"], value)
            else:
                spans.append({"text": "", "start": start, "end": end, "probability": value})
            before = i
        for span in spans:
            span["text"] = self.text[span["start"] : span["end"]]
        return spans

    def _adjacent(self, start: int, end: int, following: int) -> bool:
        if _BETWEEN.fullmatch(self.text, end, following):
            return True
        initial = end - start == 1 and self.text[start].isupper()
        return initial and _AFTER_INITIAL.fullmatch(self.text, end, following) is not None


def check_selection(rate: float | None, threshold: float | None) -> None:
    """Rate and threshold are fractions, and at most one of them is given.

    >>> check_selection(20, None)
    Traceback (most recent call last):
    ValueError: rate must be a fraction in (0, 1], got 20.
    """
    if rate is not None and threshold is not None:
        raise ValueError(f"give rate or threshold, not both; got rate={rate} and threshold={threshold}.")
    if rate is not None and not (_is_number(rate) and 0 < rate <= 1):
        raise ValueError(f"rate must be a fraction in (0, 1], got {rate!r}.")
    if threshold is not None and not (_is_number(threshold) and 0 <= threshold <= 1):
        raise ValueError(f"threshold must be a probability in [0, 1], got {threshold!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_count(name: str, value: Any) -> None:
    """A number of things is a whole number, at least 1.

    >>> check_count("batch_size", 0)
    Traceback (most recent call last):
    ValueError: batch_size must be a whole number >= 1, got 0.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name} must be a whole number >= 1, got {value!r}.")


def gate_records(
    model: Any,
    texts: Sequence[str],
    *,
    rate: float | None = None,
    threshold: float | None = None,
    batch_size: int = 32,
    use_surface: bool = True,
    selector: int = 0,
) -> list[Record]:
    """`score_texts` and `ScoredText.select` in one: a record for each text, in order.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> record = gate_records(model, ["Marie Curie moved to Paris."], rate=0.4)[0]
    >>> [word["word"] for word in record["words"]], record["rate"]
    (['Marie', 'Curie', 'moved', 'to', 'Paris'], 0.4)
    """
    check_selection(rate, threshold)
    scored = score_texts(model, texts, batch_size=batch_size, use_surface=use_surface, selector=selector)
    return [text.select(rate, threshold) for text in scored]


@torch.inference_mode()
def score_texts(
    model: Any,
    texts: Sequence[str],
    *,
    words: Sequence[Sequence[Span]] | None = None,
    batch_size: int = 32,
    use_surface: bool = True,
    selector: int = 0,
) -> list[ScoredText]:
    """Selection probabilities of the words of each text, in order; nothing is cut, and batch-mates do not matter.

    A text longer than the encoder takes runs in windows that overlap by a quarter. A word takes its value from the window
    in which it stands furthest from an edge; if that is a tie (a word longer than the overlap), the largest.

    Args:
        model: a HardKumaModel in eval mode, with its (fast) tokenizer.
        texts: any number of texts of any length.
        words: (start, end) of the words of each text, sorted; by default those that `find_words` sees. A word that no
            token touches has probability 0.
        batch_size: windows per forward pass.
        use_surface: apply the word-shape log-odds that the model holds.
        selector: which selector, where there are several.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> scored = score_texts(model, ["Marie Curie moved to Paris.", ""])
    >>> scored[0].words, scored[1].words
    ([(0, 5), (6, 11), (12, 17), (18, 20), (21, 26)], [])
    """
    _check_call(model, texts, words, batch_size, selector)
    results: list[ScoredText | None] = [None] * len(texts)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    step = batch_size * BATCHES_PER_CHUNK
    for first in range(0, len(order), step):
        chunk = order[first : first + step]
        scorer = _Chunk(
            model, [texts[i] for i in chunk], None if words is None else [list(words[i]) for i in chunk], use_surface
        )
        for i, scored in zip(chunk, scorer.run(batch_size, selector), strict=True):
            results[i] = scored
    return results


def _check_call(model: Any, texts: Sequence[str], words: Any, batch_size: int, selector: int) -> None:
    if isinstance(texts, str):
        raise ValueError("texts must be a list of texts, got one string; wrap it: [text].")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts must be strings, but number {i} is a {type(text).__name__}: {text!r:.80}.")
    if words is not None:
        if len(words) != len(texts):
            raise ValueError(f"words must have one list for each of the {len(texts)} texts, got {len(words)}.")
        for text, row in zip(texts, words, strict=True):
            check_words(text, row)
    check_count("batch_size", batch_size)
    if model.training:
        raise ValueError("the model is in training mode, whose gates are random; call model.eval() first.")
    check_selector(model, selector)
    if not model.tokenizer.is_fast:
        raise ValueError(f"{type(model.tokenizer).__name__} gives no character offsets; use a fast tokenizer.")


def check_selector(model: Any, selector: Any) -> None:
    """`selector` is the number of one of the model's selectors."""
    if isinstance(selector, bool) or not isinstance(selector, int) or not 0 <= selector < model.config.num_selectors:
        raise ValueError(f"selector must be in [0, {model.config.num_selectors - 1}], got {selector!r}.")


def encodable(text: str) -> str:
    """The text as a tokenizer can take it: half of a surrogate pair, which is no character, becomes the replacement
    character. The length stays the same.

    >>> encodable("a \\ud800 b")
    'a � b'
    """
    return _SURROGATE.sub("\ufffd", text)


def _flat(rows: Iterable[Iterable[int]]) -> Tensor:
    return torch.tensor(list(chain.from_iterable(rows)), dtype=torch.long)


class _Chunk:
    """Texts that are tokenised together, with the best value so far of each of their words."""

    def __init__(self, model: Any, texts: list[str], words: list[list[Span]] | None, use_surface: bool):
        self.model, self.texts = model, texts
        found = [find_words(text) for text in texts] if words is None or use_surface else []
        self.words = found if words is None else words
        holds_shapes = bool(model.gate_head.surface_log_odds.any()) or "shape" in model.config.selector_inputs
        self.surface = SurfaceIndex(texts, found) if use_surface and holds_shapes else None
        self.index = WordIndex(self.words, [len(text) for text in texts])
        self.values = torch.zeros(self.index.size)
        self.margins = torch.full((self.index.size,), -1)

    def run(self, batch_size: int, selector: int) -> list[ScoredText]:
        tokenizer = self.model.tokenizer
        length = self.model.max_length
        encoded = tokenizer(
            [encodable(text) for text in self.texts],
            truncation=True,
            max_length=length,
            stride=length // 4,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
        )
        owners = torch.tensor(encoded.pop("overflow_to_sample_mapping", None) or list(range(len(self.texts))))
        lengths = torch.tensor([len(row) for row in encoded["input_ids"]])
        before = lengths.cumsum(0) - lengths
        offsets = _flat(map(chain.from_iterable, encoded["offset_mapping"])).view(-1, 2)
        padding = {"input_ids": tokenizer.pad_token_id or 0, "token_type_ids": tokenizer.pad_token_type_id}
        tokens = {name: _flat(encoded[name]) for name in padding if name in encoded}
        for rows in lengths.argsort(stable=True).split(batch_size):
            place = torch.arange(int(lengths[rows[-1]]))
            if len(place) == 0:  # an encoder without special tokens, and nothing but empty texts
                continue
            inside = place < lengths[rows][:, None]
            taken = torch.where(inside, before[rows][:, None] + place, 0)
            inputs = {name: torch.where(inside, flat[taken], padding[name]) for name, flat in tokens.items()}
            inputs["attention_mask"] = inside.long()
            starts, ends = (offsets[taken] * inside[..., None]).unbind(-1)
            # The distance of a token from the nearer edge of its window.
            margins = torch.minimum(place, lengths[rows][:, None] - 1 - place)
            probs = self._forward(inputs, owners[rows], starts, ends, selector)
            self._merge(*self.index.touched(owners[rows], starts, ends), probs, margins)
        return self._results(torch.bincount(owners, minlength=len(self.texts)).tolist())

    def _forward(self, inputs: dict[str, Tensor], owners: Tensor, starts: Tensor, ends: Tensor, selector: int) -> Tensor:
        if self.surface is not None:
            inputs["surface_ids"] = self.surface.ids(owners, starts, ends)
        inputs = {name: value.to(self.model.device) for name, value in inputs.items()}
        probs = self.model.gate_probabilities(**inputs)
        return (probs[:, selector] if probs.ndim == 3 else probs).float().cpu()

    def _merge(self, first: Tensor, count: Tensor, probs: Tensor, margins: Tensor) -> None:
        """Take over words that stand further from an edge here than in the windows before; all (batch, length)."""
        # One entry for each token and word that touch.
        width, count = probs.shape[1], count.flatten()
        tokens = torch.arange(len(count)).repeat_interleave(count)
        nth = torch.arange(len(tokens)) - (count.cumsum(0) - count)[tokens]
        words = first.flatten()[tokens] + nth
        # One entry for each window and word: its largest probability, and its distance from the nearer edge.
        pairs, entry = torch.unique(tokens // width * self.index.size + words, return_inverse=True)
        value = torch.zeros(len(pairs)).scatter_reduce_(0, entry, probs.flatten()[tokens], "amax")
        margin = torch.full((len(pairs),), width).scatter_reduce_(0, entry, margins.flatten()[tokens], "amin")
        words = pairs % max(self.index.size, 1)
        best = self.margins.scatter_reduce(0, words, margin, "amax")
        self.values[best > self.margins] = 0.0
        self.margins = best
        winners = margin == best[words]
        self.values.scatter_reduce_(0, words[winners], value[winners], "amax")

    def _results(self, windows: list[int]) -> list[ScoredText]:
        values, threshold = self.values.tolist(), float(self.model.config.decision_threshold)
        return [
            ScoredText(text, words, values[low:high], count, threshold)
            for text, words, (low, high), count in zip(
                self.texts, self.words, pairwise(self.index.firsts), windows, strict=True
            )
        ]
