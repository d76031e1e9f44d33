"""What selectors read of words, each against a loop; that padding, batch-mates and precision do not matter; that gates do
not pay for layers that nobody reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, layer_norm, one_hot

from hardkuma import HardKumaModel
from hardkuma.batch_hardkuma import TokenBatch, Words
from hardkuma.configuration_hardkuma import READS
from hardkuma.encoder_hardkuma import Encoded
from hardkuma.features_hardkuma import WordFeatures, feature_sizes
from hardkuma.pooling_hardkuma import pool
from hardkuma.words_hardkuma import NUM_SURFACE_CLASSES
from tests.conftest import CONTINUING, FAMILIES, SENTENCES

# Families whose layers are found; of T5's two layers each has two parts, so nobody knows which list is that of the layers.
STOPPED = [family for family in FAMILIES if family not in ("t5", "hardkuma_static")]


def continue_words(model: HardKumaModel) -> HardKumaModel:
    """The model, with words of several tokens."""
    if model.gate_head.roles is not None:  # every token is a word of its own else
        model.gate_head.roles[model.tokenizer.convert_tokens_to_ids(list(CONTINUING))] = 1
    return model


def layers_run(model: HardKumaModel, inputs: dict[str, Tensor], **options: Any) -> int:
    """How many of the encoder's layers one call runs."""
    number = model.encoder.config.num_hidden_layers
    lists = [m for m in model.encoder.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == number]
    called: list[int] = []
    hooks = [layer.register_forward_hook(lambda *_: called.append(1)) for layer in lists[0]]
    model.gate_probabilities(**inputs, **options)
    for hook in hooks:
        hook.remove()
    return len(called)


# ---- against loops ------------------------------------------------------------------------------------------------------


def words_of(batch: TokenBatch, row: int, unit: str) -> list[list[int]]:
    """Places of the tokens of each word of a row, special tokens included."""
    words: list[list[int]] = []
    for place in batch.mask[row].nonzero().flatten().tolist():
        if unit != "token" and batch.continues[row, place]:
            words[-1].append(place)
        else:
            words.append([place])
    return words


