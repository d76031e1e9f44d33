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
