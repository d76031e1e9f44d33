"""The gate head: a small network per selector from what it reads of a word to the word's gate, and the decision.

The network is in fp32 whatever the model's dtype. Everything is over words, (batch, selectors, slots): a selector whose
unit is the token has every token as a word of its own. `WordGates.spread` goes back to tokens.

Which words are selected is one rule, for tensors and for texts (`decide`). By itself a selector of words with a `share`
decides like this:

1. **The right amount.** Words in the order of their gates p, until they hold `share` of the sum: few where few words carry
   the text, more where many do; at least two, and at least `least_rate` of the words. Function words take part where their
   gate passes the model's threshold; a text of function words alone has no answer.
2. **Whole phrases.** What two words say alike, a sum of scores credits to both by halves, and both lose: the parts of a
   phrase above all. So like words share their gates. With u_w what word w means by itself (the table of isolated tokens),
   c = `like_cosine` and the sum over the 64 other words of largest gate,

       s_w = p_w + sum_v p_v max(0, (cos(u_w, u_v) - c) / (1 - c))

   Neighbours with s >= `phrase_gate` join a selected word, and so does an `of` (or `van`, `de`) between two words of a
   phrase. A negation belongs to what it denies: it is selected with a selected word that follows it at a distance of three
   words or less, and with what is in between. Punctuation ends a phrase.

A rate takes the most probable words, function words last (where `function_words` is true they are words like others). A
threshold takes every word above it. A selector of names takes names whole in every case: neighbours above .7 of the
model's threshold, of which one passes it.

With `keep=0.8` the answer is the fewest words S with kept(S) >= 0.8, verified by encoding them (`keep_words`):

    kept(S) = cos(anchor, encoder on the words S alone)        lost(S) = 1 - cos(anchor, encoder without the words S)

Words are ranked by their gates, a negation at the place of what it denies, and the shortest prefix of that ranking is
searched in packed passes of three prefixes each: a quarter of the interval is left after every one, so that three passes do
for 64 words. The first of them encodes the anchor, too. A word may say what those before it have said, so one more pass
tries to do without one of the last five. Before these passes comes one for the gates, behind them one for kept and lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from .batch_hardkuma import PUNCTUATION, TokenBatch
from .configuration_hardkuma import HardKumaConfig, SelectorConfig
from .encoder_hardkuma import Encoded, FullPrecisionLinear
from .features_hardkuma import WordFeatures, feature_sizes
from .kumaraswamy_hardkuma import Kumaraswamy, log1mexp, make_gate
from .words_hardkuma import LINK, NEGATION, NUM_SURFACE_CLASSES, Span, WordIndex, capitals_speak

NAME_SHARE = 0.7  # of the threshold; chosen by F1 on WNUT17 dev: .777 as written, .764 in lower case; .5 has .763, .762
LEAST = 2  # words of an answer, where there are so many
DENIED = 3  # how far before a selected word a negation may stand
SHARING = 64  # words of largest gate that share theirs: linear in the length
# 0.1 * 30 is a little more than 3, in single precision a little more than in double; 3 it shall be in both.
BELOW = 1 - 1e-6
PREFIXES = 3  # of a pass that searches for the words to keep
SPARED = 5  # of the last words of the prefix one may go: 8% fewer words


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
        roles: (batch, selectors, slots) of words, see `Language.word_role`; 0 where the unit is a token.
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
        """Which words are selected, (batch, selectors, slots) of 0 and 1, by the rule at the top of this file.

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


# ---- which words are selected ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WordRows:
    """Words as a decision sees them, those of a text in a row; all (batch, words).

    Attributes:
        probs: their gates.
        weights: gates that like words share (`share_gates`); `probs` where nothing is known of what words mean.
        among: bool, the words that can be selected.
        roles: see `Language.word_role`; 0 for a content word.
        joins: bool, whether a word may be of one phrase with the word before it.
    """

    probs: Tensor
    weights: Tensor
    among: Tensor
    roles: Tensor
    joins: Tensor


def share_gates(probs: Tensor, vectors: Tensor, among: Tensor, like_cosine: float) -> Tensor:
    """s of the second rule, (batch, words).

    Args:
        probs: (batch, words) gates.
        vectors: (batch, words, size) of length 1, what each word means by itself.
        among: (batch, words) bool, the words that take part.

    >>> vectors = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    >>> share_gates(torch.tensor([[0.3, 0.2, 0.4]]), vectors, torch.ones(1, 3, dtype=torch.bool), 0.4)
    tensor([[0.5000, 0.5000, 0.4000]])
    """
    gates = probs * among
    top, place = gates.topk(min(SHARING, probs.shape[-1]), dim=-1)  # (batch, top)
    others = vectors.gather(1, place[..., None].expand(-1, -1, vectors.shape[-1]))
    like = ((vectors @ others.transpose(1, 2) - like_cosine) / (1 - like_cosine)).clamp(0.0, 1.0)  # (batch, words, top)
    itself = place[:, None] == torch.arange(probs.shape[-1], device=probs.device)[:, None]
    return probs + among * (like * ~itself * top[:, None]).sum(-1)


