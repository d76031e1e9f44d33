"""Attention received and rollout against naive loops."""

from __future__ import annotations

import pytest
import torch

from hardkuma import HardKumaModel
from hardkuma.evaluation.baselines import METHODS, SentenceEncoder

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
    from hardkuma.evaluation.baselines.attention import received

    encoder = SentenceEncoder.from_model(minilm)
    _, batch = next(encoder.batches(encoder.tokenize(["Marie Curie moved to Paris.", "It rained."])))
    torch.testing.assert_close(received(encoder, batch).sum(1), 6 * 12 * batch.mask.sum(1).float(), rtol=1e-4, atol=0)


def test_encoders_without_attention_are_refused(known: SentenceEncoder) -> None:
    with pytest.raises(ValueError, match="StaticEncoder has no attention"):
        METHODS["attention"].scores(known, ["in Paris"])
