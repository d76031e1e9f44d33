"""What selectors read: layers by number and by depth, what a sentence loses without a word; and that gates that read an
inner layer do not pay for the layers above it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hardkuma import HardKumaConfig, HardKumaModel
from hardkuma.batch_hardkuma import continuing_tokens, prepare
from hardkuma.configuration_hardkuma import layer_number
from hardkuma.features_hardkuma import depth_needed, pooled_measures, removal_measures
from hardkuma.pooling_hardkuma import pool
from tests.conftest import FAMILIES, SENTENCES, TWO_SELECTORS

# Families whose last state is that of the last layer; the others end with a norm and run as a whole.
PLAIN = ("bert", "roberta", "xlm-roberta", "mpnet", "distilbert")


def layers_run(model: HardKumaModel, inputs: dict, **options: str) -> int:
    """How many of the encoder's layers one call runs."""
    number = model.encoder.config.num_hidden_layers
    lists = [m for m in model.encoder.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == number]
    called = []
    hooks = [layer.register_forward_hook(lambda *_: called.append(1)) for layer in (lists[0] if lists else ())]
    model.gate_probabilities(**inputs, **options)
    for hook in hooks:
        hook.remove()
    return len(called)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layer", [-1, -2, 1])
def test_probabilities_are_those_of_a_full_pass(family: str, layer: int, make_model: Callable, tokenize: Callable) -> None:
    if family == "hardkuma_static" and layer != -1:
        pytest.skip("has no layers")
    model = make_model(family, selector_layer=layer)
    inputs = tokenize(model, SENTENCES)
    assert torch.equal(model.gate_probabilities(**inputs), model(**inputs).gate_probs)
    if family in PLAIN:
        assert layers_run(model, inputs) == (2 if layer == -1 else 1)


def test_weights_are_shared_and_counted_once(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selector_layer=1)
    inputs, names = tokenize(model, SENTENCES), list(model.state_dict())
    before = model.gate_probabilities(**inputs)
    assert list(model.state_dict()) == names and len(list(model.parameters())) == len(
        list(copy.deepcopy(model).parameters())
    )
    with torch.no_grad():
        for weight in model.encoder.parameters():
            weight.mul_(1.5)
    after = model.gate_probabilities(**inputs)
    assert not torch.equal(before, after) and torch.equal(after, model(**inputs).gate_probs)
    model.to(torch.float64)
    assert torch.equal(model.gate_probabilities(**inputs), model(**inputs).gate_probs)
    model.encoder = make_model(seed=1).encoder
    assert torch.equal(model.gate_probabilities(**inputs), model(**inputs).gate_probs)


def test_attention_features_need_the_whole_encoder(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selector_layer=1, selector_inputs=["state", "attention"])
    inputs = tokenize(model, SENTENCES)
    assert layers_run(model, inputs) == 2
    assert torch.equal(model.gate_probabilities(**inputs), model(**inputs).gate_probs)


def test_selectors_padding_and_surface(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selector_layer=1, num_selectors=2)
    model.gate_head.surface_log_odds[:, 3] = 2.0
    inputs = tokenize(model, SENTENCES)
    shapes = torch.full_like(inputs["input_ids"], 3)
    expected = model(**inputs, surface_ids=shapes).gate_probs
    assert expected.ndim == 3
    assert torch.equal(model.gate_probabilities(**inputs, surface_ids=shapes), expected)
    left = {name: values.flip(1) for name, values in inputs.items()}
    assert torch.equal(model.gate_probabilities(**left), model(**left).gate_probs)


def test_a_broken_encoder_is_reported(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selector_layer=1)
    inputs = tokenize(model, SENTENCES)
    model.gate_probabilities(**inputs)
    with torch.no_grad():
        next(model.encoder.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="NaN or infinity"):
        model.gate_probabilities(**inputs)


# ---- layers by depth, several layers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layers", "numbers"), [(1, [0, 0, 1]), (2, [0, 1, 2]), (3, [0, 2, 3]), (6, [0, 3, 6])])
def test_a_fraction_is_a_layer_of_any_depth(
    layers: int, numbers: list[int], make_model: Callable, tokenize: Callable
) -> None:
    for fraction, number in zip((0.0, 0.5, 1.0), numbers, strict=True):
        assert layer_number(fraction, layers) == number
        ours, theirs = (make_model(layers=layers, selector_layer=layer) for layer in (fraction, number))
        inputs = tokenize(ours, SENTENCES)
        assert torch.equal(ours(**inputs).gate_probs, theirs(**inputs).gate_probs)
        assert torch.equal(ours.gate_probabilities(**inputs), theirs.gate_probabilities(**inputs))


