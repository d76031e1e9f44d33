"""From token gates to words of the original text: character offsets, long texts in windows, selection by rate.

`score_texts` runs the encoder once; `ScoredText.select` decides, at any rate or threshold, without running it again.
"""

from __future__ import annotations

import inspect
import numbers
import os
import random
import re
import sys
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from html import escape
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Protocol, TextIO, TypedDict, Unpack

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from .batch_hardkuma import without_autocast
from .configuration_hardkuma import HardKumaConfig, SelectorConfig
from .gate_head_hardkuma import (
    DENIED,
    GateHead,
    SubsetModel,
    TextModel,
    WordRows,
    decide,
    keep_words,
    share_gates,
    subset_batches,
)
from .pooling_hardkuma import normalize
from .words_hardkuma import ENGLISH, NEGATION, Language, Span, SurfaceIndex, WordIndex, check_words, find_words

logger = logging.get_logger(__name__)

# How the values of a word's tokens make the value of the word.
AGGREGATES = ("max", "sum", "mean", "first")
_REDUCTIONS = {"max": "amax", "sum": "sum", "mean": "mean"}


def window_overlap(length: int) -> int:
    """How many tokens two neighbouring windows share.

    >>> window_overlap(256)
    64
    """
    return length // 4


@dataclass(frozen=True)
class Windows:
    """The tokens of several texts, window after window.

    Attributes:
        owners: (windows,) the text of each window.
        lengths: (windows,) how many tokens each has.
        starts, ends: (tokens,) character offsets of all tokens in their texts; empty for special tokens.
        inputs: (tokens,) by name, what the encoder takes.
    """

    owners: Tensor
    lengths: Tensor
    starts: Tensor
    ends: Tensor
    inputs: dict[str, Tensor]

    @classmethod
    def cut(cls, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], length: int) -> Windows:
        """Tokenise texts into windows of at most `length` tokens.

        >>> from hardkuma import load_released
        >>> windows = Windows.cut(load_released()[1], ["rain " * 20, "Rain."], length=10)
        >>> windows.owners.tolist(), windows.lengths.tolist()
        ([0, 0, 0, 1], [10, 10, 10, 4])
        """
        encoded = tokenizer(
            list(texts),
            truncation=True,
            max_length=length,
            stride=window_overlap(length),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
        )
        owners = encoded.pop("overflow_to_sample_mapping", None) or list(range(len(texts)))
        offsets = _flat(map(chain.from_iterable, encoded["offset_mapping"])).view(-1, 2)
        names = [name for name in ("input_ids", "token_type_ids") if name in encoded]
        return cls(
            owners=torch.tensor(owners, dtype=torch.long),
            lengths=torch.tensor([len(row) for row in encoded["input_ids"]], dtype=torch.long),
            starts=offsets[:, 0],
            ends=offsets[:, 1],
            inputs={name: _flat(encoded[name]) for name in names},
        )

    @property
    def firsts(self) -> Tensor:
        """(windows,) the number of the first token of each window."""
        return self.lengths.cumsum(0) - self.lengths

    @property
    def numbers(self) -> Tensor:
        """(tokens,) the window of each token."""
        return torch.arange(len(self.lengths)).repeat_interleave(self.lengths)

    @property
    def margins(self) -> Tensor:
        """(tokens,) how far each token is from the nearer edge of its window."""
        position = torch.arange(len(self.starts)) - self.firsts[self.numbers]
        return torch.minimum(position, self.lengths[self.numbers] - 1 - position)

    def batches(self, batch_size: int, max_tokens: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Windows of like length together: the numbers of their tokens (batch, length), and which of those are tokens at
        all, not padding on the right (batch, length).

        Args:
            batch_size: how many windows a batch has at most.
            max_tokens: how many tokens, padding counted; a longer window is alone.

        >>> windows = Windows(*(torch.tensor(row) for row in ([0, 1], [1, 2], [0, 0, 2], [2, 2, 4])), inputs={})
        >>> [inside.tolist() for _, inside in windows.batches(2)], len(list(windows.batches(2, max_tokens=3)))
        ([[[True, False], [True, True]]], 2)
        """
        firsts = self.firsts
        order = self.lengths.argsort(stable=True)
        for rows in order.split(_batch_sizes(self.lengths[order].tolist(), batch_size, max_tokens)):
            position = torch.arange(int(self.lengths[rows[-1]]))
            if len(position) == 0:  # an encoder without special tokens, and nothing but empty texts
                continue
            inside = position < self.lengths[rows][:, None]
            yield torch.where(inside, firsts[rows][:, None] + position, 0), inside


def _batch_sizes(lengths: list[int], batch_size: int, max_tokens: int | None) -> list[int]:
    """Sizes of the batches of rows with these lengths, in their order."""
    sizes, size, width = [], 0, 0
    for length in lengths:
        width = max(width, length)
        if size and (size == batch_size or (max_tokens is not None and (size + 1) * width > max_tokens)):
            sizes.append(size)
            size, width = 0, length
        size += 1
    return [*sizes, size] if size else sizes


class WordTokens:
    """Which tokens give each word its value: those that touch it, in the window in which it stands furthest from an edge.

    >>> windows = Windows(*(torch.tensor(row) for row in ([0], [4], [0, 0, 3, 0], [0, 2, 8, 0])), inputs={})
    >>> tokens = WordTokens(windows, WordIndex([[(0, 2), (3, 5), (6, 8)]], [8]))
    >>> tokens.values(torch.tensor([0.0, 0.1, 0.7, 0.0]))
    tensor([0.1000, 0.7000, 0.7000])
    """

    def __init__(self, windows: Windows, index: WordIndex):
        self.size = index.size
        numbers, margins = windows.numbers, windows.margins
        first, count = index.touched(windows.owners[numbers], windows.starts[:, None], windows.ends[:, None])
        first, count = first[:, 0], count[:, 0]
        # One entry for each token and word that touch.
        tokens = torch.arange(len(count)).repeat_interleave(count)
        words = first[tokens] + torch.arange(len(tokens)) - (count.cumsum(0) - count)[tokens]
        # One group for each window and word: its distance from the nearer edge is that of its outermost token.
        groups, group = torch.unique(numbers[tokens] * self.size + words, return_inverse=True)
        margin = margins.new_full((len(groups),), 1 << 62).scatter_reduce_(0, group, margins[tokens], "amin")
        word = groups % max(self.size, 1)
        best = margins.new_full((self.size,), -1).scatter_reduce_(0, word, margin, "amax")
        wins = margin == best[word]
        self._tokens, self._group = tokens[wins[group]], group[wins[group]]
        self._word, self._wins = word, wins
        # (tokens,) those that touch any word, and those of them that count for it.
        self.touching = count > 0
        self.counting = torch.zeros_like(self.touching).index_fill_(0, self._tokens, True)

    def members(self) -> tuple[Tensor, Tensor]:
        """(pairs,) numbers of tokens that count, and of the words for which they do; those of a text stand together."""
        return self._tokens, self._word[self._group]

    def values(self, token_values: Tensor, aggregate: str = "max") -> Tensor:
        """Values of the words, (words,), from those of all tokens, (tokens,); 0 for a word that no token touches.

        Args:
            aggregate: "max", "sum" or "mean" over a word's tokens, or its "first" token's.
        """
        picked, size = token_values[self._tokens], len(self._word)
        if aggregate == "first":
            order = torch.arange(len(picked))
            # Groups that lose have no token; they point at the first one and are left out below.
            leading = order.new_full((size,), max(len(picked) - 1, 0)).scatter_reduce_(0, self._group, order, "amin")
            of_groups = picked[leading]
        else:
            of_groups = picked.new_zeros(size).scatter_reduce_(
                0, self._group, picked, _REDUCTIONS[aggregate], include_self=False
            )
        of_words = token_values.new_zeros(self.size)
        return of_words.scatter_reduce_(0, self._word[self._wins], of_groups[self._wins], "amax")


def _flat(rows: Iterable[Iterable[int]]) -> Tensor:
    numbers = array("q", chain.from_iterable(rows))  # several times as fast as torch.tensor of a list
    return torch.frombuffer(numbers, dtype=torch.long) if numbers else torch.zeros(0, dtype=torch.long)


Record = dict[str, Any]

UNSEEN = (
    "some texts seem to be of a script or language that this head has not seen; the first one is %r (%s). It chooses badly "
    'there: see the "note" of their records (hardkuma gates --format jsonl). Train a head on text of that language: python '
    "train.py recipes/language.yaml --data FILE."
)
_UNSEEN_TEXTS: list[str] = []  # the one that was warned of
ALL = "all"  # what `selector=` takes for a record with the gates of all selectors


def join_records(records: Mapping[str, Record]) -> Record:
    """One record of a text with the gates of several selectors, from the records of each by its name.

    Returns:
        `{"text", "words": [{"word", "start", "end", "probabilities": {NAME: number}, "selected": [NAME, ...]}],
        "spans": [{"text", "start", "end", "probability", "selector"}], "rates": {NAME: number}, "windows"}`

    >>> go = {"word": "Go", "start": 0, "end": 2, "probability": 0.9, "selected": True}
    >>> one = {"text": "Go", "words": [go], "spans": [{"text": "Go", "start": 0, "end": 2}], "rate": 1.0, "windows": 1}
    >>> record = join_records({"verbs": one, "others": one})
    >>> record["words"][0]["probabilities"], record["words"][0]["selected"], len(record["spans"])
    ({'verbs': 0.9, 'others': 0.9}, ['verbs', 'others'], 2)
    """
    first = next(iter(records.values()))
    words = [
        {
            **{key: word[key] for key in ("word", "start", "end")},
            "probabilities": {name: record["words"][i]["probability"] for name, record in records.items()},
            "selected": [name for name, record in records.items() if record["words"][i]["selected"]],
        }
        for i, word in enumerate(first["words"])
    ]
    spans = [{**span, "selector": name} for name, record in records.items() for span in record["spans"]]
    rates = {name: record["rate"] for name, record in records.items()}
    joined = {"text": first["text"], "words": words, "spans": spans, "rates": rates, "windows": first["windows"]}
    joined |= {"note": first["note"]} if "note" in first else {}
    return joined if spans else {**joined, "reason": first["reason"]}


def split_record(record: Record) -> dict[str, Record]:
    """The record of each selector, by its name, from one that `join_records` made.

    The "reason" of a selector that selects nothing where another one does is not in the joined record; it has words then,
    so that there is one reason only.

    >>> go = {"word": "Go", "start": 0, "end": 2, "probability": 0.9, "selected": True}
    >>> one = {"text": "Go", "words": [go], "spans": [{"text": "Go", "start": 0, "end": 2}], "rate": 1.0, "windows": 1}
    >>> split_record(join_records({"verbs": one}))["verbs"] == one
    True
    """
    parts: dict[str, Record] = {}
    for name, rate in record["rates"].items():
        words = [
            {
                **{key: word[key] for key in ("word", "start", "end")},
                "probability": word["probabilities"][name],
                "selected": name in word["selected"],
            }
            for word in record["words"]
        ]
        spans = [
            {key: value for key, value in span.items() if key != "selector"}
            for span in record["spans"]
            if span["selector"] == name
        ]
        parts[name] = {"text": record["text"], "words": words, "spans": spans, "rate": rate, "windows": record["windows"]}
        if not spans:
            parts[name]["reason"] = record.get("reason", "no word is more probable than the threshold")
        if "note" in record:
            parts[name]["note"] = record["note"]
    return parts


DRAWS = 5  # random answers that an answer is compared with
# Texts that are tokenised and sorted together, in batches: enough to sort well, few enough to keep memory flat.
BATCHES_PER_CHUNK = 64

_SURROGATE = re.compile("[\ud800-\udfff]")

# Texts that belong together, and the words of each; those that `find_words` sees where there are none.
Part = tuple[Sequence[str], Sequence[Sequence[Span]] | None]


class GateModel(TextModel, Protocol):
    """What scoring needs of a model; a `HardKumaModel` has it, and so have other backends."""

    training: bool

    @property
    def config(self) -> HardKumaConfig: ...

    @property
    def gate_head(self) -> GateHead: ...

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
    shifted = [k for k in chosen if config.selector(k).form_weight]
    return bool(head.surface_log_odds[shifted].any()) or config.reads("form", head.needed(list(chosen)))


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
        own_words = [find_words(text, model.config.language) for text in texts] if words is None or shaped else []
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
        if any(model.config.selector(number).unit != "token" for number in selectors):
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
        tokens = self._word_tokens
        return [[tokens.values(row, aggregate).tolist() for aggregate in aggregates] for row in self._probabilities]

    @cached_property
    def _word_tokens(self) -> WordTokens:
        return WordTokens(self._windows, self.index)

    def shared_gates(self, probabilities: list[float], selector: SelectorConfig) -> list[float] | None:
        """The gates of all words as like words share them, where the selector's decision goes by that; see
        `share_gates`."""
        head = self._model.gate_head
        if selector.share is None or not hasattr(head, "isolated_table"):
            return None
        tokens, words = self._word_tokens.members()
        ids, firsts = self._windows.inputs["input_ids"][tokens].to(head.isolated_table.device), self.index.firsts
        result, start = [], 0
        for size in _batch_sizes([past - first for first, past in pairwise(firsts)], len(self.texts), ROWS):
            edges = torch.tensor(firsts[start : start + size + 1])
            start += size
            own = slice(*torch.searchsorted(words, edges[[0, -1]]).tolist())  # tokens of one text stand together
            lengths = edges.diff()[:, None]
            inside = torch.arange(int(lengths.max())) < lengths
            vectors = torch.zeros(int(edges[-1] - edges[0]), head.isolated_table.shape[1])
            vectors.index_add_(0, words[own] - edges[0], head.isolated_rows(ids[own]).cpu())
            rows = vectors.new_zeros(*inside.shape, vectors.shape[-1])
            rows[inside] = normalize(vectors)
            probs = vectors.new_zeros(inside.shape)
            probs[inside] = torch.tensor(probabilities[int(edges[0]) : int(edges[-1])])
            with without_autocast(vectors.device):
                result += share_gates(probs, rows, inside, selector.like_cosine)[inside].tolist()
        return result


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


# What may stand between two selected words of one span. A line break or any other punctuation ends a span.
_BETWEEN = re.compile(r"[^\S\n\r\f\v\x85\u2028\u2029]*(?:&[^\S\n\r\f\v\x85\u2028\u2029]*)?|–")
_AFTER_INITIAL = re.compile(r"\.[^\S\n\r\f\v\x85\u2028\u2029]*")
# Words with a full stop inside of a name: St. Petersburg.
_ABBREVIATIONS = re.compile("Capt|Col|Dr|Ft|Gen|Gov|Hon|Lt|Mr|Mrs|Ms|Mt|Prof|Rep|Rev|Sen|Sgt|St")


@dataclass(frozen=True)
class ScoredText:
    """A text whose words have their probabilities; nothing is decided yet.

    Attributes:
        text: as it was given.
        words: (start, end) of each word, in order.
        probabilities: one for each word, in [0, 1]: the largest of its tokens'.
        windows: how many times the encoder ran over parts of the text; 1 for a text that fits into it, also if empty.
        threshold: the model's own, which decides where neither rate nor threshold is given.
        selector: the settings of the selector whose gates these are.
        weights: gates that like words share, one for each word, where the selector's own decision goes by them.
        scores: one for each word, where another `aggregate` of its tokens' probabilities than the largest was asked for.
        language: what the model knows of its language.
    """

    text: str
    words: list[Span]
    probabilities: list[float]
    windows: int
    threshold: float
    selector: SelectorConfig = field(default_factory=SelectorConfig)
    weights: list[float] | None = None
    scores: list[float] | None = None
    language: Language = ENGLISH

    def decide(self, rate: float | None = None, threshold: float | None = None, phrases: bool = False) -> list[bool]:
        """Which words are selected; the rule is at the top of gate_head_hardkuma.py.

        Args:
            rate: the most probable words, this fraction of them; in (0, 1].
            threshold: the words above this probability; in [0, 1].
            phrases: with one of these, complete phrases too.

        >>> scored = ScoredText("Marie moved", [(0, 5), (6, 11)], [0.9, 0.2], windows=1, threshold=0.5)
        >>> scored.decide(), scored.decide(threshold=0.1), scored.decide(rate=1.0)
        ([True, False], [True, True], [True, True])
        """
        return decide_texts([self], rate, threshold, phrases)[0]

    def word(self, number: int) -> str:
        """What is written there."""
        return self.text[slice(*self.words[number])]

    @property
    def roles(self) -> list[int]:
        """What each word is to its neighbours; see `Language.word_role`."""
        return [self.language.word_role(self.text[start:end]) for start, end in self.words]

    @property
    def unreadable(self) -> bool:
        """Whether names are sought in a script that the head has not seen: it finds none by itself there."""
        return self.selector.unit == "name" and self.language.unseen_script(self.text) is not None

    @property
    def ranks(self) -> list[int]:
        """The place of each word, 0 for the most probable one; function words below the model's threshold come last."""
        values, roles = self.probabilities, self.roles
        order = sorted(range(len(values)), key=lambda i: (roles[i] != 0 and values[i] <= self.threshold, -values[i]))
        ranks = [0] * len(order)
        for rank, i in enumerate(order):
            ranks[i] = rank
        return ranks

    @property
    def ranks_with_negations(self) -> list[int]:
        """The same, but a negation and what lies between have the place of the best of the words that it denies: nobody
        wants one without the other.

        >>> scored = ScoredText("I can not sleep", [(0, 1), (2, 5), (6, 9), (10, 15)], [0.1, 0.3, 0.2, 0.9], 1, 0.5)
        >>> scored.ranks, scored.ranks_with_negations
        ([3, 1, 2, 0], [3, 1, 0, 0])
        """
        ranks, roles, result = self.ranks, self.roles, self.ranks
        for i, role in enumerate(roles):
            if role == NEGATION:
                end = i + 1
                while end < len(ranks) and end <= i + DENIED and self.joins(end):
                    end += 1
                denied = min(range(i + 1, end), key=ranks.__getitem__, default=i)
                for j in range(i, denied):
                    result[j] = min(result[j], ranks[denied])
        return result

    def select(self, rate: float | None = None, threshold: float | None = None, phrases: bool = False) -> Record:
        """The record of this text, of plain JSON values; the encoder does not run again. Arguments as of `decide`.

        Returns:
            `{"text", "words": [{"word", "start", "end", "probability", "selected"}],
            "spans": [{"text", "start", "end", "probability"}], "rate", "windows"}`. A span joins selected words that have
            nothing but spaces, an & or an en dash between them (or the full stop of an initial or a title: J. Smith,
            Dr. Smith); its probability is the largest of its words'. "rate" is the fraction of words that are selected, 0.0
            where there are none. Where no word is selected, "reason" says why; where the text is of a script or language
            that the model has not seen, "note" says so.

        >>> scored = ScoredText("Marie Curie moved", [(0, 5), (6, 11), (12, 17)], [0.9, 0.8, 0.2], 1, 0.5)
        >>> record = scored.select()
        >>> record["spans"], round(record["rate"], 2)
        ([{'text': 'Marie Curie', 'start': 0, 'end': 11, 'probability': 0.9}], 0.67)
        """
        return self.record(self.decide(rate, threshold, phrases), threshold)

    def record(self, chosen: Sequence[bool], threshold: float | None = None) -> Record:
        """The record where these words are selected; by this threshold, if it was one."""
        text = self.text
        words = [
            {"word": text[start:end], "start": start, "end": end, "probability": value, "selected": selected}
            for (start, end), value, selected in zip(self.words, self.probabilities, chosen, strict=True)
        ]
        record = {
            "text": text,
            "words": words,
            "spans": self._spans(chosen),
            "rate": sum(chosen) / len(chosen) if chosen else 0.0,
            "windows": self.windows,
        }
        if not any(chosen):
            record["reason"] = self._reason(threshold)
        note = self.language.note(text, self.words)
        return record if note is None else {**record, "note": note}

    def _reason(self, threshold: float | None) -> str:
        """Why no word is selected."""
        if not self.words:
            return "the text has no word"
        if threshold is None and self.selector.unit == "word" and all(self.roles):
            return "the text has no content word"
        if threshold is None and self.unreadable:
            return "names are not known in a script that the head has not seen"
        return f"no word is more probable than {self.threshold if threshold is None else threshold:g}"

    def _spans(self, chosen: Sequence[bool]) -> list[dict[str, Any]]:
        spans: list[dict[str, Any]] = []
        before = -2  # number of the last selected word
        for i, selected in enumerate(chosen):
            if not selected:
                continue
            (start, end), value = self.words[i], self.probabilities[i]
            if before == i - 1 and self.joins(i):
                span = spans[-1]
                span["end"], span["probability"] = end, max(span["probability"], value)
            else:
                spans.append({"text": "", "start": start, "end": end, "probability": value})
            before = i
        for span in spans:
            span["text"] = self.text[span["start"] : span["end"]]
        return spans

    def joins(self, number: int) -> bool:
        """Whether this word and the one before it may be of one span: nothing but spaces and the like between them.

        >>> ScoredText("Marie Curie, Paris", [(0, 5), (6, 11), (13, 18)], [0.9] * 3, 1, 0.5).joins(1)
        True
        """
        return self._adjacent(*self.words[number - 1], self.words[number][0])

    def _adjacent(self, start: int, end: int, following: int) -> bool:
        if self.text[end:following] == " " or _BETWEEN.fullmatch(self.text, end, following):
            return True
        initial = end - start == 1 and self.text[start].isupper()
        shortened = initial or _ABBREVIATIONS.fullmatch(self.text, start, end) is not None
        return shortened and _AFTER_INITIAL.fullmatch(self.text, end, following) is not None


ROWS = 4096  # words of texts, padding counted, that are decided together


def decide_texts(
    texts: Sequence[ScoredText], rate: float | None = None, threshold: float | None = None, phrases: bool = False
) -> list[list[bool]]:
    """`ScoredText.decide` of texts of one selector and model, several at a time.

    >>> scored = ScoredText("Marie moved", [(0, 5), (6, 11)], [0.9, 0.2], windows=1, threshold=0.5)
    >>> decide_texts([scored, scored], rate=0.5)
    [[True, False], [True, False]]
    """
    check_selection(rate, threshold)

    def silent(text: ScoredText) -> bool:  # asked for nothing, and unable to read it
        return rate is None and threshold is None and text.unreadable

    order = sorted(range(len(texts)), key=lambda i: len(texts[i].words))
    lengths = [len(texts[i].words) for i in order]
    result: list[list[bool]] = [[] for _ in texts]
    start = 0
    for size in _batch_sizes(lengths, len(texts), ROWS):
        numbers, width = order[start : start + size], lengths[start + size - 1]
        group, start = [texts[i] for i in numbers], start + size
        if not width:
            continue
        probs = _padded([text.probabilities for text in group], width)
        shared = [text.probabilities if text.weights is None else text.weights for text in group]
        words = WordRows(
            probs=probs,
            weights=_padded(shared, width),
            among=torch.arange(width) < torch.tensor([[0 if silent(text) else len(text.words)] for text in group]),
            roles=_padded([text.roles for text in group], width),
            joins=_padded([[False, *map(text.joins, range(1, len(text.words)))] for text in group], width).bool(),
        )
        chosen = decide(words, group[0].selector, group[0].threshold, rate, threshold, phrases).tolist()
        for i, row in zip(numbers, chosen, strict=True):
            result[i] = row[: len(texts[i].words)]
    return result


def _padded(rows: Sequence[Sequence[float]], width: int) -> Tensor:
    """(rows, width) with zeros behind the shorter ones."""
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])


