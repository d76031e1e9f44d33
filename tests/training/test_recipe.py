"""Recipes: defaults, files, types, ranges, names, errors."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from hardkuma.training.recipe import Recipe, find_recipe, load_recipe, recipe_keys

RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_recipes_that_come_along_are_valid(path: Path) -> None:
    recipe = load_recipe(path)
    recipe.check_model()
    assert recipe.output == f"runs/{path.stem}"


def test_round_trip(tmp_path: Path) -> None:
    recipe = load_recipe(overrides={"epochs": 7, "model.view": "input", "data": "a.txt"})
    recipe.save(tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe
    assert recipe.data == ["a.txt"]


def test_every_key_is_declared_once_with_its_help_and_takes_its_default() -> None:
    assert [key.name for key in recipe_keys()] == [field.name for field in dataclasses.fields(Recipe)]
    for key in recipe_keys():
        assert key.rule.help and key.wanted
        assert key.check(key.default) == key.default == getattr(Recipe(), key.name)


# A value of the wrong type for each type of key, and one out of each kind of range.
WRONG_TYPE: dict[Any, list[object]] = {
    bool: ["maybe", 1, None],
    int: ["x", 1.5, True, "3"],
    float: ["fast", True, float("nan"), float("inf"), [1.0]],
    str: [3, False, ["a"]],
    list[str]: [3, [1], {"a": 1}],
    dict[str, Any]: ["x", ["x"], 3],
}


@pytest.mark.parametrize("key", recipe_keys(), ids=[key.name for key in recipe_keys()])
def test_every_key_refuses_other_types_and_what_is_out_of_range(key: Any) -> None:
    wrong = list(WRONG_TYPE[key.kind])
    if key.rule.choices:
        wrong.append("another")
    if key.rule.at_least is not None:
        wrong.append(type(key.rule.at_least)(key.rule.at_least - 1))
    if key.rule.above is not None:
        wrong.append(key.rule.above)
    if key.rule.below is not None:
        wrong.append(float(key.rule.below))
    for value in wrong:
        if value is None and key.optional:
            continue
        with pytest.raises(ValueError, match=f"^{key.name} must be "):
            Recipe(**{key.name: value})
    if key.optional:
        assert getattr(Recipe(**{key.name: None}), key.name) is None


@pytest.mark.parametrize("name", [key.name for key in recipe_keys() if key.kind is float])
def test_floats_without_a_dot_are_numbers(name: str, tmp_path: Path) -> None:
    """YAML takes 1e-3 for text and 1 for no float."""
    (tmp_path / "recipe.yaml").write_text(f"{name}: 1e-3\n")
    value = getattr(load_recipe(tmp_path / "recipe.yaml"), name)
    assert value == 0.001 and isinstance(value, float)
    whole = getattr(Recipe(**{name: 0 if name == "warmup" else 1}), name)
    assert isinstance(whole, float)


def test_floats_of_the_model_without_a_dot_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("model: {temperature: 1e-1, lambda_s: [5e-1, 1e0], num_selectors: 2}\n")
    recipe = load_recipe(tmp_path / "recipe.yaml", {"model.lambda_tv": "1e-2"})
    recipe.check_model()
    assert recipe.model == {"temperature": 0.1, "lambda_s": [0.5, 1.0], "num_selectors": 2, "lambda_tv": 0.01}


BAD = [
    ({"epoch": 3}, "unknown recipe key 'epoch': did you mean 'epochs'"),
    ({"zzz": 3}, "unknown recipe key 'zzz': known keys"),
    ({3: 3}, "unknown recipe key 3: known keys"),
    ({"batch_size": 1}, "batch_size must be a whole number >= 2, got 1: the loss compares sentences"),
    ({"epochs": 0}, "epochs must be a whole number >= 1, got 0"),
    ({"learning_rate": -1.0}, "learning_rate must be a number > 0, got -1.0"),
    ({"batches": "sorted"}, "batches must be one of neighbours, random, length; got 'sorted'"),
    ({"warmup": 1.0}, r"warmup must be a number in \[0, 1\), got 1.0"),
    ({"data": []}, "data names no text"),
    ({"min_words": 9, "max_words": 3}, r"max_words \(3\) must be >= min_words \(9\)"),
    ({"model": "x"}, "model must be names, each with its value, got 'x'"),
    ({"learning_rate": "fast"}, "learning_rate must be a number > 0, got 'fast'"),
    ({"surface": "maybe"}, "surface must be true or false, got 'maybe'"),
    ({"split_sentences": "maybe"}, "split_sentences must be true or false, or null, got 'maybe'"),
    ({"weight_decay": -3}, "weight_decay must be a number >= 0, got -3.0"),
    ({"seed": "x"}, "seed must be a whole number >= 0, got 'x'"),
    ({"patience": -4}, "patience must be a whole number >= 0, got -4"),
    ({"cache": "always"}, "cache must be one of auto, never; got 'always': use auto, which keeps"),
    ({"mixed_precision": False}, "mixed_precision must be one of no, bf16, fp16; got False: put it in quotes"),
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=[str(values) for values, _ in BAD])
def test_bad_recipes(values: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ValueError, match=message):
        load_recipe(path)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"temprature": 0.3}, "unknown config name 'temprature': did you mean 'temperature'"),
        ({"temperature": -1}, "temperature must be > 0, got -1"),
    ],
)
def test_what_the_model_would_refuse_is_refused_early(model: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(model=model).check_model()


def test_a_recipe_is_a_path_or_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any folder: a file first, then those that come along."""
    monkeypatch.chdir(tmp_path)
    for name in ("specialise", "specialise.yaml", "recipes/specialise.yaml"):
        assert load_recipe(name).output == "runs/specialise"
    (tmp_path / "specialise.yaml").write_text("output: mine\n")
    assert load_recipe("specialise.yaml").output == "mine" and load_recipe("specialise").output == "runs/specialise"
    for name in ("elsewhere/specialise.yaml", "accelerate/fsdp.yaml", "specialize"):
        with pytest.raises(FileNotFoundError, match=f"no recipe at {name}; those that come along: .*, specialise"):
            find_recipe(name)


def test_broken_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no recipe at"):
        load_recipe(tmp_path / "absent.yaml")
    (tmp_path / "bad.yaml").write_text("a: [1")
    with pytest.raises(ValueError, match="not valid YAML"):
        load_recipe(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ValueError, match="must hold `key: value` lines"):
        load_recipe(tmp_path / "list.yaml")


def test_the_same_recipe_may_be_written_in_another_order(tmp_path: Path) -> None:
    recipe, saved = Recipe(epochs=3, data=["a.txt"]), tmp_path / "recipe.yaml"
    lines = yaml.safe_dump(dict(reversed(yaml.safe_load(recipe.to_yaml()).items())), sort_keys=False)
    assert lines != recipe.to_yaml()
    saved.write_text(lines)
    recipe.check_same(saved)
    with pytest.raises(ValueError, match="differs from this recipe"):
        Recipe(epochs=4, data=["a.txt"]).check_same(saved)