class Naive:
    """What is read of one row, in double precision, by the definitions in features_hardkuma.py."""

    def __init__(self, model: HardKumaModel, inputs: dict[str, Tensor], forms: Tensor, row: int, unit: str):
        batch = model.prepare(**inputs, surface_ids=forms)
        out = model(**inputs, output_hidden_states=True)
        self.layers = [states[row].double() for states in out.hidden_states]
        self.states, self.embedded = out.last_hidden_state[row].double(), model.get_input_embeddings()(inputs["input_ids"])
        self.embedded, self.forms = self.embedded[row].double(), forms[row]
        self.attention = model.encode_tokens(**inputs)["attention"][row].double()
        self.words, self.content = words_of(batch, row, unit), batch.content[row]
        self.inside = batch.mask[row].nonzero().flatten().tolist()
        self.pooled = self.states[self.inside].mean(0)
        head, ids = model.gate_head, inputs["input_ids"][row]
        rows = head.isolated_table[ids].double() * head.isolated_scale[ids, None]
        self.isolated = rows @ head.isolated_directions.double().T

    def state(self, word: list[int], layer: int) -> Tensor:
        return layer_norm(self.layers[layer][word], (32,)).mean(0)

    def input(self, word: list[int]) -> Tensor:
        return layer_norm(self.embedded[word], (32,)).mean(0)

    def anchor(self, word: list[int]) -> Tensor:
        return layer_norm(self.states[word] * self.pooled / self.pooled.norm(), (32,)).mean(0)

    def norm(self, word: list[int], layer: int) -> Tensor:
        return self.layers[layer][word].square().mean(-1).sqrt().mean()[None]

    def form(self, word: list[int]) -> Tensor:
        return one_hot(self.forms[word], NUM_SURFACE_CLASSES).double().mean(0)

    def pool_share(self, word: list[int]) -> list[float]:
        number = sum(bool(self.content[other[0]]) for other in self.words)
        cosines = [float(cosine_similarity(self.states[i], self.pooled, dim=0)) for i in word]
        return [sum(float(self.states[i].norm()) for i in word), sum(cosines), len(word), math.log(max(number, 1))]

    def leave_one_out(self, word: list[int]) -> list[float]:
        return [sum(self.lost([i]) for i in word), self.lost(word)]

    def lost(self, left_out: list[int]) -> float:
        left = [i for i in self.inside if i not in left_out]
        return 1 - float(cosine_similarity(self.states[left].mean(0), self.pooled, dim=0)) if left else 1.0

    def of_isolated(self, word: list[int]) -> list[float]:
        units = {w[0]: self.isolated[w].sum(0) / self.isolated[w].sum(0).norm() for w in self.words if self.content[w[0]]}
        if word[0] not in units:
            return [0.0, 0.0, 0.0]
        unit, total = units[word[0]], sum(units.values())
        rest = 0.0 if len(units) == 1 else float(cosine_similarity(total - unit, self.pooled, dim=0))
        return [
            float(cosine_similarity(unit, self.pooled, dim=0)),
            float(cosine_similarity(unit, total, dim=0)),
            1 - rest,
        ]

    def read(self, word: list[int]) -> Tensor:
        """All of `READS`, of the layers 0 and 2, as `GateHead.selector_inputs` orders them."""
        vectors = [self.state(word, 0), self.state(word, 2), self.input(word), self.anchor(word)]
        scalars = [self.norm(word, 2), self.attention[word].mean(0), self.form(word)]
        measures = [*self.pool_share(word), *self.leave_one_out(word), *self.of_isolated(word)]
        return torch.cat([*vectors, *scalars, torch.tensor(measures, dtype=torch.float64).asinh()])


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3"])
@torch.no_grad()
def test_all_that_is_read_against_loops(family: str, unit: str, make_model: Callable, tokenize: Callable) -> None:
    settings = {"reads": list(READS), "layer": [0, -1], "unit": unit}
    model = continue_words(make_model(family, selectors={"meaning": settings}))
    inputs = tokenize(model, [*SENTENCES, "paris curie", "paris", ""])
    forms = torch.randint(0, NUM_SURFACE_CLASSES, inputs["input_ids"].shape)
    x, counts = model.selector_inputs(0, **inputs, surface_ids=forms)
    assert x.shape == (int(counts.sum()), sum(feature_sizes(model.config, model.config.selector(0), 32)))
    assert x.dtype == torch.float32 and counts.tolist()[-1] == 0
    longest = 0
    for row, found in enumerate(x.split(counts.tolist())):
        naive = Naive(model, inputs, forms, row, unit)
        words = [word for word in naive.words if naive.content[word[0]]]
        longest = max([longest, *(len(word) for word in words)])
        for word, numbers in zip(words, found, strict=True):
            torch.testing.assert_close(numbers.double(), naive.read(word), atol=2e-4, rtol=1e-3)
    assert longest == (1 if unit == "token" else 3)


@torch.no_grad()
def test_a_static_encoder_is_read_too(make_model: Callable, tokenize: Callable) -> None:
    """No layers, no attention, no special tokens: a sentence of one word loses everything without it."""
    settings = {"reads": list(READS), "layer": 0.5, "unit": "word"}
    model = continue_words(make_model("hardkuma_static", selectors={"meaning": settings}))
    x, counts = model.selector_inputs(0, **tokenize(model, [*SENTENCES, "paris curie", "paris"]))
    assert torch.isfinite(x).all() and counts.tolist()[-2:] == [1, 1]
    measures = x[-2:, -9:].sinh()
    assert torch.allclose(measures[:, 5], torch.ones(2), atol=1e-3), "l(w)"
    assert torch.allclose(measures[:, 8], torch.ones(2), atol=1e-3), "the other words mean nothing"
    assert torch.allclose(measures[:, 7], torch.ones(2), atol=1e-3), "it is all there is"


@torch.no_grad()
def test_a_small_loss_is_accurate(make_model: Callable) -> None:
    """1 - cos of nearly parallel vectors would lose all its digits in single precision."""
    model = make_model("hardkuma_static", selectors={"meaning": {"reads": ["leave_one_out"]}})
    states = torch.randn(1, 1, 16).expand(1, 200, 16) + 1e-2 * torch.randn(1, 200, 16)
    batch = model.prepare(torch.full((1, 200), 5))
    words = Words(torch.arange(200)[None], 201)
    features = WordFeatures(model.config, Encoded(states), batch, words)
    found = features.measures(model.config.selector(0))[0, :200, 1]
    wide = states[0].double()
    expected = torch.stack([1 - cosine_similarity(wide.sum(0) - part, wide.sum(0), dim=0) for part in wide])
    assert float(expected.max()) < 1e-7 and bool((found > 0).all())
    assert torch.allclose(found.double(), expected, rtol=0.03, atol=1e-12)


