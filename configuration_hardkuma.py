"""Configuration: `HardKumaConfig` for the model, `SelectorConfig` for each of its selectors; every value is checked, once.

Also here, since a config decides about it: which layer a number means, and what a config may make transformers load (stock
encoders, the classes and pipelines of this checkpoint, nothing else).
"""

from __future__ import annotations

import copy
import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

from .words_hardkuma import Language


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise an error that names the value and the choices, if it is none of them.

    >>> check_choice("format", "pdf", ("text", "jsonl"))
    Traceback (most recent call last):
    ValueError: format must be one of text, jsonl; got 'pdf'.
    """
    choices = list(choices)
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")


def check_choices(name: str, values: Sequence[Any], choices: Sequence[str]) -> None:
    """The same for one or more values, none of them twice.

    >>> check_choices("formats", ["text", "text"], ("text", "jsonl"))
    Traceback (most recent call last):
    ValueError: formats names something twice: ['text', 'text'].
    """
    if not values:
        raise ValueError(f"{name} must name at least one of {', '.join(choices)}; got none.")
    for value in values:
        check_choice(name, value, choices)
    if len(set(values)) != len(values):
        raise ValueError(f"{name} names something twice: {values!r}.")


def check_whole(name: str, value: Any, minimum: int | None = None) -> None:
    """Raise an error if the value is no integer (a bool is none), or less than the minimum.

    >>> check_whole("size", 1.5, minimum=1)
    Traceback (most recent call last):
    ValueError: size must be a whole number >= 1, got 1.5.
    """
    if not isinstance(value, int) or isinstance(value, bool) or (minimum is not None and value < minimum):
        wanted = "a whole number" if minimum is None else f"a whole number >= {minimum}"
        raise ValueError(f"{name} must be {wanted}, got {value!r}.")


def check_inside(name: str, value: Any, low: float, high: float, *, low_in: bool = False, high_in: bool = False) -> None:
    """Raise an error if the value is no finite number between the bounds, which `low_in` and `high_in` allow themselves.

    >>> check_inside("rate", 20, 0.0, 1.0, high_in=True)
    Traceback (most recent call last):
    ValueError: rate must be in (0, 1], got 20.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    above = number and (value > low or (low_in and value == low))
    below = number and (value < high or (high_in and value == high))
    if not (above and below):
        if math.isinf(low) and math.isinf(high):
            wanted = "a finite number"
        elif math.isinf(high):
            wanted = f"{'>=' if low_in else '>'} {low:g}"
        elif math.isinf(low):
            wanted = f"{'<=' if high_in else '<'} {high:g}"
        else:
            wanted = f"in {'[' if low_in else '('}{low:g}, {high:g}{']' if high_in else ')'}"
        raise ValueError(f"{name} must be {wanted}, got {value!r}.")


def check_flag(name: str, value: Any, optional: bool = False) -> None:
    """Raise an error if the value is neither true nor false (nor, where that is allowed, nothing).

    >>> check_flag("normalize", "yes")
    Traceback (most recent call last):
    ValueError: normalize must be true or false, got 'yes'.
    """
    if not isinstance(value, bool) and not (optional and value is None):
        raise ValueError(f"{name} must be true or false, got {value!r:.60}.")


def check_text(name: str, value: Any) -> None:
    """Raise an error if the value is neither a text nor nothing."""
    if not isinstance(value, (str, type(None))):
        raise ValueError(f"{name} must be a text, got {value!r:.60}.")


def layer_number(layer: int | float, depth: int) -> int:
    """Which of the states 0 (the embeddings) to `depth` a layer of a `SelectorConfig` is.

    >>> layer_number(4, 6), layer_number(-2, 6), layer_number(0.5, 12), layer_number(0.66, 6)
    (4, 5, 6, 4)
    """
    if isinstance(layer, float):
        return round(layer * depth)
    number = layer if layer >= 0 else depth + 1 + layer
    if not 0 <= number <= depth:
        raise ValueError(f"a selector reads layer {layer}, but the encoder has states 0 to {depth}.")
    return number


AUTO_MAP = {
    "AutoConfig": "configuration_hardkuma.HardKumaConfig",
    "AutoModel": "modeling_hardkuma.HardKumaModel",
    "AutoModelForTokenClassification": "modeling_hardkuma.HardKumaForTokenClassification",
    "AutoModelForSequenceClassification": "modeling_hardkuma.HardKumaForSequenceClassification",
}
GATE_LABELS = {0: "O", 1: "ENTITY"}  # of tokens; a checkpoint with a classifier of texts has the names of its classes
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

