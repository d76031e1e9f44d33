"""Cleaning unlabelled text: white space, length, sentences without letters, duplicates; and a count of what was dropped."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache


@cache
def _unspaced_character() -> re.Pattern[str]:
    from ..words_hardkuma import UNSPACED  # imports torch, which reading text does not need

    return re.compile(f"[{UNSPACED}]")


def count_words(text: str) -> int:
    """Number of words: what stands between spaces and has a letter or digit; two characters each in unspaced scripts.

    >>> count_words("It works - mostly !"), count_words("東京は大きい都市です")
    (3, 5)
    """
    spaced, unspaced = _unspaced_character().subn(" ", text)
    return sum(any(c.isalnum() for c in part) for part in spaced.split()) + (unspaced + 1) // 2


@dataclass
class CleanSummary:
    """What happened to a corpus: read == kept + what was dropped, for four reasons.

    >>> print(CleanSummary(read=10, kept=7, too_short=2, duplicates=1))
    kept 7 of 10 sentences; dropped 2 too short, 1 duplicates
    """

    read: int = 0
    kept: int = 0
    too_short: int = 0
    too_long: int = 0
    no_letters: int = 0
    duplicates: int = 0

    def __str__(self) -> str:
        counts = {
            "too short": self.too_short,
            "too long": self.too_long,
            "without letters": self.no_letters,
            "duplicates": self.duplicates,
        }
        dropped = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        return f"kept {self.kept:,} of {self.read:,} sentences" + (f"; dropped {dropped}" if dropped else "")


class CleanTexts(Iterator[str]):
    """The iterator that `clean` returns; `summary` counts as it goes."""

    def __init__(self, texts: Iterable[str], min_words: int, max_words: int, deduplicate: bool):
        if min_words < 0 or max_words < max(min_words, 1):
            raise ValueError(f"0 <= min_words <= max_words and max_words >= 1 are needed, got {min_words} and {max_words}")
        if isinstance(texts, str):
            raise TypeError(f"texts must be many strings, got one: {texts[:40]!r}; pass [text]")
        self.summary = CleanSummary()
        self._texts = iter(texts)
        self._min, self._max = min_words, max_words
        self._seen: set[bytes] | None = set() if deduplicate else None

    def __next__(self) -> str:
        for raw in self._texts:
            self.summary.read += 1
            text = " ".join(raw.split())
            if self._keep(text):
                self.summary.kept += 1
                return text
        raise StopIteration

    def _keep(self, text: str) -> bool:
        words = count_words(text)
        if not any(c.isalpha() for c in text):
            self.summary.no_letters += 1
        elif words < self._min:
            self.summary.too_short += 1
        elif words > self._max:
            self.summary.too_long += 1
        elif self._seen_before(text):
            self.summary.duplicates += 1
        else:
            return True
        return False

    def _seen_before(self, text: str) -> bool:
        if self._seen is None:
            return False
        # 8 bytes a sentence instead of the sentence: two different ones collide once in 10^6 corpora of 10^6 sentences.
        digest = hashlib.blake2b(text.casefold().encode(errors="surrogatepass"), digest_size=8).digest()
        if digest in self._seen:
            return True
        self._seen.add(digest)
        return False


def clean(texts: Iterable[str], min_words: int = 4, max_words: int = 64, deduplicate: bool = True) -> CleanTexts:
    """Texts with white space normalised, without those that are too short, too long, without letters, or seen before.

    Lazy: one text at a time, in order. Duplicates are exact but for case and white space; the first one stays.

    >>> cleaned = clean(["Rain  fell all night.", "RAIN fell all night.", "Yes.", "1 2 3 4"])
    >>> list(cleaned), str(cleaned.summary)
    (['Rain fell all night.'], 'kept 1 of 4 sentences; dropped 1 too short, 1 without letters, 1 duplicates')
    """
    return CleanTexts(texts, min_words, max_words, deduplicate)
