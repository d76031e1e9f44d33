"""What a recipe can say under `train:` of a selector: the settings of each objective, declared once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..settings import Settings, setting, settings_of

BATCHES = ("neighbours", "random")
SCHEDULES = ("cosine", "linear", "constant")  # of encoder recipes
PRECISIONS = ("no", "bf16", "fp16")


@dataclass
class ObjectiveSettings(Settings):
    """Settings of one objective; `NAME` is what recipes and its module call it."""

    NAME: ClassVar[str]


@dataclass
class CopySettings(ObjectiveSettings):
    """Take the selector of this name from another checkpoint."""

    NAME = "copy"

    checkpoint: str = setting("released", "folder or Hub id of a checkpoint on this encoder; `released` comes along")


@dataclass
class ContrastiveSettings(ObjectiveSettings):
    """Rationales that find their own sentence again, and complements that do not (losses_hardkuma.py)."""

    NAME = "contrastive"

    # How batches are made
    batches: str = setting("neighbours", "which sentences meet in a batch", choices=BATCHES)
    batch_size: int = setting(
        64, "sentences of the global batch, over all processes", at_least=2, reason="the loss compares sentences"
    )
    micro_batch: int | None = setting(None, "sentences per forward pass; the loss still sees the whole batch", at_least=1)
    # How long and how fast
    epochs: int = setting(4, "passes over the text", at_least=1)
    max_steps: int | None = setting(None, "stop after so many steps, if epochs would take more", at_least=1)
    learning_rate: float = setting(1e-3, "at its highest, after warm-up; it falls to 0 like a cosine", above=0)
    weight_decay: float = setting(0.01, "of AdamW", at_least=0)
    warmup: float = setting(0.1, "fraction of all steps in which the learning rate rises", at_least=0, below=1)
    clip: float = setting(1.0, "largest norm of the gradient", above=0)
    mixed_precision: str = setting("no", "of the encoder; gates and losses stay in fp32", choices=PRECISIONS)
    # What to tell and to keep
    evaluate_every: int = setting(25, "steps between evaluations on the held-out text", at_least=1)
    log_every: int = setting(5, "steps between entries of the log", at_least=1)
    checkpoint_every: int = setting(50, "steps between resumable checkpoints", at_least=1)


@dataclass
class RemovalSettings(ObjectiveSettings):
    """Words whose removal changes the sentence's embedding most."""

    NAME = "removal"

    sentences: int = setting(8000, "sentences of which subsets are encoded, a random choice", at_least=1)
    subsets: int = setting(2, "subsets of each of them, in pairs of one size", at_least=2)
    epochs: int = setting(10, "passes over all subsets", at_least=1)
    learning_rate: float = setting(1e-3, "at the beginning; it falls to 0", above=0)


@dataclass
class FormSettings(ObjectiveSettings):
    """Words that could be names, learned from how words are written."""

    NAME = "form"

    epochs: int = setting(1, "passes over all text", at_least=1)
    learning_rate: float = setting(1e-3, "at the beginning; it falls to 0", above=0)


@dataclass
class PartsSettings(ObjectiveSettings):
    """Selectors that divide the words among themselves."""

    NAME = "parts"

    count: int = setting(10, "how many selectors this one stands for", at_least=2, reason="one has nothing to divide")
    steps: int = setting(800, "steps of the fit", at_least=1)
    learning_rate: float = setting(1e-3, "at the beginning; it falls to 0", above=0)
    names: list[str] | None = setting(None, "what they are called; by default after their typical words")  # noqa: RUF009


@dataclass
class TaskSettings(ObjectiveSettings):
    """Words that decide about a text's class, with labels: the original HardKuma."""

    NAME = "task"

    warm_start: bool = setting(True, "fit classifier and gates to random subsets of words first")
    sentences: int = setting(8000, "texts of which subsets are encoded, a random choice", at_least=1)
    subsets: int = setting(4, "subsets of each of them, in pairs of one size", at_least=2)
    epochs: int = setting(12, "passes over all subsets", at_least=1)
    steps: int = setting(0, "steps of the loss as written, by sampled gates, after that", at_least=0)
    batch_size: int = setting(32, "texts of a step", at_least=1)
    learning_rate: float = setting(1e-3, "of the gates, at the beginning; it falls to 0", above=0)
    encoder_learning_rate: float = setting(2e-5, "of an encoder that is not frozen", above=0)
    log_every: int = setting(5, "steps between entries of the log", at_least=1)


# In the order in which they are fitted: `parts` needs the selector of meaning.
OBJECTIVES: Mapping[str, type[ObjectiveSettings]] = {
    settings.NAME: settings
    for settings in (CopySettings, ContrastiveSettings, TaskSettings, RemovalSettings, FormSettings, PartsSettings)
}


def read_objective(where: str, values: Any) -> ObjectiveSettings:
    """The settings in a `train:` block; ValueError, with what the objective has, for a key that it does not have.

    >>> read_objective("selectors.meaning.train", {"objective": "removal", "epoch": 3})
    Traceback (most recent call last):
    ValueError: selectors.meaning.train: removal has no setting 'epoch'; it has: sentences, subsets, epochs, learning_rate.
    """
    names = ", ".join(sorted(OBJECTIVES))
    if not isinstance(values, Mapping) or "objective" not in values:
        raise ValueError(f"{where} must be {{objective: NAME, ...}}, with one of {names}; got {values!r}.")
    name = values["objective"]
    if not isinstance(name, str) or name not in OBJECTIVES:
        raise ValueError(f"{where}: objective must be one of {names}; got {name!r}.")
    given = {key: value for key, value in values.items() if key != "objective"}
    known = [key.name for key in settings_of(OBJECTIVES[name])]
    for key in given:
        if key not in known:
            raise ValueError(f"{where}: {name} has no setting {key!r}; it has: {', '.join(known)}.")
    try:
        return OBJECTIVES[name](**given)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
