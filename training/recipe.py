"""A recipe: everything that decides a training run, in one YAML file; each key is declared once, with type, range and help.

Top level: the text, the encoder, and what belongs to the whole run. `model:` holds fields of HardKumaConfig; `selectors:`
holds, by name, the fields of each SelectorConfig and, under `train:`, an objective with its settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from ..common.files import write_atomically
from ..common.text import INPUT_FORMATS, MINILM
from .objectives.settings import (
    OBJECTIVES,
    ContrastiveSettings,
    ObjectiveSettings,
    PartsSettings,
    TaskSettings,
    read_objective,
)
from .settings import Settings, setting, settings_of, suggest

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
CACHES = ("auto", "never")
STORE_TYPES = ("float16", "bfloat16", "float32")

_OF_OBJECTIVE = "`{0}` of an objective: selectors.NAME.train.{0} in a recipe, --train.{0} on the command line"
# Where the keys of 0.2.0.dev0 are now.
MOVED = {
    "objective": "`selectors.NAME.train.objective`",
    "meaning": "`selectors.meaning.train: {objective: copy, checkpoint: NAME}`",
    "kinds": _OF_OBJECTIVE.format("count") + ", objective parts",
    "selector_names": _OF_OBJECTIVE.format("names") + ", objective parts",
    **{f"removal_{key.name}": _OF_OBJECTIVE.format(key.name) + ", removal" for key in settings_of(OBJECTIVES["removal"])},
    **{f"entities_{key.name}": _OF_OBJECTIVE.format(key.name) + ", form" for key in settings_of(OBJECTIVES["form"])},
    **{f"kinds_{name}": _OF_OBJECTIVE.format(name) + ", parts" for name in ("steps", "learning_rate")},
    **{key.name: _OF_OBJECTIVE.format(key.name) for key in settings_of(ContrastiveSettings)},
}


class BaseRecipe(Settings):
    """A dataclass of `setting`s that is read from a file and written whole."""

    FOLDER = RECIPES  # where those that come along are

    def to_yaml(self) -> str:
        """The whole recipe, every default filled in."""
        return yaml.safe_dump(self.as_dict(), sort_keys=False, allow_unicode=True)

    def save(self, path: str | Path) -> None:
        """Write the recipe, under a temporary name first."""
        write_atomically(path, self.to_yaml())

    def is_saved_as(self, path: Path) -> bool:
        """Whether this file holds the same recipe; the order of its keys is free."""
        return path.is_file() and read_values(path, type(self)) == yaml.safe_load(self.to_yaml())

    def check_same(self, saved: Path) -> None:
        """Raise ValueError where a run that is to go on was started by another recipe."""
        if not self.is_saved_as(saved):
            raise ValueError(f"{saved} differs from this recipe: resume with the same settings, or use another --output.")


@dataclass
class TextRecipe(BaseRecipe):
    """What every recipe says: which encoder, which text, and the seed."""

    # RUF009: `setting` makes a field, of which every recipe gets its own copy
    encoder: str = setting(MINILM, "folder, Hub id, or the embedded MiniLM")
    data: list[str] = setting(["bundled"], "files, hf:DATASET ids, or bundled, the corpus that comes along")  # noqa: RUF009
    format: str | None = setting(None, "of the files; null goes by the suffix", choices=INPUT_FORMATS)
    column: str | None = setting(None, "text column of JSON lines and CSV files")
    split_sentences: bool | None = setting(
        None, "cut paragraphs into sentences; null does so where the format holds paragraphs"
    )
    min_words: int = setting(4, "leave out shorter texts: they carry too little to tell apart", at_least=1)
    max_words: int = setting(64, "leave out longer texts", at_least=1)
    max_sentences: int | None = setting(None, "use only so many, a random choice", at_least=1)
    seed: int = setting(0, "of everything random", at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_words < self.min_words:
            raise ValueError(f"max_words ({self.max_words}) must be >= min_words ({self.min_words}).")
        if not self.data:
            raise ValueError("data names no text; use ['bundled'] for the corpus that comes with the package.")


@dataclass
class Recipe(TextRecipe):
    """All settings of a run.

    >>> recipe = Recipe(selectors={"meaning": {"unit": "word", "train": {"objective": "removal", "epochs": 2}}})
    >>> recipe.selectors["meaning"]["train"]["subsets"]
    2
    >>> Recipe(selectors={"meaning": {"unit": "word"}})
    Traceback (most recent call last):
    ValueError: selectors.meaning.train must be {objective: NAME, ...}, with one of contrastive, copy, form, parts, \
