"""Words and their gates: offsets, windows, rates, independence of the batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hardkuma import HardKumaModel
from hardkuma.surface_hardkuma import find_words
from hardkuma.words_hardkuma import gate_words, score_texts
from tests.conftest import SENTENCES


def test_words_have_the_largest_probability_of_their_tokens(minilm: HardKumaModel) -> None:
    text = "Marie Skłodowska-Curie moved, unexpectedly, to Paris 🙂."
    inputs = minilm.tokenizer([text], return_offsets_mapping=True, return_tensors="pt")
    offsets = inputs.pop("offset_mapping")[0].tolist()
    probs = minilm(**inputs).gate_probs[0]
    for word in gate_words(minilm, [text])[0]:
        inside = [
            float(p) for p, (s, e) in zip(probs.detach(), offsets, strict=True) if s < word.end and e > word.start and e > s
        ]
        assert word.probability == pytest.approx(max(inside), abs=1e-6)
        assert word.selected == (word.probability > 0.5)


def test_long_texts_run_in_windows_and_nothing_is_cut(make_model: Callable) -> None:
    model = make_model()
    text = " ".join(SENTENCES * 6)
    words = gate_words(model, [text])[0]
    assert [(w.start, w.end) for w in words] == find_words(text)
    assert len(words) > 3 * 40 and all(0 < word.probability < 1 for word in words)


def test_order_batch_and_company_do_not_matter(make_model: Callable) -> None:
    model = make_model()
    texts = ["", "paris", *SENTENCES, "!!!", " ".join(SENTENCES * 3)]
    together = gate_words(model, texts, batch_size=3)
    for text, words in zip(texts, together, strict=True):
        alone = gate_words(model, [text])[0]
        assert [(w.start, w.end, w.selected) for w in words] == [(w.start, w.end, w.selected) for w in alone]
        assert all(abs(a.probability - b.probability) < 1e-5 for a, b in zip(words, alone, strict=True))
    assert together[0] == [] and together[len(texts) - 2] == []


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5, 1.0])
def test_rate_selects_the_most_probable(rate: float, make_model: Callable) -> None:
    words = gate_words(make_model(), ["marie curie moved to paris in 1891 and the museum opened"], rate=rate)[0]
    chosen = [w.probability for w in words if w.selected]
    assert len(chosen) == max(1, round(rate * len(words)))
    assert min(chosen) >= max([w.probability for w in words if not w.selected], default=0.0)


def test_surface_view_is_applied_from_the_text(make_model: Callable) -> None:
    model = make_model()
    with torch.no_grad():
        model.gate_head.surface_log_odds[0, 5] = 3.0  # capital inside a sentence
    text = "he moved to Paris and paris"
    shifted, plain = (gate_words(model, [text], use_surface=flag)[0] for flag in (True, False))
    moved = {
        text[a.start : a.end] for a, b in zip(shifted, plain, strict=True) if abs(a.probability - b.probability) > 1e-4
    }
    assert moved == {"Paris"}


def test_static_encoder_and_empty_texts(make_model: Callable) -> None:
    model = make_model("hardkuma_static")
    assert gate_words(model, ["", ""]) == [[], []]
    assert len(gate_words(model, ["", "paris"])[1]) == 1
    assert score_texts(model, []) == []


def test_bad_arguments(make_model: Callable) -> None:
    model = make_model()
    with pytest.raises(ValueError, match=r"wrap it: \[text\]"):
        gate_words(model, "paris")
    with pytest.raises(ValueError, match=r"rate must be a fraction in \(0, 1\], got 20"):
        gate_words(model, ["paris"], rate=20)
    with pytest.raises(ValueError, match=r"selector must be in \[0, 0\], got 3"):
        gate_words(model, ["paris"], selector=3)
    with pytest.raises(ValueError, match="training mode"):
        gate_words(model.train(), ["paris"])