def check_selector(config: HardKumaConfig, selector: str | None) -> None:
    """ValueError, with the names that there are, for a selector that a record cannot be asked for.

    >>> check_selector(HardKumaConfig(), "all")
    """
    if selector != ALL:
        config.find_selector(selector)


def check_selection(rate: float | None, threshold: float | None, keep: float | None = None) -> None:
    """Rate, threshold and keep are fractions, and at most one of them is given.

    >>> check_selection(20, None)
    Traceback (most recent call last):
    ValueError: rate must be a fraction in (0, 1], got 20.
    """
    given = {"rate": rate, "threshold": threshold, "keep": keep}
    several = [f"{name}={value}" for name, value in given.items() if value is not None]
    if len(several) > 1:
        raise ValueError(f"give one of rate, threshold and keep; got {' and '.join(several)}.")
    if keep is not None and not (_is_number(keep) and 0 < keep <= 1):
        raise ValueError(f"keep must be a cosine in (0, 1], got {keep!r}.")
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


def check_options(name: str, options: Iterable[str], function: Callable[..., Any]) -> None:
    """TypeError, with the nearest name that there is, for an option of `name` that `function` does not take, to which it
    hands its options on.

    >>> check_options("highlight", ["ratio"], stream_records)
    Traceback (most recent call last):
    TypeError: highlight() has no option 'ratio'; did you mean rate?
    """
    known = [key for key, value in inspect.signature(function).parameters.items() if value.default is not value.empty]
    for option in options:
        if option not in known:
            near = get_close_matches(option, known, n=1) or [key for key in known if key in option]  # keep_meaning: keep
            hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(known)}."
            raise TypeError(f"{name}() has no option {option!r}; {hint}")


