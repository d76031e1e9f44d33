"""A tokenised batch: which tokens make up a word, by the text or by the marks of the vocabulary; sums over words against
loops; what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hardkuma import HardKumaConfig, HardKumaModel, continues_batch
from hardkuma.batch_hardkuma import (
    CONTINUES,
    PUNCTUATION,
    STARTS,
    TokenBatch,
    attendable,
    continuing_tokens,
    prepare,
    token_roles,
)
from hardkuma.configuration_hardkuma import StaticEncoderConfig
from hardkuma.words_hardkuma import FUNCTION, LINK, NEGATION
from tests.conftest import SENTENCES, build_two_selectors

TEXTS = ["the unbelievable museums reopened in 1891", "Nobody knew, nobody asked: unbelievable!", "bridges and a (bridge)"]


def train(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer of this kind with so few tokens that most words have several."""
    if kind == "wordpiece":
        backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.Lowercase()
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=70, special_tokens=["[UNK]", "[PAD]"])
    elif kind == "byte-level":
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["[UNK]", "[PAD]"])
    else:
        backend = Tokenizer(models.Unigram())
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=["[UNK]", "[PAD]"], unk_token="[UNK]")
    trainer.show_progress = False
    backend.train_from_iterator(TEXTS * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")


ROLES = {STARTS, CONTINUES, PUNCTUATION, FUNCTION, LINK, NEGATION}


@pytest.mark.parametrize("kind", ["wordpiece", "byte-level", "sentencepiece"])
def test_the_vocabulary_knows_the_words_of_plain_text(kind: str) -> None:
    tokenizer = train(kind)
    roles = token_roles(tokenizer, len(tokenizer))
    assert {STARTS, CONTINUES, PUNCTUATION} <= set(roles.tolist()) <= ROLES
    for text in TEXTS:
        encoded = tokenizer([text], return_offsets_mapping=True, return_tensors="pt")
        expected = continues_batch([text], encoded["offset_mapping"])
        assert expected.any() and len(expected[0]) > len(text.split()) + 2, "words of several tokens"
        found = continuing_tokens(roles, encoded["input_ids"])[0].tolist()
        # A token of nothing but the space before a word is no part of it in the text, and no sign in the vocabulary.
        pieces = tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
        bare = [piece in ("Ġ", "▁") for piece in pieces]
        after_bare = [False, *bare[:-1]]
        for piece, one, other, skip in zip(pieces, found, expected[0].bool().tolist(), after_bare, strict=True):
            assert one == other or skip, (text, piece)


def test_a_vocabulary_without_marks_has_a_word_a_token(make_model: Callable) -> None:
    tokenizer = make_model().tokenizer
    roles = token_roles(tokenizer, len(tokenizer) + 3)
    assert CONTINUES not in roles and len(roles) == len(tokenizer) + 3
    assert roles[tokenizer.convert_tokens_to_ids([",", "paris", "1891"])].tolist() == [PUNCTUATION, STARTS, STARTS]


# ---- sums over words ----------------------------------------------------------------------------------------------------

# A token starts a word, goes on with one, is special, or is left out by the mask.
LETTERS = START, GO_ON, SPECIAL, HOLE = "s", "g", "x", "h"


@st.composite
def rows_of_letters(draw: st.DrawFn) -> list[str]:
    length = draw(st.integers(1, 9))
    return draw(st.lists(st.text(LETTERS, min_size=length, max_size=length), min_size=1, max_size=4))


def batch_of(rows: list[str]) -> TokenBatch:
    """The batch whose tokens these letters are."""
    ids = torch.tensor([[LETTERS.index(letter) for letter in row] for row in rows])
    config = HardKumaConfig(encoder_config=StaticEncoderConfig(vocab_size=4, hidden_size=2), special_token_ids=[2])
    return prepare(config, ids, (ids != 3).long(), roles=torch.tensor([STARTS, CONTINUES, PUNCTUATION, STARTS]))


def words_of(row: str, unit: str) -> dict[int, list[int]]:
    """Places of the tokens of each word by its slot. Special tokens are words of their own; nothing goes on with one."""
    if unit == "token":
        return {place: [place] for place, letter in enumerate(row) if letter != HOLE}
    words: list[list[int]] = []
    for place, letter in enumerate(row):
        if letter == GO_ON and place > 0 and row[place - 1] in (START, GO_ON):
            words[-1].append(place)
        elif letter != HOLE:
            words.append([place])
    return dict(enumerate(words))


@settings(deadline=None, max_examples=200)
@given(rows=rows_of_letters(), unit=st.sampled_from(["token", "word"]), extra=st.sampled_from([None, 0, 3]))
def test_sums_over_words_are_those_of_loops(rows: list[str], unit: str, extra: int | None) -> None:
    batch = batch_of(rows)
    # What is left out at the beginning of a row was moved to its end.
    rows = [row.lstrip(HOLE).ljust(len(row), HOLE) for row in rows]
    expected = [words_of(row, unit) for row in rows]
    number, length = len(rows), len(rows[0])
    least = (length if unit == "token" else max(1, *(len(words) for words in expected))) + 1
    words = batch.words(unit, None if extra is None else least + extra)
    assert words.slots == least + (extra or 0) and words.index.shape == (number, length)
    values = torch.randn(number, length, 3)
    numbers = torch.randint(1, 11, (number, length))
    sums, means, first = words.sum(values), words.mean(values), words.first(numbers)
    bools = words.first(numbers > 5)
    assert sums.shape == means.shape == (number, words.slots, 3)
    assert first.dtype == numbers.dtype and bools.dtype == torch.bool
    assert torch.allclose(words.sum(values[..., 0]), sums[..., 0], atol=1e-6)
    for row, places_of in enumerate(expected):
        for slot in range(words.slots):
            places = places_of.get(slot, [])
            if places:
                assert torch.allclose(sums[row, slot], values[row, places].sum(0), atol=1e-5)
                assert torch.allclose(means[row, slot], values[row, places].mean(0), atol=1e-5)
                assert first[row, slot] == numbers[row, places[0]] and bools[row, slot] == (numbers[row, places[0]] > 5)
            else:  # no word: only the last slot has anything, what is left out
                assert first[row, slot] == 0 and not bools[row, slot]
                assert slot == words.slots - 1 or not (sums[row, slot].any() or means[row, slot].any())
        left_out = [place for place, letter in enumerate(rows[row]) if letter == HOLE]
        assert (words.index[row, left_out] == words.slots - 1).all()


def test_words_by_hand() -> None:
    """Words of several tokens between special ones, and a hole after which a new word begins."""
    batch = batch_of(["xsggsx", "xsghgx"])
    words = batch.words()
    assert words.slots == 5 and words.index.tolist() == [[0, 1, 1, 1, 2, 3], [0, 1, 1, 4, 2, 3]]
    assert batch.words("token").index.tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 6, 4, 5]]
    assert words.first(batch.content).tolist() == [[False, True, True, False, False]] * 2


