"""A tiny encoder folder and a small corpus; accelerate's singletons are reset between runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState
from transformers import AutoModel

from tests.conftest import WORDS, encoder_config, make_tokenizer


@pytest.fixture(autouse=True)
def _fresh_accelerator() -> Iterator[None]:
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer BERT with its tokenizer."""
    import torch

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("encoder")
    AutoModel.from_config(encoder_config("bert")).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """172 made-up sentences, one a line. Of 160 or more 32 are held out, and batches of 16 make 8 steps an epoch."""
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n".join(" ".join(draw.choices(WORDS[:70], k=draw.randint(5, 14))) for _ in range(172)) + "\n")
    return path


@pytest.fixture(scope="session")
def quick_run(encoder_folder: Path, corpus: Path) -> Callable[..., list[str]]:
    """quick_run(folder, recipe, key=value): the command line of a run of two epochs; `model__x` is `--model.x`."""

    def make(folder: Path, recipe: str | None = None, **overrides: object) -> list[str]:
        values = {
            "encoder": encoder_folder,
            "data": f"[{corpus}]",
            "split_sentences": "false",
            "batch_size": 16,
            "held_out": 32,
            "evaluate_every": 10,
            "checkpoint_every": 5,
            "log_every": 1,
            "epochs": 2,
            "output": folder,
            "model__selector_layer": 1,  # the tiny encoder has two
            "max_steps": "null",
            **overrides,
        }
        words = ["contrastive" if recipe is None else recipe]
        for key, value in values.items():
            words += [f"--{key.replace('model__', 'model.')}", str(value)]
        return words

    return make


@pytest.fixture
def arguments(quick_run: Callable[..., list[str]], tmp_path: Path) -> Callable[..., list[str]]:
    """arguments(name, key=value): `quick_run` into tmp_path/name."""

    def make(output: str = "run", recipe: str | None = None, **overrides: object) -> list[str]:
        return quick_run(tmp_path / output, recipe, **overrides)

    return make