class RecordOptions(TypedDict, total=False):
    """What `gate_records` takes: which words are selected, by whose gates, and how texts are run."""

    rate: float | None
    """The most probable words, this fraction of them, rounded up; in (0, 1]. The record's "rate" is what this comes to."""
    threshold: float | None
    """The words above this probability; in [0, 1]."""
    keep: float | None
    """The fewest words whose own embedding has at least this cosine with the text's, verified by encoding them. A record
    then has "kept", that cosine, and "lost", 1 - the cosine of what is left without them. A text longer than the encoder
    takes is decided by the selector's own rule, and both are None."""
    phrases: bool
    """With a rate or threshold, complete phrases too."""
    selector: str | None
    """The name of a selector; "meaning" by default, or the first. "all": records have the gates of all, see
    `join_records`."""
    use_surface: bool
    """Apply the word-shape log-odds that the model holds; true by default."""
    batch_size: int
    """Windows per forward pass, 32 by default; results do not depend on it."""


def gate_records(model: GateModel, texts: Sequence[str], **options: Unpack[RecordOptions]) -> list[Record]:
    """`score_texts` and `ScoredText.select` in one: a record for each text, in order.

    Args:
        options: see [`RecordOptions`].

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> record = gate_records(model, ["Marie Curie moved to Paris."], rate=0.4)[0]
    >>> [word["word"] for word in record["words"]], record["rate"]
    (['Marie', 'Curie', 'moved', 'to', 'Paris'], 0.4)
    """
    check_options("gate_records", options, stream_records)
    return next(stream_records(model, [texts], **options))


