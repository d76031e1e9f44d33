"""Steps: gradients in parts, schedules, noise that does not know how many processes there are; the criterion."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from hardkuma.training.criterion import most_probable, selection_quality
from hardkuma.training.recipe import Recipe
from hardkuma.training.steps import learning_rate, local_batch, train_step
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


def test_most_probable_takes_content_only_and_breaks_ties_by_place() -> None:
    content = torch.tensor([[False, True, True, True, True, False], [True, False, False, False, False, False]])
    probs = torch.tensor([[[0.9, 0.2, 0.5, 0.5, 0.1, 0.9]], [[0.1, 0.9, 0.9, 0.9, 0.9, 0.9]]])
    assert most_probable(probs, content, 0.25)[0, 0].tolist() == [0, 0, 1, 0, 0, 0]
    assert most_probable(probs, content, 0.5)[0, 0].tolist() == [0, 0, 1, 1, 0, 0]
    assert most_probable(probs, content, 0.01)[1, 0].tolist() == [1, 0, 0, 0, 0, 0], "at least one"


def test_criterion_against_a_loop(make_model: Callable, tmp_path: Path) -> None:
    model = make_model(view="hidden")
    store = build_store(model, SENTENCES, tmp_path / "store", "float32", progress=False)
    quality = selection_quality(model, store, np.arange(len(SENTENCES)), 0.3, batch_size=4)
    sums = [0.0, 0.0]
    for sentence in SENTENCES:
        inputs = model.tokenizer([sentence], return_tensors="pt")
        with torch.no_grad():
            out = model(**inputs)
        probs, ids = out.gate_probs[0], inputs["input_ids"][0]
        places = [i for i in range(len(ids)) if ids[i] not in (0, 1, 3)]
        best = sorted(places, key=lambda i: (-float(probs[i]), i))[: max(1, int(0.3 * len(places) + 0.5))]
        for side, chosen in enumerate([set(best), set(places) - set(best)]):
            keep = torch.tensor([[int(i in chosen or i not in places) for i in range(len(ids))]])
            with torch.no_grad():
                states = model.encoder(input_ids=inputs["input_ids"], attention_mask=keep).last_hidden_state
            vector = (states * keep[..., None]).sum(1) / keep.sum()
            sums[side] += float(torch.cosine_similarity(vector, out.anchor_embedding))
    assert quality.sufficiency == pytest.approx(sums[0] / len(SENTENCES), abs=1e-5)
    assert quality.remainder == pytest.approx(sums[1] / len(SENTENCES), abs=1e-5)
    assert quality.score == pytest.approx(quality.sufficiency - quality.remainder)
    assert not model.training
