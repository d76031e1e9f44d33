"""HardKuma: a sentence encoder, and on top of it gates that say which tokens carry the sentence's meaning.

    H = encoder(tokens)                     token states, attention mask m, content mask c (m without special tokens)
    alpha, beta = selector(H, ...)          one Kumaraswamy gate per content token
    g ~ HardKuma(alpha, beta)               relaxed in training; in eval the mask 1[P(g > t) > decision_threshold]
    anchor, rationale, complement           Pool(H, m), Pool(., m g), Pool(., m (1 - g)), from one of three views
    loss = L_rat - lambda_cmp L_cmp + lambda_s sparsity + lambda_tv TV + lambda_e constraint (+ lambda_kl KL)

The steps up to the gates are in core_hardkuma.py, the distribution in gates_hardkuma.py, the selector in
selectors_hardkuma.py, what it reads in features_hardkuma.py, the views in pooling_hardkuma.py, the terms of the loss in
losses_hardkuma.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import TokenClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import logging

from .configuration_hardkuma import ENTITIES, HardKumaConfig
from .core_hardkuma import HardKumaCore
from .gates_hardkuma import Kumaraswamy, make_gate
from .inputs_hardkuma import content_mask, prepare, to_device, tracing, without_autocast
from .layers_hardkuma import state_name
from .losses_hardkuma import LossRows, objective, world_size
from .outputs_hardkuma import EncodedTokens, HardKumaOutput, TrainingOptions
from .pairs_hardkuma import explain_pair
from .pooling_hardkuma import contrasted_embeddings, gated_embeddings, pool_reencoded, sentence_embedding
from .pretrained_hardkuma import HardKumaPreTrainedModel
from .records_hardkuma import Record
from .selectors_hardkuma import mean_over_words
from .surface_hardkuma import SurfaceStatistics, capitals_against_lower
from .words_hardkuma import gate_records

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
            surface_ids: (batch, length) word-shape classes, see surface_hardkuma.py; 0 = unknown, no shift.
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