@torch.inference_mode()
def stream_records(
    model: GateModel,
    parts: Iterable[Sequence[str]],
    *,
    rate: float | None = None,
    threshold: float | None = None,
    keep: float | None = None,
    phrases: bool = False,
    batch_size: int = 32,
    use_surface: bool = True,
    selector: str | None = None,
) -> Iterator[list[Record]]:
    """`gate_records` of one list of texts after the other. A model that works on several batches at once reads later
    lists before it has given back the first, and is not idle between them.

    >>> from hardkuma import load_released
    >>> for records in stream_records(load_released()[0], [["Marie Curie moved to Paris."], ["Rain.", ""]]):
    ...     print(len(records), len(records[0]["words"]))
    1 5
    2 1
    """
    check_selection(rate, threshold, keep)
    names = model.config.names
    if keep is not None and selector == ALL:
        raise ValueError(f"keep={keep} goes by one selector, not by all; name it.")
    numbers = list(range(len(names))) if selector == ALL else [model.config.find_selector(selector)]
    for scored in _score(model, ((texts, None) for texts in parts), batch_size, use_surface, numbers, "max"):
        rows = [select_texts(model, texts, rate, threshold, keep, phrases, batch_size) for texts in scored]
        unseen = [record for record in rows[0] if "note" in record]
        # Once in a process. A list or a headline has a note by mistake at times, so some in a long file say nothing.
        if len(unseen) > len(rows[0]) / 10 and not _UNSEEN_TEXTS:
            text = unseen[0]["text"]
            _UNSEEN_TEXTS.append(text)
            logger.warning(UNSEEN, text if len(text) <= 60 else f"{text[:59]}…", unseen[0]["note"])
        if selector == ALL:
            yield [join_records(dict(zip(names, row, strict=True))) for row in zip(*rows, strict=True)]
        else:
            yield rows[0]


