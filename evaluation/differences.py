"""In which words do two texts differ? Spearman's correlation with graded labels of people, over all words of all pairs.

A file has a pair a line: {"text_a", "text_b", "labels_a", "labels_b"}, a label for each word that white space parts: 0 for
the same, 1 for different, -1 for words that do not count, such as punctuation (iSTS-RSD, Vamvas and Sennrich 2023).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..pooling_hardkuma import normalize
from ..words_hardkuma import Span
from .baselines.encoder import SentenceEncoder, Tokens
from .baselines.shapley import Game, shapley_values, value_of_subsets
from .baselines.words import tokens_of_words
from .corpora import read_json_lines
from .statistics import Interval, bootstrap, spearman

# How many pairs of a file, by its name, settings were chosen on.
CHOSEN = {"ists": 50}
LIME_SAMPLES = 100
_RIDGE = 1.0


@dataclass(frozen=True)
class LabelledText:
    """One text of a pair: its words by white space, and their labels; -1 where a word does not count."""

    text: str
    words: list[Span]
    labels: list[float]


Pair = tuple[LabelledText, LabelledText]
# For each pair, for both of its texts, how much each word differs: any numbers, larger for what differs more.
Method = Callable[[Sequence[Pair]], list[list[list[float]]]]


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file; a ValueError says which line is at fault."""

    def pair(record: dict[str, Any]) -> Pair:
        texts = []
        for name in "ab":
            text, labels = record[f"text_{name}"], [float(label) for label in record[f"labels_{name}"]]
            words = [match.span() for match in re.finditer(r"\S+", text)]
            if len(words) != len(labels):
                raise ValueError(f"text_{name} has {len(words)} words and {len(labels)} labels")
            texts.append(LabelledText(text, words, labels))
        return texts[0], texts[1]

    return read_json_lines(path, "pair", "a JSON object with text_a, text_b, labels_a and labels_b", pair)


def word_values(text: LabelledText, words: Sequence[Span], values: Sequence[float]) -> list[float]:
    """The values of the words that people labelled, from those of words with other borders: the mean of all that touch it,
    0 where there is none.

    >>> labelled = LabelledText("a-b , c", [(0, 3), (4, 5), (6, 7)], [0.0, -1.0, 1.0])
    >>> word_values(labelled, [(0, 1), (2, 3), (6, 7)], [0.2, 0.4, 0.9])
    [0.30000000000000004, 0.0, 0.9]
    """
    result = []
    for start, end in text.words:
        touching = [value for (s, e), value in zip(words, values, strict=True) if s < end and e > start]
        result.append(sum(touching) / len(touching) if touching else 0.0)
    return result


# ---- what one would use instead -----------------------------------------------------------------------------------------


def best_cosine(encoder: SentenceEncoder) -> Method:
    """1 - the best cosine of a token's last state with those of the other text; the mean over a word's tokens. This is the
    rule of DiffAlign (Vamvas and Sennrich 2023)."""

    @torch.no_grad()
    def method(pairs: Sequence[Pair]) -> list[list[list[float]]]:
        tokens = _tokens(encoder, pairs)
        states: dict[int, Tensor] = {}
        for index, batch in encoder.batches(tokens):
            for i, row in zip(index, encoder.states(batch), strict=True):
                content = torch.tensor(tokens[i].content)
                states[i] = normalize(row[: len(tokens[i])].float().cpu() * content[:, None])
        return [
            [
                _of_words(text, tokens[2 * n + k], 1 - (states[2 * n + k] @ states[2 * n + 1 - k].T).amax(-1))
                for k, text in enumerate(pair)
            ]
            for n, pair in enumerate(pairs)
        ]

    return method


def isolated_words(encoder: SentenceEncoder, whole: bool) -> Method:
    """1 - the cosine of the embedding of a word by itself with that of the whole other text (KeyBERT's way), or the best
    one with those of its words."""

    def method(pairs: Sequence[Pair]) -> list[list[list[float]]]:
        words = [[text.text[s:e] for s, e in text.words] for pair in pairs for text in pair]
        listed = list(dict.fromkeys(word for row in words for word in row))
        table = dict(zip(listed, normalize(encoder.encode(listed)), strict=True))
        wholes = normalize(encoder.encode([text.text for pair in pairs for text in pair])) if whole else None
        vectors = [torch.stack([table[word] for word in row]) for row in words]
        result = []
        for i, row in enumerate(vectors):
            other = i + 1 - 2 * (i % 2)
            against = vectors[other] if wholes is None else wholes[other][None]
            result.append((1 - (row @ against.T).amax(-1)).tolist())
        return [result[i : i + 2] for i in range(0, len(result), 2)]

    return method


def removal(encoder: SentenceEncoder, how: str) -> Method:
    """How far the cosine of the two texts rises without a word: by leaving each out ("leave_one_out"), by Shapley values
    ("shap"), or by a ridge regression on random subsets ("lime")."""

    def method(pairs: Sequence[Pair]) -> list[list[list[float]]]:
        generator = np.random.default_rng(0)
        explainers: dict[str, Callable[[Game, int], np.ndarray]] = {
            "leave_one_out": _leave_one_out,
            "shap": shapley_values,
            "lime": partial(_lime, generator=generator),
        }
        explain = explainers[how]
        tokens = _tokens(encoder, pairs)
        wholes = normalize(encoder.embed(tokens))
        result = []
        for n, pair in enumerate(pairs):
            sides = []
            for k, text in enumerate(pair):
                item = tokens[2 * n + k]
                members = tokens_of_words(item.offsets, item.content, text.words)
                game = value_of_subsets(encoder, item, members, wholes[2 * n + 1 - k])
                sides.append((-explain(game, len(text.words))).tolist())
            result.append(sides)
        return result

    return method