removal, task; got None.
    """

    label: str | None = setting(None, "column of classes, for objective task: the one thing that labels are used for")
    language: str | None = setting(None, "code of the text's language, for the card; null says en where it is English")
    # What is trained, and how
    model: dict[str, Any] = setting({}, "fields of HardKumaConfig, together; --model.NAME sets one of them")  # noqa: RUF009
    selectors: dict[str, Any] = setting({}, "selectors by name; --selectors.NAME.KEY sets one key of one of them")  # noqa: RUF009
    # What it is watched by
    held_out: int = setting(256, "sentences kept back for the label-free criterion, at most a fifth of all", at_least=1)
    dev: str | None = setting(None, "CoNLL file, for reporting only: nothing is chosen by it")
    # The rest
    surface: bool = setting(True, "estimate the surface view's log-odds on the training text at the end")
    cache: str = setting("auto", "auto keeps the states of a frozen encoder on disk", choices=CACHES)
    cache_type: str = setting("float16", "element type of the kept states", choices=STORE_TYPES)
    trackers: list[str] = setting([], "accelerate's trackers: tensorboard, wandb, trackio, ...")  # noqa: RUF009
    output: str = setting("runs/default", "folder for the result, its log and its checkpoints")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.selectors:
            raise ValueError("selectors names no selector; give {NAME: {reads: ..., train: {objective: ...}}}.")
        for name, values in self.selectors.items():
            _check_selector(name, values)
        # With every setting of its objective, so that a saved recipe says all.
        objectives = self.objectives
        self.selectors = {
            name: {**values, "train": {"objective": objectives[name].NAME, **objectives[name].as_dict()}}
            for name, values in self.selectors.items()
        }
        _check_contrastive(objectives)
        _check_task(self.label, self.column, objectives)
        _check_parts(self, objectives)

    @property
    def objectives(self) -> dict[str, ObjectiveSettings]:
        """How each selector is trained, by its name in the recipe."""
        return {
            name: read_objective(f"selectors.{name}.train", values.get("train")) for name, values in self.selectors.items()
        }

    def selector_settings(self) -> dict[str, dict[str, Any]]:
        """Fields of every SelectorConfig, by name. A selector whose objective is `parts` becomes as many as its `count`,
        and a list as its target rate gives each its own.

        >>> part = {"unit": "part", "target_rate": [0.1, 0.2], "train": {"objective": "parts", "count": 2}}
        >>> meaning = {"unit": "word", "train": {"objective": "removal"}}
        >>> recipe = Recipe(selectors={"meaning": meaning, "part": part})
        >>> {name: values.get("target_rate") for name, values in recipe.selector_settings().items()}
        {'meaning': None, 'part_1': 0.1, 'part_2': 0.2}
        """
        settings: dict[str, dict[str, Any]] = {}
        for name, objective in self.objectives.items():
            names = expand_name(name, objective)
            values = {key: value for key, value in self.selectors[name].items() if key != "train"}
            rates = values.get("target_rate")
            for number, each in enumerate(names):
                settings[each] = deepcopy(values)
                if isinstance(objective, PartsSettings) and isinstance(rates, list):
                    settings[each]["target_rate"] = rates[number]
        return settings

    def config_settings(self) -> dict[str, Any]:
        """Keywords of HardKumaConfig."""
        return {**self.model, "selectors": self.selector_settings()}

    def check_model(self) -> None:
        """Raise ValueError where `model` or a selector has a name or a value that HardKumaConfig refuses.

        >>> meaning = {"train": {"objective": "contrastive"}}
        >>> Recipe(selectors={"meaning": meaning}, model={"temprature": 0.3}).check_model()
        Traceback (most recent call last):
        ValueError: unknown config name 'temprature': did you mean 'temperature'?
        """
        from ..configuration_hardkuma import HardKumaConfig  # takes seconds, which `--help` should not

        if "language" in self.model:
            raise ValueError("model.language is learned from the text: leave it out. `language` is the code on the card.")
        HardKumaConfig(**self.config_settings())

    def groups(self) -> list[tuple[ObjectiveSettings, list[str]]]:
        """Objectives with the names of the selectors that each trains, in the order of fitting. Those whose objective is
        contrastive are trained together.

        >>> recipe = load_recipe("default")
        >>> [(objective.NAME, names) for objective, names in recipe.groups()]
        [('removal', ['meaning']), ('form', ['entities'])]
        """
        groups: list[tuple[ObjectiveSettings, list[str]]] = []
        for cls in OBJECTIVES.values():
            chosen = {name: settings for name, settings in self.objectives.items() if type(settings) is cls}
            if cls is ContrastiveSettings and chosen:
                groups.append((next(iter(chosen.values())), list(chosen)))
            else:
                groups += [(settings, expand_name(name, settings)) for name, settings in chosen.items()]
        return groups


def expand_name(name: str, objective: ObjectiveSettings) -> list[str]:
    """The selectors that one of a recipe stands for: itself, but for `parts`.

    >>> expand_name("part", PartsSettings(count=2)), expand_name("part", PartsSettings(count=2, names=["nouns", "verbs"]))
    (['part_1', 'part_2'], ['nouns', 'verbs'])
    """
    if not isinstance(objective, PartsSettings):
        return [name]
    return objective.names or [f"{name}_{number}" for number in range(1, objective.count + 1)]


def _check_selector(name: Any, values: Any) -> None:
    if name is None or name == "":
        raise ValueError(f"selectors: a selector has no name; give {{NAME: {values!r}}}.")
    if not isinstance(name, str):
        raise ValueError(f"selectors: the name of a selector must be text, got {name!r}: put it in quotes.")
    if not isinstance(values, Mapping):
        raise ValueError(f"selectors.{name} must be {{reads: ..., train: {{objective: ...}}}}, got {values!r}.")


def _check_contrastive(objectives: Mapping[str, ObjectiveSettings]) -> None:
    together = {name: value for name, value in objectives.items() if isinstance(value, ContrastiveSettings)}
    first = next(iter(together), "")
    for name, settings in together.items():
        for key, value in settings.as_dict().items():
            if value != getattr(together[first], key):
                raise ValueError(
                    f"selectors whose objective is contrastive are trained together, with one `train` block: {key} is "
                    f"{getattr(together[first], key)!r} for {first} and {value!r} for {name}."
                )


def _check_task(label: str | None, column: str | None, objectives: Mapping[str, ObjectiveSettings]) -> None:
    tasks = [name for name, value in objectives.items() if isinstance(value, TaskSettings)]
    if tasks and label is None:
        raise ValueError(f"selectors.{tasks[0]}: objective task needs classes: name their column, --label COLUMN.")
    if label is not None and not tasks:
        raise ValueError(f"label {label!r} is for objective task alone, which no selector has: leave it out.")
    if label is not None and label == column:
        raise ValueError(f"label and column are both {label!r}: one is the column of classes, the other that of texts.")
    if len(tasks) > 1:
        raise ValueError(f"a checkpoint has one classifier: objective task can train one selector, got {', '.join(tasks)}.")


def _check_parts(recipe: Recipe, objectives: Mapping[str, ObjectiveSettings]) -> None:
    parts = {name: value for name, value in objectives.items() if isinstance(value, PartsSettings)}
    if len(parts) > 1:
        raise ValueError(f"one selector can stand for parts, which divide all words: got {', '.join(parts)}.")
    for name, settings in parts.items():
        rates = recipe.selectors[name].get("target_rate")
        for key, values in (("train.names", settings.names), ("target_rate", rates)):
            if isinstance(values, list) and len(values) != settings.count:
                raise ValueError(f"selectors.{name}.{key} has {len(values)} values for count {settings.count}: {values}.")
        names = [each for other in objectives for each in expand_name(other, objectives[other])]
        twice = sorted({each for each in names if names.count(each) > 1})
        if twice:
            raise ValueError(f"selectors.{name}.train.names: two selectors would be called {twice[0]!r}.")


AnyRecipe = TypeVar("AnyRecipe", bound=BaseRecipe)


def find_recipe(name: str | Path, folder: Path = RECIPES) -> Path:
    """The file of a recipe: a path, or the name of one that comes along, as `default`, `default.yaml` or
    `recipes/default.yaml`.

    >>> find_recipe("default").name, find_recipe("recipes/default.yaml").name
    ('default.yaml', 'default.yaml')
    """
    path = Path(name)
    if path.is_file():
        return path
    bundled = {file.stem: file for file in sorted(folder.glob("*.yaml"))}
    stem = path.name.removesuffix(".yaml")
    if stem in bundled and path.parent in (Path(), folder.relative_to(RECIPES.parent)):
        return bundled[stem]
    raise FileNotFoundError(f"no recipe at {name}; those that come along: {', '.join(bundled)}.")


def load_recipe(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe from a YAML file (see `find_recipe`) with overrides, by the names of the command line.

    >>> recipe = load_recipe("default", {"model.view": "input", "selectors.entities": None, "train.epochs": 2})
    >>> recipe.model["view"], list(recipe.selectors), recipe.selectors["meaning"]["train"]["epochs"]
    ('input', ['meaning'], 2)
    """
    values = read_values(path, Recipe)
    for key, value in (overrides or {}).items():
        apply_override(values, key, value)
    return make_recipe(values, Recipe)