@torch.no_grad()
def test_the_anchor_is_pooled_by_the_first_mode(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(pooling_mode=["max", "mean"], selectors={"meaning": {"reads": ["pool_share"]}})
    inputs = tokenize(model, SENTENCES)
    states, mask = model(**inputs).last_hidden_state, inputs["attention_mask"]
    anchor = pool(states, mask[:, None], ["max"])
    x, counts = model.selector_inputs(0, **inputs)
    content = model.prepare(**inputs).content
    expected = cosine_similarity(states, anchor, dim=-1)[content]
    assert torch.allclose(x[:, 1].sinh(), expected, atol=1e-4) and len(x) == int(counts.sum())


def test_what_must_be_known_is_said(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selectors={"meaning": {"reads": ["state", "isolated"]}})
    inputs = tokenize(model, SENTENCES[:2])
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    with pytest.raises(ValueError, match='reads "isolated" and must know which tokens there are: pass input_ids'):
        model(inputs_embeds=embeds, attention_mask=inputs["attention_mask"])


@torch.no_grad()
def test_forms_that_nobody_gives_are_unknown(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selectors={"meaning": {"reads": ["state", "form"]}})
    inputs = tokenize(model, SENTENCES)
    unknown = torch.zeros_like(inputs["input_ids"])
    assert torch.equal(model.selector_inputs(0, **inputs)[0], model.selector_inputs(0, **inputs, surface_ids=unknown)[0])
    given = model.selector_inputs(0, **inputs, surface_ids=unknown + 3)[0]
    assert given[:, 32:].argmax(-1).unique().tolist() == [3]


# ---- padding, batch-mates, precision ------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("reads", [["anchor"], ["pool_share"], ["leave_one_out"], ["isolated"], ["attention"], list(READS)])
@torch.no_grad()
def test_padding_and_company_do_not_matter(reads: list[str], unit: str, make_model: Callable, tokenize: Callable) -> None:
    model = continue_words(make_model(selectors={"meaning": {"unit": unit, "reads": reads}}))
    texts = [*SENTENCES, ""]
    expected = [model(**tokenize(model, [text])) for text in texts]
    for side in ("left", "right"):
        model.tokenizer.padding_side = side
        inputs = tokenize(model, texts)
        out = model(**inputs)
        for row, alone in enumerate(expected):
            inside = inputs["attention_mask"][row].bool()
            assert torch.allclose(out.gate_probs[row][inside], alone.gate_probs[0], atol=1e-5)
            assert torch.equal(out.gates[row][inside], alone.gates[0])
            assert torch.allclose(out.rationale_embedding[row], alone.rationale_embedding[0], atol=1e-5)
            assert not out.gate_probs[row][~inside].any()


def test_gradients_of_a_padded_batch_are_finite(make_model: Callable, tokenize: Callable) -> None:
    settings = {"unit": "word", "reads": list(READS), "layer": [0, -1]}
    model = make_model(selectors={"meaning": settings}, freeze_encoder=False).train()
    inputs = tokenize(model, [*SENTENCES, ""])
    model(**inputs, return_loss=True).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or bool(torch.isfinite(parameter.grad).all()), name
    assert float(model.encoder.embeddings.word_embeddings.weight.grad.abs().max()) > 0


@pytest.mark.parametrize("family", ["bert", "hardkuma_static"])
def test_mixed_precision_is_finite(family: str, make_two: Callable, tokenize: Callable) -> None:
    model = make_two(family).train()
    inputs = tokenize(model, [*SENTENCES, ""])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(**inputs, return_loss=True)
        x, _ = model.selector_inputs(0, **inputs)
    out.loss.backward()
    assert out.gate_probs.dtype == x.dtype == torch.float32 and bool(torch.isfinite(out.gate_probs).all())
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.gate_head.parameters())
    direct = model.gate_head.selectors[0].direct.weight.grad
    assert float(direct.abs().max()) > 0, "and what a sentence loses reaches the gates directly"


# ---- layers that are read, and no others --------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [-1, -2, 1, 0, [0, 1]])
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "hardkuma_static"])
def test_probabilities_are_those_of_a_full_pass(
    family: str, layer: int | list[int], make_model: Callable, tokenize: Callable
) -> None:
    model = make_model(family, selectors={"meaning": {"layer": layer}})
    inputs = tokenize(model, SENTENCES)
    assert torch.equal(model.gate_probabilities(**inputs), model(**inputs).gate_probs)
    if family in STOPPED:
        assert layers_run(model, inputs) == max(model.config.layers())


