"""Every knob of HardKuma: named, documented, validated once, round-tripped through JSON."""

from __future__ import annotations

import copy
import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging


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


def is_last(layer: int | float) -> bool:
    """Whether a layer of `selector_layer` is the last one: -1, or the whole depth.

    >>> is_last(-1), is_last(1.0), is_last(1)
    (True, True, False)
    """
    return layer == -1 or (isinstance(layer, float) and layer == 1.0)


def state_name(layer: int | float) -> str:
    """The feature that holds the states of a layer, as the config says it.

    >>> state_name(-1), state_name(1.0), state_name(0.5), state_name(0.0)
    ('state', 'state', 'state 0.5', 'state 0')
    """
    return "state" if is_last(layer) else f"state {layer or 0}"  # 0 and 0.0 are one layer, and equal as keys


def norm_name(layer: int | float) -> str:
    """The feature that holds the norms of these states.

    >>> norm_name(4)
    'norm of state 4'
    """
    return f"norm of {state_name(layer)}"


def layer_number(layer: int | float, depth: int) -> int:
    """Which of the states 0 (the embeddings) to `depth` a layer of `selector_layer` is.

    >>> layer_number(4, 6), layer_number(-2, 6), layer_number(0.5, 12), layer_number(0.66, 6)
    (4, 5, 6, 4)
    """
    if isinstance(layer, float):
        return round(layer * depth)
    number = layer if layer >= 0 else depth + 1 + layer
    if not 0 <= number <= depth:
        raise ValueError(f"selector_layer is {layer}, but the encoder has states 0 to {depth}.")
    return number


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


logger = logging.get_logger(__name__)

SAMPLERS = ("relaxed", "straight_through", "stretched")
VIEWS = ("hidden", "input", "reencode")
POOLING_MODES = ("mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens")
SELECTOR_INPUTS = ("state", "input", "norm", "attention", "shape", "anchor", "pooled", "removal", "alone")
SELECTOR_UNITS = ("token", "word", "name", "kind")
SHAPE_BOUNDS = ("smooth", "clamp")
FREQUENCY_FILTERS = ("none", "low", "high", "band")
CONTRASTIVE_LOSSES = ("infonce", "nt_xent")
SIMILARITIES = ("cosine", "dot")
RATE_CONSTRAINTS = ("none", "penalty", "lagrangian")
ACTIVATIONS = ("identity", "tanh", "relu", "gelu", "sigmoid")

# Inputs that are measures of words, and how many numbers each stands for.
MEASURES = {"pooled": 4, "removal": 2, "alone": 3}

# The selectors of a released checkpoint: which words carry the sentence's embedding, and which are names.
MEANING, ENTITIES = "meaning", "entities"
# Settings that may differ between selectors: one value for all, or a value for each by its name.
PER_SELECTOR = (
    "selector_inputs",
    "selector_layer",
    "selector_unit",
    "selector_hidden_size",
    "meaning_weight",
    "surface_weight",
    "target_rate",
)
_NAME = re.compile(r"\w[\w-]*")

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


def _of_encoder(name: str) -> property:
    """A property that stands for an attribute of `encoder_config`; without an encoder there is none."""

    def read(config: HardKumaConfig) -> Any:
        return getattr(config.encoder_config, name)

    def write(config: HardKumaConfig, value: Any) -> None:
        setattr(config.encoder_config, name, value)

    return property(read, write, doc=f"`{name}` of the encoder.")