def apply_override(values: dict[str, Any], key: str, value: Any) -> None:
    """Set one key of a recipe's values, in place:

    NAME                      a key at the top level
    model.NAME                a field of the model
    selectors.NAME            a whole selector; None leaves it out
    selectors.NAME.KEY        a field of a selector
    selectors.NAME.train.KEY  a setting of its objective; another `objective` leaves the settings of the old one behind
    train.KEY                 a setting of every objective that has it
    """
    first, *rest = key.split(".")
    if not rest:
        values[key] = value
    elif first == "model":
        values["model"] = {**(values.get("model") or {}), ".".join(rest): value}
    elif first == "train":
        _set_everywhere(values, ".".join(rest), value)
    elif first == "selectors":
        _set_of_selector(values, rest, value)
    else:
        check_key(key)


def _set_of_selector(values: dict[str, Any], path: list[str], value: Any) -> None:
    selectors = values["selectors"] = dict(values.get("selectors") or {})
    name, *rest = path
    if name not in selectors and (rest or value is None):
        raise ValueError(f"this recipe has no selector {name!r}: {suggest(name, map(str, selectors))}")
    if not rest and value is None:
        del selectors[name]
    elif not rest:
        selectors[name] = value
    elif rest[0] == "train" and len(rest) > 1:
        train, setting_name = dict(selectors[name].get("train") or {}), ".".join(rest[1:])
        if setting_name == "objective" and train.get("objective") != value:
            train = {}
        selectors[name] = {**selectors[name], "train": {**train, setting_name: value}}
    else:
        selectors[name] = {**selectors[name], ".".join(rest): value}


