"""Nearest neighbours from an index, for corpora too large to compare exactly: faiss or hnswlib, whichever is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np

APPROXIMATE = ("faiss", "hnswlib")  # in order of preference
_PACKAGE = {"faiss": "faiss-cpu", "hnswlib": "hnswlib"}
_LINKS, _BREADTH = 32, 200  # links per node and search breadth of the graph: recall above 0.9 for sentence embeddings

# (query of shape (dim,), count) -> row numbers, nearest first; may be fewer than count.
Index = Callable[[np.ndarray, int], np.ndarray]


def installed_index() -> str | None:
    """The first of APPROXIMATE that can be imported, or None.

    >>> installed_index() in (None, *APPROXIMATE)
    True
    """
    return next((name for name in APPROXIMATE if importlib.util.find_spec(name) is not None), None)


def approximate_index(method: str, unit: np.ndarray, seed: int) -> Index:
    """An index over rows of length 1 (rows, dim), by inner product; built in one thread so that it is deterministic.

    >>> points = np.eye(3, dtype=np.float32)
    >>> approximate_index("faiss", points, 0)(points[1], 1) if installed_index() == "faiss" else np.array([1])
    array([1])
    """
    if method not in APPROXIMATE:
        raise ValueError(f"method must be one of {', '.join(APPROXIMATE)}, got {method!r}")
    if importlib.util.find_spec(method) is None:
        raise ImportError(f"method {method!r} needs a package that is not installed; pip install {_PACKAGE[method]}")
    return _faiss(unit) if method == "faiss" else _hnswlib(unit, seed)


def _faiss(unit: np.ndarray) -> Index:
    import faiss

    index = faiss.IndexHNSWFlat(unit.shape[1], _LINKS, faiss.METRIC_INNER_PRODUCT)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        index.add(unit)
    finally:
        faiss.omp_set_num_threads(threads)

    def search(query: np.ndarray, count: int) -> np.ndarray:
        index.hnsw.efSearch = max(_BREADTH, count)
        found = index.search(query[None], count)[1][0]
        return found[found >= 0]

    return search


def _hnswlib(unit: np.ndarray, seed: int) -> Index:
    import hnswlib

    index = hnswlib.Index(space="ip", dim=unit.shape[1])
    index.init_index(max_elements=len(unit), M=_LINKS, ef_construction=_BREADTH, random_seed=seed + 1)
    index.add_items(unit, num_threads=1)

    def search(query: np.ndarray, count: int) -> np.ndarray:
        index.set_ef(max(_BREADTH, count))
        return index.knn_query(query[None], k=count, num_threads=1)[0][0].astype(np.int64)

    return search
