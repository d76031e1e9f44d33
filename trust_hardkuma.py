"""What a config may make transformers load: the checkpoint's own classes and pipelines, and a stock encoder.

Nothing else that a config file asks for is trusted.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

AUTO_MAP = {
    "AutoConfig": "configuration_hardkuma.HardKumaConfig",
    "AutoModel": "modeling_hardkuma.HardKumaModel",
    "AutoModelForTokenClassification": "modeling_hardkuma.HardKumaForTokenClassification",
}
# Tasks of transformers that a checkpoint answers by itself: the stock pipeline knows neither word shapes nor windows.
_CLASSIFICATION = {"impl": "pipeline_hardkuma.GateClassificationPipeline", "pt": ["AutoModelForTokenClassification"]}
STOCK_TASKS = {"token-classification": _CLASSIFICATION, "ner": _CLASSIFICATION}


class CustomPipelines(dict[str, Any]):
    """Pipelines by task, as transformers looks them up in a config. It takes the only task that is listed where none is
    named, `pipeline(model=folder)`, so that the stock tasks are answered here and not listed.

    >>> "ner" in CustomPipelines(), CustomPipelines()["ner"]["impl"], len(CustomPipelines())
    (True, 'pipeline_hardkuma.GateClassificationPipeline', 0)
    """

    def __contains__(self, task: object) -> bool:
        return super().__contains__(task) or task in STOCK_TASKS

    def __missing__(self, task: str) -> dict[str, Any]:
        return copy.deepcopy(STOCK_TASKS[task])  # transformers writes into it


CUSTOM_PIPELINES = CustomPipelines({"token-gates": {"impl": "pipeline_hardkuma.TokenGatesPipeline", "pt": ["AutoModel"]}})

# Keys through which a checkpoint's nested config could ask for code, for trust or for another download.
UNTRUSTED_KEYS = frozenset(
    {"auto_map", "trust_remote_code", "custom_pipelines", "name_or_path", "_name_or_path", "quantization_config"}
)


class StaticEncoderConfig(PreTrainedConfig):
    """An encoder without context: one vector per token (deep averaging networks, static embeddings).

    >>> StaticEncoderConfig(vocab_size=100, hidden_size=8).hidden_size
    8
    """

    model_type = "hardkuma_static"

    vocab_size: int = 30522
    hidden_size: int = 384
    pad_token_id: int | None = None
    num_hidden_layers: int = 0


def strip_untrusted(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a nested config without any key that asks for code, trust or another download, at any depth.

    >>> strip_untrusted({"model_type": "bert", "auto_map": {"AutoModel": "evil.Model"}, "x": {"trust_remote_code": True}})
    {'model_type': 'bert', 'x': {}}
    """
    return {
        key: strip_untrusted(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in UNTRUSTED_KEYS
    }


def clean_encoder_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """`strip_untrusted` on the config of an encoder that lives, in place: model and config then share one object.

    >>> config = clean_encoder_config(AutoConfig.for_model("bert", auto_map={"AutoModel": "evil.Model"}))
    >>> hasattr(config, "auto_map")
    False
    """
    for name, value in list(vars(config).items()):
        if name in UNTRUSTED_KEYS:
            delattr(config, name)
        elif isinstance(value, Mapping):
            setattr(config, name, strip_untrusted(value))
    return config


def make_encoder_config(config: Mapping[str, Any] | PreTrainedConfig) -> PreTrainedConfig:
    """The encoder's config as an object of a *stock* transformers class (or `StaticEncoderConfig`), stripped of trust.

    >>> make_encoder_config({"model_type": "bert", "hidden_size": 32, "num_attention_heads": 2}).hidden_size
    32
    """
    values = strip_untrusted(config if isinstance(config, Mapping) else config.to_dict())
    model_type = values.pop("model_type", None)
    if model_type == StaticEncoderConfig.model_type:
        return StaticEncoderConfig(**values)
    if model_type not in CONFIG_MAPPING:
        raise ValueError(
            f"encoder_config has model_type {model_type!r}, which is not an architecture of this transformers version; "
            "encoders that need code of their own are not loaded. Use a stock architecture such as 'bert'."
        )
    return AutoConfig.for_model(model_type, **values)