def select_texts(
    model: GateModel,
    texts: Sequence[ScoredText],
    rate: float | None = None,
    threshold: float | None = None,
    keep: float | None = None,
    phrases: bool = False,
    batch_size: int = 32,
) -> list[Record]:
    """The records of texts of one selector, decided together; arguments as of `gate_records`."""
    if keep is None:
        decisions = decide_texts(texts, rate, threshold, phrases)
        return [text.record(chosen, threshold) for text, chosen in zip(texts, decisions, strict=True)]
    if not isinstance(model, SubsetModel):
        raise ValueError(f"keep={keep} encodes words, which the backend onnx cannot do; use the backend torch.")
    short = [i for i, text in enumerate(texts) if text.words and text.windows == 1]
    rows = [texts[i] for i in short]
    given = [encodable(row.text) for row in rows], [row.words for row in rows], [row.ranks_with_negations for row in rows]
    kept = dict(zip(short, keep_words(model, *given, keep, batch_size), strict=True))
    records = []
    for i, (text, chosen) in enumerate(zip(texts, decide_texts(texts), strict=True)):
        answer = kept.get(i)
        found = (None, None) if answer is None else (answer.kept, answer.lost)
        record = text.record(chosen if answer is None else answer.chosen)
        records.append({**record, "kept": found[0], "lost": found[1]})
    return records


