"""The objective `copy`: the selector of this name in another checkpoint is taken, not trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.models import load_model
from ...modeling_hardkuma import HardKumaModel
from ..criterion import calibrate_rate
from .base import Objective, Report
from .settings import CopySettings

if TYPE_CHECKING:
    from ..run import Run

RELEASED = "released"  # what the released gate head is called in recipes
# Settings that two selectors must share if one is to take the other's weights and mean the same by them.
OF_SELECTOR = ("reads", "layer", "unit", "hidden_size")
OF_MODEL = ("concentration_min", "concentration_max", "concentration_bound", "sampler", "gate_threshold", "isolated_size")
ISOLATED = ("isolated_table", "isolated_scale", "isolated_directions")


class Copy(Objective[CopySettings]):
    """Takes a selector from another checkpoint on the same encoder. Its rate is set anew, on this run's text."""

    UNITS = ("token", "word", "name")

    def check(self, run: Run) -> None:
        super().check(run)
        self._load(run.model)

    def fit(self, run: Run) -> bool:
        run.fit_on_main(self._copy, run)
        return True

    def report(self, run: Run) -> Report:
        name, source = self.selectors[0], self.settings.checkpoint
        named = "the head that comes with hardkuma" if source == RELEASED else f"`{source}`"
        return Report(f"Gates of `{name}`: those of {named}, not trained here.")

    def _copy(self, run: Run) -> None:
        other, (number,) = self._load(run.model), self.numbers(run.model.config)
        head, theirs = run.model.gate_head, other.gate_head
        taken = theirs.selectors[other.config.find_selector(self.selectors[0])]
        head.selectors[number].load_state_dict(taken.state_dict())
        if run.model.config.reads("isolated", [number]):  # the table that its weights were fitted to
            for name in ISOLATED:
                getattr(head, name).copy_(getattr(theirs, name))
        calibrate_rate(run.model, run.store, run.rows, run.recipe.seed, [number])

    def _load(self, model: HardKumaModel) -> HardKumaModel:
        """The other checkpoint; ValueError if it differs in what the weights belong to."""
        name, source = self.selectors[0], self.settings.checkpoint
        try:
            other = load_model(None if source == RELEASED else source, device=str(model.device))
        except OSError as error:
            raise ValueError(f"selectors.{name}.train.checkpoint cannot be loaded: {error}") from error
        mine, theirs = model.config.selectors[name], other.config.selector(other.config.find_selector(name))
        values = {key: (getattr(model.config, key), getattr(other.config, key)) for key in OF_MODEL}
        values |= {f"selectors.{name}.{key}": (getattr(mine, key), getattr(theirs, key)) for key in OF_SELECTOR}
        values["the encoder's fingerprint"] = (model.encoder_fingerprint(), other.encoder_fingerprint())
        for key, (wanted, given) in values.items():
            if wanted != given:
                raise ValueError(
                    f"selectors.{name}.train: the checkpoint {source!r} has {key} = {given!r}, and this recipe {wanted!r}; "
                    f"use the same, or train it (--selectors.{name}.train.objective removal)."
                )
        return other
