"""Two processes (gloo) against one process on the joined batch: loss and gradients, every view, several selectors."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from hardkuma import HardKumaModel
from hardkuma.losses_hardkuma import gather_rows
from tests.conftest import SENTENCES

TEXTS = [*SENTENCES, "", "the museum and the bridge in the city"]  # 4 a process; one of the two has an empty sentence


def worker(rank: int, folder: str, port_file: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{port_file}", rank=rank, world_size=2)
    try:
        model = HardKumaModel.from_pretrained(f"{folder}/model").train()
        inputs = torch.load(f"{folder}/inputs.pt", weights_only=True)
        wrapped = DistributedDataParallel(model)
        mine = {name: value[rank * 4 : rank * 4 + 4] for name, value in inputs.items()}
        out = wrapped(**mine, return_loss=True)
        out.loss.backward()
        losses = {name: value.detach() for name, value in out.losses.items()}
        gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
        result = {"loss": out.loss.detach(), "losses": losses, "gradients": gradients}
        result["multiplier"] = model.gate_head.rate_multiplier
        torch.save(result, f"{folder}/rank{rank}.pt")
        # Nobody leaves while the other still talks: gloo's own shutdown can wait for ever for a peer that has gone.
        del wrapped
        dist.barrier()
    finally:
        dist.destroy_process_group()


def run_both(folder: Path) -> list[dict[str, object]]:
    context = mp.spawn(worker, args=(str(folder), str(folder / "rendezvous")), nprocs=2, join=False)
    deadline = time.monotonic() + 120
    while not context.join(timeout=1):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            pytest.fail("two processes did not end within two minutes")
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("contrastive", ["infonce", "nt_xent"])
@pytest.mark.parametrize("view", ["hidden", "input", "reencode"])
def test_two_processes_equal_one(
    view: str, contrastive: str, make_model: Callable, tokenize: Callable, tmp_path: Path
) -> None:
    model = make_model(
        view=view,
        contrastive=contrastive,
        num_selectors=2,
        temperature=0.3,
        lambda_s=[0.5, 1.0],
        lambda_tv=0.3,
        lambda_kl=-0.4,
        rate_constraint="lagrangian",
        lambda_e=2.0,
        bound_complement=True,
        freeze_encoder=False,
    )
    for module in model.modules():  # dropout would draw differently in two processes
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.encoder.config.attention_probs_dropout_prob = model.encoder.config.hidden_dropout_prob = 0.0
    with torch.no_grad():
        model.gate_head.rate_multiplier.copy_(torch.tensor([0.3, -0.2]))
    model.config.encoder_config = model.encoder.config
    model.save_pretrained(tmp_path / "model")
    inputs = tokenize(model, TEXTS)
    inputs["noise"] = torch.rand(len(TEXTS), 2, inputs["input_ids"].shape[1])
    torch.save(inputs, tmp_path / "inputs.pt")

    one = HardKumaModel.from_pretrained(tmp_path / "model").train()
    out = one(**inputs, return_loss=True)
    out.loss.backward()
    ranks = run_both(tmp_path)

    assert float((ranks[0]["loss"] + ranks[1]["loss"]) / 2) == pytest.approx(out.loss.item(), abs=1e-5)
    for name, value in out.losses.items():
        mean = (ranks[0]["losses"][name] + ranks[1]["losses"][name]) / 2
        assert torch.allclose(mean, value, atol=1e-5), name
    for name, parameter in one.named_parameters():
        assert torch.allclose(ranks[0]["gradients"][name], parameter.grad, atol=1e-5), name
        assert torch.equal(ranks[0]["gradients"][name], ranks[1]["gradients"][name]), name
    assert torch.allclose(ranks[0]["multiplier"], one.gate_head.rate_multiplier, atol=1e-6)
    assert torch.equal(ranks[0]["multiplier"], ranks[1]["multiplier"])


def test_one_process_gathers_nothing() -> None:
    rows = torch.ones(2, 3)
    assert gather_rows(rows) is rows
