"""The losses, all in fp32, all over the *global* batch: contrastive terms, regularisers, and what several processes share.

Every function is written so that the mean over processes of its value and gradient (which is what data-parallel training
takes) equals the value and gradient of one process on the joined batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from .configuration_hardkuma import HardKumaConfig
from .kumaraswamy_hardkuma import expected_changes, expected_selected
from .pooling_hardkuma import normalize


def world_size() -> int:
    """Number of processes that train together; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _Gather(torch.autograd.Function):
    """Forward: concatenate every process's rows. Backward: sum the gradients of all processes, keep one's own rows.

    A gather without this backward loses the gradient that a row receives as somebody else's negative.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.size = rows.shape[0]
        parts = [torch.empty_like(rows) for _ in range(world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        start = dist.get_rank() * ctx.size
        return grad[start : start + ctx.size]


def gather_rows(rows: Tensor) -> Tensor:
    """(rows, ...) -> (rows of all processes, ...), with gradients; the identity in one process. Equal sizes everywhere.

    >>> gather_rows(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """
    return rows if world_size() == 1 else _Gather.apply(rows)


def _gather_mask(mask: Tensor) -> Tensor:
    # Not every backend gathers booleans.
    return gather_rows(mask.to(torch.uint8)).bool()


def _first_own_row(rows: int) -> int:
    return 0 if world_size() == 1 else dist.get_rank() * rows


def mean_over_rows(values: Tensor, valid: Tensor) -> Tensor:
    """Mean of (batch,) values over the valid rows of the global batch; 0 if there are none.

    Scaled by the number of processes, so that averaging over processes gives the global mean even where they hold
    different numbers of valid rows.

    >>> mean_over_rows(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False]))
    tensor(2.)
    """
    count = gather_rows(valid.to(values.dtype)).sum().clamp_min(1.0)
    return torch.where(valid, values, torch.zeros_like(values)).sum() * world_size() / count


def _prepare(vectors: Tensor, similarity: str) -> Tensor:
    return normalize(vectors.float()) if similarity == "cosine" else vectors.float()


def info_nce(
    anchor: Tensor,
    other: Tensor,
    temperature: float,
    valid: Tensor | None = None,
    similarity: str = "cosine",
    bounded: bool = False,
) -> Tensor:
    """-1/B sum_i log( exp(a_i . o_i / tau) / sum_j exp(a_i . o_j / tau) ), j over the global batch.

    Args:
        anchor, other: (batch, dim).
        temperature: tau.
        valid: (batch,) bool; other rows are neither averaged nor used as negatives.
        similarity: "cosine" or "dot".
        bounded: take each row's min(loss, chance), chance = log N: once a complement identifies its sentence no better than
            a guess, nothing more is asked of it.

    >>> rows = torch.eye(4)
    >>> bool(info_nce(rows, rows, 0.05) < 1e-6), round(float(info_nce(rows, rows.flip(0), 1.0)), 4)
    (True, 1.7437)
    """
    valid = torch.ones(len(anchor), dtype=torch.bool, device=anchor.device) if valid is None else valid
    rows, columns = _prepare(anchor, similarity), gather_rows(_prepare(other, similarity))
    logits = rows @ columns.T / temperature
    own = torch.arange(len(rows), device=rows.device) + _first_own_row(len(rows))
    return mean_over_rows(_cross_entropy(logits, own, _gather_mask(valid), valid, bounded), valid)


def nt_xent(
    anchor: Tensor,
    other: Tensor,
    temperature: float,
    valid: Tensor | None = None,
    similarity: str = "cosine",
    bounded: bool = False,
) -> Tensor:
    """The symmetric variant over the 2B views z = [anchor; other], each row against all others but itself:

    -1/2B sum_i log( exp(z_i . z_pair(i) / tau) / sum_{k != i} exp(z_i . z_k / tau) ).

    >>> rows = torch.eye(4)
    >>> bool(nt_xent(rows, rows, 0.05) < 1e-6)
    True
    """
    valid = torch.ones(len(anchor), dtype=torch.bool, device=anchor.device) if valid is None else valid
    first, second = _prepare(anchor, similarity), _prepare(other, similarity)
    all_first, all_second, all_valid = gather_rows(first), gather_rows(second), _gather_mask(valid)
    logits = torch.cat([first, second]) @ torch.cat([all_first, all_second]).T / temperature
    number, rows = len(all_first), torch.arange(len(first), device=first.device) + _first_own_row(len(first))
    itself, pair = torch.cat([rows, rows + number]), torch.cat([rows + number, rows])
    logits = logits.scatter(1, itself[:, None], -torch.inf)
    both = torch.cat([valid, valid])
    return mean_over_rows(_cross_entropy(logits, pair, torch.cat([all_valid, all_valid]), both, bounded), both)


def _cross_entropy(logits: Tensor, target: Tensor, column_valid: Tensor, row_valid: Tensor, bounded: bool) -> Tensor:
    """Cross entropy per row with invalid columns left out; invalid rows get a finite dummy."""
    logits = logits.masked_fill(~column_valid, -torch.inf)
    safe = torch.where(row_valid[:, None], logits, torch.zeros_like(logits))
    loss = F.cross_entropy(safe, target, reduction="none")
    # A row's chance is a guess among the columns that it is compared with.
    return torch.minimum(loss, safe.isfinite().sum(-1).log()) if bounded else loss


CONTRASTIVE = {"infonce": info_nce, "nt_xent": nt_xent}


def _per_content(total: Tensor, content: Tensor) -> Tensor:
    valid = content.any(-1)
    return mean_over_rows(total / content.sum(-1).clamp_min(1), valid)


def sparsity(gates: Tensor, content: Tensor) -> Tensor:
    """sum(c g) / sum(c) of each sentence, averaged over sentences. gates, content: (batch, length)

    >>> sparsity(torch.tensor([[1.0, 0.0, 1.0]]), torch.tensor([[True, True, False]]))
    tensor(0.5000)
    """
    return _per_content((gates * content).sum(-1), content)


def total_variation(gates: Tensor, content: Tensor) -> Tensor:
    """sum |g_{i+1} - g_i| c_i c_{i+1} / sum(c) of each sentence, averaged over sentences.

    >>> total_variation(torch.tensor([[1.0, 0.0, 1.0, 1.0]]), torch.ones(1, 4, dtype=torch.bool))
    tensor(0.5000)
    """
    steps = (gates[:, 1:] - gates[:, :-1]).abs() * content[:, 1:] * content[:, :-1]
    return _per_content(steps.sum(-1), content)


def selection_rate(probs: Tensor, content: Tensor) -> Tensor:
    """E[z] over all content tokens of the global batch, the same number in every process. probs, content: (batch, length)

    >>> selection_rate(torch.tensor([[0.5, 0.1], [0.3, 0.9]]), torch.tensor([[True, True], [True, False]]))
    tensor(0.3000)
    """
    here = torch.stack([(probs.float() * content).sum(), content.sum().float()])[None]
    selected, number = gather_rows(here).sum(0)
    return selected / number.clamp_min(1.0)


def rate_penalty(rate: Tensor, target: Tensor | float) -> Tensor:
    """(E[z] - pi)^2.

    >>> rate_penalty(torch.tensor(0.5), 0.2)
    tensor(0.0900)
    """
    return (rate - target) ** 2


def rate_distance(rate: Tensor, target: Tensor | float) -> Tensor:
    """|E[z] - pi|: the linear constraint.

    >>> rate_distance(torch.tensor(0.5), 0.2)
    tensor(0.3000)
    """
    return (rate - target).abs()


def rate_lagrangian(rate: Tensor, target: Tensor | float, multiplier: Tensor) -> Tensor:
    """mu (E[z] - pi) + (E[z] - pi)^2: the augmented Lagrangian. The quadratic term damps the multiplier's swings.

    The multiplier mu is moved by `next_multiplier`, in training only, and gets no gradient here.

    >>> rate_lagrangian(torch.tensor(0.5), 0.2, torch.tensor(2.0))
    tensor(0.6900)
    """
    return multiplier.detach() * (rate - target) + rate_penalty(rate, target)


def next_multiplier(multiplier: Tensor, rate: Tensor, target: Tensor | float, step: float) -> Tensor:
    """mu + step (E[z] - pi) / (pi (1 - pi)): gradient ascent on the multiplier, in units of the rate's own spread.

    >>> next_multiplier(torch.tensor(0.0), torch.tensor(0.5), 0.2, 0.1)
    tensor(0.1875)
    """
    return multiplier + step * (rate.detach() - target) / (target * (1 - target))


def symmetric_kl(log_odds: Tensor, content: Tensor, bounded: bool = False) -> Tensor:
    """Mean over pairs of selectors and content tokens of (KL(p || q) + KL(q || p)) / 2 between Bernoulli gates.

    For Bernoulli variables this is (p - q)(logit p - logit q) / 2. `bounded` gives KL / (1 + KL) in [0, 1): what a
    negative weight may maximise without running away.

    Args:
        log_odds: (batch, K, length) logit of the selection probability.
        content: (batch, length).

    >>> log_odds = torch.tensor([[[0.0], [2.0]]])
    >>> symmetric_kl(log_odds, torch.ones(1, 1, dtype=torch.bool))
    tensor(0.3808)
    """
    pairs = list(combinations(range(log_odds.shape[1]), 2))
    if not pairs:
        return log_odds.new_zeros(())
    first, second = log_odds[:, [i for i, _ in pairs]], log_odds[:, [j for _, j in pairs]]
    divergence = (torch.sigmoid(first) - torch.sigmoid(second)) * (first - second) / 2
    if bounded:
        divergence = divergence / (1 + divergence)
    return _per_content((divergence * content[:, None]).mean(1).sum(-1), content)


@dataclass
class LossRows:
    """What the losses need of every sentence; the rows of several forward passes can be joined by `LossRows.join`.

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
    def join(parts: list[LossRows]) -> LossRows:
        """LossRows of all parts, which must have one length."""
        return LossRows(*(torch.cat(values) for values in zip(*(vars(part).values() for part in parts), strict=True)))


