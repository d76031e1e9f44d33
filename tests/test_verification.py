"""`keep=` and the faithfulness of an answer, against encodings made apart from the search."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from hardkuma import HardKumaModel, highlight, load_released
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.baselines.words import WordScores
from hardkuma.evaluation.faithfulness import faithfulness
from hardkuma.verification_hardkuma import PREFIXES, keep_words

TEXTS = [
    "Marie Curie moved from Warsaw to Paris in 1891 and shared the Nobel Prize in Physics.",
    "Our flight to Oslo was delayed by heavy snow.",
    "No evidence of metastatic disease.",
    "Hello",
]


@pytest.fixture(scope="module")
def model() -> HardKumaModel:
    return load_released()[0]


def kept_by(model: HardKumaModel, text: str, words: list[tuple[int, int]], chosen: list[bool]) -> tuple[float, float]:
    """Kept and lost by the benchmark's own code."""
    scores = WordScores(text, words, [float(value) for value in chosen])
    found = faithfulness(SentenceEncoder.from_model(model), [scores], [sum(chosen) / len(chosen)])
    return float(found.sufficiency[0, 0]), float(found.comprehensiveness[0, 0])


@pytest.mark.parametrize("keep", [0.5, 0.8, 0.95])
def test_what_a_record_says_is_kept_is_kept(model: HardKumaModel, keep: float) -> None:
    for text, record in zip(TEXTS, model.gate_records(TEXTS, keep=keep), strict=True):
        words = [(word["start"], word["end"]) for word in record["words"]]
        chosen = [word["selected"] for word in record["words"]]
        kept, lost = kept_by(model, text, words, chosen)
        assert record["kept"] == pytest.approx(kept, abs=1e-5) and record["lost"] == pytest.approx(lost, abs=1e-5)
        assert record["kept"] >= keep or all(chosen)


def test_one_word_less_of_the_ranking_would_not_do(model: HardKumaModel) -> None:
    words = [(0, 3), (4, 10), (11, 13), (14, 18), (19, 22), (23, 30), (31, 33), (34, 39), (40, 44)]
    ranks = [8, 1, 7, 0, 6, 2, 5, 4, 3]
    found = keep_words(model, [TEXTS[1]], [words], [ranks], keep=0.8)[0]
    count = sum(found.chosen)
    assert found.chosen == [rank < count for rank in ranks] and 1 < count < len(words)
    fewer = [rank < count - 1 for rank in ranks]
    assert kept_by(model, TEXTS[1], words, fewer)[0] < 0.8 <= found.kept


def test_batches_do_not_matter(model: HardKumaModel) -> None:
    together, one_by_one = (model.gate_records(TEXTS, keep=0.8, batch_size=size) for size in (4, 1))
    for first, second in zip(together, one_by_one, strict=True):
        assert [word["selected"] for word in first["words"]] == [word["selected"] for word in second["words"]]
        assert first["kept"] == pytest.approx(second["kept"], abs=1e-5)


def test_a_search_of_64_words_takes_six_passes(model: HardKumaModel) -> None:
    assert (PREFIXES + 1) ** 3 == 64
    passes: list[int] = []
    hook = model.encoder.register_forward_hook(lambda *_: passes.append(1))
    try:
        text = " ".join(f"word{i} rain" for i in range(32))
        assert len(model.gate_records([text], keep=0.8)[0]["words"]) == 64
    finally:
        hook.remove()
    assert len(passes) <= 6


def test_texts_that_cannot_be_encoded_whole(model: HardKumaModel) -> None:
    empty, long = model.gate_records(["", "rain fell on Oslo " * 200], keep=0.8)
    assert empty["kept"] is None and empty["lost"] is None and not empty["spans"]
    assert long["windows"] > 1 and long["kept"] is None and long["spans"]
    assert set(model.faithfulness([""])[0].values()) == {None}


def test_faithfulness_of_an_answer(model: HardKumaModel) -> None:
    (found,) = model.faithfulness(TEXTS[:1], rate=0.3)
    record = model.gate_records(TEXTS[:1], rate=0.3)[0]
    words = [(word["start"], word["end"]) for word in record["words"]]
    kept, lost = kept_by(model, TEXTS[0], words, [word["selected"] for word in record["words"]])
    assert found["kept"] == pytest.approx(kept, abs=1e-5) and found["lost"] == pytest.approx(lost, abs=1e-5)
    assert found["kept"] > found["random_kept"] and found["lost"] > found["random_lost"]
    every = [
        kept_by(model, "Rain fell hard", [(0, 4), (5, 9), (10, 14)], [i in pair for i in range(3)])[0]
        for pair in combinations(range(3), 2)
    ]
    (drawn,) = model.faithfulness(["Rain fell hard"], rate=0.5)
    assert min(every) - 1e-5 <= drawn["random_kept"] <= max(every) + 1e-5


@pytest.mark.parametrize("keep", [0, -0.1, 1.5, float("nan"), "0.8", True])
def test_a_wrong_keep_is_refused(model: HardKumaModel, keep: object) -> None:
    with pytest.raises(ValueError, match=r"keep must be a cosine in \(0, 1\]"):
        model.gate_records(TEXTS, keep=keep)


def test_keep_goes_alone(model: HardKumaModel) -> None:
    with pytest.raises(ValueError, match=r"give one of rate, threshold and keep; got rate=0.2 and keep=0.8"):
        model.gate_records(TEXTS, rate=0.2, keep=0.8)
    with pytest.raises(ValueError, match="goes by one selector"):
        model.gate_records(TEXTS, keep=0.8, selector="all")


def test_highlights_show_themselves(model: HardKumaModel, tmp_path) -> None:  # noqa: ANN001
    shown = model.highlight("Is <b>raw</b> fish [safe]?", rate=0.5)
    assert shown == highlight("Is <b>raw</b> fish [safe]?", model, rate=0.5)
    assert "&lt;b&gt;" not in str(shown) and r"\[" in str(shown) and "[" in str(shown)
    html = shown._repr_html_()
    assert "<b>" not in html and "&lt;" in html and "border-bottom" in html
    shown.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_nothing_is_remembered_of_a_search(model: HardKumaModel) -> None:
    before = {name: value.clone() for name, value in model.gate_head.state_dict().items()}
    model.gate_records(TEXTS, keep=0.8)
    assert all(torch.equal(value, before[name]) for name, value in model.gate_head.state_dict().items())
