"""Configuration: validation, round trips, nothing trusted."""

from __future__ import annotations

import ast
import copy
import json
import re
from dataclasses import fields
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, BertConfig, PreTrainedConfig

from hardkuma import HardKumaConfig, configuration_hardkuma
from hardkuma.configuration_hardkuma import (
    MOVED,
    READS,
    RENAMED,
    UNITS,
    SelectorConfig,
    layer_number,
    make_encoder_config,
    strip_untrusted,
)
from tests.conftest import TWO_SELECTORS

TINY = {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2}


def test_round_trip_through_json(tmp_path: Path) -> None:
    config = HardKumaConfig(
        encoder_config=TINY,
        view="reencode",
        selectors={"meaning": {"lambda_s": 0.1, "reads": ["state", "attention"]}, "entities": {"lambda_s": 0.2}},
        pooling_mode=["mean", "max"],
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


@pytest.mark.parametrize("cls", [HardKumaConfig, SelectorConfig])
def test_every_field_is_said_once(cls: type) -> None:
    """Name, type and default in one line, what it means in the next, and nowhere else."""
    tree = ast.parse(Path(configuration_hardkuma.__file__).read_text(encoding="utf-8"))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__).body
    declared = [node.target.id for node in body if isinstance(node, ast.AnnAssign)]
    base = {item.name for item in fields(PreTrainedConfig)} if cls is HardKumaConfig else set()
    assert declared == [item.name for item in fields(cls) if item.name not in base] and len(declared) > 7
    for node, following in pairwise(body):
        if isinstance(node, ast.AnnAssign):
            said = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            assert node.value is not None and said and len(following.value.value) > 5, node.target.id
    assert "__init__" not in {node.name for node in body if isinstance(node, ast.FunctionDef)}


def mutables(value: object) -> set[int]:
    """Addresses of all that can be changed inside of a value, the value itself included."""
    if isinstance(value, (str, int, float, type(None), tuple, torch.dtype)):
        return set()
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, (list, set)) else None
    inside = list(vars(value).values()) if inside is None else inside
    return {id(value)}.union(*(mutables(part) for part in inside))


def test_two_configs_share_nothing_that_changes() -> None:
    selector = SelectorConfig(reads=["state", "norm"], layer=[0, -1])
    given = {
        "encoder_config": make_encoder_config(TINY),
        "selectors": {"a": selector, "b": selector, "c": {"reads": ["input"]}},
        "pooling_mode": ["mean", "max"],
        "attention_layers": [0, 1],
        "projections": [{"in_features": 16, "out_features": 4, "bias": True, "activation": "tanh"}],
        "special_token_ids": [1, 3],
        "frame_token_ids": [[1], [3]],
    }
    configs = [HardKumaConfig(**given), HardKumaConfig(**given), HardKumaConfig(), HardKumaConfig()]
    configs.append(HardKumaConfig.from_dict(configs[0].to_dict()))
    for one, other in combinations([given, *configs], 2):
        assert not mutables(one) & mutables(other)
    assert not mutables(configs[0].selectors["a"]) & mutables(configs[0].selectors["b"])
    configs[0].selectors["a"].reads.append("input")
    assert configs[0].selectors["b"].reads == configs[1].selectors["a"].reads == selector.reads == ["state", "norm"]
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
        "AutoModelForSequenceClassification": "modeling_hardkuma.HardKumaForSequenceClassification",
    }


def test_a_file_names_its_classes_and_a_caller_others() -> None:
    saved = HardKumaConfig(id2label={0: "bad", 1: "good", 2: "ugly"}).to_dict()
    loaded = HardKumaConfig.from_dict(json.loads(json.dumps({**saved, "num_labels": 10**9, "label2id": {"x": 7}})))
    assert loaded.id2label == saved["id2label"] and loaded.label2id == {"bad": 0, "good": 1, "ugly": 2}
    named = HardKumaConfig.from_dict(saved, id2label={"0": "no", "1": "yes"})
    assert named.id2label == {0: "no", 1: "yes"} and named.label2id == {"no": 0, "yes": 1}
    for counted in (HardKumaConfig(num_labels=4), HardKumaConfig.from_dict(saved, num_labels=4)):
        assert counted.id2label == {number: f"LABEL_{number}" for number in range(4)} and len(counted.label2id) == 4


