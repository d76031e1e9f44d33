"""Recipes: defaults, files, types, ranges, selectors and their objectives, overrides, errors."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from hardkuma.training.objectives.settings import OBJECTIVES, read_objective
from hardkuma.training.recipe import MOVED, Recipe, TextRecipe, find_recipe, load_recipe, make_recipe
from hardkuma.training.settings import Setting, settings_of

RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes").glob("*.yaml"))
ONE = {"meaning": {"train": {"objective": "contrastive"}}}
PARTS = {
    "meaning": {"unit": "word", "train": {"objective": "removal"}},
    "part": {"unit": "part", "reads": ["input"], "train": {"objective": "parts", "count": 3}},
}


def recipe_of(**keys: Any) -> Recipe:
    return make_recipe({"selectors": ONE, **keys}, Recipe)


def test_recipes_that_come_along() -> None:
    names = {path.stem for path in RECIPES}
    of_contrast = {"contrastive", "as-written", "fourier", "attention", "dual"}
    assert names == {"default", "released", "language", "parts", "task"} | of_contrast


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_recipes_that_come_along_are_valid(path: Path) -> None:
    recipe = load_recipe(path)
    recipe.check_model()
    assert recipe.output == f"runs/{path.stem}"


def test_round_trip(tmp_path: Path) -> None:
    recipe = load_recipe("parts", {"train.steps": 7, "model.view": "input", "data": "a.txt"})
    recipe.save(tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe
    assert recipe.data == ["a.txt"] and recipe.selectors["part"]["train"]["steps"] == 7


ALL = [(Recipe, key) for key in settings_of(Recipe)] + [
    (cls, key) for cls in OBJECTIVES.values() for key in settings_of(cls)
]


def make(cls: type, **values: Any) -> Any:
    return recipe_of(**values) if cls is Recipe else cls(**values)


def test_every_key_is_declared_once_with_its_help_and_takes_its_default() -> None:
    assert [key.name for key in settings_of(Recipe)] == [field.name for field in dataclasses.fields(Recipe)]
    for cls, key in ALL:
        assert key.rule.help and key.wanted
        if key.name != "selectors":
            assert key.check(key.default) == key.default == getattr(make(cls), key.name)


# A value of the wrong type for each type of key, and one out of each range.
WRONG_TYPE: dict[Any, list[object]] = {
    bool: ["maybe", 1, None],
    int: ["x", 1.5, True, "3"],
    float: ["fast", True, float("nan"), float("inf"), [1.0]],
    str: [3, False, ["a"]],
    list[str]: [3, [1], {"a": 1}],
    dict[str, Any]: ["x", ["x"], 3],
}


@pytest.mark.parametrize(("cls", "key"), ALL, ids=[f"{cls.__name__}-{key.name}" for cls, key in ALL])
def test_every_key_refuses_other_types_and_what_is_out_of_range(cls: type, key: Setting) -> None:
    wrong = list(WRONG_TYPE[key.type])
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
            make(cls, **{key.name: value})
    if key.optional:
        assert getattr(make(cls, **{key.name: None}), key.name) is None


@pytest.mark.parametrize(("cls", "key"), [(cls, key) for cls, key in ALL if key.type is float])
def test_floats_without_a_dot_are_numbers(cls: type, key: Setting) -> None:
    """YAML takes 1e-3 for text and 1 for no float."""
    value = getattr(make(cls, **{key.name: "1e-3"}), key.name)
    assert value == 0.001 and isinstance(value, float)
    assert isinstance(getattr(make(cls, **{key.name: 0 if key.name == "warmup" else 1}), key.name), float)


def test_floats_of_the_model_and_of_selectors_without_a_dot_are_numbers(tmp_path: Path) -> None:
    text = "model: {temperature: 1e-1}\nselectors: {meaning: {lambda_s: 5e-1, train: {objective: contrastive}}}\n"
    (tmp_path / "recipe.yaml").write_text(text)
    recipe = load_recipe(tmp_path / "recipe.yaml", {"model.lambda_tv": "1e-2"})
    recipe.check_model()
    assert recipe.model == {"temperature": 0.1, "lambda_tv": 0.01} and recipe.selectors["meaning"]["lambda_s"] == 0.5


BAD = [
    ({"sead": 3}, "unknown recipe key 'sead': did you mean 'seed'"),
    ({"zzz": 3}, "unknown recipe key 'zzz': known: encoder, data"),
    ({3: 3}, "unknown recipe key 3: known"),
    ({"data": []}, "data names no text"),
    ({"min_words": 9, "max_words": 3}, r"max_words \(3\) must be >= min_words \(9\)"),
    ({"model": "x"}, "model must be names, each with its value, got 'x'"),
    ({"surface": "maybe"}, "surface must be true or false, got 'maybe'"),
    ({"split_sentences": "maybe"}, "split_sentences must be true or false, or null, got 'maybe'"),
    ({"seed": "x"}, "seed must be a whole number >= 0, got 'x'"),
    ({"cache": "always"}, "cache must be one of auto, never; got 'always'"),
    ({"selectors": {}}, "selectors names no selector"),
    ({"selectors": None}, "selectors names no selector"),
    ({"selectors": ["meaning"]}, r"selectors must be names, each with its value, got \['meaning'\]"),
    ({"selectors": {None: ONE["meaning"]}}, "selectors: a selector has no name"),
    ({"selectors": {"": ONE["meaning"]}}, "selectors: a selector has no name"),
    ({"selectors": {3: ONE["meaning"]}}, "the name of a selector must be text, got 3: put it in quotes"),
    ({"selectors": {"meaning": None}}, r"selectors.meaning must be {reads: ..., train: {objective: ...}}, got None"),
    ({"selectors": {"meaning": {"unit": "word"}}}, r"selectors.meaning.train must be {objective: NAME, ...}, with one of"),
    ({"selectors": {"meaning": {"train": "removal"}}}, "selectors.meaning.train must be {objective: NAME"),
    (
        {"selectors": {"meaning": {"train": {"objective": "removel"}}}},
        "selectors.meaning.train: objective must be one of contrastive, copy, form, parts, removal, task; got 'removel'",
    ),
    (
        {"selectors": {"meaning": {"train": {"objective": "removal", "epochs": 0}}}},
        "selectors.meaning.train: epochs must be a whole number >= 1, got 0",
    ),
    (
        {"selectors": {**PARTS, "other": PARTS["part"]}},
        "one selector can stand for parts, which divide all words: got part, other",
    ),
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=[str(values)[:60] for values, _ in BAD])
def test_bad_recipes(values: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"selectors": ONE, **values}, sort_keys=False))
    with pytest.raises(ValueError, match=message):
        load_recipe(path)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_key_that_an_objective_does_not_have_is_an_error_with_those_that_it_has(name: str) -> None:
    """Of 14 keys that did nothing under the default objective, `epochs` was one: 1 and 40 gave the same weights."""
    known = ", ".join(key.name for key in settings_of(OBJECTIVES[name]))
    with pytest.raises(ValueError) as error:
        read_objective("selectors.x.train", {"objective": name, "foo": 3})
    assert str(error.value) == f"selectors.x.train: {name} has no setting 'foo'; it has: {known}."


def test_no_objective_has_the_keys_of_another() -> None:
    """A setting that is read by nothing would be accepted silently: each belongs to the objectives that read it."""
    expected = {
        "copy": {"checkpoint"},
        "removal": {"sentences", "subsets", "epochs", "learning_rate"},
        "form": {"epochs", "learning_rate"},
        "parts": {"count", "steps", "learning_rate", "names"},
    }
    for name, keys in expected.items():
        assert {key.name for key in settings_of(OBJECTIVES[name])} == keys
        assert set(OBJECTIVES[name]().as_dict()) == keys


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"temprature": 0.3}, "unknown config name 'temprature': did you mean 'temperature'"),
        ({"temperature": -1}, "temperature must be > 0, got -1"),
        ({"selector_names": ["meaning"]}, "'selector_names' is a setting of 0.2.0.dev0: it is now the keys of `selectors`"),
        ({"target_rate": 0.3}, "it is now `selectors.NAME.target_rate`"),
    ],
)
def test_what_the_model_would_refuse_is_refused_early(model: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe_of(model=model).check_model()


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ({"raeds": ["state"]}, "selectors.meaning has no setting 'raeds'; known: reads, layer, unit"),
        ({"reads": ["pooled"]}, "'pooled' is a name of 0.2.0.dev0: it is now 'pool_share'"),
        ({"target_rate": 30}, r"selectors.meaning: target_rate must be in \(0, 1\), got 30"),
    ],
)
def test_what_a_selector_would_refuse_is_refused_early(selector: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe_of(selectors={"meaning": {**selector, **ONE["meaning"]}}).check_model()


def test_parts_need_a_selector_whose_words_they_divide() -> None:
    with pytest.raises(ValueError, match="selectors of unit 'part' divide the words of `meaning`"):
        recipe_of(selectors={"part": PARTS["part"]}).check_model()


OLD = """
model:
  selector_names: [meaning, entities]