def test_nothing_goes_on_with_a_special_token_or_is_one() -> None:
    model = build_two_selectors()
    ids = torch.tensor([[0, 5, 6, 3, 7, 1]])
    batch = prepare(model.config, ids, (ids != 1).long(), continues=torch.ones_like(ids))
    assert batch.continues.tolist() == [[False, False, True, False, False, False]]
    assert not prepare(model.config, ids).continues.any()
    with pytest.raises(ValueError, match=r"continues has shape \(1, 5\) but input_ids has \(1, 6\)"):
        prepare(model.config, ids, continues=torch.ones(1, 5))


@pytest.mark.parametrize("side", ["left", "right"])
def test_words_given_or_from_the_vocabulary(side: str, tokenize: Callable) -> None:
    model = build_two_selectors()
    model.tokenizer.padding_side = side
    inputs = tokenize(model, SENTENCES)
    expected = model(**inputs)
    known = continuing_tokens(model.gate_head.token_roles, inputs["input_ids"])
    for given_words in (known, known.long()):
        assert torch.equal(model(**inputs, continues=given_words).gate_probs, expected.gate_probs)
    other = model(**inputs, continues=torch.zeros_like(known))
    assert not torch.allclose(other.gate_probs, expected.gate_probs, atol=1e-3)


def test_the_roles_of_an_encoders_vocabulary_are_kept(minilm: HardKumaModel) -> None:
    parts = {"selectors": {"meaning": {"unit": "word"}}}
    roles = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", **parts).gate_head.token_roles
    assert torch.equal(roles, token_roles(minilm.tokenizer, len(minilm.tokenizer))) and roles.dtype == torch.uint8
    assert {STARTS, CONTINUES, PUNCTUATION} <= set(roles.tolist()) <= ROLES


