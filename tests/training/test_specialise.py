"""Selectors that part: the terms against naive loops, a made-up language whose kinds are known, names and rates."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hardkuma import HardKumaModel, train
from hardkuma.evaluation.parts import Parts
from hardkuma.training import specialise as module
from hardkuma.training.recipe import Recipe, load_recipe
from hardkuma.training.sentences import Sentences, WordInputs
from hardkuma.training.specialise import FOCUS, name_kinds, parting_terms, specialise, typical_names

KINDS, TYPES, SIZE = 4, 12, 16


def naive_terms(log_odds: torch.Tensor, context: torch.Tensor, meaning: torch.Tensor, rates: torch.Tensor) -> list[float]:
    number, kinds = log_odds.shape
    weights = [(1 / (1 + math.exp(-value))) ** FOCUS for value in meaning.tolist()]
    weights = [weight / sum(weights) for weight in weights]

    def shares(row: list[float]) -> list[float]:
        return [math.exp(value) / sum(map(math.exp, row)) for value in row]

    p, q = ([shares(row) for row in view.tolist()] for view in (log_odds, context))
    marginal = [sum(weights[i] * p[i][k] for i in range(number)) for k in range(kinds)]
    separate = sum(
        share * math.log(share * float(rates.sum()) / float(rate)) for share, rate in zip(marginal, rates, strict=True)
    )
    separate -= sum(weights[i] * value * math.log(value) for i in range(number) for value in p[i])
    logs = [[(a - b) * math.log(a / b) / 2 for a, b in zip(*rows, strict=True)] for rows in zip(p, q, strict=True)]
    align = sum(weight * sum(row) for weight, row in zip(weights, logs, strict=True))
    unite = 0.0
    for row, wanted in zip(log_odds.tolist(), meaning.tolist(), strict=True):
        odds, other = sum(map(math.exp, row)), math.exp(wanted)
        a, b = odds / (1 + odds), other / (1 + other)
        for one, two in ((a, b), (b, a)):
            unite += (one * math.log(one / two) + (1 - one) * math.log((1 - one) / (1 - two))) / 2 / number
    ties = np.corrcoef(log_odds.T.numpy())
    untie = np.mean([max(0.0, ties[i, j]) ** 2 for i in range(kinds) for j in range(i)])
    return [separate, align, unite, float(untie)]


def test_terms_are_those_of_a_naive_loop() -> None:
    torch.manual_seed(0)
    log_odds, context, meaning = torch.randn(9, 3), torch.randn(9, 3), torch.randn(9)
    rates = torch.tensor([0.1, 0.2, 0.05])
    terms = parting_terms(log_odds, context, meaning, rates)
    assert [float(term) for term in terms] == pytest.approx(naive_terms(log_odds, context, meaning, rates), abs=1e-5)


def test_copies_of_one_selector_are_the_worst_that_can_be() -> None:
    one = torch.randn(50, 1)
    copies = parting_terms(one.expand(50, 4), one.expand(50, 4), torch.zeros(50), torch.full((4,), 0.1))
    assert float(copies.separate) == pytest.approx(math.log(4), abs=1e-5), "they share no information with words"
    assert float(copies.untie) == pytest.approx(1.0, abs=1e-4)


@pytest.fixture
def language(monkeypatch: pytest.MonkeyPatch, make_model: Callable) -> tuple[HardKumaModel, np.ndarray, Callable]:
    """Sentences in which kinds of words follow each other by a rule, each kind with words of its own; a model that reads
    random vectors of these words; and `measure`, which says what its selectors make of them."""
    draw, vectors = random.Random(0), torch.randn(KINDS * TYPES, SIZE, generator=torch.Generator().manual_seed(0))
    kinds, counts = [], []
    for _ in range(400):
        kind, length = draw.randrange(KINDS), draw.randint(6, 12)
        for _ in range(length):
            kinds.append(kind)
            kind = (kind + (1 if draw.random() < 0.9 else 2)) % KINDS
        counts.append(length)
    gold = np.array(kinds)
    types = np.array([kind * TYPES + draw.randrange(TYPES) for kind in kinds])
    x = vectors[torch.from_numpy(types)]
    names = ["meaning", *(f"kind_{number}" for number in range(1, KINDS + 1))]
    unit = dict.fromkeys(names, "kind") | {"meaning": "word"}
    model = make_model(
        selector_names=names, selector_inputs=["input"], selector_unit=unit, selector_hidden_size=16, shape_min=0.1
    )
    sentences = Sentences(np.arange(len(counts)), [], np.array(counts))
    for number in model.config.kinds:
        reader = model.gate_head.selectors[number]
        reader.vector_sizes = [SIZE]
        reader.hidden = type(reader.hidden)(SIZE, 16)
    monkeypatch.setattr(module, "read_sentences", lambda *_: sentences)
    monkeypatch.setattr(module, "read_inputs", lambda *_: WordInputs(x, np.array([0, *np.cumsum(counts)[:-1]])))
    monkeypatch.setattr(module, "_meaning", lambda *_: torch.zeros(len(x)))

    def measure() -> Parts:
        with torch.no_grad():
            probabilities = torch.stack([model.gate_head.log_odds(k, x).sigmoid() for k in model.config.kinds])
        words = [str(number) for number in types]
        return Parts(names[1:], model.config.target_rates[1:], words, probabilities.numpy(), [str(kind) for kind in kinds])

    return model, gold, measure


def part(model: HardKumaModel, steps: int = 50) -> module.Specialisation:
    recipe = Recipe(kinds=KINDS, kinds_steps=steps, kinds_learning_rate=3e-2)
    return specialise(model, None, np.arange(1), recipe, selectors=model.config.kinds, progress=False)


def test_kinds_of_a_made_up_language_are_found(language: tuple) -> None:
    model, gold, measure = language
    done = part(model, steps=600)
    kinds = measure()
    assert done.words == len(gold) and set(done.terms) == {"separate", "align", "unite", "untie"}
    assert kinds.information() > 0.7 and kinds.mean_correlation() < 0.2
    assert sum(kinds.targets) == pytest.approx(0.2 * KINDS, abs=1e-3) and len(set(kinds.targets)) > 1, "each its own"
    assert kinds.rates == pytest.approx([rate * sum(kinds.rates) / sum(kinds.targets) for rate in kinds.targets], rel=0.05)
    # Copies of one selector would not pass.
    for number in model.config.kinds[1:]:
        model.gate_head.selectors[number].load_state_dict(model.gate_head.selectors[model.config.kinds[0]].state_dict())
    copies = measure()
    assert copies.information() < 0.1 and copies.mean_correlation() > 0.99


def test_the_same_twice_and_other_weights_for_another_seed(language: tuple) -> None:
    model, _, measure = language
    runs, rate = [], model.config.target_rate
    for _ in range(2):
        model.config.target_rate = rate  # each kind has got one of its own, which another run would keep
        part(model)
        runs.append(measure().probabilities)
    assert np.array_equal(*runs)
    weights = [model.gate_head.selectors[number].hidden.weight for number in model.config.kinds]
    assert not torch.allclose(weights[0], weights[1]), "selectors begin apart"


def test_given_rates_are_kept(language: tuple) -> None:
    model, *_ = language
    model.config.target_rate = dict(zip(model.config.names, (0.3, 0.1, 0.1, 0.1, 0.2), strict=True))
    part(model)
    assert model.config.target_rates == [0.3, 0.1, 0.1, 0.1, 0.2]


def test_views_must_not_know_each_other(make_model: Callable) -> None:
    model = make_model(selector_names=["meaning", "a", "b"], selector_unit="kind", selector_inputs=["state"])
    with pytest.raises(ValueError, match="read 'state', which knows a word's neighbours; use 'input'"):
        specialise(model, None, np.arange(1), Recipe(), selectors=[1, 2])


def test_names() -> None:
    assert typical_names([["said", "was"], ["said", "was", "is"], ["!", "?"], []], taken=["meaning"]) == [
        "said-was",
        "said-was-is",
        "exclamation-mark-question-mark",
        "kind-4",
    ]


def test_names_that_somebody_gave(make_model: Callable) -> None:
    unit = {"meaning": "word", "a": "kind", "b": "kind"}
    model = make_model(selector_names=list(unit), selector_unit=unit).eval()
    name_kinds(model, [], ["verbs", "nouns"])
    assert model.config.names == ["meaning", "verbs", "nouns"] and model.config.of_selector("selector_unit", 2) == "kind"
    name_kinds(model, ["marie moved to paris", "the museum in the city"])
    assert model.config.names[0] == "meaning" and all("-" in name for name in model.config.names[1:])


def test_a_recipe_says_how_many() -> None:
    settings = load_recipe("specialise", {"kinds": 3}).model_settings()
    assert settings["selector_names"] == ["meaning", "kind_1", "kind_2", "kind_3"]
    assert settings["selector_inputs"]["kind_3"] == ["input", "pooled", "removal"]
    rates = {"meaning": 0.3, "kind": [0.1, 0.2]}
    assert (
        load_recipe("specialise", {"kinds": 2, "model.target_rate": rates}).model_settings()["target_rate"]["kind_2"] == 0.2
    )
    for overrides, message in (
        ({"model.target_rate": rates}, "target_rate has 2 values for kinds=10"),
        ({"selector_names": ["nouns"]}, "selector_names has 1 names for kinds=10"),
    ):
        with pytest.raises(ValueError, match=message):
            load_recipe("specialise", overrides).check_model()
    with pytest.raises(ValueError, match="selector_names names what 'kind' stands for"):
        load_recipe("default", {"selector_names": ["nouns"]}).check_model()


def test_the_recipe_leaves_named_selectors_and_a_picture(arguments: Callable, tmp_path: Path) -> None:
    rest = "\t_" * 6
    dev = tmp_path / "dev.conllu"
    dev.write_text(f"1\tmarie\tmarie\tPROPN{rest}\n2\tmoved\tmove\tVERB{rest}\n3\tto\tto\tADP{rest}\n")
    layers = "{meaning: [0.5, 1.0], kind: 1.0}"
    options = {"kinds": 3, "kinds_steps": 5, "removal_sentences": 60, "removal_epochs": 1, "dev": dev}
    options["meaning"] = "null"  # the released one is of another encoder
    assert train.main(arguments(recipe="specialise", model__selector_layer=layers, **options)) == 0
    model = HardKumaModel.from_pretrained(tmp_path / "run" / "model").eval()
    names = model.config.names
    assert len(names) == 4 and names[0] == "meaning" and not any(name.startswith("kind_") for name in names)
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert all(f"| {name} | `" in card for name in names[1:]) and "(kinds.png)" in card and "over all 3 words" in card
    assert (tmp_path / "run" / "model" / "kinds.png").read_bytes()[:4] == b"\x89PNG"
    record = model.gate_records(["marie moved to paris"], selector="all")[0]
    assert list(record["rates"]) == names and list(record["words"][0]["probabilities"]) == names
