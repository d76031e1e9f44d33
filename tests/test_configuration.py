"""Configuration: validation, round trips, nothing trusted."""

from __future__ import annotations

import ast
import json
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest
from transformers import AutoConfig, BertConfig, PreTrainedConfig

from hardkuma import HardKumaConfig, configuration_hardkuma
from hardkuma.configuration_hardkuma import make_encoder_config, strip_untrusted
from tests.conftest import TWO_SELECTORS

TINY = {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2}


def test_round_trip_through_json(tmp_path: Path) -> None:
    config = HardKumaConfig(
        encoder_config=TINY,
        view="reencode",
        lambda_s=[0.1, 0.2],
        num_selectors=2,
        pooling_mode=["mean", "max"],
        selector_inputs=["state", "attention"],
        special_token_ids=[3, 1, 1],
        projections=[{"in_features": 16, "out_features": 4, "bias": True, "activation": "tanh"}],
    )
    config.save_pretrained(tmp_path)
    again = HardKumaConfig.from_pretrained(tmp_path)
    assert again.to_dict() == config.to_dict()
    assert again.special_token_ids == [1, 3]
    assert again.encoder_config.hidden_size == 8
    assert again.projection_dim == 4  # of one selector's rationale
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "hardkuma"


def test_every_field_is_said_once() -> None:
    """Name, type and default in one line, what it means in the next, and nowhere else."""
    tree = ast.parse(Path(configuration_hardkuma.__file__).read_text(encoding="utf-8"))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "HardKumaConfig").body
    declared = [node.target.id for node in body if isinstance(node, ast.AnnAssign)]
    base = {item.name for item in fields(PreTrainedConfig)}
    assert declared == [item.name for item in fields(HardKumaConfig) if item.name not in base] and len(declared) > 40
    for node, following in pairwise(body):
        if isinstance(node, ast.AnnAssign):
            said = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            assert node.value is not None and said and len(following.value.value) > 5, node.target.id
    assert "__init__" not in {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_lists_are_the_configs_own() -> None:
    shared = ["state", "norm"]
    one, two = HardKumaConfig(selector_inputs=shared), HardKumaConfig(selector_inputs=tuple(shared))
    one.selector_inputs.append("input")
    HardKumaConfig().attention_layers.append(3)
    assert shared == two.selector_inputs == ["state", "norm"] and HardKumaConfig().attention_layers == [-1]
    assert HardKumaConfig(projections=None, special_token_ids=None).projections == []


def test_names_of_the_encoder_are_read_and_written_there() -> None:
    config = HardKumaConfig(encoder_config={**TINY, "vocab_size": 50, "num_hidden_layers": 3})
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (50, 8, 3, 2)
    config.vocab_size = 60
    assert config.encoder_config.vocab_size == 60 and "vocab_size" not in config.to_dict()
    assert not hasattr(HardKumaConfig(), "vocab_size")
    with pytest.raises(ValueError, match="unknown config name 'vocab_size'"):
        HardKumaConfig(vocab_size=3)


def test_auto_map_is_complete_and_not_taken_from_the_file() -> None:
    config = HardKumaConfig(
        encoder_config=TINY, auto_map={"AutoModel": "evil.Model"}, custom_pipelines={"x": {"impl": "evil.P"}}
    )
    assert set(config.custom_pipelines) == {"token-gates"} and config.id2label == {0: "O", 1: "ENTITY"}
    assert config.auto_map == {
        "AutoConfig": "configuration_hardkuma.HardKumaConfig",
        "AutoModel": "modeling_hardkuma.HardKumaModel",
        "AutoModelForTokenClassification": "modeling_hardkuma.HardKumaForTokenClassification",
    }


BAD = [
    ("temperature", -0.1, "temperature must be > 0, got -0.1"),
    ("temperature", float("nan"), "temperature must be > 0, got nan"),
    ("target_rate", 20, r"target_rate must be in \(0, 1\), got 20"),
    ("shape_min", 0.0, "shape_min must be > 0"),
    ("shape_max", 0.5, "shape_max must be > 1"),
    ("stretch_low", 0.1, "stretch_low must be < 0"),
    ("stretch_high", 0.9, "stretch_high must be > 1"),
    ("gate_threshold", 1.0, r"gate_threshold must be in \[0, 1\)"),
    ("decision_threshold", 0.0, r"decision_threshold must be in \(0, 1\)"),
    ("sampler", "gumbel", "sampler must be one of relaxed, straight_through, stretched; got 'gumbel'"),
    ("view", "hiden", "view must be one of"),
    ("pooling_mode", "median", "pooling_mode must be one of"),
    ("pooling_mode", [], "at least one"),
    ("selector_inputs", ["state", "state"], "twice"),
    ("selector_inputs", ["colour"], "selector_inputs must be one of"),
    ("num_selectors", 0, "num_selectors must be a whole number >= 1, got 0"),
    ("num_selectors", True, "num_selectors must be a whole number"),
    ("selector_hidden_size", 12.5, "whole number"),
    ("selector_dropout", 1.0, r"selector_dropout must be in \[0, 1\)"),
    ("attention_layers", [], "at least one layer"),
    ("frequency_high", 1.5, "frequency_high must be in"),
    ("lambda_s", [1.0, 2.0], "lambda_s has 2 values for num_selectors=1"),
    ("lambda_kl", float("inf"), "lambda_kl must be a finite number"),
    ("normalize", "yes", "normalize must be true or false, got 'yes'"),
    ("multiplier_lr", 0.0, "multiplier_lr must be > 0"),
    ("surface_shrinkage", -1.0, "surface_shrinkage must be >= 0"),
    ("max_seq_length", 0, "max_seq_length must be a whole number >= 1"),
    ("projections", [{"in_features": 2}], "a projection needs exactly"),
    ("selector_names", [], "one or more different names"),
    ("selector_names", ["a", "a"], "one or more different names"),
    ("selector_names", ["meaning", "all"], "not 'all'.*got 'all'"),
    ("selector_names", ["two words"], "letters, digits, - and _.*got 'two words'"),
    ("selector_names", [1], "letters, digits, - and _.*got 1"),
    ("selector_unit", "sentence", "selector_unit must be one of token, word, name, kind; got 'sentence'"),
    ("selector_unit", {"entities": "word"}, r"a value for each of the selectors \['meaning'\], got \['entities'\]"),
    ("selector_layer", [], "selector_layer must name at least one layer"),
    ("selector_layer", 1.5, r"selector_layer as a fraction must be in \[0, 1\], got 1.5"),
    ("selector_layer", [0.5, -0.1], r"selector_layer as a fraction must be in \[0, 1\], got -0.1"),
    ("selector_layer", "last", "selector_layer must be a whole number, got 'last'"),
    ("surface_weight", {"meaning": -1.0}, "surface_weight must be >= 0, got -1.0"),
    ("target_rate", {"meaning": 20}, r"target_rate must be in \(0, 1\), got 20"),
    ("selector_hidden_size", {"meaning": 0}, "selector_hidden_size must be a whole number >= 1, got 0"),
    ("selector_inputs", {"meaning": ["colour"]}, "selector_inputs must be one of"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD, ids=[f"{n}={v}" for n, v, _ in BAD])
def test_bad_values_are_named(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HardKumaConfig(encoder_config=TINY, **{name: value})


def test_shapes_below_one_are_allowed() -> None:
    assert HardKumaConfig(encoder_config=TINY, shape_min=0.1, shape_max=5.0).shape_min == 0.1


def test_unknown_names_are_refused_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"unknown config name 'temprature': did you mean 'temperature'\?"):
        HardKumaConfig(encoder_config=TINY, temprature=0.1)
    with pytest.raises(ValueError, match="unknown config name 'zzz': known names"):
        HardKumaConfig(encoder_config=TINY, zzz=1)


def test_config_of_another_model_type_is_refused(tmp_path: Path) -> None:
    BertConfig(hidden_size=8, num_attention_heads=2).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"config of a 'bert' model.*from_encoder"):
        HardKumaConfig.from_pretrained(tmp_path)


def test_nested_config_cannot_smuggle_trust() -> None:
    evil = {**TINY, "auto_map": {"AutoModel": "evil.Model"}, "trust_remote_code": True, "_name_or_path": "evil/repo"}
    config = HardKumaConfig(encoder_config={**evil, "inner": dict(evil)})
    nested = config.encoder_config.to_dict()
    assert not {"auto_map", "trust_remote_code"} & set(nested)
    assert "evil" not in json.dumps(nested)
    assert strip_untrusted({"a": {"auto_map": 1, "b": 2}}) == {"a": {"b": 2}}


def test_encoder_that_needs_custom_code_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model_type 'made-up'.*not an architecture of this transformers"):
        make_encoder_config({"model_type": "made-up"})
    with pytest.raises(ValueError, match="model_type None"):
        HardKumaConfig(encoder_config={"hidden_size": 3})


def test_auto_config_reads_it_with_trust(tmp_path: Path) -> None:
    HardKumaConfig(encoder_config=TINY, target_rate=0.3).save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path, trust_remote_code=True).target_rate == 0.3