# ---- padding, and what is refused ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(rows=rows_of_letters())
def test_padding_goes_to_the_right_and_back(rows: list[str]) -> None:
    batch = batch_of(rows)
    for row, letters in enumerate(rows):
        moved = letters.lstrip(HOLE).ljust(len(letters), HOLE)
        # Only what is inside of the mask has to be in its place.
        kept = [(LETTERS[i], j) for j, i in enumerate(batch.input_ids[row].tolist()) if batch.mask[row, j]]
        assert kept == [(letter, place) for place, letter in enumerate(moved) if letter != HOLE]
    values = torch.randn(len(rows), 2, len(rows[0]), 3)
    assert torch.equal(batch.restore(batch.align(values, dim=2), dim=2), values)
    assert torch.equal(batch.align(torch.tensor([[letter != HOLE for letter in row] for row in rows])), batch.mask)


def test_a_row_without_tokens_sees_its_first_place() -> None:
    mask = torch.tensor([[True, False, True], [False, False, False]])
    assert attendable(mask).tolist() == [[1, 0, 1], [1, 0, 0]]


@pytest.mark.parametrize("wrong", [-1, -100, 4, 1000])
def test_ids_beyond_the_vocabulary_are_refused(wrong: int, make_model: Callable) -> None:
    model = make_model()
    size = model.config.vocab_size
    number = wrong if wrong < 4 else size + wrong - 4
    message = rf"input_ids has {number}, but the vocabulary is 0 to {size - 1}; tokenise with the model's own tokenizer"
    for call in (model, model.gate_probabilities, model.encode_tokens, lambda ids: model.selector_inputs(0, ids)):
        with pytest.raises(ValueError, match=message):
            call(torch.tensor([[0, 5, 3], [0, number, 3]]))


def test_texts_are_no_tokens(make_model: Callable) -> None:
    model = make_model()
    for wrong in (["paris"], "paris", model.tokenizer(["paris"])):
        with pytest.raises(TypeError, match=r"input_ids must be a tensor \(batch, length\), got a .*; tokenise first"):
            model(wrong)


def test_classes_and_empty_batches_are_refused(make_model: Callable) -> None:
    model = make_model()
    ids = torch.tensor([[0, 5, 6, 3]])
    for bad in (-1, 99):
        with pytest.raises(ValueError, match=r"surface_ids must lie in \[0, \d+\]; make them with surface_batch"):
            model.prepare(ids, surface_ids=torch.full_like(ids, bad))
    for empty in (torch.zeros(0, 4, dtype=torch.long), torch.zeros(1, 0, dtype=torch.long)):
        with pytest.raises(ValueError, match=r"input_ids must be \(batch, length\) with at least one of each, got"):
            model.prepare(empty)
    with pytest.raises(ValueError, match="give either input_ids or inputs_embeds, and not both"):
        model.prepare()


def test_forms_of_tokens_that_are_left_out_do_not_matter(tokenize: Callable) -> None:
    """They come from the text, whatever part of it a mask leaves."""
    model = build_two_selectors()
    model.gate_head.surface_log_odds.normal_()
    inputs = tokenize(model, [SENTENCES[4]])
    mask = inputs.pop("attention_mask")
    mask[:, 2::2] = 0
    forms = torch.full_like(mask, 10)
    found = model(**inputs, attention_mask=mask, surface_ids=forms).gate_probs
    assert torch.equal(found, model(**inputs, attention_mask=mask, surface_ids=forms * mask).gate_probs)
