"""Cleaning unlabelled text: white space, length, sentences without letters, duplicates; and a count of what was dropped."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

REASONS = ("too short", "too long", "without letters", "duplicates")


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


def clean(
    texts: Iterable[str], min_words: int = 4, max_words: int = 64, counts: Counter[str] | None = None
) -> Iterator[str]:
    """Texts with white space normalised, without those that are too short, too long, without letters, or seen before.

    One text at a time, in order. Duplicates are exact but for case and white space; the first one stays.

    Args:
        counts: counts what becomes of texts: "kept", or why they are dropped (`REASONS`).

    >>> counts = Counter()
    >>> list(clean(["Rain  fell all night.", "RAIN fell all night.", "Yes.", "1 2 3 4"], counts=counts))
    ['Rain fell all night.']
    >>> describe_cleaning(counts)
    'kept 1 of 4 sentences; dropped 1 too short, 1 without letters, 1 duplicates'
    """
    counts = Counter() if counts is None else counts
    seen: set[bytes] = set()
    for raw in texts:
        text = " ".join(raw.split())
        reason = _why_unusable(text, min_words, max_words)
        if reason is None:
            # 8 bytes a sentence: two different ones collide once in 10^6 corpora of 10^6 sentences.
            digest = hashlib.blake2b(text.casefold().encode(errors="surrogatepass"), digest_size=8).digest()
            reason = "duplicates" if digest in seen else None
            seen.add(digest)
        counts["kept" if reason is None else reason] += 1
        if reason is None:
            yield text


def _why_unusable(text: str, min_words: int, max_words: int) -> str | None:
    words = count_words(text)
    if not any(c.isalpha() for c in text):
        return "without letters"
    return "too short" if words < min_words else "too long" if words > max_words else None


def describe_cleaning(counts: Counter[str]) -> str:
    """What `clean` has counted, for people."""
    dropped = ", ".join(f"{counts[reason]:,} {reason}" for reason in REASONS if counts[reason])
    return f"kept {counts['kept']:,} of {counts.total():,} sentences" + (f"; dropped {dropped}" if dropped else "")
