"""The sentences of a recipe: read, cleaned, without labels; and, for the objective `task`, texts with their classes."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import overload

import numpy as np

from ..data import bundled_texts, clean, read_texts
from ..data.cleaning import count_words, describe_cleaning
from ..data.lines import CorpusError
from ..data.readers import name_left_out, read_kept_rows
from ..data.reviews import bundled_reviews
from .recipe import TextRecipe

CHUNK = 4096  # texts that are read together where all are


class TextFile(Sequence[str]):
    """Texts in a file without a name, which is gone with the last object that reads it; 16 bytes of memory for each.

    >>> texts = TextFile(iter(["Rain.", "Marie Curie", "Paris"]))
    >>> texts[1], texts[:2], len(texts), list(texts.choose(np.array([0, 2])))
    ('Marie Curie', ['Rain.', 'Marie Curie'], 3, ['Rain.', 'Paris'])
    """

    def __init__(self, texts: Iterable[str], folder: str | Path | None = None):
        """
        Args:
            folder: where the file is; by default the system's folder for such files, which may be kept in memory.
        """
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 # it lives as long as this object
        edges = array("q", [0])
        for text in texts:
            edges.append(edges[-1] + self._file.write(text.encode("utf-8", "surrogatepass")))
        self._file.flush()
        bounds = np.frombuffer(edges, dtype=np.int64)
        self._starts, self._ends = bounds[:-1], bounds[1:]

    def choose(self, rows: np.ndarray) -> TextFile:
        """These texts alone, read from the same file."""
        chosen = object.__new__(TextFile)
        chosen._file, chosen._starts, chosen._ends = self._file, self._starts[rows], self._ends[rows]
        return chosen

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if not isinstance(index, slice):
            return self._read(int(self._starts[index]), int(self._ends[index]))
        pairs = zip(self._starts[index].tolist(), self._ends[index].tolist(), strict=True)
        return [self._read(start, end) for start, end in pairs]

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), CHUNK):
            yield from self[start : start + CHUNK]

    def _read(self, start: int, end: int) -> str:
        return os.pread(self._file.fileno(), end - start, start).decode("utf-8", "surrogatepass")


def load_training_texts(recipe: TextRecipe, log: Callable[[str], None] = print) -> list[str]:
    """All sentences that the recipe names, in memory; `spool_training_texts` leaves them on disk.

    >>> len(load_training_texts(TextRecipe(max_sentences=10), log=lambda text: None))
    10
    """
    return list(spool_training_texts(recipe, log))


def spool_training_texts(
    recipe: TextRecipe, log: Callable[[str], None] = print, folder: str | Path | None = None
) -> TextFile:
    """All sentences that the recipe names, read and cleaned one at a time.

    Args:
        log: told how many there were and what was left out.
        folder: as of `TextFile`.

    >>> spool_training_texts(TextRecipe(max_sentences=10), log=lambda text: None)[0].count(" ") > 2
    True
    """
    left_out: Counter[str] = Counter()

    def source(name: str) -> Iterable[str]:
        if name == "bundled":
            return bundled_texts()
        return read_texts(name, recipe.format, recipe.column, recipe.split_sentences, left_out)

    counts: Counter[str] = Counter()
    read = chain.from_iterable(map(source, recipe.data))
    texts = TextFile(clean(read, recipe.min_words, recipe.max_words, counts), folder)
    log(f"text: {describe_cleaning(counts)}")
    if left_out:
        log(f"text: {name_left_out(left_out)} (before that)")
    if not texts:
        raise ValueError(
            f"no sentence of {recipe.min_words} to {recipe.max_words} words in {', '.join(recipe.data)}: "
            "check the files, column and the word limits."
        )
    if recipe.max_sentences is not None and len(texts) > recipe.max_sentences:
        chosen = np.random.default_rng(recipe.seed).permutation(len(texts))[: recipe.max_sentences]
        texts = texts.choose(np.sort(chosen))
    return texts


def spool_labelled_texts(
    recipe: TextRecipe, label: str, log: Callable[[str], None] = print, folder: str | Path | None = None
) -> tuple[TextFile, list[str]]:
    """Texts and their classes, row by row: white space is normalised and nothing else is changed, split or thought of as
    a duplicate.

    Args:
        label: the column of classes; a number counts columns from 1, in files without a header.

    >>> texts, labels = spool_labelled_texts(TextRecipe(), "label", log=lambda text: None)
    >>> len(texts) == len(labels), sorted(set(labels))
    (True, ['negative', 'positive'])
    """
    labels: list[str] = []
    dropped: Counter[str] = Counter()

    def rows(name: str) -> Iterator[tuple[str, object]]:
        if name == "bundled":
            yield from bundled_reviews()
        else:
            for row in read_kept_rows(name, recipe.format, recipe.column, [label]):
                yield row.text, row.kept[label]

    def usable() -> Iterator[str]:
        for raw, value in chain.from_iterable(map(rows, recipe.data)):
            text, words = " ".join(raw.split()), count_words(raw)
            if value is None or not str(value).strip():
                dropped["without a class"] += 1
            elif words < recipe.min_words:
                dropped["too short"] += 1
            elif words > recipe.max_words:
                dropped["too long"] += 1
            else:
                labels.append(str(value).strip())
                yield text

    try:
        texts = TextFile(usable(), folder)
    except CorpusError as error:
        raise ValueError(error.explain({"keep": "--label", "column": "--column"})) from error
    shown = "".join(f"; dropped {count:,} {reason}" for reason, count in sorted(dropped.items()))
    log(f"text: {len(texts):,} texts of {len(set(labels))} classes{shown}")
    if not texts:
        raise ValueError(f"no text with a class in {', '.join(recipe.data)}: check the files, --column and --label.")
    if recipe.max_sentences is not None and len(texts) > recipe.max_sentences:
        chosen = np.sort(np.random.default_rng(recipe.seed).permutation(len(texts))[: recipe.max_sentences])
        texts, labels = texts.choose(chosen), [labels[row] for row in chosen]
    return texts, labels


def split_held_out(rows: np.ndarray, number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows to keep back, each in order: a random `number` of them, but at most a fifth.

    >>> train, held_out = split_held_out(np.arange(10), 5, seed=0)
    >>> len(train), len(held_out), len(set(train) & set(held_out))
    (8, 2, 0)
    """
    shuffled = rows[np.random.default_rng(seed).permutation(len(rows))]
    kept = min(number, len(rows) // 5)
    return np.sort(shuffled[kept:]), np.sort(shuffled[:kept])
