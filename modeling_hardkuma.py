"""HardKuma: a sentence encoder, and on top of it gates that say which words carry the sentence's meaning.

    H = encoder(tokens)                     token states, attention mask m, content mask c (m without special tokens)
    alpha, beta = selector(H, ...)          one Kumaraswamy gate per word (or token)
    g                                       in eval the mask 1[P(g > t) > decision_threshold]; in training g ~ HardKuma
    anchor, rationale, complement           Pool(H, m), Pool(., m g), Pool(., m (1 - g)), from one of three views

The released head has two selectors. `meaning` is trained by removal: its log-odds are fitted to what subsets of words keep
of the sentence's embedding and what is lost without them. `entities` is trained by form: its log-odds are fitted to how
words are written. The contrastive objective of `return_loss=True` trains gates end to end:

    loss = L_rat - lambda_cmp L_cmp + lambda_s sparsity + lambda_tv TV + lambda_e constraint (+ lambda_kl KL)

A forward pass is read in this order: this file, batch_hardkuma.py, encoder_hardkuma.py, features_hardkuma.py,
gate_head_hardkuma.py (with kumaraswamy_hardkuma.py), pooling_hardkuma.py.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypedDict

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import TokenClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, logging
from transformers.utils.output_capturing import maybe_install_capturing_hooks

from .attention_hardkuma import AttentionTap, run_encoder
from .batch_hardkuma import (
    EncodedTokens,
    TokenBatch,
    TokenInputs,
    attendable,
    content_mask,
    prepare,
    to_device,
    tracing,
    without_autocast,
)
from .checkpoint_hardkuma import HardKumaPreTrainedModel
from .configuration_hardkuma import ENTITIES, GATE_LABELS, TASK, HardKumaConfig
from .encoder_hardkuma import (
    Encoded,
    FullPrecisionLinear,
    Projection,
    build_encoder,
    embedding_table,
    encode,
    encode_kept,
)
from .gate_head_hardkuma import GateHead, WordGates
from .kumaraswamy_hardkuma import Kumaraswamy, make_gate, sample_gate
from .losses_hardkuma import LossRows, contrastive_loss, task_loss, world_size
from .pooling_hardkuma import frequency_filter, normalize, pool
from .scoring_hardkuma import Highlight, Record, RecordOptions, check_options, gate_records, measure_records, stream_records
from .words_hardkuma import SurfaceStatistics, capitals_against_lower

logger = logging.get_logger(__name__)

EMBEDDINGS = ("rationale", "complement", "anchor")
# A removed token's g in the attention of `reencode` while training. Attention logits of sharp encoders differ by 20 and
# more, so it must be small for the token to vanish; the gradient a / g of the weight a that is left stays of ordinary size.
GATE_FLOOR = 1e-15
TABLE_TOKENS = 6144  # of one batch of isolated tokens, with the special ones around them


@dataclass
class HardKumaOutput(ModelOutput):
    """What a forward pass returns. With K > 1 selectors, shapes marked [K] gain a selector axis after the batch.

    Attributes:
        loss: () weighted sum of `losses`, with `return_loss=True`.
        losses: each unweighted term by name, () or (K,).
        last_hidden_state: (batch, length, hidden) the encoder's token states; the first tensor, as stock tools expect.
        gates: (batch, [K,] length) 0/1 in eval, relaxed in training; 0 on special and padding tokens.
        gate_probs: (batch, [K,] length) closed-form selection probability, same zeros.
        anchor_embedding: (batch, dim) the encoder's own sentence embedding, never filtered.
        rationale_embedding, complement_embedding: (batch, [K,] dim) of the selected and of the other tokens.
        alpha, beta: (batch, [K,] length) concentrations of the gates; see `HardKumaModel.gate_distribution`.
        hidden_states: of every layer, the embeddings first, with `output_hidden_states=True`.
        attentions: (batch, heads, length, length) of every layer, with `output_attentions=True`.
    """

    loss: Tensor | None = None
    losses: dict[str, Tensor] | None = None
    last_hidden_state: Tensor | None = None
    gates: Tensor | None = None
    gate_probs: Tensor | None = None
    anchor_embedding: Tensor | None = None
    rationale_embedding: Tensor | None = None
    complement_embedding: Tensor | None = None
    alpha: Tensor | None = None
    beta: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class ClassifierOptions(TypedDict, total=False):
    """What a training loop hands to `HardKumaForSequenceClassification.forward` beside the tokens."""

    noise: Tensor | None  # (batch, K, length) uniform noise for the training gates, drawn if not given
    encoded: EncodedTokens | None  # what `encode_tokens` gave for these inputs earlier, to save the encoder's pass


class TrainingOptions(ClassifierOptions, total=False):
    """What a training loop hands to `HardKumaModel.forward` beside the tokens."""

    return_rows: bool  # return `LossRows` instead, for a loss over several forward passes (see `losses_of`)


def _check_options(options: Mapping[str, Any], known: type[ClassifierOptions]) -> None:
    for name in options:
        if name not in known.__annotations__:
            hint = " It is an option of model.gate_records(texts)." if name in RecordOptions.__annotations__ else ""
            raise TypeError(f"forward() got an unexpected keyword argument {name!r}.{hint}")


class HardKumaModel(HardKumaPreTrainedModel):
    """Gates over the tokens of a sentence encoder.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> out = model(**model.tokenizer(["Marie Curie moved to Paris."], return_tensors="pt"))
    >>> out.gates.shape, out.anchor_embedding.shape
    (torch.Size([1, 9]), torch.Size([1, 384]))
    """

    encoder: PreTrainedModel
    projections: nn.ModuleList
    gate_head: GateHead
    _keys_to_ignore_on_load_unexpected = [r"^classifier\."]  # of a checkpoint that also classifies texts
    batch_tokens: int | None = None  # a batch may have any number of tokens; see `GateModel`

    def __init__(self, config: HardKumaConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config)
        self.encoder = build_encoder(config.encoder_config) if encoder is None else encoder
        self.projections = nn.ModuleList(Projection(spec) for spec in config.projections)
        self.gate_head = GateHead(config, embedding_table(self.encoder).shape[1])
        # What the gate head has in int8 stays: transformers would make fp32 of all that is named here.
        tensors = self.gate_head.state_dict().items()
        self._keep_in_fp32_modules_strict = [f"gate_head.{name}" for name, value in tensors if value.is_floating_point()]
        self._tokenizer: PreTrainedTokenizerBase | None = None
        if self._inner_layers():
            maybe_install_capturing_hooks(self.encoder)  # later it would be under a lock, where no compiler can follow
        self._freeze()
        self.post_init()

    def _freeze(self) -> None:
        trainable = not self.config.freeze_encoder
        self.encoder.requires_grad_(trainable)
        self.projections.requires_grad_(trainable)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """An encoder of which nothing is trained stays in eval mode: its dropout would only be noise."""
        super().train(mode)
        self._encoder_is_trained = any(parameter.requires_grad for parameter in self.encoder.parameters())
        self.encoder.train(mode and self._encoder_is_trained)
        return self

    def _embed(self, input_ids: Tensor) -> Tensor:
        """(batch, length, size) input embeddings. What the gate head is given is this function and not the module, which
        tools for offloading would try to move along with the head's other inputs."""
        return self.get_input_embeddings()(input_ids)

    # ---- one pass -----------------------------------------------------------------------------------------------------

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        special_tokens_mask: Tensor | None = None,
        surface_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        continues: Tensor | None = None,
        selector: str | Sequence[str] | None = None,
        rate: float | None = None,
        return_loss: bool = False,
        return_embeddings: bool = True,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **options: Unpack[TrainingOptions],
    ) -> HardKumaOutput | LossRows | tuple[Any, ...]:
        """Gates, embeddings and, if asked for, losses.

        Args:
            input_ids, attention_mask, token_type_ids: (batch, length), as the tokenizer gives them, padded on any side.
            special_tokens_mask: (batch, length) 1 on tokens that are never selected; from the token ids by default.
            surface_ids: (batch, length) classes of the words' written forms, see words_hardkuma.py; 0 = unknown, no shift.
            inputs_embeds: (batch, length, size) instead of `input_ids`. Without ids nobody knows which tokens are special:
                pass `special_tokens_mask` with them.
            continues: (batch, length) true where a token goes on with the word of the token before; by default what the
                vocabulary says.
            selector: the name of one selector: the output is then its alone, without a selector axis. Or several names.
            rate: select this fraction of each sentence's words (tokens, where gates belong to tokens), the most probable
                ones, rounded up, instead of those above the model's own threshold; in (0, 1], in eval mode only.
            return_loss: compute `loss` and `losses`; needs a global batch of at least 2.
            return_embeddings: False leaves out rationale and complement (which `reencode` pays for).
            output_attentions, output_hidden_states, return_dict: as in every transformers model.
            options: of a training loop, see [`TrainingOptions`].
        """
        config = self.config
        _check_options(options, TrainingOptions)
        others: TokenInputs = {
            "special_tokens_mask": special_tokens_mask,
            "surface_ids": surface_ids,
            "inputs_embeds": inputs_embeds,
            "continues": continues,
        }
        batch, chosen = self.prepare(input_ids, attention_mask, token_type_ids, **others), self._chosen(selector)
        needs_loss = return_loss or options.get("return_rows", False)
        if return_loss and len(batch.mask) * world_size() < 2:
            raise ValueError(
                "return_loss=True needs at least 2 sentences in the global batch, got 1: a contrastive loss compares "
                "sentences. Use a larger batch."
            )
        hidden = bool(config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        attentions = bool(config.output_attentions if output_attentions is None else output_attentions)
        encoded = self._encode(batch, chosen, options.get("encoded"), True, hidden, attentions)
        rationale = complement = losses = loss = None
        with without_autocast(batch.mask.device):  # which would do the gate's arithmetic in half precision
            words, probs, gates = self._gates(batch, encoded, chosen, options.get("noise"), rate)
            anchor = self.embed_pooled(encoded.pooled)[:, 0]
            self._check_finite(anchor)
            gates, probs = words.spread(gates), words.spread(probs)
            if return_embeddings or needs_loss:
                compared, rationale, complement = self.view(batch, encoded, gates)
            if needs_loss:
                log_odds = words.spread(words.gate.selection_log_odds(config.gate_threshold))
                assert rationale is not None and complement is not None, "made above"
                rows = LossRows(batch.content, gates, probs, log_odds, compared, rationale, complement)
                if options.get("return_rows", False):
                    return rows
                loss, losses = self.losses_of(rows, selector)
        one = len(chosen) == 1 and not (isinstance(selector, (list, tuple)) and self.config.num_selectors > 1)

        def to_caller(values: Tensor) -> Tensor:
            return _without_axis(batch.restore(values, dim=2), one)

        output = HardKumaOutput(
            loss=loss,
            losses=losses,
            last_hidden_state=batch.restore(encoded.states),
            gates=to_caller(gates),
            gate_probs=to_caller(probs),
            anchor_embedding=anchor,
            rationale_embedding=None if rationale is None else _without_axis(rationale, one),
            complement_embedding=None if complement is None else _without_axis(complement, one),
            alpha=to_caller(words.spread(words.gate.alpha)),
            beta=to_caller(words.spread(words.gate.beta)),
            **_of_every_layer(batch, encoded),
        )
        return_dict = config.return_dict if return_dict is None else return_dict
        return output.to_tuple() if return_dict is False else output

    def prepare(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **others: Unpack[TokenInputs],
    ) -> TokenBatch:
        """The tokens as the encoder takes them: checked, padded on the right, with their words; arguments of `forward`."""
        return prepare(self.config, input_ids, attention_mask, token_type_ids, self.gate_head.roles, **others)

    def encode_batch(
        self,
        batch: TokenBatch,
        keep: Tensor | None = None,
        *,
        layers: Sequence[int] = (),
        whole: bool = True,
        attention: bool = False,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> Encoded:
        """The one way to a sentence vector: tokens in, states and pooled states out; `embed_pooled` makes these embeddings.

        Args:
            keep: (batch, sets, length) in [0, 1]: instead of all tokens, these alone, every set by itself; `pooled` is then
                (batch, sets, ...) and there are no states. In eval 1 or 0: removed tokens are left out of the batch. In
                training they stay, with log g on their attention logits and g as pooling weight, so that gates learn.
            layers: numbers of the layers whose states to keep.
            whole: False stops after the last of `layers`, where nothing else is wanted.
            attention: sum up the attention of `config.attention_layers`.
        """
        if self.training and self._encoder_is_trained != any(p.requires_grad for p in self.encoder.parameters()):
            self.train()  # somebody thawed or froze the encoder, or put adapters into it, since
        if keep is not None:
            with torch.autocast(device_type=batch.mask.device.type, enabled=batch.autocast):
                pooled = self._pool_gated(batch, keep) if self.training else self._pool_kept(batch, keep)
            return Encoded(pools=pooled)
        attended = self.config.attention_layers if attention else None
        encoded = encode(self.encoder, batch, layers, whole, attended, output_hidden_states, output_attentions)
        if encoded.last is not None:
            encoded.pools = pool(encoded.last, batch.mask[:, None], self.config.pooling_modes)
        return encoded

    def _pool_kept(self, batch: TokenBatch, keep: Tensor) -> Tensor:
        return encode_kept(self.encoder, batch, keep > 0, self.config.pooling_modes)

    def _pool_gated(self, batch: TokenBatch, gates: Tensor) -> Tensor:
        sets, weights = gates.shape[1], gates.flatten(0, 1)
        ids, types, embeddings = batch.repeated(sets)
        tap = AttentionTap(key_bias=torch.log(weights * (1 - GATE_FLOOR) + GATE_FLOOR))
        mask = attendable(batch.mask).repeat_interleave(sets, 0)
        states = run_encoder(self.encoder, ids, mask, types, tap, embeddings).last_hidden_state
        return pool(states, weights[:, None], self.config.pooling_modes)[:, 0].unflatten(0, (-1, sets))

    def embed_pooled(self, pooled: Tensor) -> Tensor:
        """Sentence embeddings (..., dim) from pooled states (..., hidden): the encoder's own last steps, what
        `SentenceTransformer.encode` gives."""
        vectors = self._project(pooled)
        return normalize(vectors) if self.config.normalize else vectors

    def view(self, batch: TokenBatch, encoded: Encoded, gates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the losses compare: anchor (batch, dim), rationale and complement (batch, K, dim), all of one view.

        Args:
            gates: (batch, K, length).
        """
        number, both = gates.shape[1], [gates, 1 - gates]
        if self.config.view != "input":
            vectors = self._gated(batch, encoded, torch.cat(both, dim=1))
            return self._filtered(self._project(encoded.pooled))[:, 0], vectors[:, :number], vectors[:, number:]
        # Input embeddings live in a space of their own, so the anchor is pooled from them too.
        vectors = self._gated(batch, encoded, torch.cat([torch.ones_like(gates[:, :1]), *both], dim=1))
        return vectors[:, 0], vectors[:, 1 : number + 1], vectors[:, number + 1 :]

    def _gated(self, batch: TokenBatch, encoded: Encoded, gates: Tensor) -> Tensor:
        """Embeddings of the sentences under gates (batch, sets, length), by the model's view: (batch, sets, dim)."""
        modes, mask, content = self.config.pooling_modes, batch.mask[:, None].float(), batch.content[:, None].float()
        if self.config.view == "hidden":
            # As written: special tokens have g = 0, so they are part of the complement.
            return self._filtered(self._project(pool(encoded.states, mask * gates, modes)))
        if self.config.view == "input":
            given = batch.inputs_embeds
            embeddings = self.get_input_embeddings()(batch.input_ids) if given is None else given
            centred = embeddings.float() - self.gate_head.input_center.float()
            return self._filtered(pool(centred, content * gates, modes))
        # Special tokens always stay, as they would around a shorter sentence.
        kept = mask * (1 - content) + content * gates
        return self._filtered(self._project(self.encode_batch(batch, keep=kept).pooled))

    def _filtered(self, vectors: Tensor) -> Tensor:
        config = self.config
        vectors = frequency_filter(vectors, config.frequency_filter, config.frequency_low, config.frequency_high)
        return normalize(vectors) if config.normalize else vectors

    def _project(self, vectors: Tensor) -> Tensor:
        for projection in self.projections:
            vectors = projection(vectors)
        return vectors

    def _chosen(self, selector: str | Sequence[str] | None) -> list[int]:
        """Numbers of the selectors that are asked for: by name, or all."""
        if selector is None:
            return list(range(self.config.num_selectors))
        names: Sequence[Any] = selector if isinstance(selector, (list, tuple)) else [selector]
        return [self.config.find_selector(name) for name in names]

    def _encode(
        self,
        batch: TokenBatch,
        selectors: Sequence[int],
        stored: EncodedTokens | None = None,
        whole: bool = True,
        hidden_states: bool = False,
        attentions: bool = False,
    ) -> Encoded:
        """What these selectors read of a batch, from the encoder or from what it gave earlier."""
        needed = self.gate_head.needed(selectors)
        attention = self.config.reads("attention", needed)
        if stored is not None:
            if hidden_states or attentions:
                raise ValueError(
                    "encoded holds no hidden_states or attentions of every layer: leave it out, or do not ask."
                )
            return self._from_stored(batch, stored, attention)
        return self.encode_batch(
            batch,
            layers=self.config.layers(needed),
            whole=whole or self.config.depth(needed) == self.config.num_hidden_layers,
            attention=attention,
            output_hidden_states=hidden_states,
            output_attentions=attentions,
        )

    def _from_stored(self, batch: TokenBatch, stored: EncodedTokens, attention: bool) -> Encoded:
        inner = self._inner_layers()
        wanted = {"states": True, "layer_states": bool(inner), "attention": attention}
        tensors: dict[str, Tensor] = {}
        for name in (name for name, needed in wanted.items() if needed):
            tensor = stored.get(name)
            if not isinstance(tensor, Tensor):
                raise ValueError(f"a selector reads it, but encoded has no {name!r}; take it from model.encode_tokens.")
            if tensor.shape[:2] != batch.mask.shape:
                raise ValueError(
                    f"encoded {name!r} has shape {tuple(tensor.shape)} for input_ids {tuple(batch.mask.shape)}."
                )
            tensors[name] = batch.align(tensor)
        states = tensors["states"]
        layers = {self.encoder.config.num_hidden_layers: states}
        if inner:
            size = tensors["layer_states"].shape[-1]
            if size != len(inner) * states.shape[-1]:
                raise ValueError(
                    f"encoded 'layer_states' has {size} numbers a token, which are not those of layers {inner}."
                )
            layers |= dict(zip(inner, tensors["layer_states"].chunk(len(inner), dim=-1), strict=True))
        pooled = pool(states, batch.mask[:, None], self.config.pooling_modes)
        return Encoded(states, layers, pooled, tensors.get("attention"))

    def _inner_layers(self) -> list[int]:
        return [layer for layer in self.config.layers() if layer < self.encoder.config.num_hidden_layers]

    def _gates(
        self,
        batch: TokenBatch,
        encoded: Encoded,
        chosen: Sequence[int],
        noise: Tensor | None = None,
        rate: float | None = None,
    ) -> tuple[WordGates, Tensor, Tensor]:
        """The gates of words, their probabilities and their values, (batch, K, slots) each, 0 off content: drawn in
        training; in eval by the selector's own rule, or at a rate. Noise is (batch, K, length): word number n takes what is
        at place n."""
        config = self.config
        words = self.gate_head(encoded, batch, chosen, self._embed)
        probs, shape = words.probabilities(config.gate_threshold), words.index.shape
        if not self.training:
            selectors = [config.selector(k) for k in chosen]
            return words, probs, words.decide(probs, selectors, config.decision_threshold, rate)
        if rate is not None:
            raise ValueError(f"rate={rate} selects in eval mode only, and the model trains; call model.eval() first.")
        if noise is None:
            noise = torch.rand(shape, device=probs.device, dtype=probs.dtype)
        elif noise.shape != shape:
            raise ValueError(f"noise must be (batch, selectors, length) = {tuple(shape)}, got {tuple(noise.shape)}.")
        noise = torch.cat([noise, torch.full_like(noise[..., :1], 0.5)], dim=-1)[..., : probs.shape[-1]]
        return words, probs, sample_gate(words.gate, noise, config.sampler, config.gate_threshold) * words.content

    def _check_finite(self, vectors: Tensor) -> None:
        if tracing() or math.isfinite(float(vectors.detach().sum())):
            return
        rows = (~torch.isfinite(vectors).all(-1)).nonzero().flatten().tolist()
        if not rows:
            return  # large numbers, whose sum alone is infinite
        raise ValueError(
            f"the encoder returned NaN or infinity for rows {rows[:8]} of the batch; check its weights, or try "
            "dtype=torch.float32."
        )

    # ---- parts of a pass ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def gate_probabilities(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        selector: str | None = None,
        **others: Unpack[TokenInputs],
    ) -> Tensor:
        """`gate_probs` as `forward` gives them, (batch, [K,] length), and nothing else. Where the selector reads inner
        layers alone, the encoder stops there: cheaper than a sentence embedding.

        >>> selectors = {"meaning": {"layer": 4}}
        >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", selectors=selectors).eval()
        >>> inputs = model.tokenizer(["Marie Curie moved to Paris."], return_tensors="pt")
        >>> torch.equal(model.gate_probabilities(**inputs), model(**inputs).gate_probs)
        True
        """
        batch, chosen = self.prepare(input_ids, attention_mask, token_type_ids, **others), self._chosen(selector)
        encoded = self._encode(batch, chosen, whole=False)
        with without_autocast(batch.mask.device):
            words = self.gate_head(encoded, batch, chosen, self._embed)
            probs = words.spread(words.probabilities(self.config.gate_threshold))
        self._check_finite(probs.flatten(1))
        return _without_axis(batch.restore(probs, dim=2), len(chosen) == 1)

    def gate_batches(self, batches: Iterable[dict[str, Tensor]], selector: str | None = None) -> Iterator[Tensor]:
        """`gate_probabilities` of one batch after the other; see `GateModel`.

        >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
        >>> inputs = model.tokenizer(["Marie Curie moved to Paris."], return_tensors="pt")
        >>> [probs.shape for probs in model.gate_batches([inputs, inputs])]
        [torch.Size([1, 9]), torch.Size([1, 9])]
        """
        for batch in batches:
            yield self.gate_probabilities(**batch, selector=selector)

    def encode_tokens(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> EncodedTokens:
        """One plain encoder pass, to be stored: what `forward` takes back as `encoded`, with the same results to the bit.

        Returns:
            "states" (batch, length, hidden); where selectors read other layers than the last, "layer_states" of those, side
            by side; where one reads attention, "attention" (batch, length, 2); and "anchor" (batch, dim), for the caller.

        >>> selectors = {"meaning": {"layer": 4}}
        >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", selectors=selectors).eval()
        >>> inputs = model.tokenizer(["Marie Curie moved to Paris."], return_tensors="pt")
        >>> encoded = model.encode_tokens(**inputs)
        >>> sorted(encoded), torch.equal(model(**inputs, encoded=encoded).gate_probs, model(**inputs).gate_probs)
        (['anchor', 'layer_states', 'states'], True)
        """
        batch = self.prepare(input_ids, attention_mask, token_type_ids)
        encoded = self._encode(batch, range(self.config.num_selectors))
        anchor = self.embed_pooled(encoded.pooled)[:, 0]
        self._check_finite(anchor)
        result = EncodedTokens(states=batch.restore(encoded.states), anchor=anchor)
        inner = [encoded.layers[layer] for layer in self._inner_layers()]
        if inner:
            result["layer_states"] = batch.restore(torch.cat(inner, dim=-1))
        if encoded.attention is not None:
            result["attention"] = batch.restore(encoded.attention)
        return result

    @torch.no_grad()
    def selector_inputs(
        self,
        selector: int,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        encoded: EncodedTokens | None = None,
        **others: Unpack[TokenInputs],
    ) -> tuple[Tensor, Tensor]:
        """What one selector reads of each word, and which words can be selected: a frozen encoder needs to run only once.

        Returns:
            x: (words, size) of all content words of all rows, row after row; `gate_head.log_odds(selector, x)` is trained.
            counts: (batch,) how many each row has.

        >>> selectors = {"meaning": {"unit": "word"}}
        >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", selectors=selectors).eval()
        >>> inputs = model.tokenizer(["Marie Curie moved to Paris.", "Rain."], padding=True, return_tensors="pt")
        >>> x, counts = model.selector_inputs(0, **inputs)
        >>> x.shape, counts
        (torch.Size([8, 384]), tensor([6, 2]))
        """
        batch = self.prepare(input_ids, attention_mask, token_type_ids, **others)
        passed = self._encode(batch, [selector], encoded)
        features = self.gate_head.features(passed, batch, [selector], self._embed)[0]
        with without_autocast(batch.mask.device):
            return self.gate_head.selector_inputs(selector, features)[features.content], features.content.sum(-1)

    def encode_subsets(self, input_ids: Tensor, attention_mask: Tensor, kept: Tensor) -> Tensor:
        """Sentence embeddings of chosen tokens alone, by running the encoder without the others; special tokens stay.

        Args:
            kept: (batch, sets, length), 1 on content tokens to keep.

        Returns:
            (batch, sets, dim), each as `SentenceTransformer.encode` would give it
        """
        batch = self.prepare(input_ids, attention_mask)
        content = batch.content[:, None]
        kept = (batch.mask[:, None] & ~content) | (content & batch.align(kept, dim=2).bool())
        return self.embed_pooled(self._pool_kept(batch, kept))

    def losses_of(self, rows: LossRows, selector: str | Sequence[str] | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The total loss and its unweighted terms, over the global batch of which `rows` are this process's share.

        Args:
            selector: whose rows these are, as in `forward`.
        """
        return contrastive_loss(rows, self.config, self.gate_head.rate_multiplier, self.training, self._chosen(selector))

    def gate_distribution(self, output: HardKumaOutput) -> Kumaraswamy:
        """The gates' distribution of an output, with `p_zero`, `p_one`, `mean`, ... per token (stretched sampler)."""
        config = self.config
        assert output.alpha is not None and output.beta is not None, "every forward pass gives them"
        return make_gate(output.alpha, output.beta, config.sampler, config.stretch_low, config.stretch_high)

    def gate_records(self, texts: list[str], **options: Any) -> list[Record]:
        """Words and spans of each text as plain JSON values; options of `scoring_hardkuma.gate_records`.

        >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
        >>> model.gate_records(["Marie moved."], rate=1.0)[0]["spans"][0]["text"]
        'Marie moved'
        """
        return gate_records(self, texts, **options)

    def faithfulness(self, texts: list[str], **options: Any) -> list[dict[str, float | None]]:
        """How good the answers to these texts are, verified by encoding the selected words alone and the others alone.

        Args:
            options: of `gate_records`: whose words, and how many.

        Returns:
            `{"kept", "lost", "random_kept", "random_lost"}` of each text: the cosine of the selected words' embedding to
            the text's, 1 - that of the others, and both for as many random words; None for a text that is empty or longer
            than the encoder takes.

        >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
        >>> found = model.faithfulness(["Marie moved."], rate=1.0)[0]
        >>> abs(found["kept"] - found["random_kept"]) < 1e-6 and found["kept"] > 0.9  # all words are all words
        True
        """
        check_options("faithfulness", options, stream_records)
        return measure_records(self, self.gate_records(texts, **options))

    def highlight(self, texts: str | list[str], **options: Any) -> Highlight:
        """Texts with their words marked, for a notebook, a terminal (`print`) or a page (`.to_html()`,
        `.save("page.html")`).

        Args:
            options: of `gate_records`, such as `rate=0.2`, `keep=0.8` or `selector="entities"`.

        >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
        >>> print(model.highlight("Marie moved.", rate=1.0))
        [Marie moved].
        """
        check_options("highlight", options, stream_records)
        return Highlight(self.gate_records([texts] if isinstance(texts, str) else texts, **options))

    def sentence_features(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        embedding: str = "rationale",
        rate: float | None = None,
        selector: str | None = None,
    ) -> dict[str, Any]:
        """What sentence-transformers calls: one embedding as "embedding" (batch, dim).

        `SentenceTransformer.encode(texts, embedding="anchor")` and `encode(texts, rate=0.2)` hand their arguments on.
        With `config.output_hidden_states`, as sentence-transformers loads it, "hidden_states" are those of the last layer,
        (batch, length, hidden), alone in a tuple: what `encode(texts, output_value="token_embeddings")` gives.

        Args:
            embedding: "rationale", "complement" or "anchor".
            rate: as in `forward`.
            selector: whose rationale or complement; "meaning" by default, or the first.
        """
        if embedding not in EMBEDDINGS:
            raise ValueError(f"embedding must be one of {', '.join(EMBEDDINGS)}; got {embedding!r}.")
        tokens, batch = bool(self.config.output_hidden_states), self.prepare(input_ids, attention_mask, token_type_ids)
        # As in `forward`, without what nobody asked for: gates, the other embeddings, the layers that only they need.
        chosen = [] if embedding == "anchor" else [self.config.find_selector(selector)]
        whole = tokens or embedding == "anchor" or self.config.view == "hidden"
        encoded = self._encode(batch, chosen, whole=whole)
        with without_autocast(batch.mask.device):
            if embedding == "anchor":
                vectors = self.embed_pooled(encoded.pooled)[:, 0]
                self._check_finite(vectors)
            else:
                words, probs, gates = self._gates(batch, encoded, chosen, rate=rate)
                self._check_finite(probs.flatten(1))
                gates = words.spread(gates)
                if embedding == "rationale" and not tracing() and bool((gates.sum(-1) == 0).any()):
                    logger.warning_once(
                        "in some sentences no token passes the model's threshold: their rationale embeddings are all the "
                        "same. encode(texts, rate=0.5) selects tokens in every sentence."
                    )
                vectors = self._gated(batch, encoded, gates if embedding == "rationale" else 1 - gates).flatten(1)
        result: dict[str, Any] = {"embedding": vectors}
        return {**result, "hidden_states": (batch.restore(encoded.states),)} if tokens else result

    # ---- state of the gate head that is not trained by gradients ------------------------------------------------------

    @torch.no_grad()
    def adapt_surface(self, batches: Iterable[dict[str, Any]]) -> Tensor:
        """Estimate the log-odds of the word-shape classes from this model's own gates on unlabelled text, in one pass.

        A class moves n / (n + form_shrinkage) of the way from its old log-odds, n its number of tokens in this text.

        Args:
            batches: iterable of tokenised batches, each with `surface_ids` (see `surface_batch`).

        Returns:
            (K, classes) the new log-odds, now part of the gate head.
        """
        training, statistics = self.training, SurfaceStatistics(self.config.num_selectors)
        self.eval()
        for batch in batches:
            batch = to_device(batch, self.device)
            ids = batch.pop("surface_ids")
            out = self(**batch, return_embeddings=False, return_dict=True)
            probs = out.gate_probs if out.gate_probs.ndim == 3 else out.gate_probs[:, None]
            content = content_mask(
                self.config, batch["input_ids"], batch.get("attention_mask"), batch.get("special_tokens_mask")
            )
            statistics.update(probs, ids, content)
        self.train(training)
        if statistics.counts.sum() == 0:
            raise ValueError("no content token with a surface class was seen: give at least one non-empty text.")
        shifts = statistics.shifts()
        for k in range(self.config.num_selectors):
            if self.config.selector(k).unit == "name":
                shifts[k] = capitals_against_lower(shifts[k])
        # Little text changes little: w of the way from the old value to that of this text.
        weights = statistics.weights(self.config.form_shrinkage).to(self.device)
        self.gate_head.surface_log_odds.lerp_(shifts.to(self.device), weights)
        return self.gate_head.surface_log_odds.clone()

    @torch.no_grad()
    def build_isolated_table(self, progress: bool = False) -> None:
        """Fill the gate head's table of isolated tokens, where a selector reads it: every token of the vocabulary is
        encoded alone, between the special tokens of a text, and kept in int8 in the directions that hold most of it.

        Done once, before a head is trained; it belongs to the encoder's weights of that time.

        Args:
            progress: show a bar.
        """
        if not self.config.reads("isolated"):
            return
        head, size = self.gate_head, self.config.vocab_size
        before, behind = (torch.tensor(part, dtype=torch.long) for part in self.config.frame_token_ids)
        step = max(1, TABLE_TOKENS // (1 + len(before) + len(behind)))
        training = self.training
        self.eval()
        parts = []
        bar = logging.tqdm(total=size, desc="isolated tokens", unit="token", disable=not progress)
        with torch.autocast(device_type=self.device.type, enabled=False), bar:
            for tokens in torch.arange(size).split(step):
                rows = [before.expand(len(tokens), -1), tokens[:, None], behind.expand(len(tokens), -1)]
                ids = torch.cat(rows, dim=1).to(self.device)
                pooled = self.encode_batch(self.prepare(ids, special_tokens_mask=torch.zeros_like(ids))).pooled
                parts.append(normalize(pooled[:, 0, : self.config.hidden_size]).cpu())
                bar.update(len(tokens))
        self.train(training)
        vectors = torch.cat(parts).double()  # (vocabulary, hidden), of length 1
        # Directions of the largest eigenvalues of E^T E, each with its largest number positive: signs are arbitrary.
        directions = torch.linalg.eigh(vectors.T @ vectors)[1].flip(1)
        directions = directions[:, : head.isolated_directions.shape[1]]
        directions = directions * directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()
        reduced = vectors @ directions
        scale = reduced.abs().amax(-1).clamp_min(1e-12) / 127
        head.isolated_table.copy_((reduced / scale[:, None]).round())
        head.isolated_scale.copy_(scale)
        head.isolated_directions.copy_(directions)


def _without_axis(tensor: Tensor, one: bool) -> Tensor:
    """(batch, K, ...) -> (batch, ...) where one selector is asked for or there is only one."""
    return tensor[:, 0] if one else tensor


def _of_every_layer(batch: TokenBatch, encoded: Encoded) -> dict[str, Any]:
    """States and attentions on the caller's padding side; None where nobody asked for them."""
    states, weights = encoded.hidden_states, encoded.attentions
    return {
        "hidden_states": None if states is None else tuple(map(batch.restore, states)),
        "attentions": None if weights is None else tuple(batch.restore(batch.restore(w, 2), 3) for w in weights),
    }


class HardKumaForTokenClassification(HardKumaPreTrainedModel):
    """The same checkpoint for token-classification pipelines: labels `O` and `ENTITY`; softmax(logits) gives `gate_probs`.

    With several selectors the labels are those of one, "entities" by default, or the first. A folder brings its own
    pipeline for this task ([`GateClassificationPipeline`]); transformers' own, which it makes of a loaded model, takes the
    likelier label, so it decides at 1/2 whatever `decision_threshold` is.
    """

    hardkuma: HardKumaModel

    _keys_to_ignore_on_load_unexpected = [r"^classifier\."]

    def __init__(self, config: HardKumaConfig, encoder: PreTrainedModel | None = None):
        if config.id2label != GATE_LABELS:  # the classes of texts, in a checkpoint that has these too
            config = copy.copy(config)
            config.id2label, config.label2id = dict(GATE_LABELS), {name: i for i, name in GATE_LABELS.items()}
        super().__init__(config)
        self.hardkuma = HardKumaModel(config, encoder)
        self.num_labels = 2
        self.register_load_state_dict_pre_hook(_add_base_prefix)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        special_tokens_mask: Tensor | None = None,
        surface_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        continues: Tensor | None = None,
        labels: Tensor | None = None,
        selector: str | None = None,
        return_dict: bool | None = None,
        output_attentions: bool | None = None,  # by name: transformers asks the signature whether there are any
        **options: Any,
    ) -> TokenClassifierOutput | tuple[Any, ...]:
        """logits: (batch, length, 2) = [log(1 - p), log p].

        Args:
            labels: (batch, length) 0, 1 or -100 (left out): `loss` is then the cross entropy of the logits. Stock tools
                pass them; nothing in our own training does, which has no labels.
            selector: the name of the selector whose gates these are.
            options: everything else that [`HardKumaModel.forward`] takes. With `return_loss=True` and without labels
                `loss` is the model's own.
        """
        number = self.config.find_selector(selector, default=ENTITIES)
        trained = options.get("return_loss", False)  # all selectors are, together
        out = self.hardkuma(
            input_ids,
            attention_mask,
            token_type_ids,
            special_tokens_mask,
            surface_ids,
            inputs_embeds,
            continues,
            selector=None if trained else self.config.names[number],
            output_attentions=output_attentions,
            **{**options, "return_embeddings": False, "return_dict": True},
        )
        probs = out.gate_probs if out.gate_probs.ndim == 2 else out.gate_probs[:, number]
        probs = probs.clamp(1e-7, 1 - 1e-7)
        logits = torch.stack([torch.log1p(-probs), probs.log()], dim=-1)
        loss = out.loss if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        output = TokenClassifierOutput(
            loss=loss,  # type: ignore[arg-type] # transformers says FloatTensor, which no operation is said to return
            logits=logits,  # type: ignore[arg-type] # the same
            hidden_states=out.hidden_states,
            attentions=out.attentions,
        )
        return_dict = self.config.return_dict if return_dict is None else return_dict
        return output.to_tuple() if return_dict is False else output


@dataclass
class HardKumaClassifierOutput(ModelOutput):
    """What a classified batch gives.

    Attributes:
        loss: () weighted sum of `losses`, with `labels`.
        logits: (batch, classes) of the rationales.
        hidden_states, attentions: of the pass over the whole texts, if asked for.
        gates: (batch, length) the words that the decision was made by: 0/1 in eval, relaxed in training.
        gate_probs: (batch, length) closed-form selection probability.
        losses: each unweighted term by name; see `task_loss`.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    gates: Tensor | None = None
    gate_probs: Tensor | None = None
    losses: dict[str, Tensor] | None = None


class HardKumaForSequenceClassification(HardKumaPreTrainedModel):
    """A text's class, by its selected words alone: the gates say which words made this decision.

        logits = W r + b        r the rationale's embedding, by the model's view: what the other words say is never seen

    With `labels` the loss is the original HardKuma's (losses_hardkuma.py, `task_loss`); gates are drawn in training and
    decided in eval. Any tool that trains a transformers model trains it; `hardkuma train --objective task` takes a
    shorter way (training/objectives/task.py). `AutoModel` loads the same checkpoint without the classifier.

    >>> name, labels = "sentence-transformers/all-MiniLM-L6-v2", {0: "bad", 1: "good"}
    >>> model = HardKumaForSequenceClassification.from_encoder(name, id2label=labels, view="reencode").eval()
    >>> inputs = model.tokenizer(["A fine film.", "Dull and far too long."], padding=True, return_tensors="pt")
    >>> out = model(**inputs, rate=0.5)
    >>> out.logits.shape, out.gates.sum(-1)
    (torch.Size([2, 2]), tensor([2., 3.]))
    """

    hardkuma: HardKumaModel
    classifier: FullPrecisionLinear

    def __init__(
        self, config: HardKumaConfig, encoder: PreTrainedModel | None = None, hardkuma: HardKumaModel | None = None
    ):
        """
        Args:
            hardkuma: gates to put the classifier on, instead of new ones.
        """
        super().__init__(config)
        self.hardkuma = HardKumaModel(config, encoder) if hardkuma is None else hardkuma
        self.num_labels = int(config.num_labels or 0)
        if config.id2label == GATE_LABELS:  # nobody has named the classes
            config.id2label = {i: f"LABEL_{i}" for i in range(self.num_labels)}
            config.label2id = {name: i for i, name in config.id2label.items()}
        self.classifier = FullPrecisionLinear(config.projection_dim, self.num_labels)
        self.register_load_state_dict_pre_hook(_add_base_prefix)
        self._keep_in_fp32_modules_strict = ["classifier"]
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        special_tokens_mask: Tensor | None = None,
        surface_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        continues: Tensor | None = None,
        labels: Tensor | None = None,
        selector: str | None = None,
        rate: float | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **options: Unpack[ClassifierOptions],
    ) -> HardKumaClassifierOutput | tuple[Any, ...]:
        """Logits of the rationales, and with labels the loss.

        Args:
            input_ids to continues: as of [`HardKumaModel.forward`].
            labels: (batch,) numbers of classes; or as `config.problem_type` says, as in every transformers model.
            selector: whose words decide; by default "task", or the first.
            rate: decide by this fraction of a text's words, in (0, 1]; in eval mode only.
            output_attentions, output_hidden_states, return_dict: as in every transformers model.
            options: of a training loop, see [`ClassifierOptions`].
        """
        _check_options(options, ClassifierOptions)
        base, config = self.hardkuma, self.config
        others: TokenInputs = {
            "special_tokens_mask": special_tokens_mask,
            "surface_ids": surface_ids,
            "inputs_embeds": inputs_embeds,
            "continues": continues,
        }
        batch = base.prepare(input_ids, attention_mask, token_type_ids, **others)
        number = config.find_selector(selector, default=TASK)
        hidden = bool(config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        attentions = bool(config.output_attentions if output_attentions is None else output_attentions)
        whole = config.view == "hidden" or hidden or attentions
        encoded = base._encode(batch, [number], options.get("encoded"), whole, hidden, attentions)
        losses = loss = None
        with without_autocast(batch.mask.device):
            words, probs, gates = base._gates(batch, encoded, [number], options.get("noise"), rate)
            tokens = words.spread(gates)
            logits = self.classifier(base._gated(batch, encoded, tokens)[:, 0])
            base._check_finite(logits)
            if labels is not None:
                task = self.loss_function(labels=labels, pooled_logits=logits, config=config)
                of_words = (probs[:, 0], words.content[:, 0])
                loss, losses = task_loss(task, *of_words, config, base.gate_head.rate_multiplier, self.training, number)
        output = HardKumaClassifierOutput(
            loss=loss,
            logits=logits,
            **_of_every_layer(batch, encoded),
            gates=batch.restore(tokens[:, 0]),
            gate_probs=batch.restore(words.spread(probs)[:, 0]),
            losses=losses,
        )
        return_dict = config.return_dict if return_dict is None else return_dict
        return output.to_tuple() if return_dict is False else output


def _add_base_prefix(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """`load_state_dict` of a classifier takes what it saves, whose names are the base model's: Trainer resumes with it."""
    inner, own = f"{prefix}{HardKumaPreTrainedModel.base_model_prefix}.", f"{prefix}classifier."
    for key in [key for key in state if key.startswith(prefix) and not key.startswith((inner, own))]:
        state[inner + key.removeprefix(prefix)] = state.pop(key)


HardKumaModel.register_for_auto_class("AutoModel")
HardKumaForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")
HardKumaForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
