import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardkuma.data import batches as batches_module
from hardkuma.data import length_bucketed_batches, neighbour_batches, random_batches, shard


def clusters(count: int, size: int, dim: int = 16, seed: int = 0) -> np.ndarray:
    """`count` tight groups of `size` points each, row i in group i % count."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(count, dim))
    return np.tile(centres, (size, 1)) + 0.01 * generator.normal(size=(count * size, dim))


def spread(embeddings: np.ndarray, batches: list[np.ndarray]) -> float:
    """Mean cosine similarity within batches."""
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    return float(np.mean([(unit[batch] @ unit[batch].T).mean() for batch in batches]))


def all_kinds(embeddings: np.ndarray, batch_size: int, **options: object) -> list[list[np.ndarray]]:
    lengths = np.arange(len(embeddings)) % 7
    return [
        random_batches(len(embeddings), batch_size, **options),
        length_bucketed_batches(lengths, batch_size, **options),
        neighbour_batches(embeddings, batch_size, **options),
        neighbour_batches(embeddings, batch_size, exact_limit=max(batch_size, 13), **options),
    ]


@settings(deadline=None, max_examples=40)
@given(size=st.integers(1, 60), batch_size=st.integers(1, 20), epoch=st.integers(0, 3))
@pytest.mark.filterwarnings("ignore:.*exact_limit")
def test_every_sentence_at_most_once(size: int, batch_size: int, epoch: int) -> None:
    size = max(size, batch_size)
    embeddings = np.random.default_rng(0).normal(size=(size, 4))
    for batches in all_kinds(embeddings, batch_size, epoch=epoch):
        rows = np.concatenate(batches)
        assert len(set(rows.tolist())) == len(rows) == size - size % batch_size
        assert {len(batch) for batch in batches} == {batch_size}


@pytest.mark.filterwarnings("ignore:.*exact_limit")
def test_deterministic_in_seed_and_epoch() -> None:
    embeddings = clusters(5, 20)
    for kind in range(4):

        def run(seed: int, epoch: int, kind: int = kind) -> list:
            return [batch.tolist() for batch in all_kinds(embeddings, 8, seed=seed, epoch=epoch)[kind]]

        assert run(1, 0) == run(1, 0)
        assert run(1, 0) != run(1, 1)
        assert run(1, 0) != run(0, 1)  # not merely seed + epoch


def test_what_is_dropped_changes_from_epoch_to_epoch() -> None:
    embeddings = clusters(5, 21)
    embeddings[:3] *= -1  # three outliers, which a greedy search would always leave to the end
    left_out = [
        set(range(105)) - set(np.concatenate(neighbour_batches(embeddings, 10, epoch=e)).tolist()) for e in range(20)
    ]
    assert len(set().union(*left_out)) > 40
    assert sum(0 in left for left in left_out) < 8


def test_neighbourhoods_are_the_clusters() -> None:
    embeddings = clusters(8, 10)
    for batch in neighbour_batches(embeddings, 10):
        assert len({row % 8 for row in batch.tolist()}) == 1


def test_neighbours_by_cosine_not_by_distance() -> None:
    embeddings = clusters(8, 10) * np.random.default_rng(1).uniform(0.01, 100, size=(80, 1))
    assert all(len({row % 8 for row in batch.tolist()}) == 1 for batch in neighbour_batches(embeddings, 10))


def test_greedy_against_a_naive_loop() -> None:
    """The batches, in some order, are what taking the nearest unused neighbours one seed at a time gives."""
    embeddings = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    order = np.random.default_rng([3, 2]).permutation(40)
    unused, expected = list(order), []
    while unused:
        nearest = sorted(unused, key=lambda row: -float(unit[row] @ unit[unused[0]]))[:8]
        expected.append(sorted(int(row) for row in nearest))
        unused = [row for row in unused if row not in nearest]
    found = [sorted(batch.tolist()) for batch in neighbour_batches(embeddings, 8, seed=3, epoch=2)]
    assert sorted(found) == sorted(expected)


def test_tighter_than_random_and_not_ordered_by_tightness() -> None:
    embeddings = np.random.default_rng(0).normal(size=(2000, 8))
    batches = neighbour_batches(embeddings, 20)
    assert spread(embeddings, batches) > spread(embeddings, random_batches(2000, 20)) + 0.3
    early, late = spread(embeddings, batches[:50]), spread(embeddings, batches[50:])
    assert abs(early - late) < 0.1


def test_torch_half_and_zero_rows() -> None:
    embeddings = torch.tensor(clusters(4, 10)).half().requires_grad_()
    assert all(len({row % 4 for row in batch.tolist()}) == 1 for batch in neighbour_batches(embeddings, 10))
    assert len(neighbour_batches(torch.zeros(12, 3), 4)) == 3


def test_lengths_are_alike_within_a_batch() -> None:
    lengths = np.random.default_rng(0).integers(3, 60, size=1000)
    spans = [np.ptp(lengths[batch]) for batch in length_bucketed_batches(lengths, 10)]
    assert np.mean(spans) < 5 < np.mean([np.ptp(lengths[batch]) for batch in random_batches(1000, 10)])


def test_shards_join_to_the_batch() -> None:
    batch = np.array([5, 2, 9, 7, 1, 4])
    assert np.concatenate([shard(batch, rank, 3) for rank in range(3)]).tolist() == batch.tolist()
    with pytest.raises(ValueError, match="a batch of 6 cannot be shared equally among 4 processes; use a multiple of 4"):
        shard(batch, 0, 4)
    with pytest.raises(ValueError, match="got rank 3 of world_size 3"):
        shard(batch, 3, 3)


def test_errors_carry_value_and_fix() -> None:
    small = np.ones((5, 2))
    for call in (
        lambda: neighbour_batches(small, 8),
        lambda: random_batches(5, 8),
        lambda: length_bucketed_batches([1] * 5, 8),
    ):
        with pytest.raises(
            ValueError, match="corpus of 5 sentences gives no batch of 8; add sentences, or use a batch_size of at most 5"
        ):
            call()
    with pytest.raises(ValueError, match="batch_size must be >= 1, got 0"):
        random_batches(5, 0)
    with pytest.raises(ValueError, match=r"must be \(sentences, dim\), got shape \(5,\)"):
        neighbour_batches(np.ones(5), 2)
    with pytest.raises(ValueError, match=r"nan or inf in 1 rows \(first: 1\)"):
        neighbour_batches(np.array([[1.0], [np.nan], [1.0]]), 2)
    with pytest.raises(ValueError, match="exact_limit must be >= batch_size = 2, got 1"):
        neighbour_batches(small, 2, exact_limit=1)


def test_four_thousand_sentences_take_seconds() -> None:
    embeddings = np.random.default_rng(0).normal(size=(4000, 384)).astype(np.float32)
    start = time.perf_counter()
    assert len(neighbour_batches(embeddings, 64)) == 62
    assert time.perf_counter() - start < 5


# --- beyond the exact limit


def test_beyond_the_limit_it_says_so_and_compares_parts() -> None:
    embeddings = clusters(4, 50)
    with pytest.warns(UserWarning, match="200 sentences are more than exact_limit = 100: .* a larger exact_limit"):
        batches = neighbour_batches(embeddings, 10, exact_limit=100)
    assert sorted(np.concatenate(batches).tolist()) == list(range(200))
    assert spread(embeddings, batches) > 0.8


@pytest.mark.filterwarnings("ignore:.*exact_limit")
def test_some_rows_of_a_file_are_never_read_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of some rows are those of the rows by themselves, and at most `exact_limit` of them are read at a time."""
    embeddings = clusters(4, 50).astype(np.float32)
    embeddings[1] = np.nan  # takes no part
    embeddings.tofile(tmp_path / "embeddings")
    mapped = np.memmap(tmp_path / "embeddings", dtype=np.float32, mode="r").reshape(-1, 16)
    rows = np.setdiff1d(np.arange(200), [1, 5, 77])
    expected = neighbour_batches(embeddings[rows], 10, seed=3, exact_limit=50)
    real, most = batches_module._unit_rows, []
    monkeypatch.setattr(batches_module, "_unit_rows", lambda array, part: most.append(len(part)) or real(array, part))
    found = neighbour_batches(mapped, 10, seed=3, exact_limit=50, rows=rows)
    assert [batch.tolist() for batch in found] == [rows[batch].tolist() for batch in expected]
    assert max(most) == 50 and len(most) == 4