class HardKumaConfig(PreTrainedConfig):
    """Configuration of [`HardKumaModel`]: each field below with its meaning. Every value is checked here, once; an error
    names the value and the fix.

    >>> config = HardKumaConfig(encoder_config={"model_type": "bert"}, view="reencode", temperature=0.3)
    >>> HardKumaConfig.from_dict(config.to_dict()).view
    'reencode'
    """

    model_type = "hardkuma"
    sub_configs = {"encoder_config": AutoConfig}

    # ---- the encoder, filled in by `HardKumaModel.from_encoder` -----------------------------------------------------

    encoder_config: PreTrainedConfig | None = None
    """Architecture of the encoder, as a config or a dictionary; a stock class, nothing in it is trusted."""
    encoder_name_or_path: str | None = None
    """Hub id that the encoder came from; a gate-head-only save finds it again."""
    encoder_fingerprint: str | None = None
    """SHA-256 over the encoder's tensors, so that a head is never put on other weights."""
    pooling_mode: str | list[str] = "mean"
    """The encoder's own pooling, one or several (concatenated) of `POOLING_MODES`."""
    normalize: bool = False
    """Whether the encoder scales its sentence vectors to length 1."""
    projections: list[dict[str, Any]] = field(default_factory=list)
    """Linear layers after pooling, each `{"in_features", "out_features", "bias", "activation"}`."""
    special_token_ids: list[int] = field(default_factory=list)
    """Ids that are never selected ([CLS], [SEP], padding, ...)."""
    frame_token_ids: list[list[int]] = field(default_factory=lambda: [[], []])
    """Special tokens that a text has before and behind it: what a token is put between that is encoded alone."""
    gate_head_only: bool = False
    """The checkpoint holds the gate head alone and finds its encoder by name."""
    max_seq_length: int | None = None
    """Length at which the tokenizer cuts."""
    freeze_encoder: bool = True
    """Begin with a frozen encoder: the gate head alone is trained, the encoder stays in eval mode and gets no gradient."""

    # ---- the selector -----------------------------------------------------------------------------------------------

    num_selectors: int = 1
    """K; more than one adds a selector axis to gates and embeddings, unless one of them is asked for by its name."""
    selector_names: list[str] | None = None
    """What the selectors are called, one name each; a lone one is "meaning", others "selector_0", "selector_1", ..."""
    selector_inputs: list[str] | dict[str, list[str]] = field(default_factory=lambda: ["state"])
    """What a selector sees of a token, any of `SELECTOR_INPUTS`: "state" (the encoder's state), "input" (its
    non-contextual input embedding), "norm" (root mean square of the state), "attention" (attention received and given),
    "shape" (one-hot class of the word's form, needs `surface_ids`), "anchor" (last state times sentence embedding),
    "pooled" (what the word brings into the sentence's pooled state, and how many words there are), "removal" (what that
    state loses without the word; both in features_hardkuma.py), "alone" (how much of it the word has by itself, see
    features_hardkuma.py)."""
    selector_layer: int | float | list[int | float] | dict[str, int | float | list[int | float]] = -1
    """Which layer's states "state" and "norm" read: a whole number (-1 is the last, 0 the embeddings), or a fraction of the
    encoder's depth in [0.0, 1.0], which fits encoders of any depth; several in a list, of which "norm" takes the last."""
    selector_unit: str | dict[str, str] = "token"
    """What a gate belongs to, one of `SELECTOR_UNITS`: each "token" has its own, all tokens of a "word" share one, or
    "name": the same, and where a rate is asked for, words that make up one name are selected together; "kind": the same as
    "word", but its gate is a share of that of `meaning`, a sentence may have no word of it, and words of grammar are words
    like others."""
    selector_hidden_size: int | dict[str, int] = 128
    """Width of the hidden layer, > 0."""
    selector_dropout: float = 0.0
    """Dropout in the selector, in [0, 1)."""
    attention_layers: list[int] = field(default_factory=lambda: [-1])
    """Layers whose attention is averaged for "attention"."""
    shape_min: float = 1.0
    """Lower bound of alpha and beta, > 0. Shapes below 1 give the U-shaped density that makes gates decisive."""
    shape_max: float = 10.0
    """Upper bound of alpha and beta, > `shape_min`."""
    shape_bound: str = "smooth"
    """How the bounds hold, with s = softplus(x) and R = max - min. "smooth": min + R s / (R + s), whose gradient never
    dies; "clamp": min(max, min + s), as in the original equation, with no gradient above max."""

    # ---- the gate ---------------------------------------------------------------------------------------------------

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
    meaning_weight: float | dict[str, float] = 0.0
    """Where a selector of words finds little in a sentence, how far its gates go by how much a word weighs there: their
    log-odds shift by this * (1 - largest gate) * (log of the word's summed norms - mean over the words); >= 0."""
    surface_weight: float | dict[str, float] = 1.0
    """Weight of the word-shape log-odds when `surface_ids` is given; >= 0."""
    surface_shrinkage: float = 100.0
    """Pseudo-count that pulls the log-odds of rare classes to zero; >= 0."""

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

    # ---- the losses -------------------------------------------------------------------------------------------------

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
    lambda_s: float | list[float] = 1.0
    """Sparsity weight; one for all selectors or one each."""
    lambda_tv: float = 0.0
    """Total-variation weight."""
    rate_constraint: str = "none"
    """Hold E[selected] at `target_rate` by "penalty" or "lagrangian"."""
    target_rate: float | dict[str, float] = 0.2
    """pi, a fraction in (0, 1), never a percentage."""
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
        if self.encoder_config is not None:
            self.encoder_config = make_encoder_config(self.encoder_config)
        # Lists of our own, whatever sequence was given, so that no two configs share one.
        self.pooling_mode = _own(self.pooling_mode)
        self.lambda_s = _own(self.lambda_s)
        for name in PER_SELECTOR:
            setattr(self, name, _own(getattr(self, name)))
        self.selector_names = _named(self)
        self.attention_layers = list(self.attention_layers)
        self.projections = [dict(projection) for projection in self.projections or []]
        self.special_token_ids = sorted(int(i) for i in set(self.special_token_ids or []))
        self.frame_token_ids = _own(self.frame_token_ids)
        _check_values(self)
        # One checkpoint serves every Auto class: transformers alone would write only the saved class's entry. What a
        # config file claims here is ignored.
        kwargs["auto_map"] = dict(AUTO_MAP)
        kwargs["custom_pipelines"] = copy.deepcopy(CUSTOM_PIPELINES)
        self.id2label = {0: "O", 1: "ENTITY"}
        self.label2id = {"O": 0, "ENTITY": 1}
        super().__post_init__(**kwargs)

    def to_dict(self) -> dict[str, Any]:
        """As in transformers, without attributes that somebody set and that loading would refuse: they are named once."""
        values = super().to_dict()
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

    def of_selector(self, setting: str, selector: int) -> Any:
        """The value of one of `PER_SELECTOR` for the selector of this number.

        >>> config = HardKumaConfig(selector_names=["meaning", "entities"], target_rate={"meaning": 0.3, "entities": 0.2})
        >>> config.of_selector("target_rate", 0), config.of_selector("selector_unit", 1)
        (0.3, 'token')
        """
        value = getattr(self, setting)
        return value[self.names[selector]] if isinstance(value, dict) else value

    @property
    def names(self) -> list[str]:
        """`selector_names`, always there."""
        names = self.selector_names
        assert names is not None, "filled in when the config is made"
        return names

    @property
    def target_rates(self) -> list[float]:
        """pi of each selector."""
        return [self.of_selector("target_rate", k) for k in range(self.num_selectors)]

    @property
    def kinds(self) -> list[int]:
        """Numbers of the selectors that part: those whose unit is "kind".

        >>> HardKumaConfig(selector_names=["meaning", "verbs"], selector_unit={"meaning": "word", "verbs": "kind"}).kinds
        [1]
        """
        return [k for k in range(self.num_selectors) if self.of_selector("selector_unit", k) == "kind"]

    def find_selector(self, name: str | None = None, default: str = MEANING) -> int:
        """The number of a selector: what `selector=` means everywhere. Without a name it is the one that the caller
        prefers, or the first.

        >>> HardKumaConfig(selector_names=["meaning", "entities"]).find_selector("entity")
        Traceback (most recent call last):
        ValueError: no selector 'entity': this model has 'meaning', 'entities'.
        """
        if name is None:
            return self.names.index(default) if default in self.names else 0
        if name not in self.names:
            known = ", ".join(repr(known) for known in self.names)
            raise ValueError(f"no selector {name!r}: this model has {known}.")
        return self.names.index(name)

    def layers_of(self, selector: int) -> list[int | float]:
        """The layers whose states this selector reads, as the config says them; none where it reads no states."""
        layers = self.of_selector("selector_layer", selector)
        layers = layers if isinstance(layers, list) else [layers]
        inputs = self.of_selector("selector_inputs", selector)
        weighs = self.of_selector("meaning_weight", selector) > 0  # by the norms of its (last) layer
        return layers if weighs or "state" in inputs or "norm" in inputs else []

    def reads(self, name: str, selectors: Iterable[int] | None = None) -> bool:
        """Whether any of these selectors (all by default) has this among its inputs.

        >>> HardKumaConfig().reads("state"), HardKumaConfig().reads("attention")
        (True, False)
        """
        chosen = range(self.num_selectors) if selectors is None else selectors
        return any(name in self.of_selector("selector_inputs", k) for k in chosen)

    @property
    def inner_layers(self) -> list[int | float]:
        """All layers other than the last that selectors read, each once, in order of their first mention.

        >>> HardKumaConfig(selector_layer=[0.0, 0.5, 1.0]).inner_layers
        [0.0, 0.5]
        """
        layers = [layer for k in range(self.num_selectors) for layer in self.layers_of(k)]
        return list(dict.fromkeys(layer for layer in layers if not is_last(layer)))

    @property
    def sparsity_weights(self) -> list[float]:
        """lambda_s of each selector."""
        return self.lambda_s if isinstance(self.lambda_s, list) else [self.lambda_s] * self.num_selectors