# Keys through which a config file could ask for code, trust, another download, a kernel, other files, or memory for labels.
UNTRUSTED_KEYS = frozenset(
    {
        "attn_implementation",
        "auto_map",
        "backbone",
        "configuration_files",
        "custom_pipelines",
        "experts_implementation",
        "id2label",
        "label2id",
        "name_or_path",
        "num_labels",
        "quantization_config",
        "transformers_weights",
        "trust_remote_code",
    }
)
# What every call of an encoder says itself.
_OF_A_CALL = ("chunk_size_feed_forward", "output_attentions", "output_hidden_states", "return_dict")
# What a config may count at most: layers, and anything else. A file of some bytes must not ask for hours or all memory.
MOST_LAYERS, MOST_OTHERS, MOST_SELECTORS = 1000, 100_000, 100
_LAYERS, _OTHERS = re.compile(r"layers?$|n_layer|num_layer"), re.compile(r"groups|blocks|functions|experts")


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
    """A copy of a config without any key that asks for code, trust or another download, nor private ones, at any depth.

    >>> strip_untrusted({"model_type": "bert", "auto_map": {"AutoModel": "evil.Model"}, "x": {"trust_remote_code": True}})
    {'model_type': 'bert', 'x': {}}
    """
    return {
        key: strip_untrusted(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if _is_trusted(key)
    }


def _is_trusted(key: object) -> bool:
    return key not in UNTRUSTED_KEYS and not str(key).startswith("_")


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
    if not isinstance(config, (Mapping, PreTrainedConfig)):
        raise ValueError(f"encoder_config must be the config of an encoder, got {config!r:.60}.")
    values = strip_untrusted(config if isinstance(config, Mapping) else config.to_dict())
    for name in _OF_A_CALL:
        values.pop(name, None)
    model_type = values.pop("model_type", None)
    is_static = model_type == StaticEncoderConfig.model_type
    if not is_static and (not isinstance(model_type, str) or model_type not in CONFIG_MAPPING):
        raise ValueError(
            f"encoder_config has model_type {model_type!r}, which is not an architecture of this transformers version; "
            "encoders that need code of their own are not loaded. Use a stock architecture such as 'bert'."
        )
    kind = StaticEncoderConfig if is_static else CONFIG_MAPPING[model_type]
    if kind.sub_configs:
        raise ValueError(
            f"encoder_config has model_type {model_type!r}, which is made of several models "
            f"({', '.join(kind.sub_configs)}); give the text encoder alone."
        )
    for name in ("dtype", "torch_dtype"):
        _check_dtype(values.get(name))
    for name, value in values.items():
        most = MOST_LAYERS if _LAYERS.search(name) else MOST_OTHERS if _OTHERS.search(name) else None
        if most is not None and isinstance(value, int) and value > most:
            raise ValueError(f"encoder_config has {name} = {value}: more than {most} are not made; mend the config.")
    try:
        made = kind(**values)
        _ = made.num_hidden_layers, made.hidden_size  # every encoder has them
    except Exception as error:  # what a stock class says about values of a file is of any kind
        raise ValueError(f"encoder_config is no config of a {model_type!r} encoder: {one_line(error)}") from error
    return made


def one_line(error: object) -> str:
    """What an error says, in one line of reasonable length.

    >>> one_line(ValueError("first\\n  second"))
    'first second'
    """
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= 300 else f"{said[:297]}..."


def _check_dtype(dtype: Any) -> None:
    """A name of a type of numbers, such as "float32"; transformers would take any name of torch."""
    known = dtype is None or isinstance(dtype, torch.dtype)
    if not known and not (isinstance(dtype, str) and isinstance(getattr(torch, dtype, None), torch.dtype)):
        raise ValueError(f"dtype must be the name of a torch type such as 'float32', got {dtype!r:.60}.")


logger = logging.get_logger(__name__)


def position_limit(config: PreTrainedConfig | None) -> int | None:
    """How many tokens the encoder can take at most; None where positions are relative or absent.

    >>> position_limit(make_encoder_config({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}))
    512
    """
    limit = getattr(config, "max_position_embeddings", None)
    # XLNet says -1.
    if config is None or limit is None or limit < 0 or config.model_type in ("t5", "mt5", "umt5"):
        return None
    # These number positions from pad_token_id + 1.
    shifted = config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl")
    return limit - (config.pad_token_id + 1 if shifted else 0)


SAMPLERS = ("relaxed", "straight_through", "stretched")
VIEWS = ("hidden", "input", "reencode")
POOLING_MODES = ("mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens")
READS = ("state", "input", "norm", "attention", "form", "anchor", "pool_share", "leave_one_out", "isolated")
READS_OF_SENTENCES = ("attention", "anchor", "pool_share", "leave_one_out", "isolated")  # they need the whole encoder
UNITS = ("token", "word", "name", "part")
BOUNDS = ("smooth", "clamp")
FREQUENCY_FILTERS = ("none", "low", "high", "band")
CONTRASTIVE_LOSSES = ("infonce", "nt_xent")
SIMILARITIES = ("cosine", "dot")
RATE_CONSTRAINTS = ("none", "penalty", "linear", "lagrangian")
ACTIVATIONS = ("identity", "tanh", "relu", "gelu", "sigmoid")

# The selectors of a released checkpoint: which words carry the sentence's embedding, and which are names.
MEANING, ENTITIES = "meaning", "entities"
TASK = "task"  # what a selector of words that decide about a text's class is usually called
_NAME = re.compile(r"\w[\w-]*")

# Where the settings of 0.2.0.dev0 are now.
MOVED = {
    "num_selectors": "the number of `selectors`",
    "selector_names": "the keys of `selectors`",
    "selector_inputs": "`selectors.NAME.reads`",
    "selector_layer": "`selectors.NAME.layer`",
    "selector_unit": "`selectors.NAME.unit`",
    "selector_hidden_size": "`selectors.NAME.hidden_size`",
    "meaning_weight": "`selectors.NAME.backoff`",
    "surface_weight": "`selectors.NAME.form_weight`",
    "target_rate": "`selectors.NAME.target_rate`",
    "lambda_s": "`selectors.NAME.lambda_s`",
    "shape_min": "`concentration_min`",
    "shape_max": "`concentration_max`",
    "shape_bound": "`concentration_bound`",
    "surface_shrinkage": "`form_shrinkage`",
    "selector_dropout": "gone: objectives have dropout of their own",
}
# The same for values of `reads` and `unit`.
RENAMED = {
    "pooled": "pool_share",
    "removal": "leave_one_out",
    "alone": "isolated",
    "shape": "form",
    "kind": "part",
}

# What transformers itself writes into, or passes along with, any config: Trainer sets `use_cache` and the token ids.
_BASE_NAMES = frozenset(PreTrainedConfig.__dataclass_fields__) | {
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "custom_pipelines",
    "eos_token_id",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "pad_token_id",
    "tie_word_embeddings",
    "tokenizer_class",
    "torch_dtype",
    "use_cache",
}


@dataclass
class SelectorConfig:
    """One selector: what it reads of a word, and what its gates mean.

    >>> SelectorConfig(reads=["state", "isolated"], layer=0.66, unit="word").hidden_size
    128
    >>> SelectorConfig(layer=1.5)
    Traceback (most recent call last):
    ValueError: layer as a fraction must be in [0, 1], got 1.5.
    """

    reads: list[str] = field(default_factory=lambda: ["state"])
    """What it sees, any of `READS`: "state" (the encoder's states), "input" (its non-contextual input embeddings), "norm"
    (root mean square of the state), "attention" (received and given), "form" (one-hot class of the word's form, needs
    `surface_ids`), "anchor" (last state times sentence embedding), "pool_share" (what the word brings into the pooled
    state), "leave_one_out" (what that state loses without the word), "isolated" (what the word means by itself); the
    equations are in features_hardkuma.py."""
    layer: int | float | list[int | float] = -1
    """Which layer's states "state" and "norm" read: a whole number (-1 is the last, 0 the embeddings), or a fraction of the
    encoder's depth in [0.0, 1.0], which fits encoders of any depth; several in a list, of which "norm" takes the last."""
    unit: str = "token"
    """What a gate belongs to, one of `UNITS`: a "token"; a "word", of which at least one is selected in every sentence; a
    word of a "name", and a name is selected whole; a word of one "part" of the vocabulary: its gate is a share of that of
    `meaning`, and a sentence may have none."""
    hidden_size: int = 128
    """Width of the hidden layer, > 0."""
    form_weight: float = 1.0
    """Weight of the log-odds of the word's form where `surface_ids` is given; >= 0."""
    backoff: float = 0.0
    """Where a selector finds little in a sentence, how far its gates go by those of `meaning`: their log-odds shift by
    this * (1 - largest gate) * log-odds of `meaning`; >= 0."""
    share: float | None = None
    """What it selects by itself, if its unit is "word": the words that hold this share of a sentence's summed gates, and
    whole phrases (gate_head_hardkuma.py); in (0, 1]. None: the words above `decision_threshold`, and at least one."""
    least_rate: float = 0.28
    """Where `share` decides: at least this fraction of the words; in [0, 1]."""
    phrase_gate: float = 0.25
    """Neighbours of a selected word complete its phrase, if their gates, shared with like words, reach this; in [0, 1]."""
    like_cosine: float = 0.5
    """Words whose isolated vectors have a larger cosine share their gates where phrases are completed; in [0, 1)."""
    target_rate: float = 0.2
    """pi, the fraction of words (or tokens) that it is to select; in (0, 1), never a percentage."""
    lambda_s: float = 1.0
    """Weight of its sparsity in the contrastive loss, and of E[number of selected words] in that of a task."""
    function_words: bool = False
    """Whether function words are words like others where a rate or the threshold decides: a task may hang on them."""
    layer_norm: bool = True
    """Whether the vectors that it reads are normalised first, to mean 0 and variance 1; False reads them as they are."""

    def __post_init__(self) -> None:
        self.reads = [self.reads] if isinstance(self.reads, str) else self.reads
        if not isinstance(self.reads, (list, tuple)) or not all(isinstance(name, str) for name in self.reads):
            raise ValueError(f"reads must be a list of names of {', '.join(READS)}; got {self.reads!r:.60}.")
        self.reads = list(self.reads)
        self.layer = list(self.layer) if isinstance(self.layer, (list, tuple)) else self.layer
        for value in [*self.reads, self.unit]:
            if isinstance(value, str) and value in RENAMED:
                raise ValueError(f"{value!r} is a name of 0.2.0.dev0: it is now {RENAMED[value]!r}.")
        check_choices("reads", self.reads, READS)
        check_choice("unit", self.unit, UNITS)
        check_whole("hidden_size", self.hidden_size, minimum=1)
        check_inside("form_weight", self.form_weight, 0.0, math.inf, low_in=True)
        check_inside("backoff", self.backoff, 0.0, math.inf, low_in=True)
        if self.share is not None:
            check_inside("share", self.share, 0.0, 1.0, high_in=True)
        check_inside("least_rate", self.least_rate, 0.0, 1.0, low_in=True, high_in=True)
        check_inside("phrase_gate", self.phrase_gate, 0.0, 1.0, low_in=True, high_in=True)
        check_inside("like_cosine", self.like_cosine, 0.0, 1.0, low_in=True)
        check_inside("target_rate", self.target_rate, 0.0, 1.0)
        check_inside("lambda_s", self.lambda_s, -math.inf, math.inf)
        check_flag("function_words", self.function_words)
        check_flag("layer_norm", self.layer_norm)
        for layer in self.layer if isinstance(self.layer, list) else [self.layer]:
            if isinstance(layer, float):
                check_inside("layer as a fraction", layer, 0.0, 1.0, low_in=True, high_in=True)
            else:
                check_whole("layer", layer)
        if self.layer == []:
            raise ValueError("layer must name at least one layer, got []; use -1 for the last.")

    def layers(self, depth: int) -> list[int]:
        """Numbers of the layers, 0 (the embeddings) to `depth`, whose states it reads; none where it reads no states.

        >>> SelectorConfig(layer=[0, 0.66]).layers(6), SelectorConfig(reads=["input"]).layers(6)
        ([0, 4], [])
        """
        layers = self.layer if isinstance(self.layer, list) else [self.layer]
        needed = "state" in self.reads or "norm" in self.reads
        return [layer_number(layer, depth) for layer in layers] if needed else []

    @classmethod
    def make(cls, name: str, values: Any) -> SelectorConfig:
        """From a mapping; an error names the selector, the key and the keys that there are."""
        if not isinstance(values, Mapping):
            values = asdict(values) if hasattr(values, "__dataclass_fields__") else values
        known = [ours.name for ours in fields(cls)]
        if not isinstance(values, Mapping):
            raise ValueError(f"selectors.{name} must be a mapping of {', '.join(known)}; got {values!r}.")
        for key in values:
            if key not in known:
                hint = f"it is now {MOVED[key]}" if key in MOVED else f"known: {', '.join(known)}"
                raise ValueError(f"selectors.{name} has no setting {key!r}; {hint}.")
        try:
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise ValueError(f"selectors.{name}: {error}") from error


def _of_encoder(name: str) -> property:
    """A property that stands for an attribute of `encoder_config`; without an encoder there is none."""

    def read(config: HardKumaConfig) -> Any:
        return getattr(config.encoder_config, name)

    def write(config: HardKumaConfig, value: Any) -> None:
        setattr(config.encoder_config, name, value)

    return property(read, write, doc=f"`{name}` of the encoder.")


class HardKumaConfig(PreTrainedConfig):
    """Configuration of [`HardKumaModel`]: each field below with its meaning.

    >>> config = HardKumaConfig(selectors={"meaning": {"unit": "word"}, "entities": {"layer": 0.66}}, view="reencode")
    >>> HardKumaConfig.from_dict(config.to_dict()).selectors["entities"].layer
    0.66
    """

    model_type = "hardkuma"
    sub_configs = {"encoder_config": AutoConfig}
    # What Trainer leaves out of predictions: a metric of classes wants logits alone.
    keys_to_ignore_at_inference = ["gates", "gate_probs", "losses", "hidden_states", "attentions"]

    # ---- the encoder, filled in by `HardKumaModel.from_encoder` -----------------------------------------------------

    encoder_config: PreTrainedConfig | None = None
    """Architecture of the encoder, as a config or a dictionary; a stock class, nothing in it is trusted."""
    encoder_name_or_path: str | None = None
    """Hub id that the encoder came from; a gate-head-only save finds it again."""
    encoder_fingerprint: str | None = None
    """SHA-256 over the encoder's tensors when it was saved: a head alone is never put on other weights."""
    pooling_mode: str | list[str] = "mean"
    """The encoder's own pooling, one or several (concatenated) of `POOLING_MODES`."""
    normalize: bool = False
    """Whether the encoder scales its sentence vectors to length 1."""
    projections: list[dict[str, Any]] = field(default_factory=list)
    """Linear layers after pooling, each `{"in_features", "out_features", "bias", "activation"}`."""
    special_token_ids: list[int] = field(default_factory=list)
    """Ids that are never selected ([CLS], [SEP], padding, ...)."""
    frame_token_ids: list[list[int]] = field(default_factory=lambda: [[], []])
    """Special tokens that a text has before and behind it: what an isolated token is put between."""
    gate_head_only: bool = False
    """The checkpoint holds the gate head alone and finds its encoder by name."""
    max_seq_length: int | None = None
    """Length at which the tokenizer cuts."""
    freeze_encoder: bool = True
    """Begin with a frozen encoder: the gate head alone is trained, the encoder stays in eval mode and gets no gradient."""

    # ---- the selectors and their gates ------------------------------------------------------------------------------

    selectors: dict[str, SelectorConfig] = field(default_factory=lambda: {MEANING: SelectorConfig()})
    """Selectors by name. Several add a selector axis to gates and embeddings, unless one of them is asked for."""
    isolated_size: int = 192
    """How many directions the table of isolated tokens has, where a selector reads "isolated"; > 0."""
    attention_layers: list[int] = field(default_factory=lambda: [-1])
    """Layers whose attention is averaged for "attention"."""
    concentration_min: float = 1.0
    """Lower bound of alpha and beta, > 0. Below 1 the density is U-shaped, which makes gates decisive."""
    concentration_max: float = 10.0
    """Upper bound of alpha and beta, > `concentration_min`."""
    concentration_bound: str = "smooth"
    """How the bounds hold, with s = softplus(x) and R = max - min. "smooth": min + R s / (R + s), whose gradient never
    dies; "clamp": min(max, min + s), as in the original equation, with no gradient above max."""
    sampler: str = "stretched"
    """How training gates are drawn, one of `SAMPLERS`."""
    stretch_low: float = -0.1
    """l < 0 of the stretched gate."""
    stretch_high: float = 1.1
    """r > 1 of the stretched gate."""
    gate_threshold: float = 0.5
    """t in z = 1[g > t]; in [0, 1)."""
    decision_threshold: float = 0.5
    """In eval a token is selected if P(g > t) exceeds this; in (0, 1)."""
    language: Language = field(default_factory=Language)
    """What is known of the language of the training text: its function words, words of scripts without spaces, scripts."""
    form_shrinkage: float = 100.0
    """Pseudo-count that pulls the log-odds of rare word forms to zero; >= 0."""

    # ---- the views --------------------------------------------------------------------------------------------------

    view: str = "hidden"
    """Where rationale and complement are pooled from: "hidden" (contextual states), "input" (centred input embeddings)
    or "reencode" (the encoder run again on the gated input)."""
    frequency_filter: str = "none"
    """"low", "high" or "band" pass over the pooled vector's spectrum; not over `anchor_embedding`, which stays the
    encoder's own."""
    frequency_low: float = 0.0
    """Cut-off as a fraction of the highest frequency: "high" and "band" keep f >= this."""
    frequency_high: float = 1.0
    """The same at the other end: "low" and "band" keep f <= this."""

    # ---- the contrastive loss ---------------------------------------------------------------------------------------

    contrastive: str = "infonce"
    """"infonce" (anchors against the others) or "nt_xent" (symmetric, 2N views)."""
    similarity: str = "cosine"
    """"cosine" or "dot"; the same thing where the encoder normalises."""
    temperature: float = 0.05
    """tau > 0."""
    lambda_cmp: float = 1.0
    """Weight of the complement's contrastive term, subtracted."""
    bound_complement: bool = False
    """Stop pushing a sentence's complement once it is at chance, log(global batch)."""
    lambda_tv: float = 0.0
    """Total-variation weight; in the loss of a task lambda_c, the weight of E[number of neighbours that differ]."""
    rate_constraint: str = "none"
    """Hold E[selected] at `target_rate` by "penalty" (the squared difference), "linear" (its size) or "lagrangian"."""
    lambda_e: float = 1.0
    """Weight of the constraint."""
    multiplier_lr: float = 0.05
    """Step of the Lagrange multiplier per training step; > 0."""
    lambda_kl: float = 0.0
    """Weight of the symmetric KL between selectors: > 0 aligns them, < 0 separates them."""

    # A pass of the model looks at its settings a hundred times. PreTrainedConfig asks on each of these for other names of
    # the attribute and for values of its own in every layer, which costs microseconds; this config has neither.
    __getattribute__ = object.__getattribute__

    def __post_init__(self, **kwargs: Any) -> None:
        _check_foreign(kwargs.pop("model_type", None))
        _check_names(kwargs)
        if kwargs.get("num_labels") is not None:
            check_whole("num_labels", kwargs["num_labels"], minimum=1)
        if self.id2label is not None:
            self.id2label = _class_names(self.id2label)
        _check_dtype(self.dtype)
        _check_dtype(kwargs.get("torch_dtype"))
        check_flag("output_attentions", kwargs.get("output_attentions"), optional=True)
        if self.encoder_config is not None:
            self.encoder_config = make_encoder_config(self.encoder_config)
        self.selectors = _make_selectors(self.selectors)
        self.language = Language.make(self.language)
        # Lists of our own, whatever sequence was given, so that no two configs share one.
        self.pooling_mode = self.pooling_mode if isinstance(self.pooling_mode, str) else _list(self, "pooling_mode")
        self.attention_layers = _list(self, "attention_layers")
        self.projections = [_projection(projection) for projection in _list(self, "projections")]
        self.special_token_ids = sorted({_token_id("special_token_ids", i) for i in _list(self, "special_token_ids")})
        self.frame_token_ids = _list(self, "frame_token_ids")
        _check_values(self)
        self.frame_token_ids = [list(part) for part in self.frame_token_ids]
        # One checkpoint serves every Auto class: transformers alone would write only the saved class's entry. What a
        # config file claims here is ignored.
        kwargs["auto_map"] = dict(AUTO_MAP)
        kwargs["custom_pipelines"] = copy.deepcopy(CUSTOM_PIPELINES)
        if self.id2label is None and kwargs.get("num_labels") in (None, len(GATE_LABELS)):
            self.id2label = dict(GATE_LABELS)
        super().__post_init__(**kwargs)
        self.label2id = {str(name): int(number) for number, name in (self.id2label or {}).items()}

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """As in transformers; a config.json that holds no object is an error in one sentence."""
        try:
            values, rest = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        except (TypeError, AttributeError, KeyError, RecursionError) as error:
            raise ValueError(_no_object(pretrained_model_name_or_path)) from error
        if not isinstance(values, dict):
            raise ValueError(_no_object(pretrained_model_name_or_path))
        return values, rest

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers, without what a file must not decide (`UNTRUSTED_KEYS`); who calls may. A file does name the
        classes of its own classifier, which are as many as it has names."""
        values = {name: value for name, value in config_dict.items() if _is_trusted(name) or name == "id2label"}
        if "id2label" in kwargs:  # here it is checked, and `label2id` follows
            values["id2label"] = kwargs.pop("id2label")
        return super().from_dict(values, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """As in transformers, without attributes that somebody set and that loading would refuse: they are named once."""
        values = super().to_dict()
        # A list, since transformers sorts the keys of a config file, and the order of selectors is that of the outputs.
        values["selectors"] = [{"name": name, **asdict(selector)} for name, selector in self.selectors.items()]
        values["language"] = None if self.language == Language() else asdict(self.language)
        for name in [name for name in values if not _is_known(name)]:
            logger.warning_once(f"{name!r} was set on the config but is no field of HardKumaConfig: it is not saved.")
            del values[name]
        return values

    def _get_generation_parameters(self) -> dict[str, Any]:
        """None: our `temperature` is the contrastive loss's, which transformers would take for text generation's."""
        return {}

    # What stock tools look for at the top; both read and written in the encoder's own config.
    vocab_size = _of_encoder("vocab_size")
    hidden_size = _of_encoder("hidden_size")
    num_hidden_layers = _of_encoder("num_hidden_layers")
    num_attention_heads = _of_encoder("num_attention_heads")
    initializer_range = _of_encoder("initializer_range")

    @property
    def projection_dim(self) -> int:
        """Size of a rationale as sentence-transformers serves it, which looks for it under this name."""
        if self.view == "input":
            size = getattr(self.encoder_config, "embedding_size", self.hidden_size) * len(self.pooling_modes)
        elif self.projections:
            size = self.projections[-1]["out_features"]
        else:
            size = self.hidden_size * len(self.pooling_modes)
        return size

    @property
    def pooling_modes(self) -> list[str]:
        """The pooling modes as a list; several are concatenated."""
        return [self.pooling_mode] if isinstance(self.pooling_mode, str) else self.pooling_mode

    @property
    def names(self) -> list[str]:
        """The selectors' names, in their order."""
        return list(self.selectors)

    @property
    def num_selectors(self) -> int:
        """K."""
        return len(self.selectors)

    def selector(self, number: int) -> SelectorConfig:
        """The selector of this number."""
        return self.selectors[self.names[number]]

    @property
    def parts(self) -> list[int]:
        """Numbers of the selectors that divide the words among themselves: those whose unit is "part".

        >>> HardKumaConfig(selectors={"meaning": {"unit": "word"}, "verbs": {"unit": "part"}}).parts
        [1]
        """
        return [number for number, selector in enumerate(self.selectors.values()) if selector.unit == "part"]

    def find_selector(self, name: str | None = None, default: str = MEANING) -> int:
        """The number of a selector: what `selector=` means everywhere. Without a name it is the one that the caller
        prefers, or the first.

        >>> HardKumaConfig(selectors={"meaning": {}, "entities": {}}).find_selector("entity")
        Traceback (most recent call last):
        ValueError: no selector 'entity': this model has 'meaning', 'entities'.
        """
        names = self.names
        if name is None:
            return names.index(default) if default in names else 0
        if name not in names:
            raise ValueError(f"no selector {name!r}: this model has {', '.join(map(repr, names))}.")
        return names.index(name)

    def reads(self, what: str, selectors: Iterable[int] | None = None) -> bool:
        """Whether any of these selectors (all by default) reads this.

        >>> HardKumaConfig().reads("state"), HardKumaConfig().reads("attention")
        (True, False)
        """
        chosen = range(self.num_selectors) if selectors is None else selectors
        return any(what in self.selector(k).reads for k in chosen)

    def layers(self, selectors: Iterable[int] | None = None) -> list[int]:
        """Numbers of the layers, 0 (the embeddings) to the encoder's depth, whose states these selectors read, ascending.

        >>> HardKumaConfig(encoder_config={"model_type": "bert"}, selectors={"meaning": {"layer": [0.5, -1]}}).layers()
        [6, 12]
        """
        chosen = range(self.num_selectors) if selectors is None else selectors
        return sorted({layer for k in chosen for layer in self.selector(k).layers(self.num_hidden_layers)})

    def depth(self, selectors: Iterable[int]) -> int:
        """How many of the encoder's layers must run for these selectors: all where they compare words with the sentence.

        >>> config = HardKumaConfig(encoder_config={"model_type": "bert"}, selectors={"meaning": {"layer": 0.5}})
        >>> config.depth([0])
        6
        """
        chosen = list(selectors)
        compares = any(self.reads(what, chosen) for what in READS_OF_SENTENCES)
        return self.num_hidden_layers if compares else max(self.layers(chosen), default=0)


def _no_object(path: object) -> str:
    return f"config.json of {path} is no JSON object with settings; download or save the checkpoint again."


def _class_names(values: Any) -> dict[int, str]:
    """Names of classes by their numbers, which are texts in a file."""
    names = {str(number): name for number, name in values.items()} if isinstance(values, Mapping) else {}
    numbers = range(len(names))
    if not names or set(names) != set(map(str, numbers)) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"id2label must name the classes, {{0: 'bad', 1: 'good', ...}}, got {values!r:.60}.")
    return {number: names[str(number)] for number in numbers}