def decide(
    words: WordRows,
    selector: SelectorConfig,
    own_threshold: float,
    rate: float | None = None,
    threshold: float | None = None,
    phrases: bool = False,
) -> Tensor:
    """Which words are selected, (batch, words) bool: by the selector's own rule, at a rate, or above a threshold.

    Args:
        own_threshold: the model's.
        phrases: complete phrases at a rate or threshold too.
    """
    if rate is not None and not 0 < rate <= 1:
        raise ValueError(f"rate must be a fraction in (0, 1], got {rate}.")
    of_words = selector.unit in ("word", "name")
    demotes = of_words and not selector.function_words
    content = words.among & ((words.roles == 0) | (words.probs > own_threshold)) if demotes else words.among
    if selector.unit == "name":
        likely = content & (words.probs > own_threshold * NAME_SHARE)
        runs = _runs(_with_links(likely, words), words.joins)
        # Of a run that nothing passes every word is by itself, and so is every word of no run.
        runs = torch.where(_any_of(runs, words.probs > own_threshold), runs, 0)
        if rate is not None:
            return _best_names(words, content, runs, rate)
        bar = own_threshold if threshold is None else threshold
        chosen = words.among & (words.probs > bar)
        return _complete(chosen, chosen | _any_of(runs, chosen), words)
    by_share = selector.share is not None and rate is None and threshold is None
    if rate is not None:
        chosen = _best(words, content, _count(words.among, rate))
    elif threshold is not None:
        chosen = words.among & (words.probs > threshold)
    elif by_share:
        least = _count(words.among, selector.least_rate).clamp_min(LEAST)
        chosen = _largest_share(words.probs * content, content, float(selector.share or 0), least)
    else:
        chosen = words.among & (words.probs > own_threshold)
        if selector.unit == "word":  # a sentence always means something
            nothing = ~chosen.any(-1, keepdim=True) & content.any(-1, keepdim=True)
            chosen = chosen | (nothing & _best(words, content, torch.ones_like(words.among[:, :1], dtype=torch.long)))
    if selector.unit == "word" and demotes and rate is None and threshold is None:
        chosen = chosen & (words.among & (words.roles == 0)).any(-1, keepdim=True)
    if (by_share or phrases) and of_words:
        likely = chosen | (content & (words.weights >= selector.phrase_gate))
        whole = chosen | _any_of(_runs(_with_links(likely, words), words.joins), chosen)
        chosen = _complete(chosen, _with_negations(whole, words), words)
    return chosen


def _complete(chosen: Tensor, whole: Tensor, words: WordRows) -> Tensor:
    """The selected words in whole phrases, but not where that is all of a text of four words or more: words that the
    encoder does not know, in another language, are all alike to it."""
    everything = (whole | ~words.among).all(-1, keepdim=True) & (words.among.sum(-1, keepdim=True) >= 2 * LEAST)
    return chosen | (whole & ~everything)


def count_at_rate(number: int, rate: float) -> int:
    """How many of `number` words (or tokens) a rate selects: rounded up, so that at least one is.

    >>> count_at_rate(10, 0.2), count_at_rate(11, 0.2), count_at_rate(0, 0.2)
    (2, 3, 0)
    """
    return math.ceil(rate * BELOW * number)


def _count(among: Tensor, rate: float) -> Tensor:
    """(batch, 1) `count_at_rate` of the words of each row."""
    return (rate * BELOW * among.sum(-1, keepdim=True)).ceil().long()


def _ranks(key: Tensor) -> Tensor:
    """(batch, words) the place of each word in the order of a key, largest first; of equal words the first comes first."""
    return _order(key).argsort(dim=-1)


def _order(key: Tensor) -> Tensor:
    """(batch, words) the numbers of the words, largest key first; of equal words the first comes first."""
    if torch.onnx.is_in_onnx_export():  # it has no stable sort, but TopK, which keeps the order of equals
        return key.sort(dim=-1, descending=True).indices
    return key.sort(dim=-1, descending=True, stable=True).indices


def _best(words: WordRows, content: Tensor, count: Tensor) -> Tensor:
    """The `count` (batch, 1) most probable words; those that are not content come last."""
    key = (words.probs + content).masked_fill(~words.among, -1.0)
    return words.among & (_ranks(key) < count)


