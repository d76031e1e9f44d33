"""FSDP2 on two CPU processes (gloo): sharded weights train as whole ones, and a killed run resumes to the bit."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

from hardkuma import train
from hardkuma.training import resuming
from tests.forks import Fork, ForkServer

ROOT = Path(__file__).resolve().parents[2]

FSDP = yaml.safe_load((ROOT / "recipes" / "accelerate" / "fsdp.yaml").read_text())["fsdp_config"]
# What `accelerate launch --config_file recipes/accelerate/fsdp.yaml` sets.
SETTINGS = {
    "ACCELERATE_USE_CPU": "true",
    "ACCELERATE_USE_FSDP": "true",
    **{key.upper(): str(value) for key, value in FSDP.items()},
}
# accelerate shards where there are several devices, and takes a CPU for none: the processes say that they have GPUs.
TRAIN = f"""
from accelerate import PartialState
from accelerate.utils import DistributedType
PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU
import runpy; runpy.run_path({str(ROOT / "train.py")!r}, run_name="__main__")
"""
EXTRA = {
    "model__freeze_encoder": "false",
    "model__rate_constraint": "lagrangian",
    "learning_rate": 1e-3,
    "max_steps": 6,
    "evaluate_every": 2,
    "checkpoint_every": 2,
    "batches": "random",
}


@pytest.fixture(scope="module")
def steady(encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The encoder without dropout, which two processes draw otherwise than one."""
    folder = shutil.copytree(encoder_folder, tmp_path_factory.mktemp("steady") / "encoder")
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def start(forks: ForkServer, arguments: list[str]) -> list[Fork]:
    return forks.start_ranks(2, TRAIN, *arguments, **SETTINGS)


def finish(ranks: list[Fork]) -> None:
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].stderr[-3000:]


def losses(folder: Path) -> list[float]:
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [entry["loss"] for entry in entries if "loss" in entry]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def check_near(found: Path, expected: Path) -> None:
    assert losses(found) == pytest.approx(losses(expected), abs=1e-4)
    assert weights(found).keys() == weights(expected).keys()
    for name, value in weights(expected).items():
        assert torch.allclose(weights(found)[name].float(), value.float(), atol=2e-3), name


def test_sharded_killed_and_resumed(arguments: Callable, steady: Path, forks: ForkServer, tmp_path: Path) -> None:
    """Two processes train what one trains; killed and resumed they do so to the bit; one can go on with what two began."""
    extra = {**EXTRA, "encoder": steady}
    one, whole, cut = (tmp_path / name for name in ("one", "whole", "cut"))
    assert train.main(arguments("one", **extra)) == 0
    finish(start(forks, arguments("whole", **extra)))
    check_near(whole, one)

    ranks = start(forks, arguments("cut", **extra))
    while not resuming.checkpoints(cut / "checkpoints") and ranks[0].poll() is None:
        time.sleep(0.01)
    for rank in ranks:
        rank.send_signal(signal.SIGKILL)
        assert rank.wait() == -signal.SIGKILL
    reached = resuming.checkpoints(cut / "checkpoints")[-1]
    assert (reached / "best.safetensors").is_file() and not (cut / "model").exists()
    held = {name: value.shape for name, value in load_file(reached / "model.safetensors").items()}
    assert held == {name: value.shape for name, value in weights(whole).items()}, "checkpoints hold whole tensors"
    copy = shutil.copytree(cut, tmp_path / "copy")

    again = start(forks, [*arguments("cut", **extra), "--resume"])
    finish(again)
    assert "resuming from step" in again[0].stderr
    for name in ("log.jsonl", "model/model.safetensors"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name

    shutil.rmtree(cut)
    copy.rename(cut)
    AcceleratorState._reset_state(reset_partial_state=True)
    assert train.main([*arguments("cut", **extra), "--resume"]) == 0
    check_near(cut, one)


def test_mixed_precision_is_the_encoders_alone(
    arguments: Callable, steady: Path, forks: ForkServer, tmp_path: Path
) -> None:
    """Losses of a run in bf16 are near those in fp32, and no rounding of theirs to bf16."""
    extra = {**EXTRA, "encoder": steady, "max_steps": 3, "mixed_precision": "bf16", "micro_batch": 4}
    finish(start(forks, arguments("half", **extra)))
    AcceleratorState._reset_state(reset_partial_state=True)
    assert train.main(arguments("one", **{**extra, "mixed_precision": "no"})) == 0
    half, one = losses(tmp_path / "half"), losses(tmp_path / "one")
    assert half == pytest.approx(one, abs=0.05)
    assert any(float(torch.tensor(loss).bfloat16()) != loss for loss in half)


def test_removal_has_nothing_to_shard(arguments: Callable, forks: ForkServer) -> None:
    ranks = start(forks, arguments(recipe="default"))
    assert [rank.wait() for rank in ranks] == [1, 1]
    assert "use recipes/accelerate/multi_gpu.yaml instead" in ranks[0].stderr
