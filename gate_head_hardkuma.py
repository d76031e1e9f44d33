"""The gate head: a small network per selector from what it reads of a word to the word's gate.

In fp32 whatever the model's dtype. Everything is over words, (batch, selectors, slots): a selector whose unit is the token
has every token as a word of its own. `WordGates.spread` goes back to tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batch_hardkuma import PUNCTUATION, TokenBatch
from .configuration_hardkuma import HardKumaConfig, SelectorConfig
from .decision_hardkuma import WordRows, decide, share_gates
from .encoder_hardkuma import Encoded, FullPrecisionLinear
from .features_hardkuma import WordFeatures, feature_sizes
from .kumaraswamy_hardkuma import Kumaraswamy, log1mexp, make_gate
from .words_hardkuma import NUM_SURFACE_CLASSES, capitals_speak


class Selector(nn.Module):
    """(alpha_w, beta_w) = bound(softplus(W2 gelu(W1 x_w) + W3 z_w)), where z_w are the measures among x_w.

    Measures are standardised by stored means and spreads. They reach the hidden layer and, by W3, the gate directly.

    >>> selector = Selector(HardKumaConfig(), inputs=4, measures=2, hidden_size=8)
    >>> alpha, beta = selector(selector.join([torch.randn(2, 5, 4)], torch.randn(2, 5, 2)))
    >>> alpha.shape, bool((alpha > 1).all() and (beta < 10).all())
    (torch.Size([2, 5]), True)
    """

    center: Tensor
    spread: Tensor

    def __init__(self, config: HardKumaConfig, inputs: int, measures: int = 0, hidden_size: int = 128):
        super().__init__()
        self.config, self.measures, self.dropout = config, measures, 0.0
        self.hidden = FullPrecisionLinear(inputs + measures, hidden_size)
        self.shapes = FullPrecisionLinear(hidden_size, 2)
        if measures:
            self.direct = FullPrecisionLinear(measures, 2)
            self.register_buffer("center", torch.zeros(measures))
            self.register_buffer("spread", torch.ones(measures))

    def join(self, vectors: Sequence[Tensor], measures: Tensor | None = None) -> Tensor:
        """x: all that it reads of words side by side, (..., slots, inputs + measures), fp32."""
        parts = [vector.float() for vector in vectors]
        if measures is not None:
            # Of a sentence of two words, one is worth more than any spread: far values grow like their logarithm.
            parts.append(torch.asinh((measures.float() - self.center.float()) / self.spread.float()))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Concentrations alpha, beta of the gates, (..., slots) each, from x as `join` gives it."""
        outputs = self.shapes(F.dropout(F.gelu(self.hidden(x)), self.dropout, self.training))
        if self.measures:
            outputs = outputs + self.direct(x[..., x.shape[-1] - self.measures :])
        alpha, beta = self._bound(outputs).unbind(-1)
        return alpha, beta

    def _bound(self, x: Tensor) -> Tensor:
        """Concentrations in [min, max]; see `concentration_bound` in the configuration."""
        low, high, s = self.config.concentration_min, self.config.concentration_max, F.softplus(x)
        if self.config.concentration_bound == "clamp":
            return (s + low).clamp_max(high)
        return low + (high - low) * s / (high - low + s)