def _best_names(words: WordRows, content: Tensor, runs: Tensor, rate: float) -> Tensor:
    """The most probable words and whole names, until there are as many words as the rate asks for."""
    key = (words.probs + content).masked_fill(~words.among, -1.0)
    ranks = _ranks(torch.where(runs > 0, _largest_of(runs, key), key))  # words of a name stand together: one key
    first = torch.where(runs > 0, -_largest_of(runs, -ranks), ranks)
    return words.among & (first < _count(words.among, rate))


def _largest_share(weights: Tensor, content: Tensor, share: float, least: Tensor) -> Tensor:
    """The fewest words that hold this share of their row's weights, at least `least` (batch, 1) of those with content."""
    order = _order(weights)
    ordered, rank = weights.gather(-1, order), order.argsort(dim=-1)
    before = ordered.cumsum(-1) - ordered
    enough = (before < share * BELOW * ordered.sum(-1, keepdim=True)).gather(-1, rank)
    return content & (enough | (rank < least))


def _shift(values: Tensor, places: int) -> Tensor:
    """(batch, words) what stood so many places before; from behind, if negative. Nothing comes in at the edge."""
    rolled = values.roll(places, dims=-1)
    place = torch.arange(values.shape[-1], device=values.device)
    return rolled & ((place >= places) if places > 0 else (place < values.shape[-1] + places))


def _with_links(member: Tensor, words: WordRows) -> Tensor:
    """These words and the one or two links (`of`, `van der`) between two of them."""
    link, joins = (words.roles == LINK) & words.among & ~member, words.joins
    before = joins & (_shift(member, 1) | (_shift(link & joins, 1) & _shift(member, 2)))
    after = _shift(joins & member, -1) | (_shift(joins & link, -1) & _shift(joins & member, -2))
    return member | (link & before & after)


def _with_negations(chosen: Tensor, words: WordRows) -> Tensor:
    """The selected words, and negations of them with what lies between."""
    open_negation = (words.roles == NEGATION) & words.among
    joined, result = torch.ones_like(chosen), chosen
    for distance in range(1, DENIED + 1):
        joined = joined & _shift(words.joins, -distance)
        denying = open_negation & joined & _shift(chosen, -distance)
        open_negation = open_negation & ~denying
        for step in range(distance):
            result = result | _shift(denying, step) if step else result | denying
    return result


def _runs(member: Tensor, joins: Tensor) -> Tensor:
    """(batch, words) the number of the run of neighbours that a word belongs to, from 1; 0 for no member."""
    starts = member & ~(_shift(member, 1) & joins)
    return starts.long().cumsum(-1) * member


def _largest_of(runs: Tensor, values: Tensor) -> Tensor:
    """(batch, words) the largest value of each word's run."""
    slots = torch.zeros_like(torch.cat([values, values[:, :1]], dim=1))
    return slots.scatter_reduce(1, runs, values, "amax", include_self=False).gather(1, runs)


def _any_of(runs: Tensor, values: Tensor) -> Tensor:
    """(batch, words) bool, whether a value of the word's run is true; false outside of runs."""
    return (runs > 0) & (_largest_of(runs, values.long()) > 0)


# ---- what words keep of a text's embedding ----------------------------------------------------------------------------


