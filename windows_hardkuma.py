"""Long texts as overlapping windows of tokens, and values of tokens as values of words.

    a text of 600 tokens    |..............................................|
    windows of 256, a       |------------------|
    quarter of each shared               |------------------|
                                                      |--------------------|

Nothing is cut. A word that lies in several windows takes its value from the one in which it stands furthest from an edge,
so with the most context; where that is a tie (a word longer than the overlap), the largest value.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .surface_hardkuma import WordIndex

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
    """Sizes of the batches of windows with these lengths, ascending."""
    sizes, size = [], 0
    for length in lengths:
        # The last window is the longest, so its length is that of the batch.
        if size and (size == batch_size or (max_tokens is not None and (size + 1) * length > max_tokens)):
            sizes.append(size)
            size = 0
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


class JoinedTokens:
    """The tokens of one text that lies in several windows, each once and in order; special tokens left out.

    A token takes its value from the window that its word takes it from; a token of no word, from the one in which it stands
    furthest from an edge itself.

    Args:
        windows: of one text, in its order.
        content: (tokens,) bool, false for special tokens.
        overlap: how many content tokens two neighbouring windows share.
        members: the words of the text.

    Attributes:
        firsts: (joined,) the number of each token in `windows`, where it comes first.

    >>> windows = Windows(torch.tensor([0, 0]), torch.tensor([3, 3]), *torch.arange(12).view(2, 6), inputs={})
    >>> members = WordTokens(windows, WordIndex([[]], [12]))
    >>> joined = JoinedTokens(windows, torch.ones(6, dtype=torch.bool), 1, members)
    >>> joined.firsts, joined.values(torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
    (tensor([0, 1, 2, 4, 5]), tensor([0.1000, 0.2000, 0.4000, 0.5000, 0.6000]))
    """

    def __init__(self, windows: Windows, content: Tensor, overlap: int, members: WordTokens):
        tokens = content.nonzero()[:, 0]
        window = windows.numbers[tokens]
        counts = torch.bincount(window, minlength=len(windows.lengths))
        # What comes before a window: with and without what it repeats of the windows before.
        before, new = counts.cumsum(0) - counts, (counts - overlap).cumsum(0) - (counts - overlap)
        number = new[window] + torch.arange(len(tokens)) - before[window]
        size = int(number.max()) + 1 if len(number) else 0
        self.firsts = tokens.new_full((size,), len(content)).scatter_reduce_(0, number, tokens, "amin")
        margins = windows.margins[tokens]
        widest = margins.new_full((size,), -1).scatter_reduce_(0, number, margins, "amax")
        counting = torch.where(members.touching[tokens], members.counting[tokens], margins == widest[number])
        self._tokens, self._numbers = tokens[counting], number[counting]

    def values(self, token_values: Tensor) -> Tensor:
        """(joined,) values from those of all tokens of all windows, (tokens,); in a tie the largest."""
        of_joined = token_values.new_zeros(len(self.firsts))
        return of_joined.scatter_reduce_(0, self._numbers, token_values[self._tokens], "amax")


def _flat(rows: Iterable[Iterable[int]]) -> Tensor:
    numbers = array("q", chain.from_iterable(rows))  # several times as fast as torch.tensor of a list
    return torch.frombuffer(numbers, dtype=torch.long) if numbers else torch.zeros(0, dtype=torch.long)
