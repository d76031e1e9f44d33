"""Alignment and uniformity during training, by sentence-transformers' evaluator interface."""

from __future__ import annotations

import torch
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.base.model import BaseModel
from torch import Tensor

from ...evaluation.metrics import alignment, uniformity
from .collator import DRAW, ROW, ViewCollator
from .layers import seeded
from .objectives import embed

BATCH = 128


class GeometryEvaluator(BaseEvaluator):
    """Of held-out sentences and their views, dropout on as in training: how close views are, how evenly sentences lie."""

    def __init__(self, collator: ViewCollator, rows: list[int]):
        super().__init__()
        self.collator, self.rows = collator, rows
        self.greater_is_better, self.primary_metric = False, "uniformity"

    def __call__(
        self, model: BaseModel, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """{"alignment", "uniformity"}, both the lower the better; the same views and dropout at every call."""
        anchors: list[Tensor] = []
        positives: list[Tensor] = []
        was_training = model.training
        model.train()
        try:
            with seeded(self.collator.seed, model.device), torch.no_grad():
                for first in range(0, len(self.rows), BATCH):
                    draws = [{ROW: row, DRAW: number} for number, row in enumerate(self.rows[first : first + BATCH], first)]
                    batch = self.collator(draws)
                    for prefix, vectors in (("anchor_", anchors), ("positive_1_", positives)):
                        inputs = {key.removeprefix(prefix): value for key, value in batch.items() if key.startswith(prefix)}
                        inputs = {key: value.to(model.device) for key, value in inputs.items()}
                        vectors.append(embed(model, inputs).cpu())
        finally:
            model.train(was_training)
        return {
            "alignment": alignment(torch.cat(anchors), torch.cat(positives)),
            "uniformity": uniformity(torch.cat(anchors)),
        }
