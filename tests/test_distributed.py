"""Two processes (gloo) against one process on the joined batch: loss and gradients, every view, several selectors."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
import torch

from hardkuma import HardKumaModel
from hardkuma.losses_hardkuma import gather_rows
from tests.conftest import SENTENCES, build_model
from tests.forks import ForkServer

TEXTS = [*SENTENCES, "", "the museum and the bridge in the city"]  # 4 a process; one of the two has an empty sentence
CASES = [f"{view}-{contrastive}" for view, contrastive in product(("hidden", "input", "reencode"), ("infonce", "nt_xent"))]

# Both processes go through all cases, each on a model of its own.
WORKER = """
import json, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from hardkuma import HardKumaModel
rank, folder, cases = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
for case in cases:
    model = HardKumaModel.from_pretrained(f"{folder}/{case}").train()
    inputs = torch.load(f"{folder}/{case}/inputs.pt", weights_only=True)
    wrapped = DistributedDataParallel(model)
    out = wrapped(**{name: value[rank * 4 : rank * 4 + 4] for name, value in inputs.items()}, return_loss=True)
    out.loss.backward()
    losses = {name: value.detach() for name, value in out.losses.items()}
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    result = {"loss": out.loss.detach(), "losses": losses, "gradients": gradients}
    result["multiplier"] = model.gate_head.rate_multiplier
    torch.save(result, f"{folder}/{case}/rank{rank}.pt")
    # Nobody leaves while the other still talks: gloo's own shutdown can wait for ever for a process that has gone.
    del wrapped
    dist.barrier()
dist.destroy_process_group()
"""


def save_case(case: str, folder: Path) -> None:
    """The model of a case and its inputs, noise included: two processes and one must draw the same."""
    view, contrastive = case.split("-")
    model = build_model(
        view=view,
        contrastive=contrastive,
        selectors={"meaning": {"lambda_s": 0.5}, "entities": {"lambda_s": 1.0}},
        temperature=0.3,
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
    model.save_pretrained(folder)
    inputs = dict(model.tokenizer(TEXTS, padding=True, return_tensors="pt"))
    inputs["noise"] = torch.rand(len(TEXTS), 2, inputs["input_ids"].shape[1])
    torch.save(inputs, folder / "inputs.pt")


@pytest.fixture(scope="module")
def ranks(forks: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes have left what they found, case by case."""
    folder = tmp_path_factory.mktemp("ranks")
    for case in CASES:
        save_case(case, folder / case)
    both = [forks.start(WORKER, rank, folder, json.dumps(CASES)) for rank in range(2)]
    for process in both:
        assert process.wait() == 0, process.stderr[-3000:]
    return folder


@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one(case: str, ranks: Path) -> None:
    one = HardKumaModel.from_pretrained(ranks / case).train()
    out = one(**torch.load(ranks / case / "inputs.pt", weights_only=True), return_loss=True)
    out.loss.backward()
    two = [torch.load(ranks / case / f"rank{rank}.pt", weights_only=True) for rank in range(2)]

    assert float((two[0]["loss"] + two[1]["loss"]) / 2) == pytest.approx(out.loss.item(), abs=1e-5)
    for name, value in out.losses.items():
        mean = (two[0]["losses"][name] + two[1]["losses"][name]) / 2
        assert torch.allclose(mean, value, atol=1e-5), name
    for name, parameter in one.named_parameters():
        assert torch.allclose(two[0]["gradients"][name], parameter.grad, atol=1e-5), name
        assert torch.equal(two[0]["gradients"][name], two[1]["gradients"][name]), name
    assert torch.allclose(two[0]["multiplier"], one.gate_head.rate_multiplier, atol=1e-6)
    assert torch.equal(two[0]["multiplier"], two[1]["multiplier"])


def test_one_process_gathers_nothing() -> None:
    rows = torch.ones(2, 3)
    assert gather_rows(rows) is rows