def _list(config: HardKumaConfig, name: str) -> list[Any]:
    """The values of a field that is a list; nothing is an empty one, where that makes sense."""
    values = getattr(config, name)
    if values is None and name in ("projections", "special_token_ids"):
        return []
    if not isinstance(values, (list, tuple, set, frozenset)):
        raise ValueError(f"{name} must be a list, got {values!r:.60}.")
    return list(values)


def _token_id(name: str, value: Any) -> int:
    check_whole(name, value, minimum=0)
    return int(value)


def _projection(values: Any) -> dict[str, Any]:
    if not isinstance(values, Mapping) or set(values) != {"in_features", "out_features", "bias", "activation"}:
        given = sorted(map(str, values)) if isinstance(values, Mapping) else f"{values!r:.60}"
        raise ValueError(f"a projection needs exactly in_features, out_features, bias and activation, got {given}.")
    for size in ("in_features", "out_features"):
        check_whole(f"{size} of a projection", values[size], minimum=1)
    check_choice("projection activation", values["activation"], ACTIVATIONS)
    check_flag("bias of a projection", values["bias"])
    return dict(values)


def _make_selectors(selectors: Any) -> dict[str, SelectorConfig]:
    """From a mapping by name, or from a list in which each has its name, as config files have it."""
    wanted = "{NAME: {reads: [state], ...}, ...}"
    if isinstance(selectors, (list, tuple)):
        pairs = []
        for number, values in enumerate(selectors):
            if not isinstance(values, Mapping) or "name" not in values:
                raise ValueError(f"selector number {number} has no name; selectors must be {wanted}.")
            pairs.append((values["name"], {key: value for key, value in values.items() if key != "name"}))
    elif isinstance(selectors, Mapping):
        pairs = list(selectors.items())
    else:
        raise ValueError(f"selectors must be {wanted}; got {selectors!r:.80}.")
    if len(pairs) > MOST_SELECTORS:
        raise ValueError(f"{len(pairs)} selectors are too many: at most {MOST_SELECTORS} are made.")
    if not pairs:
        raise ValueError(f"selectors must name at least one selector, {wanted}.")
    for name, _ in pairs:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "all":
            raise ValueError(f"a selector's name must be of letters, digits, - and _ (and not 'all'), got {name!r}.")
        if sum(name == other for other, _ in pairs) > 1:
            raise ValueError(f"two selectors have the name {name!r}; give each its own.")
    return {name: SelectorConfig.make(name, values) for name, values in pairs}


