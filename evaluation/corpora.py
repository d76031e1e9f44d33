"""Labelled corpora for the benchmark: found in a data folder, or any CoNLL files; samples that nest."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ..data import LabelledSentence, read_conll
from .baselines.counts import WordCounts
from .baselines.words import Span

Item = TypeVar("Item")
# What a data folder may hold: name in reports, path inside.
KNOWN = {"wnut17-dev": "wnut17/dev.conll", "wnut17-test": "wnut17/test.conll", "wikigold": "wikigold/wikigold.conll"}


@dataclass
class Corpus:
    """Sentences with entity tags.

    Attributes:
        name: for reports and file names.
        sentences: in the order of the file.
    """

    name: str
    sentences: list[LabelledSentence]

    def sample(self, number: int | None, seed: int = 0) -> list[LabelledSentence]:
        """The first `number` of a seeded shuffle: smaller samples are the beginning of larger ones.

        >>> sentences = [LabelledSentence(str(i), ((0, 1),), ("O",)) for i in range(9)]
        >>> corpus = Corpus("demo", sentences)
        >>> corpus.sample(3) == corpus.sample(5)[:3]
        True
        """
        order = list(range(len(self.sentences)))
        random.Random(seed).shuffle(order)
        return [self.sentences[i] for i in order[:number]]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the sentences as they were read: another file, or another way to read it, is another corpus."""
        content = [[sentence.text, sentence.offsets, sentence.tags] for sentence in self.sentences]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @cached_property
    def counts(self) -> WordCounts:
        """Word counts over the whole corpus, labels unseen."""
        return WordCounts(*texts_of(self.sentences))


def read_corpus(path: str | Path, name: str | None = None) -> Corpus:
    """One CoNLL file as a corpus."""
    path = Path(path)
    return Corpus(name or slug(path.stem), list(read_conll(path)))


def find_corpora(data: str | Path | Sequence[str | Path], only: Iterable[str] | None = None) -> list[Corpus]:
    """Corpora of a data folder (WNUT17 dev and test, wikigold), or of the CoNLL files given.

    Args:
        data: a folder with `wnut17/dev.conll`, `wnut17/test.conll` or `wikigold/wikigold.conll`; or one or more files.
        only: names to keep.
    """
    paths = [Path(data)] if isinstance(data, (str, Path)) else [Path(path) for path in data]
    chosen: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            chosen |= {name: path / inside for name, inside in KNOWN.items() if (path / inside).is_file()}
        elif path.is_file():
            name = slug(path.stem)
            chosen[name if name not in chosen else slug(f"{path.parent.name}-{path.stem}")] = path
        else:
            raise FileNotFoundError(f"{path} is neither a folder nor a file; give a data folder or CoNLL files.")
    if not chosen:
        raise FileNotFoundError(
            f"none of {', '.join(KNOWN.values())} is under {paths[0]}; give CoNLL files by name instead."
        )
    if only is not None:
        wanted = list(only)
        unknown = [name for name in wanted if name not in chosen]
        if unknown:
            raise ValueError(f"no corpus {unknown[0]!r}; found: {', '.join(chosen)}.")
        chosen = {name: chosen[name] for name in wanted}
    return [read_corpus(path, name) for name, path in chosen.items()]


def find_json_lines(data: str | Path, kind: str) -> dict[str, Path]:
    """Files of JSON lines by name: the one given, or those of the folder, or of its folder `kind`."""
    given = Path(data)
    if given.is_file():
        return {given.stem: given}
    for folder in (given / kind, given):
        if found := sorted(folder.glob("*.jsonl")):
            return {path.stem: path for path in found}
    raise FileNotFoundError(f"{data} has no .jsonl file, and no folder `{kind}` with one.")


def read_json_lines(path: str | Path, what: str, shape: str, make: Callable[[dict[str, Any]], Item]) -> list[Item]:
    """What `make` gives for each line of a file; a ValueError says which line is at fault.

    Args:
        what, shape: a line, and what it should be, for errors.
    """
    items = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            try:
                items.append(make(json.loads(line)))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: a {what} is {shape} ({error}).") from error
    if not items:
        raise ValueError(f"{path} has no {what}.")
    return items


def slug(name: str) -> str:
    """A name that is safe in file names.

    >>> slug("My corpus/v2")
    'my-corpus-v2'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "corpus"


def texts_of(sentences: Sequence[LabelledSentence]) -> tuple[list[str], list[list[Span]]]:
    """Texts and word offsets, as the baselines take them."""
    return [sentence.text for sentence in sentences], [list(sentence.offsets) for sentence in sentences]


def labels_of(sentences: Sequence[LabelledSentence]) -> list[list[int]]:
    """1 for every word of an entity.

    >>> labels_of([LabelledSentence("in Rome", ((0, 2), (3, 7)), ("O", "B-LOC"))])
    [[0, 1]]
    """
    return [list(map(int, sentence.entity_mask)) for sentence in sentences]


def lower_cased(sentence: LabelledSentence) -> LabelledSentence:
    """The same words without capital letters; a letter whose small form is longer (a dotted capital I) stays.

    >>> lower_cased(LabelledSentence("In \u0130zmir", ((0, 2), (3, 8)), ("O", "B-LOC"))).text
    'in \u0130zmir'
    """
    small = (character.lower() for character in sentence.text)
    text = "".join(new if len(new) == 1 else old for old, new in zip(sentence.text, small, strict=True))
    return replace(sentence, text=text)