def test_one_layer_under_two_names(tokenize: Callable, make_model: Callable) -> None:
    """0 and 0.0 are the same states, and equal as keys of a dictionary."""
    layers = {"a": 0, "b": 0.0}
    model = make_model(selector_names=["a", "b"], selector_layer=layers, selector_inputs=["state", "norm"])
    inputs = tokenize(model, SENTENCES)
    same = make_model(num_selectors=2, selector_layer=0, selector_inputs=["state", "norm"])
    assert torch.equal(model(**inputs).gate_probs, same(**inputs).gate_probs)


@torch.no_grad()
def test_several_layers_side_by_side_against_the_equation(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(layers=4, selector_layer=[0, 0.5, -1], selector_inputs=["state", "norm"])
    inputs = tokenize(model, SENTENCES)
    hidden = model(**inputs, output_hidden_states=True).hidden_states
    parts = [torch.nn.functional.layer_norm(hidden[number], (32,)) for number in (0, 2, 4)]
    x = torch.cat([*parts, hidden[4].square().mean(-1, keepdim=True).sqrt()], dim=-1)
    selector = model.gate_head.selectors[0]
    alpha, beta = selector(x)
    out = model(**inputs)
    assert torch.allclose(out.alpha, alpha, atol=1e-5) and torch.allclose(out.beta, beta, atol=1e-5)
    assert selector.hidden.weight.shape[1] == 3 * 32 + 1


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_selector_runs_as_many_layers_as_it_reads(side: str, make_two: Callable, tokenize: Callable) -> None:
    model = make_two(layers=4)
    model.tokenizer.padding_side = side
    inputs = tokenize(model, SENTENCES)
    out = model(**inputs)
    for name in ("meaning", "entities"):
        model.gate_probabilities(**inputs, selector=name)  # the first time it is tried out whether layers can be left out
    for _ in range(2):
        for number, (name, layers) in enumerate((("meaning", 4), ("entities", 2))):
            assert layers_run(model, inputs, selector=name) == layers
            found = model.gate_probabilities(**inputs, selector=name)
            assert torch.equal(found, model(**inputs, selector=name).gate_probs) and found.ndim == 2
            assert torch.allclose(found, out.gate_probs[:, number], atol=1e-6)
    assert torch.equal(model.gate_probabilities(**inputs), out.gate_probs) and layers_run(model, inputs) == 4


def test_depth_needed() -> None:
    config = HardKumaConfig(**{**TWO_SELECTORS, "selector_inputs": {"meaning": ["anchor"], "entities": ["state"]}})
    assert [depth_needed(config, chosen, 6) for chosen in ([0], [1], [0, 1])] == [6, 3, 6]
    assert depth_needed(HardKumaConfig(selector_inputs=["input"]), [0], 6) == 0
    assert depth_needed(HardKumaConfig(selector_layer=[0.0, 5, 0.5]), [0], 6) == 6, "of several layers none is left out"


def test_lower_layers_leave_the_whole_encoder_as_it_is() -> None:
    """They share layers, on which transformers would record states twice."""
    names = ["meaning", "entities"]
    torch.manual_seed(0)
    model = HardKumaModel.from_encoder(
        "sentence-transformers/all-MiniLM-L6-v2", selector_names=names, selector_layer={"meaning": [2, 5], "entities": 4}
    ).eval()
    inputs = model.tokenizer(["Marie Curie moved to Paris."], return_tensors="pt")
    with torch.inference_mode():  # nothing ran before
        early = model.gate_probabilities(**inputs, selector="entities")
        states = model(**inputs, output_hidden_states=True).hidden_states
        both = model(**inputs).gate_probs
        meaning = model.gate_probabilities(**inputs, selector="meaning")
    assert len(states) == 7
    assert torch.equal(early, both[:, 1]) and torch.equal(meaning, both[:, 0])
    head = model.gate_head
    alpha, _ = head.selectors[1](head.join(1, {"state 4": states[4]}))
    assert torch.allclose(alpha, model(**inputs, selector="entities").alpha, atol=1e-6)


# ---- states of inner layers ---------------------------------------------------------------------------------------------


def asked_for_states(model: HardKumaModel, inputs: dict) -> tuple[bool, torch.Tensor]:
    """Whether one call has transformers keep the states of all layers, and its gates."""
    asked: list[bool] = []
    watch = model.encoder.register_forward_pre_hook(
        lambda module, args, options: asked.append(bool(options.get("output_hidden_states"))), with_kwargs=True
    )
    probs = model(**inputs, return_embeddings=False).gate_probs
    watch.remove()
    return asked[0], probs


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "hardkuma_static"])
def test_only_states_that_are_read_are_kept(family: str, make_model: Callable, tokenize: Callable) -> None:
    model = make_model(family, selector_layer=[0, 1, -1])
    inputs = tokenize(model, SENTENCES)
    asked, expected = asked_for_states(model, inputs)
    assert asked, "with gradients, transformers keeps them"
    with torch.inference_mode():
        first, again = (asked_for_states(model, inputs) for _ in range(2))
        model.encoder = make_model(family, seed=1).encoder
        assert asked_for_states(model, inputs)[0], "another encoder is tried out"
    assert first[0] and torch.equal(first[1], expected)
    # The two parts of each of T5's two layers are lists of two as well: which is the list of layers?
    assert again[0] == (family == "t5") and torch.equal(again[1], expected)


