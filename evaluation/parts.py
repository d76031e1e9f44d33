"""Selectors that divide the words among themselves, measured.

Without labels: rates, typical words, rank correlation. Against gold parts of speech, where there are any: the share of each
tag, and how much the most probable selector of a word tells of its part of speech.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from ..common.files import write_atomically
from ..common.packages import require
from ..configuration_hardkuma import HardKumaConfig
from ..data import LabelledSentence
from ..modeling_hardkuma import HardKumaModel
from ..scoring_hardkuma import score_selectors
from .corpora import texts_of
from .statistics import spearman

CONTENT_TAGS = ("NOUN", "PROPN", "VERB", "ADJ", "ADV")
# Of Universal Dependencies.
PARTS_OF_SPEECH = frozenset((*CONTENT_TAGS, "ADP", "AUX", "CCONJ", "DET", "INTJ", "NUM", "PART", "PRON", "PUNCT", "SCONJ"))
PARTS_OF_SPEECH |= {"SYM", "X"}


@dataclass(frozen=True)
class Parts:
    """Words of some text as the selectors see them.

    Attributes:
        names: of the selectors, K.
        targets: (K,) their target rates.
        words: as they are written, all texts one after the other.
        probabilities: (K, words).
        tags: a part of speech for each word; none where nobody gave any.
    """

    names: list[str]
    targets: list[float]
    words: list[str]
    probabilities: np.ndarray
    tags: list[str] | None = None

    @property
    def chosen(self) -> np.ndarray:
        """(words,) number of the most probable selector of each word."""
        return self.probabilities.argmax(0)

    @property
    def rates(self) -> list[float]:
        """Mean probability of each selector."""
        return self.probabilities.mean(1).tolist()

    def typical(self, number: int = 6) -> list[list[str]]:
        """The words, in small letters, that each selector has most of: by the sum over all occurrences of its probability
        times its share of all selectors' probabilities."""
        shares = self.probabilities / self.probabilities.sum(0).clip(1e-12)
        return [_heaviest(self.words, row * share, number) for row, share in zip(self.probabilities, shares, strict=True)]

    def correlations(self) -> np.ndarray:
        """(K, K) Spearman between the probabilities of each two selectors over all words."""
        result = np.eye(len(self.names))
        for i, j in combinations(range(len(self.names)), 2):
            result[i, j] = result[j, i] = spearman(self.probabilities[i], self.probabilities[j])
        return result

    def mean_correlation(self) -> float:
        """The mean over pairs of selectors."""
        return float(self.correlations()[np.triu_indices(len(self.names), 1)].mean())

    def shares(self) -> tuple[list[str], np.ndarray]:
        """All parts of speech, frequent ones first, and (K, tags) their shares of the words whose most probable selector
        each is; rows add up to 1, or are 0 for a selector without words."""
        tags, numbers, counts = np.unique(self._tags(), return_inverse=True, return_counts=True)
        table = np.zeros((len(self.names), len(tags)))
        np.add.at(table, (self.chosen, numbers), 1)
        table /= table.sum(1, keepdims=True).clip(1)
        order = np.argsort(-counts, kind="stable")
        return tags[order].tolist(), table[:, order]

    def information(self, only: Sequence[str] = ()) -> float:
        """NMI of most probable selector and part of speech, over all words or those with one of these tags."""
        tags = np.array(self._tags())
        inside = np.isin(tags, only) if only else np.ones(len(tags), dtype=bool)
        return normalised_mutual_information(tags[inside].tolist(), self.chosen[inside].tolist())

    def _tags(self) -> list[str]:
        if self.tags is None:
            raise ValueError("these words have no parts of speech: give sentences of a tagged file, such as CoNLL-U.")
        return self.tags

    def describe(self) -> str:
        """A table for the card."""
        lines = ["| selector | typical words | target rate | mean probability |", "|---|---|---:|---:|"]
        tags, table = self.shares() if self.tags is not None else ([], np.zeros((len(self.names), 0)))
        if tags:
            lines = [f"{lines[0]} largest parts of speech |", f"{lines[1]}---|"]
        for k, (name, words) in enumerate(zip(self.names, self.typical(), strict=True)):
            shown = " ".join(f"`{word}`" for word in words)
            cells = [name, shown, f"{self.targets[k]:.3f}", f"{self.rates[k]:.3f}"]
            if tags:
                cells.append(", ".join(f"{tags[i]} {table[k, i]:.2f}" for i in np.argsort(-table[k])[:3]))
            lines.append(f"| {' | '.join(cells)} |")
        lines.append(f"\nMean Spearman correlation between two of them: {self.mean_correlation():.3f}.")
        if tags:
            lines[-1] += (
                f" Normalised mutual information of the most probable selector with the part of speech: "
                f"{self.information():.3f} over all {len(self.words):,} words (punctuation too), "
                f"{self.information(CONTENT_TAGS):.3f} over {', '.join(CONTENT_TAGS)} alone."
            )
        return "\n".join(lines)


