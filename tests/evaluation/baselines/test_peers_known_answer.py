"""Peers against answers that are known: a hand-built encoder, brute force, completeness, additivity."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from hardkuma.batch_hardkuma import attendable
from hardkuma.evaluation.baselines import METHODS, SentenceEncoder, whitespace_words
from hardkuma.evaluation.baselines.integrated_gradients import attribute
from hardkuma.evaluation.baselines.shapley import neighbour_tree, shapley_values, similarity_of_subsets

from .conftest import TEXTS

FINDS_THE_LONGEST = [
    name
    for name in METHODS
    if name.startswith(("norm", "cosine", "loo", "integrated", "shap", "keybert")) and not METHODS[name].missing
]


@pytest.mark.parametrize("name", FINDS_THE_LONGEST)
def test_the_important_word_is_found(known: SentenceEncoder, name: str) -> None:
    text = "it rains in Paris"
    result = METHODS[name].scores(known, ["rains in", text])[1]
    assert result.words == [(0, 2), (3, 8), (9, 11), (12, 17)]
    assert result.ranked()[0][0] == "Paris", result
    # And it is not found where it is absent.
    assert METHODS[name].scores(known, ["it rains in"])[0].words == result.words[:3]


@pytest.mark.parametrize("name", [n for n in METHODS if METHODS[n].kind == "peer" and not METHODS[n].missing])
def test_results_do_not_depend_on_the_batch(transformer: SentenceEncoder, name: str) -> None:
    method = METHODS[name]
    extra = {"counts": _counts()} if method.counted else {}
    together = method.scores(transformer, TEXTS, **extra)
    transformer.token_budget = 1
    for text, result in zip(TEXTS, together, strict=True):
        alone = method.scores(transformer, [text], **extra)[0]
        assert alone.scores == pytest.approx(result.scores, abs=1e-4)
        assert len(result.scores) == len(result.words) > 0


def _counts() -> object:
    from hardkuma.evaluation.baselines import WordCounts

    return WordCounts(TEXTS)


def test_norm_and_cosine_by_hand(known: SentenceEncoder) -> None:
    # it (.5, -1, 0), par (0, 0, 5), ##is (0, 0, 10): mean (1/6, -1/3, 5).
    text = ["it Paris"]
    assert METHODS["norm"].scores(known, text)[0].scores == pytest.approx([math.sqrt(1.25), 10.0])
    assert METHODS["norm_sum"].scores(known, text)[0].scores == pytest.approx([math.sqrt(1.25), 15.0])
    mean = np.array([0.5, -1, 15]) / 3
    expected = [np.dot(v, mean) / np.linalg.norm(v) / np.linalg.norm(mean) for v in ([0.5, -1, 0], [0, 0, 1])]
    assert METHODS["cosine"].scores(known, text)[0].scores == pytest.approx(expected, abs=1e-5)


# ---- leave one out --------------------------------------------------------------------------------------------------


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
    from hardkuma.evaluation.baselines.toy import toy_transformer

    from .conftest import VOCABULARY

    encoder = toy_transformer(VOCABULARY, pooling_mode="cls")
    assert METHODS["loo_pooled"].scores(encoder, TEXTS)[0].scores == pytest.approx([0.0] * 5, abs=1e-6)
    assert max(METHODS["loo"].scores(encoder, TEXTS)[0].scores) > 1e-4


def test_unit_is_checked(known: SentenceEncoder) -> None:
    with pytest.raises(ValueError, match="token, word; got 'sentence'"):
        METHODS["loo"].scores(known, ["it"], unit="sentence")


# ---- integrated gradients -------------------------------------------------------------------------------------------


def test_integrated_gradients_are_complete(transformer: SentenceEncoder) -> None:
    """Attributions sum to f(sentence) - f(baseline), the better the more steps."""
    pytest.importorskip("captum")
    batch = next(transformer.batches(transformer.tokenize(TEXTS)))
    gaps = []
    for steps in (1, 50):
        found = attribute(transformer, batch, steps)
        assert found.difference.abs().min() > 0.01
        gaps.append((found.values.sum(1) - found.difference).abs().max().item())
    assert gaps[1] < 1e-4 < 1e-3 < gaps[0]


def test_integrated_gradients_by_hand(known: SentenceEncoder) -> None:
    """A path of one step (Gauss-Legendre: the midpoint) is the gradient there times the difference."""
    pytest.importorskip("captum")
    batch = next(known.batches(known.tokenize(["it rains"])))
    words, padding = torch.tensor([[0.5, -1.0, 0.0], [0.0, 1.0, 0.0]]), torch.ones(2, 3)
    half = ((words + padding) / 2).requires_grad_()
    target = torch.nn.functional.normalize(words.mean(0), dim=0)
    torch.nn.functional.cosine_similarity(half.mean(0), target, dim=0).backward()
    expected = (half.grad * (words - padding)).sum(1)
    assert expected.abs().min() > 0.1
    torch.testing.assert_close(attribute(known, batch, 1).values[0], expected, atol=1e-5, rtol=0)


def test_integrated_gradients_count_passes_and_check_baselines(known: SentenceEncoder) -> None:
    pytest.importorskip("captum")
    with known.counting() as used:
        METHODS["integrated_gradients"].scores(known, ["it rains"], steps=7)
    assert used.backward == 7 and used.forward >= 8
    with pytest.raises(ValueError, match="no mask token"):
        METHODS["integrated_gradients"].scores(known, ["it rains"], baseline="mask")
    with pytest.raises(ValueError, match="steps must be >= 1, got 0"):
        METHODS["integrated_gradients"].scores(known, ["it rains"], steps=0)


# ---- SHAP -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["partition", "permutation"])
@pytest.mark.parametrize("unit", ["word", "token"])
def test_shap_is_additive(transformer: SentenceEncoder, algorithm: str, unit: str) -> None:
    """Values sum to f(all words) - f(no word)."""
    pytest.importorskip("shap")
    for text in ["the rainy museum in London", "Paris"]:
        options = {"unit": unit, "algorithm": algorithm}
        result = METHODS["shap"].scores(transformer, [text], [whitespace_words(text)], **options)[0]
        whole = transformer.encode([text])[0]
        # Masked tokens keep their positions, so the last [SEP] is not where an empty text has it.
        tokens = transformer.tokenize([text])
        nothing = transformer.embed(tokens, [[False] * len(tokens[0])])[0]
        assert sum(result.scores) == pytest.approx(1 - float(torch.cosine_similarity(nothing, whole, dim=0)), abs=1e-5)


def test_permutation_shap_against_all_orders(known: SentenceEncoder) -> None:
    """Three words: the mean marginal contribution over all six orders, by brute force."""
    pytest.importorskip("shap")
    item = known.tokenize(["it rains in"])[0]
    game = similarity_of_subsets(known, item, [[0], [1], [2]])
    exact = np.zeros(3)
    for order in itertools.permutations(range(3)):
        coalition = np.zeros((4, 3))
        for step, player in enumerate(order):
            coalition[step + 1 :, player] = 1
        exact[list(order)] += np.diff(game(coalition)) / 6
    found = np.mean([shapley_values(game, 3, "permutation", 2000, seed=seed) for seed in range(3)], axis=0)
    assert found == pytest.approx(exact, abs=0.02)
    assert exact.max() - exact.min() > 0.05


@pytest.mark.parametrize("algorithm", ["partition", "permutation"])
def test_shap_of_an_additive_game_is_exact(algorithm: str) -> None:
    pytest.importorskip("shap")
    weights = np.array([1.0, -2.0, 0.5, 4.0, 0.0])
    assert shapley_values(lambda z: z @ weights, 5, algorithm) == pytest.approx(weights, abs=1e-9)


def test_permutation_shap_is_seeded(transformer: SentenceEncoder) -> None:
    pytest.importorskip("shap")
    runs = [METHODS["shap"].scores(transformer, TEXTS[2:], seed=seed)[0].scores for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("number", [2, 3, 7, 8])
def test_the_tree_joins_neighbours(number: int) -> None:
    """Every inner node covers a run of adjacent words, and the last covers all."""
    leaves: dict[int, list[int]] = {i: [i] for i in range(number)}
    for row, (left, right, _, size) in enumerate(neighbour_tree(number)):
        leaves[number + row] = leaves[int(left)] + leaves[int(right)]
        assert leaves[number + row] == list(range(leaves[number + row][0], leaves[number + row][0] + int(size)))
    assert leaves[2 * number - 2] == list(range(number))


def test_attendable_gives_empty_rows_something_to_see() -> None:
    assert attendable(torch.tensor([[False, False], [False, True]])).tolist() == [[1, 0], [0, 1]]
