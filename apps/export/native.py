"""A stock token-classification checkpoint that imitates the gates, for services that run no custom code.

The encoder keeps its weights, up to the layer that the selector reads: later ones would only mix that away. The linear
head of the stock class is fitted to the gates' probabilities on unlabelled text. The gate itself is a small network, so
this is a fit: how far it agrees with the gates is measured on text that was held out and written on the card.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import AutoModelForTokenClassification, PreTrainedModel

from ...batch_hardkuma import content_mask
from ...checkpoint_hardkuma import staged, write_tokenizer
from ...common.models import no_progress_bar
from ...configuration_hardkuma import ENTITIES
from ...data.tokens import token_batches
from ...modeling_hardkuma import HardKumaModel
from .cards import Agreement, agreement, native_card

LABELS = {0: "O", 1: "ENTITY"}
HELD_OUT = 0.2  # share of the texts that only measures
RIDGE = 1e-4


def export_native(
    model: HardKumaModel,
    output: str | Path,
    texts: Sequence[str],
    *,
    source: str = "the bundled corpus",
    selector: str | None = None,
    progress: bool = False,
) -> dict[str, Agreement]:
    """Fit, measure and write the stock checkpoint; returns its agreement with the gates on held-out text.

    Args:
        model: in eval mode.
        output: folder to write.
        texts: unlabelled; every fifth one is held out.
        source: what the card says the texts are.
        selector: the name of the selector to imitate; "entities" by default, or the first.

    Returns:
        "gates": with the gates as the encoder alone gives them, to which the head is fitted; "surface", where the model has
        a surface view: with the gates as the pipeline gives them, which also see letter case.
    """
    held_out = list(texts[:: round(1 / HELD_OUT)])
    fitted = [text for number, text in enumerate(texts) if number % round(1 / HELD_OUT)]
    if not fitted:
        raise ValueError(f"{len(texts)} texts are too few to fit a head and hold some out: give at least 2.")
    number = model.config.find_selector(selector, default=ENTITIES)
    stock = stock_classifier(model, number)
    head = linear_head(stock)
    threshold = model.config.decision_threshold
    features, gates, _ = _collect(model, number, stock, head, fitted, "fitting", progress)
    weight, bias = fit_logistic(features, gates["gates"])
    # Soft targets give the right mean probability; the decision is to fall where the gates' own does, as often as theirs.
    scores = features @ weight + bias
    share = float((gates["gates"] > threshold).float().mean())
    bias = bias - float(torch.quantile(_sample(scores), 1 - share)) if 0 < share < 1 else bias
    with torch.no_grad():
        head.weight.copy_(torch.stack([-weight / 2, weight / 2]))
        head.bias.copy_(torch.stack([-bias / 2, bias / 2]))
    _, gates, probabilities = _collect(model, number, stock, head, held_out, "measuring", progress)
    agreements = {
        name: agreement(probabilities.numpy(), values.numpy(), gate_threshold=threshold) for name, values in gates.items()
    }
    layers = stock.config.num_hidden_layers
    card = native_card(
        model,
        agreements,
        source,
        len(fitted),
        len(held_out),
        layers=layers if layers < model.encoder.config.num_hidden_layers else None,
        selector=model.config.names[number] if model.config.num_selectors > 1 else None,
    )
    with staged(output) as folder:
        with no_progress_bar():
            stock.save_pretrained(folder)
        write_tokenizer(folder, model.tokenizer, model.config)
        (folder / "README.md").write_text(card, encoding="utf-8")
        report: dict[str, Any] = {"fitted_texts": len(fitted), "held_out_texts": len(held_out), "source": source}
        report["selector"] = model.config.names[number]
        report.update({name: values.as_dict() for name, values in agreements.items()})
        (folder / "agreement.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return agreements


def stock_classifier(model: HardKumaModel, selector: int = 0) -> PreTrainedModel:
    """The stock class of the model's encoder, up to the layer that the selector reads, with the encoder's weights and a
    fresh linear head; in eval mode."""
    config = copy.deepcopy(model.encoder.config)
    config.id2label, config.label2id = dict(LABELS), {name: number for number, name in LABELS.items()}
    try:
        with torch.device("meta"):
            left_out = set(AutoModelForTokenClassification.from_config(config).base_model.state_dict())
        _cut(config, model.config.depth([selector]))
        stock = AutoModelForTokenClassification.from_config(config)
    except ValueError as error:
        raise ValueError(
            f"transformers has no token-classification class for an encoder of type {config.model_type!r}; "
            "export to ONNX instead, or serve the checkpoint with trust_remote_code=True."
        ) from error
    left_out -= set(stock.base_model.state_dict())
    loaded = stock.base_model.load_state_dict(model.encoder.state_dict(), strict=False)
    # Poolers take no part in token classification.
    lost = [key for key in (*loaded.missing_keys, *loaded.unexpected_keys) if "pooler" not in key and key not in left_out]
    if lost:
        raise ValueError(f"the weights of {type(model.encoder).__name__} do not fit {type(stock).__name__}: {lost[0]!r}.")
    return stock.float().to(model.device).eval()


def _cut(config: Any, depth: int) -> None:
    """Leave out the layers above `depth`, as `hidden_states` counts them; 0 would leave nothing to run."""
    if not 0 < depth < config.num_hidden_layers:
        return
    if isinstance(getattr(config, "layer_types", None), list):
        config.layer_types = config.layer_types[:depth]
    config.num_hidden_layers = depth


def linear_head(stock: PreTrainedModel) -> nn.Linear:
    """The layer that turns token states into the two labels."""
    inside = set(stock.base_model.modules())
    heads = [
        module
        for module in stock.modules()
        if isinstance(module, nn.Linear) and module not in inside and module.out_features == len(LABELS)
    ]
    if len(heads) != 1 or heads[0].bias is None:
        raise ValueError(f"{type(stock).__name__} has no single linear head with a bias; export to ONNX instead.")
    return heads[0]


@torch.no_grad()
def _collect(
    model: HardKumaModel,
    selector: int,
    stock: PreTrainedModel,
    head: nn.Linear,
    texts: Iterable[str],
    title: str,
    progress: bool,
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Of all content tokens: what the head sees (n, hidden), the gates by name (n,), the stock probabilities (n,)."""
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with_surface = bool(model.gate_head.surface_log_odds.any())
    features: list[Tensor] = []
    probabilities: list[Tensor] = []
    gates: dict[str, list[Tensor]] = {"gates": [], **({"surface": []} if with_surface else {})}
    bar = tqdm(desc=title, unit="batch", disable=not progress, leave=False)
    words, name_of_selector = model.config.selector(selector).unit != "token", model.config.names[selector]
    options: dict[str, Any] = {"shapes": with_surface, "words": words, "language": model.config.language}
    for batch in token_batches(model.tokenizer, texts, model.max_length, **options):
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        shapes, continues = batch.pop("surface_ids", None), batch.pop("continues", None)
        content = content_mask(model.config, batch["input_ids"], batch["attention_mask"], None)
        logits = stock(**batch).logits
        features.append(seen.pop()[content].float().cpu())
        probabilities.append(logits.float().softmax(-1)[..., 1][content].cpu())
        for name, surface_ids in (("gates", None), ("surface", shapes))[: len(gates)]:
            probs = model.gate_probabilities(
                **batch, surface_ids=surface_ids, continues=continues, selector=name_of_selector
            )
            gates[name].append(probs[content].cpu())
        bar.update()
    bar.close()
    hook.remove()
    if not sum(len(part) for part in features):
        raise ValueError("the texts hold no token to fit a head to; give texts with words.")
    return torch.cat(features), {name: torch.cat(parts) for name, parts in gates.items()}, torch.cat(probabilities)


