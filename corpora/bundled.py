"""The bundled corpus: sentences of ten domains, written for this project, generated from frames and always the same.

Entity words are known by construction, so that tests and demonstrations can measure without any outside data; training
takes `bundled_texts`, which carries no labels. Some names are of real places, organisations, works and people of history,
others are invented; what is said about them is made up. Numbers and dates are not entities.
"""

from __future__ import annotations

import random
from functools import cache
from importlib.resources import files

from .frames import Grammar
from .labelled import LabelledSentence
from .writer import Writer

DOMAINS = ("news", "sport", "science", "medicine", "law", "finance", "travel", "software", "social", "history")
DEFAULT_SIZE = 6_000
_SHARED = "shared"  # pools that all domains use
_ATTEMPTS = 200  # failures in a row to find a new sentence before a frame counts as exhausted


@cache
def grammar() -> Grammar:
    """Pools and frames of all domains, parsed once.

    >>> len(grammar().frames) >= 300
    True
    """
    result = Grammar()
    for name in (_SHARED, *DOMAINS):
        text = (files(__package__) / "data" / f"{name}.txt").read_text(encoding="utf-8")
        result.add(text.splitlines(), name)
    result.check()
    return result


@cache
def _examples(n: int, seed: int) -> tuple[LabelledSentence, ...]:
    writers = [Writer(grammar(), frame, seed) for frame in grammar().frames]
    seen: set[str] = set()
    written: list[LabelledSentence] = []
    # Every frame writes one sentence before any writes its next, so that a small n has all domains and frames.
    while len(written) < n and writers:
        writing = []
        for writer in _shuffled(writers, seed + len(written)):
            sentence = _new_sentence(writer, seen)
            if sentence is not None:
                written.append(sentence)
                writing.append(writer)
        writers = [writer for writer in writers if writer in writing]
    if len(written) < n:
        raise ValueError(f"n must be at most {len(written)}, the distinct sentences found with seed {seed}; got {n}")
    return tuple(_shuffled(written[:n], seed))


def _new_sentence(writer: Writer, seen: set[str]) -> LabelledSentence | None:
    for _ in range(_ATTEMPTS):
        sentence = writer.write()
        key = sentence.text.casefold()
        if key not in seen:
            seen.add(key)
            return sentence
    return None


def _shuffled(items: list, seed: int) -> list:
    return [items[i] for i in _order(len(items), seed)]


def _order(size: int, seed: int) -> list[int]:
    generator = random.Random(f"order {seed}").random
    keys = [generator() for _ in range(size)]
    return sorted(range(size), key=keys.__getitem__)


def bundled_examples(n: int | None = None, seed: int = 0) -> list[LabelledSentence]:
    """`n` (default DEFAULT_SIZE) distinct sentences with tags such as "B-person", "I-place" and "O".

    Tags give one of the six entity types of `frames.ENTITY_TYPES`; `source` is the domain, one of DOMAINS.
    For evaluation only: see `bundled_texts` for training. The same `n` and `seed` give the same sentences everywhere.

    >>> example = bundled_examples(20)[0]
    >>> len(example.words) == len(example.tags), example.source in DOMAINS
    (True, True)
    """
    size = DEFAULT_SIZE if n is None else n
    if size < 1:
        raise ValueError(f"n must be >= 1, got {n}")
    return list(_examples(size, seed))


def bundled_texts(n: int | None = None, seed: int = 0) -> list[str]:
    """`n` (default DEFAULT_SIZE) distinct sentences of the bundled corpus, without labels.

    >>> len(set(bundled_texts(100)))
    100
    """
    return [example.text for example in bundled_examples(n, seed)]