@pytest.mark.parametrize(
    ("reads", "layers"), [("attention", 3), ("anchor", 3), ("pool_share", 3), ("isolated", 3), ("norm", 1), ("form", 1)]
)
def test_what_needs_the_whole_encoder(reads: str, layers: int, make_model: Callable, tokenize: Callable) -> None:
    model = make_model(layers=3, selectors={"meaning": {"reads": ["state", reads], "layer": 1}})
    inputs = tokenize(model, SENTENCES)
    assert layers_run(model, inputs) == layers
    assert torch.equal(model.gate_probabilities(**inputs), model(**inputs).gate_probs)


def test_input_embeddings_need_no_layer(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(layers=3, selectors={"meaning": {"reads": ["input", "form"], "layer": 2}})
    inputs = tokenize(model, SENTENCES)
    assert layers_run(model, inputs) == 0
    assert torch.equal(model.gate_probabilities(**inputs), model(**inputs).gate_probs)


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_selector_runs_as_many_layers_as_it_reads(side: str, make_two: Callable, tokenize: Callable) -> None:
    model = make_two(layers=4)
    model.tokenizer.padding_side = side
    inputs = tokenize(model, SENTENCES)
    out = model(**inputs)
    for number, (name, layers) in enumerate((("meaning", 4), ("entities", 2))):
        assert layers_run(model, inputs, selector=name) == layers
        found = model.gate_probabilities(**inputs, selector=name)
        assert torch.equal(found, model(**inputs, selector=name).gate_probs) and found.ndim == 2
        assert torch.allclose(found, out.gate_probs[:, number], atol=1e-6)
    assert torch.allclose(model.gate_probabilities(**inputs), out.gate_probs, atol=1e-6) and layers_run(model, inputs) == 4


def test_one_layer_under_two_names(tokenize: Callable, make_model: Callable) -> None:
    """0, 0.0 and -3 are the same states."""
    names = {"a": 0, "b": 0.0, "c": -3}
    model = make_model(selectors={name: {"layer": layer, "reads": ["state", "norm"]} for name, layer in names.items()})
    inputs = tokenize(model, SENTENCES)
    same = make_model(selectors={name: {"layer": 0, "reads": ["state", "norm"]} for name in names})
    assert torch.equal(model(**inputs).gate_probs, same(**inputs).gate_probs)
    assert model.config.layers() == [0] and layers_run(model, inputs) == 0


def test_a_fraction_reads_the_layer_that_it_means(make_model: Callable, tokenize: Callable) -> None:
    for fraction, number in ((0.0, 0), (0.5, 2), (1.0, 3)):
        ours, theirs = (make_model(layers=3, selectors={"meaning": {"layer": layer}}) for layer in (fraction, number))
        inputs = tokenize(ours, SENTENCES)
        assert torch.equal(ours(**inputs).gate_probs, theirs(**inputs).gate_probs)
        assert torch.equal(ours.gate_probabilities(**inputs), theirs.gate_probabilities(**inputs))


def test_changed_weights_and_another_encoder_are_read(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selectors={"meaning": {"layer": 1}})
    inputs = tokenize(model, SENTENCES)
    before = model.gate_probabilities(**inputs)
    with torch.no_grad():
        for weight in model.encoder.parameters():
            weight.mul_(1.5)
    after = model.gate_probabilities(**inputs)
    assert not torch.equal(before, after) and torch.equal(after, model(**inputs).gate_probs)
    model.to(torch.float64)
    assert torch.equal(model.gate_probabilities(**inputs), model(**inputs).gate_probs)
    model.encoder = make_model(seed=1).encoder
    assert torch.equal(model.gate_probabilities(**inputs), model(**inputs).gate_probs)


def test_selectors_padding_and_surface(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selectors={"a": {"layer": 1}, "b": {"layer": 1}})
    model.gate_head.surface_log_odds[:, 3] = 2.0
    inputs = tokenize(model, SENTENCES)
    forms = torch.full_like(inputs["input_ids"], 3)
    expected = model(**inputs, surface_ids=forms).gate_probs
    assert expected.ndim == 3 and not torch.allclose(expected, model(**inputs).gate_probs, atol=1e-3)
    assert torch.equal(model.gate_probabilities(**inputs, surface_ids=forms), expected)
    left = {name: values.flip(1) for name, values in inputs.items()}
    assert torch.equal(model.gate_probabilities(**left), model(**left).gate_probs)


def test_a_broken_encoder_is_reported(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selectors={"meaning": {"layer": 1}})
    inputs = tokenize(model, SENTENCES)
    with torch.no_grad():
        next(model.encoder.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="NaN or infinity"):
        model.gate_probabilities(**inputs)
