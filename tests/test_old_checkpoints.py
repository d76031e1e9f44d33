"""Checkpoints that 0.1.0 saved, with the code that it put into them: today's code gives the same numbers, to the bit."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForTokenClassification, AutoTokenizer

from hardkuma import HardKumaConfig, HardKumaForTokenClassification, HardKumaModel, surface_batch
from tests.conftest import SENTENCES

ARCHIVE = Path(__file__).parent / "data" / "checkpoints-0.1.0.zip"
FIELDS = ["gates", "gate_probs", "anchor_embedding", "rationale_embedding", "complement_embedding", "alpha", "beta"]
FIELDS += ["last_hidden_state"]
NAMES = ["one", "two"]  # of `two`: two selectors, which read everything there is to read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("old")
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(root)
    return root


def load_old(path: Path, auto: Any = AutoModel) -> Any:
    """By the code that travelled."""
    model = auto.from_pretrained(path, trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules")
    return model


def batch_of(tokenizer: Any, side: str = "right") -> dict[str, Tensor]:
    tokenizer.padding_side = side
    texts = [SENTENCES[0].title(), *SENTENCES[1:], ""]
    inputs = dict(tokenizer(texts, padding=True, return_offsets_mapping=True, return_tensors="pt"))
    inputs["surface_ids"] = surface_batch(texts, inputs.pop("offset_mapping"))
    assert len(inputs["surface_ids"].unique()) > 3 and (inputs["attention_mask"] == 0).any()
    return inputs


@torch.no_grad()
def assert_equal(one: Any, two: Any, inputs: dict[str, Tensor]) -> None:
    plain = {name: value for name, value in inputs.items() if name != "surface_ids"}
    calls = [plain, inputs, {**plain, "rate": 0.3}, {**inputs, "rate": 0.3}]
    for call in calls:
        first, second = one(**call), two(**call)
        for name in FIELDS:
            assert torch.equal(first[name], second[name]), (name, sorted(call))
    # They differ among themselves: surface and rate count.
    assert not torch.equal(one(**plain).gate_probs, one(**inputs).gate_probs)
    assert not torch.equal(one(**plain).gates, one(**plain, rate=1.0).gates)
    assert torch.equal(one.gate_probabilities(**inputs), two.gate_probabilities(**inputs))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", NAMES)
def test_loads_and_gives_the_same(name: str, side: str, folder: Path, tmp_path: Path) -> None:
    old, new = load_old(folder / name), HardKumaModel.from_pretrained(folder / name).eval()
    inputs = batch_of(AutoTokenizer.from_pretrained(folder / name, trust_remote_code=True), side)
    assert_equal(old, new, inputs)
    assert_equal(new, old, inputs)  # whichever runs last: two versions in one process do not meet
    new.save_pretrained(tmp_path / "again")
    assert_equal(old, HardKumaModel.from_pretrained(tmp_path / "again").eval(), inputs)
    assert_equal(old, AutoModel.from_pretrained(tmp_path / "again", trust_remote_code=True).eval(), inputs)


@pytest.mark.parametrize("name", NAMES)
def test_loss_and_classifier_are_the_same(name: str, folder: Path) -> None:
    old, new = load_old(folder / name), HardKumaModel.from_pretrained(folder / name)
    inputs = batch_of(AutoTokenizer.from_pretrained(folder / name, trust_remote_code=True))
    noise = torch.rand(len(inputs["input_ids"]), old.config.num_selectors, inputs["input_ids"].shape[1])
    gradients = []
    for model in (old, new):
        out = model.train()(**inputs, noise=noise, return_loss=True)
        out.loss.backward()
        gradients.append([out.loss.detach(), *(p.grad for p in model.gate_head.parameters())])
    assert all(torch.equal(first, second) for first, second in zip(*gradients, strict=True))
    labeller = load_old(folder / name, AutoModelForTokenClassification)
    today = HardKumaForTokenClassification.from_pretrained(folder / name).eval()
    with torch.no_grad():
        before, after = labeller(**inputs).logits, today(**inputs).logits
        if old.config.num_selectors > 1:  # 0.1.0 united them: 1 - (1 - p) (1 - q) ...
            apart = [today(**inputs, selector=k).logits.softmax(-1)[..., 0] for k in today.config.names]
            assert torch.equal(after.softmax(-1)[..., 0], apart[0])
            torch.testing.assert_close(before.softmax(-1)[..., 0], torch.stack(apart).prod(0), atol=1e-5, rtol=0)
        else:
            assert torch.equal(before, after)


@pytest.mark.parametrize("name", NAMES)
def test_config_file_round_trips(name: str, folder: Path, tmp_path: Path) -> None:
    before = json.loads((folder / name / "config.json").read_text(encoding="utf-8"))
    HardKumaConfig.from_pretrained(folder / name).save_pretrained(tmp_path)
    after = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    names = {"one": ["meaning"], "two": ["selector_0", "selector_1"]}[name]  # by which they are called from now on
    assert {field: after[field] for field in before} == before and len(before) > 45
    new, defaults = set(after) - set(before), HardKumaConfig().to_dict() | {"selector_names": names}
    assert {"selector_names", "selector_unit"} <= new and {field: after[field] for field in new} == {
        field: defaults[field] for field in new
    }
