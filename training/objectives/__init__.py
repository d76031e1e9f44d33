"""How selectors are trained: one file for each objective, and their settings.

Importing this package loads neither torch nor transformers: a recipe is read, and help is shown, without them.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .settings import OBJECTIVES, ObjectiveSettings

if TYPE_CHECKING:
    from .base import Objective

__all__ = ["OBJECTIVES", "ObjectiveSettings", "make_objective"]


def make_objective(settings: ObjectiveSettings, selectors: Sequence[str]) -> Objective:
    """The objective that these settings are of, for these selectors.

    >>> from hardkuma.training.objectives.settings import FormSettings
    >>> type(make_objective(FormSettings(), ["entities"])).__name__
    'Form'
    """
    module = importlib.import_module(f".{settings.NAME}", __package__)
    objective: Objective = getattr(module, settings.NAME.capitalize())(settings, list(selectors))
    return objective
