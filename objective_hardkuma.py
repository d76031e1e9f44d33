"""The whole objective of one global batch: every term by name, and their weighted sum.

loss = sum over selectors of (L_rat - lambda_cmp L_cmp + lambda_s sparsity + lambda_tv TV + lambda_e constraint)
       + lambda_kl KL
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .configuration_hardkuma import HardKumaConfig
from .losses_hardkuma import (
    CONTRASTIVE,
    next_multiplier,
    rate_lagrangian,
    rate_penalty,
    selection_rate,
    sparsity,
    symmetric_kl,
    total_variation,
)


@dataclass
class Rows:
    """What the losses need of every sentence; the rows of several forward passes can be joined by `Rows.join`.

    content: (batch, length); gates, probs, log_odds: (batch, K, length); anchor: (batch, dim) in the view's space;
    rationale, complement: (batch, K, dim).
    """

    content: Tensor
    gates: Tensor
    probs: Tensor
    log_odds: Tensor
    anchor: Tensor
    rationale: Tensor
    complement: Tensor

    @staticmethod
    def join(parts: list[Rows]) -> Rows:
        """Rows of all parts, which must have one length."""
        return Rows(*(torch.cat(values) for values in zip(*(vars(part).values() for part in parts), strict=True)))


def loss_weights(config: HardKumaConfig) -> dict[str, float | list[float]]:
    """Weight of every term in the total, by name: loss = sum over terms (and selectors) of weight * term.

    >>> loss_weights(HardKumaConfig(lambda_cmp=0.5))["complement"]
    -0.5
    """
    return {
        "rationale": 1.0,
        "complement": -config.lambda_cmp,
        "sparsity": config.sparsity_weights,
        "total_variation": config.lambda_tv,
        "constraint": config.lambda_e,
        "kl": config.lambda_kl,
    }


def objective(rows: Rows, config: HardKumaConfig, multiplier: Tensor, training: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """The total, (), and its unweighted terms, () each or (K,) for several selectors.

    Args:
        rows: this process's share of the global batch.
        multiplier: (K,) Lagrange multipliers, moved in place when `training` (evaluation never moves them).
    """
    content, valid = rows.content, rows.content.any(-1)
    contrast, how = CONTRASTIVE[config.contrastive], (config.temperature, valid, config.similarity)
    terms: dict[str, list[Tensor]] = {"rationale": [], "complement": [], "sparsity": [], "total_variation": []}
    rates = []
    for k in range(config.num_selectors):
        gates = rows.gates[:, k]
        terms["rationale"].append(contrast(rows.anchor, rows.rationale[:, k], *how))
        against = contrast(rows.anchor, rows.complement[:, k], *how, bounded=config.bound_complement)
        terms["complement"].append(against)
        terms["sparsity"].append(sparsity(gates, content))
        terms["total_variation"].append(total_variation(gates, content))
        rates.append(selection_rate(rows.probs[:, k], content))
    losses = {name: _per_selector(values) for name, values in terms.items()}
    if config.rate_constraint != "none":
        losses["constraint"] = _constraint(torch.stack(rates), config, multiplier, training)
    if config.num_selectors > 1:
        losses["kl"] = symmetric_kl(rows.log_odds, content, bounded=config.lambda_kl < 0)
    weights = loss_weights(config)
    total = torch.stack([(value * value.new_tensor(weights[name])).sum() for name, value in losses.items()]).sum()
    return total, losses


def _constraint(rates: Tensor, config: HardKumaConfig, multiplier: Tensor, training: bool) -> Tensor:
    if config.rate_constraint == "penalty":
        terms = rate_penalty(rates, config.target_rate)
    else:
        # A copy: the graph keeps what the loss was computed with.
        terms = rate_lagrangian(rates, config.target_rate, multiplier.float().clone())
        if training:
            with torch.no_grad():
                multiplier.copy_(next_multiplier(multiplier, rates, config.target_rate, config.multiplier_lr))
    return _per_selector(list(terms))


def _per_selector(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(values)