@torch.inference_mode()
def measure_records(model: SubsetModel, records: Sequence[Record]) -> list[dict[str, float | None]]:
    """How good the answers of records are: what the selected words keep of the text's embedding, what is lost without them,
    and both for as many random words (the mean of five draws, seeded by the text).

    Returns:
        `{"kept", "lost", "random_kept", "random_lost"}` of each record; None for a text that is empty or longer than the
        encoder takes
    """
    measured: list[dict[str, float | None]] = [
        dict.fromkeys(("kept", "lost", "random_kept", "random_lost")) for _ in records
    ]
    short = [i for i, record in enumerate(records) if record["words"] and record["windows"] == 1]
    texts = [encodable(records[i]["text"]) for i in short]
    words = [[(word["start"], word["end"]) for word in records[i]["words"]] for i in short]
    for group, subsets in subset_batches(model, texts, words):
        sets = torch.zeros(len(group), 1 + DRAWS, subsets.size, dtype=torch.bool)
        for row, i in enumerate(group):
            selected = [number for number, word in enumerate(records[short[i]]["words"]) if word["selected"]]
            generator = random.Random(texts[i])
            drawn = [generator.sample(range(len(words[i])), len(selected)) for _ in range(DRAWS)]
            for number, members in enumerate([selected, *drawn]):
                sets[row, number, members] = True
        kept, lost = subsets.kept_and_lost(sets)
        for row, i in enumerate(group):
            measured[short[i]] = {
                "kept": float(kept[row, 0]),
                "lost": float(lost[row, 0]),
                "random_kept": float(kept[row, 1:].mean()),
                "random_lost": float(lost[row, 1:].mean()),
            }
    return measured


