"""Leave one out against brute force."""

from __future__ import annotations

import pytest
import torch

from hardkuma.evaluation.baselines import METHODS, SentenceEncoder

from .conftest import TEXTS


def brute_force(encoder: SentenceEncoder, text: str, groups: list[list[int]], reencode: bool) -> list[float]:
    """One encoder call per group, by hand."""
    inputs = encoder.tokenizer(text, return_tensors="pt")
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    with torch.no_grad():
        states = encoder.encoder(input_ids=ids, attention_mask=mask).last_hidden_state[0]
        whole = states.mean(0)
        moved = []
        for group in groups:
            there = [i for i in range(ids.shape[1]) if i not in group]
            if reencode:
                without = mask.clone()
                without[0, group] = 0
                rest = encoder.encoder(input_ids=ids, attention_mask=without).last_hidden_state[0][there].mean(0)
            else:
                rest = states[there].mean(0)
            moved.append(1 - float(torch.cosine_similarity(whole, rest, dim=0)))
    return moved


@pytest.mark.parametrize("reencode", [True, False])
def test_leave_one_out_against_brute_force(transformer: SentenceEncoder, reencode: bool) -> None:
    text = "the rainy museum in London"  # [CLS] the rain ##y museum in london [SEP]
    tokens = [[1], [2], [3], [4], [5], [6]]
    by_token = brute_force(transformer, text, tokens, reencode)
    by_word = brute_force(transformer, text, [[1], [2, 3], [4], [5], [6]], reencode)
    suffix = "" if reencode else "_pooled"
    expected = [by_token[0], max(by_token[1:3]), *by_token[3:]]
    assert METHODS[f"loo{suffix}"].scores(transformer, [text])[0].scores == pytest.approx(expected, abs=1e-5)
    assert METHODS[f"loo{suffix}_word"].scores(transformer, [text])[0].scores == pytest.approx(by_word, abs=1e-5)


def test_leave_one_out_pooled_is_blind_under_cls_pooling() -> None:
    from tests.toy import toy_transformer

    from .conftest import VOCABULARY

    encoder = toy_transformer(VOCABULARY, pooling_mode="cls")
    assert METHODS["loo_pooled"].scores(encoder, TEXTS)[0].scores == pytest.approx([0.0] * 5, abs=1e-6)
    assert max(METHODS["loo"].scores(encoder, TEXTS)[0].scores) > 1e-4


def test_unit_is_checked(known: SentenceEncoder) -> None:
    with pytest.raises(ValueError, match="token, word; got 'sentence'"):
        METHODS["loo"].scores(known, ["it"], unit="sentence")