def _leave_one_out(game: Game, number: int) -> np.ndarray:
    values = game(np.vstack([np.ones(number), 1 - np.eye(number)]))
    return values[0] - values[1:]


def _lime(game: Game, number: int, generator: np.random.Generator) -> np.ndarray:
    subsets = (generator.random((LIME_SAMPLES, number)) < 0.5).astype(float)
    subsets[0] = 1
    values = game(subsets)
    # Subsets near the whole text weigh more, as LIME has it: by the cosine of their 0/1 rows with all ones.
    weights = np.exp(-((1 - np.sqrt(subsets.mean(-1))) ** 2) / 0.25**2)
    centred = subsets - weights @ subsets / weights.sum()
    target = values - weights @ values / weights.sum()
    return np.linalg.solve((centred.T * weights) @ centred + _RIDGE * np.eye(number), (centred.T * weights) @ target)


def _tokens(encoder: SentenceEncoder, pairs: Sequence[Pair]) -> list[Tokens]:
    return encoder.tokenize([text.text for pair in pairs for text in pair])


def _of_words(text: LabelledText, item: Tokens, values: Tensor) -> list[float]:
    members = tokens_of_words(item.offsets, item.content, text.words)
    return [float(values[group].mean()) if group else 0.0 for group in members]


# ---- measuring ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DifferenceResult:
    """One method on one file.

    Attributes:
        gold, found: for each pair, the labels and values of all words of both texts that count.
        passes: sequences that went through the encoder.
    """

    corpus: str
    method: str
    gold: list[np.ndarray]
    found: list[np.ndarray]
    seconds: float
    passes: int

    def correlation(self, weights: np.ndarray) -> float:
        """Spearman's correlation over words, each pair as often as its weight says."""
        drawn = np.repeat(np.arange(len(self.gold)), weights.astype(int))
        return spearman(np.concatenate([self.gold[i] for i in drawn]), np.concatenate([self.found[i] for i in drawn]))

    def interval(self, draws: int) -> Interval:
        """Spearman's correlation, with its interval by drawing pairs again."""
        return bootstrap(lambda weights: {"rho": self.correlation(weights)}, len(self.gold), draws)["rho"]


def measure_differences(
    methods: Mapping[str, Method], files: Mapping[str, Path], encoder: SentenceEncoder, sample: int | None = None
) -> Iterator[DifferenceResult]:
    """Each method on each file; of a file that settings were chosen on, the rest once more by itself.

    Args:
        encoder: the one that all methods run; its calls are counted.
    """
    rows: list[int] = []
    hook = encoder.encoder.register_forward_hook(lambda *call: rows.append(len(call[-1][0])))
    try:
        for corpus, path in files.items():
            pairs = read_pairs(path)[:sample]
            for name, method in methods.items():
                rows.clear()
                start = time.perf_counter()
                values = method(pairs)
                seconds = time.perf_counter() - start
                gold, found = [], []
                for pair, sides in zip(pairs, values, strict=True):
                    labels = np.array([label for text in pair for label in text.labels])
                    numbers = np.array([value for side in sides for value in side])
                    gold.append(labels[labels >= 0])
                    found.append(numbers[labels >= 0])
                yield DifferenceResult(corpus, name, gold, found, seconds, sum(rows))
                if (chosen := CHOSEN.get(corpus, 0)) and len(pairs) > chosen:
                    rest = f"{corpus}, from pair {chosen + 1} on"
                    yield DifferenceResult(rest, name, gold[chosen:], found[chosen:], seconds, sum(rows))
    finally:
        hook.remove()


def difference_table(results: Sequence[DifferenceResult], draws: int) -> str:
    """A Markdown table: a row for each method, with a column for each file."""
    corpora = list(dict.fromkeys(result.corpus for result in results))
    methods = list(dict.fromkeys(result.method for result in results))
    by_both = {(result.method, result.corpus): result for result in results}
    head = [
        *(f"{corpus} ({len(by_both[methods[0], corpus].gold)})" for corpus in corpora),
        "passes a pair",
        "pairs a second",
    ]
    lines = [f"| method | {' | '.join(head)} |", "|---|" + "---:|" * len(head)]
    for method in methods:
        intervals = [by_both[method, corpus].interval(draws) for corpus in corpora]
        cells = [f"{rho.value:.3f} ({rho.low:.3f} to {rho.high:.3f})" for rho in intervals]
        own = [by_both[method, corpus] for corpus in corpora if ", from pair" not in corpus]
        pairs = sum(len(result.gold) for result in own)
        passes = sum(result.passes for result in own)
        cells.append(f"{passes / pairs:.1f}" if passes else "")  # another backend's are not seen
        cells.append(f"{pairs / max(sum(result.seconds for result in own), 1e-9):.1f}")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)