@torch.inference_mode()
def score_texts(
    model: GateModel,
    texts: Sequence[str],
    *,
    words: Sequence[Sequence[Span]] | None = None,
    batch_size: int = 32,
    use_surface: bool = True,
    selector: str | None = None,
    aggregate: str = "max",
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
        selector: the name of a selector; "meaning" by default, or the first.
        aggregate: "max", or what `ScoredText.scores` is to hold beside the probabilities: "sum" (the expected number of
            selected tokens of a word), "mean" or "first".

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> scored = score_texts(model, ["Marie Curie moved to Paris.", ""])
    >>> scored[0].words, scored[1].words
    ([(0, 5), (6, 11), (12, 17), (18, 20), (21, 26)], [])
    """
    number = model.config.find_selector(selector)
    return next(_score(model, [(texts, words)], batch_size, use_surface, [number], aggregate))[0]


@torch.inference_mode()
def score_selectors(
    model: GateModel,
    texts: Sequence[str],
    *,
    words: Sequence[Sequence[Span]] | None = None,
    batch_size: int = 32,
) -> dict[str, list[ScoredText]]:
    """What `score_texts` gives for each of the model's selectors, by its name; the encoder runs once for all of them.

    >>> from hardkuma import load_released
    >>> model, texts = load_released()[0], ["Marie Curie moved to Paris."]
    >>> scores = score_selectors(model, texts)
    >>> {name: [round(p, 1) for p in scored[0].probabilities] for name, scored in scores.items()}
    {'meaning': [0.6, 0.5, 0.2, 0.0, 0.7], 'entities': [0.9, 1.0, 0.1, 0.1, 1.0]}
    """
    names = model.config.names
    scored = next(_score(model, [(texts, words)], batch_size, True, list(range(len(names))), "max"))
    return dict(zip(names, scored, strict=True))


def _score(
    model: GateModel, parts: Iterable[Part], batch_size: int, use_surface: bool, selectors: list[int], aggregate: str
) -> Iterator[list[list[ScoredText]]]:
    """For each part and each of these selectors its texts, in order."""
    if aggregate not in AGGREGATES:
        raise ValueError(f"aggregate must be one of {', '.join(AGGREGATES)}; got {aggregate!r}.")
    checked = (_check_call(model, texts, words, batch_size) for texts, words in parts)
    for chunks in run_parts(model, checked, batch_size, use_surface, selectors):
        results: list[dict[int, ScoredText]] = [{} for _ in selectors]
        for chunk in chunks:
            for known, row in zip(results, _scored_texts(model, chunk, selectors, aggregate), strict=True):
                known.update(zip(chunk.numbers, row, strict=True))
        yield [[known[i] for i in range(len(known))] for known in results]


def _scored_texts(model: GateModel, chunk: TextChunk, selectors: list[int], aggregate: str) -> Iterator[list[ScoredText]]:
    """The texts of a chunk that the model has run on; for each selector."""
    threshold = float(model.config.decision_threshold)
    aggregates = ["max"] if aggregate == "max" else ["max", aggregate]
    spans = list(pairwise(chunk.index.firsts))
    for number, (probabilities, *others) in zip(selectors, chunk.values(aggregates), strict=True):
        selector = model.config.selector(number)
        weights = chunk.shared_gates(probabilities, selector)
        yield [
            ScoredText(
                text,
                words,
                probabilities[first:past],
                windows=count,
                threshold=threshold,
                selector=selector,
                weights=None if weights is None else weights[first:past],
                scores=others[0][first:past] if others else None,
                language=model.config.language,
            )
            for text, words, (first, past), count in zip(chunk.texts, chunk.words, spans, chunk.counts, strict=True)
        ]


def _check_call(model: GateModel, texts: Sequence[str], words: Sequence[Sequence[Span]] | None, batch_size: int) -> Part:
    if isinstance(texts, str):
        raise ValueError("texts must be a list of texts, got one string; wrap it: [text].")
    if hasattr(texts, "columns"):
        raise ValueError(f"texts must be a list of texts, got a {type(texts).__name__}; give one of its columns.")
    if not isinstance(texts, Iterable):
        raise ValueError(f"texts must be a list of texts, got a {type(texts).__name__}: {texts!r:.80}.")
    texts = list(texts)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            hint = " An empty cell? Give '' instead." if text is None or text != text else ""
            raise ValueError(f"texts must be strings, but number {i} is a {type(text).__name__}: {text!r:.80}.{hint}")
    if words is not None:
        if len(words) != len(texts):
            raise ValueError(f"words must have one list for each of the {len(texts)} texts, got {len(words)}.")
        for text, row in zip(texts, words, strict=True):
            check_words(text, row)
    check_count("batch_size", batch_size)
    if model.training:
        raise ValueError("the model is in training mode, whose gates are random; call model.eval() first.")
    if not model.tokenizer.is_fast:
        raise ValueError(f"{type(model.tokenizer).__name__} gives no character offsets; use a fast tokenizer.")
    return texts, words


# ---- records that are shown --------------------------------------------------------------------------------------------

# Control characters could move the cursor or rename the window: they are shown, not sent. Tabs and line ends stay.
_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
_MARKER = "245, 166, 20"  # readable under dark ink and under light


class Highlight(list[Record]):
    """Records that show themselves: as the last line of a notebook's cell, by `print`, or saved as a page.

    >>> word = {"word": "Oslo", "start": 3, "end": 7, "probability": 0.9, "selected": True}
    >>> shown = Highlight([{"text": "In Oslo", "words": [word], "spans": [{**word, "text": "Oslo"}]}])
    >>> print(shown)
    In [Oslo]
    """

    def __str__(self) -> str:
        colour = use_colour(sys.stdout)
        return "\n".join(paint(safe(record), colour) for record in self)

    def to_html(self) -> str:
        """A paragraph for each text, to put into a page: words shaded by probability, selected spans underlined; everything
        is escaped."""
        return "".join(
            f'<p dir="auto" style="line-height: 1.9; white-space: pre-wrap">{_shaded(record)}</p>' for record in self
        )

    _repr_html_ = to_html  # what a notebook calls

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a self-contained HTML page, NAME.html; what was there is replaced whole."""
        target = Path(path)
        if target.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"a page is written as HTML, not as {target.name!r}; give a name that ends in .html.")
        page = (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f"<title>HardKuma</title></head><body>{self.to_html()}</body></html>\n"
        )
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            partial.write_text(encodable(page), encoding="utf-8")
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)


