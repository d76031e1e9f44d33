"""What is asked of the views of a sentence: to be close to each other and far from those of other sentences.

sentence-transformers' own losses where it has them: InfoNCE (fixed and learned temperature), NT-Xent and triplets with
semi-hard mining are its MultipleNegativesRankingLoss and BatchSemiHardTripletLoss; soft nearest neighbours, the bilinear
InfoNCE and the two parts of NT-Xent are ours.
Each takes embeddings of all views, [(batch, dim), ...], the anchors first; of a batch that several processes share, those
of all of them, so that every process has the same loss.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    BatchHardTripletLossDistanceFunction,
    BatchSemiHardTripletLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.util import all_gather_with_grad, cos_sim, get_world_size
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from ...pooling_hardkuma import normalize
from .recipe import EncoderRecipe

KEPT, MASKED, LABELS = "kept", "masked", "labels"  # features of ours that the encoder does not take


class Ranking(nn.Module):
    """InfoNCE of anchors against all other views, or NT-Xent, in which every view is an anchor and has all as negatives.

    l_i = -log exp(sim(h_i, h_j) / tau) / sum_k exp(sim(h_i, h_k) / tau): k over the other views (InfoNCE), or over all of
    both but i itself (NT-Xent). Several other views are contrasted with the anchors one by one, and averaged. Where anchors
    have hard negatives, those of all anchors are among the k.
    """

    def __init__(self, model: SentenceTransformer, temperature: float, learned: bool = False, symmetric: bool = False):
        super().__init__()
        # A learned scale, 1 / temperature, is kept as a logarithm, so that it stays positive.
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature))) if learned else None
        self.ranking = MultipleNegativesRankingLoss(
            model,
            scale=1.0 if learned else 1 / temperature,
            similarity_fct=self._scaled if learned else cos_sim,
            directions=("query_to_doc", "query_to_query") if symmetric else ("query_to_doc",),
        )
        self.symmetric = symmetric

    def _scaled(self, first: Tensor, second: Tensor) -> Tensor:
        assert self.log_scale is not None
        return cos_sim(first, second) * self.log_scale.exp()

    def forward(self, views: Sequence[Tensor], negatives: Sequence[Tensor] = ()) -> Tensor:
        anchor, losses, rows = views[0], [], torch.arange(len(views[0]))
        for view in views[1:]:
            losses.append(self.ranking.compute_loss_from_embeddings([anchor, view, *negatives], rows))
            if self.symmetric:
                losses.append(self.ranking.compute_loss_from_embeddings([view, anchor], rows))
        return torch.stack(losses).mean()


class Bilinear(nn.Module):
    """InfoNCE as first written (van den Oord et al., 2018): -log f(z, c) / sum_z' f(z', c) with f(z, c) = exp(z^T W c).

    c are the anchors and z the other views, as the encoder gives them. W begins as the identity over the temperature.
    """

    def __init__(self, size: int, temperature: float):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(size) / temperature)

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        rows = torch.arange(len(views[0]), device=views[0].device)
        logits = [views[0] @ self.weight.T @ view.T for view in views[1:]]  # c^T W^T z = z^T W c
        return torch.stack([F.cross_entropy(each, rows) for each in logits]).mean()


class AlignmentAndDistribution(nn.Module):
    """NT-Xent in two parts, with the n rows of all views z_i and their pairs z_j (Wang and Isola, 2020; Chen et al., 2021):

    tau L = -1/n sum_i sim(z_i, z_j) + tau/n sum_i log sum_{k != i} exp(sim(z_i, z_k) / tau)
             alignment                  distribution
    """

    def __init__(self, temperature: float):
        super().__init__()
        self.temperature = temperature

    def forward(self, views: Sequence[Tensor]) -> dict[str, Tensor]:
        parts = defaultdict(list)
        for view in views[1:]:
            z = normalize(torch.cat([views[0], view]).float())
            similarities = z @ z.T
            itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
            others = (similarities / self.temperature).masked_fill(itself, -torch.inf)
            parts["alignment"].append(-similarities.roll(len(view), 1).diagonal().mean())
            parts["distribution"].append(self.temperature * others.logsumexp(1).mean())
        return {name: torch.stack(values).mean() for name, values in parts.items()}


class Triplets(nn.Module):
    """Triplet loss with semi-hard mining, in Euclidean distance: max(0, d(a, p) - d(a, n) + margin).

    Args:
        squared: take squared distances, |f(a) - f(p)|^2 - |f(a) - f(n)|^2 + margin.
    """

    def __init__(self, model: SentenceTransformer, margin: float, squared: bool = False):
        super().__init__()
        distance = partial(BatchHardTripletLossDistanceFunction.eucledian_distance, squared=squared)
        self.triplets = BatchSemiHardTripletLoss(model, distance_metric=distance, margin=margin)

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        labels = torch.arange(len(views[0]), device=views[0].device).repeat(len(views))
        return self.triplets.compute_loss_from_embeddings([torch.cat(list(views))], labels)


class SoftNeighbours(nn.Module):
    """Soft nearest neighbour loss (Frosst et al., 2019), all views of a sentence being its neighbours:

    -1/b sum_i log( sum_{j != i, same sentence} exp(-||x_i - x_j||^2 / T) / sum_{k != i} exp(-||x_i - x_k||^2 / T) )

    Args:
        learned: learn T too; its logarithm is kept, so that it stays positive.
        normalized: scale the embeddings to length 1 first.
    """

    def __init__(self, temperature: float, learned: bool = False, normalized: bool = True):
        super().__init__()
        start = torch.tensor(math.log(temperature))
        self.log_temperature: Tensor
        if learned:
            self.log_temperature = nn.Parameter(start)
        else:
            self.register_buffer("log_temperature", start, persistent=False)
        self.normalized = normalized

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        x = torch.cat(list(views)).float()
        x = normalize(x) if self.normalized else x
        temperature = self.log_temperature.exp()
        sentence = torch.arange(len(views[0]), device=x.device).repeat(len(views))
        itself = torch.eye(len(x), dtype=torch.bool, device=x.device)
        logits = (-torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square() / temperature).masked_fill(
            itself, -torch.inf
        )
        others = logits.masked_fill(sentence[:, None] != sentence, -torch.inf)
        return (logits.logsumexp(1) - others.logsumexp(1)).mean()


class MaskedWords(nn.Module):
    """Masked language modelling: cross entropy of masked tokens, from the encoder's states and its own input embeddings."""

    def __init__(self, encoder: PreTrainedModel):
        super().__init__()
        size = encoder.config.hidden_size
        self.transform = nn.Sequential(nn.Linear(size, size), nn.GELU(), nn.LayerNorm(size))
        self.bias = nn.Parameter(torch.zeros(encoder.config.vocab_size))

    def forward(self, states: Tensor, labels: Tensor, table: Tensor) -> Tensor:
        """(batch, length, hidden) states and (batch, length) labels, -100 where nothing is masked."""
        masked = labels != -100
        logits = self.transform(states[masked]) @ table.T + self.bias
        total = F.cross_entropy(logits.float(), labels[masked], reduction="sum")
        return total / mean_over_processes(masked.sum().float()).clamp(min=1)


