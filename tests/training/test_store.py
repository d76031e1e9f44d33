"""The state store: equal to live encoding, reused, rebuilt, and modest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hardkuma.training import store as store_module
from hardkuma.training.store import StateStore, encode_sentences, usable_rows, write_tokens
from hardkuma.words_hardkuma import continues_batch, surface_batch, surface_ids
from tests.conftest import SENTENCES
from tests.training.conftest import build_store

TEXTS = [*SENTENCES, "", *[f"the museum in paris opened {w}" for w in ("1891", "2020", "in london")]]


@pytest.mark.parametrize("cache_type", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("view", ["hidden", "input", "reencode"])
def test_stored_states_give_the_gates_of_live_encoding(
    cache_type: str, view: str, make_model: Callable, tmp_path: Path
) -> None:
    model = make_model(view=view, selectors={"meaning": {"reads": ["state", "input", "norm", "attention"]}})
    store = build_store(model, TEXTS, tmp_path / "store", cache_type)
    rows = np.array([4, 0, 6, 8])
    batch = store.fetch(rows)
    assert batch["encoded"]["states"].dtype == getattr(torch, cache_type)
    with torch.no_grad():
        stored = model(**batch)
        live = model(**model.tokenizer([TEXTS[i] for i in rows], padding=True, return_tensors="pt"))
    tolerance = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[cache_type]
    assert torch.allclose(stored.gate_probs, live.gate_probs, atol=tolerance)
    assert torch.allclose(stored.anchor_embedding, live.anchor_embedding, atol=10 * tolerance)
    assert torch.allclose(torch.from_numpy(store.anchors()[rows].copy()), live.anchor_embedding, atol=1e-5)


def test_without_states_and_with_forms(make_model: Callable, tmp_path: Path) -> None:
    model = make_model()
    store = build_store(model, ["Marie moved to Paris"], tmp_path / "store", None)
    batch = store.fetch([0], forms=True)
    assert "encoded" not in batch and batch["surface_ids"].tolist() == [[0, 4, 3, 3, 5, 0]]
    assert "surface_ids" not in store.fetch([0])


def test_reused_only_for_the_same_text_and_encoder(make_model: Callable, tmp_path: Path) -> None:
    model = make_model()
    build_store(model, TEXTS, tmp_path / "store", "float16")
    stamp = (tmp_path / "store" / "states").stat().st_mtime_ns
    build_store(model, TEXTS, tmp_path / "store", "float16")
    assert (tmp_path / "store" / "states").stat().st_mtime_ns == stamp
    for change in ("text", "encoder", "unfinished"):
        if change == "encoder":
            with torch.no_grad():
                model.encoder.embeddings.word_embeddings.weight[5, 0] += 1
        if change == "unfinished":
            (tmp_path / "store" / "meta.json").unlink()
        build_store(model, TEXTS[: -1 if change == "text" else None], tmp_path / "store", "float16")
        new = (tmp_path / "store" / "states").stat().st_mtime_ns
        assert new != stamp, change
        stamp = new


def test_short_disk_falls_back(make_model: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=store_module.RESERVE + 10)
    monkeypatch.setattr(store_module.shutil, "disk_usage", lambda path: usage)
    said: list[str] = []
    store = build_store(make_model(), TEXTS, tmp_path / "store", "float16", said.append)
    assert store.cache_type is None and "not enough free disk" in said[0] and store.is_encoded(range(len(TEXTS))).all()
    tokens, asked = store_module.TokenFile(tmp_path / "store"), []
    monkeypatch.setattr(store_module, "RESERVE", usage.free)  # and less room than before, with the same store
    again = encode_sentences(make_model(), tokens, "float16", asked.append, said.append, progress=False)
    assert again.cache_type is None and asked == [True] and len(said) == 1, "the store is at hand"
    encode_sentences(make_model(view="hidden", normalize=True), tokens, "float16", asked.append, progress=False, log=str)
    assert asked == [True, True, False], "without states other sentences are needed"


def test_states_that_overflow_are_an_error(make_model: Callable, tmp_path: Path) -> None:
    model = make_model()
    with torch.no_grad():
        model.encoder.encoder.layer[-1].output.LayerNorm.weight.fill_(1e6)
    with pytest.raises(ValueError, match="do not fit into float16: use --cache_type bfloat16"):
        build_store(model, TEXTS, tmp_path / "store", "float16")
    assert not (tmp_path / "store" / "meta.json").exists(), "an unfinished store is not used"


def test_rows_without_content_are_left_out(make_model: Callable, tmp_path: Path) -> None:
    model = make_model()
    store = build_store(model, TEXTS, tmp_path / "store", None)
    assert usable_rows(store, model).tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert len(StateStore(tmp_path / "store")) == len(TEXTS)


@pytest.mark.parametrize("cache_type", ["float32", None])
@pytest.mark.parametrize("inputs", [["state"], ["state", "form"]])
def test_batches_are_what_the_model_takes(
    inputs: list[str], cache_type: str | None, make_model: Callable, tmp_path: Path
) -> None:
    model = make_model(selectors={"a": {"reads": inputs}, "b": {"reads": inputs}})
    store = build_store(model, TEXTS, tmp_path / "store", cache_type)
    rows = np.array([4, 0, 8, 6, 2])
    seen = list(store.batches(rows, model, size=2))
    assert [batch.rows.tolist() for batch in seen] == [[4, 0], [8, 6], [2]]
    for batch in seen:
        texts = [TEXTS[row] for row in batch.rows]
        live = model.tokenizer(texts, padding=True, return_tensors="pt", return_offsets_mapping=True)
        forms = surface_batch(texts, live.pop("offset_mapping"))
        assert torch.equal(batch.forms, forms)
        assert torch.equal(
            batch.content, live["attention_mask"].bool() & ~torch.isin(live["input_ids"], torch.tensor([0, 1, 3]))
        )
        assert ("surface_ids" in batch.inputs) == ("form" in inputs) and ("encoded" in batch.inputs) == (
            cache_type is not None
        )
        ids = {"surface_ids": forms} if "form" in inputs else {}
        with torch.no_grad():
            stored, expected = model(**batch.inputs).gate_probs, model(**live, **ids).gate_probs
        assert torch.allclose(stored, expected, atol=1e-5)
        assert torch.equal(batch.by_selector(stored), stored)
        assert batch.by_selector(stored[:, 0]).shape == (len(texts), 1, stored.shape[-1])


def test_only_some_sentences_are_encoded(make_model: Callable, tmp_path: Path) -> None:
    model = make_model(selectors={"meaning": {"layer": 1}})
    whole = build_store(model, TEXTS, tmp_path / "whole", "float32")
    tokens = write_tokens(model, TEXTS, tmp_path / "some", progress=False)
    some = encode_sentences(model, tokens, "float32", lambda with_states: np.array([0, 3]), progress=False)
    assert some.is_encoded(range(5)).tolist() == [True, False, False, True, False]
    batch, expected = some.fetch([3, 0]), whole.fetch([3, 0])
    for name in ("states", "layer_states"):
        assert torch.allclose(batch["encoded"][name], expected["encoded"][name], atol=1e-6)
    assert np.allclose(some.anchors()[[0, 3]], whole.anchors()[[0, 3]], atol=1e-6) and not some.anchors()[1].any()
    assert "encoded" not in some.fetch([3, 1]), "a batch with any other sentence is encoded anew"
    assert torch.equal(some.fetch([3, 1])["input_ids"], whole.fetch([3, 1])["input_ids"])


def test_chunks_leave_no_trace(make_model: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens, forms and words of a text do not depend on the texts that are tokenised with it."""
    model = make_model()
    write_tokens(model, TEXTS, tmp_path / "one", progress=False)
    monkeypatch.setattr(store_module, "CHUNK", 3)
    write_tokens(model, TEXTS, tmp_path / "many", progress=False)
    for name in ("ids", "forms", "continues", "offsets.npy"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes(), name
    spans = [model.tokenizer(text, return_offsets_mapping=True)["offset_mapping"] for text in TEXTS]
    forms = [form for text, row in zip(TEXTS, spans, strict=True) for form in surface_ids(text, row)]
    assert list((tmp_path / "many" / "forms").read_bytes()) == forms
    continues = [
        flag for text, row in zip(TEXTS, spans, strict=True) for flag in continues_batch([text], [row])[0].tolist()
    ]
    assert list((tmp_path / "many" / "continues").read_bytes()) == continues


def test_tokens_stay_where_states_are_made_anew(make_model: Callable, tmp_path: Path) -> None:
    model = make_model()
    build_store(model, TEXTS, tmp_path, "float16")
    (tmp_path / "removal").mkdir()
    before = (tmp_path / "ids").stat().st_mtime_ns
    store = build_store(model, TEXTS, tmp_path, "float32")
    assert store.cache_type == "float32" and store.fetch([0])["encoded"]["states"].dtype == torch.float32
    assert (tmp_path / "ids").stat().st_mtime_ns == before
    assert not (tmp_path / "removal").exists(), "what was measured with other embeddings"


def test_rows_in_any_order_are_what_they_are_one_by_one(make_model: Callable, tmp_path: Path) -> None:
    store = build_store(make_model(), TEXTS, tmp_path, "float32")
    for rows in ([0, 1, 2, 3], [3, 2, 1], [2, 3, 5, 6], [4]):  # neighbours in the file are read at once
        batch = store.fetch(rows, forms=True)
        for number, row in enumerate(rows):
            alone, length = store.fetch([row], forms=True), int(store.lengths_of([row])[0])
            assert int(batch["attention_mask"][number].sum()) == length == store.lengths[row]
            for name in ("input_ids", "continues", "surface_ids"):
                assert torch.equal(batch[name][number, :length], alone[name][0]), name
            assert torch.equal(batch["encoded"]["states"][number, :length], alone["encoded"]["states"][0])