def loss_weights(config: HardKumaConfig, selectors: Sequence[int] | None = None) -> dict[str, float | list[float]]:
    """Weight of every term in the total, by name: loss = sum over terms (and selectors) of weight * term.

    >>> loss_weights(HardKumaConfig(lambda_cmp=0.5))["complement"]
    -0.5
    """
    chosen = range(config.num_selectors) if selectors is None else selectors
    return {
        "rationale": 1.0,
        "complement": -config.lambda_cmp,
        "sparsity": [config.selector(k).lambda_s for k in chosen],
        "total_variation": config.lambda_tv,
        "constraint": config.lambda_e,
        "kl": config.lambda_kl,
    }


def contrastive_loss(
    rows: LossRows, config: HardKumaConfig, multiplier: Tensor, training: bool, selectors: Sequence[int] | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """L_rat - lambda_cmp L_cmp + lambda_s sparsity + lambda_tv TV + lambda_e constraint + lambda_kl KL: the total, (), and
    its unweighted terms, () each or (K,) for several selectors.

    Args:
        rows: this process's share of the global batch.
        multiplier: (all selectors,) Lagrange multipliers, moved in place when `training` (evaluation never moves them).
        selectors: numbers of those that the rows are of; all by default.
    """
    chosen = list(range(config.num_selectors)) if selectors is None else list(selectors)
    content, valid = rows.content, rows.content.any(-1)
    contrast, how = CONTRASTIVE[config.contrastive], (config.temperature, valid, config.similarity)
    terms: dict[str, list[Tensor]] = {"rationale": [], "complement": [], "sparsity": [], "total_variation": []}
    rates = []
    for k in range(len(chosen)):
        gates = rows.gates[:, k]
        terms["rationale"].append(contrast(rows.anchor, rows.rationale[:, k], *how))
        against = contrast(rows.anchor, rows.complement[:, k], *how, bounded=config.bound_complement)
        terms["complement"].append(against)
        terms["sparsity"].append(sparsity(gates, content))
        terms["total_variation"].append(total_variation(gates, content))
        rates.append(selection_rate(rows.probs[:, k], content))
    losses = {name: _per_selector(values) for name, values in terms.items()}
    if config.rate_constraint != "none":
        losses["constraint"] = _constraint(torch.stack(rates), config, multiplier, training, chosen)
    if len(chosen) > 1:
        losses["kl"] = symmetric_kl(rows.log_odds, content, bounded=config.lambda_kl < 0)
    weights = loss_weights(config, chosen)
    total = torch.stack([(value * value.new_tensor(weights[name])).sum() for name, value in losses.items()]).sum()
    return total, losses


def task_loss(
    task: Tensor, probs: Tensor, content: Tensor, config: HardKumaConfig, multiplier: Tensor, training: bool, selector: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """-log p(y | X') + lambda_s E[#selected] + lambda_c E[#changes] + lambda_e constraint: the total, (), and its
    unweighted terms. Expectations are closed forms, over the words of a text, averaged over texts; lambda_c is
    `config.lambda_tv`.

    Args:
        task: () the classifier's own loss on the rationales, -log p(y | X').
        probs, content: (batch, words) probabilities of selection, and which words there are.
        multiplier: (all selectors,) Lagrange multipliers, moved in place when `training`.
        selector: number of the one whose gates these are.

    >>> probs, content = torch.tensor([[0.5, 0.5, 1.0]]), torch.ones(1, 3, dtype=torch.bool)
    >>> config = HardKumaConfig(selectors={"task": {"lambda_s": 0.1}}, lambda_tv=0.5)
    >>> total, terms = task_loss(torch.tensor(0.7), probs, content, config, torch.zeros(1), False, 0)
    >>> {name: float(term) for name, term in terms.items() if name != "task"}, round(float(total), 2)
    ({'selected': 2.0, 'changes': 1.0}, 1.4)
    """
    valid, probs = content.any(-1), probs.float()
    weights = {"task": 1.0, "selected": config.selector(selector).lambda_s, "changes": config.lambda_tv}
    losses = {
        "task": task,
        "selected": mean_over_rows(expected_selected(probs, content), valid),
        "changes": mean_over_rows(expected_changes(probs, content.to(probs.dtype)), valid),
    }
    if config.rate_constraint != "none":
        rate = selection_rate(probs, content)[None]
        losses["constraint"] = _constraint(rate, config, multiplier, training, [selector])
        weights["constraint"] = config.lambda_e
    return torch.stack([weights[name] * term for name, term in losses.items()]).sum(), losses


def _constraint(rates: Tensor, config: HardKumaConfig, multiplier: Tensor, training: bool, selectors: list[int]) -> Tensor:
    targets = rates.new_tensor([config.selector(k).target_rate for k in selectors])
    if config.rate_constraint == "penalty":
        terms = rate_penalty(rates, targets)
    elif config.rate_constraint == "linear":
        terms = rate_distance(rates, targets)
    else:
        terms = rate_lagrangian(rates, targets, multiplier[selectors].float())
        if training:
            with torch.no_grad():
                multiplier[selectors] = next_multiplier(multiplier[selectors], rates, targets, config.multiplier_lr)
    return _per_selector(list(terms))


def _per_selector(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(values)