def part_selectors(config: HardKumaConfig) -> dict[str, float]:
    """Target rates of the selectors that are to differ, by name: those of the unit "part", or else all of them."""
    return {config.names[k]: config.selector(k).target_rate for k in config.parts or range(config.num_selectors)}


def measure_parts(model: HardKumaModel, source: Sequence[str] | Sequence[LabelledSentence]) -> Parts:
    """What the model's selectors of parts, or all where none is one, make of some text.

    Args:
        model: in eval mode, with its tokenizer.
        source: texts, whose words are those of every other interface; or sentences with parts of speech, for measuring.
    """
    spans, tags = None, None
    labelled = [item for item in source if isinstance(item, LabelledSentence)]
    if labelled:
        texts, spans = texts_of(labelled)
        tags = [tag for sentence in labelled for tag in sentence.tags]
    else:
        texts = [str(item) for item in source]
    targets = part_selectors(model.config)
    names = list(targets)
    scored = score_selectors(model, texts, words=spans, batch_size=64)
    words = [item.text[start:end] for item in scored[names[0]] for start, end in item.words]
    probabilities = np.array([[p for item in scored[name] for p in item.probabilities] for name in names])
    return Parts(names, list(targets.values()), words, probabilities, tags)


def _heaviest(words: Sequence[str], weights: np.ndarray, number: int) -> list[str]:
    total: dict[str, float] = defaultdict(float)
    for word, weight in zip(words, weights.tolist(), strict=True):
        total[word.lower()] += weight
    return sorted(total, key=lambda word: (-total[word], word))[:number]


def normalised_mutual_information(first: Sequence[object], second: Sequence[object]) -> float:
    """I(A; B) / mean of H(A) and H(B), in [0, 1]; 1 where both have a single value.

    >>> normalised_mutual_information("nnvv", [0, 0, 1, 1]), normalised_mutual_information("nnvv", [0, 1, 0, 1])
    (1.0, 0.0)
    """
    if len(first) != len(second) or not len(first):
        raise ValueError(f"{len(first)} values against {len(second)}; as many of both are needed, and at least one.")
    rows, columns = (np.unique(np.array(list(values)), return_inverse=True)[1] for values in (first, second))
    joint = np.zeros((rows.max() + 1, columns.max() + 1))
    np.add.at(joint, (rows, columns), 1 / len(rows))
    entropies = [_entropy(joint.sum(1)), _entropy(joint.sum(0))]
    if sum(entropies) == 0:
        return 1.0
    return float(max(0.0, sum(entropies) - _entropy(joint.ravel())) * 2 / sum(entropies))


def _entropy(probabilities: np.ndarray) -> float:
    positive = probabilities[probabilities > 0]
    return float(-(positive * np.log(positive)).sum())


def draw_shares(parts: Parts, path: str | Path) -> None:
    """A picture of selectors x parts of speech, as PNG."""
    require("matplotlib", "train")
    from matplotlib.figure import Figure

    tags, table = parts.shares()
    figure = Figure(figsize=(1.8 + 0.5 * len(tags), 1.2 + 0.42 * len(parts.names)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(table, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(tags)), tags, rotation=45, ha="right")
    axes.set_yticks(range(len(parts.names)), parts.names)
    for (row, column), share in np.ndenumerate(table):
        if share >= 0.05:
            axes.text(
                column, row, f"{share:.2f}", ha="center", va="center", fontsize=8, color="white" if share > 0.5 else "black"
            )
    axes.set_title("Share of each part of speech in the words of a selector")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    write_atomically(path, drawn.getvalue())
