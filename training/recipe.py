"""A recipe: everything that decides a training run, in one flat file; each key declared once, with type, range and help."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from ..common.files import write_atomically
from ..common.formats import INPUT_FORMATS
from ..common.text import MINILM
from .settings import Setting, setting, settings_of

RECIPES = Path(__file__).resolve().parents[1] / "recipes"

BATCHES = ("neighbours", "random", "length")
OBJECTIVES = ("contrastive", "removal")
SCHEDULES = ("cosine", "linear", "constant")
PRECISIONS = ("no", "bf16", "fp16")
CACHES = ("auto", "never")
# The selector of a recipe that stands for several, which part.
KIND = "kind"
STORE_TYPES = ("float16", "bfloat16", "float32")


class BaseRecipe:
    """A dataclass of `setting`s: checked when made, written whole."""

    FOLDER = RECIPES  # where those that come along are

    def __post_init__(self) -> None:
        for key in recipe_keys(type(self)):
            setattr(self, key.name, key.check(getattr(self, key.name)))

    def to_yaml(self) -> str:
        """The whole recipe, every default filled in."""
        values = {key.name: getattr(self, key.name) for key in recipe_keys(type(self))}
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)

    def save(self, path: str | Path) -> None:
        """Write the recipe, under a temporary name first."""
        write_atomically(path, self.to_yaml())

    def check_same(self, saved: Path) -> None:
        """Raise ValueError where a run that is to go on was started by another recipe; the order of keys is free."""
        if read_values(saved, type(self)) != yaml.safe_load(self.to_yaml()):
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
    """All settings of a run. `model` holds fields of HardKumaConfig; everything else is here.

    >>> Recipe(epochs=2, learning_rate="1e-4").learning_rate
    0.0001
    >>> Recipe(patience=-4)
    Traceback (most recent call last):
    ValueError: patience must be a whole number >= 0, got -4.
    """

    # What is trained
    model: dict[str, Any] = setting({}, "fields of HardKumaConfig, together; --model.NAME sets one of them")  # noqa: RUF009
    # What it is watched by
    held_out: int = setting(256, "sentences kept back for the label-free criterion, at most a fifth of all", at_least=1)
    dev: str | None = setting(None, "CoNLL file, for reporting only: nothing is chosen by it")
    # How batches are made
    batches: str = setting("neighbours", "which sentences meet in a batch", choices=BATCHES)
    batch_size: int = setting(
        64, "sentences of the global batch, over all processes", at_least=2, reason="the loss compares sentences"
    )
    micro_batch: int | None = setting(None, "sentences per forward pass; the loss still sees the whole batch", at_least=1)
    # How long and how fast
    epochs: int = setting(4, "passes over the text", at_least=1)
    max_steps: int | None = setting(None, "stop after so many steps, if epochs would take more", at_least=1)
    learning_rate: float = setting(1e-3, "at its highest, after warm-up", above=0)
    weight_decay: float = setting(0.01, "of AdamW", at_least=0)
    warmup: float = setting(0.1, "fraction of all steps in which the learning rate rises", at_least=0, below=1)
    schedule: str = setting("cosine", "how the learning rate falls after warm-up", choices=SCHEDULES)
    clip: float = setting(1.0, "largest norm of the gradient", above=0)
    mixed_precision: str = setting("no", "of the encoder; gates and losses stay in fp32", choices=PRECISIONS)
    # When to stop, and what to keep
    evaluate_every: int = setting(25, "steps between evaluations on the held-out text", at_least=1)
    patience: int = setting(0, "stop after so many evaluations without a better one; 0 never stops early", at_least=0)
    checkpoint_every: int = setting(50, "steps between resumable checkpoints", at_least=1)
    keep: int = setting(2, "how many of those to keep", at_least=1)
    # Speed
    cache: str = setting(
        "auto",
        "keep the frozen encoder's states on disk",
        choices=CACHES,
        retired={"always": "use auto, which keeps the states of every frozen encoder"},
    )
    cache_type: str = setting("float16", "element type of the kept states", choices=STORE_TYPES)
    # How "meaning" is trained
    objective: str = setting("contrastive", "what trains the gates; see training/removal.py", choices=OBJECTIVES)
    meaning: str | None = setting(None, "a checkpoint that has it on this encoder: it is taken, not trained; or `released`")
    removal_sentences: int = setting(8000, "sentences of which subsets are encoded, a random choice", at_least=1)
    removal_subsets: int = setting(2, "subsets of each of them, two and two of one size", at_least=2)
    removal_epochs: int = setting(10, "passes over all subsets", at_least=1)
    removal_learning_rate: float = setting(1e-3, "at the beginning of this fit", above=0)
    # How "entities" is trained, where the model has a selector of that name; see training/form.py
    entities_epochs: int = setting(1, "passes over all text; 0 leaves it as the contrastive objective made it", at_least=0)
    entities_learning_rate: float = setting(1e-3, "at its beginning", above=0)
    # How selectors that part are trained, where the model has one that is called `kind`; see training/specialise.py
    kinds: int = setting(10, "how many selectors `kind` stands for", at_least=2, reason="one has nothing to part from")
    kinds_steps: int = setting(800, "steps of their fit", at_least=1)
    kinds_learning_rate: float = setting(1e-3, "at the beginning of this fit", above=0)
    selector_names: list[str] | None = setting(None, "what they are called; by default after their typical words")  # noqa: RUF009
    # The rest
    surface: bool = setting(True, "estimate the surface view's log-odds on the training text at the end")
    trackers: list[str] = setting([], "accelerate's trackers: tensorboard, wandb, trackio, ...")  # noqa: RUF009
    log_every: int = setting(5, "steps between entries of the log", at_least=1)
    output: str = setting("runs/default", "folder for the result, its log and its checkpoints")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.meaning is not None and self.objective != "removal":
            raise ValueError(
                f"meaning: {self.meaning!r} is taken instead of being trained by removal, and objective is "
                f"{self.objective!r}; use objective: removal, or leave meaning out."
            )

    def check_model(self) -> None:
        """Raise ValueError where `model` has a name or a value that HardKumaConfig refuses.

        >>> Recipe(model={"temprature": 0.3}).check_model()
        Traceback (most recent call last):
        ValueError: unknown config name 'temprature': did you mean 'temperature'?
        """
        from ..configuration_hardkuma import ENTITIES, HardKumaConfig  # takes seconds, which `--help` should not

        config = HardKumaConfig(**self.model_settings())
        if self.objective == "removal" and ENTITIES in config.names and not self.entities_epochs:
            raise ValueError(
                f"entities_epochs: 0 would leave {ENTITIES!r} at random, since objective: removal trains 'meaning' alone; "
                "give 1 or more, or have no such selector (model.selector_names: [meaning])."
            )

    def model_settings(self) -> dict[str, Any]:
        """`model`, with as many selectors as there are kinds where it has one that is called `kind`. A list of target
        rates gives each kind its own. What is set for a selector that is not among `selector_names` does not count.

        >>> model = {"selector_names": ["meaning", "kind"], "target_rate": {"meaning": 0.3, "kind": [0.1, 0.2]}}
        >>> Recipe(model=model, kinds=2).model_settings()["target_rate"]
        {'meaning': 0.3, 'kind_1': 0.1, 'kind_2': 0.2}
        """
        names = self.model.get("selector_names") or []
        if KIND not in names:
            if self.selector_names is not None:
                raise ValueError(f"selector_names names what {KIND!r} stands for, but model.selector_names is {names}.")
            return {key: _of_names(value, names) for key, value in self.model.items()}
        kinds = [f"{KIND}_{number}" for number in range(1, self.kinds + 1)]
        if self.selector_names is not None and len(self.selector_names) != self.kinds:
            raise ValueError(f"selector_names has {len(self.selector_names)} names for kinds={self.kinds}.")
        settings = {}
        for key, value in self.model.items():
            if isinstance(value, dict) and KIND in value:
                given = value[KIND]
                each = given if key == "target_rate" and isinstance(given, list) else [given] * self.kinds
                if len(each) != self.kinds:
                    raise ValueError(f"target_rate has {len(each)} values for kinds={self.kinds}: {each}.")
                value = {name: item for name, item in value.items() if name != KIND} | dict(zip(kinds, each, strict=True))
            settings[key] = value
        return {**settings, "selector_names": [name for name in names if name != KIND] + kinds}


def _of_names(value: Any, names: list[str]) -> Any:
    """What is set for each of several selectors, for these alone. (Where one of these is missing, the config says so.)"""
    if names and isinstance(value, dict) and set(names) < set(value):
        return {name: value[name] for name in names}
    return value


AnyRecipe = TypeVar("AnyRecipe", bound=BaseRecipe)


def recipe_keys(kind: type[BaseRecipe] = Recipe) -> tuple[Setting, ...]:
    """All keys in the order of their declaration.

    >>> [key.wanted for key in recipe_keys() if key.name in ("warmup", "max_steps", "surface")]
    ['a whole number >= 1, or null', 'a number in [0, 1)', 'true or false']
    """
    return settings_of(kind)


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


def load_recipe(path: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe from a YAML file (see `find_recipe`) with overrides; `model.temperature` reaches into the model's settings.

    >>> load_recipe(overrides={"epochs": 1, "model.temperature": 0.2}).model
    {'temperature': 0.2}
    """
    values = read_values(path, Recipe)
    values = {**values, "model": values.get("model") or {}}
    for key, value in (overrides or {}).items():
        if key.startswith("model.") and isinstance(values["model"], dict):
            values["model"] = {**values["model"], key.removeprefix("model."): value}
        else:
            values[key] = value
    return make_recipe(values, Recipe)


def read_values(path: str | Path | None, kind: type[BaseRecipe]) -> dict[str, Any]:
    """What a recipe's file says, unchecked; nothing where no file is named."""
    if path is None:
        return {}
    path = find_recipe(path, kind.FOLDER)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold `key: value` lines, got {type(values).__name__}.")
    return values


def make_recipe(values: Mapping[str, Any], kind: type[AnyRecipe]) -> AnyRecipe:
    """A recipe of these values; an unknown key is an error."""
    for key in values:
        check_key(key, kind)
    return kind(**values)


def check_key(name: str, kind: type[BaseRecipe] = Recipe) -> None:
    """Raise ValueError, with what was probably meant, for a key that no recipe has.

    >>> check_key("epoch")
    Traceback (most recent call last):
    ValueError: unknown recipe key 'epoch': did you mean 'epochs'?
    """
    known = [key.name for key in recipe_keys(kind)]
    if name not in known:
        close = difflib.get_close_matches(str(name), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(sorted(known))}."
        raise ValueError(f"unknown recipe key {name!r}: {hint}")
