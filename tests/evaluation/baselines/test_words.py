"""Words from sub-words, for tokenizers of every kind, and the containers of scores."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hardkuma.evaluation.baselines import WordScores
from hardkuma.evaluation.baselines.words import combine_tokens, fill_missing, text_words, tokens_of_words
from tests.toy import toy_tokenizer

from ..conftest import whitespace_words

SAMPLE = ["the museum in Paris opened", "Zürich 東京 naïve e-mail", "it's 4 o'clock , @ana !"] * 3


def byte_level() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(SAMPLE, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def metaspace() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=80, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator(SAMPLE, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


TOKENIZERS = {
    "wordpiece": toy_tokenizer(["the", "museum", "in", "par", "##is", "open", "##ed", "a", "b"]),
    "bytes": byte_level(),
    "unigram": metaspace(),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=40, deadline=None)
@given(text=st.text(alphabet="ab museParis opned.,'-東é \t", max_size=40))
def test_every_token_reaches_the_word_that_it_overlaps(kind: str, text: str) -> None:
    coded = TOKENIZERS[kind](text, return_offsets_mapping=True, add_special_tokens=False)
    offsets = [tuple(span) for span in coded["offset_mapping"]]
    words = whitespace_words(text)
    found = tokens_of_words(offsets, [True] * len(offsets), words)
    for word, (start, end) in enumerate(words):
        inside = set(range(start, end))
        # Naive: the characters that a token and a word share, white space apart.
        expected = [i for i, (s, e) in enumerate(offsets) if {j for j in range(s, e) if not text[j].isspace()} & inside]
        assert found[word] == expected


@settings(max_examples=200, deadline=None)
@given(
    edges=st.sets(st.integers(0, 12), max_size=8),
    tokens=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5), st.booleans()), max_size=7),
)
def test_members_of_words_against_a_loop(edges: set[int], tokens: list[tuple[int, int, bool]]) -> None:
    words = list(pairwise(sorted(edges)))[::2]
    offsets, content = [(start, start + size) for start, size, _ in tokens], [kept for _, _, kept in tokens]
    expected = [
        [i for i, (start, end) in enumerate(offsets) if content[i] and set(range(start, end)) & set(range(*word))]
        for word in words
    ]
    assert tokens_of_words(offsets, content, words) == expected


def test_special_tokens_never_belong_to_a_word() -> None:
    # A special token may claim real characters ("[SEP]" typed by a user).
    assert tokens_of_words([(0, 1), (2, 3)], [True, False], [(0, 1), (2, 3)]) == [[0], []]


@pytest.mark.parametrize(("how", "expected"), [("max", 5.0), ("sum", 7.0), ("mean", 3.5)])
def test_aggregation(how: str, expected: float) -> None:
    result = combine_tokens("hi bobby", [(0, 2), (3, 8)], [[0], [1, 2]], [1.0, 2.0, 5.0], how)
    assert result.scores == [1.0, expected]


def test_unknown_aggregation_is_named() -> None:
    with pytest.raises(ValueError, match="max, sum, mean; got 'median'"):
        combine_tokens("a", [(0, 1)], [[0]], [1.0], "median")


def test_words_without_tokens_carry_the_lowest_score_and_are_named() -> None:
    result = fill_missing("a b c", [(0, 1), (2, 3), (4, 5)], [0.2, None, -3.0])
    assert result.scores == [0.2, -3.0, -3.0]
    assert result.missing == (1,)


def test_scores_must_match_words() -> None:
    with pytest.raises(ValueError, match="1 scores for 2 words"):
        WordScores("a b", [(0, 1), (2, 3)], [0.1])


@pytest.mark.parametrize("spans", [[(0, 9)], [(2, 3), (0, 1)], [(0, 2), (1, 3)], [(1, 1)]])
def test_bad_offsets_are_refused(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="non-overlapping"):
        text_words(["a bc"], [spans])


def test_one_text_instead_of_a_list_is_refused() -> None:
    with pytest.raises(TypeError, match="put it in a list"):
        text_words("a text")