def _check_foreign(model_type: str | None) -> None:
    if model_type not in (None, HardKumaConfig.model_type):
        raise ValueError(
            f"this is the config of a {model_type!r} model, not of 'hardkuma'; "
            "to put gates on an encoder call HardKumaModel.from_encoder(path)."
        )


def _fields() -> set[str]:
    return {ours.name for ours in fields(HardKumaConfig)} - _BASE_NAMES


def _is_known(name: str) -> bool:
    return name in _fields() or name in _BASE_NAMES or name.startswith("_")


def _check_names(kwargs: Mapping[str, Any]) -> None:
    """Refuse misspelt names instead of silently keeping them, as PreTrainedConfig would."""
    known = _fields()
    for name in kwargs:
        if _is_known(name):
            continue
        if name in MOVED:
            raise ValueError(f"{name!r} is a setting of 0.2.0.dev0: it is now {MOVED[name]}.")
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known names: {', '.join(sorted(known))}."
        raise ValueError(f"unknown config name {name!r}: {hint}")


def _check_values(config: HardKumaConfig) -> None:
    """All range checks."""
    check_choice("sampler", config.sampler, SAMPLERS)
    check_choice("view", config.view, VIEWS)
    check_choice("concentration_bound", config.concentration_bound, BOUNDS)
    check_choice("frequency_filter", config.frequency_filter, FREQUENCY_FILTERS)
    check_choice("contrastive", config.contrastive, CONTRASTIVE_LOSSES)
    check_choice("similarity", config.similarity, SIMILARITIES)
    check_choice("rate_constraint", config.rate_constraint, RATE_CONSTRAINTS)
    check_choices("pooling_mode", config.pooling_modes, POOLING_MODES)
    for name in ("normalize", "gate_head_only", "freeze_encoder", "bound_complement"):
        check_flag(name, getattr(config, name))
    for name in ("output_hidden_states", "return_dict", "is_encoder_decoder"):
        check_flag(name, getattr(config, name), optional=True)
    check_whole("chunk_size_feed_forward", config.chunk_size_feed_forward, minimum=0)
    for name in ("problem_type", "encoder_name_or_path", "encoder_fingerprint"):
        check_text(name, getattr(config, name))
    whole = config.find_selector()
    for name, selector in config.selectors.items():
        if selector.backoff and (MEANING not in config.selectors or name == MEANING):
            raise ValueError(
                f"selectors.{name}.backoff goes by the gates of another selector, {MEANING!r}; add it, or use 0."
            )
    if config.parts and config.selector(whole).unit not in ("word", "name"):
        raise ValueError(
            "selectors of unit 'part' divide the words of `meaning` (or else of the first selector): its unit must be "
            f"'word' or 'name', and {config.names[whole]!r} has {config.selector(whole).unit!r}."
        )
    for layer in config.attention_layers:
        check_whole("attention_layers", layer)
    if not config.attention_layers:
        raise ValueError("attention_layers must name at least one layer, got []; use [-1] for the last.")
    frame = config.frame_token_ids
    parts = [part for part in frame if isinstance(part, (list, tuple))]
    if len(frame) != 2 or len(parts) != 2 or not all(type(i) is int and i >= 0 for part in parts for i in part):
        raise ValueError(f"frame_token_ids must be two lists of token ids, [before, behind], got {frame!r}.")
    check_whole("isolated_size", config.isolated_size, minimum=1)
    if config.max_seq_length is not None:
        check_whole("max_seq_length", config.max_seq_length, minimum=1)
    check_inside("concentration_min", config.concentration_min, 0.0, math.inf)
    check_inside("concentration_max", config.concentration_max, config.concentration_min, math.inf)
    check_inside("stretch_low", config.stretch_low, -math.inf, 0.0)
    check_inside("stretch_high", config.stretch_high, 1.0, math.inf)
    check_inside("gate_threshold", config.gate_threshold, 0.0, 1.0, low_in=True)
    check_inside("decision_threshold", config.decision_threshold, 0.0, 1.0)
    check_inside("form_shrinkage", config.form_shrinkage, 0.0, math.inf, low_in=True)
    check_inside("frequency_low", config.frequency_low, 0.0, 1.0, low_in=True, high_in=True)
    check_inside("frequency_high", config.frequency_high, config.frequency_low, 1.0, low_in=True, high_in=True)
    check_inside("temperature", config.temperature, 0.0, math.inf)
    check_inside("multiplier_lr", config.multiplier_lr, 0.0, math.inf)
    for name in ("lambda_cmp", "lambda_tv", "lambda_e", "lambda_kl"):
        check_inside(name, getattr(config, name), -math.inf, math.inf)
    if config.encoder_config is not None:
        _check_encoder(config)


def _check_encoder(config: HardKumaConfig) -> None:
    """Settings that name something of the encoder: tokens, layers, positions, the size of its states."""
    size = getattr(config.encoder_config, "vocab_size", None)
    framed = [token for part in config.frame_token_ids for token in part]
    for name, ids in (("special_token_ids", config.special_token_ids), ("frame_token_ids", framed)):
        if size is not None and ids and max(ids) >= size:
            raise ValueError(f"{name} has {max(ids)}, but the encoder's vocabulary is 0 to {size - 1}.")
    depth = config.num_hidden_layers
    for layer in config.attention_layers:
        if depth and not -depth <= layer < depth:
            raise ValueError(f"attention_layers has {layer}, but the encoder has layers 0 to {depth - 1}.")
    limit = position_limit(config.encoder_config)
    if limit is not None and config.max_seq_length is not None and config.max_seq_length > limit:
        raise ValueError(f"max_seq_length is {config.max_seq_length}, but the encoder has {limit} positions.")
    width = config.hidden_size * len(config.pooling_modes)
    for projection in config.projections:
        if projection["in_features"] != width:
            raise ValueError(f"a projection takes {projection['in_features']} numbers and is given {width}.")
        width = projection["out_features"]


HardKumaConfig.register_for_auto_class()
