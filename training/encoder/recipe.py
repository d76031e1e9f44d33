"""A recipe for an encoder: everything that decides a run of `hardkuma encoder`, each key declared once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..objectives.settings import PRECISIONS, SCHEDULES
from ..recipe import RECIPES, TextRecipe, make_recipe, read_values
from ..settings import setting
from .views import make_augmentation

OBJECTIVES = ("infonce", "nt_xent", "alignment_distribution", "bilinear", "triplet", "soft_neighbours")


@dataclass
class EncoderRecipe(TextRecipe):
    """All settings of a run.

    >>> EncoderRecipe(view={"cropping": {"rate": 0.3}}, learning_rate="1e-5").learning_rate
    1e-05
    >>> EncoderRecipe(view={"synonyms": None})
    Traceback (most recent call last):
    ValueError: unknown augmentation 'synonyms'; known: dropout, attention_naive, attention_rollout, lowest_gates, \
sampled_gates, random_deletion, word_replacement, mlm_replacement, cropping, word_repetition, token_shuffling, \
token_cutoff, feature_cutoff.
    """

    FOLDER = RECIPES / "encoder"

    # What is trained
    reset_layers: int = setting(0, "so many of the top layers start from random weights", at_least=0)
    freeze_layers: int = setting(0, "so many of the lowest layers, and the embeddings, stay as they are", at_least=0)
    # What it reads of the text, and what it is watched by
    max_tokens: int = setting(32, "cut texts at so many tokens, in training alone", at_least=3)
    held_out: int = setting(256, "sentences kept back to measure alignment and uniformity, at most a fifth", at_least=2)
    dev: str | None = setting(None, "STS file (subset, score, two sentences), for reporting only: nothing is chosen by it")
    # Pairs that people have made
    columns: list[str] = setting([], "columns of text, positive[, hard negatives]: pairs, not views of one text")  # noqa: RUF009
    at_least: dict[str, Any] = setting({}, "only rows with such values at least, by column: {score: 4}")  # noqa: RUF009
    mine_negatives: int = setting(
        0, "mine so many hard negatives for each text, by the encoder as it is stored", at_least=0
    )
    # The other view of each sentence
    view: dict[str, Any] = setting({"dropout": None}, "augmentations, one after the other, each with its options")  # noqa: RUF009
    views: int = setting(1, "how many other views of each sentence", at_least=1)
    both_sides: bool = setting(False, "augment the anchor too, by a draw of its own")
    dropout: bool = setting(True, "the encoder's own dropout, in training")
    gates: str | None = setting(None, "checkpoint whose gates of meaning views go by (default: the released head)")
    # What is asked of them
    objective: str = setting("infonce", "what views of one sentence are drawn together by", choices=OBJECTIVES)
    temperature: float = setting(0.05, "of InfoNCE, NT-Xent and soft nearest neighbours", above=0)
    learn_temperature: bool = setting(
        False, "learn the temperature too, from this one on (InfoNCE, NT-Xent, soft neighbours)"
    )
    normalized: bool = setting(True, "soft neighbours of embeddings of length 1; false takes them as they are")
    margin: float = setting(0.2, "of the triplet loss, in Euclidean distance", above=0)
    squared: bool = setting(False, "squared distances in the triplet loss")
    mlm_weight: float = setting(0.0, "of masked language modelling as a second objective; .1 is customary", at_least=0)
    batch_size: int = setting(
        64, "sentences of a batch, of all processes together", at_least=2, reason="the loss compares sentences"
    )
    # How long and how fast
    epochs: int = setting(1, "passes over the text", at_least=1)
    max_steps: int | None = setting(None, "exactly so many steps, whatever epochs says; 0 only resets layers", at_least=0)
    learning_rate: float = setting(3e-5, "at its highest, after warm-up", above=0)
    weight_decay: float = setting(0.0, "of AdamW", at_least=0)
    warmup: float = setting(0.0, "fraction of all steps in which the learning rate rises", at_least=0, below=1)
    schedule: str = setting("linear", "how the learning rate falls after warm-up", choices=SCHEDULES)
    clip: float = setting(1.0, "largest norm of the gradient", above=0)
    mixed_precision: str = setting("no", "of the encoder", choices=PRECISIONS)
    # What to tell and to keep
    evaluate_every: int = setting(125, "steps between evaluations", at_least=1)
    checkpoint_every: int = setting(125, "steps between resumable checkpoints", at_least=1)
    keep: int = setting(2, "how many of those to keep", at_least=2, reason="the last may be cut short")
    trackers: list[str] = setting([], "the trainer's reports: tensorboard, wandb, trackio, ...")  # noqa: RUF009
    log_every: int = setting(10, "steps between entries of the log", at_least=1)
    output: str = setting("runs/encoder", "folder for the result, its log and its checkpoints")

    @property
    def negatives(self) -> int:
        """How many hard negatives each text has."""
        return self.mine_negatives or max(0, len(self.columns) - 2)

    def __post_init__(self) -> None:
        if isinstance(self.columns, list):
            self.columns = [str(column) for column in self.columns]  # by number, in files without a header
        if isinstance(self.at_least, dict):
            self.at_least = {str(column): value for column, value in self.at_least.items()}
        super().__post_init__()
        self._check_pairs()
        if not self.view:
            raise ValueError("view names no augmentation; use {dropout: null} for the encoder's own dropout alone.")
        make_augmentation(self.view, size=1)
        learns = ("infonce", "nt_xent", "soft_neighbours")
        if self.learn_temperature and self.objective not in learns:
            raise ValueError(f"learn_temperature works with {', '.join(learns)}, not with {self.objective}: leave it out.")

    def _check_pairs(self) -> None:
        if len(self.columns) == 1:
            raise ValueError(f"columns must name two or more, got {self.columns[0]}: for one text a row use column.")
        if self.columns and (self.column is not None or "bundled" in self.data):
            raise ValueError("columns takes files with columns, each named once: leave out column and bundled.")
        if self.at_least and not self.columns:
            raise ValueError("at_least chooses rows of pairs: name their columns too.")
        for column, value in self.at_least.items():
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                raise ValueError(f"at_least must give a number for column {column}, got {value!r}.")
        if self.mine_negatives and len(self.columns) > 2:
            raise ValueError(f"mine_negatives needs two columns, got {', '.join(self.columns)}: the third holds negatives.")
        if self.negatives and self.objective != "infonce":
            raise ValueError(f"hard negatives work with infonce, not with {self.objective}: leave them out.")


def load_encoder_recipe(path: str | Path, overrides: Mapping[str, Any] | None = None) -> EncoderRecipe:
    """A recipe from a YAML file, or the name of one that comes along, with overrides.

    >>> load_encoder_recipe("add-naive").view
    {'attention_naive': {'t': 8}}
    """
    return make_recipe({**read_values(path, EncoderRecipe), **(overrides or {})}, EncoderRecipe)