class Objective(nn.Module):
    """The loss of a batch of views, as sentence-transformers' trainer calls it: a dict whose values it logs and adds up."""

    def __init__(self, model: SentenceTransformer, recipe: EncoderRecipe):
        super().__init__()
        self.model = model
        self.contrast = make_contrast(model, recipe)
        self.mlm_weight, self.negatives = recipe.mlm_weight, recipe.negatives
        encoder = encoder_of(model)
        self.masked_words = MaskedWords(encoder) if recipe.mlm_weight else None

    def forward(self, features: Sequence[dict[str, Tensor]], labels: Tensor | None = None) -> dict[str, Tensor]:
        masked, hidden = features[0].pop(MASKED, None), features[0].pop(LABELS, None)
        views = [embed(self.model, column) for column in features]
        if get_world_size() > 1:
            views = [all_gather_with_grad(view) for view in views]
        others = len(views) - self.negatives
        contrast = self.contrast(views[:others], views[others:]) if self.negatives else self.contrast(views)
        losses = contrast if isinstance(contrast, dict) else {"contrast": contrast}
        if self.masked_words is not None and masked is not None and hidden is not None:
            encoder = encoder_of(self.model)
            states = encoder(input_ids=masked, attention_mask=features[0]["attention_mask"]).last_hidden_state
            table = encoder.get_input_embeddings().weight
            assert isinstance(table, Tensor)
            losses["mlm"] = self.mlm_weight * self.masked_words(states, hidden, table)
        return losses

    def average_gradients(self) -> None:
        """Over processes, of what is trained beside the encoder; the encoder's own are averaged by the trainer."""
        for name, parameter in self.named_parameters():
            if get_world_size() > 1 and ".model." not in f".{name}":
                parameter.grad = mean_over_processes(
                    torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                )

    def own_state(self) -> dict[str, Tensor]:
        """What is trained beside the encoder: a learned temperature, the head for masked words."""
        return {name: value for name, value in self.state_dict().items() if ".model." not in f".{name}"}