def _sample(values: Tensor, most: int = 1_000_000) -> Tensor:
    # torch.quantile refuses more than 16 million values.
    return values if len(values) <= most else values[:: len(values) // most + 1]


def fit_logistic(features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logistic regression on soft targets: weights (hidden,) and bias () that minimise the cross-entropy.

    Args:
        features: (n, hidden)
        targets: (n,) probabilities.

    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(2000, 3)
    >>> weight, bias = fit_logistic(x, torch.sigmoid(x @ torch.tensor([1.0, -2.0, 0.0]) + 0.5))
    >>> [round(float(value), 1) + 0.0 for value in (*weight, bias)]
    [1.0, -2.0, 0.0, 0.5]
    """
    mean, scale = features.mean(0), features.std(0).clamp_min(1e-6)
    weight, bias = torch.zeros(features.shape[1]), torch.logit(targets.mean(), eps=1e-4).clone()
    weight.requires_grad_(), bias.requires_grad_()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        # Scaled features make the problem round; the scale is folded into the weights, not into a copy of the data.
        scores = features @ (weight / scale) - (mean / scale) @ weight + bias
        value = nn.functional.binary_cross_entropy_with_logits(scores, targets) + RIDGE * weight.square().mean()
        value.backward()
        return value

    optimizer.step(loss)
    weight, bias = weight.detach(), bias.detach()
    if not bool(np.isfinite([float(weight.sum()), float(bias)]).all()):
        raise ValueError("the fit of the linear head diverged; give more or other texts.")
    return weight / scale, bias - (mean / scale) @ weight
