"""Peers that look at the words alone, keywords, gates and the registry."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hardkuma import HardKumaModel, load_released, score_texts, surface_batch
from hardkuma.common import packages
from hardkuma.configuration_hardkuma import ENTITIES
from hardkuma.evaluation.baselines import METHODS, SentenceEncoder, WordCounts, find_method, whitespace_words
from hardkuma.evaluation.baselines.gates import by_form_alone, find_view
from hardkuma.words_hardkuma import find_words

from ...norms import with_unequal_norms

CORPUS = ["the cat sat", "the dog sat down", "The End", "a cat and a dog"]


def test_random_is_seeded_and_uniform() -> None:
    texts = [f"word {'and word ' * 20}{i}" for i in range(50)]
    values = [v for r in METHODS["random"].scores(None, texts) for v in r.scores]
    assert 0.45 < sum(values) / len(values) < 0.55
    assert METHODS["random"].scores(None, texts)[7].scores == METHODS["random"].scores(None, texts[7:8])[0].scores


def test_position_both_ways() -> None:
    assert METHODS["position"].scores(None, ["a b"], order="last")[0].scores == [0.5, 1.0]
    with pytest.raises(ValueError, match="got 'middle'"):
        METHODS["position"].scores(None, ["a b"], order="middle")


def test_capitals_by_hand() -> None:
    text = "She met NATO . Then iPhone 5 in ‘Rome’"
    result = METHODS["capitals"].scores(None, [text], [whitespace_words(text)])[0]
    assert result.scores == [0.5, 0, 1, 0, 0.5, 0, 0, 0, 1]
    assert result.selected == [value == 1 for value in result.scores]


def test_self_information_against_wordfreq() -> None:
    wordfreq = pytest.importorskip("wordfreq")
    text = "the zymurgy , qqqqzzzq"
    result = METHODS["self_information"].scores(None, [text], [whitespace_words(text)])[0].scores
    assert result[0] == pytest.approx(-math.log2(wordfreq.word_frequency("the", "en")))
    assert result[1] > result[0]
    assert result[2] == 0.0  # punctuation is not in the list, but it is not rare
    assert result[3] == pytest.approx(-math.log2(1e-9))


def test_corpus_self_information_by_hand() -> None:
    counts = WordCounts(CORPUS)  # 14 words, 8 different: the 3, cat 2, sat 2, dog 2, a 2, down, end, and
    assert (counts.total, len(counts.words)) == (14, 8)
    result = METHODS["self_information_corpus"].scores(None, ["The cat vanished"], counts=counts)[0].scores
    assert result == pytest.approx([-math.log2(4 / 23), -math.log2(3 / 23), -math.log2(1 / 23)])


def test_inverse_document_frequency_against_scikit_learn() -> None:
    text_module = pytest.importorskip("sklearn.feature_extraction.text")
    vectorizer = text_module.TfidfVectorizer(token_pattern=r"\w+").fit(CORPUS)
    expected = dict(zip(vectorizer.get_feature_names_out(), vectorizer.idf_, strict=True))
    for text, result in zip(CORPUS, METHODS["idf"].scores(None, CORPUS), strict=True):
        assert result.scores == pytest.approx([expected[word.lower()] for word in text.split()])


@pytest.mark.parametrize("shrinkage", [0.0, 2.5])
def test_information_gain_against_a_naive_loop(shrinkage: float) -> None:
    """KL of the neighbours' distribution against the corpus', summed over the whole vocabulary."""
    counts = WordCounts(CORPUS)
    sentences = [text.lower().split() for text in CORPUS]
    prior = Counter(word for sentence in sentences for word in sentence)
    for word in prior:
        around = Counter()
        for sentence in sentences:
            if word in sentence:
                around.update(other for other in sentence if other != word)
        number, expected = sum(around.values()), 0.0
        for other, count in prior.items():
            given = (around[other] + shrinkage * count / 14) / (number + shrinkage)
            expected += given * math.log2(given / (count / 14)) if given else 0.0
        assert counts.information_gain(word, shrinkage) == pytest.approx(expected, abs=1e-12)
        assert expected >= 0


def test_information_gain_of_unseen_words_is_that_of_words_seen_once() -> None:
    counts = WordCounts(CORPUS)
    once = [counts.information_gain(word) for word in ("down", "end", "and")]
    assert counts.information_gain("unheard") == pytest.approx(sum(once) / 3)
    with pytest.raises(ValueError, match="got -1"):
        counts.information_gain("cat", -1)
    # Much shrinkage: nothing is specific any more.
    assert counts.information_gain("end", 1e6) < 1e-3


def test_keybert_is_the_cosine_of_word_and_text(known: SentenceEncoder) -> None:
    pytest.importorskip("keybert")
    text = "it rains , rains in Paris"
    result = METHODS["keybert"].scores(known, [text], [whitespace_words(text)])[0]
    words, whole = known.encode(["it", "rains", ",", "rains", "in", "paris"]), known.encode([text])
    expected = torch.cosine_similarity(words, whole).tolist()
    assert result.scores == pytest.approx(expected, abs=1e-3)  # keybert rounds to 4 digits


def test_yake_prefers_content_words() -> None:
    pytest.importorskip("yake")
    text = "the museum of the city opened the museum"
    result = METHODS["yake"].scores(None, [text])[0]
    by_word = dict(zip(text.split(), result.scores, strict=True))
    assert by_word["museum"] > by_word["the"] == by_word["of"] == -10  # stop words are no candidates
    assert min(by_word[word] for word in ("museum", "city", "opened")) > -10


@pytest.mark.parametrize("name", ["keybert", "yake", "shap", "integrated_gradients", "self_information"])
def test_a_missing_package_is_one_clear_sentence(
    name: str, known: SentenceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(module: str) -> None:
        raise ImportError(f"No module named {module!r}")

    function = METHODS[name].function
    monkeypatch.setattr(packages.importlib, "import_module", absent)
    with pytest.raises(ImportError, match=r"pip install 'hardkuma\[(benchmark|keywords)\]'"):
        function(known, ["it rains in"])


# ---- gates ----------------------------------------------------------------------------------------------------------

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
    model = HardKumaModel.from_encoder("all-MiniLM-L6-v2", num_selectors=2)
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
    model = with_unequal_norms(make_two(meaning_weight={"meaning": 0.0, "entities": 3.0}))
    encoder = SentenceEncoder.from_model(model)

    def row(name: str, **options: object) -> list[list[float]]:
        return [result.scores for result in METHODS[name].scores(encoder, texts, **options)]

    def direct(selector: str, **options: object) -> list[list[float]]:
        return [item.probabilities for item in score_texts(model, texts, use_surface=False, selector=selector, **options)]

    assert row("gates") == direct("entities") != direct("meaning") == row("gates_meaning")
    assert row("gates", selector="meaning") == direct("meaning")
    # Form alone: the same head with meaning_weight 0, and the model is left as it was.
    weighed, form = direct("entities"), row("gates_form")
    assert model.config.meaning_weight == {"meaning": 0.0, "entities": 3.0} and direct("entities") == weighed
    assert max(abs(a - b) for a, b in zip(form[0], weighed[0], strict=True)) > 0.01
    model.config.meaning_weight = 0.0
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
    model = with_unequal_norms(make_two(meaning_weight={"meaning": 0.0, "entities": 3.0}))
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
    model = make_two(meaning_weight={"meaning": 0.0, "entities": 3.0})
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


# ---- the registry ---------------------------------------------------------------------------------------------------


def test_registry_is_complete() -> None:
    for name, method in METHODS.items():
        assert method.name == name and method.title and method.cost
        assert callable(method.function)
        assert bool(method.needs) == bool(method.extra)
    with pytest.raises(ValueError, match="unknown method 'magic'; known: random"):
        find_method("magic")
