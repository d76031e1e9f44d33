"""Which sentences train together. A batch is an array of row numbers: the *global* batch, shared out among processes.

InfoNCE takes its negatives from the batch. Batches of mutually similar sentences (`neighbour_batches`) make the gates pick
what tells near neighbours apart; random batches are the baseline.

Every function is deterministic in (seed, epoch) and visits each sentence at most once per epoch. The len % batch_size
sentences that fill no batch are left out: a random choice, different each epoch.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

# Above this many sentences a seed sentence is no longer compared with all of them.
EXACT_LIMIT = 50_000
CHUNK = 1 << 14  # rows that are looked at together where all have to be


def _shuffle(size: int, batch_size: int, seed: int, epoch: int) -> tuple[np.ndarray, np.random.Generator]:
    """Row numbers in random order, as many as fill whole batches; and what drew them."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be >= 1, got {batch_size}")
    if size < batch_size:
        raise ValueError(
            f"a corpus of {size} sentences gives no batch of {batch_size}; add sentences, "
            f"or use a batch_size of at most {max(size, 1)}"
        )
    # A pair, not a sum: seed 1 in epoch 0 must not repeat seed 0 in epoch 1.
    generator = np.random.default_rng([seed, epoch])
    return generator.permutation(size)[: size - size % batch_size], generator


def random_batches(size: int, batch_size: int, seed: int = 0, epoch: int = 0) -> list[np.ndarray]:
    """Batches of `size` sentences in random order.

    >>> [batch.tolist() for batch in random_batches(5, 2, seed=1)]
    [[4, 0], [1, 2]]
    """
    order, _ = _shuffle(size, batch_size, seed, epoch)
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def neighbour_batches(
    embeddings: np.ndarray | Tensor,
    batch_size: int,
    seed: int = 0,
    epoch: int = 0,
    exact_limit: int = EXACT_LIMIT,
    rows: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Batches that are neighbourhoods by cosine similarity: a random unused sentence and its nearest unused neighbours.

    Holds one row of similarities, and of the embeddings a copy of those that it compares: all of them, or `exact_limit`; an
    array that is memory-mapped stays on disk. The cost is sentences^2 * dim / batch_size: with batches of 64 on one
    core, 1 s for 20,000 sentences of 384 dimensions and 7 s for 50,000; raise `exact_limit` while the time is bearable.

    Processes that train together should share the result of one of them, or have the same hardware: another
    rounding may order near ties differently.

    Args:
        embeddings: (sentences, dim), of any scale.
        batch_size: size of the global batch.
        exact_limit: more sentences than these are compared within random parts of so many, which is said.
        rows: numbers of the sentences that take part, all by default; batches hold numbers of `embeddings` in any case.

    >>> points = np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]])
    >>> sorted(sorted(batch.tolist()) for batch in neighbour_batches(points, 2))
    [[0, 2], [1, 3]]
    """
    array = embeddings.detach().cpu().float().numpy() if hasattr(embeddings, "detach") else np.asarray(embeddings)
    rows = _check_embeddings(array, rows)
    if exact_limit < batch_size:
        raise ValueError(f"exact_limit must be >= batch_size = {batch_size}, got {exact_limit}")
    order, generator = _shuffle(len(rows), batch_size, seed, epoch)
    order = rows[order]
    part = len(order)
    if len(rows) > exact_limit:
        part = exact_limit - exact_limit % batch_size  # consecutive parts of the random order: whole batches
        warnings.warn(
            f"{len(rows)} sentences are more than exact_limit = {exact_limit}: neighbours are searched within random "
            f"parts of {exact_limit}; a larger exact_limit searches more of them",
            stacklevel=2,
        )
    batches = [batch for i in range(0, len(order), part) for batch in _exact(array, order[i : i + part], batch_size)]
    batches = [generator.permutation(batch) for batch in batches]
    # Greedy batches get looser towards the end; without this every epoch would run from tight to loose.
    return [batches[i] for i in generator.permutation(len(batches))]


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


def _exact(array: np.ndarray, order: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Greedy neighbourhoods over the rows `order`, whole batches, seeds in that order."""
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
        nearest = np.argpartition(-similarity, batch_size - 1)[:batch_size]
        batches.append(rows[nearest])
        used[nearest] = True
        if used.sum() * 2 > len(used):  # forget used rows now and then: later products get cheaper
            rows, vectors, used, first = rows[~used], vectors[~used], np.zeros(int((~used).sum()), dtype=bool), 0
    return batches
