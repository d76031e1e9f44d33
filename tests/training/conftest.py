"""A tiny encoder folder and small corpora; accelerate's singletons are reset between runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from accelerate.state import AcceleratorState
from transformers import AutoModel

from tests.conftest import WORDS, encoder_config, make_tokenizer

if TYPE_CHECKING:
    import numpy as np

    from hardkuma import HardKumaModel
    from hardkuma.training.run import Run
    from hardkuma.training.store import StateStore

NAMES = ("paris", "berlin", "london", "marie", "curie", "einstein", "google", "apple", "nasa")


@pytest.fixture(autouse=True)
def _fresh_accelerator() -> Iterator[None]:
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def build_store(
    model: HardKumaModel, texts: list[str], folder: Path, cache_type: str | None, log: Callable = print
) -> StateStore:
    """Tokenised and encoded texts, without a bar."""
    from hardkuma.training.store import encode_sentences, write_tokens

    return encode_sentences(model, write_tokens(model, texts, folder, False), cache_type, log=log, progress=False)


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
def cased(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same sentences, cities and people among their words with a capital."""
    path = tmp_path_factory.mktemp("cased") / "text.txt"
    lines = corpus.read_text().splitlines()
    path.write_text("\n".join(" ".join(w.title() if w in NAMES else w for w in line.split()) for line in lines) + "\n")
    return path


# Small settings for the tiny encoder, which has two layers.
SMALL: dict[str, dict[str, object]] = {
    "contrastive": {
        "train.batch_size": 16,
        "train.epochs": 2,
        "train.max_steps": "null",
        "train.evaluate_every": 10,
        "train.checkpoint_every": 5,
        "train.log_every": 1,
    },
    "default": {
        "selectors.meaning.train.epochs": 2,
        "selectors.meaning.layer": "[0.0, 1.0]",
        "selectors.entities.layer": "[0.0, 1.0]",
    },
    "parts": {
        # That of the released head is of another encoder.
        "selectors.meaning.train": "{objective: removal, sentences: 6000, epochs: 2}",
        "selectors.meaning.layer": "[0.5, 1.0]",
        "train.count": 2,
        "train.steps": 3,
    },
}


@pytest.fixture(scope="session")
def quick_run(encoder_folder: Path, corpus: Path) -> Callable[..., list[str]]:
    """quick_run(folder, recipe, **{"train.epochs": 2}): the command line of a small run."""

    def make(folder: Path, recipe: str = "contrastive", **overrides: object) -> list[str]:
        values = {
            "encoder": encoder_folder,
            "data": f"[{corpus}]",
            "split_sentences": "false",
            "held_out": 32,
            "output": folder,
            **SMALL[recipe if recipe in SMALL else "default" if recipe in ("released", "language") else "contrastive"],
            **overrides,
        }
        words = [recipe]
        for key, value in values.items():
            words += [f"--{key}", str(value)]
        return words

    return make


@pytest.fixture
def arguments(quick_run: Callable[..., list[str]], tmp_path: Path) -> Callable[..., list[str]]:
    """arguments(name, **{key: value}): `quick_run` into tmp_path/name."""

    def make(output: str = "run", recipe: str = "contrastive", **overrides: object) -> list[str]:
        return quick_run(tmp_path / output, recipe, **overrides)

    return make


def make_run(
    model: HardKumaModel,
    train: dict[str, Any],
    store: StateStore | None = None,
    rows: np.ndarray | None = None,
    **keys: Any,
) -> Run:
    """A run of a model whose selectors are all trained alike, on a store that is there."""
    from hardkuma.training.recipe import Recipe
    from hardkuma.training.run import Run

    run = Run(Recipe(selectors={name: {"train": train} for name in model.config.names}, **keys), model)
    if store is not None and rows is not None:
        run.store, run.rows, run.held_out = store, rows, rows[:0]
    return run
