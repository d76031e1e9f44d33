"""Attention-Driven Dropout as a policy: which tokens stay when those that receive the least attention are removed.

Aggregation is naive (`attention.received`) or rollout summed over layers (`rollout.rolled`); the number of removed tokens
is a constant k, or grows with the sentence as floor(tokens / t).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..checks_hardkuma import check_choice
from .attention import received
from .encoder import SentenceEncoder
from .rollout import rolled
from .words import Span

AGGREGATIONS = ("naive", "rollout")


@dataclass
class KeptTokens:
    """One text after the dropout.

    Attributes:
        kept, removed: indices of tokens before the dropout, in reading order.
        input_ids, attention_mask: (length,) as before the dropout: kept tokens moved to the left, padding behind.
        offsets: (start, end) of each kept token in the text.
    """

    text: str
    kept: list[int]
    removed: list[int]
    input_ids: list[int]
    attention_mask: list[int]
    offsets: list[Span]


def number_to_drop(tokens: int, k: int | None = None, t: int = 10) -> int:
    """How many of a sequence's non-padding tokens go.

    Static: k, if there are at least t tokens (0 otherwise). Dynamic (k=None): floor(tokens / t).

    >>> [number_to_drop(n, k=2) for n in (9, 10, 30)], [number_to_drop(n) for n in (9, 10, 30)]
    ([0, 2, 2], [0, 1, 3])
    """
    if t < 1 or (k is not None and k < 0):
        raise ValueError(f"k must be >= 0 and t >= 1, got k={k} and t={t}.")
    if k is None:
        return tokens // t
    return k if tokens >= t else 0


def drop_lowest(values: Sequence[float], droppable: Sequence[bool], number: int) -> tuple[list[int], list[int]]:
    """Indices kept and removed when the `number` lowest droppable values go; of equal ones the first goes first.

    >>> drop_lowest([5.0, 1.0, 3.0, 2.0], [True, True, True, True], 2)
    ([0, 2], [1, 3])
    """
    order = sorted((i for i in range(len(values)) if droppable[i]), key=lambda i: values[i])
    removed = sorted(order[:number])
    gone = set(removed)
    return [i for i in range(len(values)) if i not in gone], removed


def attention_dropout(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    *,
    aggregation: str = "naive",
    k: int | None = None,
    t: int = 10,
    keep_special: bool = True,
    progress: bool = False,
) -> list[KeptTokens]:
    """Remove the tokens that receive the least attention.

    Args:
        aggregation: "naive" or "rollout".
        k: static number of tokens to drop; None for the dynamic floor(tokens / t).
        t: tokens (special ones counted, padding not) that a text must have, per dropped token where k is dynamic.
        keep_special: never drop [CLS] and [SEP]. The reference implementation may drop them.

    >>> from hardkuma.attribution.toy import toy_transformer
    >>> result = attention_dropout(toy_transformer(["a", "b", "c"]), ["a b c"], k=1, t=1)[0]
    >>> len(result.kept), result.attention_mask
    (4, [1, 1, 1, 1, 0])
    """
    check_choice("aggregation", aggregation, AGGREGATIONS)
    tokens = encoder.tokenize(texts)
    results: list[KeptTokens | None] = [None] * len(tokens)
    pad = encoder.tokenizer.pad_token_id or 0
    for batch in encoder.batches(tokens, progress, f"dropout, {aggregation}"):
        values = received(encoder, batch) if aggregation == "naive" else rolled(encoder, batch, layers="all")
        for row, i in enumerate(batch.index):
            item = tokens[i]
            droppable = item.content if keep_special else [True] * len(item)
            number = number_to_drop(len(item), k, t)
            kept, removed = drop_lowest(values[row, : len(item)].tolist(), droppable, number)
            results[i] = KeptTokens(
                item.text,
                kept,
                removed,
                [item.ids[j] for j in kept] + [pad] * len(removed),
                [1] * len(kept) + [0] * len(removed),
                [item.offsets[j] for j in kept],
            )
    empty = KeptTokens("", [], [], [], [], [])
    return [empty if result is None else result for result in results]


@torch.no_grad()
def embed_kept(encoder: SentenceEncoder, kept: Sequence[KeptTokens]) -> torch.Tensor:
    """Sentence vectors (texts, dim) of the left-packed sequences.

    >>> from hardkuma.attribution.toy import toy_transformer
    >>> encoder = toy_transformer(["a", "b", "c"])
    >>> embed_kept(encoder, attention_dropout(encoder, ["a b c"], k=1, t=1)).shape
    torch.Size([1, 32])
    """
    from .encoder import Tokens

    rows = []
    for item in kept:
        ids = item.input_ids[: len(item.kept)]
        content = [token not in encoder.special_ids for token in ids]
        types = [0] * len(ids) if "token_type_ids" in encoder.tokenizer.model_input_names else None
        rows.append(Tokens(item.text, ids, item.offsets, content, types))
    return encoder.embed(rows)
