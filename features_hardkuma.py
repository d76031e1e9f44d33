"""What selectors read of each token: states of some layers, input embeddings, attention, norms, word shapes, and what the
sentence loses without the token's word.

With last states h_i, their sum s over the n tokens of the sentence and the sentence's pooled state a, the inputs of one
encoder pass that speak of removal are, for a word w with tokens i in w:

    "anchor"    h_i * a / |a|                                       (product of each dimension)
    "pooled"    sum |h_i|, sum cos(h_i, a), |w|, log words          (what the word brings into the pool)
    "removal"   sum l({i}), l(w)                                    (pooled leave-one-out)
                where l(S) = 1 - cos(s - sum_S h_j, s)

What words mean by themselves, "alone", is in features_hardkuma.py.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .attention_hardkuma import AttentionTap, attention_features, layer_indices, run_encoder
from .batch_hardkuma import EncodedTokens, TokenBatch, attendable, tracing, without_autocast
from .configuration_hardkuma import MEASURES, HardKumaConfig, is_last, layer_number, norm_name, state_name
from .encoder_hardkuma import embedding_table
from .pooling_hardkuma import normalize, pool
from .words_hardkuma import NUM_SURFACE_CLASSES

TOKENS = 6144  # of one batch of tokens that are encoded alone, with those around them
_FILLING = threading.Lock()  # of the module, since a model with a lock could not be copied


class TokensAlone:
    """The vectors of single tokens that one encoder gives, as far as they have been asked for.

    They are forgotten when the encoder's weights, or the adapters in use, change (but for a change of `weight.data`, which
    torch does not count): an encoder that is being trained gives them anew in every step, without gradients. In half
    precision: a vocabulary of 30,000 tokens of 384 dimensions takes 23 MB.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> ids = model.tokenizer("Paris", return_tensors="pt")["input_ids"]
    >>> vector = TokensAlone(model.encoder, model.config).vectors(ids)[0, 1]
    >>> bool(torch.allclose(vector, model(ids).anchor_embedding[0], atol=1e-3))
    True
    """

    def __init__(self, encoder: PreTrainedModel, config: HardKumaConfig):
        self.encoder, self.config = encoder, config
        # What the vectors were made of; by token, the row of its vector, or -1; the vectors. Replaced as one: other threads
        # may be reading.
        self._known: tuple[Any, Tensor, Tensor] | None = None
        # The encoder's modules when they were last looked for: where they keep their weights and their children, and those
        # with adapters that can be switched.
        self._weights: list[dict[str, nn.Parameter | None]] = []
        self._children: list[dict[str, nn.Module | None]] = []
        self._adapted: list[nn.Module] = []

    def vectors(self, input_ids: Tensor) -> Tensor:
        """(batch, length) token ids -> (batch, length, hidden) vectors of length 1, fp32."""
        if tracing():
            if self._known is None or len(self._known[1]) != len(self._known[2]):
                raise ValueError(
                    'this model reads tokens "alone", which a compiled graph cannot encode as it meets them: call '
                    "model.remember_tokens() before torch.compile or torch.export."
                )
            _, rows, vectors = self._known
        else:
            rows, vectors = self._remember(input_ids)
        return nn.functional.embedding(rows[input_ids], vectors).float()

    def remember_all(self) -> None:
        """Encode every token of the vocabulary that is not known yet."""
        device = self.encoder.device  # "meta" for weights that are elsewhere until they are needed
        device = torch.device("cpu") if device.type == "meta" else device
        self._remember(torch.arange(len(embedding_table(self.encoder)), device=device))

    def _remember(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        made_of = self._state()
        known = self._known
        if known is None or known[0] != made_of or bool((known[1][input_ids] < 0).any()):
            with _FILLING:
                known, made_of = self._known, self._state()  # another thread may have been here
                if known is None or known[0] != made_of:
                    made_of = self._look()
                    known = (made_of, *self._nothing(input_ids.device))
                known = self._known = (made_of, *self._learn(known[1], known[2], input_ids))
        return known[1], known[2]

    def _look(self) -> Any:
        """Find the encoder's modules, and return `_state`."""
        modules = list(self.encoder.modules())
        self._adapted = [layer for layer in modules if hasattr(layer, "_disable_adapters")]
        self._weights, self._children = [part._parameters for part in modules], [part._modules for part in modules]
        for weight in (weight for place in self._weights for weight in place.values()):
            if type(weight) is not nn.Parameter and hasattr(weight, "device_mesh"):
                raise ValueError(
                    'a selector that reads tokens "alone" needs the encoder whole on each device, and it is sharded; leave '
                    '"alone" out of selector_inputs, or do not shard.'
                )
        return self._state()

    def _state(self) -> Any:
        """What the vectors hang on: the encoder's modules, where its weights are and how often they have been changed in
        place, and the adapters in use. Looked at in every call, so it must be fast."""
        children = [child for place in self._children for child in place.values()]
        weights = [weight for place in self._weights for weight in place.values() if weight is not None]
        places = [weight.data_ptr() for weight in weights]
        # Weights that were made in inference mode cannot change, and do not count.
        changes = [0 if weight.is_inference() else weight._version for weight in weights]
        adapters = [(layer.disable_adapters, tuple(layer.active_adapters)) for layer in self._adapted]  # type: ignore[arg-type]
        return children, places, changes, adapters

    def _nothing(self, device: torch.device) -> tuple[Tensor, Tensor]:
        size = len(embedding_table(self.encoder))
        with torch.inference_mode(False):  # tensors that gradients may pass by, whatever the mode of this call
            return (
                torch.full((size,), -1, dtype=torch.long, device=device),
                torch.zeros(0, self.config.hidden_size, dtype=torch.float16, device=device),
            )

    def _learn(self, rows: Tensor, vectors: Tensor, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        off = torch.autocast(device_type=rows.device.type, enabled=False)
        with torch.inference_mode(False), torch.no_grad(), off:
            new = torch.unique(input_ids.clone())
            new = new[rows[new] < 0]
            step = max(1, TOKENS // (1 + sum(map(len, self.config.frame_token_ids))))
            parts = [self._encode(part).half() for part in new.split(step)]
            rows = rows.clone()
            rows[new] = len(vectors) + torch.arange(len(new), device=rows.device)
            return rows, torch.cat([vectors, *parts])

    def _encode(self, tokens: Tensor) -> Tensor:
        """(tokens,) -> (tokens, hidden): each encoded alone, between the special tokens."""
        before, behind = (tokens.new_tensor(part).expand(len(tokens), -1) for part in self.config.frame_token_ids)
        ids = torch.cat([before, tokens[:, None], behind], dim=1)
        training = [module for module in self.encoder.modules() if module.training]
        for module in training:
            module.training = False  # without dropout
        try:
            states = run_encoder(self.encoder, ids, torch.ones_like(ids)).last_hidden_state
        finally:
            for module in training:
                module.training = True
        pooled = pool(states, torch.ones_like(ids)[:, None], self.config.pooling_modes)[:, 0]
        return normalize(pooled[:, : states.shape[-1]])


def alone_measures(vectors: Tensor, anchor: Tensor, batch: TokenBatch) -> Tensor:
    """How much of its sentence each word has by itself, in three numbers that every token of the word carries.

    Args:
        vectors: (batch, length, hidden) of the tokens alone, of length 1.
        anchor: (batch, 1, hidden) the sentence's pooled state, of length 1.
        batch: its words and content.

    Returns:
        (batch, length, 3); see the equations above.

    >>> from hardkuma.batch_hardkuma import prepare
    >>> batch = prepare(HardKumaConfig(), torch.tensor([[5, 6]]))
    >>> alone_measures(torch.eye(2)[None], torch.tensor([[[1.0, 0.0]]]), batch)[0].round(decimals=4)
    tensor([[1.0000, 0.7071, 1.0000],
            [0.0000, 0.7071, 0.0000]])
    """
    content = batch.content.float()
    # All of it by products of tokens with tokens and with a, so that what is (batch, length, hidden) is read and never
    # written. `joins` sums over the tokens of a word.
    joins = batch.same_word * content[:, None]
    products = joins.bmm(vectors.bmm(vectors.transpose(1, 2)))  # of words with tokens
    scales = (products * joins).sum(-1).clamp_min(1e-12).rsqrt() * content  # 1 / length of the word's sum
    along = anchor.bmm(vectors.transpose(1, 2)).transpose(1, 2)  # in this order four times as fast
    with_anchor = joins.bmm(along)[..., 0] * scales  # cos(u_w, a)
    with_total = products.bmm(scales[..., None])[..., 0] * scales  # u_w U
    firsts = ~batch.continues
    size = (with_total * firsts).sum(-1, keepdim=True)  # |U|^2
    total_with_anchor = (with_anchor * firsts).sum(-1, keepdim=True)
    # A word that is all there is leaves nothing, and nothing has no direction: its cosine counts as 0.
    left = (size - 2 * with_total + 1).clamp_min(0.0).sqrt()
    rest = torch.where(left > 1e-3, (total_with_anchor - with_anchor) / left.clamp_min(1e-3), 0.0)
    measures = [with_anchor, with_total * size.clamp_min(1e-12).rsqrt(), 1 - rest]
    return torch.stack(measures, dim=-1) * content[..., None]


@dataclass
class Encoding:
    """One pass of the encoder, padded on the right.

    Attributes:
        states: (batch, length, hidden) the last states.
        features: what the selector may read, each (batch, length, size), by name.
        hidden_states: of every layer, the embeddings first; if asked for.
        attentions: of every layer, (batch, heads, query, key); if asked for.
        pooled: (batch, 1, all modes) the states pooled over all tokens, where a selector needed them.
    """

    states: Tensor
    features: dict[str, Tensor]
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    pooled: Tensor | None = None


class InnerStates:
    """The states between an encoder's layers: `hidden_states[i]` is what layer i is given. transformers keeps those of all
    layers or of none; hooks, for the time of one call, keep those that are read, and the memory of the others is free again
    while the caches still hold it.

    Each layer is tried out when it is first asked for: transformers then keeps its states too. Where the two differ, or
    there is no single list of layers, it always will.
    """

    def __init__(self, encoder: PreTrainedModel):
        self.encoder, self.path = encoder, layer_list(encoder)
        self.alike: dict[int, bool] = {}

    def run(
        self, numbers: Sequence[int], call: Callable[[bool], Any]
    ) -> tuple[Any, Mapping[int, Tensor] | Sequence[Tensor]]:
        """The encoder's output, and the states of these layers by number.

        Args:
            call: runs the encoder; True makes transformers keep all hidden states.
        """
        layers = self._layers(numbers)
        if not layers:
            output = call(True)
            return output, output.hidden_states
        untried = [number for number in layers if number not in self.alike]
        with keep_inputs(layers) as kept:
            output = call(bool(untried))
        for number in untried:
            self.alike[number] = number in kept and torch.equal(kept[number], output.hidden_states[number])
        return output, output.hidden_states if untried else kept

    def _layers(self, numbers: Sequence[int]) -> dict[int, nn.Module]:
        """The layers to put hooks on, by number; none where transformers must keep the states."""
        # A compiled graph is bound to the hooks of its time; checkpointing runs layers out of the gradients' sight.
        if self.path is None or tracing() or torch.is_grad_enabled():
            return {}
        way: list[Any] = [self.encoder]
        for step in self.path.split("."):
            way.append(getattr(way[-1], step, None))
        if not all(number < len(way[-1] or ()) and self.alike.get(number, True) for number in numbers):
            return {}
        layers = {number: way[-1][number] for number in numbers}
        compiled = (module._compiled_call_impl or hasattr(module, "_orig_mod") for module in (*way, *layers.values()))
        return {} if any(compiled) else layers


@contextmanager
def keep_inputs(layers: Mapping[int, nn.Module]) -> Iterator[dict[int, Tensor]]:
    """What these layers are given meanwhile, in this thread, by number."""
    kept: dict[int, Tensor] = {}
    thread = threading.get_ident()

    def keep(number: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            # Other threads may run the same layers meanwhile, each with hooks of its own.
            if inputs and threading.get_ident() == thread:
                kept[number] = inputs[0]

        return hook

    hooks = [layer.register_forward_pre_hook(keep(number)) for number, layer in layers.items()]
    try:
        yield kept
    finally:
        for handle in hooks:
            handle.remove()


def read_features(
    encoder: PreTrainedModel,
    config: HardKumaConfig,
    batch: TokenBatch,
    inner: InnerStates,
    alone: TokensAlone,
    encoded: EncodedTokens | None = None,
    lower: PreTrainedModel | None = None,
    selectors: Sequence[int] | None = None,
    output_hidden_states: bool = False,
    output_attentions: bool = False,
) -> Encoding:
    """Run the encoder, or take what it gave earlier, and put together what selectors read.

    Args:
        inner: the way to the states of the encoder's inner layers.
        alone: its vectors of single tokens.
        encoded: what the encoder gave for this batch earlier, instead of running it.
        lower: the encoder's lower layers, to be run in its place: as far as `selectors` read. The last states are then
            those of the last of these layers.
        selectors: numbers of those that will read; all by default.
        output_hidden_states, output_attentions: keep these too.
    """
    chosen = list(range(config.num_selectors)) if selectors is None else list(selectors)
    if encoded is not None:
        if output_hidden_states or output_attentions:
            raise ValueError("encoded holds no hidden_states or attentions of every layer: leave it out, or do not ask.")
        result = _from_stored(config, batch, encoded)
    else:
        result = _run_layers(encoder, config, batch, inner, lower, chosen, output_hidden_states, output_attentions)
    features = result.features
    if config.reads("input", chosen) or config.view == "input":
        given = batch.inputs_embeds
        features["input"] = encoder.get_input_embeddings()(batch.input_ids) if given is None else given
    for layer in {config.layers_of(k)[-1] for k in chosen if config.reads("norm", [k])}:
        states = features[state_name(layer)]
        features[norm_name(layer)] = states.float().square().mean(-1, keepdim=True).sqrt()
    if config.reads("shape", chosen):
        ids = torch.zeros_like(batch.mask, dtype=torch.long) if batch.surface_ids is None else batch.surface_ids
        features["shape"] = nn.functional.one_hot(ids, NUM_SURFACE_CLASSES)
    if any(config.reads(name, chosen) for name in ("anchor", *MEASURES)):
        with without_autocast(result.states.device):  # which would measure in half precision
            _compare_words(result, config, batch, alone, chosen)
    return result


def _compare_words(
    result: Encoding, config: HardKumaConfig, batch: TokenBatch, alone: TokensAlone, selectors: Sequence[int]
) -> None:
    """Add the features that compare words with their sentence."""
    features, states = result.features, result.states.float()
    result.pooled = pool(states, batch.mask[:, None], config.pooling_modes)
    anchor = normalize(result.pooled[..., : states.shape[-1]])  # (batch, 1, hidden), by the first mode
    if config.reads("anchor", selectors):
        features["anchor"] = states * anchor
    if config.reads("pooled", selectors):
        features["pooled"] = pooled_measures(states, anchor, batch)
    if config.reads("removal", selectors):
        features["removal"] = removal_measures(states, batch.mask, batch.same_word)
    if config.reads("alone", selectors):
        if batch.input_ids is None:
            raise ValueError('this model reads tokens "alone" and must know which they are: pass input_ids.')
        vectors = alone.vectors(batch.input_ids).to(anchor.device)  # an encoder may begin and end on two devices
        features["alone"] = alone_measures(vectors, anchor, batch)


def pooled_measures(states: Tensor, anchor: Tensor, batch: TokenBatch) -> Tensor:
    """What a word brings into its sentence's pooled state, in four numbers that every token of the word carries.

    Args:
        states: (batch, length, hidden) last states, fp32.
        anchor: (batch, 1, hidden) the sentence's pooled state, of length 1.
        batch: its words.

    Returns:
        (batch, length, 4); see the equations above.

    >>> from hardkuma.batch_hardkuma import prepare
    >>> batch = prepare(HardKumaConfig(), torch.tensor([[5, 6, 7]]), continues=torch.tensor([[False, True, False]]))
    >>> states = torch.eye(3)[None]
    >>> pooled_measures(states, normalize(states.mean(1, keepdim=True)), batch)[0, 0]
    tensor([2.0000, 1.1547, 2.0000, 0.6931])
    """
    inside = batch.mask.to(states.dtype)
    norms = states.norm(dim=-1)
    # What is (batch, length, hidden) is read and never written. Four times as fast in this order as in the other.
    cosines = anchor.bmm(states.transpose(1, 2))[:, 0] / norms.clamp_min(1e-12)
    of_word = batch.same_word.bmm(torch.stack([norms, cosines, torch.ones_like(norms)], dim=-1) * inside[..., None])
    words = (batch.content & ~batch.continues).sum(-1, keepdim=True).clamp_min(1).to(states.dtype).log()
    return torch.cat([of_word, words[..., None].expand_as(norms[..., None])], dim=-1) * inside[..., None]


def removal_measures(states: Tensor, mask: Tensor, same: Tensor) -> Tensor:
    """What a sentence's pooled state would lose without a word, in two numbers that every token of the word carries.

    Args:
        states: (batch, length, hidden) last states, fp32.
        mask: (batch, length) bool, the tokens of the sentence.
        same: (batch, length, length) fp32, 1 for two tokens of one word; see `same_word`.

    Returns:
        (batch, length, 2); see the equations above.

    >>> same = torch.tensor([[[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    >>> removal_measures(torch.eye(3)[None], torch.ones(1, 3, dtype=torch.bool), same)[0, :, 1]
    tensor([0.4226, 0.4226, 0.1835])
    """
    inside = mask.to(states.dtype)
    total = inside[:, None] @ states  # (batch, 1, hidden)
    whole = total.norm(dim=-1).clamp_min(1e-12)
    along = (total / whole[..., None] @ states.transpose(1, 2))[:, 0] * inside
    products = states @ states.transpose(1, 2)
    squares = products.diagonal(dim1=1, dim2=2) * inside
    squares_of_word = (same @ products * same).sum(-1)  # |sum_w h|^2
    # 1 - cos(s - part, s) of single tokens and of words, accurate where it is small: sin^2 / (1 + cos), by what of the part
    # is perpendicular to s.
    along = torch.stack([along, (same @ along[..., None])[..., 0]])
    across = (torch.stack([squares, squares_of_word]) - along.square()).clamp_min(0.0)
    rest = whole - along
    # Without a word that is all there is nothing is left but rounding, which has no direction.
    left = torch.maximum(rest.square() + across, 1e-5 * whole.square())
    cosine = rest / left.sqrt()
    lost = torch.where(cosine > 0, across / (left * (1 + cosine.clamp_min(0.0))), 1 - cosine)
    of_tokens = (same @ lost[0][..., None])[..., 0]
    return torch.stack([of_tokens, lost[1]], dim=-1) * inside[..., None]


def _from_stored(config: HardKumaConfig, batch: TokenBatch, encoded: EncodedTokens) -> Encoding:
    inner = config.inner_layers
    wanted = {"states": True, "layer_states": bool(inner), "attention": config.reads("attention")}
    tensors: dict[str, Tensor] = {}
    for name, needed in wanted.items():
        if not needed:
            continue
        tensor = encoded.get(name)
        if not isinstance(tensor, Tensor):
            why = f"selector_layer is {config.selector_layer}" if name == "layer_states" else "the selector reads it"
            raise ValueError(f"{why}, but encoded has no {name!r}; take it from model.encode_tokens.")
        if tensor.shape[:2] != batch.mask.shape:
            raise ValueError(f"encoded {name!r} has shape {tuple(tensor.shape)} for input_ids {tuple(batch.mask.shape)}.")
        tensors[name] = batch.align(tensor)
    features = {"state": tensors["states"]}
    if inner:
        size = tensors["layer_states"].shape[-1]
        if size != len(inner) * tensors["states"].shape[-1]:
            raise ValueError(f"encoded 'layer_states' has {size} numbers a token, which are not those of layers {inner}.")
        parts = tensors["layer_states"].chunk(len(inner), dim=-1)
        features.update({state_name(layer): part for layer, part in zip(inner, parts, strict=True)})
    if "attention" in tensors:
        features["attention"] = tensors["attention"]
    return Encoding(tensors["states"], features)


def _run(encoder: PreTrainedModel, batch: TokenBatch, tap: AttentionTap | None = None, **outputs: bool) -> Any:
    ids, mask = batch.input_ids, attendable(batch.mask)
    return run_encoder(encoder, ids, mask, batch.token_type_ids, tap, batch.inputs_embeds, **outputs)


def _run_layers(
    encoder: PreTrainedModel,
    config: HardKumaConfig,
    batch: TokenBatch,
    inner: InnerStates,
    lower: PreTrainedModel | None,
    selectors: Sequence[int],
    hidden_states: bool,
    attentions: bool,
) -> Encoding:
    tap, depth = None, encoder.config.num_hidden_layers
    if config.reads("attention", selectors):
        chosen = layer_indices(config.attention_layers, depth) if depth else frozenset()
        tap = AttentionTap(content=batch.content, layers=chosen)
    part = encoder if lower is None else lower

    def call(recorded: bool) -> Any:
        # Only what is wanted is named: families differ in what they take.
        wanted = {"output_hidden_states": recorded, "output_attentions": attentions}
        with _differentiable(part, hidden_states or attentions):
            return _run(part, batch, tap, **{name: True for name, value in wanted.items() if value})

    numbers = {
        layer: layer_number(layer, depth)
        for layer in config.inner_layers
        if any(layer in config.layers_of(k) for k in selectors)
    }
    # Lower layers are asked for their last states alone: transformers records others by hooks on the layers, which they
    # share with the whole encoder.
    if hidden_states or not numbers or lower is not None:
        output = call(hidden_states)
        between = output.hidden_states if hidden_states else {}
    else:
        output, between = inner.run(list(numbers.values()), call)
    states = output.last_hidden_state
    result = Encoding(states, {"state": states})
    for layer, number in numbers.items():
        result.features[state_name(layer)] = between[number] if lower is None else states
    if tap is not None:
        result.features["attention"] = attention_features(tap, batch.mask)
    if hidden_states:
        result.hidden_states = output.hidden_states
    if attentions:
        result.attentions = getattr(output, "attentions", None)
    return result


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


def depth_needed(config: HardKumaConfig, selectors: Sequence[int], depth: int) -> int:
    """How many of the encoder's layers must run for these selectors: all, but where they read states of one layer alone.

    >>> [depth_needed(HardKumaConfig(selector_layer=layer), [0], 12) for layer in (0.5, [0.25, 0.5], -1)]
    [6, 12, 12]
    """
    layers = {layer_number(layer, depth) for k in selectors for layer in config.layers_of(k) if not is_last(layer)}
    if any(config.reads(name, selectors) for name in ("anchor", "attention", *MEASURES)) or len(layers) > 1:
        return depth
    if any(is_last(layer) for k in selectors for layer in config.layers_of(k)):
        return depth
    return layers.pop() if layers else 0


def lower_layers(encoder: PreTrainedModel, depth: int) -> PreTrainedModel | None:
    """The encoder with its first layers alone, sharing every weight: its last state is `hidden_states[depth]` of the whole.

    None where that cannot be had: no layer above, no single list of layers, or another last state (some families end with a
    norm), which is tried out.

    >>> from transformers import BertConfig, BertModel
    >>> sizes = {"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    >>> whole = BertModel(BertConfig(num_hidden_layers=3, **sizes)).eval()
    >>> ids = torch.tensor([[1, 2, 3]])
    >>> torch.equal(lower_layers(whole, 2)(ids).last_hidden_state, whole(ids, output_hidden_states=True).hidden_states[2])
    True
    """
    layers = layer_list(encoder)
    if layers is None or not 0 < depth < encoder.config.num_hidden_layers:
        return None
    part = _cut(encoder, layers, depth)
    ids = torch.arange(4, device=encoder.device)[None] % encoder.config.vocab_size
    mask = torch.ones_like(ids)
    with torch.no_grad():
        expected = run_encoder(encoder, ids, mask, output_hidden_states=True).hidden_states[depth]
        return part if torch.equal(run_encoder(part, ids, mask).last_hidden_state, expected) else None


def layer_list(encoder: PreTrainedModel) -> str | None:
    """Where in the encoder the list of its layers is; None where there is no single one."""
    number = encoder.config.num_hidden_layers
    modules = encoder.named_modules()
    lists = [name for name, module in modules if isinstance(module, nn.ModuleList) and len(module) == number]
    return lists[0] if len(lists) == 1 else None


def _cut(encoder: PreTrainedModel, layers: str, depth: int) -> PreTrainedModel:
    part = _shallow(encoder)
    part.config = copy.copy(encoder.config)
    part.config.num_hidden_layers = depth
    *above, name = layers.split(".")
    parent: nn.Module = part
    for step in above:
        # Only the modules on the way to the list are copied; all others, and their weights, are those of the encoder.
        parent._modules[step] = _shallow(parent.get_submodule(step))
        parent = parent.get_submodule(step)
    whole = parent.get_submodule(name)
    assert isinstance(whole, nn.ModuleList)
    parent._modules[name] = nn.ModuleList(list(whole)[:depth])
    return part


AnyModule = TypeVar("AnyModule", bound=nn.Module)


def _shallow(module: AnyModule) -> AnyModule:
    clone = copy.copy(module)
    clone._modules = dict(module._modules)
    return clone
