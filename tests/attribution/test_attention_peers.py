"""Attention received, rollout and the dropout policies, against naive loops and a worked example."""

from __future__ import annotations

import importlib

import pytest
import torch

from hardkuma import HardKumaModel
from hardkuma.attribution import METHODS, SentenceEncoder, attention_dropout
from hardkuma.attribution.dropout_policy import drop_lowest, embed_kept, number_to_drop

from .conftest import TEXTS


def eager_attentions(encoder: SentenceEncoder, text: str) -> list[list[list[list[float]]]]:
    """[layer][head][query][key] of one text alone, as transformers itself returns it."""
    encoder.encoder.set_attn_implementation("eager")
    inputs = encoder.tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        output = encoder.encoder(**{k: v for k, v in inputs.items() if k != "offset_mapping"}, output_attentions=True)
    encoder.encoder.set_attn_implementation("sdpa")
    return [layer[0].tolist() for layer in output.attentions]


def naive_received(attentions: list) -> list[float]:
    length = len(attentions[0][0])
    total = [0.0] * length
    for layer in attentions:
        for head in layer:
            for query in range(length):
                for key in range(length):
                    total[key] += head[query][key]
    return total


def naive_rollout(attentions: list, every_layer: bool) -> list[float]:
    length = len(attentions[0][0])
    joint = [[float(i == j) for j in range(length)] for i in range(length)]
    total = [0.0] * length
    for number, layer in enumerate(attentions):
        step = [
            [(sum(head[i][j] for head in layer) / len(layer) + float(i == j)) / 2 for j in range(length)]
            for i in range(length)
        ]
        joint = [[sum(step[i][k] * joint[k][j] for k in range(length)) for j in range(length)] for i in range(length)]
        if every_layer or number == len(attentions) - 1:
            total = [total[j] + sum(joint[i][j] for i in range(length)) for j in range(length)]
    return total


def word_scores(encoder: SentenceEncoder, text: str, values: list[float], how: object) -> list[float]:
    coded = encoder.tokenizer(text, return_offsets_mapping=True)
    words = METHODS["position"].scores(None, [text])[0].words
    return [
        how(values[i] for i, (s, e) in enumerate(coded["offset_mapping"]) if s < end and e > start and e > s)
        for start, end in words
    ]


@pytest.mark.parametrize(("name", "how"), [("attention", max), ("attention_sum", sum)])
def test_attention_received_against_a_naive_loop(transformer: SentenceEncoder, name: str, how: object) -> None:
    for text, result in zip(TEXTS, METHODS[name].scores(transformer, TEXTS), strict=True):
        expected = word_scores(transformer, text, naive_received(eager_attentions(transformer, text)), how)
        assert result.scores == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_rollout_against_a_naive_loop(transformer: SentenceEncoder, layers: str) -> None:
    for text, result in zip(TEXTS, METHODS["rollout"].scores(transformer, TEXTS, layers=layers), strict=True):
        rolled = naive_rollout(eager_attentions(transformer, text), layers == "all")
        assert result.scores == pytest.approx(word_scores(transformer, text, rolled, max), abs=1e-4)


def test_attention_is_conserved(minilm: HardKumaModel) -> None:
    """Every query gives 1 per head and layer: what all tokens receive sums to layers x heads x tokens."""
    from hardkuma.attribution.attention import received

    encoder = SentenceEncoder.from_model(minilm)
    batch = next(encoder.batches(encoder.tokenize(["Marie Curie moved to Paris.", "It rained."])))
    torch.testing.assert_close(received(encoder, batch).sum(1), 6 * 12 * batch.mask.sum(1).float(), rtol=1e-4, atol=0)


def test_encoders_without_attention_are_refused(known: SentenceEncoder) -> None:
    with pytest.raises(ValueError, match="StaticEncoder has no attention"):
        METHODS["attention"].scores(known, ["in Paris"])


# ---- the dropout policies -------------------------------------------------------------------------------------------


def test_number_to_drop() -> None:
    # Static: k from t tokens on. Dynamic: one for every t tokens.
    assert [number_to_drop(n, k=3, t=8) for n in (7, 8, 80)] == [0, 3, 3]
    assert [number_to_drop(n, t=8) for n in (7, 8, 15, 16, 80)] == [0, 1, 1, 2, 10]
    with pytest.raises(ValueError, match="t=0"):
        number_to_drop(5, t=0)


def test_worked_example(transformer: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """[CLS] a b c the museum [SEP], 7 tokens, with attention 9 4 1 5 2 3 0: by hand, k = 2 drops "b" and "the"."""
    module = importlib.import_module("hardkuma.attribution.dropout_policy")
    values = torch.tensor([[9.0, 4.0, 1.0, 5.0, 2.0, 3.0, 0.0]])
    monkeypatch.setattr(module, "received", lambda encoder, batch: values)
    ids = transformer.tokenizer("a b c the museum")["input_ids"]
    result = attention_dropout(transformer, ["a b c the museum"], k=2, t=5)[0]
    assert result.removed == [2, 4]
    assert result.kept == [0, 1, 3, 5, 6]
    assert result.input_ids == [ids[0], ids[1], ids[3], ids[5], ids[6], 0, 0]
    assert result.attention_mask == [1, 1, 1, 1, 1, 0, 0]
    assert [result.text[s:e] for s, e in result.offsets] == ["", "a", "c", "museum", ""]
    # Dynamic, t = 3: floor(7 / 3) = 2, the same two.
    assert attention_dropout(transformer, ["a b c the museum"], t=3)[0].removed == [2, 4]
    # As in the reference implementation [SEP] may go: it has the lowest attention.
    assert attention_dropout(transformer, ["a b c the museum"], k=2, t=5, keep_special=False)[0].removed == [2, 6]
    # Fewer than t tokens: nothing goes.
    assert attention_dropout(transformer, ["a b c the museum"], k=2, t=8)[0].removed == []


@pytest.mark.parametrize("aggregation", ["naive", "rollout"])
def test_policy_removes_the_least_attended(transformer: SentenceEncoder, aggregation: str) -> None:
    for text, result in zip(TEXTS, attention_dropout(transformer, TEXTS, aggregation=aggregation, t=3), strict=True):
        attentions = eager_attentions(transformer, text)
        values = naive_received(attentions) if aggregation == "naive" else naive_rollout(attentions, True)
        inner = range(1, len(values) - 1)
        expected = sorted(sorted(inner, key=lambda i: values[i])[: len(values) // 3])
        assert result.removed == expected
    with pytest.raises(ValueError, match="naive, rollout; got 'flow'"):
        attention_dropout(transformer, TEXTS, aggregation="flow")


def test_left_packed_sequences_can_be_embedded(transformer: SentenceEncoder) -> None:
    kept = attention_dropout(transformer, ["a b c"], k=1, t=1)
    rest = " ".join(kept[0].text[s:e] for s, e in kept[0].offsets if e > s)
    torch.testing.assert_close(embed_kept(transformer, kept), transformer.encode([rest]), atol=1e-5, rtol=0)


def test_drop_lowest_keeps_what_may_not_go() -> None:
    assert drop_lowest([0.0, 1.0, 2.0], [False, True, True], 5) == ([0], [1, 2])