objective: removal
removal_sentences: 6000
entities_epochs: 2
"""


@pytest.mark.parametrize("key", MOVED)
def test_a_key_of_an_earlier_recipe_is_told_where_it_is_now(key: str) -> None:
    with pytest.raises(ValueError, match=f"^unknown recipe key '{key}': it is now .*(train|copy)"):
        recipe_of(**{key: 3})


def test_an_earlier_recipe_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text(OLD)
    with pytest.raises(ValueError) as error:
        load_recipe(tmp_path / "old.yaml")
    assert str(error.value) == "unknown recipe key 'objective': it is now `selectors.NAME.train.objective`."


def test_a_key_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("selectors:\n  meaning: {train: {objective: removal}}\n  meaning: {train: {objective: form}}\n")
    with pytest.raises(ValueError, match=r"twice.yaml: 'meaning' stands twice, the second time in line 3\."):
        load_recipe(path)
    path.write_text("a: &a {x: 1}\nb: {<<: *a, x: 2}\n")  # what a merge brings may be replaced
    with pytest.raises(ValueError, match="unknown recipe key 'a'"):
        load_recipe(path)


def test_contrastive_selectors_share_one_block() -> None:
    two = {"a": {"train": {"objective": "contrastive"}}, "b": {"train": {"objective": "contrastive", "epochs": 9}}}
    with pytest.raises(ValueError, match="trained together, with one `train` block: epochs is 4 for a and 9 for b"):
        recipe_of(selectors=two)
    two["b"]["train"]["epochs"] = 4  # which is the default
    recipe = recipe_of(selectors={**two, "c": {"unit": "word", "train": {"objective": "removal"}}})
    assert [(settings.NAME, names) for settings, names in recipe.groups()] == [
        ("contrastive", ["a", "b"]),
        ("removal", ["c"]),
    ]


def test_objectives_are_fitted_in_the_order_of_what_they_need() -> None:
    objectives = {"p": "parts", "f": "form", "r": "removal", "c": "contrastive", "k": "copy"}
    selectors = {name: {"unit": "word", "train": {"objective": objective}} for name, objective in objectives.items()}
    order = [settings.NAME for settings, _ in recipe_of(selectors=selectors).groups()]
    assert order == ["copy", "contrastive", "removal", "form", "parts"]


def test_one_selector_stands_for_all_parts() -> None:
    settings = recipe_of(selectors=PARTS).selector_settings()
    assert list(settings) == ["meaning", "part_1", "part_2", "part_3"] and settings["part_3"]["reads"] == ["input"]
    assert settings["part_1"] is not settings["part_2"] and "train" not in settings["part_1"]

    def changed(**values: Any) -> Recipe:
        train = {**PARTS["part"]["train"], **values.pop("train", {})}
        return recipe_of(selectors={**PARTS, "part": {**PARTS["part"], **values, "train": train}})

    rates = changed(target_rate=[0.1, 0.2, 0.3]).selector_settings()
    assert [rates[f"part_{number}"]["target_rate"] for number in (1, 2, 3)] == [0.1, 0.2, 0.3]
    assert list(changed(train={"names": ["a", "b", "c"]}).selector_settings()) == ["meaning", "a", "b", "c"]
    for values, message in (
        ({"target_rate": [0.1, 0.2]}, r"selectors.part.target_rate has 2 values for count 3: \[0.1, 0.2\]"),
        ({"train": {"names": ["a"]}}, "selectors.part.train.names has 1 values for count 3"),
        ({"train": {"names": ["a", "b", "meaning"]}}, "two selectors would be called 'meaning'"),
        ({"train": {"names": ["a", "b", "b"]}}, "two selectors would be called 'b'"),
    ):
        with pytest.raises(ValueError, match=message):
            changed(**values)


def test_overrides() -> None:
    recipe = load_recipe(
        "default",
        {
            "seed": 5,
            "model.view": "hidden",
            "selectors.meaning.hidden_size": 16,
            "selectors.meaning.train.subsets": 4,
            "train.epochs": 3,
            "train.sentences": 7,
        },
    )
    meaning, entities = recipe.selectors["meaning"], recipe.selectors["entities"]
    assert (recipe.seed, recipe.model["view"], meaning["hidden_size"]) == (5, "hidden", 16)
    assert meaning["train"] == {
        "objective": "removal",
        "sentences": 7,
        "subsets": 4,
        "epochs": 3,
        "learning_rate": 0.001,
    }
    assert entities["train"] == {"objective": "form", "epochs": 3, "learning_rate": 0.001}


def test_overrides_of_whole_selectors() -> None:
    assert list(load_recipe("default", {"selectors.entities": None}).selectors) == ["meaning"]
    added = load_recipe("default", {"selectors.other": {"train": {"objective": "contrastive"}}})
    assert list(added.selectors) == ["meaning", "entities", "other"]
    replaced = load_recipe("parts", {"selectors.meaning.train.objective": "removal"}).selectors["meaning"]["train"]
    assert replaced["objective"] == "removal" and "checkpoint" not in replaced, "settings of the old objective stay behind"
    block = load_recipe("parts", {"selectors.meaning.train": {"objective": "removal", "epochs": 2}}).selectors["meaning"]
    assert block["train"]["epochs"] == 2 and block["layer"] == 0.66


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train.epoch": 3}, "no objective of this recipe has a setting 'epoch': did you mean 'epochs'?"),
        ({"train.batch_size": 3}, "no objective of this recipe has a setting 'batch_size': known: sentences, subsets"),
        ({"train.objective": "form"}, "no objective of this recipe has a setting 'objective'"),
        ({"selectors.meanin.layer": 3}, "this recipe has no selector 'meanin': did you mean 'meaning'?"),
        ({"selectors.zzz": None}, "this recipe has no selector 'zzz': known: meaning, entities."),
        ({"selectors.meaning.train.epoch": 3}, "selectors.meaning.train: removal has no setting 'epoch'; it has: sent"),
        ({"other.thing": 3}, "unknown recipe key 'other.thing'"),
        ({"trian.epochs": 3}, "unknown recipe key 'trian.epochs': did you mean 'train'"),
    ],
)
def test_overrides_that_make_no_sense(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        load_recipe("default", overrides)


def test_a_recipe_is_a_path_or_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any folder: a file first, then those that come along."""
    monkeypatch.chdir(tmp_path)
    for name in ("parts", "parts.yaml", "recipes/parts.yaml"):
        assert load_recipe(name).output == "runs/parts"
    (tmp_path / "parts.yaml").write_text(yaml.safe_dump({"output": "mine", "selectors": ONE}))
    assert load_recipe("parts.yaml").output == "mine" and load_recipe("parts").output == "runs/parts"
    for name in ("elsewhere/parts.yaml", "accelerate/one_gpu.yaml", "party"):
        with pytest.raises(FileNotFoundError, match=f"no recipe at {name}; those that come along: .*, parts"):
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
    recipe, saved = recipe_of(seed=3, data=["a.txt"]), tmp_path / "recipe.yaml"
    lines = yaml.safe_dump(dict(reversed(yaml.safe_load(recipe.to_yaml()).items())), sort_keys=False)
    assert lines != recipe.to_yaml()
    saved.write_text(lines)
    recipe.check_same(saved)
    with pytest.raises(ValueError, match="differs from this recipe"):
        recipe_of(seed=4, data=["a.txt"]).check_same(saved)
    assert not recipe.is_saved_as(tmp_path / "absent.yaml")


def test_text_alone_needs_no_selectors() -> None:
    assert TextRecipe(max_sentences=3).data == ["bundled"]
