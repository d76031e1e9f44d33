"""Gates as one more method: those that users get, row by row."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hardkuma import HardKumaModel, load_released, score_texts, surface_batch
from hardkuma.configuration_hardkuma import ENTITIES
from hardkuma.evaluation.baselines import METHODS, SentenceEncoder
from hardkuma.evaluation.baselines.gates import by_form_alone, find_view
from hardkuma.words_hardkuma import find_words

from ...conftest import several
from ...norms import with_unequal_norms

TEXTS = ["Marie Curie moved to Warszawa.", "It rained, and IBM fell."]


def test_gates_are_the_models_own(minilm: HardKumaModel) -> None:
    encoder = SentenceEncoder.from_model(minilm)
    with encoder.counting() as used:
        results = METHODS["gates"].scores(encoder, TEXTS)
    assert used.forward == 2
    for text, result in zip(TEXTS, results, strict=True):
        coded = minilm.tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
        offsets = coded.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            out = minilm(**coded)
        for (start, end), score, selected in zip(result.words, result.scores, result.selected, strict=True):
            tokens = [i for i, (s, e) in enumerate(offsets) if s < end and e > start and e > s]
            assert score == pytest.approx(out.gate_probs[0, tokens].max().item(), abs=1e-5)
            assert selected == bool(out.gates[0, tokens].any())


def test_surface_view_and_several_selectors() -> None:
    torch.manual_seed(0)
    model = HardKumaModel.from_encoder("all-MiniLM-L6-v2", selectors=several(2))
    with torch.no_grad():
        model.gate_head.surface_log_odds[:, 5] = 2.0
    encoder = SentenceEncoder.from_model(model)
    plain, surface = (METHODS[name].scores(encoder, TEXTS) for name in ("gates", "gates_surface"))
    # "Curie" has a capital inside the sentence, "moved" does not.
    assert surface[0].scores[1] > plain[0].scores[1] + 0.01
    assert surface[0].scores[2] == pytest.approx(plain[0].scores[2], abs=1e-6)
    coded = model.tokenizer(TEXTS, padding=True, return_offsets_mapping=True, return_tensors="pt")
    ids = surface_batch(TEXTS, coded.pop("offset_mapping"))
    with torch.no_grad():
        probs = model(**coded, surface_ids=ids).gate_probs
    second = METHODS["gates_surface"].scores(encoder, TEXTS, selector="selector_1")
    # One selector at a time, the first by default; "Marie" is one token.
    assert abs(float(probs[0, 0, 1] - probs[0, 1, 1])) > 1e-3
    assert surface[0].scores[0] == pytest.approx(probs[0, 0, 1].item(), abs=1e-5)
    assert second[0].scores[0] == pytest.approx(probs[0, 1, 1].item(), abs=1e-5)


@pytest.mark.parametrize(("name", "use_surface"), [("gates", False), ("gates_surface", True), ("gates_sum", False)])
def test_the_benchmark_scores_as_users_do(name: str, use_surface: bool) -> None:
    model, _ = load_released()
    encoder = SentenceEncoder.from_model(model)
    # The last text takes several windows, and has words to its end.
    texts = [*TEXTS, "", "\ud800 Paris", "The museum in Kraków was not approved by Ana Silva. " * 40]
    words = [find_words(text) for text in texts]
    words[0] = [(0, 11), (12, 17)]
    with encoder.counting() as used:
        results = METHODS[name].scores(encoder, texts, words)
    selector = model.config.names[model.config.find_selector(default=ENTITIES)]
    scored = score_texts(model, texts, words=words, use_surface=use_surface, selector=selector, aggregate="sum")
    assert used.forward == sum(item.windows for item in scored) > len(texts)
    for result, item in zip(results, scored, strict=True):
        assert result.scores == (item.scores if name == "gates_sum" else item.probabilities)
        assert result.selected == item.decide() and result.words == item.words and not result.missing
    assert all(total >= largest for item in scored for total, largest in zip(item.scores, item.probabilities, strict=True))


def test_rows_ask_for_their_selector(
    make_two: Callable[..., HardKumaModel], make_model: Callable[..., HardKumaModel]
) -> None:
    texts = ["marie curie moved to paris", "the river runs by london"]
    model = with_unequal_norms(make_two(selectors={"entities": {"backoff": 3.0}}))
    encoder = SentenceEncoder.from_model(model)

    def row(name: str, **options: object) -> list[list[float]]:
        return [result.scores for result in METHODS[name].scores(encoder, texts, **options)]

    def direct(selector: str, **options: object) -> list[list[float]]:
        return [item.probabilities for item in score_texts(model, texts, use_surface=False, selector=selector, **options)]

    assert row("gates") == direct("entities") != direct("meaning") == row("gates_meaning")
    assert row("gates", selector="meaning") == direct("meaning")
    # Form alone: the same head without back-off, and the model is left as it was.
    weighed, form = direct("entities"), row("gates_form")
    assert model.config.selectors["entities"].backoff == 3.0 and direct("entities") == weighed
    assert max(abs(a - b) for a, b in zip(form[0], weighed[0], strict=True)) > 0.01
    model.config.selectors["entities"].backoff = 0.0
    assert form == direct("entities") == row("gates_form")
    # A lone selector answers to every row.
    alone = SentenceEncoder.from_model(make_model())
    rows = [METHODS[name].scores(alone, texts)[0].scores for name in ("gates", "gates_meaning", "gates_form")]
    assert rows[0] == rows[1] == rows[2]
    with pytest.raises(ValueError, match="no selector 'nouns'"):
        row("gates", selector="nouns")


def test_two_threads_score_with_and_without_the_weight_of_words(
    make_two: Callable[..., HardKumaModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["marie curie moved to paris", "the river runs by london"]
    model = with_unequal_norms(make_two(selectors={"entities": {"backoff": 3.0}}))
    encoder, names = SentenceEncoder.from_model(model), ("gates", "gates_form")

    def score(name: str) -> list[list[float]]:
        return [result.scores for result in METHODS[name].scores(encoder, texts)]

    alone = [score(name) for name in names]
    assert alone[0] != alone[1]
    both = threading.Barrier(2, timeout=60)

    def at_the_same_time(*arguments: object, **options: object) -> object:
        both.wait()
        scored = score_texts(*arguments, **options)
        both.wait()
        return scored

    monkeypatch.setattr("hardkuma.evaluation.baselines.gates.score_texts", at_the_same_time)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(score, names)) == alone


def test_views_say_which_rows_are_the_same(make_two: Callable[..., HardKumaModel]) -> None:
    model = make_two(selectors={"entities": {"backoff": 3.0}})
    config = model.config

    def view(name: str, **options: object) -> object:
        return find_view(config, **{**METHODS[name].options, **options})

    names = ("gates", "gates_sum", "gates_surface", "gates_form", "gates_meaning")
    assert len({view(name) for name in names}) == 5
    assert view("gates", selector="meaning") == view("gates_meaning")
    config = by_form_alone(model).config
    assert view("gates_form") == view("gates")


def test_gates_need_a_model(known: SentenceEncoder) -> None:
    with pytest.raises(ValueError, match="from_model"):
        METHODS["gates"].scores(known, ["it"])
