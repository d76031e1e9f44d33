"""What all objectives share: three calls, and what a fit of a single selector begins and ends with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch

from ...configuration_hardkuma import HardKumaConfig
from ...gate_head_hardkuma import Selector
from ...modeling_hardkuma import HardKumaModel
from ..store import TokenFile
from .settings import ObjectiveSettings

if TYPE_CHECKING:
    from ..run import Run

AnySettings = TypeVar("AnySettings", bound=ObjectiveSettings)


@dataclass(frozen=True)
class Report:
    """What an objective has to say when all is done.

    Attributes:
        paragraph: how the selectors were trained, for the card.
        entries: for the log.
        evaluation: what was measured, for the card.
        plots: names of pictures in the output folder.
        metrics: the same on held-out text by name, for tools that read cards.
    """

    paragraph: str
    entries: list[dict[str, Any]] = field(default_factory=list)
    evaluation: str = ""
    plots: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


class Objective(ABC, Generic[AnySettings]):
    """One way to train selectors.

    Attributes:
        settings: what the recipe says under `train:`.
        selectors: names of the selectors that it trains.
    """

    UNITS: Sequence[str] = ("word", "name")  # that it can train

    def __init__(self, settings: AnySettings, selectors: list[str]):
        self.settings, self.selectors = settings, selectors

    def check(self, run: Run) -> None:
        """Raise ValueError where the selectors or the text do not fit, before anything is written. Called on the main
        process; `run` has its model and its texts, and no store yet."""
        for name in self.selectors:
            unit = run.model.config.selectors[name].unit
            if unit not in self.UNITS:
                raise ValueError(
                    f"selectors.{name}: objective {self.settings.NAME} trains gates of unit {' or '.join(self.UNITS)}, "
                    f"got unit {unit!r}."
                )

    @abstractmethod
    def fit(self, run: Run) -> bool:
        """Train the selectors and set their rates, on all processes; False if interrupted."""

    @abstractmethod
    def report(self, run: Run) -> Report:
        """What was done; called on the main process, when all selectors are trained."""

    def needed_rows(self, run: Run, tokens: TokenFile, rows: np.ndarray, stores_states: bool) -> np.ndarray | None:
        """Numbers of the sentences whose embeddings, and stored states, `fit` reads; None is all of them.

        Args:
            rows: numbers of the sentences to train on.
            stores_states: whether states are stored; where they are not, they are encoded anew.
        """
        return rows[:0]

    def numbers(self, config: HardKumaConfig) -> list[int]:
        """Numbers of its selectors."""
        return [config.names.index(name) for name in self.selectors]


def fresh_selector(model: HardKumaModel, number: int, seed: int) -> Selector:
    """A selector of the model with new random weights, the same for the same seed."""
    selector = model.gate_head.selectors[number]
    assert isinstance(selector, Selector)
    torch.manual_seed(seed)
    for layer in selector.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.reset_parameters()
    return selector


@contextmanager
def training_with_dropout(selector: Selector, dropout: float) -> Iterator[None]:
    """While it lasts, the selector trains with this dropout; then it is in eval mode, with its own."""
    selector.train()
    own, selector.dropout = selector.dropout, dropout
    try:
        yield
    finally:
        selector.dropout = own
        selector.eval()