@dataclass
class WordGates:
    """The gates of some selectors over the words of a batch.

    Attributes:
        gate: their distribution, (batch, selectors, slots).
        content: (batch, selectors, slots) bool, the words that can be selected.
        index: (batch, selectors, length) the slot of each token's word.
        written: (batch, selectors, slots) bool, content words that have a letter or digit; all, where there is none.
        roles: (batch, selectors, slots) of words, see `word_role`; 0 where the unit is a token.
        isolated: for each selector what its words mean by themselves, (batch, slots, directions) of length 1; None where
            it does not matter.
    """

    gate: Kumaraswamy
    content: Tensor
    index: Tensor
    written: Tensor
    roles: Tensor
    isolated: list[Tensor | None]

    def probabilities(self, threshold: float) -> Tensor:
        """(batch, selectors, slots) of selection, 0 off content."""
        return self.gate.selection_probability(threshold) * self.content

    def spread(self, values: Tensor) -> Tensor:
        """(batch, selectors, slots) of words -> (batch, selectors, length) of tokens."""
        return values.gather(-1, self.index)

    def decide(
        self, probs: Tensor, selectors: Sequence[SelectorConfig], threshold: float, rate: float | None = None
    ) -> Tensor:
        """Which words are selected, (batch, selectors, slots) of 0 and 1, by the rule of decision_hardkuma.py.

        Args:
            probs: (batch, selectors, slots) of selection.
            threshold: the model's own.
        """
        chosen = []
        for k, selector in enumerate(selectors):
            weights, among, isolated = probs[:, k], self.written[:, k], self.isolated[k]
            if isolated is not None and rate is None:
                weights = share_gates(weights, isolated, among, selector.like_cosine)
            # Punctuation is a word here that is never selected: it parts those around it.
            words = WordRows(probs[:, k], weights, among, self.roles[:, k], torch.ones_like(among))
            chosen.append(decide(words, selector, threshold, rate))
        return torch.stack(chosen, dim=1).to(probs.dtype)


