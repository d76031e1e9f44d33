"""The model: equations of every view and loss, invariances, bad input, every encoder family."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hardkuma import HardKumaForTokenClassification, HardKumaModel
from hardkuma.batch_hardkuma import CONTINUES
from hardkuma.gate_head_hardkuma import count_at_rate
from hardkuma.kumaraswamy_hardkuma import StretchedKumaraswamy
from hardkuma.losses_hardkuma import info_nce, nt_xent, sparsity, total_variation
from hardkuma.pooling_hardkuma import frequency_filter, normalize
from tests.conftest import FAMILIES, SENTENCES, TWO_SELECTORS, several

VIEWS = ["hidden", "input", "reencode"]
TWO = {"selectors": {name: dict(settings) for name, settings in TWO_SELECTORS["selectors"].items()}}
TWO["selectors"]["meaning"]["layer"] = [0, -1, 1]
FIELDS = ["gates", "gate_probs", "anchor_embedding", "rationale_embedding", "complement_embedding"]


def content_of(inputs: dict[str, Tensor], model: HardKumaModel) -> Tensor:
    special = torch.tensor(model.config.special_token_ids)
    return inputs["attention_mask"].bool() & ~torch.isin(inputs["input_ids"], special)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("family", FAMILIES)
def test_contract_in_every_family(family: str, view: str, make_model: Callable, tokenize: Callable) -> None:
    model = make_model(family, view=view)
    inputs = tokenize(model, SENTENCES)
    out = model(**inputs)
    content = content_of(inputs, model)
    shape = inputs["input_ids"].shape
    assert out.gates.shape == out.gate_probs.shape == shape
    assert set(out.gates.unique().tolist()) <= {0.0, 1.0}
    assert not out.gates[~content].any() and not out.gate_probs[~content].any()
    assert bool((out.gate_probs[content] > 0).all()) and bool((out.gate_probs[content] < 1).all())
    assert torch.equal(out.gates, ((out.gate_probs > 0.5) & content).float())
    assert 0 < float(out.gates[content].mean()) < 1, "else rationale or complement would be empty in all these tests"
    assert out.anchor_embedding.shape == (len(SENTENCES), 32)
    assert out.rationale_embedding.shape == out.complement_embedding.shape == (len(SENTENCES), 32)
    model.train()
    out = model(**inputs, return_loss=True)
    assert bool(((out.gates >= 0) & (out.gates <= 1)).all()) and not out.gates[~content].any()
    out.loss.backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert trained and all(p.grad is not None and torch.isfinite(p.grad).all() for p in trained)
    assert all(p.grad is None for p in model.encoder.parameters()), "frozen"


def test_hidden_view_is_the_equation(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(normalize=True)
    inputs = tokenize(model, SENTENCES)
    out = model(**inputs)
    states, mask = out.last_hidden_state, inputs["attention_mask"]
    for row in range(len(SENTENCES)):
        length = int(mask[row].sum())
        for embedding, weight in [
            (out.anchor_embedding, mask[row]),
            (out.rationale_embedding, mask[row] * out.gates[row]),
            (out.complement_embedding, mask[row] * (1 - out.gates[row])),
        ]:
            total, count = torch.zeros(32), 0.0
            for i in range(length):
                total, count = total + weight[i] * states[row, i], count + float(weight[i])
            expected = normalize((total / count if count else total)[None])[0]
            assert torch.allclose(embedding[row], expected, atol=1e-5)


def test_input_view_is_the_equation(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(view="input")
    inputs = tokenize(model, SENTENCES)
    out, content = model(**inputs), content_of(inputs, model)
    table = model.get_input_embeddings().weight - model.gate_head.input_center
    for row in range(len(SENTENCES)):
        for embedding, gate in [(out.rationale_embedding, 1.0), (out.complement_embedding, 0.0)]:
            chosen = inputs["input_ids"][row][content[row] & (out.gates[row] == gate)]
            expected = table[chosen].mean(0) if len(chosen) else torch.zeros(32)
            assert torch.allclose(embedding[row], expected, atol=1e-5)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "hardkuma_static"])
def test_reencode_in_eval_is_the_encoder_on_the_kept_tokens(family: str, make_model: Callable, tokenize: Callable) -> None:
    model = make_model(family, view="reencode")
    inputs = tokenize(model, SENTENCES)
    out, content = model(**inputs), content_of(inputs, model)
    for embedding, gate in [(out.rationale_embedding, 1.0), (out.complement_embedding, 0.0)]:
        kept = inputs["attention_mask"].bool() & (~content | (out.gates == gate))
        with torch.no_grad():
            states = model.encoder(input_ids=inputs["input_ids"], attention_mask=kept.long()).last_hidden_state
        expected = (states * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)
        assert torch.allclose(embedding, expected, atol=1e-5)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "hardkuma_static"])
def test_reencode_in_training_meets_eval_when_gates_are_hard(family: str, make_model: Callable, tokenize: Callable) -> None:
    """With shapes that make every gate 0 or 1 the soft path (log g) and the hard path (mask) agree."""
    model = make_model(family, view="reencode", sampler="straight_through")
    inputs = tokenize(model, SENTENCES)
    noise = torch.full((len(SENTENCES), 1, inputs["input_ids"].shape[1]), 0.5)  # the median: u > t iff P(u > t) > 1/2
    hard = model(**inputs)
    soft = model.train()(**inputs, noise=noise)
    assert torch.equal(hard.gates, soft.gates)
    assert torch.allclose(hard.rationale_embedding, soft.rationale_embedding, atol=1e-3)
    assert torch.allclose(hard.complement_embedding, soft.complement_embedding, atol=1e-3)


def test_reencode_gradient_reaches_gates_through_attention(make_model: Callable, tokenize: Callable) -> None:
    """With cls pooling and the [CLS] token always kept, attention is the only path from gate to rationale."""
    model = make_model("bert", view="reencode", pooling_mode="cls").train()
    model(**tokenize(model, SENTENCES), return_loss=True).losses["rationale"].backward()
    assert model.gate_head.selectors[0].hidden.weight.grad.abs().max() > 0


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("family", FAMILIES)
def test_results_do_not_depend_on_padding_batch_or_order(
    family: str, view: str, make_model: Callable, tokenize: Callable
) -> None:
    model = make_model(family, view=view, selectors=several(2, reads=["state", "input", "norm", "attention"]))
    with torch.no_grad():
        together = model(**tokenize(model, SENTENCES))
        for i, sentence in enumerate(SENTENCES):
            alone = model(**tokenize(model, [sentence]))
            length = alone.gates.shape[-1]
            assert_close(together, alone, i, slice(0, length))
        backwards = model(**tokenize(model, SENTENCES[::-1]))
        extra = {"padding": "max_length", "max_length": 38, "return_tensors": "pt"}
        longer = model(**model.tokenizer(SENTENCES, **extra))
        left = model(**model.tokenizer(SENTENCES, **extra, padding_side="left"))
    for i in range(len(SENTENCES)):
        length = int(tokenize(model, [SENTENCES[i]])["input_ids"].shape[1])
        for name in FIELDS:
            reference = getattr(together, name)[i]
            token_level = name in ("gates", "gate_probs")
            reference = reference[..., :length] if token_level else reference
            for other, row, where in [
                (backwards, -1 - i, slice(0, length)),
                (longer, i, slice(0, length)),
                (left, i, slice(38 - length, 38)),
            ]:
                value = getattr(other, name)[row]
                assert torch.allclose(value[..., where] if token_level else value, reference, atol=1e-5), (name, i)
        assert torch.allclose(left.last_hidden_state[i, 38 - length :], together.last_hidden_state[i, :length], atol=1e-5)


def assert_close(together: object, alone: object, row: int, where: slice) -> None:
    for name in FIELDS:
        first, second = getattr(together, name)[row], getattr(alone, name)[0]
        first = first[..., where] if name in ("gates", "gate_probs") else first
        assert torch.allclose(first, second, atol=1e-5), name


def test_invariances_with_minilm(minilm: HardKumaModel) -> None:
    texts = ["Marie Curie moved to Paris in 1891.", "ok", "The quick brown fox jumps over the lazy dog near Berlin " * 8]
    with torch.no_grad():
        batch = minilm(**minilm.tokenizer(texts, padding=True, return_tensors="pt"))
        left = minilm(**minilm.tokenizer(texts, padding=True, return_tensors="pt", padding_side="left"))
        for i, text in enumerate(texts):
            alone = minilm(**minilm.tokenizer([text], return_tensors="pt"))
            length = alone.gates.shape[1]
            for name in FIELDS:
                first, second, third = getattr(batch, name)[i], getattr(alone, name)[0], getattr(left, name)[i]
                if name in ("gates", "gate_probs"):
                    first, third = first[:length], third[-length:]
                assert torch.allclose(first, second, atol=1e-5) and torch.allclose(third, second, atol=1e-5)


def test_eval_is_deterministic_and_training_is_seeded(make_model: Callable, tokenize: Callable) -> None:
    model = make_model()
    inputs = tokenize(model, SENTENCES)
    assert torch.equal(model(**inputs).gates, model(**inputs).gates)
    model.train()
    torch.manual_seed(3)
    first = model(**inputs).gates
    assert not torch.equal(first, model(**inputs).gates)
    torch.manual_seed(3)
    assert torch.equal(first, model(**inputs).gates)


@pytest.mark.parametrize("contrastive", ["infonce", "nt_xent"])
def test_total_is_the_weighted_sum_of_the_terms(contrastive: str, make_model: Callable, tokenize: Callable) -> None:
    model = make_model(
        contrastive=contrastive,
        selectors={"meaning": {"lambda_s": 0.3}, "entities": {"lambda_s": 0.7}},
        lambda_cmp=0.6,
        lambda_tv=0.4,
        rate_constraint="penalty",
        lambda_e=5.0,
        lambda_kl=-0.2,
        temperature=0.3,
    ).train()
    inputs = tokenize(model, SENTENCES)
    noise = torch.rand(len(SENTENCES), 2, inputs["input_ids"].shape[1])
    out = model(**inputs, noise=noise, return_loss=True)
    content = content_of(inputs, model)
    loss = {"infonce": info_nce, "nt_xent": nt_xent}[contrastive]
    total = torch.zeros(())
    for k, weight in enumerate([0.3, 0.7]):
        gates = out.gates[:, k]
        rationale = loss(out.anchor_embedding, out.rationale_embedding[:, k], 0.3)
        complement = loss(out.anchor_embedding, out.complement_embedding[:, k], 0.3)
        rate = out.gate_probs[:, k][content].mean()
        assert torch.allclose(out.losses["rationale"][k], rationale)
        assert torch.allclose(out.losses["complement"][k], complement)
        total = total + rationale - 0.6 * complement + weight * sparsity(gates, content)
        total = total + 0.4 * total_variation(gates, content) + 5.0 * (rate - 0.2) ** 2
    p, q = out.gate_probs[:, 0], out.gate_probs[:, 1]
    kl = (p - q) * (torch.logit(p) - torch.logit(q)) / 2
    kl = torch.where(content, kl / (1 + kl), torch.zeros_like(kl)).nan_to_num(0.0)
    expected_kl = (kl.sum(-1) / content.sum(-1)).mean()
    assert torch.allclose(out.losses["kl"], expected_kl, atol=1e-5)
    assert torch.allclose(out.loss, total - 0.2 * expected_kl, atol=1e-4)
    assert set(out.losses) == {"rationale", "complement", "sparsity", "total_variation", "constraint", "kl"}


def test_kl_aligns_or_separates_selectors(make_model: Callable, tokenize: Callable) -> None:
    def distance_after(weight: float) -> float:
        model = make_model(selectors=several(2, lambda_s=0.0), lambda_kl=weight, lambda_cmp=0.0).train()
        inputs, optimizer = tokenize(model, SENTENCES), torch.optim.Adam(model.gate_head.parameters(), lr=1e-2)
        for _ in range(40):
            optimizer.zero_grad()
            model(**inputs, return_loss=True).loss.backward()
            optimizer.step()
        probs = model.eval()(**inputs).gate_probs.detach()
        return float((probs[:, 0] - probs[:, 1]).abs().mean())

    aligned, free, separated = distance_after(5.0), distance_after(0.0), distance_after(-5.0)
    assert aligned < free < separated


def test_lagrange_multiplier_moves_in_training_only(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(rate_constraint="lagrangian", selectors={"meaning": {"target_rate": 0.1}})
    inputs = tokenize(model, SENTENCES)
    model(**inputs, return_loss=True)
    assert model.gate_head.rate_multiplier.tolist() == [0.0]
    model.train()
    model(**inputs)
    assert model.gate_head.rate_multiplier.tolist() == [0.0], "only where a loss is taken"
    out = model(**inputs, return_loss=True)
    out.loss.backward()
    assert float(model.gate_head.rate_multiplier) > 0, "the rate is above the target"
    assert not model.gate_head.rate_multiplier.requires_grad


def test_training_moves_the_rate_to_the_target(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(
        rate_constraint="lagrangian", selectors={"meaning": {"target_rate": 0.25, "lambda_s": 0.0}}, temperature=0.3
    ).train()
    inputs, optimizer = tokenize(model, SENTENCES), torch.optim.Adam(model.gate_head.parameters(), lr=5e-3)
    content = content_of(inputs, model)
    for _ in range(400):
        optimizer.zero_grad()
        model(**inputs, return_loss=True).loss.backward()
        optimizer.step()
    assert model.eval()(**inputs).gate_probs[content].mean().item() == pytest.approx(0.25, abs=0.05)


def test_bounded_complement(make_model: Callable, tokenize: Callable) -> None:
    model, free = make_model(bound_complement=True, temperature=0.01), make_model(temperature=0.01)
    inputs = tokenize(model, SENTENCES)
    out, reference = model(**inputs, return_loss=True), free(**inputs, return_loss=True)
    expected = info_nce(out.anchor_embedding, out.complement_embedding, 0.01, bounded=True)
    assert torch.allclose(out.losses["complement"], expected) and expected <= reference.losses["complement"]
    assert torch.equal(out.losses["rationale"], reference.losses["rationale"])


@pytest.mark.parametrize("normalized", [False, True])
def test_frequency_filter_applies_to_all_that_is_compared(
    normalized: bool, make_model: Callable, tokenize: Callable
) -> None:
    plain = make_model(normalize=normalized)
    filtered = make_model(normalize=normalized, frequency_filter="low", frequency_high=0.3)
    inputs = tokenize(plain, SENTENCES)
    before, after = plain(**inputs, return_rows=True), filtered(**inputs, return_rows=True)
    for name in ("anchor", "rationale", "complement"):
        expected = frequency_filter(getattr(before, name), "low", 0.0, 0.3)
        expected = normalize(expected) if normalized else expected
        assert torch.allclose(getattr(after, name), expected, atol=1e-5)
    out = filtered(**inputs, return_loss=True)
    assert torch.allclose(out.rationale_embedding, after.rationale[:, 0])
    # What users compare with other tools is the encoder's own embedding, as SentenceTransformer.encode gives it.
    assert torch.equal(out.anchor_embedding, plain(**inputs).anchor_embedding)
    assert torch.equal(filtered.encode_tokens(**inputs)["anchor"], out.anchor_embedding)
    assert torch.equal(out.losses["rationale"], info_nce(after.anchor, after.rationale[:, 0], 0.05))
    kept = torch.ones(len(SENTENCES), 1, inputs["input_ids"].shape[1])
    ids = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    assert torch.allclose(filtered.encode_subsets(**ids, kept=kept)[:, 0], out.anchor_embedding, atol=1e-5)


@pytest.mark.parametrize("sampler", ["relaxed", "straight_through", "stretched"])
def test_samplers(sampler: str, make_model: Callable, tokenize: Callable) -> None:
    model = make_model(sampler=sampler, concentration_min=0.1).train()
    inputs = tokenize(model, SENTENCES)
    content = content_of(inputs, model)
    gates = model(**inputs).gates[content]
    exact = ((gates == 0) | (gates == 1)).float().mean()
    assert {"relaxed": exact == 0, "straight_through": exact == 1, "stretched": 0 < exact < 1}[sampler]


def test_selection_probability_is_the_closed_form(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(gate_threshold=0.3)
    inputs = tokenize(model, SENTENCES)
    out, content = model(**inputs), content_of(inputs, model)
    gate = model.gate_distribution(out)
    assert isinstance(gate, StretchedKumaraswamy)
    assert torch.allclose(gate.selection_probability(0.3)[content], out.gate_probs[content])
    draws = gate.rsample((4000,))[:, content]
    assert torch.allclose((draws > 0.3).float().mean(0), out.gate_probs[content], atol=0.05)


@pytest.mark.parametrize("reads", [["input"], ["norm"], ["attention"], ["state", "form"], ["state", "input"]])
def test_what_a_selector_reads(reads: list[str], make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selectors={"meaning": {"reads": reads}})
    inputs = tokenize(model, SENTENCES)
    out = model(**inputs)
    assert torch.isfinite(out.gate_probs).all()
    if reads == ["input"]:  # a word without context has one gate wherever it stands
        the = out.gate_probs[inputs["input_ids"] == inputs["input_ids"][2, 1]]
        assert len(the) > 2 and torch.allclose(the, the[0].expand_as(the), atol=1e-6)


def test_selector_can_read_an_inner_layer(make_model: Callable, tokenize: Callable) -> None:
    last, inner = make_model(), make_model(selectors={"meaning": {"layer": 1}})
    inputs = tokenize(last, SENTENCES)
    assert not torch.allclose(last(**inputs).gate_probs, inner(**inputs).gate_probs)
    assert torch.allclose(
        make_model(selectors={"meaning": {"layer": 2}})(**inputs).gate_probs, last(**inputs).gate_probs, atol=1e-6
    )
    with pytest.raises(ValueError, match="a selector reads layer 9, but the encoder has states 0 to 2"):
        make_model(selectors={"meaning": {"layer": 9}})


def test_several_selectors_have_an_axis(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selectors=several(3))
    inputs = tokenize(model, SENTENCES)
    out, length = model(**inputs), inputs["input_ids"].shape[1]
    assert out.gates.shape == out.gate_probs.shape == out.alpha.shape == (6, 3, length)
    assert out.rationale_embedding.shape == out.complement_embedding.shape == (6, 3, 32)
    assert out.anchor_embedding.shape == (6, 32)
    tensors = inputs["input_ids"], inputs["attention_mask"]
    for selector, number in ((None, 0), ("selector_0", 0), ("selector_2", 2)):
        found = model.sentence_features(*tensors, selector=selector)["embedding"]
        assert found.shape == (6, model.config.projection_dim) == (6, 32)
        assert torch.allclose(found, out.rationale_embedding[:, number], atol=1e-6)


@pytest.mark.parametrize("rate", [0.05, 0.3, 1.0])
def test_rate_selects_the_most_probable_tokens(rate: float, make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selectors=several(2))
    inputs = tokenize(model, SENTENCES)
    out = model(**inputs, rate=rate)
    content = ~torch.isin(inputs["input_ids"], torch.tensor([0, 1, 3]))
    for row in range(len(SENTENCES)):
        for selector in range(2):
            probs = out.gate_probs[row, selector].tolist()
            places = [i for i in range(len(probs)) if content[row, i]]
            best = sorted(places, key=lambda i: (-probs[i], i))[: math.ceil(rate * len(places))]
            assert out.gates[row, selector].nonzero().flatten().tolist() == sorted(best)
    alone = model(**tokenize(model, SENTENCES[:1]), rate=rate)
    assert torch.allclose(alone.rationale_embedding, out.rationale_embedding[:1], atol=1e-5), "batch-mates matter"
    with pytest.raises(ValueError, match=r"call model\.eval"):
        model.train()(**inputs, rate=rate)


def test_trainable_encoder(make_model: Callable, tokenize: Callable) -> None:
    for view in VIEWS:
        model = make_model(view=view, freeze_encoder=False).train()
        assert model.encoder.training
        model(**tokenize(model, SENTENCES), return_loss=True).loss.backward()
        missing = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
        assert not missing, "data-parallel training refuses parameters without a gradient"
    frozen = make_model().train()
    assert frozen.training and not frozen.encoder.training


def test_gradient_checkpointing(make_model: Callable, tokenize: Callable) -> None:
    inputs, gradients = None, []
    for checkpointing in (False, True):
        model = make_model(
            view="reencode", freeze_encoder=False, selectors={"meaning": {"reads": ["state", "attention"]}}
        ).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if checkpointing:
            model.gradient_checkpointing_enable()
        inputs = tokenize(model, SENTENCES)
        noise = torch.full((len(SENTENCES), 1, inputs["input_ids"].shape[1]), 0.4)
        model(**inputs, noise=noise, return_loss=True).loss.backward()
        gradients.append(model.encoder.get_input_embeddings().weight.grad)
    assert torch.allclose(*gradients, atol=1e-5)
    with pytest.raises(ValueError, match=r"gradient_checkpointing_kwargs=\{'use_reentrant': False\}"):
        model.gradient_checkpointing_enable({"use_reentrant": True})


@pytest.mark.parametrize("view", VIEWS)
def test_mixed_precision_is_finite_and_fp32_where_it_counts(view: str, make_model: Callable, tokenize: Callable) -> None:
    model = make_model(
        view=view,
        concentration_min=0.05,
        concentration_max=100.0,
        temperature=0.02,
        selectors=several(2),
        lambda_kl=1.0,
    ).train()
    seen = []
    model.encoder.encoder.layer[0].intermediate.dense.register_forward_hook(lambda m, i, o: seen.append(o.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(**tokenize(model, SENTENCES), return_loss=True)
    assert out.gates.dtype == out.gate_probs.dtype == out.loss.dtype == out.rationale_embedding.dtype == torch.float32
    assert set(seen) == {torch.bfloat16}, "the encoder runs in half precision, every time"
    out.loss.backward()
    assert torch.isfinite(out.loss)
    assert all(torch.isfinite(p.grad).all() for p in model.gate_head.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_model(dtype: torch.dtype, make_model: Callable, tokenize: Callable) -> None:
    full = make_model()
    inputs = tokenize(full, SENTENCES)
    expected = full(**inputs).gate_probs
    out = full.to(dtype)(**inputs, return_loss=True)
    assert out.gate_probs.dtype == torch.float32 and torch.isfinite(out.loss)
    assert torch.allclose(out.gate_probs, expected, atol=0.05)


def test_embeddings_can_be_left_out(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(view="reencode")
    out = model(**tokenize(model, SENTENCES), return_embeddings=False)
    assert out.rationale_embedding is None and out.complement_embedding is None and out.gates is not None
    assert isinstance(model(**tokenize(model, SENTENCES), return_dict=False), tuple)


def test_special_tokens_mask_overrides_ids(make_model: Callable, tokenize: Callable) -> None:
    model = make_model()
    inputs = tokenize(model, SENTENCES)
    special = torch.ones_like(inputs["input_ids"])
    special[:, 2] = 0
    out = model(**inputs, special_tokens_mask=special)
    assert bool((out.gate_probs[:, 2] > 0).all()) and torch.equal(out.gate_probs.sum(1), out.gate_probs[:, 2])


def test_token_classification_gives_the_probabilities_back(make_model: Callable, tokenize: Callable) -> None:
    for selectors in (1, 2):
        base = make_model(selectors=several(selectors))
        model = HardKumaForTokenClassification(base.config).eval()
        model.hardkuma.load_state_dict(base.state_dict())
        inputs = tokenize(base, SENTENCES)
        probs = base(**inputs).gate_probs
        for selector, name in enumerate(base.config.names):
            logits = model(**inputs, **({} if selector == 0 else {"selector": name})).logits
            expected = probs if selectors == 1 else probs[:, selector]
            assert torch.allclose(logits.softmax(-1)[..., 1], expected, atol=1e-6) and torch.isfinite(logits).all()
        with pytest.raises(ValueError, match=f"no selector 'x': this model has {', '.join(map(repr, base.config.names))}"):
            model(**inputs, selector="x")
        assert model.config.id2label == {0: "O", 1: "ENTITY"}


# ---- stored states ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"selectors": {"meaning": {"layer": 1}}},
        {"selectors": {"meaning": {"reads": ["state", "attention"]}}},
        {"selectors": {"meaning": {"layer": 0}}, "view": "input"},
        TWO,
    ],
    ids=["last", "inner", "attention", "input", "two"],
)
def test_forward_takes_back_what_encode_tokens_gives(
    config: dict, side: str, make_model: Callable, tokenize: Callable
) -> None:
    model = make_model(**config)
    model.tokenizer.padding_side = side
    inputs = tokenize(model, SENTENCES)
    encoded = model.encode_tokens(**inputs)
    assert ("layer_states" in encoded) == any("layer" in settings for settings in config.get("selectors", {}).values())
    assert ("attention" in encoded) == model.config.reads("attention")
    calls = []
    hook = model.encoder.register_forward_hook(lambda *_: calls.append(1))
    out = model(**inputs, encoded=encoded)
    assert not calls, "the encoder does not run"
    hook.remove()
    expected = model(**inputs)
    for name in [*FIELDS, "alpha", "beta", "last_hidden_state"]:
        assert torch.equal(out[name], expected[name]), name
    assert torch.equal(encoded["anchor"], expected.anchor_embedding)
    if config is TWO:
        assert encoded["layer_states"].shape[-1] == 2 * 32, "layers 0 and 1 (0.5 is 1 too), side by side"
        for name in model.config.names:
            one = model(**inputs, encoded=encoded, selector=name)
            assert torch.equal(one.gate_probs, model(**inputs, selector=name).gate_probs)
        with pytest.raises(
            ValueError, match=r"'layer_states' has 32 numbers a token, which are not those of layers \[0, 1\]"
        ):
            model(**inputs, encoded={**encoded, "layer_states": encoded["layer_states"][..., :32]})


def test_stored_states_that_do_not_fit(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selectors={"meaning": {"reads": ["state", "attention"], "layer": 1}})
    inputs = tokenize(model, SENTENCES)
    encoded = model.encode_tokens(**inputs)
    for name in ("states", "layer_states", "attention"):
        rest = {key: value for key, value in encoded.items() if key != name}
        with pytest.raises(ValueError, match=f"encoded has no '{name}'; take it from model.encode_tokens"):
            model(**inputs, encoded=rest)
    with pytest.raises(ValueError, match=r"encoded 'states' has shape \(2, .* for input_ids \(6, "):
        model(**inputs, encoded={**encoded, "states": encoded["states"][:2]})
    with pytest.raises(ValueError, match="encoded holds no hidden_states"):
        model(**inputs, encoded=encoded, output_hidden_states=True)


@pytest.mark.parametrize("side", ["left", "right"])
def test_subsets_on_any_padding_side(side: str, make_model: Callable, tokenize: Callable) -> None:
    model = make_model()
    inputs = tokenize(model, SENTENCES)
    kept = content_of(inputs, model).float()[:, None] * (torch.arange(inputs["input_ids"].shape[1]) % 2)
    expected = model.encode_subsets(inputs["input_ids"], inputs["attention_mask"], kept)
    model.tokenizer.padding_side = side
    other = tokenize(model, SENTENCES)
    lead = other["attention_mask"].argmax(1)
    moved = torch.stack([row.roll(int(by), -1) for row, by in zip(kept, lead, strict=True)])
    assert torch.equal(model.encode_subsets(other["input_ids"], other["attention_mask"], moved), expected)


# ---- as stock tools call it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "hardkuma_static"])
def test_states_and_attentions_of_every_layer(family: str, side: str, make_model: Callable, tokenize: Callable) -> None:
    model = make_model(family)
    model.set_attn_implementation("eager")
    inputs = tokenize(model, SENTENCES)
    expected = model.encoder(
        **{name: inputs[name] for name in ("input_ids", "attention_mask")},
        output_hidden_states=True,
        output_attentions=True,
    )
    model.tokenizer.padding_side = side
    inputs = tokenize(model, SENTENCES)
    out = model(**inputs, output_hidden_states=True, output_attentions=True)
    if family != "clip_text_model":  # which ends with a norm
        assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
    assert len(out.hidden_states) == 3 and len(out.attentions) == 2
    length, mask = inputs["input_ids"].shape[1], inputs["attention_mask"].bool()
    for row in range(len(SENTENCES)):
        number = int(mask[row].sum())
        for got, wanted in zip(out.hidden_states, expected.hidden_states, strict=True):
            assert torch.allclose(got[row][mask[row]], wanted[row, :number], atol=1e-5)
        for got, wanted in zip(out.attentions, expected.attentions, strict=True):
            assert got.shape[-2:] == (length, length)
            assert torch.allclose(got[row][:, mask[row]][:, :, mask[row]], wanted[row, :, :number, :number], atol=1e-5)
    assert model(**inputs).hidden_states is None and model(**inputs).attentions is None
    model.config.output_hidden_states = True
    assert len(model(**inputs).hidden_states) == 3
    model.config.return_dict = False
    assert isinstance(model(**inputs), tuple)
    found = model.sentence_features(inputs["input_ids"], inputs["attention_mask"], embedding="anchor")["embedding"]
    assert torch.equal(found, out.anchor_embedding)


def test_attentions_beside_the_tap(make_model: Callable, tokenize: Callable) -> None:
    """A selector that reads attention runs our kernel, which gives all weights when asked, whatever was set before."""
    plain, tapped = make_model(), make_model(selectors={"meaning": {"reads": ["state", "attention"]}})
    plain.set_attn_implementation("eager")
    inputs = tokenize(plain, SENTENCES)
    expected = plain(**inputs, output_attentions=True).attentions
    before = tapped(**inputs)
    for implementation in ("sdpa", "eager"):
        tapped.set_attn_implementation(implementation)
        out = tapped(**inputs, output_attentions=True)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(out.attentions, expected, strict=True))
        assert torch.equal(out.gate_probs, before.gate_probs), "the kernel is the same, every time"


@torch.no_grad()
def test_the_encoder_stops_at_the_last_layer_that_is_read(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(selectors={"meaning": {"layer": 1}})
    inputs, calls = tokenize(model, SENTENCES), []
    model.encoder.encoder.layer[1].register_forward_hook(lambda *_: calls.append(1))
    for implementation in ("sdpa", "eager", "sdpa"):
        model.set_attn_implementation(implementation)
        assert model.encoder.config._attn_implementation == implementation
        probs = model.gate_probabilities(**inputs)
        assert not calls, "the second layer does not run"
        assert torch.equal(probs, model(**inputs).gate_probs), implementation
        assert calls.pop() and not calls


def test_gradients_with_respect_to_states_of_a_frozen_encoder(make_model: Callable, tokenize: Callable) -> None:
    model = make_model()
    out = model(**tokenize(model, SENTENCES), output_hidden_states=True)
    out.hidden_states[1].retain_grad()
    out.gate_probs.sum().backward()
    assert out.hidden_states[1].grad.abs().sum() > 0
    assert all(p.grad is None for p in model.encoder.parameters())
    assert not model(**tokenize(model, SENTENCES)).last_hidden_state.requires_grad, "only where they are asked for"
    with torch.no_grad():
        assert not model(**tokenize(model, SENTENCES), output_hidden_states=True).hidden_states[1].requires_grad


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "clip_text_model"])
def test_embeddings_instead_of_ids(family: str, view: str, make_model: Callable, tokenize: Callable) -> None:
    model = make_model(family, view=view, selectors={"meaning": {"reads": ["state", "input"]}})
    inputs = tokenize(model, SENTENCES)
    expected = model(**inputs)
    ids = inputs.pop("input_ids")
    special = torch.isin(ids, torch.tensor(model.config.special_token_ids)).long()
    embeds = model.get_input_embeddings()(ids).detach().requires_grad_()
    out = model(inputs_embeds=embeds, special_tokens_mask=special, **inputs)
    for name in FIELDS:
        assert torch.allclose(out[name], expected[name], atol=1e-5), name
    out.gate_probs.sum().backward()
    assert embeds.grad.abs().sum() > 0
    content = model(inputs_embeds=embeds, **inputs).gate_probs > 0
    assert torch.equal(content, inputs["attention_mask"].bool()), "without ids every token may be content"


def test_embeddings_that_cannot_be_used(make_model: Callable, tokenize: Callable) -> None:
    model = make_model("clip_text_model")
    inputs = tokenize(model, SENTENCES)
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    with pytest.raises(ValueError, match="CLIPTextModel takes no inputs_embeds; pass input_ids"):
        model(inputs_embeds=embeds)
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds, and not both"):
        model(inputs["input_ids"], inputs_embeds=embeds)
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
        model(attention_mask=inputs["attention_mask"])
    with pytest.raises(ValueError, match=r"inputs_embeds must be \(batch, length, size\).*got \(6, "):
        model(inputs_embeds=embeds[..., 0])


def test_classifier_with_labels(make_model: Callable, tokenize: Callable) -> None:
    base = make_model()
    model = HardKumaForTokenClassification(base.config).eval()
    model.load_state_dict(base.state_dict())  # what it saves is the base model's
    inputs = tokenize(base, SENTENCES)
    content = content_of(inputs, base)
    labels = torch.where(content, inputs["input_ids"] % 2, -100)
    out, probs = model(**inputs, labels=labels), base(**inputs).gate_probs
    terms = []
    for row, column in content.nonzero().tolist():
        p = probs[row, column]
        terms.append(-(p.log() if labels[row, column] == 1 else (1 - p).log()))
    assert torch.allclose(out.loss, torch.stack(terms).mean(), atol=1e-5)
    out.loss.backward()
    assert all(p.grad is not None for p in model.hardkuma.gate_head.parameters())
    loss, logits = model(**inputs, labels=labels, return_dict=False)
    assert torch.equal(loss, out.loss) and torch.equal(logits, out.logits)
    assert model(**inputs).loss is None
    assert torch.equal(model(**inputs, return_loss=True).loss, base(**inputs, return_loss=True).loss)
    with pytest.raises(TypeError, match="'lables'"):
        model(**inputs, lables=labels)


def test_what_is_trained_is_what_requires_gradients(make_model: Callable, tokenize: Callable) -> None:
    """`freeze_encoder` says how a model begins; adapters and users thaw what they like."""
    model = make_model().train()
    inputs = tokenize(model, SENTENCES)
    layer = model.encoder.encoder.layer[1]
    layer.requires_grad_(True)
    assert not model.encoder.training
    model(**inputs, return_loss=True).loss.backward()
    assert model.encoder.training and layer.output.dense.weight.grad.abs().sum() > 0
    assert model.encoder.encoder.layer[0].output.dense.weight.grad is None
    model.encoder.eval()  # no dropout, on purpose
    model(**inputs)
    assert not model.encoder.training, "a decision of the user's stands"
    model.encoder.requires_grad_(False)
    model.train()
    assert not model.encoder.training


@pytest.mark.parametrize("family", ["bert", "qwen3", "hardkuma_static"])
def test_more_tokens(family: str, make_model: Callable, tokenize: Callable, tmp_path: Path) -> None:
    """A longer vocabulary changes nothing for the old one: states, gates, and what the input view subtracts."""
    model = make_model(family, view="input", selectors={"meaning": {"layer": -1 if family == "hardkuma_static" else 1}})
    inputs = tokenize(model, SENTENCES)
    before, probs, size = model(**inputs), model.gate_probabilities(**inputs), model.config.vocab_size
    model.resize_token_embeddings(size + 5)
    assert model.config.vocab_size == model.encoder.config.vocab_size == model.config.encoder_config.vocab_size == size + 5
    assert model.get_input_embeddings().weight.shape[0] == size + 5
    for name in FIELDS:
        assert torch.equal(model(**inputs)[name], before[name]), name
    assert torch.equal(model.gate_probabilities(**inputs), probs)
    new = {"input_ids": torch.full((1, 4), size + 4)}
    assert torch.equal(model.gate_probabilities(**new), model(**new).gate_probs), "where the encoder stops early too"
    model.save_pretrained(tmp_path / "model")
    again = HardKumaModel.from_pretrained(tmp_path / "model").eval()
    assert torch.equal(again(**new).gate_probs, model(**new).gate_probs)


def test_length_is_the_encoders_or_the_tokenizers(make_model: Callable) -> None:
    model = make_model()
    assert model.max_length == HardKumaForTokenClassification(model.config).max_length == 40
    model.config.max_seq_length = None
    model.tokenizer.model_max_length = 30
    assert model.max_length == 30
    model.tokenizer.model_max_length = int(1e30)  # as transformers says "unknown"
    assert model.max_length == 512


def test_config_and_encoder_share_one_config(minilm: HardKumaModel, make_model: Callable) -> None:
    for model in (minilm, make_model(), make_model("hardkuma_static")):
        assert model.config.encoder_config is model.encoder.config


# ---- bad input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_texts_without_content_are_defined(view: str, make_model: Callable, tokenize: Callable) -> None:
    """The empty string, only special tokens, one token, and a row of padding."""
    model = make_model(view=view, normalize=True)
    inputs = tokenize(model, ["", "[CLS] [SEP]", "paris", "marie curie moved to paris"])
    inputs["attention_mask"] = torch.cat([inputs["attention_mask"], torch.zeros_like(inputs["attention_mask"][:1])])
    for name in ("input_ids", "token_type_ids"):
        if name in inputs:
            inputs[name] = torch.cat([inputs[name], torch.ones_like(inputs[name][:1]) * (name == "input_ids")])
    for training in (False, True):
        out = model.train(training)(**inputs, return_loss=True)
        assert not out.gate_probs[[0, 1, 4]].any()
        assert all(torch.isfinite(getattr(out, name)).all() for name in FIELDS)
        assert torch.isfinite(out.loss)
        assert not out.rationale_embedding[4].any() and not out.anchor_embedding[4].any(), "padding gives zero"
        if view != "reencode":
            assert not out.rationale_embedding[0].any(), "nothing selected gives zero"
    # Rows without content take no part in the loss.
    keep = [2, 3]
    alone = model.eval()(**{name: value[keep] for name, value in inputs.items()}, return_loss=True)
    assert float(model(**inputs, return_loss=True).loss) == pytest.approx(float(alone.loss), abs=1e-5)


def test_empty_text_with_a_static_encoder(make_model: Callable) -> None:
    model = make_model("hardkuma_static")
    inputs = model.tokenizer(["", "paris"], padding=True, return_tensors="pt")
    out = model(**inputs)
    assert not out.anchor_embedding[0].any() and torch.isfinite(out.rationale_embedding).all()
    with pytest.raises(ValueError, match=r"at least one of each, got \(1, 0\); tokenise a non-empty"):
        model(torch.zeros(1, 0, dtype=torch.long))


def test_too_long_input_says_how_long(make_model: Callable) -> None:
    model = make_model()
    with pytest.raises(ValueError, match=r"input of 50 tokens is longer than the 42.*truncation=True, max_length=40"):
        model(torch.ones(1, 50, dtype=torch.long))


def test_batch_of_one_with_loss(make_model: Callable, tokenize: Callable) -> None:
    model = make_model()
    with pytest.raises(ValueError, match="at least 2 sentences in the global batch, got 1"):
        model(**tokenize(model, SENTENCES[:1]), return_loss=True)


@pytest.mark.parametrize("name", ["attention_mask", "token_type_ids", "special_tokens_mask", "surface_ids"])
def test_wrong_shapes_are_named(name: str, make_model: Callable, tokenize: Callable) -> None:
    model = make_model()
    inputs = tokenize(model, SENTENCES)
    inputs[name] = torch.ones(6, 3, dtype=torch.long)
    with pytest.raises(ValueError, match=rf"{name} has shape \(6, 3\) but input_ids has"):
        model(**inputs)
    with pytest.raises(ValueError, match=r"input_ids must be \(batch, length\).*got \(5,\)"):
        model(torch.ones(5, dtype=torch.long))
    del inputs[name]
    with pytest.raises(ValueError, match="noise must be"):
        model.train()(input_ids=inputs["input_ids"], noise=torch.rand(2, 2))


def test_nan_states_are_found(make_model: Callable, tokenize: Callable) -> None:
    model = make_model()
    inputs = tokenize(model, SENTENCES)
    with torch.no_grad():
        model.get_input_embeddings().weight[inputs["input_ids"][3, 1]] = float("nan")
    with pytest.raises(ValueError, match=r"NaN or infinity for rows \[3\] of the batch; check its weights"):
        model(**inputs)


def test_unexpected_arguments_are_errors(make_model: Callable, tokenize: Callable) -> None:
    model = make_model()
    with pytest.raises(TypeError, match="surface_idz"):
        model(**tokenize(model, SENTENCES), surface_idz=None)


# ---- selectors by name, gates of words ----------------------------------------------------------------------------------


def words_of(row: int, content: Tensor, continues: Tensor) -> list[list[int]]:
    words: list[list[int]] = []
    for i in content[row].nonzero().flatten().tolist():
        words[-1].append(i) if continues[row, i] and content[row, i - 1] else words.append([i])
    return words


@pytest.mark.parametrize("view", VIEWS)
@torch.no_grad()
def test_a_selector_by_its_name(view: str, make_two: Callable, tokenize: Callable) -> None:
    model = make_two(view=view)
    inputs = tokenize(model, SENTENCES)
    for options in ({}, {"rate": 0.3}):
        both = model(**inputs, **options)
        assert both.gates.shape[1] == 2 and not torch.equal(both.gates[:, 0], both.gates[:, 1])
        for number, name in enumerate(("meaning", "entities")):
            one = model(**inputs, selector=name, **options)
            assert torch.equal(one.gates, both.gates[:, number])
            for field in ("gate_probs", "alpha", "beta", "rationale_embedding", "complement_embedding"):
                assert torch.allclose(one[field], both[field][:, number], atol=1e-5), field
            assert torch.equal(one.anchor_embedding, both.anchor_embedding)
        turned = model(**inputs, selector=["entities", "meaning"], **options)
        assert torch.equal(turned.gates, both.gates.flip(1))
        assert torch.allclose(turned.rationale_embedding, both.rationale_embedding.flip(1), atol=1e-5)
        assert model(**inputs, selector=["entities"], **options).gates.shape[1] == 1, "a list keeps the axis"
    for wrong in ("x", 0, ["meaning", "x"]):
        for call in (model, model.gate_probabilities):
            name = wrong[-1] if isinstance(wrong, list) else wrong
            with pytest.raises(ValueError, match=f"no selector {name!r}: this model has 'meaning', 'entities'"):
                call(**inputs, selector=wrong)


@torch.no_grad()
def test_the_loss_of_one_selector(make_two: Callable, tokenize: Callable) -> None:
    model = make_two(rate_constraint="lagrangian", temperature=0.3)
    model.gate_head.rate_multiplier.copy_(torch.tensor([0.3, -0.2]))
    inputs = tokenize(model, SENTENCES)
    both = model(**inputs, return_loss=True)
    for number, name in enumerate(("meaning", "entities")):
        one = model(**inputs, selector=name, return_loss=True)
        assert set(one.losses) == set(both.losses) - {"kl"}
        for term, value in one.losses.items():
            assert torch.allclose(value, both.losses[term][number], atol=1e-6), term
    model.train()(**inputs, selector="entities", return_loss=True)
    assert model.gate_head.rate_multiplier[0] == torch.tensor(0.3) and model.gate_head.rate_multiplier[1] != torch.tensor(
        -0.2
    )


@torch.no_grad()
def test_embeddings_and_classifier_have_their_own_defaults(make_two: Callable, tokenize: Callable) -> None:
    base = make_two(selectors={name: TWO_SELECTORS["selectors"][name] for name in ("entities", "meaning")})
    inputs = tokenize(base, SENTENCES)
    tensors, out = (inputs["input_ids"], inputs["attention_mask"]), base(**inputs)
    found = base.sentence_features(*tensors)["embedding"]
    assert torch.allclose(found, out.rationale_embedding[:, 1], atol=1e-6), "meaning, wherever it stands"
    model = HardKumaForTokenClassification(base.config).eval()
    model.hardkuma.load_state_dict(base.state_dict())
    for options, number in (({}, 0), ({"selector": "meaning"}, 1), ({"return_loss": True}, 0)):
        labelled = model(**inputs, **options)
        assert torch.allclose(labelled.logits.softmax(-1)[..., 1], out.gate_probs[:, number], atol=1e-5)
        assert (labelled.loss is not None) == bool(options.get("return_loss"))


@torch.no_grad()
def test_all_tokens_of_a_word_share_a_gate(make_two: Callable, tokenize: Callable) -> None:
    model = make_two()
    inputs = tokenize(model, SENTENCES)
    content = content_of(inputs, model)
    continues = model.gate_head.token_roles[inputs["input_ids"]] == CONTINUES
    out, longest = model(**inputs), 0
    for row in range(len(SENTENCES)):
        for word in words_of(row, content, continues):
            longest = max(longest, len(word))
            for field in ("alpha", "beta", "gate_probs", "gates"):
                values = out[field][row][:, word]
                assert torch.allclose(values, values[:, :1].expand_as(values), atol=1e-6), field
    assert longest == 3
    tokens = {name: {**settings, "unit": "token"} for name, settings in TWO_SELECTORS["selectors"].items()}
    single = make_two(selectors=tokens)(**inputs)
    assert not torch.allclose(single.gate_probs, out.gate_probs, atol=1e-3)


@pytest.mark.parametrize("rate", [0.05, 0.3, 1.0])
@torch.no_grad()
def test_a_rate_of_words(rate: float, make_two: Callable, tokenize: Callable) -> None:
    model = make_two()
    inputs = tokenize(model, SENTENCES)
    content = content_of(inputs, model)
    continues = model.gate_head.token_roles[inputs["input_ids"]] == CONTINUES
    out = model(**inputs, rate=rate)
    for row in range(len(SENTENCES)):
        words = words_of(row, content, continues)
        ranked = sorted(words, key=lambda word: -float(out.gate_probs[row, 0, word[0]]))
        count = count_at_rate(len(words), rate)
        assert out.gates[row, 0].nonzero().flatten().tolist() == sorted(i for word in ranked[:count] for i in word)
        names = out.gates[row, 1].nonzero().flatten().tolist()
        assert sum(word[0] in names for word in words) >= count, "whole names may be more"


@torch.no_grad()
def test_a_sentence_with_words_always_means_something(make_two: Callable, tokenize: Callable) -> None:
    model = make_two(decision_threshold=0.999)
    inputs = tokenize(model, [*SENTENCES, ""])
    out, content = model(**inputs), content_of(inputs, model)
    assert float(out.gate_probs.max()) < 0.999
    assert not out.gates[:, 1].any(), "names there may be none"
    for row in range(len(SENTENCES)):
        best = out.gate_probs[row, 0].argmax()
        chosen = out.gates[row, 0].nonzero().flatten().tolist()
        assert int(best) in chosen and len(chosen) <= 2
    assert not content[-1].any() and not out.gates[-1].any()
    found = model.sentence_features(inputs["input_ids"], inputs["attention_mask"])["embedding"]
    assert len(found[:-1].unique(dim=0)) == len(SENTENCES), "rationales differ"


@torch.no_grad()
def test_every_family_has_gates_of_words(make_two: Callable, tokenize: Callable) -> None:
    for family in FAMILIES:
        model = make_two(family)
        inputs = tokenize(model, SENTENCES)
        out = model(**inputs)
        assert torch.isfinite(out.gate_probs).all() and bool((out.gates[:, 0].sum(-1) > 0).all()), family
        alone = model(**tokenize(model, SENTENCES[:1]))
        width = alone.gate_probs.shape[-1]
        assert torch.allclose(out.gate_probs[0, :, :width], alone.gate_probs[0], atol=1e-5), family


def test_words_of_grown_vocabularies(make_two: Callable) -> None:
    """Tokens that were added since start words, and mean nothing by themselves."""
    model = make_two()
    model.tokenizer.add_tokens(["zanzibar"])
    model.resize_token_embeddings(len(model.tokenizer))
    inputs = model.tokenizer(["marie curie zanzibar"], return_tensors="pt")
    assert int(inputs["input_ids"].max()) == len(model.gate_head.token_roles) - 1
    assert torch.isfinite(model(**inputs).gate_probs).all()
    assert model(**inputs).gate_probs[0, 0, 1] != model(**inputs).gate_probs[0, 0, 3], "a word of its own"


@torch.no_grad()
def test_words_of_embeddings_are_the_callers(make_two: Callable, tokenize: Callable) -> None:
    """Without ids nobody knows which tokens make up a word."""
    model = make_two(
        selectors={
            "meaning": {"reads": ["state", "anchor", "leave_one_out"], "unit": "word"},
            "entities": {"reads": ["state", "norm"], "unit": "name"},
        }
    )
    inputs = tokenize(model, SENTENCES)
    special = torch.isin(inputs["input_ids"], torch.tensor(model.config.special_token_ids))
    given = {
        "inputs_embeds": model.get_input_embeddings()(inputs["input_ids"]),
        "attention_mask": inputs["attention_mask"],
        "special_tokens_mask": special.long(),
    }
    continues = model.gate_head.token_roles[inputs["input_ids"]] == CONTINUES
    assert torch.allclose(model(**given, continues=continues).gate_probs, model(**inputs).gate_probs, atol=1e-6)
    single = model(**inputs, continues=torch.zeros_like(continues))
    assert torch.allclose(model(**given).gate_probs, single.gate_probs, atol=1e-6)