def mean_over_processes(value: Tensor) -> Tensor:
    """Of a tensor that every process has, without a gradient.

    >>> mean_over_processes(torch.tensor(3.0))
    tensor(3.)
    """
    if get_world_size() > 1:
        value = value.detach().clone()
        dist.all_reduce(value)
        value /= get_world_size()
    return value


def make_contrast(model: SentenceTransformer, recipe: EncoderRecipe) -> Callable[..., Tensor | dict[str, Tensor]]:
    """The contrastive part of a recipe's objective; parts by name are logged one by one and added up."""
    if recipe.objective == "triplet":
        return Triplets(model, recipe.margin, recipe.squared)
    if recipe.objective == "soft_neighbours":
        return SoftNeighbours(recipe.temperature, recipe.learn_temperature, recipe.normalized)
    if recipe.objective == "bilinear":
        size = model.get_embedding_dimension()
        assert size is not None, "a sentence encoder knows how large its embeddings are"
        return Bilinear(size, recipe.temperature)
    if recipe.objective == "alignment_distribution":
        return AlignmentAndDistribution(recipe.temperature)
    return Ranking(model, recipe.temperature, recipe.learn_temperature, recipe.objective == "nt_xent")


def encoder_of(model: nn.Module) -> PreTrainedModel:
    """The transformer inside, whatever wraps the model for several processes."""
    model = getattr(model, "module", model)
    assert isinstance(model, SentenceTransformer)
    encoder = model[0].auto_model
    assert isinstance(encoder, PreTrainedModel)
    return encoder


def embed(model: nn.Module, column: dict[str, Tensor]) -> Tensor:
    """(batch, dim) embeddings of one view of all sentences."""
    with multiplied_embeddings(encoder_of(model), column.pop(KEPT, None)):
        return model(column)["sentence_embedding"]


@contextlib.contextmanager
def multiplied_embeddings(encoder: PreTrainedModel, kept: Tensor | None) -> Iterator[None]:
    """Inside, what enters the first layer is multiplied by `kept` (batch, length, hidden); None leaves it as it is."""
    if kept is None:
        yield
        return
    embeddings = getattr(encoder, "embeddings", None) or encoder.get_input_embeddings()
    handle = embeddings.register_forward_hook(lambda module, inputs, output: output * kept.to(output.dtype))
    try:
        yield
    finally:
        handle.remove()