def _check_foreign(model_type: str | None) -> None:
    if model_type not in (None, HardKumaConfig.model_type):
        raise ValueError(
            f"this is the config of a {model_type!r} model, not of 'hardkuma'; "
            "to put gates on an encoder call HardKumaModel.from_encoder(path)."
        )


def _fields() -> set[str]:
    return {ours.name for ours in fields(HardKumaConfig)} - _BASE_NAMES


def _own(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _own(item) for name, item in value.items()}
    return list(value) if isinstance(value, (list, tuple)) else value


def _named(config: HardKumaConfig) -> list[str]:
    """The names of all selectors; a list of names also says how many selectors there are."""
    check_whole("num_selectors", config.num_selectors, minimum=1)
    names = _own(config.selector_names)
    if names is None:
        number = config.num_selectors
        return [MEANING] if number == 1 else [f"selector_{k}" for k in range(number)]
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "all":
            raise ValueError(f"selector_names must be words of letters, digits, - and _ (and not 'all'), got {name!r}.")
    if len(set(names)) != len(names) or not names:
        raise ValueError(f"selector_names must be one or more different names, got {names!r}.")
    if config.num_selectors == 1:
        config.num_selectors = len(names)
    if len(names) != config.num_selectors:
        raise ValueError(f"selector_names has {len(names)} names for num_selectors={config.num_selectors}: {names!r}.")
    return names


