"""Texts on their way through a model: words and windows, batches of like length, and what comes back for each token.

Texts come in parts, and parts come back whole and in order. A model may work on several batches at once, and is handed
further ones, of later parts too, before the first is back: cutting texts into tokens goes on beside it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .configuration_hardkuma import HardKumaConfig
from .selectors_hardkuma import GateHead
from .surface_hardkuma import Span, SurfaceIndex, WordIndex, find_words
from .windows_hardkuma import Windows, WordTokens

# Texts that are tokenised and sorted together, in batches: enough to sort well, few enough to keep memory flat.
BATCHES_PER_CHUNK = 64

_SURROGATE = re.compile("[\ud800-\udfff]")

# Texts that belong together, and the words of each; those that `find_words` sees where there are none.
Part = tuple[Sequence[str], Sequence[Sequence[Span]] | None]


class GateModel(Protocol):
    """What scoring needs of a model; a `HardKumaModel` has it, and so have other backends."""

    training: bool

    @property
    def config(self) -> HardKumaConfig: ...

    @property
    def gate_head(self) -> GateHead: ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...

    @property
    def max_length(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def batch_tokens(self) -> int | None:
        """How many tokens a batch has at most, padding counted; None where it does not matter."""
        ...

    def gate_batches(self, batches: Iterable[dict[str, Tensor]], selector: str | None = None) -> Iterator[Tensor]:
        """The selection probabilities of each batch, (batch, [K,] length), in order; batches may be taken before earlier
        ones are given back."""
        ...


def encodable(text: str) -> str:
    """The text as a tokenizer can take it: half of a surrogate pair, which is no character, becomes the replacement
    character. The length stays the same.

    >>> encodable("a \\ud800 b")
    'a � b'
    """
    return _SURROGATE.sub("\ufffd", text)


def reads_shapes(model: GateModel, selectors: Sequence[int] | None = None) -> bool:
    """Whether it makes a difference to these selectors (to any by default) how words are written: log-odds of their
    classes shift the gates, or they are among the features.

    >>> from hardkuma import load_released
    >>> model = load_released()[0]
    >>> reads_shapes(model), reads_shapes(model, [model.config.find_selector("meaning")])
    (True, False)
    """
    config, head = model.config, model.gate_head
    chosen = range(config.num_selectors) if selectors is None else selectors
    shifted = [k for k in chosen if config.of_selector("surface_weight", k)]
    return bool(head.surface_log_odds[shifted].any()) or config.reads("shape", head.needed(list(chosen)))


class TextChunk:
    """Texts that are tokenised together and run in batches of like length.

    Args:
        numbers: of these texts in their part.
        texts: as they were given.
        words: (start, end) of the words of each; by default those that `find_words` sees.
        selectors: numbers of one selector, or of all in their order.

    Attributes:
        waiting: batches that are not back yet.
        index: the words of all texts; those of text i are `index.firsts[i]` to `index.firsts[i + 1]`.
        counts: how many windows each text has.
    """

    def __init__(
        self,
        model: GateModel,
        numbers: Sequence[int],
        texts: list[str],
        words: list[list[Span]] | None,
        use_surface: bool,
        selectors: list[int],
        batch_size: int,
    ):
        self.numbers, self.texts, self._model = numbers, texts, model
        shaped = use_surface and reads_shapes(model, selectors)
        own_words = [find_words(text) for text in texts] if words is None or shaped else []
        self.words = own_words if words is None else words
        self._windows = windows = Windows.cut(model.tokenizer, [encodable(text) for text in texts], model.max_length)
        lengths = [len(text) for text in texts]
        self.index = WordIndex(self.words, lengths)
        self.counts: list[int] = torch.bincount(windows.owners, minlength=len(texts)).tolist()
        # What the model takes of each token, worked out for all windows at once.
        self._inputs = dict(windows.inputs)
        spots = windows.owners[windows.numbers][None], windows.starts[None], windows.ends[None]
        if shaped:
            index = self.index if words is None else WordIndex(own_words, lengths)
            self._inputs["surface_ids"] = SurfaceIndex(texts, own_words, index).ids(*spots)[0]
        if any(model.gate_head.needs_words(number) for number in selectors):
            self._inputs["continues"] = self.index.continues(*spots)[0]
        self._padding = {
            "input_ids": model.tokenizer.pad_token_id or 0,
            "token_type_ids": model.tokenizer.pad_token_type_id,
        }
        self._batches = list(windows.batches(batch_size, model.batch_tokens))
        self.waiting = len(self._batches)
        self._expected: deque[tuple[Tensor, Tensor]] = deque()
        self._probabilities = torch.zeros(len(selectors), len(windows.starts))

    def batches(self) -> Iterator[dict[str, Tensor]]:
        """What the model takes, batch by batch; `put` takes back what it gives, in the same order."""
        for tokens, inside in self._batches:
            self._expected.append((tokens, inside))
            inputs = {
                name: torch.where(inside, flat[tokens], self._padding.get(name, 0)) for name, flat in self._inputs.items()
            }
            inputs["attention_mask"] = inside.long()
            yield {name: value.to(self._model.device) for name, value in inputs.items()}

    def put(self, probabilities: Tensor) -> None:
        """The probabilities of the next batch, (batch, [K,] length)."""
        tokens, inside = self._expected.popleft()
        probabilities = probabilities.float().cpu().reshape(len(tokens), len(self._probabilities), -1)
        self._probabilities[:, tokens[inside]] = probabilities.transpose(0, 1)[:, inside]
        self.waiting -= 1

    def values(self, aggregates: Sequence[str]) -> list[list[list[float]]]:
        """For each selector and each of these aggregates the values of all words of all texts."""
        tokens = WordTokens(self._windows, self.index)
        return [[tokens.values(row, aggregate).tolist() for aggregate in aggregates] for row in self._probabilities]


def run_parts(
    model: GateModel, parts: Iterable[Part], batch_size: int, use_surface: bool, selectors: list[int]
) -> Iterator[list[TextChunk]]:
    """The texts of each part as chunks that the model has run on. Texts of like length are in one chunk.

    Args:
        selectors: numbers of one selector, or of all in their order.
    """
    name = model.config.names[selectors[0]] if len(selectors) == 1 else None
    open_parts: deque[tuple[list[TextChunk], int]] = deque()  # chunks so far, and how many there will be
    running: deque[TextChunk] = deque()

    def batches() -> Iterator[dict[str, Tensor]]:
        for texts, words in parts:
            order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
            step = batch_size * BATCHES_PER_CHUNK
            firsts = range(0, len(order), step)
            chunks: list[TextChunk] = []
            open_parts.append((chunks, len(firsts)))
            for first in firsts:
                numbers = order[first : first + step]
                chosen = None if words is None else [list(words[i]) for i in numbers]
                chunk = TextChunk(model, numbers, [texts[i] for i in numbers], chosen, use_surface, selectors, batch_size)
                chunks.append(chunk)
                for batch in chunk.batches():
                    running.append(chunk)
                    yield batch

    for probabilities in model.gate_batches(batches(), name):
        running.popleft().put(probabilities)
        while open_parts and _is_done(*open_parts[0]):
            yield open_parts.popleft()[0]
    for chunks, _ in open_parts:  # without a token, at the end
        yield chunks


def _is_done(chunks: list[TextChunk], count: int) -> bool:
    return len(chunks) == count and not any(chunk.waiting for chunk in chunks)
