"""Running encoders: states of inner layers against transformers' own, stopping early, threads; some tokens alone against
the encoder behind a mask; the fingerprint of the weights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from hardkuma import HardKumaConfig, HardKumaModel
from hardkuma.attention_hardkuma import run_encoder
from hardkuma.batch_hardkuma import TokenBatch, attendable, prepare
from hardkuma.encoder_hardkuma import _layer_modules, _rows_of_batch, encode, encode_kept, fingerprint, layer_list
from hardkuma.pooling_hardkuma import pool
from tests.conftest import FAMILIES, PACKED_FAMILIES, SENTENCES

EVERY_FAMILY = tuple(dict.fromkeys((*FAMILIES, *PACKED_FAMILIES)))
LAYERED = [family for family in EVERY_FAMILY if family != "hardkuma_static"]


def layers_of(model: HardKumaModel) -> nn.ModuleList:
    path = layer_list(model.encoder)
    assert path is not None
    return model.encoder.get_submodule(path)


@contextmanager
def watch_calls(model: HardKumaModel) -> Iterator[list[dict[str, Any]]]:
    """The keywords of all calls of the encoder, while it lasts."""
    calls: list[dict[str, Any]] = []
    watch = model.encoder.register_forward_pre_hook(lambda module, args, options: calls.append(options), with_kwargs=True)
    try:
        yield calls
    finally:
        watch.remove()


def count_layers(model: HardKumaModel) -> list[int]:
    """Numbers of the layers that ran since, in their order."""
    called: list[int] = []
    for number, layer in enumerate(layers_of(model)):
        layer.register_forward_hook(lambda *_, number=number: called.append(number))
    return called


def own_states(model: HardKumaModel, batch: TokenBatch) -> tuple[Tensor, ...]:
    """What transformers gives: the states of every layer, the embeddings first."""
    mask = attendable(batch.mask)
    return run_encoder(model.encoder, batch.input_ids, mask, batch.token_type_ids, output_hidden_states=True).hidden_states


# ---- states of layers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", LAYERED)
def test_states_are_transformers_own(family: str, make_model: Callable, tokenize: Callable) -> None:
    model = make_model(family, layers=3)
    batch = model.prepare(**tokenize(model, SENTENCES))
    expected = own_states(model, batch)
    assert len(expected) == 4
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients), watch_calls(model) as calls:
            found = encode(model.encoder, batch, layers=[0, 1, 2, 3])
        assert torch.equal(found.states, found.layers[3])
        for layer in range(3):
            assert torch.equal(found.layers[layer], expected[layer]), layer
        # ALBERT has one layer that it runs three times. With gradients, hooks see nothing of layers that run again.
        by_transformers = gradients or family == "albert"
        assert [bool(call.get("output_hidden_states")) for call in calls] == [by_transformers]
    if family != "clip_text_model":  # whose last states are normed once more
        assert torch.equal(found.layers[3], expected[3])


@pytest.mark.parametrize("layers", [[0], [1], [2], [0, 2], [2, 0]])
@pytest.mark.parametrize("family", [family for family in LAYERED if family != "albert"])
@torch.no_grad()
def test_stopping_early(family: str, layers: list[int], make_model: Callable, tokenize: Callable) -> None:
    model = make_model(family, layers=3)
    batch = model.prepare(**tokenize(model, SENTENCES))
    expected, called = own_states(model, batch), count_layers(model)
    found = encode(model.encoder, batch, layers=layers, whole=False)
    assert called == list(range(max(layers))), "a layer's states are what the next one is given"
    assert sorted(found.layers) == sorted(layers) and found.last is None and found.pools is None
    assert all(torch.equal(found.layers[layer], expected[layer]) for layer in layers)
    assert not any(layer._forward_pre_hooks for layer in layers_of(model))
    # What was stopped leaves no trace.
    assert all(torch.equal(*pair) for pair in zip(own_states(model, batch), expected, strict=True))


@torch.no_grad()
def test_what_does_not_stop(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(layers=3)
    batch, called = model.prepare(**tokenize(model, SENTENCES)), count_layers(model)
    for options in (
        {"layers": [1]},
        {"layers": [1, 3], "whole": False},
        {"layers": [1], "whole": False, "attention_layers": [-1]},
        {"layers": [1], "whole": False, "output_attentions": True},
        {"layers": [1], "whole": False, "output_hidden_states": True},
    ):
        found = encode(model.encoder, batch, **options)
        assert called == [0, 1, 2] and found.last is not None, options
        assert (found.attention is not None) == ("attention_layers" in options)
        assert (found.attentions is not None) == ("output_attentions" in options)
        assert (found.hidden_states is not None) == ("output_hidden_states" in options)
        called.clear()
    nothing = encode(model.encoder, batch, whole=False)
    assert not called and nothing.last is None and nothing.layers == {}
    with pytest.raises(AssertionError, match="the encoder stopped before its last layer"):
        _ = nothing.states


@torch.no_grad()
def test_several_layers_reach_the_selector_side_by_side(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(layers=4, selectors={"meaning": {"layer": [0, 0.5, -1], "reads": ["state", "norm"]}})
    inputs = tokenize(model, SENTENCES)
    hidden = model(**inputs, output_hidden_states=True).hidden_states
    parts = [nn.functional.layer_norm(hidden[number], (32,)) for number in (0, 2, 4)]
    norm = hidden[4].square().mean(-1, keepdim=True).sqrt()
    alpha, beta = model.gate_head.selectors[0](torch.cat([*parts, norm], dim=-1))
    out = model(**inputs)
    inside = model.prepare(**inputs).content
    assert torch.allclose(out.alpha[inside], alpha[inside], atol=1e-5)
    assert torch.allclose(out.beta[inside], beta[inside], atol=1e-5)


# XLNet's layers are given (length, batch, hidden), Longformer's a padded length, and SqueezeBERT does not call its own.
OTHERS: dict[str, dict[str, Any]] = {
    "longformer": {"attention_window": 8},
    "squeezebert": {"embedding_size": 32, "intermediate_size": 64},
    "xlnet": {"d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 37},
}


@pytest.mark.parametrize("family", OTHERS)
@torch.no_grad()
def test_layers_that_are_given_something_else(family: str) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37}
    tokens = {"vocab_size": 50, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 3}
    limits = {} if family == "xlnet" else {**sizes, "max_position_embeddings": 64}
    encoder = AutoModel.from_config(AutoConfig.for_model(family, **tokens, **{**limits, **OTHERS[family]})).eval()
    ids = torch.randint(4, 50, (5, 5))
    batch = prepare(HardKumaConfig(encoder_config=encoder.config), ids)
    expected = encoder(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
    found = encode(encoder, batch, layers=[0, 1, 2])
    early = encode(encoder, batch, layers=[1], whole=False)
    assert torch.allclose(found.states, expected.last_hidden_state, atol=1e-5)
    for layer in range(3):
        assert torch.allclose(found.layers[layer], expected.hidden_states[layer], atol=1e-5)
    assert torch.allclose(early.layers[1], expected.hidden_states[1], atol=1e-5)


# ---- hooks --------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_hooks_of_others_change_nothing_that_is_read(make_model: Callable, tokenize: Callable) -> None:
    """States are those that come out of a layer, whatever somebody makes of them before the next one."""
    model = make_model(layers=3, selectors={"meaning": {"layer": 1}})
    inputs = tokenize(model, SENTENCES)
    layer = layers_of(model)[1]
    layer.register_forward_pre_hook(lambda module, args: (2 * args[0], *args[1:]))
    expected = model(**inputs, output_hidden_states=True)
    assert torch.equal(model(**inputs).gate_probs, expected.gate_probs)
    found = encode(model.encoder, model.prepare(**inputs), layers=[1])
    assert torch.equal(found.layers[1], expected.hidden_states[1]) and len(layer._forward_pre_hooks) == 1


@torch.no_grad()
def test_hooks_last_for_one_call(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(layers=3, selectors={"meaning": {"layer": 1}})
    inputs = tokenize(model, SENTENCES)
    first, layer, last = layers_of(model)
    inside: list[int] = []
    first.register_forward_hook(lambda *_: inside.append(len(layer._forward_pre_hooks)))
    for _ in range(2):
        model(**inputs)
    assert inside == [1, 1] and not layer._forward_pre_hooks

    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    for broken, call in ((last, model), (first, model.gate_probabilities)):
        hook = broken.register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="broken"):
            call(**inputs)
        hook.remove()
        assert not layer._forward_pre_hooks
    assert torch.equal(model(**inputs).gate_probs, model.gate_probabilities(**inputs))


def waiting(meet: threading.Barrier) -> Callable[..., None]:
    """A hook that waits for the other thread."""

    def wait(*_: object) -> None:
        meet.wait()

    return wait


@torch.no_grad()
def test_threads_keep_their_own_states(make_model: Callable, tokenize: Callable) -> None:
    """Two read different layers of different texts, and both are between the same two layers at the same time."""
    model = make_model(layers=3)
    batches = [model.prepare(**tokenize(model, [text])) for text in SENTENCES[:2]]
    wanted = [[0, 1], [1, 2]]
    expected = [own_states(model, batch) for batch in batches]
    meet = threading.Barrier(2, timeout=30)
    for layer in layers_of(model):
        layer.register_forward_hook(waiting(meet))

    @torch.no_grad()
    def run(number: int) -> dict[int, Tensor]:
        return encode(model.encoder, batches[number], layers=wanted[number]).layers

    with ThreadPoolExecutor(2) as threads:
        for found, layers, states in zip(threads.map(run, range(2)), wanted, expected, strict=True):
            assert sorted(found) == [*layers, 3]
            assert all(torch.equal(found[layer], states[layer]) for layer in found)


@torch.no_grad()
def test_one_thread_stops_while_another_goes_on(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(layers=3)
    batches = [model.prepare(**tokenize(model, [text])) for text in SENTENCES[:2]]
    expected = [own_states(model, batch) for batch in batches]
    meet = threading.Barrier(2, timeout=30)
    layers_of(model)[0].register_forward_hook(waiting(meet))

    @torch.no_grad()
    def run(number: int) -> Any:
        return encode(model.encoder, batches[number], layers=[1], whole=bool(number))

    with ThreadPoolExecutor(2) as threads:
        stopped, whole = threads.map(run, range(2))
    assert stopped.last is None and torch.equal(stopped.layers[1], expected[0][1])
    assert torch.equal(whole.states, expected[1][3]) and torch.equal(whole.layers[1], expected[1][1])


@torch.no_grad()
def test_compiled_layers_get_no_hooks(make_model: Callable) -> None:
    """Every new hook would be a new graph."""
    for compiled in ("", "encoder.layer.1"):
        encoder = make_model(layers=3).encoder
        assert _layer_modules(encoder) is encoder.encoder.layer
        encoder.get_submodule(compiled).compile(backend="eager")
        assert _layer_modules(encoder) is None
    assert _layer_modules(torch.compile(make_model().encoder, backend="eager")) is None


# ---- some tokens alone --------------------------------------------------------------------------------------------------


def behind_a_mask(model: HardKumaModel, batch: TokenBatch, kept: Tensor, modes: list[str]) -> Tensor:
    """(batch, sets, dim): the encoder on the whole rows, one set after the other, removed tokens behind the mask."""
    pooled = []
    for number in range(kept.shape[1]):
        mask = kept[:, number]
        states = run_encoder(
            model.encoder, batch.input_ids, attendable(mask), batch.token_type_ids, None, batch.inputs_embeds
        ).last_hidden_state
        pooled.append(pool(states, mask[:, None], modes)[:, 0])
    return torch.stack(pooled, dim=1)


def random_sets(batch: TokenBatch, sets: int) -> Tensor:
    """(batch, sets, length): random sets of tokens; the first is everything, the last nothing."""
    number, length = batch.mask.shape
    kept = (torch.rand(number, sets, length) < torch.rand(number, sets, 1)) & batch.mask[:, None]
    kept[:, 0], kept[:, -1] = batch.mask, False
    return kept


GIVEN = [(family, given) for family in EVERY_FAMILY for given in ("ids", "types", "embeddings")]
GIVEN.remove(("clip_text_model", "embeddings"))  # which it does not take


@pytest.mark.parametrize("mode", ["mean", "cls", "max", "lasttoken", "weightedmean"])
@pytest.mark.parametrize(("family", "given"), GIVEN)
@torch.no_grad()
def test_some_tokens_alone_are_the_encoder_behind_a_mask(
    family: str, mode: str, given: str, make_model: Callable, tokenize: Callable
) -> None:
    model = make_model(family, pooling_mode=mode)
    inputs = tokenize(model, [*SENTENCES, ""])
    inputs.pop("token_type_ids", None)
    if given == "types":
        types = getattr(model.encoder.config, "type_vocab_size", 1)
        inputs["token_type_ids"] = torch.randint(0, types, inputs["input_ids"].shape)
    if given == "embeddings":
        inputs["inputs_embeds"] = model.get_input_embeddings()(inputs.pop("input_ids"))
    batch = model.prepare(**inputs)
    kept = random_sets(batch, 24)
    with watch_calls(model) as calls:
        found = model.encode_batch(batch, keep=kept.float()).pooled
    expected = behind_a_mask(model, batch, kept, [mode])
    assert found.shape == expected.shape and torch.allclose(found, expected, atol=2e-4)
    assert not found[:, -1].any(), "of nothing"
    # Where positions can be given, removed tokens are left out; else there is one pass over all rows.
    tokens = sum(call["attention_mask"].numel() for call in calls)
    packs = family in PACKED_FAMILIES and mode != "weightedmean"
    assert tokens < 0.75 * kept.numel() if packs else (tokens == kept.numel() and len(calls) == 1)


@pytest.mark.parametrize("family", [family for family in PACKED_FAMILIES if family != "hardkuma_static"])
@torch.no_grad()
def test_padding_tokens_inside_of_a_text(family: str, make_model: Callable, tokenize: Callable) -> None:
    """Of a text that speaks of "[PAD]", or of tokens that a caller has put out: RoBERTa does not count these positions."""
    model = make_model(family)
    inputs = tokenize(model, ["marie [PAD] moved to paris", "a [PAD] [PAD] team won in london and paris"])
    assert bool((inputs["input_ids"][:, 2] == 1).all() and (inputs["attention_mask"][:, 2] == 1).all())
    for inside in (1, 0):
        inputs["attention_mask"][:, 2] = inside
        batch = model.prepare(**inputs)
        kept = random_sets(batch, 4)
        found = model.encode_batch(batch, keep=kept).pooled
        assert torch.allclose(found, behind_a_mask(model, batch, kept, ["mean"]), atol=1e-5)
        assert torch.allclose(found[:, 0], model.encode_batch(batch).pooled[:, 0], atol=1e-5), "all of it"


@torch.no_grad()
def test_sets_of_long_and_short_rows_come_back_in_order(make_model: Callable) -> None:
    """As many rows as fill several batches, in random order, with several of every length."""
    model = make_model()
    lengths = torch.randint(1, 41, (60,))
    ids = torch.randint(4, model.config.vocab_size, (60, 40))
    batch = model.prepare(ids, (torch.arange(40) < lengths[:, None]).long())
    kept = random_sets(batch, 3)
    with watch_calls(model) as calls:
        found = encode_kept(model.encoder, batch, kept, ["mean"])
    assert len(calls) > 3
    for call in calls:  # little is padded
        mask = call["attention_mask"]
        assert mask.numel() <= 512 or mask.numel() <= 1.1 * int(mask.sum()) + mask.shape[1]
    assert torch.allclose(found, behind_a_mask(model, batch, kept, ["mean"]), atol=1e-5)


def test_rows_of_a_batch() -> None:
    for lengths in ([512] * 40, [40, 1, 1, 1], [0, 0, 0], list(range(300, 0, -1)), [9000, 8000]):
        start, seen = 0, []
        while start < len(lengths):
            rows = _rows_of_batch(lengths, start)
            width = max(lengths[start], 1)
            padded, tokens = rows * width, sum(lengths[start : start + rows])
            assert rows >= 1 and (rows == 1 or padded <= 6144)
            assert rows == 1 or padded <= 512 or padded <= 1.1 * tokens
            seen += lengths[start : start + rows]
            start += rows
        assert seen == lengths


def test_some_tokens_alone_carry_gradients_where_they_are_wanted(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(freeze_encoder=False).eval()
    batch = model.prepare(**tokenize(model, SENTENCES))
    kept = random_sets(batch, 3)
    gradients = []
    for packed in (True, False):
        pooled = model.encode_batch(batch, keep=kept).pooled if packed else behind_a_mask(model, batch, kept, ["mean"])
        model.zero_grad()
        pooled.square().sum().backward()
        gradients.append(model.encoder.embeddings.word_embeddings.weight.grad.clone())
    assert torch.allclose(*gradients, atol=1e-3, rtol=1e-3) and float(gradients[0].abs().max()) > 0


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_subsets_keep_special_tokens(side: str, make_model: Callable, tokenize: Callable) -> None:
    """`encode_subsets` is the sentence encoder on the kept tokens between their special ones."""
    model = make_model(normalize=True)
    model.tokenizer.padding_side = side
    inputs = tokenize(model, SENTENCES)
    content = torch.isin(inputs["input_ids"], torch.tensor([0, 1, 3])).logical_not()
    kept = torch.rand(len(SENTENCES), 3, inputs["input_ids"].shape[1]) < 0.5
    found = model.encode_subsets(inputs["input_ids"], inputs["attention_mask"], kept)
    for number in range(3):
        mask = inputs["attention_mask"].bool() & (kept[:, number] | ~content)
        expected = model(input_ids=inputs["input_ids"], attention_mask=mask.long()).anchor_embedding
        assert torch.allclose(found[:, number], expected, atol=1e-5)


# ---- the fingerprint ----------------------------------------------------------------------------------------------------


def test_the_fingerprint_follows_the_weights(make_model: Callable) -> None:
    model = make_model()
    first, weight = model.encoder_fingerprint(), model.encoder.encoder.layer[0].output.dense.weight
    assert first == fingerprint(model.encoder) == model.encoder_fingerprint()
    with torch.no_grad():
        weight[3, 3] += 1e-3
    changed = model.encoder_fingerprint()
    assert changed == fingerprint(model.encoder) != first
    with torch.no_grad():
        model.gate_head.selectors[0].hidden.weight.add_(1.0)
    assert model.encoder_fingerprint() == changed, "of the encoder alone"
    model.encoder = make_model(seed=1).encoder
    assert model.encoder_fingerprint() == fingerprint(model.encoder) not in (first, changed)
    optimizer = torch.optim.SGD(model.encoder.parameters(), lr=0.1)
    model.encoder.requires_grad_(True)
    model.encoder(input_ids=torch.tensor([[0, 5, 3]])).last_hidden_state.square().sum().backward()
    before = model.encoder_fingerprint()
    optimizer.step()
    assert model.encoder_fingerprint() == fingerprint(model.encoder) != before


@pytest.mark.parametrize("through", ["no_grad", "data"])
def test_the_fingerprint_that_is_saved_is_true(through: str, make_model: Callable, tmp_path: Path) -> None:
    model = make_model()
    first = model.encoder_fingerprint()
    weight = model.encoder.encoder.layer[0].output.dense.weight
    with torch.no_grad():
        (weight.data if through == "data" else weight).mul_(1.5)
    true = fingerprint(model.encoder)
    model.save_pretrained(tmp_path / "model")
    saved = HardKumaConfig.from_pretrained(tmp_path / "model").encoder_fingerprint
    assert saved == true != first
    again = HardKumaModel.from_pretrained(tmp_path / "model")
    assert again.encoder_fingerprint() == true == again.config.encoder_fingerprint


@pytest.mark.parametrize("through", ["no_grad", "data"])
def test_a_head_alone_is_refused_on_changed_weights(through: str, make_model: Callable, tmp_path: Path) -> None:
    model = make_model()
    model.config.encoder_fingerprint = model.encoder_fingerprint()
    model.save_gate_head(tmp_path / "head")
    weight = next(model.encoder.parameters())
    with torch.no_grad():
        (weight.data if through == "data" else weight)[0, 0] += 1.0
    with pytest.raises(ValueError, match=r"weights were trained or changed.*save the whole model with save_pretrained"):
        model.save_gate_head(tmp_path / "other")
    assert not (tmp_path / "other").exists()