def _is_known(name: str) -> bool:
    return name in _fields() or name in _BASE_NAMES or name.startswith("_")


def _check_names(kwargs: Mapping[str, Any]) -> None:
    """Refuse misspelt names instead of silently keeping them, as PreTrainedConfig would."""
    known = _fields()
    for name in kwargs:
        if _is_known(name):
            continue
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known names: {', '.join(sorted(known))}."
        raise ValueError(f"unknown config name {name!r}: {hint}")


def _check_values(config: HardKumaConfig) -> None:
    """All range checks."""
    check_choice("sampler", config.sampler, SAMPLERS)
    check_choice("view", config.view, VIEWS)
    check_choice("shape_bound", config.shape_bound, SHAPE_BOUNDS)
    check_choice("frequency_filter", config.frequency_filter, FREQUENCY_FILTERS)
    check_choice("contrastive", config.contrastive, CONTRASTIVE_LOSSES)
    check_choice("similarity", config.similarity, SIMILARITIES)
    check_choice("rate_constraint", config.rate_constraint, RATE_CONSTRAINTS)
    check_choices("pooling_mode", config.pooling_modes, POOLING_MODES)
    for name in ("normalize", "gate_head_only", "freeze_encoder", "bound_complement"):
        if not isinstance(getattr(config, name), bool):
            raise ValueError(f"{name} must be true or false, got {getattr(config, name)!r}.")
    _check_selectors(config)
    for layer in config.attention_layers:
        check_whole("attention_layers", layer)
    if not config.attention_layers:
        raise ValueError("attention_layers must name at least one layer, got []; use [-1] for the last.")
    frame = config.frame_token_ids
    if len(frame) != 2 or not all(isinstance(part, list) and all(type(i) is int for i in part) for part in frame):
        raise ValueError(f"frame_token_ids must be two lists of token ids, [before, behind], got {frame!r}.")
    if config.reads("alone") and config.special_token_ids and not any(frame):
        logger.warning_once("a selector reads tokens alone, and frame_token_ids, the special tokens around them, is empty.")
    if config.max_seq_length is not None:
        check_whole("max_seq_length", config.max_seq_length, minimum=1)
    check_inside("selector_dropout", config.selector_dropout, 0.0, 1.0, low_in=True)
    check_inside("shape_min", config.shape_min, 0.0, math.inf)
    check_inside("shape_max", config.shape_max, config.shape_min, math.inf)
    check_inside("stretch_low", config.stretch_low, -math.inf, 0.0)
    check_inside("stretch_high", config.stretch_high, 1.0, math.inf)
    check_inside("gate_threshold", config.gate_threshold, 0.0, 1.0, low_in=True)
    check_inside("decision_threshold", config.decision_threshold, 0.0, 1.0)
    check_inside("surface_shrinkage", config.surface_shrinkage, 0.0, math.inf, low_in=True)
    check_inside("frequency_low", config.frequency_low, 0.0, 1.0, low_in=True, high_in=True)
    check_inside("frequency_high", config.frequency_high, config.frequency_low, 1.0, low_in=True, high_in=True)
    check_inside("temperature", config.temperature, 0.0, math.inf)
    check_inside("multiplier_lr", config.multiplier_lr, 0.0, math.inf)
    for name in ("lambda_cmp", "lambda_tv", "lambda_e", "lambda_kl"):
        check_inside(name, getattr(config, name), -math.inf, math.inf)
    if len(config.sparsity_weights) != config.num_selectors:
        raise ValueError(
            f"lambda_s has {len(config.sparsity_weights)} values for num_selectors={config.num_selectors}; "
            "give one number, or one for each selector."
        )
    for weight in config.sparsity_weights:
        check_inside("lambda_s", weight, -math.inf, math.inf)
    for projection in config.projections:
        if set(projection) != {"in_features", "out_features", "bias", "activation"}:
            raise ValueError(
                f"a projection needs exactly in_features, out_features, bias and activation, got {sorted(projection)}."
            )
        check_choice("projection activation", projection["activation"], ACTIVATIONS)


