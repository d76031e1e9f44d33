"""The public contract under generated input: a minute of what benchmarks/resilience.py does for longer."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hardkuma import HardKumaModel
from hardkuma.apps.search import SearchIndex
from hardkuma.handler import EndpointHandler
from tests import attacks
from tests.conftest import SENTENCES, build_two_selectors

RECIPE_KEYS = (
    "data",
    "seed",
    "output",
    "held_out",
    "encoder",
    "cache",
    "surface",
    "max_sentences",
    "selectors",
    "model",
    "model.view",
    "model.temperature",
    "model.encoder_config",
    "model.attn_implementation",
    "train.epochs",
    "train.learning_rate",
    "selectors.meaning",
    "selectors.meaning.layer",
    "selectors.meaning.reads",
    "selectors.meaning.train",
    "selectors.meaning.train.objective",
    "selectors.meaning.train.epochs",
    "selectors.entities.train.epochs",
    "colour",
    "train.colour",
)


def drawn(number: int) -> Callable:
    """A test of this many draws, the same every time."""
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return lambda test: settings(
        max_examples=number, deadline=None, derandomize=True, database=None, suppress_health_check=quiet
    )(given(draw=st.randoms(use_true_random=False))(test))


@pytest.fixture(scope="module")
def model() -> HardKumaModel:
    return build_two_selectors()


@pytest.fixture(scope="module")
def saved(model: HardKumaModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    model.save_pretrained(folder / "model")
    SearchIndex.build(model, SENTENCES).save(folder / "index")
    return folder


@pytest.fixture
def copy_of(saved: Path) -> Iterator[Callable[[str], Path]]:
    with tempfile.TemporaryDirectory() as root:

        def copied(name: str) -> Path:
            shutil.rmtree(Path(root) / name, ignore_errors=True)
            return Path(shutil.copytree(saved / name, Path(root) / name))

        yield copied


@drawn(60)
def test_texts(model: HardKumaModel, draw: Random) -> None:
    texts = [attacks.hostile_text(draw, 200) for _ in range(draw.randint(1, 4))]
    attacks.check_records(model, texts, draw.choice(model.config.names))


@drawn(200)
def test_configs(model: HardKumaModel, draw: Random) -> None:
    attacks.check_config(draw, model.config.to_dict() | {"dtype": "float32"})


@drawn(150)
def test_recipes(draw: Random) -> None:
    attacks.check_recipe(draw, RECIPE_KEYS)


@drawn(60)
def test_checkpoints(copy_of: Callable[[str], Path], draw: Random) -> None:
    folder = copy_of("model")
    attacks.check_checkpoint(draw, folder, folder.parent / "canary")


@drawn(60)
def test_indexes(copy_of: Callable[[str], Path], draw: Random) -> None:
    folder = copy_of("index")
    attacks.check_index(draw, folder, folder.parent / "canary")


@pytest.fixture(scope="module")
def handler(saved: Path) -> EndpointHandler:
    return EndpointHandler(str(saved / "model"))


@drawn(60)
def test_requests(handler: EndpointHandler, draw: Random) -> None:
    attacks.check_request(handler, attacks.hostile_request(draw))
