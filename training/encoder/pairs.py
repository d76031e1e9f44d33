"""Pairs to train on: a text, its positive and hard negatives, from columns of a file or mined by the encoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import mine_hard_negatives

from ...data.cleaning import count_words
from ...data.lines import CorpusError
from ...data.readers import read_kept_rows
from .recipe import EncoderRecipe

Pair = tuple[str, ...]  # text, positive, hard negatives
MARGIN = 0.05  # a mined negative is at most 95% as similar to the text as the positive is


def read_pairs(recipe: EncoderRecipe, log: Callable[[str], None] = print) -> list[Pair]:
    """Rows of the recipe's columns, white space normalised, each once; rows with an empty, too short or too long text, or
    below one of the recipe's `at_least`, are left out and counted.
    """
    dropped: Counter[str] = Counter()
    try:
        pairs = list(dict.fromkeys(_usable_rows(recipe, dropped)))
    except CorpusError as error:
        raise ValueError(error.explain({"keep": "--columns and --at_least", "column": "--columns"})) from error
    shown = "".join(f"; dropped {count:,} {reason}" for reason, count in sorted(dropped.items()))
    log(f"text: {len(pairs):,} rows of {len(recipe.columns)} texts{shown}")
    return pairs


def _usable_rows(recipe: EncoderRecipe, dropped: Counter[str]) -> Iterator[Pair]:
    first, *others = recipe.columns
    keep = list(dict.fromkeys([*others, *recipe.at_least]))
    for name in recipe.data:
        for row in read_kept_rows(name, recipe.format, first, keep):
            texts = [" ".join(str(text or "").split()) for text in (row.text, *(row.kept[column] for column in others))]
            lengths = [count_words(text) for text in texts]
            if not all(_number(name, column, row.kept[column]) >= low for column, low in recipe.at_least.items()):
                dropped["below at_least"] += 1
            elif not recipe.min_words <= min(lengths) <= max(lengths) <= recipe.max_words:
                dropped["too short or too long"] += 1
            else:
                yield tuple(texts)


def _number(source: str, column: str, value: object) -> float:
    try:
        return float(str(value))
    except ValueError as error:
        raise ValueError(f"{source}: at_least needs numbers, and column {column!r} holds {value!r}.") from error


def mine_negatives(pairs: Sequence[Pair], model: SentenceTransformer, number: int, quiet: bool = False) -> list[Pair]:
    """The pairs that have them, with `number` hard negatives each: the positives of other pairs that are nearest to the
    text, by sentence-transformers' own miner."""
    columns = {"anchor": [pair[0] for pair in pairs], "positive": [pair[1] for pair in pairs]}
    mined = mine_hard_negatives(
        Dataset.from_dict(columns),
        model,
        num_negatives=number,
        relative_margin=MARGIN,
        output_format="n-tuple",
        verbose=not quiet,
    )
    return [tuple(row.values()) for row in mined]
