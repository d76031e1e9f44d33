"""Selectors and gates against their equations, written out; decisions by threshold and by rate against loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hardkuma import HardKumaConfig
from hardkuma.batch_hardkuma import PUNCTUATION
from hardkuma.configuration_hardkuma import READS
from hardkuma.gate_head_hardkuma import Selector
from hardkuma.words_hardkuma import NUM_SURFACE_CLASSES
from tests.conftest import SENTENCES
from tests.norms import with_unequal_norms

CLAMPED = HardKumaConfig(concentration_bound="clamp")


# ---- one selector -------------------------------------------------------------------------------------------------------


def test_selector_equation() -> None:
    """softplus(W2 gelu(W1 x)) + 1, clamped to [1, 10], against the written-out form."""
    selector = Selector(CLAMPED, inputs=7, hidden_size=5)
    with torch.no_grad():
        selector.shapes.weight.mul_(100)
    x, scalar = torch.randn(2, 3, 6), torch.randn(2, 3, 1)
    alpha, beta = selector(selector.join([x, scalar]))
    y = torch.cat([x, scalar], dim=-1)
    y = torch.nn.functional.gelu(y @ selector.hidden.weight.T + selector.hidden.bias)
    y = torch.nn.functional.softplus(y @ selector.shapes.weight.T + selector.shapes.bias) + 1
    expected = y.clamp(1, 10)
    assert torch.allclose(torch.stack([alpha, beta], -1), expected, atol=1e-5)
    assert bool((expected == 10).any()), "the clamp is exercised"


@pytest.mark.parametrize(("low", "high"), [(1.0, 10.0), (0.05, 100.0)])
def test_smooth_bound_keeps_a_gradient(low: float, high: float) -> None:
    selector = Selector(HardKumaConfig(concentration_min=low, concentration_max=high), inputs=1, hidden_size=1)
    with torch.no_grad():  # gelu(x + 1000) - 1000 is x
        for linear, bias in ((selector.hidden, 1000.0), (selector.shapes, -1000.0)):
            linear.weight.fill_(1.0)
            linear.bias.fill_(bias)
    x = torch.tensor([-50.0, -5.0, 0.0, 5.0, 50.0, 500.0], requires_grad=True)
    alpha, _ = selector(x[:, None])
    s = torch.nn.functional.softplus(x)
    assert torch.allclose(alpha, low + (high - low) * s / (high - low + s), rtol=1e-4)
    assert bool((alpha >= low).all()) and bool((alpha <= high).all()) and bool((alpha.diff() >= 0).all())
    (gradient,) = torch.autograd.grad(alpha.sum(), x)
    assert bool((gradient[1:] > 0).all()), "a clamp would have none at 500"


def test_selector_is_fp32_in_any_dtype() -> None:
    selector = Selector(HardKumaConfig(), inputs=4, measures=2).to(torch.bfloat16)
    x = selector.join([torch.randn(1, 2, 4, dtype=torch.bfloat16)], torch.randn(1, 2, 2, dtype=torch.bfloat16))
    assert x.dtype == torch.float32 and {shape.dtype for shape in selector(x)} == {torch.float32}


def test_measures_against_the_equation() -> None:
    """W2 gelu(W1 x) + W3 z, with z = asinh of the standardised measures, which are the last numbers of x."""
    selector = Selector(CLAMPED, inputs=6, measures=2, hidden_size=5)
    selector.center.copy_(torch.tensor([1.0, -2.0]))
    selector.spread.copy_(torch.tensor([0.5, 3.0]))
    vectors, measures = torch.randn(1, 4, 6), 5 * torch.randn(1, 4, 2)
    alpha, beta = selector(selector.join([vectors], measures))
    for word in range(4):
        z = torch.asinh((measures[0, word] - torch.tensor([1.0, -2.0])) / torch.tensor([0.5, 3.0]))
        hidden = selector.hidden.weight @ torch.cat([vectors[0, word], z]) + selector.hidden.bias
        y = selector.shapes.weight @ torch.nn.functional.gelu(hidden) + selector.shapes.bias
        y = y + selector.direct.weight @ z + selector.direct.bias
        expected = (torch.nn.functional.softplus(y) + 1).clamp(max=10)
        assert torch.allclose(torch.stack([alpha[0, word], beta[0, word]]), expected, atol=1e-5)


@torch.no_grad()
def test_the_hidden_layer_is_called_as_a_module(make_two: Callable, tokenize: Callable) -> None:
    """Whoever puts a hook on it sees all that is read, and whoever puts something in its place (offloading) is asked."""
    model = make_two()
    inputs = tokenize(model, ["marie curie moved to paris", "paris"])
    expected = model(**inputs)
    hidden = model.gate_head.selectors[0].hidden
    seen: list[int] = []
    hook = hidden.register_forward_hook(lambda module, args, output: seen.append(args[0].shape[-1]))
    assert torch.equal(model(**inputs).gate_probs, expected.gate_probs) and seen == [hidden.in_features]
    hook.remove()
    hidden.forward = lambda x: torch.zeros(*x.shape[:-1], hidden.out_features)
    assert not torch.allclose(model(**inputs).alpha[:, 0], expected.alpha[:, 0])


# ---- the gates of words -------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_gates_against_a_loop(make_two: Callable, tokenize: Callable) -> None:
    """logit p(w) = l_w + rate shift + form + backoff (1 - largest) (logit of w in meaning), by row and word."""
    changed = {"meaning": {"form_weight": 0.4}, "entities": {"backoff": 2.0, "layer": 1}}
    model = with_unequal_norms(make_two(selectors=changed))
    head, inputs = model.gate_head, tokenize(model, [*SENTENCES, ""])
    head.rate_shift.copy_(torch.tensor([-0.6, 0.9]))
    head.surface_log_odds.normal_()
    forms = torch.randint(0, NUM_SURFACE_CLASSES, inputs["input_ids"].shape)
    out = model(**inputs, surface_ids=forms)
    alone = model(**inputs, surface_ids=forms, selector="entities")
    assert torch.equal(alone.gate_probs, out.gate_probs[:, 1]), "meaning is read along where it is not asked for"
    batch = model.prepare(**inputs)
    assert bool((out.gate_probs[:, :, 0] == 0).all()), "[CLS] cannot be selected"
    meaning = head.log_odds(0, model.selector_inputs(0, **inputs, surface_ids=forms)[0]) + head.rate_shift[0]
    for k, name in enumerate(("meaning", "entities")):
        config = model.config.selectors[name]
        x, counts = model.selector_inputs(k, **inputs, surface_ids=forms)
        for row, read in enumerate(head.log_odds(k, x).split(counts.tolist())):
            words: list[list[int]] = []
            for place in batch.content[row].nonzero().flatten().tolist():
                words[-1].append(place) if batch.continues[row, place] else words.append([place])
            assert len(words) == len(read)
            carried = meaning.split(counts.tolist())[row].tolist()
            logits = [float(value + head.rate_shift[k]) for value in read]
            largest = max((1 / (1 + math.exp(-logit)) for logit in logits), default=0.0)
            for word, logit, weight in zip(words, logits, carried, strict=True):
                logit += config.backoff * (1 - largest) * weight
                logit += config.form_weight * float(head.surface_log_odds[k, forms[row, word[0]]])
                probs = out.gate_probs[row, k, word]
                assert torch.allclose(probs, torch.tensor(1 / (1 + math.exp(-logit))), atol=1e-5)


def test_parts_divide_the_gate_of_meaning(make_model: Callable, tokenize: Callable) -> None:
    """p(part k selects w) = p(meaning selects w) softmax_k(log-odds of the parts), whichever selectors are asked for."""
    part = {"unit": "part", "reads": ["input"]}
    selectors = {"a": part, "meaning": {"unit": "word"}, "b": part, "c": part}
    model = make_model(selectors=selectors)
    batch = tokenize(model, ["marie curie moved to paris", "paris"])
    parts = [0, 2, 3]
    with torch.no_grad():
        for parameter in model.gate_head.parameters():
            parameter.copy_(torch.randn_like(parameter))
        model.gate_head.rate_shift[1] = -0.7
        probs = model(**batch).gate_probs
        content = model.prepare(**batch).content
        read = torch.stack([model.gate_head.log_odds(k, model.selector_inputs(k, **batch)[0]) for k in range(4)])
        expected = torch.sigmoid(read[1] - 0.7) * read[parts].softmax(0)
        assert torch.allclose(probs[:, parts].transpose(0, 1)[:, content], expected, atol=1e-5)
        assert torch.allclose(probs[:, parts].sum(1), probs[:, 1], atol=1e-5)
        for number, name in enumerate(selectors):
            assert torch.allclose(model(**batch, selector=name).gate_probs, probs[:, number], atol=1e-6), name
            assert torch.allclose(model.gate_probabilities(**batch, selector=name), probs[:, number], atol=1e-6), name
        both = model(**batch, selector=["c", "meaning"]).gate_probs
        assert torch.allclose(both, probs[:, [3, 1]], atol=1e-6)
        model.gate_head.rate_shift[2] = 1.5
        shifted = model(**batch).gate_probs
    assert torch.equal(shifted[:, 0], probs[:, 0]), "a part's rate is its own"
    moved = torch.logit(shifted[:, 2][content]) - torch.logit(probs[:, 2][content])
    assert torch.allclose(moved, torch.tensor(1.5), atol=1e-3)


def test_selectors_learn_together_as_each_alone(make_two: Callable, tokenize: Callable) -> None:
    """The loss of both is the sum of those of each, and so are the gradients, but for what compares selectors."""
    model = make_two().train()
    inputs = tokenize(model, ["marie curie moved to paris", "paris"])
    noise = torch.rand(2, 2, inputs["input_ids"].shape[1])
    model(**inputs, noise=noise, return_loss=True).loss.backward()
    together = {name: p.grad.clone() for name, p in model.gate_head.named_parameters()}
    model.zero_grad()
    for k, name in enumerate(("meaning", "entities")):
        model(**inputs, noise=noise[:, k : k + 1], selector=name, return_loss=True).loss.backward()
    assert all(bool(gradient.any()) for name, gradient in together.items() if name.endswith("hidden.weight"))
    for name, parameter in model.gate_head.named_parameters():
        torch.testing.assert_close(together[name], parameter.grad, atol=1e-6, rtol=1e-4)


class LargestTensor(TorchDispatchMode):
    """How many numbers the largest tensor has that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.numbers = max([self.numbers, *(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))])
        return result