# ---- selectors by name --------------------------------------------------------------------------------------------------


def test_names_of_selectors() -> None:
    assert HardKumaConfig().selector_names == ["meaning"]
    assert HardKumaConfig(num_selectors=2).selector_names == ["selector_0", "selector_1"]
    named = HardKumaConfig(selector_names=("meaning", "entities"))
    assert named.num_selectors == 2 and named.selector_names == named.names == ["meaning", "entities"]
    with pytest.raises(ValueError, match=r"selector_names has 2 names for num_selectors=3: \['a', 'b'\]"):
        HardKumaConfig(selector_names=["a", "b"], num_selectors=3)


def test_a_selector_is_found_by_its_name() -> None:
    two = HardKumaConfig(selector_names=["entities", "meaning"])
    assert [two.find_selector(), two.find_selector(None, "entities"), two.find_selector("meaning")] == [1, 0, 1]
    plain = HardKumaConfig(num_selectors=3)
    assert [plain.find_selector(), plain.find_selector(None, "entities"), plain.find_selector("selector_2")] == [0, 0, 2]
    for wrong in ("names", 0, 1, True, "0"):
        with pytest.raises(ValueError, match=f"no selector {wrong!r}: this model has 'entities', 'meaning'"):
            two.find_selector(wrong)


def test_settings_of_each_selector_round_trip(tmp_path: Path) -> None:
    config = HardKumaConfig(encoder_config=TINY, **TWO_SELECTORS)
    config.save_pretrained(tmp_path)
    again = HardKumaConfig.from_pretrained(tmp_path)
    assert again.to_dict() == config.to_dict()
    for setting, values in TWO_SELECTORS.items():
        if setting != "selector_names":
            assert [again.of_selector(setting, k) for k in range(2)] == [values["meaning"], values["entities"]]
    assert again.target_rates == [0.3, 0.2] and again.inner_layers == [0.5] and type(again.inner_layers[0]) is float
    assert again.reads("removal") and not again.reads("removal", [1]) and again.layers_of(0) == [0.5, -1]
    # Whole numbers and fractions stay apart in the file: 1 is a layer, 1.0 the whole depth.
    HardKumaConfig(encoder_config=TINY, selector_layer=[1, 1.0, 0, 0.0]).save_pretrained(tmp_path)
    layers = HardKumaConfig.from_pretrained(tmp_path).selector_layer
    assert [(layer, type(layer)) for layer in layers] == [(1, int), (1.0, float), (0, int), (0.0, float)]


def test_settings_of_each_selector_are_the_configs_own() -> None:
    shared = {"meaning": ["state"], "entities": ["state"]}
    config = HardKumaConfig(selector_names=["meaning", "entities"], selector_inputs=shared)
    config.selector_inputs["meaning"].append("norm")
    assert shared["meaning"] == ["state"]


def test_layers_that_nobody_reads_are_not_listed() -> None:
    config = HardKumaConfig(selector_inputs=["input"], selector_layer=[0.5, 3])
    assert config.layers_of(0) == [] and config.inner_layers == []
    assert HardKumaConfig(selector_inputs=["norm"], selector_layer=[0.5, 3]).inner_layers == [0.5, 3]
