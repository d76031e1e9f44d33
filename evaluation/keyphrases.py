"""Key phrases beside what people marked: F1 of the first 5, 10 and 15 phrases, exact match of Porter stems.

A file has a document a line, as JSON: `{"text": ..., "keyphrases": [...]}`. Phrases are compared as lower-cased words,
stemmed, each once; of a document that gives fewer than k phrases, precision is over those. `macro` is the mean over
documents; `pooled` counts hits, phrases and marks over all documents first, as PromptRank's code does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..common.packages import available, require
from ..common.text import MINILM
from ..encoder_hardkuma import resolve_encoder
from .corpora import read_json_lines
from .statistics import Interval, bootstrap

DEPTHS = (5, 10, 15)
CHOSEN = {"inspec": 100}  # documents at the beginning on which settings were chosen
_WORD = re.compile(r"[\w-]+")


@dataclass(frozen=True)
class MarkedDocument:
    """A text, and the phrases that people marked in it."""

    text: str
    phrases: tuple[str, ...]


def read_marked(path: str | Path) -> list[MarkedDocument]:
    """The documents of a file."""

    def document(row: dict[str, Any]) -> MarkedDocument:
        return MarkedDocument(str(row["text"]), tuple(map(str, row["keyphrases"])))

    return read_json_lines(path, "document", '{"text": ..., "keyphrases": [...]}', document)


@lru_cache(maxsize=1)
def _stemmer() -> Any:
    return require("snowballstemmer", "keywords").stemmer("porter")


def stem_phrase(phrase: str) -> str:
    """The stems of a phrase's words.

    >>> stem_phrase("Neural Networks!")
    'neural network'
    """
    return " ".join(_stemmer().stemWords(_WORD.findall(phrase.lower())))


def stem_phrases(phrases: Iterable[str]) -> list[str]:
    """The stems of phrases, each once, in their order.

    >>> stem_phrases(["networks", "a network", "network", "!"])
    ['network', 'a network']
    """
    return [stems for stems in dict.fromkeys(map(stem_phrase, phrases)) if stems]


@dataclass
class Hits:
    """How many phrases of each document were marked, by depth.

    Attributes:
        hits, given: (documents, depths) marked phrases among the first k, and how many there were.
        marked: (documents,) phrases that people marked.

    >>> hits = Hits.count([["deep networks", "rain"]], [MarkedDocument("", ("Deep network", "snow"))])
    >>> hits.macro().tolist(), hits.pooled().tolist()
    ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
    """

    hits: np.ndarray
    given: np.ndarray
    marked: np.ndarray

    @classmethod
    def count(cls, found: Sequence[Sequence[str]], documents: Sequence[MarkedDocument]) -> Hits:
        """Compare what was found with what was marked."""
        rows = [stem_phrases(phrases) for phrases in found]
        gold = [set(stem_phrases(document.phrases)) for document in documents]
        hits = [[sum(f in marks for f in row[:k]) for k in DEPTHS] for row, marks in zip(rows, gold, strict=True)]
        given = [[min(k, len(row)) for k in DEPTHS] for row in rows]
        return cls(np.array(hits, float), np.array(given, float), np.array([len(marks) for marks in gold], float))

    def f1(self) -> np.ndarray:
        """(documents, depths)."""
        # The harmonic mean of hits / given and hits / marked.
        return 2 * self.hits / np.maximum(self.given + self.marked[:, None], 1)

    def macro(self, weights: np.ndarray | None = None) -> np.ndarray:
        """(depths,) the mean over documents."""
        return np.average(self.f1(), axis=0, weights=weights)

    def pooled(self) -> np.ndarray:
        """(depths,) of all documents together."""
        return 2 * self.hits.sum(0) / np.maximum(self.given.sum(0) + self.marked.sum(), 1)

    def __getitem__(self, rows: slice) -> Hits:
        return Hits(self.hits[rows], self.given[rows], self.marked[rows])


@dataclass
class KeyphraseResult:
    """A method on the documents of one file.

    Attributes:
        title: of the method.
        corpus: of the file.
        hits: of its documents, in their order.
        seconds: of processor time, for all of them.
    """

    title: str
    corpus: str
    hits: Hits
    seconds: float

    @property
    def number(self) -> int:
        return len(self.hits.marked)

    def part(self, corpus: str, number: int) -> KeyphraseResult:
        """The first documents alone, with their share of the time."""
        return KeyphraseResult(self.title, corpus, self.hits[:number], self.seconds * number / self.number)


@dataclass(frozen=True)
class Extractor:
    """A method of the table.

    Attributes:
        title: as it is shown.
        extract: texts and how many phrases of each -> phrases of each, the best first.
        slow: whether it is run on a sample of the documents alone.
        needs: packages without which it is left out.
    """

    title: str
    extract: Callable[[Sequence[str], int], list[list[str]]]
    slow: bool = False
    needs: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        return [name for name in self.needs if not available(name)]


def measure_extractor(extractor: Extractor, corpus: str, documents: Sequence[MarkedDocument]) -> KeyphraseResult:
    """Run a method on documents.

    >>> first_word = Extractor("first word", lambda texts, number: [text.split()[:1] for text in texts])
    >>> measure_extractor(first_word, "x", [MarkedDocument("Rain fell.", ("rain",))]).hits.macro().tolist()
    [1.0, 1.0, 1.0]
    """
    texts = [document.text for document in documents]
    extractor.extract(texts[:1], max(DEPTHS))  # what is loaded or compiled at first is not counted
    start = time.process_time()  # of all threads: other work on the machine does not count
    found = extractor.extract(texts, max(DEPTHS))
    return KeyphraseResult(extractor.title, corpus, Hits.count(found, documents), time.process_time() - start)


# ---- what one would use instead -----------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _keybert() -> Any:
    transformers = require("sentence_transformers", "sentence-transformers")
    return require("keybert", "keywords").KeyBERT(transformers.SentenceTransformer(resolve_encoder(MINILM), device="cpu"))


def _by_keybert(texts: Sequence[str], number: int) -> list[list[str]]:
    """As its users call it, with phrases of one to three words."""
    options = {"keyphrase_ngram_range": (1, 3), "stop_words": "english", "top_n": number}
    return [[phrase for phrase, _ in _keybert().extract_keywords(text, **options)] for text in texts]


def _by_yake(texts: Sequence[str], number: int) -> list[list[str]]:
    """With its own settings: phrases of one to three words."""
    extractor = require("yake", "keywords").KeywordExtractor(lan="en", n=3, top=number)
    return [[phrase for phrase, _ in extractor.extract_keywords(text)] for text in texts]


def _by_rake(texts: Sequence[str], number: int) -> list[list[str]]:
    rake = require("multi_rake", "keywords").Rake(language_code="en")
    return [[phrase for phrase, _ in rake.apply(text)[:number]] for text in texts]


OTHERS = {
    "keybert": Extractor("KeyBERT, 1 to 3 words", _by_keybert, slow=True, needs=("keybert", "sentence_transformers")),
    "yake": Extractor("YAKE", _by_yake, needs=("yake",)),
    "rake": Extractor("RAKE", _by_rake, needs=("multi_rake",)),
}


# ---- the table ----------------------------------------------------------------------------------------------------------

# F1@5, @10, @15 as published, by corpus. Not run here.
PUBLISHED_SOURCE = "Kong et al., PromptRank (ACL 2023), tables of results"
PUBLISHED = {
    "PromptRank (T5-base)": {"inspec": (31.7, 37.9, 38.2), "semeval2017": (27.1, 37.8, 41.6)},
    "MDERank (BERT)": {"inspec": (26.2, 33.8, 36.2), "semeval2017": (22.8, 32.5, 37.2)},
}


def keyphrase_table(results: Sequence[KeyphraseResult], draws: int = 1000) -> str:
    """Markdown: a table for each corpus, the methods in the order of their results; the first is ours.

    >>> row = KeyphraseResult("ours", "inspec", Hits(np.ones((2, 3)), np.ones((2, 3)), np.ones(2)), 0.5)
    >>> keyphrase_table([row], draws=10).splitlines()[4].split(" | ")[:3]
    ['| ours', '2', '100.0 (100.0 to 100.0)']
    """
    lines: list[str] = []
    for corpus in dict.fromkeys(result.corpus for result in results):
        rows = [result for result in results if result.corpus == corpus]
        most = max(row.number for row in rows)
        lines += [f"**{corpus}**, {most} documents", ""]
        headings = [*(f"F1@{k} (95%)" for k in DEPTHS), "pooled", "first row - this, F1@10", "documents/s"]
        lines += [f"| | documents | {' | '.join(headings)} |", f"|---|{'---:|' * (len(headings) + 1)}"]
        lines += [_line(row, rows[0], draws) for row in rows]
        for title, figures in PUBLISHED.items():
            if corpus in figures:
                cells = " | ".join(f"{value:.1f}" for value in figures[corpus])
                lines.append(f"| {title}, published, *not run here* | | {cells} | | | |")
        lines.append("")
    lines.append(f"{LEGEND} Published: {PUBLISHED_SOURCE}.")
    return "\n".join(lines)


def _line(result: KeyphraseResult, ours: KeyphraseResult, draws: int) -> str:
    cells = [_interval(value) for value in _macro_intervals(result.hits, draws)]
    pooled = " / ".join(f"{100 * value:.1f}" for value in result.hits.pooled())
    gap = ""
    if result is not ours:
        # The sample of a slow method is the beginning of the documents of all others.
        shared = min(result.number, ours.number)
        differences = ours.hits[:shared].f1()[:, 1] - result.hits[:shared].f1()[:, 1]
        weighed = bootstrap(lambda w: {"gap": float(w @ differences / w.sum())}, shared, draws)["gap"]
        gap = _interval(weighed, signed=True)
    speed = f"{result.number / result.seconds:.1f}"
    return f"| {result.title} | {result.number} | {' | '.join(cells)} | {pooled} | {gap} | {speed} |"


def _macro_intervals(hits: Hits, draws: int) -> list[Interval]:
    def statistic(weights: np.ndarray) -> dict[str, float]:
        return dict(zip(map(str, DEPTHS), hits.macro(weights).tolist(), strict=True))

    return list(bootstrap(statistic, len(hits.marked), draws).values())


def _interval(value: Interval, signed: bool = False) -> str:
    sign = "+" if signed else ""
    return f"{100 * value.value:{sign}.1f} ({100 * value.low:{sign}.1f} to {100 * value.high:{sign}.1f})"


LEGEND = (
    "F1 in per cent, exact match of Porter stems, the mean over documents, with a 95% interval by drawing documents again. "
    "Pooled: hits, phrases and marks of all documents counted together, as PromptRank's code does. "
    "Documents a second of processor time: all methods in one run, one after the other, with as many threads."
)
