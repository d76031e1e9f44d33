"""Windows over long texts, and words from tokens, against loops that spell the rules out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardkuma.scoring_hardkuma import AGGREGATES, JoinedTokens, Windows, WordTokens, window_overlap
from hardkuma.words_hardkuma import WordIndex
from tests.conftest import SENTENCES

LENGTH = 12  # characters of a text


@st.composite
def word_spans(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Words of a text: in order, not empty, not overlapping, with or without gaps."""
    edges = sorted(draw(st.sets(st.integers(0, LENGTH), max_size=8)))
    return [span for span in pairwise(edges) if draw(st.booleans())]


@st.composite
def token_spans(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Tokens of a window: empty ones, ones over several words, ones that share their characters (bytes of an emoji)."""
    spans = draw(st.lists(st.tuples(st.integers(0, LENGTH), st.integers(0, 5)), max_size=7))
    return [(start, min(start + size, LENGTH)) for start, size in sorted(spans)]


def touch(token: tuple[int, int], word: tuple[int, int]) -> bool:
    return bool(set(range(*token)) & set(range(*word)))


def make_windows(rows: list[tuple[int, list[tuple[int, int]]]]) -> Windows:
    flat = torch.tensor([span for _, row in rows for span in row], dtype=torch.long).view(-1, 2)
    owners = torch.tensor([owner for owner, _ in rows], dtype=torch.long)
    lengths = torch.tensor([len(row) for _, row in rows], dtype=torch.long)
    return Windows(owners, lengths, flat[:, 0], flat[:, 1], {})


@settings(max_examples=200, deadline=None)
@given(texts=st.lists(word_spans(), min_size=1, max_size=3), data=st.data())
def test_tokens_find_the_words_that_they_touch(texts: list[list[tuple[int, int]]], data: st.DataObject) -> None:
    index = WordIndex(texts, [LENGTH] * len(texts))
    owner, tokens = data.draw(st.integers(0, len(texts) - 1)), data.draw(token_spans())
    starts, ends = torch.tensor(tokens, dtype=torch.long).view(-1, 2).T
    first, count = index.touched(torch.tensor([owner]), starts[None], ends[None])
    for token, word, number in zip(tokens, first[0].tolist(), count[0].tolist(), strict=True):
        found = list(range(word, word + number))
        assert found == [index.firsts[owner] + i for i, span in enumerate(texts[owner]) if touch(token, span)]


COMBINE: dict[str, Callable[[list[float]], float]] = {
    "max": max,
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "first": lambda values: values[0],
}


@settings(max_examples=200, deadline=None)
@given(texts=st.lists(word_spans(), min_size=1, max_size=3), data=st.data())
def test_words_take_the_window_in_which_they_stand_furthest_from_an_edge(
    texts: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    owners = st.integers(0, len(texts) - 1)
    rows = data.draw(st.lists(st.tuples(owners, token_spans()), max_size=5))
    windows = make_windows(rows)
    numbers = torch.arange(len(windows.starts)).float()
    # Some order of values that has nothing to do with the places.
    values = (numbers * 7 + 3) % 11 / 11
    tokens = WordTokens(windows, WordIndex(texts, [LENGTH] * len(texts)))
    firsts = windows.firsts.tolist()
    for how in AGGREGATES:
        expected = []
        for owner, words in enumerate(texts):
            for word in words:
                best: tuple[int, float] = (-1, 0.0)
                for row, (own, spans) in enumerate(rows):
                    places = [i for i, span in enumerate(spans) if own == owner and touch(span, word)]
                    if places:
                        margin = min(min(i, len(spans) - 1 - i) for i in places)
                        best = max(best, (margin, COMBINE[how]([float(values[firsts[row] + i]) for i in places])))
                expected.append(best[1])
        assert tokens.values(values, how).tolist() == pytest.approx(expected, abs=1e-6), how


def test_windows_hold_every_token_and_overlap_by_a_quarter(make_model: Callable) -> None:
    model = make_model()
    texts = ["", " ".join(SENTENCES * 5), "paris"]
    length = model.max_length
    assert (length, window_overlap(length)) == (40, 10)
    windows = Windows.cut(model.tokenizer, texts, length)
    ids = [row.tolist() for row in windows.inputs["input_ids"].split(windows.lengths.tolist())]
    assert [len(row) for row in ids] == windows.lengths.tolist() and max(len(row) for row in ids) == length
    for number, text in enumerate(texts):
        rows = [row[1:-1] for row, owner in zip(ids, windows.owners.tolist(), strict=True) if owner == number]
        assert len(rows) == 1 or (number == 1 and len(rows) > 2)
        whole = model.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert [token for i, row in enumerate(rows) for token in (row if i == 0 else row[10:])] == whole
        assert all(before[-10:] == row[:10] for before, row in pairwise(rows))


def test_batches_hold_every_window_once_and_pad_with_nothing(make_model: Callable) -> None:
    model = make_model()
    windows = Windows.cut(model.tokenizer, [*SENTENCES, ""], 40)
    seen: list[int] = []
    for tokens, inside in windows.batches(3):
        rows = windows.numbers[tokens[:, 0]]
        assert len(rows) <= 3 and tokens.shape == inside.shape == (len(rows), int(windows.lengths[rows].max()))
        assert (windows.numbers[tokens] == rows[:, None])[inside].all()
        seen += tokens[inside].tolist()
    assert sorted(seen) == list(range(len(windows.starts)))


@settings(max_examples=100, deadline=None)
@given(count=st.integers(0, 14), length=st.integers(1, 6), data=st.data(), edges=st.sets(st.integers(0, 14), max_size=8))
def test_tokens_of_one_text_are_joined_against_a_loop(
    count: int, length: int, data: st.DataObject, edges: set[int]
) -> None:
    """Tokens of one character each, in windows with a special token at each end."""
    overlap = data.draw(st.integers(0, length - 1))
    words = [span for span in pairwise(sorted(edges)) if data.draw(st.booleans())]
    windows, first = [], 0
    while not windows or windows[-1][-1] < count - 1:
        windows.append(list(range(first, min(first + length, count))))
        first += length - overlap
        if count == 0:
            break
    flat = [place for row in windows for place in (None, *row, None)]
    spans = torch.tensor([(0, 0) if place is None else (place, place + 1) for place in flat]).view(-1, 2)
    lengths = torch.tensor([len(row) + 2 for row in windows])
    made = Windows(torch.zeros_like(lengths), lengths, spans[:, 0], spans[:, 1], {})
    values = (torch.arange(len(flat)).float() * 7 + 3) % 11 / 11
    content = torch.tensor([place is not None for place in flat])
    joined = JoinedTokens(made, content, overlap, WordTokens(made, WordIndex([words], [14])))
    found = joined.values(values).tolist()
    assert [flat[i] for i in joined.firsts.tolist()] == list(range(count))
    for token in range(count):
        unit = next((range(*span) for span in words if touch((token, token + 1), span)), range(token, token + 1))
        best = (-1, 0.0)
        for number, row in enumerate(windows):
            if token in row:
                margin = min(min(row.index(i) + 1, len(row) - row.index(i)) for i in unit if i in row)
                best = max(best, (margin, float(values[int(made.firsts[number]) + row.index(token) + 1])))
        assert found[token] == pytest.approx(best[1], abs=1e-6)