class TextModel(Protocol):
    """What is needed of a model to give it texts."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...

    @property
    def max_length(self) -> int: ...

    @property
    def device(self) -> torch.device: ...


@runtime_checkable
class SubsetModel(TextModel, Protocol):
    """A model that encodes tokens without the others; a `HardKumaModel` does."""

    def encode_subsets(self, input_ids: Tensor, attention_mask: Tensor, kept: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Kept:
    """A verified answer for one text.

    Attributes:
        chosen: whether each word is selected.
        kept: cosine of these words' own embedding with the text's.
        lost: 1 - cosine of what is left without them.
    """

    chosen: list[bool]
    kept: float
    lost: float


class WordSubsets:
    """Some texts, tokenised, and what subsets of their words keep."""

    def __init__(self, model: SubsetModel, texts: Sequence[str], words: Sequence[Sequence[Span]]):
        self.model = model
        encoded = model.tokenizer(
            list(texts),
            truncation=True,
            max_length=model.max_length,
            padding=True,
            return_tensors="pt",
            return_offsets_mapping=True,
        )
        index = WordIndex(words, [len(text) for text in texts])
        starts, ends = encoded["offset_mapping"].unbind(-1)
        first, count = index.touched(torch.arange(len(texts)), starts, ends)
        self.size = max(map(len, words), default=0)
        # (batch, length) the number of each token's word in its text; the last slot for tokens of no word.
        self._words = torch.where(count > 0, first - torch.tensor(index.firsts[:-1])[:, None], self.size)
        self._inputs = encoded["input_ids"].to(model.device), encoded["attention_mask"].to(model.device)
        self._anchor: Tensor | None = None  # (batch, 1, dim), of the first pass

    def _encode(self, tokens: Tensor) -> Tensor:
        """(batch, sets, dim) of length 1, from tokens (batch, sets, length) bool."""
        vectors = self.model.encode_subsets(*self._inputs, tokens.to(self.model.device)).float().cpu()
        return F.normalize(vectors, dim=-1)

    def kept(self, chosen: Tensor) -> Tensor:
        """(batch, sets) of the words `chosen`, (batch, sets, size) bool."""
        return self._cosines(self._tokens(chosen))

    def kept_and_lost(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, sets) each, in one pass."""
        tokens = self._tokens(chosen)
        kept, left = self._cosines(torch.cat([tokens, ~tokens], dim=1)).chunk(2, dim=1)
        return kept, 1 - left

    def _tokens(self, chosen: Tensor) -> Tensor:
        """(batch, sets, length) those of the chosen words."""
        padded = torch.cat([chosen, torch.zeros_like(chosen[..., :1])], dim=-1)
        return padded.gather(-1, self._words[:, None].expand(-1, chosen.shape[1], -1))

    def _cosines(self, tokens: Tensor) -> Tensor:
        if self._anchor is None:
            vectors = self._encode(torch.cat([torch.ones_like(tokens[:, :1]), tokens], dim=1))
            self._anchor, vectors = vectors[:, :1], vectors[:, 1:]
        else:
            vectors = self._encode(tokens)
        return (vectors * self._anchor).sum(-1).clamp(-1.0, 1.0)


def subset_batches(
    model: SubsetModel, texts: Sequence[str], words: Sequence[Sequence[Span]], batch_size: int = 32
) -> Iterator[tuple[list[int], WordSubsets]]:
    """Texts of like length together: their numbers, and what subsets of their words keep."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for first in range(0, len(order), batch_size):
        numbers = order[first : first + batch_size]
        yield numbers, WordSubsets(model, [texts[i] for i in numbers], [words[i] for i in numbers])


@torch.inference_mode()
def keep_words(
    model: SubsetModel,
    texts: Sequence[str],
    words: Sequence[Sequence[Span]],
    ranks: Sequence[Sequence[int]],
    keep: float,
    batch_size: int = 32,
) -> list[Kept]:
    """The fewest words of each text that keep a cosine of `keep`, as the search finds them: the shortest prefix of its
    ranking, without one of its last words if that keeps enough; all words where no prefix does.

    Args:
        words: (start, end) of the words of each text, at least one.
        ranks: the place of each word in the ranking, 0 for the best; words at one place come together.

    >>> from hardkuma import load_released
    >>> model, _ = load_released()
    >>> found = keep_words(model, ["Marie Curie moved"], [[(0, 5), (6, 11), (12, 17)]], [[1, 0, 2]], keep=0.5)[0]
    >>> found.kept >= 0.5, found.chosen[1]
    (True, True)
    """
    results: dict[int, Kept] = {}
    for numbers, subsets in subset_batches(model, texts, words, batch_size):
        rank = torch.full((len(numbers), subsets.size), subsets.size)
        for row, i in enumerate(numbers):
            rank[row, : len(ranks[i])] = torch.tensor(ranks[i])
        low = torch.zeros(len(numbers), dtype=torch.long)  # does not keep enough
        high = torch.tensor([len(words[i]) for i in numbers])  # keeps enough, or is all there is
        while bool((high - low > 1).any()):
            step = torch.arange(1, PREFIXES + 1) / (PREFIXES + 1)
            counts = low[:, None] + ((high - low)[:, None] * step).round().long().clamp_min(1)
            enough = subsets.kept(rank[:, None] < counts[..., None]) >= keep
            passed = torch.where(enough, counts, high[:, None]).amin(-1)
            low = torch.maximum(low, torch.where(counts < passed[:, None], counts, 0).amax(-1)).minimum(passed - 1)
            high = passed
        prefix = rank < high[:, None]
        last = (high[:, None] - 1 - torch.arange(SPARED)).clamp_min(0)
        without = prefix[:, None] & (rank[:, None] != last[..., None])
        kept, spared = subsets.kept(without).max(-1)
        fewer = (kept >= keep) & (high > 1)
        chosen = torch.where(fewer[:, None], without[torch.arange(len(numbers)), spared], prefix)
        kept, lost = subsets.kept_and_lost(chosen[:, None])
        for row, i in enumerate(numbers):
            results[i] = Kept(chosen[row, : len(words[i])].tolist(), float(kept[row]), float(lost[row]))
    return [results[i] for i in range(len(texts))]
