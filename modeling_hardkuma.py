"""HardKuma: a sentence encoder, and on top of it gates that say which tokens carry the sentence's meaning.

    H = encoder(tokens)                     token states, attention mask m, content mask c (m without special tokens)
    alpha, beta = selector(H, ...)          one Kumaraswamy gate per content token
    g ~ HardKuma(alpha, beta)               relaxed in training; in eval the mask 1[P(g > t) > decision_threshold]
    anchor, rationale, complement           Pool(H, m), Pool(., m g), Pool(., m (1 - g)), from one of three views
    loss = L_rat - lambda_cmp L_cmp + lambda_s sparsity + lambda_tv TV + lambda_e constraint (+ lambda_kl KL)

The steps up to the gates are in modeling_hardkuma.py, the distribution in kumaraswamy_hardkuma.py, the selector in
gate_head_hardkuma.py, what it reads in features_hardkuma.py, the views in pooling_hardkuma.py, the terms of the loss in
losses_hardkuma.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypedDict

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import TokenClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, logging

from .batch_hardkuma import EncodedTokens, TokenBatch, content_mask, is_sign, prepare, to_device, tracing, without_autocast
from .checkpoint_hardkuma import HardKumaPreTrainedModel
from .configuration_hardkuma import ENTITIES, HardKumaConfig, state_name
from .encoder_hardkuma import Projection, build_encoder, embedding_table
from .features_hardkuma import Encoding, InnerStates, TokensAlone, depth_needed, lower_layers, read_features
from .gate_head_hardkuma import GateHead, mean_over_words
from .kumaraswamy_hardkuma import Kumaraswamy, make_gate, sample_gate, select_best_word, select_rate, select_words
from .losses_hardkuma import LossRows, objective, world_size
from .pooling_hardkuma import contrasted_embeddings, gated_embeddings, pool, pool_reencoded, sentence_embedding
from .scoring_hardkuma import Record, gate_records
from .words_hardkuma import SurfaceStatistics, capitals_against_lower


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
        alpha, beta: (batch, [K,] length) shapes of the gates; see `HardKumaModel.gate_distribution`.
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


class TrainingOptions(TypedDict, total=False):
    """What a training loop hands to `HardKumaModel.forward` beside the tokens."""

    noise: Tensor | None  # (batch, K, length) uniform noise for the training gates, drawn if not given
    encoded: EncodedTokens | None  # what `encode_tokens` gave for these inputs earlier, to save the encoder's pass
    return_rows: bool  # return `LossRows` instead, for a loss over several forward passes (see `losses_of`)


class HardKumaCore(HardKumaPreTrainedModel):
    """What [`HardKumaModel`] is made of, and the steps of its calls."""

    encoder: PreTrainedModel
    projections: nn.ModuleList
    gate_head: GateHead
    batch_tokens: int | None = None  # a batch may have any number of tokens; see `GateModel`

    def __init__(self, config: HardKumaConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config)
        self.encoder = build_encoder(config.encoder_config) if encoder is None else encoder
        self.projections = nn.ModuleList(Projection(spec) for spec in config.projections)
        self.gate_head = GateHead(config, embedding_table(self.encoder).shape[1])
        self._tokenizer: PreTrainedTokenizerBase | None = None
        # By depth: the encoder's lower layers, once asked for, and what they were made of; so that no module counts twice.
        self._lower: dict[int, tuple[Any, PreTrainedModel | None]] = {}
        self._inner: InnerStates | None = None
        self._alone: TokensAlone | None = None
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

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)

    def _chosen(self, selector: str | None) -> list[int]:
        """Numbers of the selectors that are asked for: one by its name, or all."""
        return list(range(self.config.num_selectors)) if selector is None else [self.config.find_selector(selector)]

    def _encode(
        self,
        batch: TokenBatch,
        encoded: EncodedTokens | None = None,
        selectors: Sequence[int] | None = None,
        whole: bool = True,
        **outputs: bool,
    ) -> Encoding:
        """Token states and what these selectors read (all by default); only the latter matters if not `whole`."""
        if self.training and self._encoder_is_trained != any(p.requires_grad for p in self.encoder.parameters()):
            self.train()  # somebody thawed or froze the encoder, or put adapters into it, since
        lower = None
        if selectors is not None:
            selectors = self.gate_head.needed(selectors)
        if not whole:
            lower = self._lower_layers(range(self.config.num_selectors) if selectors is None else selectors)
        if self._inner is None or self._inner.encoder is not self.encoder:
            self._inner = InnerStates(self.encoder)
        alone = self._tokens_alone()
        return read_features(self.encoder, self.config, batch, self._inner, alone, encoded, lower, selectors, **outputs)

    def _tokens_alone(self) -> TokensAlone:
        if self._alone is None or self._alone.encoder is not self.encoder:
            self._alone = TokensAlone(self.encoder, self.config)
        return self._alone

    def remember_tokens(self) -> None:
        """Encode every token of the vocabulary alone, where a selector reads that ("alone"). A model does so by itself, for
        tokens that it meets; a graph that is compiled or exported cannot, and is bound to the weights and the device of the
        time of this call."""
        if self.config.reads("alone"):
            self._tokens_alone().remember_all()

    def _lower_layers(self, selectors: Sequence[int]) -> PreTrainedModel | None:
        """The encoder as far as these selectors read, if there are layers above and its family allows to leave them out."""
        if tracing():
            return None
        depth = depth_needed(self.config, selectors, self.encoder.config.num_hidden_layers)
        # A copy shares the modules and the attention function of its time.
        made_of = (self.encoder, self.get_input_embeddings(), self.encoder.config._attn_implementation)
        if depth not in self._lower or self._lower[depth][0] != made_of:
            self._lower[depth] = (made_of, lower_layers(self.encoder, depth))
        return self._lower[depth][1]

    def _probabilities(
        self, batch: TokenBatch, features: dict[str, Tensor], selectors: Sequence[int]
    ) -> tuple[Kumaraswamy, Tensor]:
        """The gates' distribution, and the probability of selection: (batch, selectors, length), 0 off content."""
        gate = self.gate_head(features, batch, selectors)
        return gate, gate.selection_probability(self.config.gate_threshold) * batch.content[:, None]

    def _gates(
        self,
        gate: Kumaraswamy,
        probs: Tensor,
        noise: Tensor | None,
        batch: TokenBatch,
        selectors: Sequence[int],
        rate: float | None,
    ) -> Tensor:
        """(batch, selectors, length), 0 off content: drawn in training; in eval by the threshold, or at a rate."""
        if not self.training:
            return self._decide(probs, batch, selectors, rate)
        if rate is not None:
            raise ValueError(f"rate={rate} selects in eval mode only, and the model trains; call model.eval() first.")
        if noise is None:
            noise = torch.rand_like(probs)
        elif noise.shape != probs.shape:
            raise ValueError(f"noise must be (batch, selectors, length) = {tuple(probs.shape)}, got {tuple(noise.shape)}.")
        return sample_gate(gate, noise, self.config.sampler, self.config.gate_threshold) * batch.content[:, None]

    def _decide(self, probs: Tensor, batch: TokenBatch, selectors: Sequence[int], rate: float | None) -> Tensor:
        """In eval: what passes the threshold, or the most probable tokens or words. A sentence always means something, so
        of a selector whose gates belong to words ("word") at least the most probable word is selected."""
        units = [self.config.of_selector("selector_unit", k) for k in selectors]
        if rate is None:
            return self._pass_threshold(probs, batch, [number for number, unit in enumerate(units) if unit == "word"])
        rows = []
        for unit, row in zip(units, probs.split(1, dim=1), strict=True):
            if unit == "token":
                rows.append(select_rate(row, batch.content[:, None], rate))
            else:
                rows.append(select_words(row, self._words(batch), batch.continues, rate))
        return torch.cat(rows, dim=1)

    def _pass_threshold(self, probs: Tensor, batch: TokenBatch, never_empty: list[int]) -> Tensor:
        """What passes the threshold; where nothing does, of the selectors `never_empty` the most probable word."""
        passed = (probs > self.config.decision_threshold).float()
        # A compiled graph always looks for the best word; else only where it is needed.
        if not never_empty or (not tracing() and bool(passed[:, never_empty].amax(-1).all())):
            return passed
        rows = list(passed.split(1, dim=1))
        for number in never_empty:
            best = select_best_word(probs[:, number : number + 1], self._words(batch), batch.continues)
            rows[number] = torch.where((rows[number] > 0).any(-1, keepdim=True), rows[number], best)
        return torch.cat(rows, dim=1)

    def _words(self, batch: TokenBatch) -> Tensor:
        """(batch, length) bool, the content tokens that are part of words, not of signs; all, where there is no word."""
        if batch.input_ids is None or self.gate_head.known_kinds is None:
            return batch.content
        written = ~is_sign(self.gate_head.known_kinds, batch.input_ids) & batch.content
        words = (batch.same_word @ written[..., None].float())[..., 0] > 0
        wordless = ~words.any(-1, keepdim=True)  # not by torch.where, which onnxruntime does not have for bools
        return words | (batch.content & wordless)

    def _pool_all(self, batch: TokenBatch, states: Tensor) -> Tensor:
        """Pool(H, m): (batch, 1, hidden)."""
        return pool(states, batch.mask[:, None], self.config.pooling_modes)

    def _anchor(self, pooled: Tensor) -> Tensor:
        """The encoder's own sentence embedding: (batch, dim)."""
        anchor = sentence_embedding(self, pooled)[:, 0]
        self._check_finite(anchor)
        return anchor

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


