"""A recipe: everything that decides a training run, in one flat file, with overrides from the command line."""

from __future__ import annotations

import dataclasses
import difflib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..common.files import write_atomically

BATCHES = ("neighbours", "random", "length")
SCHEDULES = ("cosine", "linear", "constant")
PRECISIONS = ("no", "bf16", "fp16")
CACHES = ("auto", "always", "never")
STORE_TYPES = ("float16", "bfloat16", "float32")


@dataclass
class Recipe:
    """All settings of a run. `model` holds fields of HardKumaConfig; everything else is here.

    >>> Recipe(epochs=2).epochs
    2
    """

    # What is trained
    encoder: str = "sentence-transformers/all-MiniLM-L6-v2"  # folder, Hub id, or the embedded MiniLM
    model: dict[str, Any] = field(default_factory=dict)  # any field of HardKumaConfig
    # On what
    data: list[str] = field(default_factory=lambda: ["bundled"])  # files, hf:dataset ids, or "bundled"
    column: str | None = None  # text column of JSON lines and CSV files
    split_sentences: bool | None = None  # cut paragraphs into sentences; by default where the format holds paragraphs
    min_words: int = 4  # shorter texts carry too little to tell apart
    max_words: int = 64
    max_sentences: int | None = None  # use only so many (a random choice)
    held_out: int = 256  # sentences kept back for the label-free criterion
    dev: str | None = None  # CoNLL file, for reporting only: nothing is chosen by it
    # How batches are made
    batches: str = "neighbours"  # neighbours | random | length
    batch_size: int = 64  # sentences of the *global* batch, over all processes
    micro_batch: int | None = None  # sentences per forward pass; the loss still sees the whole batch
    # How long and how fast
    epochs: int = 4
    max_steps: int | None = None
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.1  # fraction of all steps
    schedule: str = "cosine"  # cosine | linear | constant
    clip: float = 1.0  # largest norm of the gradient
    mixed_precision: str = "no"  # no | bf16 | fp16
    # When to stop, and what to keep
    evaluate_every: int = 25  # steps between looks at the held-out text
    patience: int = 0  # stop after so many looks without a better one; 0 never stops early
    checkpoint_every: int = 50  # steps between resumable checkpoints
    keep: int = 2  # how many of those to keep
    # Speed
    cache: str = "auto"  # keep the frozen encoder's states on disk: auto | always | never
    cache_type: str = "float16"
    # The two views together, once the contrastive gates are trained; see training/cotraining.py
    cotraining_epochs: int = 0  # passes over all text; 0 leaves it out
    cotraining_weight: float = 0.2  # of the gates' own logits in the target
    cotraining_certainty: float = 3.0  # of the word's form in the target
    # The rest
    surface: bool = True  # estimate the surface view's log-odds on the training text at the end
    trackers: list[str] = field(default_factory=list)  # tensorboard, wandb, trackio
    log_every: int = 5
    seed: int = 0
    output: str = "runs/default"

    def __post_init__(self) -> None:
        _one_of("batches", self.batches, BATCHES)
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("mixed_precision", self.mixed_precision, PRECISIONS)
        _one_of("cache", self.cache, CACHES)
        _one_of("cache_type", self.cache_type, STORE_TYPES)
        for name in (
            "batch_size",
            "epochs",
            "evaluate_every",
            "checkpoint_every",
            "keep",
            "log_every",
            "min_words",
            "held_out",
        ):
            _at_least(name, getattr(self, name), 1)
        _at_least("cotraining_epochs", self.cotraining_epochs, 0)
        for name in ("micro_batch", "max_steps", "max_sentences"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        if self.batch_size < 2:
            raise ValueError(f"batch_size must be >= 2, got {self.batch_size}: the loss compares sentences.")
        if self.max_words < self.min_words:
            raise ValueError(f"max_words ({self.max_words}) must be >= min_words ({self.min_words}).")
        for name in ("learning_rate", "clip", "cotraining_weight", "cotraining_certainty"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be > 0, got {value!r}.")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup must be a fraction in [0, 1), got {self.warmup!r}.")
        if not self.data:
            raise ValueError("data names no text; use ['bundled'] for the corpus that comes with the package.")
        if not isinstance(self.model, dict):
            raise ValueError(f"model must hold fields of HardKumaConfig, got {self.model!r}.")

    def to_yaml(self) -> str:
        """The whole recipe, every default filled in."""
        return yaml.safe_dump(dataclasses.asdict(self), sort_keys=False, allow_unicode=True)

    def save(self, path: str | Path) -> None:
        """Write the recipe, under a temporary name first."""
        write_atomically(path, self.to_yaml())


def load_recipe(path: str | Path | None = None, overrides: dict[str, Any] | None = None) -> Recipe:
    """A recipe from a YAML file with overrides; `model.temperature` reaches into the model's settings.

    >>> load_recipe(overrides={"epochs": 1, "model.temperature": 0.2}).model
    {'temperature': 0.2}
    """
    values: dict[str, Any] = {}
    if path is not None:
        if not Path(path).is_file():
            raise FileNotFoundError(f"no recipe at {path}; those that come along are in recipes/.")
        try:
            values = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is not valid YAML: {error}") from error
        if not isinstance(values, dict):
            raise ValueError(f"{path} must hold `key: value` lines, got {type(values).__name__}.")
    values = {**values, "model": dict(values.get("model") or {})}
    for key, value in (overrides or {}).items():
        if key.startswith("model."):
            values["model"][key.removeprefix("model.")] = value
        else:
            values[key] = value
    known = {f.name for f in dataclasses.fields(Recipe)}
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(sorted(known))}."
            raise ValueError(f"unknown recipe key {key!r}: {hint}")
    if isinstance(values.get("data"), str):
        values["data"] = [values["data"]]
    for name in ("learning_rate", "weight_decay", "warmup", "clip"):  # YAML reads 1e-3 as a string
        if isinstance(values.get(name), str):
            values[name] = _number(name, values[name])
    return Recipe(**values)


def parse_overrides(arguments: list[str]) -> dict[str, Any]:
    """`--key value` and `--key=value` pairs, values read as YAML.

    >>> parse_overrides(["--epochs", "3", "--model.view=input", "--data", "[a.txt, b.txt]"])
    {'epochs': 3, 'model.view': 'input', 'data': ['a.txt', 'b.txt']}
    """
    overrides: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"expected --key value, got {word!r}.")
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not rest:
                raise ValueError(f"--{key} has no value; write --{key} VALUE.")
            value = rest.pop(0)
        parsed = yaml.safe_load(value)
        overrides[key.replace("-", "_") if "." not in key else key] = _maybe_number(parsed)
    return overrides


def _maybe_number(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) and "e" in value.lower() else value
    except ValueError:
        return value


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{name} must be a number, got {value!r}.") from None


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")


def _at_least(name: str, value: Any, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ValueError(f"{name} must be a whole number >= {low}, got {value!r}.")