@torch.no_grad()
def test_where_hooks_see_something_else_transformers_keeps_the_states(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(layers=3, selector_layer=1)
    inputs = tokenize(model, SENTENCES)
    layer = model.encoder.encoder.layer[1]
    layer.register_forward_pre_hook(lambda module, args: (2 * args[0], *args[1:]))
    expected = model(**inputs, output_hidden_states=True).gate_probs
    for _ in range(2):
        asked, probs = asked_for_states(model, inputs)
        assert asked and torch.equal(probs, expected)
    assert len(layer._forward_pre_hooks) == 1


@torch.no_grad()
def test_hooks_last_for_one_call(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(layers=3, selector_layer=1)
    inputs = tokenize(model, SENTENCES)
    first, layer, last = model.encoder.encoder.layer
    inside: list[int] = []
    first.register_forward_hook(lambda *_: inside.append(len(layer._forward_pre_hooks)))
    for _ in range(2):
        model(**inputs)
    assert inside[-1] == 1 and not layer._forward_pre_hooks

    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    last.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="broken"):
        model(**inputs)
    assert not layer._forward_pre_hooks


@torch.no_grad()
def test_threads_keep_their_own_states(make_model: Callable, tokenize: Callable) -> None:
    """Both are between the same two layers at the same time, with hooks on the second."""
    model = make_model(layers=3, selector_layer=[1, 2])
    batches = [tokenize(model, [text]) for text in SENTENCES[:2]]
    expected = [[model(**batch).gate_probs for batch in batches] for _ in range(2)][-1]
    meet = threading.Barrier(2, timeout=30)

    def wait(*_: object) -> None:
        meet.wait()

    for layer in model.encoder.encoder.layer:
        layer.register_forward_hook(wait)
    with ThreadPoolExecutor(2) as pool_of_threads:
        found = list(pool_of_threads.map(torch.no_grad()(lambda batch: asked_for_states(model, batch)[1]), batches))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@torch.no_grad()
def test_compiled_layers_get_no_hooks(make_model: Callable, tokenize: Callable) -> None:
    """Every new hook would be a new graph."""
    for compiled in ("encoder", "encoder.encoder", "encoder.encoder.layer.1"):
        model = make_model(layers=3, selector_layer=1)
        inputs = tokenize(model, SENTENCES)
        expected = [model(**inputs).gate_probs for _ in range(2)][-1]
        assert not asked_for_states(model, inputs)[0]
        model.get_submodule(compiled).compile(backend="eager")
        assert model._inner._layers([1]) == {}
        assert torch.allclose(model(**inputs).gate_probs, expected, atol=1e-6)


# ---- what a sentence loses without a word -------------------------------------------------------------------------------


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a, b, dim=-1))


