"""Which sentences train together. A batch is an array of row numbers: the *global* batch, shared out among processes.

InfoNCE takes its negatives from the batch. Batches of mutually similar sentences (`neighbour_batches`) make the gates pick
what tells near neighbours apart; random batches are the baseline.

Every function is deterministic in (seed, epoch), visits each sentence at most once per epoch, and with `drop_last` leaves
out the len % batch_size sentences that fill no batch: a random choice, different each epoch.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

METHODS = ("auto", "exact", "shards")
# Above this many sentences "auto" no longer compares all of them with each seed sentence.
EXACT_LIMIT = 50_000
CHUNK = 1 << 14  # rows that are looked at together where all have to be


def _check(size: int, batch_size: int, drop_last: bool) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size must be >= 1, got {batch_size}")
    if size < batch_size and drop_last:
        raise ValueError(
            f"a corpus of {size} sentences gives no batch of {batch_size}; add sentences, "
            f"or use a batch_size of at most {max(size, 1)}"
        )


def _generator(seed: int, epoch: int) -> np.random.Generator:
    # A pair, not a sum: seed 1 in epoch 0 must not repeat seed 0 in epoch 1.
    return np.random.default_rng([seed, epoch])


def _taking_part(size: int, batch_size: int, drop_last: bool, generator: np.random.Generator) -> np.ndarray:
    """Row numbers in random order; with drop_last as many as fill whole batches."""
    order = generator.permutation(size)
    return order[: size - size % batch_size] if drop_last else order


def random_batches(size: int, batch_size: int, seed: int = 0, epoch: int = 0, drop_last: bool = True) -> list[np.ndarray]:
    """Batches of `size` sentences in random order.

    >>> [batch.tolist() for batch in random_batches(5, 2, seed=1)]
    [[4, 0], [1, 2]]
    """
    _check(size, batch_size, drop_last)
    order = _taking_part(size, batch_size, drop_last, _generator(seed, epoch))
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def neighbour_batches(
    embeddings: np.ndarray | Tensor,
    batch_size: int,
    seed: int = 0,
    epoch: int = 0,
    drop_last: bool = True,
    method: str = "auto",
    exact_limit: int = EXACT_LIMIT,
    rows: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Batches that are neighbourhoods by cosine similarity: a random unused sentence and its nearest unused neighbours.

    Holds one row of similarities, and of the embeddings a copy of those that it compares: all of them, or `exact_limit`; an
    array that is memory-mapped stays on disk. "exact" costs sentences^2 * dim / batch_size: with batches of 64 on one
    core, 1 s for 20,000 sentences of 384 dimensions and 7 s for 50,000; raise `exact_limit` while the time is bearable.

    Processes that train together should share the result of one of them, or have the same hardware: another
    rounding may order near ties differently.

    Args:
        embeddings: (sentences, dim), of any scale.
        batch_size: size of the global batch.
        method: "exact" compares each seed sentence with all unused ones; "shards" is exact within random parts of at most
            `exact_limit` sentences; "auto" is exact up to `exact_limit`, and beyond it says so and uses "shards".
        rows: numbers of the sentences that take part, all by default; batches hold numbers of `embeddings` in any case.

    >>> points = np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]])
    >>> sorted(sorted(batch.tolist()) for batch in neighbour_batches(points, 2))
    [[0, 2], [1, 3]]
    """
    array = embeddings.detach().cpu().float().numpy() if hasattr(embeddings, "detach") else np.asarray(embeddings)
    rows = _check_embeddings(array, rows)
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if exact_limit < batch_size:
        raise ValueError(f"exact_limit must be >= batch_size = {batch_size}, got {exact_limit}")
    _check(len(rows), batch_size, drop_last)
    generator = _generator(seed, epoch)
    order = rows[_taking_part(len(rows), batch_size, drop_last, generator)]
    if method == "auto":
        method = "exact" if len(rows) <= exact_limit else "shards"
        if method == "shards":
            warnings.warn(
                f"{len(rows)} sentences are more than exact_limit = {exact_limit}: neighbours are searched within random "
                f"parts of {exact_limit}; a larger exact_limit searches more of them",
                stacklevel=2,
            )
    # Consecutive parts of the random order: whole batches but for the last.
    part = max(len(order), 1) if method == "exact" else max(exact_limit - exact_limit % batch_size, batch_size)
    batches = [batch for i in range(0, len(order), part) for batch in _exact(array, order[i : i + part], batch_size)]
    return _shuffled([generator.permutation(batch) for batch in batches], generator)


def shard(batch: Sequence[int] | np.ndarray, rank: int, world_size: int) -> np.ndarray:
    """The equal, contiguous part of a global batch that process `rank` computes; joined by rank they give the batch.

    >>> [shard([4, 8, 1, 7], rank, 2).tolist() for rank in range(2)]
    [[4, 8], [1, 7]]
    """
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"0 <= rank < world_size is needed, got rank {rank} of world_size {world_size}")
    if len(batch) % world_size:
        raise ValueError(
            f"a batch of {len(batch)} cannot be shared equally among {world_size} processes; "
            f"use a multiple of {world_size}, and drop_last=True"
        )
    part = len(batch) // world_size
    return np.asarray(batch)[rank * part : (rank + 1) * part]


def _check_embeddings(array: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    """The rows that take part, all of which must be finite."""
    if array.ndim != 2:
        raise ValueError(f"embeddings must be (sentences, dim), got shape {tuple(array.shape)}")
    rows = np.arange(len(array)) if rows is None else np.asarray(rows)
    parts = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
    bad = np.concatenate([part[~np.isfinite(array[part]).all(axis=1)] for part in parts]) if parts else rows
    if len(bad):
        raise ValueError(f"embeddings must be finite, got nan or inf in {len(bad)} rows (first: {bad[0]}); remove them")
    return rows


def _unit_rows(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """(rows, dim) float32 of length 1, a copy; a zero row stays zero."""
    vectors = array[rows].astype(np.float32, copy=False)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors


def _shuffled(batches: list[np.ndarray], generator: np.random.Generator) -> list[np.ndarray]:
    # Greedy batches get looser towards the end; without this every epoch would run from tight to loose.
    return [batches[i] for i in generator.permutation(len(batches))]


def _exact(array: np.ndarray, order: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Greedy neighbourhoods over the rows `order`, seeds in that order; a last smaller one if they do not divide."""
    rows, vectors = order, _unit_rows(array, order)  # unused rows, in order, and their vectors
    used = np.zeros(len(order), dtype=bool)
    batches, first = [], 0
    while first < len(rows):
        if used[first]:
            first += 1
            continue
        similarity = vectors @ vectors[first]
        similarity[used] = -np.inf
        similarity[first] = np.inf
        count = min(batch_size, len(rows) - int(used.sum()))
        nearest = np.argpartition(-similarity, count - 1)[:count]
        batches.append(rows[nearest])
        used[nearest] = True
        if used.sum() * 2 > len(used):  # forget used rows now and then: later products get cheaper
            rows, vectors, used, first = rows[~used], vectors[~used], np.zeros(int((~used).sum()), dtype=bool), 0
    return batches
