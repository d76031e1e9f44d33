"""The customary tables of a sentence encoder: seven STS tasks and seven transfer tasks, every sentence encoded once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from ..common.arguments import find_named
from .baselines.encoder import tracker
from .similarity import STS_FILES, ScoredPairs, Similarity, measure_similarity, read_scored_pairs
from .transfer import TRANSFER_FILES, LabelledTexts, measure_transfer, read_labelled_texts

TASKS: tuple[str, ...] = (*STS_FILES, *TRANSFER_FILES)


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


def evaluate_encoder(
    encode: Callable[[Sequence[str]], np.ndarray], data: TaskData, seed: int = 0, progress: bool = False
) -> EncoderResult:
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
