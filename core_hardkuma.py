"""The core of the model: encoder, projections and gate head, and the steps from tokens to gates that all calls share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .alone_hardkuma import TokensAlone
from .configuration_hardkuma import HardKumaConfig
from .encoders_hardkuma import Projection, build_encoder, embedding_table
from .features_hardkuma import Encoding, InnerStates, depth_needed, lower_layers, read_features
from .gates_hardkuma import Kumaraswamy, sample_gate, select_best_word, select_rate, select_words
from .inputs_hardkuma import TokenBatch, is_sign, tracing
from .outputs_hardkuma import EncodedTokens
from .pooling_hardkuma import pool, sentence_embedding
from .pretrained_hardkuma import HardKumaPreTrainedModel
from .selectors_hardkuma import GateHead


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