@pytest.mark.parametrize("family", ["bert", "hardkuma_static"])
@torch.no_grad()
def test_removal_and_anchor_against_a_loop(family: str, make_two: Callable, tokenize: Callable) -> None:
    """In double precision, by pooling without the word."""
    model = make_two(family, selector_layer=-1)
    inputs = tokenize(model, [*SENTENCES, "paris curie"])
    states = model(**inputs).last_hidden_state
    ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
    content = mask & ~torch.isin(ids, torch.tensor(model.config.special_token_ids))
    continues = continuing_tokens(model.gate_head.token_kinds, ids) & content
    continues[:, 1:] &= content[:, :-1]
    anchor = torch.nn.functional.normalize(pool(states, mask[:, None], ["mean"]), dim=-1)
    batch = prepare(model.config, ids, inputs["attention_mask"], kinds=model.gate_head.token_kinds)
    assert continues.any() and torch.equal(batch.continues, continues)
    measures = [pooled_measures(states, anchor, batch), removal_measures(states, mask, batch.same_word)]
    found = torch.cat(measures, dim=-1)
    assert found.shape == (*ids.shape, 6)
    wide = states.double()
    for row in range(len(ids)):
        inside = mask[row].nonzero().flatten().tolist()
        words: list[list[int]] = []
        for i in inside:
            words[-1].append(i) if continues[row, i] else words.append([i])
        whole = wide[row, inside].mean(0)
        count = sum(bool(content[row, word[0]]) for word in words)

        def lost(left_out: list[int], row: int = row, inside: list[int] = inside, whole: torch.Tensor = whole) -> float:
            left = [i for i in inside if i not in left_out]
            return 1 - cosine(wide[row, left].mean(0), whole) if left else 1.0

        for word in words:
            expected = [
                sum(float(wide[row, i].norm()) for i in word),
                sum(cosine(wide[row, i], whole) for i in word),
                len(word),
                torch.tensor(max(count, 1)).double().log().item(),
                sum(lost([i]) for i in word),
                lost(word),
            ]
            for i in word:
                assert found[row, i].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert not found[~mask].any()


@torch.no_grad()
def test_a_small_loss_is_accurate() -> None:
    """1 - cos of nearly parallel vectors would lose all its digits in single precision."""
    states = torch.randn(1, 1, 16).expand(1, 200, 16) + 1e-2 * torch.randn(1, 200, 16)
    every = torch.ones(1, 200, dtype=torch.bool)
    found = removal_measures(states, every, torch.eye(200)[None])[0, :, 1]
    wide = states[0].double()
    expected = torch.stack([1 - torch.cosine_similarity(wide.sum(0) - part, wide.sum(0), dim=0) for part in wide])
    assert float(expected.max()) < 1e-7 and bool((found > 0).all())
    assert torch.allclose(found.double(), expected, rtol=0.01, atol=1e-12)


@pytest.mark.parametrize(
    "inputs_of_selector", [["anchor"], ["pooled"], ["removal"], ["alone"], ["state", "anchor", "pooled"]]
)
@torch.no_grad()
def test_padding_and_company_do_not_matter(inputs_of_selector: list[str], make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selector_unit="word", selector_inputs=inputs_of_selector)
    model.gate_head.token_kinds[model.tokenizer.convert_tokens_to_ids(["curie", "in", "bank"])] = 1
    expected = [model(**tokenize(model, [text])) for text in SENTENCES]
    for side in ("left", "right"):
        model.tokenizer.padding_side = side
        inputs = tokenize(model, SENTENCES)
        out = model(**inputs)
        for row, alone in enumerate(expected):
            inside = inputs["attention_mask"][row].bool()
            assert torch.allclose(out.gate_probs[row][inside], alone.gate_probs[0], atol=1e-5)
            assert torch.equal(out.gates[row][inside], alone.gates[0])
            assert torch.allclose(out.rationale_embedding[row], alone.rationale_embedding[0], atol=1e-5)


def test_gradients_of_a_padded_batch_are_finite(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(
        selector_unit="word", selector_inputs=["state", "pooled", "removal", "alone"], freeze_encoder=False
    ).train()
    inputs = tokenize(model, SENTENCES)
    assert bool((inputs["attention_mask"] == 0).any())
    model(**inputs, return_loss=True).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or bool(torch.isfinite(parameter.grad).all()), name


@pytest.mark.parametrize("family", ["bert", "hardkuma_static"])
def test_mixed_precision_is_finite(family: str, make_two: Callable, tokenize: Callable) -> None:
    layers = {} if family == "bert" else {"selector_layer": -1}
    model = make_two(family, **layers).train()
    inputs = tokenize(model, [*SENTENCES, ""])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(**inputs, return_loss=True)
    out.loss.backward()
    assert out.gate_probs.dtype == torch.float32 and bool(torch.isfinite(out.gate_probs).all())
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.gate_head.parameters())
    direct = model.gate_head.selectors[0].direct.weight.grad
    assert float(direct.abs().max()) > 0, "and what a sentence loses reaches the gates directly"
