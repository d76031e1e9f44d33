"""The selector against its equation, written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hardkuma.gate_head_hardkuma import Selector


def test_selector_equation() -> None:
    """softplus(W2 gelu(W1 LN(x))) + 1, clamped to [1, 10], against the written-out form."""
    selector = Selector([6], num_scalars=1, hidden_size=5, shape_bound="clamp")
    with torch.no_grad():
        selector.shapes.weight.mul_(100)
    x, extra = torch.randn(2, 3, 6), torch.randn(2, 3, 1)
    alpha, beta = selector(selector.join([x], [extra]))
    y = torch.cat([torch.nn.functional.layer_norm(x, (6,)), extra], dim=-1)
    y = torch.nn.functional.gelu(y @ selector.hidden.weight.T + selector.hidden.bias)
    y = torch.nn.functional.softplus(y @ selector.shapes.weight.T + selector.shapes.bias) + 1
    expected = y.clamp(1, 10)
    assert torch.allclose(torch.stack([alpha, beta], -1), expected, atol=1e-5)
    assert bool((expected == 10).any()), "the clamp is exercised"


@pytest.mark.parametrize(("low", "high"), [(1.0, 10.0), (0.05, 100.0)])
def test_smooth_bound_keeps_a_gradient(low: float, high: float) -> None:
    selector = Selector([4], shape_min=low, shape_max=high)
    x = torch.tensor([-50.0, -5.0, 0.0, 5.0, 50.0, 500.0], requires_grad=True)
    shapes = selector.bound(x)
    assert bool((shapes >= low).all()) and bool((shapes <= high).all())
    assert bool((shapes.diff() >= 0).all())
    (gradient,) = torch.autograd.grad(shapes.sum(), x)
    assert bool((gradient[1:] > 0).all()), "a clamp would have none at 500"


def test_selector_is_fp32_in_any_dtype() -> None:
    selector = Selector([4]).to(torch.bfloat16)
    alpha, _ = selector(selector.join([torch.randn(1, 2, 4, dtype=torch.bfloat16)], []))
    assert alpha.dtype == torch.float32


def test_selector_of_words_and_measures_against_the_equation() -> None:
    """W2 gelu(mean over the word of W1 x) + W3 z, with z = asinh of the standardised measures."""
    selector = Selector([6], hidden_size=5, num_measures=2)
    selector.center.copy_(torch.tensor([1.0, -2.0]))
    selector.spread.copy_(torch.tensor([0.5, 3.0]))
    words = [[0, 1, 2], [3], [4, 5]]
    states, measures = torch.randn(1, 6, 6), torch.randn(1, 6, 2)
    for word in words:
        measures[:, word] = measures[:, word[:1]]  # which all tokens of a word share
    same = torch.zeros(6, 6)
    for word in words:
        for i in word:
            same[i, word] = 1 / len(word)
    alpha, beta = selector(selector.join([states], [], measures), same[None])
    z = torch.asinh((measures - torch.tensor([1.0, -2.0])) / torch.tensor([0.5, 3.0]))
    x = torch.cat([torch.nn.functional.layer_norm(states, (6,)), z], dim=-1)[0]
    for word in words:
        hidden = sum(selector.hidden.weight @ x[i] + selector.hidden.bias for i in word) / len(word)
        y = selector.shapes.weight @ torch.nn.functional.gelu(hidden) + selector.shapes.bias
        y = y + selector.direct.weight @ z[0, word[0]] + selector.direct.bias
        expected = selector.bound(y)
        for i in word:
            assert torch.allclose(torch.stack([alpha[0, i], beta[0, i]]), expected, atol=1e-5)


@torch.no_grad()
def test_parts_side_by_side_or_one_after_the_other(make_two: Callable, tokenize: Callable) -> None:
    """Apart, but where somebody has put something on the layer that reads them: he sees them side by side."""
    model = make_two(selector_inputs={"meaning": ["state", "norm", "removal"], "entities": ["state"]})
    inputs = tokenize(model, ["marie curie moved to paris", "paris"])
    expected = model(**inputs)
    seen: list[torch.Size] = []
    hidden = model.gate_head.selectors[0].hidden
    hook = hidden.register_forward_hook(lambda module, args, output: seen.append(args[0].shape))
    for found in (model(**inputs), model(**inputs, selector="meaning")):
        for name in ("gate_probs", "alpha", "beta"):
            whole = expected[name] if found[name].ndim == 3 else expected[name][:, 0]
            assert torch.allclose(found[name], whole, atol=1e-6), name
    assert seen == [(*inputs["input_ids"].shape, hidden.in_features)] * 2
    hook.remove()
    model(**inputs)
    assert len(seen) == 2
    hidden.forward = lambda x: torch.zeros(*x.shape[:-1], hidden.out_features)  # as tools for offloading do it
    assert not torch.allclose(model(**inputs).alpha[:, 0], expected.alpha[:, 0])


def test_selectors_that_read_together_learn_as_each_alone(make_two: Callable, tokenize: Callable) -> None:
    model = make_two(selector_inputs={"meaning": ["state", "norm", "removal"], "entities": ["state"]}).train()
    inputs = tokenize(model, ["marie curie moved to paris", "paris"])
    noise = torch.rand(2, 2, inputs["input_ids"].shape[1])
    gradients = []
    for apart in (False, True):
        for selector in model.gate_head.selectors if apart else ():
            selector.hidden.register_forward_hook(lambda module, args, output: None)  # who must see the layer's whole input
        model.zero_grad()
        model(**inputs, noise=noise, return_loss=True).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.gate_head.named_parameters()})
    together, alone = gradients
    assert any(bool(gradient.any()) for name, gradient in together.items() if name.startswith("selectors.0.hidden"))
    for name in together:
        torch.testing.assert_close(together[name], alone[name], atol=1e-6, rtol=1e-4)


def test_kinds_divide_the_gate_of_meaning(make_model: Callable, tokenize: Callable) -> None:
    """p(kind k selects w) = p(meaning selects w) softmax_k(log-odds of the kinds), whichever selectors are asked for."""
    unit = {"meaning": "word", "a": "kind", "b": "kind", "c": "kind"}
    inputs = {"meaning": ["state"], "a": ["input"], "b": ["input"], "c": ["input"]}
    model = make_model(selector_names=list(unit), selector_unit=unit, selector_inputs=inputs).eval()
    batch = tokenize(model, ["marie curie moved to paris", "paris"])
    with torch.no_grad():
        for parameter in model.gate_head.parameters():
            parameter.copy_(torch.randn_like(parameter))
        model.gate_head.rate_shift[0] = -0.7
        probs = model(**batch).gate_probs
        read = torch.stack([model.gate_head.log_odds(k, model.selector_inputs(k, **batch)) for k in range(4)], dim=1)
        expected = torch.sigmoid(read[:, :1] - 0.7) * read[:, 1:].softmax(1)
        content = probs[:, 0] > 0
        assert torch.allclose(probs[:, 1:] * content[:, None], expected * content[:, None], atol=1e-5)
        assert torch.allclose(probs[:, 1:].sum(1), probs[:, 0], atol=1e-5)
        for number, name in enumerate(unit):
            assert torch.allclose(model(**batch, selector=name).gate_probs, probs[:, number], atol=1e-6), name
            assert torch.allclose(model.gate_probabilities(**batch, selector=name), probs[:, number], atol=1e-6), name
        model.gate_head.rate_shift[2] = 1.5
        shifted = model(**batch).gate_probs
    assert torch.equal(shifted[:, 1], probs[:, 1]), "a kind's rate is its own"
    assert torch.allclose(
        torch.logit(shifted[:, 2][content]) - torch.logit(probs[:, 2][content]), torch.tensor(1.5), atol=1e-3
    )
