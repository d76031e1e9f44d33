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
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

from hardkuma import train
from hardkuma.training import resuming
from tests.forks import Fork, ForkServer

ROOT = Path(__file__).resolve().parents[2]

# What `accelerate launch --config_file recipes/accelerate/fsdp.yaml` sets, but for mixed precision.
SETTINGS = {
    "ACCELERATE_USE_CPU": "true",
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
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
    "max_steps": 12,
    "evaluate_every": 4,
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


def log(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_sharded_weights_train_as_whole_ones(arguments: Callable, steady: Path, forks: ForkServer, tmp_path: Path) -> None:
    extra = {**EXTRA, "encoder": steady}
    AcceleratorState._reset_state(reset_partial_state=True)
    assert train.main(arguments("one", **extra)) == 0
    finish(start(forks, arguments("two", **extra)))
    one, two = log(tmp_path / "one"), log(tmp_path / "two")
    assert [e["loss"] for e in two if "loss" in e] == pytest.approx([e["loss"] for e in one if "loss" in e], abs=1e-4)
    expected = load_file(tmp_path / "one" / "model" / "model.safetensors")
    found = load_file(tmp_path / "two" / "model" / "model.safetensors")
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name].float(), value.float(), atol=2e-3), name


def test_killed_and_resumed_gives_the_same_weights(arguments: Callable, forks: ForkServer, tmp_path: Path) -> None:
    """Killed after a checkpoint, wherever it was then; dropout draws random numbers too."""
    extra = {**EXTRA, "max_steps": 40, "epochs": 5, "model__selector_dropout": 0.2, "checkpoint_every": 5}
    finish(start(forks, arguments("whole", **extra)))
    cut = start(forks, arguments("cut", **extra))
    saved = tmp_path / "cut" / "checkpoints"
    while len(resuming.checkpoints(saved)) < 2 and cut[0].poll() is None:
        time.sleep(0.02)
    for rank in cut:
        rank.send_signal(signal.SIGKILL)
        assert rank.wait() == -signal.SIGKILL
    assert resuming.checkpoints(saved) and not (tmp_path / "cut" / "model").exists()
    shapes = {name: value.shape for name, value in load_file(resuming.checkpoints(saved)[-1] / "model.safetensors").items()}
    again = start(forks, [*arguments("cut", **extra), "--resume"])
    finish(again)
    assert "resuming from step" in again[0].stderr
    whole, resumed = (tmp_path / name / "model" / "model.safetensors" for name in ("whole", "cut"))
    assert whole.read_bytes() == resumed.read_bytes()
    assert shapes == {name: value.shape for name, value in load_file(whole).items()}, "checkpoints hold whole tensors"
    assert log(tmp_path / "whole") == log(tmp_path / "cut")


def test_mixed_precision_is_the_encoders_alone(
    arguments: Callable, steady: Path, forks: ForkServer, tmp_path: Path
) -> None:
    """Losses of a run in bf16 are near those in fp32, and no rounding of theirs to bf16."""
    extra = {**EXTRA, "encoder": steady, "max_steps": 3, "mixed_precision": "bf16", "micro_batch": 4}
    finish(start(forks, arguments("half", **extra)))
    AcceleratorState._reset_state(reset_partial_state=True)
    assert train.main(arguments("one", **{**extra, "mixed_precision": "no"})) == 0
    half, one = ([e["loss"] for e in log(tmp_path / name) if "loss" in e] for name in ("half", "one"))
    assert half == pytest.approx(one, abs=0.05)
    assert any(float(torch.tensor(loss).bfloat16()) != loss for loss in half)


def test_removal_has_nothing_to_shard(arguments: Callable, forks: ForkServer) -> None:
    ranks = start(forks, arguments(recipe="default"))
    assert [rank.wait() for rank in ranks] == [1, 1]
    assert "use recipes/accelerate/multi_gpu.yaml instead" in ranks[0].stderr