DENSE = {"in_features": 8, "out_features": 8, "bias": True, "activation": "tanh"}
BAD = [
    ("temperature", -0.1, "temperature must be > 0, got -0.1"),
    ("temperature", float("nan"), "temperature must be > 0, got nan"),
    ("concentration_min", 0.0, "concentration_min must be > 0"),
    ("concentration_max", 0.5, "concentration_max must be > 1"),
    ("concentration_bound", "hard", "concentration_bound must be one of smooth, clamp; got 'hard'"),
    ("stretch_low", 0.1, "stretch_low must be < 0"),
    ("stretch_high", 0.9, "stretch_high must be > 1"),
    ("gate_threshold", 1.0, r"gate_threshold must be in \[0, 1\)"),
    ("decision_threshold", 0.0, r"decision_threshold must be in \(0, 1\)"),
    ("sampler", "gumbel", "sampler must be one of relaxed, straight_through, stretched; got 'gumbel'"),
    ("view", "hiden", "view must be one of"),
    ("pooling_mode", "median", "pooling_mode must be one of"),
    ("pooling_mode", [], "at least one"),
    ("isolated_size", 0, "isolated_size must be a whole number >= 1, got 0"),
    ("attention_layers", [], "at least one layer"),
    ("attention_layers", [0.5], "attention_layers must be a whole number, got 0.5"),
    ("attention_layers", [12], "attention_layers has 12, but the encoder has layers 0 to 11"),
    ("frequency_high", 1.5, "frequency_high must be in"),
    ("lambda_kl", float("inf"), "lambda_kl must be a finite number"),
    ("normalize", "yes", "normalize must be true or false, got 'yes'"),
    ("multiplier_lr", 0.0, "multiplier_lr must be > 0"),
    ("form_shrinkage", -1.0, "form_shrinkage must be >= 0"),
    ("max_seq_length", 0, "max_seq_length must be a whole number >= 1"),
    ("max_seq_length", True, "max_seq_length must be a whole number >= 1, got True"),
    ("max_seq_length", 10**6, "max_seq_length is 1000000, but the encoder has 512 positions"),
    ("special_token_ids", [0, 10**6], "special_token_ids has 1000000, but the encoder's vocabulary is 0 to 30521"),
    ("frame_token_ids", [[10**6], []], "frame_token_ids has 1000000, but the encoder's vocabulary is 0 to 30521"),
    ("problem_type", 5, "problem_type must be a text, got 5"),
    ("projections", [{"in_features": 2}], "a projection needs exactly"),
    ("projections", [{**DENSE, "bias": 1}], "bias of a projection must be true or false, got 1"),
    ("projections", [{**DENSE, "in_features": 2}], "a projection takes 2 numbers and is given 8"),
    ("frame_token_ids", [[1]], r"frame_token_ids must be two lists of token ids, \[before, behind\], got \[\[1\]\]"),
    ("num_labels", 0, "num_labels must be a whole number >= 1, got 0"),
    ("id2label", 3, r"id2label must name the classes, \{0: 'bad', 1: 'good', ...\}, got 3"),
    ("id2label", {}, r"id2label must name the classes, .*got \{\}"),
    ("id2label", {0: "bad", 2: "good"}, "id2label must name the classes, .*got .*2: 'good'"),
    ("id2label", {"0": "bad", "1": 5}, "id2label must name the classes, .*got .*'1': 5"),
    ("selectors", {}, "selectors must name at least one selector"),
    ("selectors", {f"s{i}": {} for i in range(101)}, "101 selectors are too many: at most 100 are made"),
    ("selectors", [], "selectors must name at least one selector"),
    ("selectors", "meaning", "selectors must be {NAME: .*got 'meaning'"),
    ("selectors", None, "selectors must be {NAME: .*got None"),
    ("selectors", [{"unit": "word"}], "selector number 0 has no name; selectors must be {NAME:"),
    ("selectors", [{"name": "a"}, "b"], "selector number 1 has no name"),
    ("selectors", [{"name": "a"}, {"name": "a"}], "two selectors have the name 'a'; give each its own"),
    ("selectors", {"meaning": {}, "all": {}}, "not 'all'.*got 'all'"),
    ("selectors", {"two words": {}}, "letters, digits, - and _.*got 'two words'"),
    ("selectors", {1: {}}, "letters, digits, - and _.*got 1"),
    ("selectors", {"": {}}, "letters, digits, - and _.*got ''"),
    ("selectors", {"meaning": ["state"]}, r"selectors.meaning must be a mapping of reads, .*got \['state'\]"),
    ("selectors", {"a": {"unit": "part"}}, "its unit must be 'word' or 'name', and 'a' has 'part'"),
    ("selectors", {"meaning": {}, "a": {"unit": "part"}}, "divide the words of `meaning`.*'meaning' has 'token'"),
]
# The same of the settings of one selector.
BAD_SELECTORS = [
    ("colour", 1, "selectors.x has no setting 'colour'; known: reads, layer, unit, "),
    ("target_rate", 20, r"target_rate must be in \(0, 1\), got 20"),
    ("reads", [], "reads must name at least one of state, "),
    ("reads", ["state", "state"], "reads names something twice"),
    ("reads", ["colour"], "reads must be one of state, .*got 'colour'"),
    ("reads", 5, "selectors.x: "),
    ("reads", [["state"]], "selectors.x: "),
    ("hidden_size", 12.5, "hidden_size must be a whole number >= 1, got 12.5"),
    ("hidden_size", 0, "hidden_size must be a whole number >= 1, got 0"),
    ("unit", "sentence", "unit must be one of token, word, name, part; got 'sentence'"),
    ("layer", [], "layer must name at least one layer"),
    ("layer", 1.5, r"layer as a fraction must be in \[0, 1\], got 1.5"),
    ("layer", [0.5, -0.1], r"layer as a fraction must be in \[0, 1\], got -0.1"),
    ("layer", "last", "layer must be a whole number, got 'last'"),
    ("form_weight", -1.0, "form_weight must be >= 0, got -1.0"),
    ("backoff", float("nan"), "backoff must be >= 0, got nan"),
    ("layer_norm", 1, "layer_norm must be true or false, got 1"),
    ("lambda_s", [1.0, 2.0], r"lambda_s must be a finite number, got \[1.0, 2.0\]"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD, ids=[f"{n}={v}" for n, v, _ in BAD])
def test_bad_values_are_named(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HardKumaConfig(encoder_config=TINY, **{name: value})


@pytest.mark.parametrize(("name", "value", "message"), BAD_SELECTORS, ids=[f"{n}={v}" for n, v, _ in BAD_SELECTORS])
def test_bad_values_of_a_selector_are_named_with_it(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        HardKumaConfig(encoder_config=TINY, selectors={"meaning": {}, "x": {name: value}})
    assert str(caught.value).startswith("selectors.x")


@pytest.mark.parametrize("name", MOVED)
def test_a_setting_of_before_says_where_it_is_now(name: str) -> None:
    now = re.escape(f"it is now {MOVED[name]}")
    with pytest.raises(ValueError, match=f"'{name}' is a setting of 0.2.0.dev0: {now}") as caught:
        HardKumaConfig(encoder_config=TINY, **{name: 1})
    assert "\n" not in str(caught.value)
    place = re.fullmatch(r"`(selectors\.NAME\.)?(\w+)`", MOVED[name])
    if place is not None:  # it is a place that there is
        assert place[2] in {item.name for item in fields(SelectorConfig if place[1] else HardKumaConfig)}
    if name not in {item.name for item in fields(SelectorConfig)}:
        with pytest.raises(ValueError, match=f"selectors.x has no setting '{name}'; {now}"):
            HardKumaConfig(selectors={"x": {name: 1}})


@pytest.mark.parametrize("name", RENAMED)
def test_a_value_of_before_says_what_it_is_now(name: str) -> None:
    setting = "unit" if RENAMED[name] in UNITS else "reads"
    assert RENAMED[name] in (*UNITS, *READS)
    with pytest.raises(ValueError, match=f"selectors.x: '{name}' is a name of 0.2.0.dev0: it is now '{RENAMED[name]}'"):
        HardKumaConfig(selectors={"x": {setting: name}})


def test_concentrations_below_one_are_allowed() -> None:
    assert HardKumaConfig(encoder_config=TINY, concentration_min=0.1, concentration_max=5.0).concentration_min == 0.1


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
    HardKumaConfig(encoder_config=TINY, temperature=0.3).save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path, trust_remote_code=True).temperature == 0.3


# ---- selectors ----------------------------------------------------------------------------------------------------------


def test_a_selector_is_found_by_its_name() -> None:
    two = HardKumaConfig(selectors={"entities": {}, "meaning": {}})
    assert two.num_selectors == 2 and two.names == ["entities", "meaning"]
    assert [two.find_selector(), two.find_selector(None, "entities"), two.find_selector("meaning")] == [1, 0, 1]
    other = HardKumaConfig(selectors={"a": {}, "b": {}, "c": {"unit": "word"}})
    assert [other.find_selector(), other.find_selector(None, "entities"), other.find_selector("c")] == [0, 0, 2]
    assert other.selector(2) is other.selectors["c"] and HardKumaConfig().names == ["meaning"]
    for wrong in ("names", 0, 1, True, "0"):
        with pytest.raises(ValueError, match=f"no selector {wrong!r}: this model has 'entities', 'meaning'"):
            two.find_selector(wrong)


def test_settings_of_each_selector_round_trip(tmp_path: Path) -> None:
    config = HardKumaConfig(encoder_config=TINY, **TWO_SELECTORS)
    config.save_pretrained(tmp_path)
    again = HardKumaConfig.from_pretrained(tmp_path)
    assert again.to_dict() == config.to_dict() and again.selectors == config.selectors
    for name, settings in TWO_SELECTORS["selectors"].items():
        assert {key: getattr(again.selectors[name], key) for key in settings} == settings
    assert again.reads("leave_one_out") and not again.reads("leave_one_out", [1])
    # Whole numbers and fractions stay apart in the file: 1 is a layer, 1.0 the whole depth.
    HardKumaConfig(encoder_config=TINY, selectors={"x": {"layer": [1, 1.0, 0, 0.0]}}).save_pretrained(tmp_path)
    layers = HardKumaConfig.from_pretrained(tmp_path).selectors["x"].layer
    assert [(layer, type(layer)) for layer in layers] == [(1, int), (1.0, float), (0, int), (0.0, float)]


@pytest.mark.parametrize("names", [["z", "a", "m"], ["a", "m", "z"], ["meaning"]])
def test_the_order_of_selectors_survives_a_file(names: list[str], tmp_path: Path) -> None:
    """transformers sorts the keys of a config file, and the order is that of the outputs."""
    config = HardKumaConfig(encoder_config=TINY, selectors={name: {"hidden_size": 7 + i} for i, name in enumerate(names)})
    config.save_pretrained(tmp_path)
    read = json.loads((tmp_path / "config.json").read_text())
    assert [selector["name"] for selector in read["selectors"]] == names
    others = [
        HardKumaConfig.from_pretrained(tmp_path),
        HardKumaConfig.from_dict(json.loads(json.dumps(config.to_dict(), sort_keys=True))),
        HardKumaConfig.from_dict(json.loads(config.to_json_string(use_diff=False))),
        copy.deepcopy(config),
    ]
    for again in others:
        assert again.names == names and [again.selector(k).hidden_size for k in range(len(names))] == [
            7 + i for i in range(len(names))
        ]


def test_layers_that_nobody_reads_are_not_listed() -> None:
    encoder = {**TINY, "num_hidden_layers": 6}

    def layers(**selectors: dict[str, object]) -> list[int]:
        return HardKumaConfig(encoder_config=encoder, selectors=selectors).layers()

    assert layers(a={"reads": ["input"], "layer": [0.5, 3]}) == []
    assert layers(a={"reads": ["norm"], "layer": [0.5, 5]}) == [3, 5]
    assert layers(meaning={"layer": 1}, a={"reads": ["input"], "layer": 2, "backoff": 0.5}) == [1]
    for wrong in ({"a": {"backoff": 0.5}}, {"meaning": {"backoff": 0.5}}):
        with pytest.raises(ValueError, match="backoff goes by the gates of another selector, 'meaning'; add it, or use 0"):
            layers(**wrong)
    assert layers(a={"layer": [-1, 0.5]}, b={"layer": [3, 0.0]}) == [0, 3, 6]
    two = HardKumaConfig(encoder_config=encoder, selectors={"a": {"layer": 1}, "b": {"layer": 5}})
    assert (two.layers([0]), two.layers([1]), two.layers([])) == ([1], [5], [])
    with pytest.raises(ValueError, match="a selector reads layer 7, but the encoder has states 0 to 6"):
        layers(a={"layer": 7})


@pytest.mark.parametrize(
    ("depth", "numbers"), [(0, [0, 0, 0]), (1, [0, 0, 1]), (2, [0, 1, 2]), (3, [0, 2, 3]), (6, [0, 3, 6])]
)
def test_a_fraction_is_a_layer_of_any_depth(depth: int, numbers: list[int]) -> None:
    assert [layer_number(fraction, depth) for fraction in (0.0, 0.5, 1.0)] == numbers
    assert [layer_number(-1, depth), layer_number(-1 - depth, depth)] == [depth, 0]
    for outside in (depth + 1, -depth - 2):
        with pytest.raises(ValueError, match=f"reads layer {outside}, but the encoder has states 0 to {depth}"):
            layer_number(outside, depth)