class GateHead(nn.Module):
    """All selectors, and the small state that belongs to them: what is trained where the encoder is frozen.

    Buffers:
        input_center: (input_size,) what the `input` view subtracts from input embeddings.
        rate_multiplier: (K,) Lagrange multiplier of the selection rate; moved by training alone.
        surface_log_odds: (K, classes) shift of the gate's logit by the class of the word's form.
        rate_shift: (K,) log-odds added to all gates of a selector: its rate, set at the end of training without changing
            the order of words.
        token_roles: (vocabulary,) which tokens start a word, go on with one, or are punctuation, where gates belong to
            words.
        isolated_table: (vocabulary, directions) int8, isolated_scale: (vocabulary,), isolated_directions: (hidden,
            directions): what each token means by itself, where a selector reads that. Row t times its scale is e_t V, with
            V the directions; `build_isolated_table` of the model fills it.
    """

    input_center: Tensor
    rate_multiplier: Tensor
    surface_log_odds: Tensor
    rate_shift: Tensor
    token_roles: Tensor
    isolated_table: Tensor
    isolated_scale: Tensor
    isolated_directions: Tensor

    def __init__(self, config: HardKumaConfig, input_size: int):
        super().__init__()
        self.config = config
        self.selectors = nn.ModuleList()
        for selector in config.selectors.values():
            inputs, measures = feature_sizes(config, selector, input_size)
            self.selectors.append(Selector(config, inputs, measures, selector.hidden_size))
        number = config.num_selectors
        self.register_buffer("input_center", torch.zeros(input_size))
        self.register_buffer("rate_multiplier", torch.zeros(number))
        self.register_buffer("surface_log_odds", torch.zeros(number, NUM_SURFACE_CLASSES))
        self.register_buffer("rate_shift", torch.zeros(number))
        if any(selector.unit != "token" for selector in config.selectors.values()):
            self.register_buffer("token_roles", torch.zeros(config.vocab_size, dtype=torch.uint8))
        if config.reads("isolated"):
            size = min(config.isolated_size, config.hidden_size)
            self.register_buffer("isolated_table", torch.zeros(config.vocab_size, size, dtype=torch.int8))
            self.register_buffer("isolated_scale", torch.zeros(config.vocab_size))
            self.register_buffer("isolated_directions", torch.zeros(config.hidden_size, size))

    @property
    def roles(self) -> Tensor | None:
        """`token_roles`, where gates belong to words."""
        return getattr(self, "token_roles", None)

    def resize_vocabulary(self, size: int) -> None:
        """Follow an encoder whose vocabulary was changed: new tokens start a word and mean nothing by themselves."""
        for name in ("token_roles", "isolated_table", "isolated_scale"):
            old = getattr(self, name, None)
            if old is not None and len(old) != size:
                new = old.new_zeros(size, *old.shape[1:])
                new[: len(old)] = old[:size]
                setattr(self, name, new)

    def look_up_isolated(self, input_ids: Tensor, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of isolated tokens, and the pooled states of sentences, in the directions of the table.

        Args:
            input_ids: (batch, length).
            pooled: (batch, 1, hidden) of length 1.

        Returns:
            (batch, length, directions) and (batch, 1, directions), fp32
        """
        return self.isolated_rows(input_ids), pooled @ self.isolated_directions.float()

    def isolated_rows(self, input_ids: Tensor) -> Tensor:
        """(..., directions) fp32, what each token means by itself."""
        return F.embedding(input_ids, self.isolated_table).float() * self.isolated_scale.float()[input_ids][..., None]

    def needed(self, selectors: Sequence[int]) -> list[int]:
        """These selectors, and behind them those without which they cannot be had: for a part meaning and all parts, for
        one with a back-off meaning."""
        parts = self.config.parts
        others = [self.config.find_selector(), *parts] if set(parts) & set(selectors) else []
        if any(self.config.selector(k).backoff for k in selectors):
            others.append(self.config.find_selector())
        return list(dict.fromkeys([*selectors, *others]))

    def selector_inputs(self, number: int, features: WordFeatures) -> Tensor:
        """x: what one selector reads of each word, (batch, slots, inputs + measures)."""
        config, reader = self.config.selector(number), self._reader(number)
        return reader.join(features.vectors(config), features.measures(config))

    def log_odds(self, number: int, x: Tensor) -> Tensor:
        """What is trained: log-odds of selection (...), before any shift, from what a selector reads, x (..., size)."""
        return self._gate(*self._reader(number)(x)).selection_log_odds(self.config.gate_threshold)

    def features(
        self,
        encoded: Encoded,
        batch: TokenBatch,
        selectors: Sequence[int],
        input_embeddings: Callable[[Tensor], Tensor] | None = None,
    ) -> list[WordFeatures]:
        """What each of these selectors may read; the same object for selectors of one unit, all with as many slots.

        Args:
            encoded: the encoder's pass, with the layers that these selectors read.
            input_embeddings: those of token ids, where a selector reads "input".
        """
        isolated = self.look_up_isolated if hasattr(self, "isolated_table") else None
        units = ["token" if self.config.selector(k).unit == "token" else "word" for k in selectors]
        slots = batch.mask.shape[1] + 1 if "token" in units else None
        of_units = {
            unit: WordFeatures(self.config, encoded, batch, batch.words(unit, slots), isolated, input_embeddings)
            for unit in dict.fromkeys(units)
        }
        return [of_units[unit] for unit in units]

    def forward(
        self,
        encoded: Encoded,
        batch: TokenBatch,
        selectors: Sequence[int],
        input_embeddings: Callable[[Tensor], Tensor] | None = None,
    ) -> WordGates:
        """The gates of these selectors, in this order; arguments as of `features`, whose layers are those of `needed`."""
        needed, number = self.needed(selectors), len(selectors)
        features = self.features(encoded, batch, needed, input_embeddings)
        read = [self._reader(k)(self.selector_inputs(k, feature)) for k, feature in zip(needed, features, strict=True)]
        alpha, beta = (torch.stack(rows, dim=1) for rows in zip(*read, strict=True))  # (batch, needed, slots)
        before = self._gate(alpha, beta).selection_log_odds(self.config.gate_threshold)
        shift = self.rate_shift.float()[needed][:, None].expand_as(before)
        if set(self.config.parts) & set(needed):
            shift = shift + self._divide_meaning(before, needed)
        content = torch.stack([feature.content for feature in features], dim=1)
        shift = shift + self._back_off(before + shift, content, needed)
        # What was only needed for others has done its work.
        alpha, beta, before, shift, content = (tensor[:, :number] for tensor in (alpha, beta, before, shift, content))
        features = features[:number]
        if batch.surface_ids is not None:
            shift = shift + self._view_surface(batch.surface_ids, features, selectors)
        gate = self._gate(alpha, beta).shift_logit(shift, self.config.gate_threshold, before)
        index = torch.stack([feature.words.index for feature in features], dim=1)
        written = self._written(batch, features, selectors, content)
        pairs = list(zip(selectors, features, strict=True))
        roles = torch.stack([self._roles(batch, feature, k) for k, feature in pairs], dim=1)
        return WordGates(gate, content, index, written, roles, [self._isolated(k, feature) for k, feature in pairs])

    def _back_off(self, log_odds: Tensor, content: Tensor, selectors: Sequence[int]) -> Tensor | float:
        """(batch, K, slots) shifts by which words that carry the sentence gain where the gates find little:
        backoff * (1 - largest gate of the sentence) * log-odds of meaning."""
        weights = [self.config.selector(k).backoff for k in selectors]
        if not any(weights):
            return 0.0
        meaning = log_odds[:, selectors.index(self.config.find_selector())][:, None]
        largest = (torch.sigmoid(log_odds) * content).amax(-1, keepdim=True)
        return log_odds.new_tensor(weights)[:, None] * (1 - largest) * meaning * content

    def _roles(self, batch: TokenBatch, features: WordFeatures, selector: int) -> Tensor:
        """(batch, slots) of words: that of a word's token, where it has only one."""
        if batch.roles is None or self.config.selector(selector).unit == "token":
            return torch.zeros_like(features.content, dtype=torch.uint8)
        alone = features.words.sum(torch.ones_like(batch.roles).float()) == 1
        return features.words.first(batch.roles) * (alone & (features.words.first(batch.roles) > PUNCTUATION))

    def _isolated(self, selector: int, features: WordFeatures) -> Tensor | None:
        """(batch, slots, directions) what words mean by themselves, where the selector's decision asks for it."""
        wanted = self.config.selector(selector).share is not None and hasattr(self, "isolated_table")
        return features.isolated() if wanted else None

    def _view_surface(self, surface_ids: Tensor, features: Sequence[WordFeatures], selectors: Sequence[int]) -> Tensor:
        """(batch, K, slots) log-odds of the words' written forms; none in titles and shouted texts."""
        shifts = []
        for k, feature in zip(selectors, features, strict=True):
            log_odds = self.config.selector(k).form_weight * self.surface_log_odds[k].float()
            forms = feature.words.first(surface_ids)
            shifts.append(log_odds[forms] * capitals_speak(forms))
        return torch.stack(shifts, dim=1)

    def _written(
        self, batch: TokenBatch, features: Sequence[WordFeatures], selectors: Sequence[int], content: Tensor
    ) -> Tensor:
        """(batch, K, slots) bool, content words with a letter or digit; all content where there is none, and all tokens of
        selectors of tokens."""
        if batch.roles is None:
            return content
        letters = ((batch.roles != PUNCTUATION) & batch.content).float()
        written = torch.stack([feature.words.sum(letters) > 0 for feature in features], dim=1)
        tokens = content.new_tensor([self.config.selector(k).unit == "token" for k in selectors])[:, None]
        anything = ~written.any(-1, keepdim=True) | tokens
        return content & (written | anything)  # not by torch.where, which onnxruntime does not have for bools

    def _reader(self, number: int) -> Selector:
        reader = self.selectors[number]
        assert isinstance(reader, Selector)
        return reader

    def _gate(self, alpha: Tensor, beta: Tensor) -> Kumaraswamy:
        config = self.config
        return make_gate(alpha, beta, config.sampler, config.stretch_low, config.stretch_high)

    def _divide_meaning(self, log_odds: Tensor, selectors: Sequence[int]) -> Tensor:
        """(batch, K, slots) shifts of the log-odds that make of each part's gate a share of the gate of meaning, so that
        all parts together select what `meaning` does. With l the log-odds as read,

            p(part k selects w) = p(meaning selects w) exp(l_k) / sum_j exp(l_j)
        """
        meaning = self.config.find_selector()
        selected = log_odds[:, selectors.index(meaning)] + self.rate_shift.float()[meaning]
        parts = [k for k in selectors if k in self.config.parts]
        shares = log_odds[:, [selectors.index(k) for k in parts]].log_softmax(1)
        log_probs = (F.logsigmoid(selected)[:, None] + shares).clamp_max(-1e-6)
        wanted = log_probs - log1mexp(-log_probs)
        none = torch.zeros_like(log_odds[:, 0])
        return torch.stack(
            [wanted[:, parts.index(k)] - log_odds[:, i] if k in parts else none for i, k in enumerate(selectors)], dim=1
        )
