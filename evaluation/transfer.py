"""Transfer tasks: how much of a label can a linear classifier read from frozen embeddings? Accuracy, higher is better.

The customary protocol of SentEval (Conneau and Kiela, 2018): tenfold cross-validation on MR, CR, SUBJ and MPQA, the given
parts of SST, TREC and MRPC; pairs are represented by |u - v| and u * v. The strength of regularisation is chosen on text
that is neither trained nor tested on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..common.packages import require
from .similarity import read_rows

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


@dataclass(frozen=True)
class LabelledTexts:
    """Labels with a sentence or two each: `texts` has one list per column. `skipped`: lines without a label."""

    labels: list[str]
    texts: tuple[list[str], ...]
    skipped: int = 0


def read_labelled_texts(path: Path) -> LabelledTexts:
    """A file of label, sentence[, sentence]; labels are whole numbers, and lines without one are skipped and counted.

    Such lines exist: sentences of the published MR and SUBJ hold line breaks, and their second halves have no label.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "cr.tsv"
    >>> _ = path.write_text("1\\tgood\\n0\\tbad\\n\\tso so\\nand\\tso on\\n")
    >>> read_labelled_texts(path)
    LabelledTexts(labels=['1', '0'], texts=(['good', 'bad'],), skipped=2)
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
    """Accuracy: by cross-validation of one part, or on the last of two or three (train[, choice], test).

    >>> part = LabelledTexts(["1", "0"] * 30, (["yes", "no"] * 30,))
    >>> measure_transfer([part], lambda texts: np.array([[1.0, 0.0] if text == "yes" else [0.0, 1.0] for text in texts]))
    1.0
    """
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