@pytest.mark.parametrize("unit", ["token", "word", "name"])
@torch.no_grad()
def test_no_tensor_of_the_head_is_quadratic_in_the_length(unit: str, make_model: Callable) -> None:
    every = {"reads": list(READS), "unit": unit, "hidden_size": 16}
    selectors = {"meaning": every, "part": {"unit": "part"}} if unit != "token" else {"meaning": every}
    model = make_model("hardkuma_static", selectors=selectors)
    if model.gate_head.roles is not None:
        model.gate_head.roles[::3] = 1
    largest = {}
    for length in (64, 512):
        ids = torch.randint(4, model.config.vocab_size, (1, length))
        batch = model.prepare(ids, surface_ids=torch.ones_like(ids))
        chosen = list(range(len(selectors)))
        encoded = model.encode_batch(batch, layers=[0], attention=True)
        with LargestTensor() as watch:
            words = model.gate_head(encoded, batch, chosen, model.get_input_embeddings())
            probs = words.probabilities(0.5)
            configs = [model.config.selector(k) for k in chosen]
            words.spread(words.decide(probs, configs, 0.5, rate=0.3))
            words.spread(words.decide(probs, configs, 0.999))
        largest[length] = watch.numbers
    assert largest[64] >= 64 * 32 and largest[512] < 8.2 * largest[64]
    assert largest[512] < 512**2


# ---- which words are selected -------------------------------------------------------------------------------------------


@torch.no_grad()
def test_punctuation_is_not_counted_unless_it_is_all(make_two: Callable, tokenize: Callable) -> None:
    model = make_two(decision_threshold=0.999)
    marks = model.tokenizer.convert_tokens_to_ids([".", ",", "!", "?"])
    model.gate_head.token_roles[marks] = PUNCTUATION
    inputs = tokenize(model, ["paris , london .", "! ?"])
    is_mark = torch.isin(inputs["input_ids"], torch.tensor(marks))[:, None]
    at_rate, by_threshold = model(**inputs, rate=1.0).gates, model(**inputs).gates
    assert at_rate[0].sum(-1).tolist() == [2.0, 2.0] and not (at_rate * is_mark)[0].any()
    assert at_rate[1].sum(-1).tolist() == [2.0, 2.0], "where there is nothing else, it is"
    assert by_threshold[:, 0].sum(-1).tolist() == [1.0, 1.0] and not (by_threshold * is_mark)[0].any()
    assert not by_threshold[:, 1].any(), "names there may be none"
