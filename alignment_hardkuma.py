"""Which words of a text does each token touch? Answered for whole batches at once, by character offsets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import torch
from torch import Tensor

Span = tuple[int, int]


class WordIndex:
    """The words of several texts in one sorted list, so that tokens of any of them are found by binary search.

    Attributes:
        firsts: for each text the number of its first word; one entry more than there are texts.
        size: the number of words of all texts.

    >>> index = WordIndex([[(0, 5), (6, 11)], [(0, 2)]], [12, 2])
    >>> index.firsts, index.size
    ([0, 2, 3], 3)
    """

    def __init__(self, words: Sequence[Sequence[Span]], lengths: Sequence[int]):
        self.firsts = [0, *accumulate(len(row) for row in words)]
        self.size = self.firsts[-1]
        # One line of characters on which the texts follow each other.
        bases = [0, *accumulate(lengths)]
        self._bases = torch.tensor(bases[:-1])
        spans = torch.tensor(list(chain.from_iterable(words)), dtype=torch.long).reshape(-1, 2)
        shift = self._bases.repeat_interleave(torch.tensor([len(row) for row in words], dtype=torch.long))[:, None]
        self._starts, self._ends = (spans + shift).T.contiguous()

    def touched(self, owners: Tensor, starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """The first word that each token touches, and how many it touches; both (batch, length).

        Args:
            owners: (batch,) the text of each row.
            starts, ends: (batch, length) character offsets of the tokens; an empty token touches nothing.

        >>> index = WordIndex([[(0, 5), (6, 11)], [(0, 2)]], [12, 2])
        >>> index.touched(torch.tensor([0]), torch.tensor([[0, 0, 5, 11]]), torch.tensor([[0, 5, 11, 12]]))[1]
        tensor([[0, 1, 1, 0]])
        """
        base = self._bases[owners][:, None]
        first = torch.searchsorted(self._ends, starts + base, right=True)
        past = torch.searchsorted(self._starts, ends + base)
        return first, torch.where(ends > starts, past - first, 0).clamp_min(0)


def check_words(text: str, words: Sequence[Span]) -> None:
    """Words must be sorted, not empty, not overlapping and inside of their text.

    >>> check_words("Marie moved", [(0, 5), (4, 11)])
    Traceback (most recent call last):
    ValueError: word (4, 11) of a text of 11 characters is empty, outside of it, or before the end of the word before (5).
    """
    before = 0
    for start, end in words:
        if not before <= start < end <= len(text):
            raise ValueError(
                f"word {(start, end)} of a text of {len(text)} characters is empty, outside of it, or before the end of "
                f"the word before ({before})."
            )
        before = end
