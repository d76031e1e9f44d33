"""The bundled corpus: 6,000 sentences of ten domains, written for this project, so that nothing else has to be fetched.

They come from `data/bundled.conll.gz`: columns word, domain and tag. Entity words are known, so that tests and
demonstrations can measure without any outside data; training takes `bundled_texts`, which carries no labels. Some names are
of real places, organisations, works and people of history, others are invented; what is said about them is made up. Numbers
and dates are not entities.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

from .conll import LabelledSentence, conll_sentences, detokenise

DOMAINS = ("news", "sport", "science", "medicine", "law", "finance", "travel", "software", "social", "history")
BUNDLED_SIZE = 6_000
_FILE = Path(__file__).parent / "bundled.conll.gz"


@cache
def _sentences() -> tuple[LabelledSentence, ...]:
    """In the order of the file: about 400 sentences of all domains, then as many of the same patterns, and so on."""
    sentences = []
    for _, rows in conll_sentences(str(_FILE)):
        text, offsets = detokenise([word for word, _, _ in rows])
        sentences.append(LabelledSentence(text, offsets, tuple(tag for _, _, tag in rows), source=rows[0][1]))
    return tuple(sentences)


def bundled_examples(n: int | None = None) -> list[LabelledSentence]:
    """`n` (default: all, BUNDLED_SIZE) distinct sentences with tags such as "B-person", "I-place" and "O".

    The entity types are person, organisation, place, product, work and event; `source` is the domain, one of DOMAINS. Every
    `n` has all domains in about equal parts, in a random order that is always the same.
    For evaluation only: see `bundled_texts` for training.

    >>> example = bundled_examples(20)[0]
    >>> len(example.words) == len(example.tags), example.source in DOMAINS
    (True, True)
    """
    size = BUNDLED_SIZE if n is None else n
    if not 1 <= size <= BUNDLED_SIZE:
        raise ValueError(f"n must be in 1 to {BUNDLED_SIZE}, the sentences of the bundled corpus; got {n}")
    first = _sentences()[:size]
    # random() of a text seed is promised to stay the same: the same order on every machine, and in every version of Python.
    draw = random.Random("order 0").random
    keys = [draw() for _ in first]
    return [first[i] for i in sorted(range(size), key=keys.__getitem__)]


def bundled_texts(n: int | None = None) -> list[str]:
    """`n` (default: all) distinct sentences of the bundled corpus, without labels.

    >>> len(set(bundled_texts(100)))
    100
    """
    return [example.text for example in bundled_examples(n)]
