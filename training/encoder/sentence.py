"""A sentence as augmentations take and give it: tokens, the words they belong to, and scores of their importance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from transformers import PreTrainedTokenizerBase

LETTERS = "letters"  # how long each token's word is: its importance where nothing else is known


@dataclass(frozen=True)
class Sentence:
    """The tokens of one sentence, or of a view of it.

    Attributes:
        ids: (length,) token ids, special tokens included, no padding.
        words: (length,) number of each token's word; -1 for special tokens, which stay unless a view is told to drop them.
        scores: by the name of the measure, (length,) importance of each token, or (length, n) for n numbers of each.
        positions: (length,) position ids; None for 0, 1, 2, ...
        cut_tokens: (length,) true where a token's embedding is to be zero; None for nowhere.
        cut_features: (size,) true where a dimension of all embeddings is to be zero; None for nowhere.
    """

    ids: np.ndarray
    words: np.ndarray
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)
    positions: np.ndarray | None = None
    cut_tokens: np.ndarray | None = None
    cut_features: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def content(self) -> np.ndarray:
        """(length,) whether a token belongs to a word."""
        return self.words >= 0

    @property
    def word_numbers(self) -> np.ndarray:
        """Numbers of the words, in reading order."""
        return np.unique(self.words[self.content])

    def take(self, index: np.ndarray) -> Sentence:
        """The tokens at these places, in that order: what follows moves up, so that padding is on the right.

        >>> Sentence(np.array([2, 7, 8, 3]), np.array([-1, 0, 1, -1])).take(np.array([0, 2, 3])).ids.tolist()
        [2, 8, 3]
        """
        scores = {name: values[index] for name, values in self.scores.items()}
        cut = None if self.cut_tokens is None else self.cut_tokens[index]
        return replace(self, ids=self.ids[index], words=self.words[index], scores=scores, positions=None, cut_tokens=cut)

    def importance(self, measure: str) -> np.ndarray:
        """(words,) the largest score of each word's tokens by a measure; without it, the number of its letters."""
        values = self.scores.get(measure, self.scores.get(LETTERS, np.ones(len(self))))
        return np.array([values[self.words == word].max() for word in self.word_numbers])

    def most_important(self, measure: str = LETTERS) -> np.ndarray:
        """(length,) true on the tokens of the most important word; of equal ones the first.

        >>> scores = {"norm": np.array([0.0, 1.0, 3.0, 0.0])}
        >>> Sentence(np.array([2, 7, 8, 3]), np.array([-1, 0, 1, -1]), scores).most_important("norm").tolist()
        [False, False, True, False]
        """
        return self.words == self.word_numbers[self.importance(measure).argmax()]

    def spare(self, chosen: np.ndarray, measure: str = LETTERS) -> np.ndarray:
        """(length,) `chosen` tokens without special ones and, if no other would be left, without the most important word.

        >>> sentence = Sentence(np.array([2, 7, 8, 3]), np.array([-1, 0, 1, -1]))
        >>> sentence.spare(np.array([True, True, True, True])).tolist()
        [False, False, True, False]
        """
        chosen = chosen & self.content
        if chosen.any() and (chosen == self.content).all():
            chosen = chosen & ~self.most_important(measure)
        return chosen

    def without(self, removed: np.ndarray, measure: str = LETTERS) -> Sentence:
        """The sentence without these tokens, (length,); one that would be empty keeps its most important word.

        >>> Sentence(np.array([2, 7, 8, 3]), np.array([-1, 0, 1, -1])).without(np.array([False, True, True, False])).ids
        array([2, 7, 3])
        """
        return self.take(np.flatnonzero(~self.spare(removed, measure)))


def read_sentences(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_tokens: int | None) -> list[Sentence]:
    """Tokens of each text, cut at `max_tokens`; words are those of the tokenizer, punctuation among them."""
    if not texts:
        return []
    limit = {} if max_tokens is None else {"truncation": True, "max_length": max_tokens}
    coded = tokenizer(list(texts), return_offsets_mapping=True, **limit)
    sentences = []
    for number, (ids, offsets) in enumerate(zip(coded["input_ids"], coded["offset_mapping"], strict=True)):
        words = np.array([-1 if word is None else word for word in coded.word_ids(number)], dtype=int)
        lengths = np.array([end - start for start, end in offsets], dtype=float)
        letters = np.array([lengths[words == word].sum() if word >= 0 else 0.0 for word in words])
        sentences.append(Sentence(np.array(ids, dtype=int), words, {LETTERS: letters}))
    return sentences
