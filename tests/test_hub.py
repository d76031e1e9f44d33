"""Pushing to, and loading from, a server that speaks the Hub's endpoints (on loopback, run by the test)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from hardkuma import HardKumaModel
from tests.forks import COMMAND, ForkServer
from tests.hub_server import Hub

ROOT = Path(__file__).resolve().parents[1]

LOAD = """
import sys, torch
from transformers import AutoModel, AutoTokenizer
model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
out = model(**tokenizer(["marie curie moved to paris"], return_tensors="pt"))
torch.save(out.gate_probs.detach(), sys.argv[2])
"""
PUSH = """
import sys
from hardkuma import HardKumaModel
model = HardKumaModel.from_pretrained(sys.argv[1])
model.push_to_hub(sys.argv[2], card={"name": "Pushed gates"})
"""


TRAIN = f"import runpy; runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')"


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def hub_forks(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Forks of an interpreter for which this server is the Hub: the address is read while the libraries are imported."""
    variables = {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": "hf_test",
        "HF_HOME": str(tmp_path_factory.mktemp("hf")),
        "HF_HUB_DISABLE_XET": "1",
    }
    with ForkServer(environment={**os.environ, **variables}) as server:
        yield server


def test_push_and_load_from_the_hub(make_model: Callable, tmp_path: Path, hub: Hub, hub_forks: ForkServer) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "model")
    done = hub_forks.run(PUSH, tmp_path / "model", "someone/gates")
    assert done.returncode == 0, done.stderr[-3000:]
    assert hub.tokens == {"Bearer hf_test"}
    files = hub.repos["someone/gates"]
    saved = tmp_path / "model"
    assert set(files) == {path.relative_to(saved).as_posix() for path in saved.rglob("*") if path.is_file()}
    assert b"# Pushed gates" in files["README.md"], "our card, not a generic one"
    done = hub_forks.run(LOAD, "someone/gates", tmp_path / "probs.pt")
    assert done.returncode == 0, done.stderr[-3000:]
    inputs = model.tokenizer(["marie curie moved to paris"], return_tensors="pt")
    assert torch.equal(torch.load(tmp_path / "probs.pt", weights_only=True), model(**inputs).gate_probs.detach())


@pytest.mark.parametrize("command", ["train", "encoder"])
def test_training_pushes_its_folder(
    command: str, tmp_path: Path, hub: Hub, hub_forks: ForkServer, make_model: Callable
) -> None:
    model = make_model()
    model.encoder.save_pretrained(tmp_path / "encoder")
    model.tokenizer.save_pretrained(tmp_path / "encoder")
    text = tmp_path / "text.txt"
    text.write_text(
        "".join(
            f"the museum in {a} {b} {c}\n"
            for a in ("paris", "london")
            for b in ("opened", "closed", "won")
            for c in ("1891", "2020", "1", "2", "3")
        )
    )
    shared = [
        "--encoder", tmp_path / "encoder", "--data", f"[{text}]",
        "--output", tmp_path / "run", "--push-to-hub", f"someone/{command}",
    ]  # fmt: skip
    if command == "train":
        options = ["--train.batch_size", "8", "--train.epochs", "1", "--selectors.meaning.layer", "1"]
        done = hub_forks.run(TRAIN, "contrastive", *shared, *options)
    else:
        done = hub_forks.run(COMMAND, "encoder", "simcse", *shared, "--batch_size", "8", "--epochs", "1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"pushed to someone/{command}" in done.stdout
    files = hub.repos[f"someone/{command}"]
    folder = tmp_path / "run" / "model"
    assert set(files) == {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"model.safetensors", "recipe.yaml", "run.json", "log.jsonl"} <= set(files)
    if command == "train":
        assert {"losses.png", "README.md"} <= set(files)
        assert HardKumaModel.from_pretrained(folder).gate_records(["the museum in paris"], rate=1.0)[0]["rate"] == 1.0
    else:
        assert "modules.json" in files
