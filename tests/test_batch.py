"""Which tokens make up a word: from the text, or from the marks of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hardkuma import HardKumaModel, continues_batch
from hardkuma.batch_hardkuma import ALONE, CONTINUES, STARTS, continuing_tokens, prepare, same_word, token_kinds
from tests.conftest import SENTENCES, build_two_selectors

TEXTS = ["the unbelievable museums reopened in 1891", "Nobody knew, nobody asked: unbelievable!", "bridges and a (bridge)"]


def train(algorithm: str) -> PreTrainedTokenizerFast:
    """A tokenizer with so few tokens that most words have several."""
    if algorithm == "wordpiece":
        backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.Lowercase()
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=70, special_tokens=["[UNK]", "[PAD]"])
    elif algorithm == "byte-level":
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


@pytest.mark.parametrize("algorithm", ["wordpiece", "byte-level", "sentencepiece"])
def test_the_vocabulary_knows_the_words_of_plain_text(algorithm: str) -> None:
    tokenizer = train(algorithm)
    kinds = token_kinds(tokenizer, len(tokenizer))
    assert set(kinds.tolist()) == {STARTS, CONTINUES, ALONE}
    for text in TEXTS:
        encoded = tokenizer([text], return_offsets_mapping=True, return_tensors="pt")
        expected = continues_batch([text], encoded["offset_mapping"])
        assert expected.any() and len(expected[0]) > len(text.split()) + 2, "words of several tokens"
        found = continuing_tokens(kinds, encoded["input_ids"])[0].tolist()
        # A token of nothing but the space before a word is no part of it in the text, and no sign in the vocabulary.
        pieces = tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
        bare = [piece in ("Ġ", "▁") for piece in pieces]
        after_bare = [False, *bare[:-1]]
        for piece, one, other, skip in zip(pieces, found, expected[0].bool().tolist(), after_bare, strict=True):
            assert one == other or skip, (text, piece)


def test_a_vocabulary_without_marks_has_a_word_a_token(make_model: Callable) -> None:
    tokenizer = make_model().tokenizer
    kinds = token_kinds(tokenizer, len(tokenizer) + 3)
    assert CONTINUES not in kinds and len(kinds) == len(tokenizer) + 3
    assert kinds[tokenizer.convert_tokens_to_ids([",", "paris", "1891"])].tolist() == [ALONE, STARTS, STARTS]


def test_tokens_beyond_the_vocabulary_start_words() -> None:
    kinds = torch.tensor([STARTS, CONTINUES, ALONE], dtype=torch.uint8)
    assert continuing_tokens(kinds, torch.tensor([[7, 1, 0, 1, 9, 1]])).tolist() == [
        [False, True, False, True, False, True]
    ]


def test_same_word_against_a_loop() -> None:
    continues = torch.rand(4, 9) < 0.5
    found = same_word(continues)
    for row in range(4):
        number, words = -1, []
        for goes_on in continues[row].tolist():
            number += not goes_on
            words.append(number)
        assert found[row].tolist() == [[a == b for b in words] for a in words]


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
    known = continuing_tokens(model.gate_head.token_kinds, inputs["input_ids"])
    for given in (known, known.long()):
        assert torch.equal(model(**inputs, continues=given).gate_probs, expected.gate_probs)
    other = model(**inputs, continues=torch.zeros_like(known))
    assert not torch.allclose(other.gate_probs, expected.gate_probs, atol=1e-3)


def test_the_kinds_of_an_encoders_vocabulary_are_kept() -> None:
    model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", selector_unit="word")
    assert torch.equal(model.gate_head.token_kinds, token_kinds(model.tokenizer, len(model.tokenizer)))
    plain = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2")
    assert not hasattr(plain.gate_head, "token_kinds")
    # Where an input speaks of words, words count too.
    removal = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", selector_inputs=["removal"])
    assert torch.equal(removal.gate_head.token_kinds, model.gate_head.token_kinds)
