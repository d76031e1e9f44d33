"""The wrapper pools as the encoder does, whatever else is in the batch, and counts what it runs."""

from __future__ import annotations

import logging

import pytest
import torch

from hardkuma import HardKumaModel
from hardkuma.batch_hardkuma import attendable
from hardkuma.encoder_hardkuma import load_encoder
from hardkuma.evaluation.baselines import METHODS, SentenceEncoder
from tests.toy import toy_encoder, toy_transformer

from .conftest import TEXTS, VOCABULARY

REAL = ["Marie Curie moved to Paris in 1891.", "It rained.", "", "The museum, closed since May, reopens."]


def test_equals_sentence_transformers(minilm: HardKumaModel) -> None:
    transformers = pytest.importorskip("sentence_transformers")
    from hardkuma.encoder_hardkuma import resolve_encoder

    folder = resolve_encoder("sentence-transformers/all-MiniLM-L6-v2")
    expected = torch.tensor(transformers.SentenceTransformer(folder, device="cpu").encode(REAL))
    from_model = SentenceEncoder.from_model(minilm).encode(REAL)
    from_parts = SentenceEncoder.from_parts(load_encoder("sentence-transformers/all-MiniLM-L6-v2")).encode(REAL)
    torch.testing.assert_close(from_model, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(from_parts, expected, atol=1e-5, rtol=0)


def test_equals_the_anchor_of_the_model(minilm: HardKumaModel) -> None:
    inputs = minilm.tokenizer(REAL, padding=True, return_tensors="pt")
    with torch.no_grad():
        anchor = minilm(**inputs).anchor_embedding
    torch.testing.assert_close(SentenceEncoder.from_model(minilm).encode(REAL), anchor, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mode", ["mean", "cls", "max", "lasttoken"])
def test_does_not_depend_on_the_batch(mode: str) -> None:
    together = toy_transformer(VOCABULARY, pooling_mode=mode).encode(TEXTS)
    alone = toy_transformer(VOCABULARY, pooling_mode=mode, token_budget=1).encode(TEXTS)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_masking_equals_removal_where_there_is_no_context(known: SentenceEncoder) -> None:
    tokens = known.tokenize(["it rains in Paris"])
    masked = known.embed(tokens, [[True, False, True, True, True]])
    torch.testing.assert_close(masked, known.encode(["it in Paris"]))


def test_masked_tokens_have_no_influence(transformer: SentenceEncoder) -> None:
    kept = [[True, True, False, True, True, True]]
    first = transformer.embed(transformer.tokenize(["the museum is open"]), kept)
    second = transformer.embed(transformer.tokenize(["the river is open"]), kept)
    torch.testing.assert_close(first, second)
    assert not torch.allclose(first, transformer.encode(["the museum is open"]), atol=1e-3)


def test_special_tokens_always_stay(transformer: SentenceEncoder) -> None:
    tokens = transformer.tokenize(["the museum"])
    nothing = transformer.embed(tokens, [[False] * 4])
    torch.testing.assert_close(nothing, transformer.embed(tokens, [[True, False, False, True]]))
    assert nothing.norm() > 0.9


def test_empty_texts_have_a_finite_vector(known: SentenceEncoder) -> None:
    assert known.encode([""]).tolist() == [[0.0, 0.0, 0.0]]
    assert known.encode([]).shape == (0, 3)


def test_passes_are_counted(transformer: SentenceEncoder) -> None:
    with transformer.counting() as used:
        transformer.encode(TEXTS)
    assert (used.forward, used.backward) == (3, 0)
    with transformer.counting() as used:
        METHODS["loo"].scores(transformer, ["the museum"])
    assert used.forward == 3
    assert transformer.passes.forward == 6


def test_cut_texts_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    encoder = toy_encoder({"a": [1.0], "b": [2.0]})
    encoder.max_length = 3
    logging.getLogger("transformers").propagate = True
    with caplog.at_level(logging.WARNING):
        result = METHODS["norm"].scores(encoder, ["a b a b b"])[0]
    assert result.scores == [1.0, 2.0, 1.0, 1.0, 1.0]
    assert result.missing == (3, 4)


def test_load_finds_hardkuma_checkpoints_and_encoders(minilm: HardKumaModel, tmp_path: object) -> None:
    minilm.save_pretrained(tmp_path)
    loaded = SentenceEncoder.load(tmp_path)
    assert loaded.model is not None
    torch.testing.assert_close(loaded.encode(REAL[:1]), SentenceEncoder.from_model(minilm).encode(REAL[:1]))
    assert SentenceEncoder.load("all-MiniLM-L6-v2").model is None


def test_slow_tokenizers_are_refused(known: SentenceEncoder) -> None:
    class Slow:
        is_fast = False

    with pytest.raises(ValueError, match="use_fast=True"):
        SentenceEncoder(known.encoder, Slow())


def test_attendable_gives_empty_rows_something_to_see() -> None:
    assert attendable(torch.tensor([[False, False], [False, True]])).tolist() == [[1, 0], [0, 1]]