logger = logging.get_logger(__name__)

EMBEDDINGS = ("rationale", "complement", "anchor")


class HardKumaModel(HardKumaCore):
    """Gates over the tokens of a sentence encoder.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> out = model(**model.tokenizer(["Marie Curie moved to Paris."], return_tensors="pt"))
    >>> out.gates.shape, out.anchor_embedding.shape
    (torch.Size([1, 9]), torch.Size([1, 384]))
    """

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        special_tokens_mask: Tensor | None = None,
        surface_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        continues: Tensor | None = None,
        selector: str | None = None,
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
            surface_ids: (batch, length) word-shape classes, see words_hardkuma.py; 0 = unknown, no shift.
            inputs_embeds: (batch, length, size) instead of `input_ids`. Without ids nobody knows which tokens are special:
                pass `special_tokens_mask` with them.
            continues: (batch, length) true where a token goes on with the word of the token before; by default what the
                vocabulary says. Only selectors whose gates belong to words, or that read measures of words, look at it.
            selector: the name of one selector: the output is then its alone, without a selector axis.
            rate: select this fraction of each sentence's tokens, the most probable ones, instead of those above the model's
                own threshold; in (0, 1], in eval mode only. Counted in words where gates belong to words.
            return_loss: compute `loss` and `losses`; needs a global batch of at least 2.
            return_embeddings: False leaves out rationale and complement (which `reencode` pays for).
            output_attentions, output_hidden_states, return_dict: as in every transformers model.
            options: of a training loop, see [`TrainingOptions`].
        """
        unknown = options.keys() - TrainingOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"HardKumaModel.forward() got an unexpected keyword argument {sorted(unknown)[0]!r}.")
        config, return_rows = self.config, options.get("return_rows", False)
        batch = prepare(
            config,
            input_ids,
            attention_mask,
            token_type_ids,
            special_tokens_mask,
            surface_ids,
            inputs_embeds,
            continues,
            self.gate_head.known_kinds,
        )
        chosen = self._chosen(selector)
        if selector is not None and (return_loss or return_rows):
            raise ValueError(f"a loss is over all selectors: leave out selector={selector!r}.")
        if return_loss and len(batch.mask) * world_size() < 2:
            raise ValueError(
                "return_loss=True needs at least 2 sentences in the global batch, got 1: a contrastive loss compares "
                "sentences. Use a larger batch."
            )
        encoding = self._encode(
            batch,
            options.get("encoded"),
            chosen,
            output_hidden_states=bool(
                config.output_hidden_states if output_hidden_states is None else output_hidden_states
            ),
            output_attentions=bool(config.output_attentions if output_attentions is None else output_attentions),
        )
        states = encoding.states
        rationale = complement = losses = loss = None
        with without_autocast(states.device):  # which would do the gate's arithmetic in half precision
            gate, probs = self._probabilities(batch, encoding.features, chosen)
            gates = self._gates(gate, probs, options.get("noise"), batch, chosen, rate)
            pooled = self._pool_all(batch, states) if encoding.pooled is None else encoding.pooled
            anchor = self._anchor(pooled)
            if return_embeddings or return_loss or return_rows:
                embeddings = encoding.features.get("input")
                compared, rationale, complement = contrasted_embeddings(self, batch, states, embeddings, gates, pooled)
                if return_loss or return_rows:
                    log_odds = gate.selection_log_odds(config.gate_threshold)
                    rows = LossRows(batch.content, gates, probs, log_odds, compared, rationale, complement)
                    if return_rows:
                        return rows
                    loss, losses = self.losses_of(rows)
        one = len(chosen) == 1
        output = HardKumaOutput(
            loss=loss,
            losses=losses,
            last_hidden_state=batch.restore(states),
            gates=_without_axis(batch.restore(gates, dim=2), one),
            gate_probs=_without_axis(batch.restore(probs, dim=2), one),
            anchor_embedding=anchor,
            rationale_embedding=None if rationale is None else _without_axis(rationale, one),
            complement_embedding=None if complement is None else _without_axis(complement, one),
            alpha=_without_axis(batch.restore(gate.alpha, dim=2), one),
            beta=_without_axis(batch.restore(gate.beta, dim=2), one),
            hidden_states=_each(encoding.hidden_states, batch.restore),
            attentions=_each(encoding.attentions, lambda weights: batch.restore(batch.restore(weights, 2), 3)),
        )
        return_dict = config.return_dict if return_dict is None else return_dict
        return output.to_tuple() if return_dict is False else output

    @torch.no_grad()
    def gate_probabilities(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        special_tokens_mask: Tensor | None = None,
        surface_ids: Tensor | None = None,
        continues: Tensor | None = None,
        selector: str | None = None,
    ) -> Tensor:
        """`gate_probs` as `forward` gives them, (batch, [K,] length), and nothing else. Where the selector reads inner
        layers alone, the encoder stops there: cheaper than a sentence embedding.

        >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", selector_layer=4).eval()
        >>> inputs = model.tokenizer(["Marie Curie moved to Paris."], return_tensors="pt")
        >>> torch.equal(model.gate_probabilities(**inputs), model(**inputs).gate_probs)
        True
        """
        batch = prepare(
            self.config,
            input_ids,
            attention_mask,
            token_type_ids,
            special_tokens_mask,
            surface_ids,
            None,
            continues,
            self.gate_head.known_kinds,
        )
        chosen = self._chosen(selector)
        features = self._encode(batch, None, chosen, whole=False).features
        with without_autocast(features["state"].device):
            probs = self._probabilities(batch, features, chosen)[1]
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
            by side; where it reads attention, "attention" (batch, length, 2); and "anchor" (batch, dim), for the caller.

        >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", selector_layer=4).eval()
        >>> inputs = model.tokenizer(["Marie Curie moved to Paris."], return_tensors="pt")
        >>> encoded = model.encode_tokens(**inputs)
        >>> sorted(encoded), torch.equal(model(**inputs, encoded=encoded).gate_probs, model(**inputs).gate_probs)
        (['anchor', 'layer_states', 'states'], True)
        """
        batch = prepare(self.config, input_ids, attention_mask, token_type_ids, kinds=self.gate_head.known_kinds)
        encoding = self._encode(batch)
        anchor = self._anchor(self._pool_all(batch, encoding.states))
        encoded = EncodedTokens(states=batch.restore(encoding.states), anchor=anchor)
        inner = [encoding.features[state_name(layer)] for layer in self.config.inner_layers]
        if inner:
            encoded["layer_states"] = batch.restore(torch.cat(inner, dim=-1))
        if self.config.reads("attention"):
            encoded["attention"] = batch.restore(encoding.features["attention"])
        return encoded

    @torch.no_grad()
    def selector_inputs(
        self,
        selector: int,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        surface_ids: Tensor | None = None,
        continues: Tensor | None = None,
        encoded: EncodedTokens | None = None,
    ) -> Tensor:
        """What one selector reads of each token, (batch, length, size); where its gates belong to words, the mean over the
        tokens of each word. `gate_head.selectors[selector]` makes shapes of it: a frozen encoder needs to run only once.

        >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", selector_unit="word").eval()
        >>> inputs = model.tokenizer(["Marie Curie moved to Paris."], return_tensors="pt")
        >>> alpha, beta = model.gate_head.selectors[0](model.selector_inputs(0, **inputs))
        >>> bool(torch.allclose(alpha, model(**inputs).alpha, atol=1e-5))
        True
        """
        batch = prepare(
            self.config,
            input_ids,
            attention_mask,
            token_type_ids,
            None,
            surface_ids,
            None,
            continues,
            self.gate_head.known_kinds,
        )
        x = self.gate_head.join(selector, self._encode(batch, encoded, [selector]).features)
        return batch.restore(mean_over_words(batch.same_word) @ x if self.gate_head.by_word(selector) else x)

    def encode_subsets(self, input_ids: Tensor, attention_mask: Tensor, kept: Tensor) -> Tensor:
        """Sentence embeddings of chosen tokens alone, by running the encoder without the others; special tokens stay.

        Args:
            kept: (batch, sets, length), 1 on content tokens to keep.

        Returns:
            (batch, sets, dim), each as `SentenceTransformer.encode` would give it
        """
        batch = prepare(self.config, input_ids, attention_mask)
        content = batch.content[:, None].float()
        kept = batch.mask[:, None] * (1 - content) + content * batch.align(kept, dim=2)
        return sentence_embedding(self, pool_reencoded(self, batch, kept))

    def losses_of(self, rows: LossRows) -> tuple[Tensor, dict[str, Tensor]]:
        """The total loss and its unweighted terms, over the global batch of which `rows` are this process's share."""
        return objective(rows, self.config, self.gate_head.rate_multiplier, self.training)

    def gate_distribution(self, output: HardKumaOutput) -> Kumaraswamy:
        """The gates' distribution of an output, with `p_zero`, `p_one`, `mean`, ... per token (stretched sampler)."""
        config = self.config
        assert output.alpha is not None and output.beta is not None, "every forward pass gives them"
        return make_gate(output.alpha, output.beta, config.sampler, config.stretch_low, config.stretch_high)

    def gate_records(self, texts: list[str], **options: Any) -> list[Record]:
        """Words and spans of each text as plain JSON values; options of `words_hardkuma.gate_records`.

        >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
        >>> model.gate_records(["Marie moved."], rate=1.0)[0]["spans"][0]["text"]
        'Marie moved'
        """
        return gate_records(self, texts, **options)

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
        tokens = bool(self.config.output_hidden_states)
        # As in `forward`, without what nobody asked for: gates, the other embeddings, the layers that only they need.
        batch = prepare(self.config, input_ids, attention_mask, token_type_ids, kinds=self.gate_head.known_kinds)
        chosen = [] if embedding == "anchor" else [self.config.find_selector(selector)]
        whole = tokens or embedding == "anchor" or self.config.view == "hidden"
        encoding = self._encode(batch, None, chosen, whole=whole)
        with torch.autocast(device_type=encoding.states.device.type, enabled=False):
            if embedding == "anchor":
                anchor = self._anchor(self._pool_all(batch, encoding.states))
                return _sentence_features(anchor, batch.restore(encoding.states) if tokens else None)
            gate, probs = self._probabilities(batch, encoding.features, chosen)
            self._check_finite(probs.flatten(1))
            gates = self._gates(gate, probs, None, batch, chosen, rate) * batch.content[:, None]
            if embedding == "rationale" and not tracing() and bool((gates.sum(-1) == 0).any()):
                logger.warning_once(
                    "in some sentences no token passes the model's threshold: their rationale embeddings are all the same. "
                    "encode(texts, rate=0.5) selects tokens in every sentence."
                )
            weights = gates if embedding == "rationale" else 1 - gates
            embeddings = encoding.features.get("input")
            gated = gated_embeddings(self, batch, encoding.states, embeddings, weights).flatten(1)
        return _sentence_features(gated, batch.restore(encoding.states) if tokens else None)

    @torch.no_grad()
    def adapt_surface(self, batches: Iterable[dict[str, Any]]) -> Tensor:
        """Estimate the log-odds of the word-shape classes from this model's own gates on unlabelled text, in one pass.

        A class moves n / (n + surface_shrinkage) of the way from its old log-odds, n its number of tokens in this text.

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
            if self.config.of_selector("selector_unit", k) == "name":
                shifts[k] = capitals_against_lower(shifts[k])
        # Little text changes little: w of the way from the old value to that of this text.
        weights = statistics.weights(self.config.surface_shrinkage).to(self.device)
        self.gate_head.surface_log_odds.lerp_(shifts.to(self.device), weights)
        return self.gate_head.surface_log_odds.clone()


def _without_axis(tensor: Tensor, one: bool) -> Tensor:
    """(batch, K, ...) -> (batch, ...) where one selector is asked for or there is only one."""
    return tensor[:, 0] if one else tensor


def _sentence_features(embedding: Tensor, states: Tensor | None) -> dict[str, Any]:
    return {"embedding": embedding} if states is None else {"embedding": embedding, "hidden_states": (states,)}


def _each(tensors: tuple[Tensor, ...] | None, change: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...] | None:
    return None if tensors is None else tuple(change(tensor) for tensor in tensors)


class HardKumaForTokenClassification(HardKumaPreTrainedModel):
    """The same checkpoint for token-classification pipelines: labels `O` and `ENTITY`; softmax(logits) gives `gate_probs`.

    With several selectors the labels are those of one, "entities" by default, or the first. A folder brings its own
    pipeline for this task ([`GateClassificationPipeline`]); transformers' own, which it makes of a loaded model, takes the
    likelier label, so it decides at 1/2 whatever `decision_threshold` is.
    """

    hardkuma: HardKumaModel

    def __init__(self, config: HardKumaConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config)
        self.hardkuma = HardKumaModel(config, encoder)
        self.num_labels = 2
        self.register_load_state_dict_pre_hook(_add_base_prefix)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.hardkuma.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.hardkuma.set_input_embeddings(value)

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
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
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
            output_hidden_states=output_hidden_states,
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


def _add_base_prefix(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """`load_state_dict` of the classifier takes what it saves, which is the base model's: Trainer resumes with it."""
    inner = f"{prefix}{HardKumaPreTrainedModel.base_model_prefix}."
    for key in [key for key in state if key.startswith(prefix) and not key.startswith(inner)]:
        state[inner + key.removeprefix(prefix)] = state.pop(key)


HardKumaModel.register_for_auto_class("AutoModel")
HardKumaForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")
