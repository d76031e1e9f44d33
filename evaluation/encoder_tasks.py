"""The customary tables of a sentence encoder: seven STS tasks and seven transfer tasks, every sentence encoded once.

Semantic textual similarity: does the cosine of two sentences rank pairs as people do? Spearman's correlation, higher is
better. Files are those of SemEval's STS 2012 to 2016 and SICK-R in one plain form (subset, score, sentence, sentence), and
the STS benchmark in its own (genre, ..., score, sentence, sentence).

Transfer: how much of a label can a linear classifier read from frozen embeddings? Accuracy, higher is better. The protocol
of SentEval (Conneau and Kiela, 2018): tenfold cross-validation on MR, CR, SUBJ and MPQA, the given splits of SST, TREC and
MRPC; pairs are represented by |u - v| and u * v. The strength of regularisation is chosen on text that is neither trained
nor tested on. Columns of all files are separated by tabs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from ..common.arguments import find_named
from ..common.packages import require
from .baselines.encoder import tracker
from .statistics import spearman

# Task, its file in the data folder, and the columns of subset, score, sentence and sentence.
_PLAIN = (0, 1, 2, 3)
STS_FILES: Mapping[str, tuple[str, tuple[int, int, int, int]]] = {
    **{f"STS{year}": (f"sts/sts{year}.tsv", _PLAIN) for year in (12, 13, 14, 15, 16)},
    "STS-B": ("stsb/sts-test.csv", (0, 4, 5, 6)),
    "SICK-R": ("sts/sick-r.tsv", _PLAIN),
}
# Task, and its files in the data folder: one to cross-validate; for training and test; or for training, choice and test.
TRANSFER_FILES: Mapping[str, tuple[str, ...]] = {
    **{name: (f"transfer/{name.lower()}.tsv",) for name in ("MR", "CR", "SUBJ", "MPQA")},
    "SST": ("transfer/sst.train.tsv", "transfer/sst.dev.tsv", "transfer/sst.test.tsv"),
    "TREC": ("transfer/trec.train.tsv", "transfer/trec.test.tsv"),
    "MRPC": ("transfer/mrpc.train.tsv", "transfer/mrpc.val.tsv", "transfer/mrpc.test.tsv"),
}
STRENGTHS = (1 / 256, 1 / 64, 1 / 16, 1 / 4)  # of scikit-learn's C, for features of mean square 1
FOLDS = 10
Embed = Callable[[Sequence[str]], np.ndarray]
TASKS: tuple[str, ...] = (*STS_FILES, *TRANSFER_FILES)


# ---- semantic textual similarity ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of sentences with people's scores.

    Attributes:
        subsets, scores, first, second: (pairs,) each.
        skipped: lines without a score, which are left out.
    """

    subsets: list[str]
    scores: list[float]
    first: list[str]
    second: list[str]
    skipped: int = 0


@dataclass(frozen=True)
class Similarity:
    """Spearman's correlation of cosines and scores.

    Attributes:
        together: over all pairs at once (the "all" setting).
        mean: of the correlations within each subset.
    """

    together: float
    mean: float


def read_scored_pairs(path: Path, columns: tuple[int, int, int, int] = _PLAIN) -> ScoredPairs:
    """The pairs of a file; lines whose score is missing are skipped and counted."""
    kept: list[tuple[str, float, str, str]] = []
    rows = read_rows(path, max(columns) + 1)
    for number, row in rows:
        subset, score, first, second = (row[column] for column in columns)
        try:
            value = float(score) if score.strip() else math.nan
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: the score must be a number or empty, got {score!r}.") from error
        if math.isfinite(value):
            kept.append((subset, value, first, second))
    if not kept:
        raise ValueError(f"{path} holds no pair with a score.")
    subsets, scores, firsts, seconds = map(list, zip(*kept, strict=True))
    return ScoredPairs(subsets, scores, firsts, seconds, len(rows) - len(kept))


