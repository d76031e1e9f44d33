"""The objective `parts`: the terms against naive loops, a made-up language whose parts are known, names and rates."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hardkuma import HardKumaModel, train
from hardkuma.evaluation.parts import Parts as MeasuredParts
from hardkuma.training.objectives import parts as module
from hardkuma.training.objectives.parts import FOCUS, Outcome, Parts, division_terms, fit_parts, name_parts, typical_names
from hardkuma.training.objectives.settings import PartsSettings
from hardkuma.training.words import Sentences, WordInputs
from tests.training.conftest import make_run

PARTS, TYPES, SIZE = 4, 12, 16


def naive_terms(log_odds: torch.Tensor, context: torch.Tensor, meaning: torch.Tensor, rates: torch.Tensor) -> list[float]:
    number, parts = log_odds.shape
    weights = [(1 / (1 + math.exp(-value))) ** FOCUS for value in meaning.tolist()]
    weights = [weight / sum(weights) for weight in weights]

    def shares(row: list[float]) -> list[float]:
        return [math.exp(value) / sum(map(math.exp, row)) for value in row]

    p, q = ([shares(row) for row in view.tolist()] for view in (log_odds, context))
    marginal = [sum(weights[i] * p[i][k] for i in range(number)) for k in range(parts)]
    information = sum(
        share * math.log(share * float(rates.sum()) / float(rate)) for share, rate in zip(marginal, rates, strict=True)
    )
    information -= sum(weights[i] * value * math.log(value) for i in range(number) for value in p[i])
    logs = [[(a - b) * math.log(a / b) / 2 for a, b in zip(*rows, strict=True)] for rows in zip(p, q, strict=True)]
    agreement = sum(weight * sum(row) for weight, row in zip(weights, logs, strict=True))
    coverage = 0.0
    for row, wanted in zip(log_odds.tolist(), meaning.tolist(), strict=True):
        odds, other = sum(map(math.exp, row)), math.exp(wanted)
        a, b = odds / (1 + odds), other / (1 + other)
        for one, two in ((a, b), (b, a)):
            coverage += (one * math.log(one / two) + (1 - one) * math.log((1 - one) / (1 - two))) / 2 / number
    ties = np.corrcoef(log_odds.T.numpy())
    decorrelation = np.mean([max(0.0, ties[i, j]) ** 2 for i in range(parts) for j in range(i)])
    return [information, agreement, coverage, float(decorrelation)]


def test_terms_are_those_of_a_naive_loop() -> None:
    torch.manual_seed(0)
    log_odds, context, meaning = torch.randn(9, 3), torch.randn(9, 3), torch.randn(9)
    rates = torch.tensor([0.1, 0.2, 0.05])
    terms = division_terms(log_odds, context, meaning, rates)
    assert [float(term) for term in terms] == pytest.approx(naive_terms(log_odds, context, meaning, rates), abs=1e-5)


def test_copies_of_one_selector_are_the_worst_that_can_be() -> None:
    one = torch.randn(50, 1)
    copies = division_terms(one.expand(50, 4), one.expand(50, 4), torch.zeros(50), torch.full((4,), 0.1))
    assert float(copies.information) == pytest.approx(math.log(4), abs=1e-5), "they share no information with words"
    assert float(copies.decorrelation) == pytest.approx(1.0, abs=1e-4)


@pytest.fixture
def language(
    monkeypatch: pytest.MonkeyPatch, make_model: Callable
) -> tuple[HardKumaModel, Sentences, np.ndarray, Callable]:
    """Sentences in which parts of the vocabulary follow each other by a rule, each with words of its own; a model that
    reads random vectors of these words; and `measure`, which says what its selectors make of them."""
    draw, vectors = random.Random(0), torch.randn(PARTS * TYPES, SIZE, generator=torch.Generator().manual_seed(0))
    gold, counts = [], []
    for _ in range(400):
        part, length = draw.randrange(PARTS), draw.randint(6, 12)
        for _ in range(length):
            gold.append(part)
            part = (part + (1 if draw.random() < 0.9 else 2)) % PARTS
        counts.append(length)
    types = np.array([part * TYPES + draw.randrange(TYPES) for part in gold])
    x = vectors[torch.from_numpy(types)]
    names = [f"part_{number}" for number in range(1, PARTS + 1)]
    part_config = {"unit": "part", "reads": ["input"], "hidden_size": 16}
    selectors = {"meaning": {"unit": "word", "reads": ["input"]}, **dict.fromkeys(names, part_config)}
    model = make_model(selectors=selectors, concentration_min=0.1)
    sentences = Sentences(np.arange(len(counts)), [], np.array(counts))
    for number in model.config.parts:
        reader = model.gate_head.selectors[number]
        reader.hidden = type(reader.hidden)(SIZE, 16)
    monkeypatch.setattr(module, "read_inputs", lambda *_: WordInputs(x, np.array([0, *np.cumsum(counts)[:-1]])))
    monkeypatch.setattr(module, "_meaning", lambda *_: torch.zeros(len(x)))

    def measure() -> MeasuredParts:
        with torch.no_grad():
            probabilities = torch.stack([model.gate_head.log_odds(k, x).sigmoid() for k in model.config.parts])
        rates = [model.config.selectors[name].target_rate for name in names]
        return MeasuredParts(
            names, rates, [str(number) for number in types], probabilities.numpy(), [str(part) for part in gold]
        )

    return model, sentences, np.array(gold), measure


def divide(model: HardKumaModel, sentences: Sentences, steps: int = 50) -> Outcome:
    settings = PartsSettings(count=PARTS, steps=steps, learning_rate=3e-2)
    return fit_parts(model, model.config.parts, None, sentences, settings, 0, progress=False)


def test_parts_of_a_made_up_language_are_found(language: tuple) -> None:
    model, sentences, gold, measure = language
    done = divide(model, sentences, steps=600)
    found = measure()
    assert done.words == len(gold) and set(done.terms) == {"information", "agreement", "coverage", "decorrelation"}
    assert found.information() > 0.7 and found.mean_correlation() < 0.2
    assert sum(found.targets) == pytest.approx(0.2 * PARTS, abs=1e-3) and len(set(found.targets)) > 1, "each its own"
    assert found.rates == pytest.approx([rate * sum(found.rates) / sum(found.targets) for rate in found.targets], rel=0.05)
    # Copies of one selector would not pass.
    for number in model.config.parts[1:]:
        model.gate_head.selectors[number].load_state_dict(model.gate_head.selectors[model.config.parts[0]].state_dict())
    copies = measure()
    assert copies.information() < 0.1 and copies.mean_correlation() > 0.99


def test_the_same_twice_and_selectors_begin_apart(language: tuple) -> None:
    model, sentences, _, measure = language
    runs = []
    for _ in range(2):
        for number in model.config.parts:  # each has got a rate of its own, which another run would keep
            model.config.selector(number).target_rate = 0.2
        divide(model, sentences)
        runs.append(measure().probabilities)
    assert np.array_equal(*runs)
    weights = [model.gate_head.selectors[number].hidden.weight for number in model.config.parts]
    assert not torch.allclose(weights[0], weights[1])


def test_given_rates_are_kept(language: tuple) -> None:
    model, sentences, *_ = language
    rates = [0.1, 0.1, 0.1, 0.2]
    for number, rate in zip(model.config.parts, rates, strict=True):
        model.config.selector(number).target_rate = rate
    divide(model, sentences)
    assert [model.config.selector(number).target_rate for number in model.config.parts] == rates


def check(model: HardKumaModel, names: list[str]) -> None:
    objective = Parts(PartsSettings(count=len(names)), names)
    objective.check(make_run(model, {"objective": "copy"}))


def test_what_does_not_fit_is_refused(make_model: Callable) -> None:
    meaning, part = {"unit": "word"}, {"unit": "part", "reads": ["state"]}
    with pytest.raises(ValueError, match="read 'state', which knows a word's neighbours; use 'input'"):
        check(make_model(selectors={"meaning": meaning, "a": part, "b": part}), ["a", "b"])
    with pytest.raises(ValueError, match=r"selectors\.a: objective parts trains gates of unit part, got unit 'word'"):
        check(make_model(selectors={"meaning": meaning, "a": meaning, "b": part}), ["a", "b"])
    with pytest.raises(ValueError, match="objective parts divides the words of a selector of meaning: give the recipe one"):
        check(make_model(selectors={"a": part, "b": part}), ["a", "b"])


def test_names() -> None:
    assert typical_names([["said", "was"], ["said", "was", "is"], ["!", "?"], []], taken=["meaning"]) == [
        "said-was",
        "said-was-is",
        "exclamation-mark-question-mark",
        "part-4",
    ]


def test_parts_are_named_after_their_words(make_model: Callable) -> None:
    part = {"unit": "part", "reads": ["input"]}
    model = make_model(selectors={"a": part, "meaning": {"unit": "word"}, "b": part})
    name_parts(model, model.config.parts, ["marie moved to paris", "the museum in the city"])
    first, meaning, second = model.config.names
    assert meaning == "meaning" and "-" in first and "-" in second
    assert model.config.selectors[first].unit == "part" and model.config.find_selector("meaning") == 1


def test_the_recipe_leaves_named_selectors_and_a_picture(arguments: Callable, tmp_path: Path) -> None:
    rest = "\t_" * 6
    dev = tmp_path / "dev.conllu"
    dev.write_text(f"1\tmarie\tmarie\tPROPN{rest}\n2\tmoved\tmove\tVERB{rest}\n3\tto\tto\tADP{rest}\n")
    assert train.main(arguments(recipe="parts", dev=dev, **{"train.count": 3, "train.steps": 5})) == 0
    model = HardKumaModel.from_pretrained(tmp_path / "run" / "model").eval()
    names = model.config.names
    assert len(names) == 4 and names[0] == "meaning" and not any(name.startswith("part_") for name in names)
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert all(f"| {name} | `" in card for name in names[1:]) and "(parts.png)" in card and "over all 3 words" in card
    assert "they divide the words that `meaning` selects" in card
    assert (tmp_path / "run" / "model" / "parts.png").read_bytes()[:4] == b"\x89PNG"
    record = model.gate_records(["marie moved to paris"], selector="all")[0]
    assert list(record["rates"]) == names and list(record["words"][0]["probabilities"]) == names
