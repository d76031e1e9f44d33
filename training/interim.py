"""Settings of selectors in the form that the configuration has today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..configuration_hardkuma import HardKumaConfig

_KEYS = {
    "reads": "selector_inputs",
    "layer": "selector_layer",
    "unit": "selector_unit",
    "hidden_size": "selector_hidden_size",
    "form_weight": "surface_weight",
    "backoff": "meaning_weight",
    "target_rate": "target_rate",
    "lambda_s": "lambda_s",
}
_DEFAULTS = {
    "reads": ["state"],
    "layer": -1,
    "unit": "token",
    "hidden_size": 128,
    "form_weight": 1.0,
    "backoff": 0.0,
    "target_rate": 0.2,
    "lambda_s": 1.0,
}
_READS = {"pool_share": "pooled", "leave_one_out": "removal", "isolated": "alone", "form": "shape"}
_MODEL = {
    "concentration_min": "shape_min",
    "concentration_max": "shape_max",
    "concentration_bound": "shape_bound",
    "form_shrinkage": "surface_shrinkage",
}


def _old(key: str, value: Any) -> Any:
    if key == "reads":
        return [_READS.get(name, name) for name in ([value] if isinstance(value, str) else value)]
    return "kind" if key == "unit" and value == "part" else value


def config_keywords(model: Mapping[str, Any], selectors: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    for name, values in selectors.items():
        for key in values:
            if key not in _KEYS:
                raise ValueError(f"selectors.{name} has no setting {key!r}; known: {', '.join(_KEYS)}.")
    keywords: dict[str, Any] = {_MODEL.get(key, key): value for key, value in model.items()}
    keywords["selector_names"] = list(selectors)
    for key, old in _KEYS.items():
        each = {name: _old(key, values.get(key, _DEFAULTS[key])) for name, values in selectors.items()}
        keywords[old] = list(each.values()) if key == "lambda_s" else each
    return keywords


def setting_of(config: HardKumaConfig, number: int, key: str) -> Any:
    if key == "lambda_s":
        return config.sparsity_weights[number] if isinstance(config.sparsity_weights, list) else config.sparsity_weights
    value = config.of_selector(_KEYS[key], number)
    if key == "reads":
        new = {old: name for name, old in _READS.items()}
        return [new.get(name, name) for name in value]
    return "part" if key == "unit" and value == "kind" else value


def parts_of(config: HardKumaConfig) -> list[int]:
    return config.kinds


def set_target_rate(config: HardKumaConfig, number: int, rate: float) -> None:
    rates = {name: config.of_selector("target_rate", k) for k, name in enumerate(config.names)}
    config.target_rate = {**rates, config.names[number]: rate}


def rename(config: HardKumaConfig, names: Sequence[str]) -> None:
    from ..configuration_hardkuma import PER_SELECTOR, HardKumaConfig

    names = HardKumaConfig(selector_names=list(names)).names  # checked
    new = dict(zip(config.names, names, strict=True))
    for key in PER_SELECTOR:
        value = getattr(config, key)
        if isinstance(value, dict):
            setattr(config, key, {new[name]: item for name, item in value.items()})
    config.selector_names = names


def only(config: HardKumaConfig, names: Sequence[str]) -> HardKumaConfig:
    from ..configuration_hardkuma import PER_SELECTOR

    chosen = deepcopy(config)
    for key in PER_SELECTOR:
        value = getattr(chosen, key)
        if isinstance(value, dict):
            setattr(chosen, key, {name: value[name] for name in names})
    if isinstance(chosen.lambda_s, list):
        chosen.lambda_s = [chosen.lambda_s[config.names.index(name)] for name in names]
    chosen.selector_names, chosen.num_selectors = list(names), len(names)
    return chosen


def shared_state(config: HardKumaConfig) -> dict[str, Any]:
    from ..configuration_hardkuma import PER_SELECTOR

    return {key: getattr(config, key) for key in (*PER_SELECTOR, "selector_names")}


def load_shared_state(config: HardKumaConfig, state: Mapping[str, Any]) -> None:
    for key, value in state.items():
        setattr(config, key, value)
