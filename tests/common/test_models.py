"""The released gate head: small, complete once saved, and sensible on plain sentences."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from hardkuma import load_released
from hardkuma.common.models import RELEASED, load_model


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_is_small_and_safe() -> None:
    assert (RELEASED / "model.safetensors").stat().st_size < 10_000_000
    assert not [path.name for path in RELEASED.iterdir() if path.suffix in (".bin", ".pt", ".pkl")]


def test_selects_names_rather_than_function_words() -> None:
    model, _ = load_released()
    text = "Marie Curie moved from Warsaw to Paris because it was the only way that she could study."
    words = {word["word"]: word["probability"] for word in model.gate_records([text])[0]["words"]}
    names, others = ("Marie", "Curie", "Warsaw", "Paris"), ("from", "to", "because", "it", "was", "the", "that")
    assert min(words[name] for name in names) > max(words[other] for other in others)


def test_saving_it_gives_a_complete_folder(tmp_path: Path) -> None:
    model, tokenizer = load_released()
    model.save_pretrained(tmp_path / "whole")
    card = (tmp_path / "whole" / "README.md").read_text()
    kept = json.loads((RELEASED / "card.json").read_text())
    assert kept["training"] in card and kept["examples"] in card
    assert (tmp_path / "whole" / "model.safetensors").stat().st_mode & 0o777 == 0o666 & ~current_umask()
    again = AutoModel.from_pretrained(tmp_path / "whole", trust_remote_code=True).eval()
    inputs = tokenizer(["Marie Curie moved to Paris."], return_tensors="pt")
    same = AutoTokenizer.from_pretrained(tmp_path / "whole", trust_remote_code=True)(
        ["Marie Curie moved to Paris."], return_tensors="pt"
    )
    assert torch.equal(inputs["input_ids"], same["input_ids"])
    assert torch.equal(model(**inputs).gate_probs, again(**inputs).gate_probs)


def test_the_folder_of_a_run_is_not_its_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no config.json; give the folder of a checkpoint\."):
        load_model(str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=rf"did you mean {tmp_path}/model\?"):
        load_model(str(tmp_path))