def _set_everywhere(values: dict[str, Any], key: str, value: Any) -> None:
    changed, known = False, []
    for name, settings in _trained(values):
        names = [one.name for one in settings_of(settings)]
        known += [other for other in names if other not in known]
        if key in names:
            _set_of_selector(values, [name, "train", key], value)
            changed = True
    if not changed:
        raise ValueError(f"no objective of this recipe has a setting {key!r}: {suggest(key, known)}")


def _trained(values: Mapping[str, Any]) -> Iterator[tuple[str, type[ObjectiveSettings]]]:
    """Selectors of a recipe's unchecked values, with the type of their objectives' settings."""
    for name, selector in (values.get("selectors") or {}).items():
        train = selector.get("train") if isinstance(selector, Mapping) else None
        objective = train.get("objective") if isinstance(train, Mapping) else None
        if isinstance(objective, str) and objective in OBJECTIVES:
            yield name, OBJECTIVES[objective]


class _UniqueKeys(yaml.SafeLoader):
    """A key that stands twice in a mapping is an error, where YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise ValueError(f"{key!r} stands twice, the second time in line {key_node.start_mark.line + 1}")
            seen.append(key)
        return super().construct_mapping(node, deep)


def read_values(path: str | Path, cls: type[BaseRecipe]) -> dict[str, Any]:
    """What a recipe's file says, unchecked."""
    path = find_recipe(path, cls.FOLDER)
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}.") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold `key: value` lines, got {type(values).__name__}.")
    return values


def make_recipe(values: Mapping[str, Any], cls: type[AnyRecipe]) -> AnyRecipe:
    """A recipe of these values; an unknown key is an error."""
    for key in values:
        check_key(key, cls)
    return cls(**{key: {} if value is None and key in ("model", "selectors") else value for key, value in values.items()})


def check_key(name: Any, cls: type[BaseRecipe] = Recipe) -> None:
    """Raise ValueError, with what was probably meant or where it is now, for a key that no recipe has.

    >>> check_key("epochs")
    Traceback (most recent call last):
    ValueError: unknown recipe key 'epochs': it is now `epochs` of an objective: selectors.NAME.train.epochs in a recipe, \
--train.epochs on the command line.
    """
    known = [key.name for key in settings_of(cls)]
    if name in known:
        return
    if cls is Recipe and name in MOVED:
        raise ValueError(f"unknown recipe key {name!r}: it is now {MOVED[name]}.")
    first, *rest = str(name).split(".")
    if cls is Recipe and rest:  # such as trian.epochs
        raise ValueError(f"unknown recipe key {name!r}: {suggest(first, ['model', 'selectors', 'train'])}")
    raise ValueError(f"unknown recipe key {name!r}: {suggest(name, known)}")