def _check_selectors(config: HardKumaConfig) -> None:
    """What may differ between selectors."""
    for name in PER_SELECTOR:
        value = getattr(config, name)
        if isinstance(value, dict) and set(value) != set(config.names):
            raise ValueError(f"{name} must have a value for each of the selectors {config.names}, got {sorted(value)}.")
    for k in range(config.num_selectors):
        check_choices("selector_inputs", config.of_selector("selector_inputs", k), SELECTOR_INPUTS)
        check_choice("selector_unit", config.of_selector("selector_unit", k), SELECTOR_UNITS)
        check_whole("selector_hidden_size", config.of_selector("selector_hidden_size", k), minimum=1)
        check_inside("surface_weight", config.of_selector("surface_weight", k), 0.0, math.inf, low_in=True)
        check_inside("meaning_weight", config.of_selector("meaning_weight", k), 0.0, math.inf, low_in=True)
        check_inside("target_rate", config.of_selector("target_rate", k), 0.0, 1.0)
        layers = config.of_selector("selector_layer", k)
        for layer in layers if isinstance(layers, list) else [layers]:
            if isinstance(layer, float):
                check_inside("selector_layer as a fraction", layer, 0.0, 1.0, low_in=True, high_in=True)
            else:
                check_whole("selector_layer", layer)
        if layers == []:
            raise ValueError("selector_layer must name at least one layer, got []; use -1 for the last.")


HardKumaConfig.register_for_auto_class()
