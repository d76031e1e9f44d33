"""The encoder's vectors of single tokens, and what they say of a word in its sentence."""

from __future__ import annotations

import copy
import inspect
import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hardkuma import HardKumaModel
from hardkuma.batch_hardkuma import TokenBatch, prepare
from hardkuma.encoder_hardkuma import frame_token_ids
from hardkuma.features_hardkuma import TokensAlone, alone_measures
from tests.conftest import SENTENCES

READS = {"selector_unit": "word", "selector_inputs": ["state", "alone"]}


def count_sequences(model: HardKumaModel, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of all that the encoder is given from now on."""
    shapes: list[tuple[int, ...]] = []
    forward = model.encoder.forward

    def counted(*args: object, **kwargs: Tensor) -> object:
        shapes.append(tuple(kwargs["input_ids"].shape))
        return forward(*args, **kwargs)

    counted.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    monkeypatch.setattr(model.encoder, "forward", counted)
    return shapes


def naive(vectors: Tensor, anchor: Tensor, batch: TokenBatch) -> Tensor:
    found = torch.zeros(*batch.mask.shape, 3)
    for row in range(len(found)):
        words: list[list[int]] = []
        for place in torch.where(batch.content[row])[0].tolist():
            if batch.continues[row, place]:
                words[-1].append(place)
            else:
                words.append([place])
        units = [torch.nn.functional.normalize(vectors[row, word].sum(0), dim=0) for word in words]
        total, a = sum(units, torch.zeros(vectors.shape[-1])), anchor[row, 0]
        for word, unit in zip(words, units, strict=True):
            rest = total - unit
            without = torch.cosine_similarity(rest, a, dim=0) if len(words) > 1 else torch.tensor(0.0)
            measures = [torch.cosine_similarity(unit, a, dim=0), torch.cosine_similarity(unit, total, dim=0), 1 - without]
            found[row, word] = torch.stack(measures)
    return found


@torch.no_grad()
def test_measures_are_those_of_a_loop(make_two: Callable, tokenize: Callable) -> None:
    model = make_two()
    inputs = tokenize(model, [*SENTENCES, "Paris"])
    batch = prepare(model.config, **{name: inputs[name] for name in ("input_ids",)}, kinds=model.gate_head.known_kinds)
    vectors = torch.nn.functional.normalize(torch.randn(*batch.mask.shape, 8), dim=-1)
    anchor = torch.nn.functional.normalize(torch.randn(len(batch.mask), 1, 8), dim=-1)
    found = alone_measures(vectors, anchor, batch)
    assert torch.allclose(found, naive(vectors, anchor, batch), atol=1e-5)
    assert bool(batch.continues.any()) and not bool(found[~batch.content].any())


@torch.no_grad()
def test_a_vector_is_the_embedding_of_the_token_by_itself(make_model: Callable, tokenize: Callable) -> None:
    for family, mode in [("bert", "mean"), ("roberta", "cls"), ("hardkuma_static", "mean")]:
        model = make_model(family, pooling_mode=mode, **READS)
        ids = tokenize(model, ["paris"])["input_ids"]
        place = len(model.config.frame_token_ids[0])
        found = TokensAlone(model.encoder, model.config).vectors(ids)[0, place]
        assert torch.allclose(found, torch.nn.functional.normalize(model(ids).anchor_embedding[0], dim=0), atol=2e-3)


@torch.no_grad()
def test_a_token_is_encoded_alone_once(make_model: Callable, tokenize: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(**READS)
    shapes = count_sequences(model, monkeypatch)
    inputs = tokenize(model, SENTENCES)
    first = model(**inputs, return_embeddings=False).gate_probs
    tokens = len(inputs["input_ids"].unique())
    assert [shape[0] for shape in shapes] == [len(SENTENCES), tokens] and shapes[1][1] == 3
    assert torch.equal(model(**inputs, return_embeddings=False).gate_probs, first)
    assert len(shapes) == 3, "the second time only the sentences are encoded"
    model.remember_tokens()
    assert sum(shape[0] for shape in shapes[3:]) == model.config.vocab_size - tokens


@torch.no_grad()
def test_changed_weights_are_not_answered_from_memory(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(**READS)
    inputs = tokenize(model, SENTENCES)
    before = model(**inputs).gate_probs
    for weight in model.encoder.parameters():
        weight.add_(0.1 * torch.randn_like(weight))
    changed = model(**inputs).gate_probs
    assert not torch.allclose(before, changed, atol=1e-4)
    again = make_model(**READS)
    again.load_state_dict(model.state_dict())
    assert torch.allclose(again(**inputs).gate_probs, changed, atol=1e-6)


@torch.no_grad()
def test_what_was_met_before_makes_no_difference(make_model: Callable, tokenize: Callable) -> None:
    model, other = make_model(**READS), make_model(**READS)
    other.remember_tokens()
    for text in SENTENCES:
        inputs = tokenize(model, [text])
        assert torch.allclose(model(**inputs).gate_probs, other(**inputs).gate_probs, atol=2e-4)
    assert torch.allclose(copy.deepcopy(other)(**inputs).gate_probs, other(**inputs).gate_probs, atol=1e-6)


def test_gradients_pass_by_what_was_remembered_in_inference_mode(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(**READS)
    inputs = tokenize(model, SENTENCES)
    with torch.inference_mode():
        model(**inputs)
    model.train()
    model(**inputs, return_loss=True).loss.backward()
    weight = model.gate_head.selectors[0].direct.weight
    assert weight.grad is not None and bool(weight.grad.abs().sum() > 0)


def test_adapters_that_are_switched_off_are_not_answered_from_memory(make_model: Callable, tokenize: Callable) -> None:
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.tuners_utils import BaseTunerLayer

    model = make_model(**READS)
    inputs = tokenize(model, SENTENCES)
    with torch.no_grad():
        before = model(**inputs).gate_probs
        inject_adapter_in_model(LoraConfig(target_modules=["query"], init_lora_weights=False), model.encoder)
        adapted = model.eval()(**inputs).gate_probs
        for module in model.encoder.modules():
            if isinstance(module, BaseTunerLayer):
                module.enable_adapters(False)
        assert not torch.allclose(adapted, before, atol=1e-4)
        assert torch.allclose(model(**inputs).gate_probs, before, atol=1e-6)


def test_weights_that_are_elsewhere_until_needed(make_model: Callable, tokenize: Callable) -> None:
    from accelerate import cpu_offload

    model = make_model(**READS)
    inputs = tokenize(model, SENTENCES)
    with torch.no_grad():
        expected = model(**inputs).gate_probs
        assert torch.allclose(cpu_offload(make_model(**READS))(**inputs).gate_probs, expected, atol=1e-5)


def test_the_modes_of_a_trained_encoder_stay(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(**READS, freeze_encoder=False).train()
    model.encoder.embeddings.eval()
    model(**tokenize(model, SENTENCES), return_loss=True).loss.backward()
    modes = {name: module.training for name, module in model.encoder.named_modules()}
    assert not modes["embeddings"] and modes["encoder"]
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or bool(torch.isfinite(parameter.grad).all()), name


def test_many_threads_share_one_memory(make_model: Callable, tokenize: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = make_model(**READS), make_model(**READS)
    inputs = [tokenize(model, [text]) for text in SENTENCES]
    found: dict[int, Tensor] = {}
    filling: list[int] = []  # how many threads are filling the memory, whenever one begins
    now, start, encode = [0], threading.Barrier(len(inputs)), TokensAlone._encode

    def encode_slowly(self: TokensAlone, tokens: Tensor) -> Tensor:
        now[0] += 1
        filling.append(now[0])
        time.sleep(0.02)  # so that without a lock others would come in between
        now[0] -= 1
        return encode(self, tokens)

    def run(number: int) -> None:
        start.wait()
        with torch.no_grad():
            found[number] = model(**inputs[number]).gate_probs

    with torch.no_grad():
        expected = [other(**given).gate_probs for given in inputs]
    monkeypatch.setattr(TokensAlone, "_encode", encode_slowly)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(filling) > 1 and max(filling) == 1
    for number, probs in enumerate(expected):
        assert torch.allclose(found[number], probs, atol=2e-4)


def test_a_module_in_anothers_place_is_noticed(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(**READS)
    inputs = tokenize(model, SENTENCES)
    with torch.no_grad():
        before = model(**inputs).gate_probs
        layers = model.encoder.encoder.layer
        layers[0] = copy.deepcopy(layers[0])
        for weight in layers[0].parameters():
            weight.mul_(1.5)
        fresh = copy.deepcopy(model)
        fresh._alone = None
        after = model(**inputs).gate_probs
        assert torch.equal(after, fresh(**inputs).gate_probs) and not torch.allclose(after, before, atol=1e-3)


def test_what_cannot_be_read_is_said(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(**READS)
    inputs = tokenize(model, SENTENCES[:2])
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    with pytest.raises(ValueError, match=r"reads tokens \"alone\" and must know which they are: pass input_ids"):
        model(inputs_embeds=embeds, attention_mask=inputs["attention_mask"])
    with pytest.raises(ValueError, match=r"call model.remember_tokens\(\) before"):
        torch.export.export(model, (), dict(inputs))
    with pytest.raises(
        ValueError, match=r"frame_token_ids must be two lists of token ids, \[before, behind\], got \[\[1\]\]"
    ):
        make_model(**READS, frame_token_ids=[[1]])


def test_the_frame_of_a_text(make_model: Callable) -> None:
    assert frame_token_ids(make_model().tokenizer) == [[0], [3]]
    assert frame_token_ids(make_model("hardkuma_static").tokenizer) == [[], []]
    model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2")
    assert model.config.frame_token_ids == [[101], [102]]