def read_rows(path: Path, columns: int) -> list[tuple[int, list[str]]]:
    """Lines of a file by number, cut at tabs into at least so many columns; empty lines are left out."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        row = line.rstrip("\r").split("\t")
        if not line.strip():
            continue
        if len(row) < columns:
            raise ValueError(f"{path}, line {number}: {columns} columns separated by tabs expected, got {len(row)}.")
        rows.append((number, row))
    return rows


def measure_similarity(pairs: ScoredPairs, embed: Embed) -> Similarity:
    """Spearman's correlation, over all pairs and within subsets.

    Args:
        embed: (texts) -> (texts, dim) vectors.

    >>> vectors = {"a": [1.0, 0.0], "b": [1.0, 0.1], "c": [0.0, 1.0]}
    >>> pairs = ScoredPairs(["x", "x", "x"], [5.0, 1.0, 0.0], ["a", "b", "a"], ["b", "c", "c"])
    >>> measure_similarity(pairs, lambda texts: np.array([vectors[text] for text in texts])).together
    1.0
    """
    first, second = embed(pairs.first), embed(pairs.second)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines, scores = (first * second).sum(1) / np.maximum(lengths, 1e-12), np.array(pairs.scores)
    subsets = np.array(pairs.subsets)
    within = [spearman(cosines[subsets == name], scores[subsets == name]) for name in dict.fromkeys(pairs.subsets)]
    return Similarity(spearman(cosines, scores), float(np.mean(within)))


# ---- transfer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelledTexts:
    """Labels with a sentence or two each: `texts` has one list per column. `skipped`: lines without a label."""

    labels: list[str]
    texts: tuple[list[str], ...]
    skipped: int = 0


def read_labelled_texts(path: Path) -> LabelledTexts:
    """A file of label, sentence[, sentence]; labels are whole numbers, and lines without one are skipped and counted.

    Such lines exist: sentences of the published MR and SUBJ hold line breaks, and their second halves have no label.
    """
    rows = read_rows(path, 2)
    labelled = [row for _, row in rows if row[0].strip().isdecimal()]
    if not labelled:
        raise ValueError(f"{path} holds no labelled line.")
    columns = min(len(row) for row in labelled)
    texts = tuple([row[column] for row in labelled] for column in range(1, min(columns, 3)))
    return LabelledTexts([row[0] for row in labelled], texts, len(rows) - len(labelled))


def features_of(part: LabelledTexts, embed: Embed) -> np.ndarray:
    """(texts, features): the embedding, or |u - v| and u * v of a pair, scaled to a mean square of 1.

    >>> features_of(LabelledTexts(["1"], (["a"], ["b"])), lambda texts: np.ones((len(texts), 2))).round(2).tolist()
    [[0.0, 0.0, 1.41, 1.41]]
    """
    vectors = [embed(texts) for texts in part.texts]
    x = vectors[0] if len(vectors) == 1 else np.hstack([abs(vectors[0] - vectors[1]), vectors[0] * vectors[1]])
    return x / max(float(np.sqrt(np.square(x).mean())), 1e-12)


def measure_transfer(parts: Sequence[LabelledTexts], embed: Embed, seed: int = 0) -> float:
    """Accuracy: by cross-validation of one part, or on the last of two or three (train[, choice], test)."""
    x = [features_of(part, embed) for part in parts]
    y = [np.array(part.labels) for part in parts]
    if len(parts) == 1:
        return _cross_validate(x[0], y[0], seed)
    if len(parts) == 2:  # nothing to choose by was given: a fold of the training part
        folds = _folds(x[0], y[0], seed)
        inner = folds != 0
        strength = _choose((x[0][inner], y[0][inner]), (x[0][~inner], y[0][~inner]))
    else:
        strength = _choose((x[0], y[0]), (x[1], y[1]))
    return _accuracy((x[0], y[0]), (x[-1], y[-1]), strength)


Labelled = tuple[np.ndarray, np.ndarray]


def _cross_validate(x: np.ndarray, y: np.ndarray, seed: int) -> float:
    """Each fold is tested on once; the next one chooses the strength for it."""
    folds, correct = _folds(x, y, seed), 0.0
    for fold in range(FOLDS):
        tested, chosen_by = folds == fold, folds == (fold + 1) % FOLDS
        inner = ~(tested | chosen_by)
        strength = _choose((x[inner], y[inner]), (x[chosen_by], y[chosen_by]))
        correct += _accuracy((x[~tested], y[~tested]), (x[tested], y[tested]), strength) * tested.sum()
    return float(correct / len(y))


def _folds(x: np.ndarray, y: np.ndarray, seed: int) -> np.ndarray:
    """(texts,) number of each text's fold."""
    folds = np.zeros(len(y), dtype=int)
    splitter = require("sklearn.model_selection", "benchmark").StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    for number, (_, rows) in enumerate(splitter.split(x, y)):
        folds[rows] = number
    return folds


def _choose(train: Labelled, choice: Labelled) -> float:
    """The strength with the best accuracy; of equal ones the strongest regularisation."""
    return max(STRENGTHS, key=lambda strength: (_accuracy(train, choice, strength), -strength))


def _accuracy(train: Labelled, test: Labelled, strength: float) -> float:
    classifier = require("sklearn.linear_model", "benchmark").LogisticRegression(C=strength, max_iter=1000)
    return float(classifier.fit(*train).score(*test))


# ---- all tasks ------------------------------------------------------------------------------------------------------


