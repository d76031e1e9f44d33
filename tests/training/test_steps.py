"""Steps: gradients in parts, schedules, the logged rate, noise that does not know how many processes there are."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from hardkuma.training.recipe import Recipe
from hardkuma.training.steps import learning_rate, local_batch, local_rate, train_step
from hardkuma.training.store import build_store
from tests.conftest import SENTENCES


@pytest.mark.parametrize("view", ["hidden", "input", "reencode"])
def test_gradients_in_parts_are_those_of_the_whole_batch(view: str, make_model: Callable, tmp_path: Path) -> None:
    gradients, losses = [], []
    for micro_batch in (None, 2):
        model = make_model(
            view=view, num_selectors=2, temperature=0.3, lambda_kl=0.3, rate_constraint="lagrangian", lambda_tv=0.2
        )
        model.train()
        store = build_store(model, SENTENCES, tmp_path / "store", "float32", progress=False)
        accelerator = Accelerator(cpu=True)
        batch = local_batch(store, np.arange(6), model.config, 0, 3, accelerator)
        optimizer = torch.optim.SGD(model.gate_head.parameters(), lr=0.0)
        seen: dict[str, torch.Tensor] = {}
        for name, parameter in model.gate_head.named_parameters():
            parameter.register_hook(
                lambda grad, name=name, seen=seen: seen.__setitem__(name, seen.get(name, 0) + grad.clone())
            )
        recipe = Recipe(micro_batch=micro_batch, batch_size=6, clip=1e9)
        loss, terms, _ = train_step(model, optimizer, batch, recipe, accelerator)
        gradients.append(seen)
        losses.append((loss, terms, model.gate_head.rate_multiplier.clone()))
    assert torch.allclose(losses[0][0], losses[1][0], atol=1e-6)
    assert torch.equal(losses[0][2], losses[1][2]), "the multiplier moved once"
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=1e-5), name


def test_schedules() -> None:
    recipe = Recipe(learning_rate=1.0, warmup=0.2)
    rates = [learning_rate(recipe, step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.05) and max(rates) == rates[20] == 1.0 and rates[-1] < 0.01
    assert all(a >= b for a, b in pairwise(rates[20:]))
    assert learning_rate(Recipe(learning_rate=1.0, schedule="constant", warmup=0.0), 99, 100) == 1.0


def test_nan_is_stopped(make_model: Callable, tmp_path: Path) -> None:
    model = make_model().train()
    store = build_store(model.eval(), SENTENCES, tmp_path / "store", "float32", progress=False)
    model.train()
    accelerator = Accelerator(cpu=True)
    batch = local_batch(store, np.arange(6), model.config, 0, 0, accelerator)
    with torch.no_grad():
        model.gate_head.selectors[0].hidden.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="the loss became nan: lower learning_rate"):
        train_step(model, torch.optim.SGD(model.gate_head.parameters(), lr=0.1), batch, Recipe(), accelerator)


@pytest.mark.parametrize("micro_batch", [None, 2])
@pytest.mark.parametrize("num_selectors", [1, 2])
def test_the_rate_counts_tokens_whose_probability_is_zero(
    micro_batch: int | None, num_selectors: int, make_model: Callable, tmp_path: Path
) -> None:
    model = make_model(num_selectors=num_selectors, shape_max=1000.0)
    store = build_store(model, SENTENCES, tmp_path / "store", "float32", progress=False)
    with torch.no_grad():  # large beta: the chance of a gate above 1/2 is (1 - u^alpha)^beta, 0 in single precision
        for selector in model.gate_head.selectors:
            selector.shapes.weight[1].mul_(3e4)
    accelerator = Accelerator(cpu=True)
    batch = local_batch(store, np.arange(6), model.config, 0, 0, accelerator)
    with torch.no_grad():
        probs = model(**{name: value for name, value in batch.items() if name != "noise"}).gate_probs
    inside = ~torch.isin(batch["input_ids"], torch.tensor([0, 1, 3]))
    expected = float(probs.sum()) / (num_selectors * int(inside.sum()))
    assert 0 < int((probs > 0).sum()) < num_selectors * int(inside.sum()), "some probabilities are zero, not all"
    recipe = Recipe(micro_batch=micro_batch, batch_size=6)
    optimizer = torch.optim.SGD(model.gate_head.parameters(), lr=0.0)
    rate = train_step(model.train(), optimizer, batch, recipe, accelerator)[2]
    assert float(rate) == pytest.approx(expected, rel=1e-5)
    assert float(local_rate(torch.zeros(2, 1, 3), torch.zeros(2, 3, dtype=torch.bool))) == 0.0
