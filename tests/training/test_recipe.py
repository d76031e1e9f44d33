"""Recipes: defaults, files, overrides, errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hardkuma import HardKumaConfig
from hardkuma.training.recipe import Recipe, load_recipe, parse_overrides

RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_recipes_that_come_along_are_valid(path: Path) -> None:
    recipe = load_recipe(path)
    HardKumaConfig(**recipe.model)
    assert recipe.output == f"runs/{path.stem}"


def test_round_trip(tmp_path: Path) -> None:
    recipe = load_recipe(overrides={"epochs": 7, "model.view": "input", "data": "a.txt"})
    recipe.save(tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe
    assert recipe.data == ["a.txt"]


def test_overrides_are_read_as_yaml() -> None:
    words = ["--learning_rate", "1e-4", "--model.lambda_s=[0.1, 0.2]", "--max-steps", "5", "--dev", "null"]
    assert parse_overrides(words) == {"learning_rate": 1e-4, "model.lambda_s": [0.1, 0.2], "max_steps": 5, "dev": None}


BAD = [
    ({"epoch": 3}, "unknown recipe key 'epoch': did you mean 'epochs'"),
    ({"zzz": 3}, "unknown recipe key 'zzz': known keys"),
    ({"batch_size": 1}, "batch_size must be >= 2, got 1"),
    ({"epochs": 0}, "epochs must be a whole number >= 1, got 0"),
    ({"learning_rate": -1.0}, "learning_rate must be > 0, got -1.0"),
    ({"batches": "sorted"}, "batches must be one of neighbours, random, length; got 'sorted'"),
    ({"warmup": 1.0}, r"warmup must be a fraction in \[0, 1\), got 1.0"),
    ({"data": []}, "data names no text"),
    ({"min_words": 9, "max_words": 3}, r"max_words \(3\) must be >= min_words \(9\)"),
    ({"model": "x"}, "model must hold fields"),
    ({"learning_rate": "fast"}, "learning_rate must be a number, got 'fast'"),
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=[str(values) for values, _ in BAD])
def test_bad_recipes(values: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ValueError, match=message):
        load_recipe(path) if "model" not in values else Recipe(**values)


def test_broken_files_and_arguments(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no recipe at"):
        load_recipe(tmp_path / "absent.yaml")
    (tmp_path / "bad.yaml").write_text("a: [1")
    with pytest.raises(ValueError, match="not valid YAML"):
        load_recipe(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ValueError, match="must hold `key: value` lines"):
        load_recipe(tmp_path / "list.yaml")
    with pytest.raises(ValueError, match="--epochs has no value"):
        parse_overrides(["--epochs"])
    with pytest.raises(ValueError, match="expected --key value, got 'epochs'"):
        parse_overrides(["epochs"])
