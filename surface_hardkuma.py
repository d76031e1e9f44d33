"""The surface view: the class of a word's written form, and one log-odds per class learned from the gates themselves.

An uncased encoder cannot see form. These classes can be computed from the original text alone, for scripts with and
without case; the model shifts a gate's logit by the log-odds of its word's class when it is given `surface_ids`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

SURFACE_CLASSES = (
    "unknown",  # 0: special tokens, padding, or no information; never shifts a gate
    "symbol",  # no letter and no digit
    "digit",  # any digit
    "lower",  # letters, all lower case
    "initial_start",  # capital first letter, at the start of a sentence
    "initial_inside",  # capital first letter, elsewhere
    "capitals",  # two or more letters, all capital
    "single_capital",  # one capital letter by itself, not at the start of a sentence
    "mixed",  # capitals after a small letter: iPhone, eBay, mRNA
    "caseless",  # letters of a script without case
    "handle",  # begins with @ or #
)
NUM_SURFACE_CLASSES = len(SURFACE_CLASSES)
_ID = {name: index for index, name in enumerate(SURFACE_CLASSES)}

_JOINERS = frozenset("'’.-&_")
_SENTENCE_ENDS = frozenset(".!?…。！？؟।\n")
_OPENERS = frozenset("\"'“”‘’«»‹›([{（「『¿¡*-–—•")


def _is_word_character(character: str) -> bool:
    # Combining marks belong to the letter before them (Devanagari vowels, decomposed accents).
    return character.isalnum() or unicodedata.category(character).startswith("M")


def find_words(text: str) -> list[tuple[int, int]]:
    """Character spans of words: letters, digits and marks, joined by an inner apostrophe, hyphen, full stop, & or _.

    A leading @ or # belongs to its word.

    >>> [("@Ana met O'Neil in the U.S., ok?")[s:e] for s, e in find_words("@Ana met O'Neil in the U.S., ok?")]
    ['@Ana', 'met', "O'Neil", 'in', 'the', 'U.S', 'ok']
    """
    spans, start = [], None
    for i, character in enumerate(text):
        if _is_word_character(character):
            start = i if start is None else start
        elif start is not None:
            joined = character in _JOINERS and i + 1 < len(text) and _is_word_character(text[i + 1])
            if not joined:
                spans.append((start, i))
                start = None
    if start is not None:
        spans.append((start, len(text)))
    return [(s - 1, e) if s > 0 and text[s - 1] in "@#" else (s, e) for s, e in spans]


def starts_sentence(text: str, start: int) -> bool:
    """Whether a word beginning at `start` opens a sentence: nothing but opening marks between it and a sentence end.

    >>> starts_sentence("Go. “Now”", 5), starts_sentence("Go now", 3)
    (True, False)
    """
    i = start - 1
    while i >= 0 and (text[i] in _OPENERS or text[i].isspace()):
        if text[i] == "\n":
            return True
        i -= 1
    return i < 0 or text[i] in _SENTENCE_ENDS


def word_class(word: str, at_start: bool = False) -> int:
    """Class id of one word's form.

    >>> [SURFACE_CLASSES[word_class(w)] for w in ["Paris", "NATO", "iPhone", "walks", "4x4", "東京", "@ana", "…"]]
    ['initial_inside', 'capitals', 'mixed', 'lower', 'digit', 'caseless', 'handle', 'symbol']
    """
    if word[:1] in ("@", "#") and len(word) > 1:
        return _ID["handle"]
    letters = [c for c in word if c.isalpha()]
    if any(c.isdigit() for c in word):
        return _ID["digit"]
    if not letters:
        return _ID["symbol"]
    upper = [c.isupper() or c.istitle() for c in letters]
    lower = [c.islower() for c in letters]
    if not any(upper) and not any(lower):
        return _ID["caseless"]
    if not any(upper):
        return _ID["lower"]
    if upper[0] and len(letters) > 1 and not any(lower):
        return _ID["capitals"]
    if not upper[0]:
        return _ID["mixed"]
    if at_start:
        return _ID["initial_start"]
    return _ID["single_capital"] if len(letters) == 1 else _ID["initial_inside"]


def surface_ids(text: str, offsets: Iterable[tuple[int, int]]) -> list[int]:
    """Class of each token's word, from the original text and the tokens' character offsets.

    Args:
        text: the text that was tokenised.
        offsets: (start, end) per token, as a fast tokenizer gives with `return_offsets_mapping=True`; an empty span
            (special tokens, padding) gives 0.

    >>> surface_ids("Visit Paris!", [(0, 0), (0, 5), (6, 8), (8, 11), (11, 12), (0, 0)])
    [0, 4, 5, 5, 1, 0]
    """
    class_at = [_ID["symbol"]] * len(text)
    for start, end in find_words(text):
        kind = word_class(text[start:end], starts_sentence(text, start))
        class_at[start:end] = [kind] * (end - start)
    ids = []
    for start, end in offsets:
        # Some tokenizers put the space before a word inside its token.
        while start < end and text[start].isspace():
            start += 1
        # A token of several characters takes the class of its first word character.
        inside = [class_at[i] for i in range(start, end)]
        ids.append(next((kind for kind in inside if kind != _ID["symbol"]), inside[0]) if inside else 0)
    return ids


def surface_batch(texts: Sequence[str], offset_mapping: Sequence[Sequence[Sequence[int]]] | Tensor) -> Tensor:
    """`surface_ids` for a tokenised batch: (batch, length), long.

    >>> surface_batch(["Paris"], [[(0, 0), (0, 5), (0, 0)]])
    tensor([[0, 4, 0]])
    """
    rows = offset_mapping.tolist() if isinstance(offset_mapping, Tensor) else offset_mapping
    return torch.tensor([surface_ids(text, [(s, e) for s, e in row]) for text, row in zip(texts, rows, strict=True)])


class SurfaceStatistics:
    """Mean gate per class over unlabelled text, and the log-odds that follow from it.

    log-odds of class c = n_c / (n_c + shrinkage) * (logit(mean gate of c) - logit(mean gate)): rare classes are pulled
    to zero. Feed it the gates *without* the surface view.

    >>> statistics = SurfaceStatistics(num_selectors=1)
    >>> statistics.update(torch.tensor([[[0.9, 0.1]]]), torch.tensor([[5, 3]]), torch.ones(1, 2))
    >>> statistics.log_odds(shrinkage=0.0)[0, [0, 3, 5]]
    tensor([ 0.0000, -2.1972,  2.1972])
    """

    def __init__(self, num_selectors: int = 1):
        self.sums = torch.zeros(num_selectors, NUM_SURFACE_CLASSES, dtype=torch.float64)
        self.counts = torch.zeros(NUM_SURFACE_CLASSES, dtype=torch.float64)

    def update(self, gate_probs: Tensor, ids: Tensor, content: Tensor) -> None:
        """gate_probs: (batch, K, length); ids, content: (batch, length)."""
        keep = content.bool() & (ids > 0)
        classes = ids[keep].cpu()
        self.counts.index_add_(0, classes, torch.ones_like(classes, dtype=torch.float64))
        for k in range(self.sums.shape[0]):
            self.sums[k].index_add_(0, classes, gate_probs[:, k][keep].detach().double().cpu())

    def log_odds(self, shrinkage: float) -> Tensor:
        """(K, classes) fp32; zero for class 0 and for classes never seen."""
        total = self.counts.sum().clamp_min(1.0)
        overall = torch.logit(self.sums.sum(-1, keepdim=True) / total, eps=1e-6)
        mean = self.sums / self.counts.clamp_min(1.0)
        # eps bounds the log-odds of a class whose every gate is 0 or 1.
        shift = torch.logit(mean, eps=1e-3) - overall
        shrunk = shift * self.counts / (self.counts + shrinkage).clamp_min(1e-12)
        return torch.where(self.counts > 0, shrunk, torch.zeros_like(shrunk)).float()
