"""Steps and checkpoints: gradients in parts, schedules, the logged rate, noise that does not know how many processes there
are, damaged checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from hardkuma import HardKumaModel
from hardkuma.training.loop import (
    Progress,
    checkpoints,
    learning_rate,
    load_last_checkpoint,
    local_batch,
    local_rate,
    save_checkpoint,
    train_step,
)
from hardkuma.training.objectives.settings import ContrastiveSettings
from tests.conftest import SENTENCES
from tests.training.conftest import build_store

TWO = {"a": {}, "b": {}}


@pytest.mark.parametrize("view", ["hidden", "input", "reencode"])
@pytest.mark.parametrize("names", [["a", "b"], ["b"]], ids=["both", "one of two"])
def test_gradients_in_parts_are_those_of_the_whole_batch(
    view: str, names: list[str], make_model: Callable, tmp_path: Path
) -> None:
    gradients, losses = [], []
    for micro_batch in (None, 2):
        model = make_model(
            view=view, selectors=TWO, temperature=0.3, lambda_kl=0.3, rate_constraint="lagrangian", lambda_tv=0.2
        )
        model.train()
        store = build_store(model, SENTENCES, tmp_path / "store", "float32")
        accelerator = Accelerator(cpu=True)
        batch = local_batch(store, np.arange(6), model.config, names, 0, 3, accelerator)
        optimizer = torch.optim.SGD(model.gate_head.parameters(), lr=0.0)
        seen: dict[str, torch.Tensor] = {}
        for name, parameter in model.gate_head.named_parameters():
            parameter.register_hook(
                lambda grad, name=name, seen=seen: seen.__setitem__(name, seen.get(name, 0) + grad.clone())
            )
        settings = ContrastiveSettings(micro_batch=micro_batch, batch_size=6, clip=1e9)
        loss, terms, rows = train_step(
            model, optimizer, batch, settings, accelerator, lambda rows, model=model: model.losses_of(rows, names)
        )
        assert rows.gates.shape[:2] == (6, len(names)) and ("kl" in terms) == (len(names) == 2)
        gradients.append(seen)
        losses.append((loss, terms, model.gate_head.rate_multiplier.clone()))
    assert torch.allclose(losses[0][0], losses[1][0], atol=1e-6)
    assert torch.equal(losses[0][2], losses[1][2]), "the multiplier moved once"
    assert (losses[0][2] != 0).tolist() == [name in names for name in TWO], "that of the selectors that are trained"
    assert {name.split(".")[1] for name in gradients[0]} == {str(list(TWO).index(name)) for name in names}
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=1e-5), name


def test_learning_rate() -> None:
    settings = ContrastiveSettings(learning_rate=1.0, warmup=0.2)
    rates = [learning_rate(settings, step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.05) and max(rates) == rates[20] == 1.0 and rates[-1] < 0.01
    assert all(a >= b for a, b in pairwise(rates[20:]))


def test_nan_is_stopped(make_model: Callable, tmp_path: Path) -> None:
    model = make_model()
    store = build_store(model, SENTENCES, tmp_path / "store", "float32")
    model.train()
    accelerator = Accelerator(cpu=True)
    batch = local_batch(store, np.arange(6), model.config, ["meaning"], 0, 0, accelerator)
    with torch.no_grad():
        model.gate_head.selectors[0].hidden.weight.fill_(float("nan"))
    optimizer = torch.optim.SGD(model.gate_head.parameters(), lr=0.1)
    with pytest.raises(FloatingPointError, match="the loss became nan: lower learning_rate"):
        train_step(model, optimizer, batch, ContrastiveSettings(), accelerator, model.losses_of)


@pytest.mark.parametrize("micro_batch", [None, 2])
@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_the_rate_counts_tokens_whose_probability_is_zero(
    micro_batch: int | None, names: list[str], make_model: Callable, tmp_path: Path
) -> None:
    number = len(names)
    model = make_model(selectors={name: {} for name in names}, concentration_max=1000.0)
    store = build_store(model, SENTENCES, tmp_path / "store", "float32")
    with torch.no_grad():  # large beta: the chance of a gate above 1/2 is (1 - u^alpha)^beta, 0 in single precision
        for selector in model.gate_head.selectors:
            selector.shapes.weight[1].mul_(3e4)
    accelerator = Accelerator(cpu=True)
    batch = local_batch(store, np.arange(6), model.config, names, 0, 0, accelerator)
    with torch.no_grad():
        probs = model(**{name: value for name, value in batch.items() if name != "noise"}).gate_probs
    inside = ~torch.isin(batch["input_ids"], torch.tensor([0, 1, 3]))
    expected = float(probs.sum()) / (number * int(inside.sum()))
    assert 0 < int((probs > 0).sum()) < number * int(inside.sum()), "some probabilities are zero, not all"
    settings = ContrastiveSettings(micro_batch=micro_batch, batch_size=6)
    optimizer = torch.optim.SGD(model.gate_head.parameters(), lr=0.0)
    rows = train_step(model.train(), optimizer, batch, settings, accelerator, model.losses_of)[2]
    assert float(local_rate(rows.probs.detach(), rows.content)) == pytest.approx(expected, rel=1e-5)
    assert float(local_rate(torch.zeros(2, 1, 3), torch.zeros(2, 3, dtype=torch.bool))) == 0.0


@pytest.fixture
def saved(make_model: Callable, tmp_path: Path) -> tuple[HardKumaModel, torch.optim.Optimizer]:
    """Two checkpoints, of steps 5 and 10, whose first weight is the step."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.gate_head.parameters(), lr=0.1)
    for step in (5, 10):
        with torch.no_grad():
            model.gate_head.selectors[0].hidden.weight[0, 0] = step
        save_checkpoint(tmp_path, model, optimizer, None, Progress(step=step))
    return model, optimizer


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "progress.json"])
def test_a_damaged_checkpoint_is_passed_over(
    name: str, saved: tuple[HardKumaModel, torch.optim.Optimizer], tmp_path: Path
) -> None:
    """A machine that lost its power may have left half a file; the checkpoint before it is whole."""
    newest = checkpoints(tmp_path)[-1] / name
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    said: list[str] = []
    progress, best = load_last_checkpoint(tmp_path, *saved, said.append)
    assert progress.step == 5 and best is None and float(saved[0].gate_head.selectors[0].hidden.weight[0, 0]) == 5
    assert len(said) == 1 and "step-00000010 cannot be read" in said[0]


def test_without_a_whole_checkpoint_a_run_begins_anew(
    saved: tuple[HardKumaModel, torch.optim.Optimizer], tmp_path: Path
) -> None:
    for path in checkpoints(tmp_path):
        (path / "model.safetensors").write_bytes(b"")
    said: list[str] = []
    assert load_last_checkpoint(tmp_path, *saved, said.append)[0] == Progress() and len(said) == 2