def _shaded(record: Record) -> str:
    """The text as HTML."""
    text, words, parts, position = record["text"], record["words"], [], 0
    starts = [word["start"] for word in words]

    def part(start: int, end: int) -> str:
        """text[start:end] with its words shaded."""
        shown, at = [], start
        for word in words[bisect_left(starts, start) : bisect_left(starts, end)]:
            style = f"background: rgba({_MARKER}, {0.75 * word['probability']:.2f}); color: inherit"
            shown.append(escape(text[at : word["start"]]))
            inside = escape(text[word["start"] : word["end"]])
            shown.append(f'<mark style="{style}" title="{word["probability"]:.2f}">{inside}</mark>')
            at = word["end"]
        return "".join([*shown, escape(text[at:end])])

    for span in _merged(record["spans"]):
        inside = part(span["start"], span["end"])
        line = f"border-bottom: .15em solid rgb({_MARKER})"
        parts += [part(position, span["start"]), f'<span style="{line}">{inside}</span>']
        position = span["end"]
    return "".join([*parts, part(position, len(text))])


def use_colour(stream: TextIO) -> bool:
    """Colours on a terminal, or anywhere with FORCE_COLOR set; never where NO_COLOR is set."""
    return not os.environ.get("NO_COLOR") and bool(stream.isatty() or os.environ.get("FORCE_COLOR"))


def paint(record: Record, colour: bool) -> str:
    r"""The text with its words shaded by probability and the selected ones underlined; without colours selected spans are
    in [brackets] (selected words, of a record without spans), and brackets of the text itself are written \[ and \]. What
    is "different" has another colour, or {braces}.

    >>> words = [{"start": 0, "end": 2, "probability": 0.9, "selected": True}]
    >>> print(paint({"text": "Al ran [1]", "words": words, "spans": words}, colour=False))
    [Al] ran \[1\]
    """
    text, parts, position = record["text"], [], 0
    spans = record.get("spans", [word for word in record["words"] if word["selected"]])
    special = "[]{}" if any(span.get("different") for span in spans) else "[]"
    for piece in record["words"] if colour else _merged(spans):
        before, inside, position = text[position : piece["start"]], text[piece["start"] : piece["end"]], piece["end"]
        different = piece.get("different", False)
        if colour:
            parts += [before, _coloured(inside, piece["probability"], piece["selected"], different)]
        else:
            opening, closing = "{}" if different else "[]"
            parts += [_escape(before, special), opening, _escape(inside, special), closing]
    rest = text[position:]
    return "".join([*parts, rest if colour else _escape(rest, special, bracket_follows=False)])


def _merged(spans: Sequence[Record]) -> list[Record]:
    """Spans in the order of the text; those of several selectors that overlap are one."""
    merged: list[Record] = []
    for span in sorted(spans, key=lambda span: span["start"]):
        if merged and span["start"] < merged[-1]["end"]:
            merged[-1] = {**merged[-1], "end": max(merged[-1]["end"], span["end"])}
        else:
            merged.append(span)
    return merged


def _escape(text: str, special: str, bracket_follows: bool = True) -> str:
    r"""Each bracket behind a backslash. Backslashes that stand before a bracket are doubled: after an odd number of them it
    is one of the text, after an even number one of ours."""
    text = re.sub(rf"(?<!\\)(\\*+)([{re.escape(special)}])", r"\1\1\\\2", text)
    return re.sub(r"(?<!\\)(\\++)\Z", r"\1\1", text) if bracket_follows else text


def _coloured(word: str, probability: float, selected: bool, different: bool = False) -> str:
    # 24 shades of grey are too subtle on dark screens: from the terminal's own background to a strong green, or magenta.
    shade = int(5 * min(max(probability, 0.0), 1.0))
    style = (
        f"48;5;{16 + (37 if different else 6) * shade}" + (";38;5;16" if shade > 2 else "") + (";1;4" if selected else "")
    )
    return f"\033[{style}m{word}\033[0m" if shade or selected else word


def safe(record: Record) -> dict[str, Any]:
    """The record with control characters of its text made visible; offsets stay right.

    >>> safe({"text": "a\\x1b[2J", "words": []})["text"]
    'a�[2J'
    """
    return {**record, "text": safe_text(record["text"])}


def safe_text(text: str) -> str:
    """The text with its control characters made visible, one character each.

    >>> safe_text("a\\x1b[2J")
    'a�[2J'
    """
    return text.translate(_CONTROLS)