@dataclass
class TaskData:
    """What was read: pairs of the STS tasks and the parts of the transfer tasks, by name, and tasks without files."""

    pairs: dict[str, ScoredPairs] = field(default_factory=dict)
    parts: dict[str, list[LabelledTexts]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def texts(self) -> list[str]:
        """Every distinct sentence once."""
        columns = [column for pairs in self.pairs.values() for column in (pairs.first, pairs.second)]
        columns += [column for parts in self.parts.values() for part in parts for column in part.texts]
        return list(dict.fromkeys(chain.from_iterable(columns)))


@dataclass(frozen=True)
class EncoderResult:
    """All results of one encoder, in [0, 1].

    Attributes:
        similarity: of the STS tasks, by name.
        accuracy: of the transfer tasks, by name.
        skipped: lines without a score or label, by task; tasks with none are left out.
        missing: tasks whose files were not there.
        seconds: in all, and of these `encoding`, for so many `sentences`.
    """

    similarity: Mapping[str, Similarity]
    accuracy: Mapping[str, float]
    skipped: Mapping[str, int]
    missing: Sequence[str]
    sentences: int
    encoding: float
    seconds: float


def read_tasks(data: Path, tasks: Sequence[str] = TASKS) -> TaskData:
    """The files of these tasks under a data folder; tasks without files are listed, and none at all is an error."""
    known = dict.fromkeys(TASKS, True)
    read = TaskData()
    for name in tasks:
        find_named("task", name, known)
        files, columns = ((STS_FILES[name][0],), STS_FILES[name][1]) if name in STS_FILES else (TRANSFER_FILES[name], None)
        paths = [data / file for file in files]
        if not all(path.is_file() for path in paths):
            read.missing.append(name)
        elif columns is not None:
            read.pairs[name] = read_scored_pairs(paths[0], columns)
        else:
            read.parts[name] = [read_labelled_texts(path) for path in paths]
    if not read.pairs and not read.parts:
        raise FileNotFoundError(f"{data} holds none of the files of {', '.join(tasks)}, such as {STS_FILES['STS-B'][0]}.")
    return read


def evaluate_encoder(encode: Embed, data: TaskData, seed: int = 0, progress: bool = False) -> EncoderResult:
    """Every task of `data` with one encoding of its sentences.

    Args:
        encode: (texts) -> (texts, dim) vectors, such as `SentenceTransformer.encode`.
        seed: of the folds.
    """
    started, texts = time.perf_counter(), data.texts()
    vectors = np.asarray(encode(texts), dtype=np.float32)
    encoding, row = time.perf_counter() - started, {text: number for number, text in enumerate(texts)}

    def embed(asked: Sequence[str]) -> np.ndarray:
        return vectors[[row[text] for text in asked]]

    similarity = {name: measure_similarity(pairs, embed) for name, pairs in data.pairs.items()}
    accuracy: dict[str, float] = {}
    with tracker(len(data.parts), progress, "transfer tasks") as bar:
        for name, parts in data.parts.items():
            accuracy[name] = measure_transfer(parts, embed, seed)
            bar.update(1)
    skipped = {name: pairs.skipped for name, pairs in data.pairs.items()}
    skipped |= {name: sum(part.skipped for part in parts) for name, parts in data.parts.items()}
    return EncoderResult(
        similarity,
        accuracy,
        {name: number for name, number in skipped.items() if number},
        data.missing,
        len(texts),
        encoding,
        time.perf_counter() - started,
    )


def encoder_table(name: str, result: EncoderResult) -> str:
    """Markdown: a table of similarity (all pairs, and mean over subsets) and one of accuracy, in percent; a note below.

    >>> result = EncoderResult({"STS-B": Similarity(0.82, 0.8)}, {}, {"STS-B": 2}, [], 2758, 1.0, 1.5)
    >>> print(encoder_table("MiniLM", result))
    | Spearman x 100 | setting | STS-B | mean |
    |---|---|---:|---:|
    | MiniLM | all | 82.00 | 82.00 |
    | MiniLM | mean over subsets | 80.00 | 80.00 |
    <BLANKLINE>
    MiniLM: 2,758 sentences encoded in 1.0 s, 1.5 s in all; lines without a score or label: STS-B 2.
    """
    lines: list[str] = []
    if result.similarity:
        tasks, values = list(result.similarity), list(result.similarity.values())
        lines += [
            f"| Spearman x 100 | setting | {' | '.join(tasks)} | mean |",
            "|---|---|" + "---:|" * (len(tasks) + 1),
            f"| {name} | all | {_cells([value.together for value in values])} |",
            f"| {name} | mean over subsets | {_cells([value.mean for value in values])} |",
            "",
        ]
    if result.accuracy:
        lines += [
            f"| accuracy x 100 | {' | '.join(result.accuracy)} | mean |",
            "|---|" + "---:|" * (len(result.accuracy) + 1),
            f"| {name} | {_cells(list(result.accuracy.values()))} |",
            "",
        ]
    note = f"{name}: {result.sentences:,} sentences encoded in {result.encoding:.1f} s, {result.seconds:.1f} s in all"
    if result.skipped:
        note += "; lines without a score or label: " + ", ".join(f"{task} {n}" for task, n in result.skipped.items())
    if result.missing:
        note += f"; without files: {', '.join(result.missing)}"
    return "\n".join([*lines, f"{note}."])


def _cells(values: Sequence[float]) -> str:
    return " | ".join(f"{100 * value:.2f}" for value in [*values, float(np.mean(values))])
