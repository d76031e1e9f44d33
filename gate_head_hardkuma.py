"""The selector, which reads the shapes of a token's gate off the encoder's states, and the gate head, which holds them all.

In fp32 whatever the model's dtype; the distribution that the shapes belong to is in kumaraswamy_hardkuma.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batch_hardkuma import TokenBatch, tracing
from .configuration_hardkuma import MEASURES, HardKumaConfig, norm_name, state_name
from .encoder_hardkuma import FullPrecisionLinear
from .kumaraswamy_hardkuma import Kumaraswamy, log1mexp, make_gate
from .words_hardkuma import NUM_SURFACE_CLASSES

# Inputs of a selector that are normalised as vectors, and those that are taken as they are.
VECTORS, SCALARS = ("state", "input", "anchor"), ("norm", "attention", "shape")


def mean_over_words(same: Tensor) -> Tensor:
    """(batch, length, length): a product with it replaces what tokens have by the mean over the tokens of their word.

    >>> mean_over_words(torch.tensor([[[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]]))
    tensor([[[0.5000, 0.5000, 0.0000],
             [0.5000, 0.5000, 0.0000],
             [0.0000, 0.0000, 1.0000]]])
    """
    return same / same.sum(-1, keepdim=True)


def layer_normed(x: Tensor) -> Tensor:
    """(..., size) vectors with mean 0 and variance 1, fp32.

    >>> layer_normed(torch.tensor([[1.0, 3.0]])).round()
    tensor([[-1.,  1.]])
    """
    # Scale and shift are not learned: W1 follows at once and can do both, and their gradient would cost a third of a step.
    # That they are there, as 1 and 0, makes it twice as fast on CPUs, with the same bits.
    x, size = x.float(), x.shape[-1]
    return F.layer_norm(x, (size,), x.new_ones(size), x.new_zeros(size))


def _asinh(x: Tensor) -> Tensor:
    # torch.asinh takes five times as long on CPUs, where it is not vectorised.
    return x.sign() * torch.log(x.abs() + (x.square() + 1).sqrt())


class Selector(nn.Module):
    """(alpha_i, beta_i) = bound(softplus(W2 gelu(W1 x_i)) + min), in fp32 whatever the model's dtype.

    `vector_sizes` are LayerNormed one by one (their scales differ by an order of magnitude between, say, the last state
    and the input embedding); `num_scalars` further features are appended as they are. `num_measures` more are standardised
    by stored means and spreads, and also reach the shapes directly: (W2 gelu(.) + W3 z). For gates of whole words, the
    hidden layer's input is averaged over each word's tokens.

    >>> selector = Selector([4], num_scalars=2, hidden_size=8)
    >>> x = selector.join([torch.randn(2, 5, 4)], [torch.randn(2, 5, 2)])
    >>> alpha, beta = selector(x)
    >>> alpha.shape, bool((alpha > 1).all() and (beta < 10).all())
    (torch.Size([2, 5]), True)
    """

    center: Tensor
    spread: Tensor

    def __init__(
        self,
        vector_sizes: list[int],
        num_scalars: int = 0,
        hidden_size: int = 128,
        shape_min: float = 1.0,
        shape_max: float = 10.0,
        shape_bound: str = "smooth",
        dropout: float = 0.0,
        num_measures: int = 0,
    ):
        super().__init__()
        self.vector_sizes, self.num_measures = list(vector_sizes), num_measures
        self.hidden = FullPrecisionLinear(sum(vector_sizes) + num_scalars + num_measures, hidden_size)
        self.shapes = FullPrecisionLinear(hidden_size, 2)
        if num_measures:
            self.direct = FullPrecisionLinear(num_measures, 2)
            self.register_buffer("center", torch.zeros(num_measures))
            self.register_buffer("spread", torch.ones(num_measures))
        self.dropout = dropout
        self.shape_min, self.shape_max, self.shape_bound = shape_min, shape_max, shape_bound

    def own(self, scalars: list[Tensor], measures: Tensor | None = None) -> list[Tensor]:
        """What the selector reads of each token behind the vectors, (batch, length, size) each, fp32; the measures, which
        are standardised, come last."""
        parts = [scalar.float() for scalar in scalars]
        if measures is not None:
            # Of a sentence of two words, one is worth more than any spread: far values grow like their logarithm.
            parts.append(_asinh((measures.float() - self.center.float()) / self.spread.float()))
        return parts

    def join(self, vectors: list[Tensor], scalars: list[Tensor], measures: Tensor | None = None) -> Tensor:
        """All that it reads side by side, from vectors as they are: (batch, length, all sizes)."""
        return torch.cat([*map(layer_normed, vectors), *self.own(scalars, measures)], dim=-1)

    def forward(self, x: Tensor, mean_of_word: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Shapes of the gates.

        Args:
            x: (..., length, all sizes) as `join` gives it.
            mean_of_word: (..., length, length), rows that average over the tokens of each token's word; None where each
                token has a gate of its own.

        Returns:
            alpha, beta: (..., length), fp32
        """
        activated = self.activate(self.hidden(x), mean_of_word)
        alpha, beta = self.bound(self.outputs(activated, x[..., x.shape[-1] - self.num_measures :])).unbind(-1)
        return alpha, beta

    def activate(self, hidden: Tensor, mean_of_word: Tensor | None) -> Tensor:
        """gelu(W1 x), averaged over words before, where gates belong to words."""
        if mean_of_word is not None:
            # The mean of W1 x is W1 of the mean, and has fewer dimensions.
            hidden = mean_of_word @ hidden
        return F.dropout(F.gelu(hidden), self.dropout, self.training)

    def outputs(self, activated: Tensor, measures: Tensor | None) -> Tensor:
        """(..., length, 2), alpha and beta before they are bounded."""
        outputs = self.shapes(activated)
        return outputs + self.direct(measures) if self.num_measures else outputs

    def bound(self, x: Tensor) -> Tensor:
        """Shapes in [min, max]; see `shape_bound` in the configuration."""
        s = F.softplus(x)
        if self.shape_bound == "clamp":
            return (s + self.shape_min).clamp_max(self.shape_max)
        room = self.shape_max - self.shape_min
        return self.shape_min + room * s / (room + s)


def products_of_parts(layers: Sequence[nn.Linear], shared: Iterable[Tensor], own: Sequence[Sequence[Tensor]]) -> Tensor:
    """What linear layers make of parts side by side: first those that all of them read, then those of each. They are not
    put side by side: each is read by all layers at once, while the caches hold it, and the next is written in its place.

    Args:
        shared: (batch, length, size) each.
        own: the same for each layer.

    Returns:
        (batch, length, sizes of all layers)

    >>> layers, x = [nn.Linear(5, 2), nn.Linear(3, 4)], torch.randn(1, 3, 5)
    >>> together = products_of_parts(layers, [x[..., :3]], [[x[..., 3:]], []])
    >>> bool(torch.allclose(together, torch.cat([layers[0](x), layers[1](x[..., :3])], dim=-1), atol=1e-6))
    True
    """
    weights, start = [layer.weight.float() for layer in layers], 0
    total = torch.cat([layer.bias.float() for layer in layers])
    for part in shared:
        shape, end = part.shape[:-1], start + part.shape[-1]
        weight = torch.cat([weight[:, start:end] for weight in weights])
        total = torch.addmm(total, part.flatten(0, -2), weight.t())
        start = end
    row = 0
    for weight, parts in zip(weights, own, strict=True):
        column = total[:, row : row + len(weight)]
        for part, matrix in zip(parts, weight[:, start:].split([part.shape[-1] for part in parts], dim=1), strict=True):
            column.addmm_(part.flatten(0, -2), matrix.t())
        row += len(weight)
    return total.view(*shape, -1)


def _is_plain(layer: nn.Module) -> bool:
    """Whether nobody has put anything on a linear layer or in its place, who would have to see its whole input."""
    # Tools for offloading set a `forward`, those that shard or quantise have parameters of their own kind.
    changed = layer._forward_pre_hooks or layer._forward_hooks or "forward" in vars(layer)
    return type(layer) is FullPrecisionLinear and type(layer.weight) is nn.Parameter and not changed


class GateHead(nn.Module):
    """K selectors, and the small state that belongs to them: all that is trained where the encoder is frozen. Saved alone
    it is a third of a MB for the default recipe on MiniLM.

    Buffers:
        input_center: (input_size,) what the `input` view subtracts from input embeddings.
        rate_multiplier: (K,) Lagrange multiplier of the selection rate; moved by training alone.
        surface_log_odds: (K, classes) shift of the gate's logit by the class of the word's form.
        rate_shift: (K,) log-odds that are added to all gates of a selector, where one needs words: its rate, set at the end
            of training without changing the order of words.
        token_kinds: (vocabulary,) which tokens go on with a word, where a selector needs words.
    """

    input_center: Tensor
    rate_multiplier: Tensor
    surface_log_odds: Tensor
    rate_shift: Tensor
    token_kinds: Tensor

    def __init__(self, config: HardKumaConfig, input_size: int):
        super().__init__()
        self.config = config
        sizes = {"state": config.hidden_size, "input": input_size, "anchor": config.hidden_size}
        sizes |= {"norm": 1, "attention": 2, "shape": NUM_SURFACE_CLASSES}
        self.vector_names, self.scalar_names, self.measure_names = [], [], []
        self.selectors = nn.ModuleList()
        for k in range(config.num_selectors):
            inputs = config.of_selector("selector_inputs", k)
            vectors = [name for name in inputs if name in VECTORS for _ in _features(config, k, name)]
            scalars = [name for name in inputs if name in SCALARS]
            self.vector_names.append([key for name in inputs if name in VECTORS for key in _features(config, k, name)])
            self.scalar_names.append([key for name in scalars for key in _features(config, k, name)])
            self.measure_names.append([name for name in inputs if name in MEASURES])
            self.selectors.append(
                Selector(
                    [sizes[name] for name in vectors],
                    sum(sizes[name] for name in scalars),
                    config.of_selector("selector_hidden_size", k),
                    config.shape_min,
                    config.shape_max,
                    config.shape_bound,
                    config.selector_dropout,
                    sum(MEASURES[name] for name in inputs if name in MEASURES),
                )
            )
        self.register_buffer("input_center", torch.zeros(input_size))
        self.register_buffer("rate_multiplier", torch.zeros(config.num_selectors))
        self.register_buffer("surface_log_odds", torch.zeros(config.num_selectors, NUM_SURFACE_CLASSES))
        if self.needs_words():
            self.register_buffer("token_kinds", torch.zeros(config.vocab_size, dtype=torch.uint8))
            self.register_buffer("rate_shift", torch.zeros(config.num_selectors))

    @property
    def known_kinds(self) -> Tensor | None:
        """`token_kinds`, where a selector needs words."""
        return getattr(self, "token_kinds", None)

    def by_word(self, selector: int) -> bool:
        """Whether all tokens of a word share one gate."""
        return self.config.of_selector("selector_unit", selector) != "token"

    def needs_words(self, selector: int | None = None) -> bool:
        """Whether it makes a difference to this selector (to any by default) which tokens make up a word."""
        config = self.config
        return any(
            self.by_word(k)
            or any(config.reads(name, [k]) for name in MEASURES)
            or config.of_selector("meaning_weight", k) > 0
            for k in (range(len(self.selectors)) if selector is None else [selector])
        )

    def divides(self, selectors: Sequence[int]) -> bool:
        """Whether kinds are among these selectors, which divide the gate of meaning among themselves."""
        return bool(set(self.config.kinds) & set(selectors)) and self.config.find_selector() not in self.config.kinds

    def needed(self, selectors: Sequence[int]) -> list[int]:
        """These selectors, and behind them those without which they cannot be had: for a kind, meaning and all kinds."""
        others = [self.config.find_selector(), *self.config.kinds] if self.divides(selectors) else []
        return list(dict.fromkeys([*selectors, *others]))

    def _reader(self, selector: int) -> Selector:
        reader = self.selectors[selector]
        assert isinstance(reader, Selector)
        return reader

    def _own(self, selector: int, features: dict[str, Tensor]) -> list[Tensor]:
        """What one selector reads of each token behind the vectors, (batch, length, size) each."""
        measures = [features[name] for name in self.measure_names[selector]]
        scalars = [features[name] for name in self.scalar_names[selector]]
        return self._reader(selector).own(scalars, torch.cat(measures, dim=-1) if measures else None)

    def join(self, selector: int, features: dict[str, Tensor], normed: dict[str, Tensor] | None = None) -> Tensor:
        """All that one selector reads of each token, side by side: (batch, length, all sizes).

        Args:
            normed: vectors that are LayerNormed already, since other selectors read them too.
        """
        vectors = _layer_normed(self.vector_names[selector], features, normed or {})
        return torch.cat([*vectors, *self._own(selector, features)], dim=-1)

    def _shared(self, selectors: Sequence[int], features: dict[str, Tensor]) -> dict[str, Tensor]:
        """The vectors that more than one of these selectors read, LayerNormed once."""
        readers = Counter(name for k in selectors for name in self.vector_names[k])
        return {name: layer_normed(features[name]) for name, number in readers.items() if number > 1}

    def _shapes(
        self, selectors: Sequence[int], features: dict[str, Tensor], mean_of_word: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """alpha, beta: (batch, selectors, length)."""
        normed = self._shared(selectors, features)
        shapes: dict[int, tuple[Tensor, Tensor]] = {}
        for names, members in self._read_together(selectors).items():
            readers = [self._reader(k) for k in members]
            layers = [reader.hidden for reader in readers]
            own = [self._own(k, features) for k in members]
            hidden = products_of_parts(layers, _layer_normed(names, features, normed), own)
            activated = readers[0].activate(hidden, mean_of_word).split([layer.out_features for layer in layers], dim=-1)
            outputs = [
                reader.outputs(x, parts[-1] if parts else None)
                for reader, x, parts in zip(readers, activated, own, strict=True)
            ]
            bounded = readers[0].bound(torch.stack(outputs, dim=2))  # (batch, length, members, 2)
            shapes.update({k: (bounded[:, :, n, 0], bounded[:, :, n, 1]) for n, k in enumerate(members)})
        for k in selectors:
            if k not in shapes:
                shapes[k] = self.selectors[k](self.join(k, features, normed), mean_of_word if self.by_word(k) else None)
        alpha, beta = (torch.stack(parts, dim=1) for parts in zip(*(shapes[k] for k in selectors), strict=True))
        return alpha, beta

    def _read_together(self, selectors: Sequence[int]) -> dict[tuple[str, ...], list[int]]:
        """Those of these selectors whose hidden layers read their parts one after the other, by the vectors they read."""
        together: dict[tuple[str, ...], list[int]] = {}
        if tracing():
            return together  # a graph for export has one product: others choose what to do with it
        for k in selectors:
            # Where gates belong to tokens, as in every checkpoint of 0.1.0, they are what they were then, to the bit.
            if self.vector_names[k] and self.by_word(k) and _is_plain(self._reader(k).hidden):
                together.setdefault(tuple(self.vector_names[k]), []).append(k)
        return together

    def log_odds(self, selector: int, x: Tensor) -> Tensor:
        """What is trained: log-odds of selection (..., length), before any shift, from what a selector reads, x (...,
        length, all sizes)."""
        config = self.config
        alpha, beta = self.selectors[selector](x)
        gate = make_gate(alpha, beta, config.sampler, config.stretch_low, config.stretch_high)
        return gate.selection_log_odds(config.gate_threshold)

    def forward(
        self,
        features: dict[str, Tensor],
        batch: TokenBatch,
        selectors: Sequence[int] | None = None,
    ) -> Kumaraswamy:
        """Gates over (batch, K, length).

        Args:
            features: (batch, length, size) by name.
            batch: its words, content and written forms.
            selectors: numbers of those that are wanted, in this order; all by default.
        """
        chosen = list(range(len(self.selectors))) if selectors is None else list(selectors)
        needed = self.needed(chosen)
        mean_of_word = mean_over_words(batch.same_word) if any(self.by_word(k) for k in needed) else None
        alpha, beta = self._shapes(needed, features, mean_of_word)
        config, threshold, surface_ids = self.config, self.config.gate_threshold, batch.surface_ids
        gate = make_gate(alpha, beta, config.sampler, config.stretch_low, config.stretch_high)
        if surface_ids is None and not hasattr(self, "rate_shift"):
            return gate  # kinds and the weight of meaning need words, and have `rate_shift`: nothing moves it
        before = gate.selection_log_odds(threshold)
        shift = torch.zeros_like(alpha)  # all that moves the gates is summed up, and they move once
        if self.divides(needed):
            shift = shift + self._divide_meaning(before, needed)
        if hasattr(self, "rate_shift"):
            rates = self.rate_shift.float()
            shift = shift + (rates if needed == list(range(rates.shape[0])) else rates[needed])[:, None]
        if len(needed) > len(chosen):
            alpha, beta, before, shift = (tensor[:, : len(chosen)] for tensor in (alpha, beta, before, shift))
            gate = make_gate(alpha, beta, config.sampler, config.stretch_low, config.stretch_high)
        if any(config.of_selector("meaning_weight", k) for k in chosen):
            shift = shift + self._weigh_words(torch.sigmoid(before + shift), features, batch, chosen)
        if surface_ids is not None:
            weights = alpha.new_tensor([config.of_selector("surface_weight", k) for k in chosen])[:, None]
            shift = shift + (weights * self.surface_log_odds.float()[chosen])[:, surface_ids].transpose(0, 1)
        return gate.shift_logit(shift, threshold, before)

    def _divide_meaning(self, log_odds: Tensor, selectors: Sequence[int]) -> Tensor:
        """(batch, K, length) shifts of the log-odds that make of each kind's gate a share of the gate of meaning, so that
        all kinds together select what `meaning` does. With l the log-odds as read,

            p(kind k selects w) = p(meaning selects w) exp(l_k) / sum_j exp(l_j)
        """
        meaning = self.config.find_selector()
        selected = log_odds[:, selectors.index(meaning)] + self.rate_shift.float()[meaning]
        kinds = [k for k in selectors if k in self.config.kinds]
        shares = log_odds[:, [selectors.index(k) for k in kinds]].log_softmax(1)
        log_probs = (F.logsigmoid(selected)[:, None] + shares).clamp_max(-1e-6)
        wanted = log_probs - log1mexp(-log_probs)
        none = torch.zeros_like(log_odds[:, 0])
        return torch.stack(
            [wanted[:, kinds.index(k)] - log_odds[:, i] if k in kinds else none for i, k in enumerate(selectors)], dim=1
        )

    def _weigh_words(
        self,
        probs: Tensor,
        features: dict[str, Tensor],
        batch: TokenBatch,
        selectors: Sequence[int],
    ) -> Tensor:
        """(batch, K, length) log-odds by which words that weigh much gain where the gates find little."""
        config = self.config
        little = 1 - (probs * batch.content[:, None]).amax(-1, keepdim=True)
        shifts = []
        for k in selectors:
            weight = config.of_selector("meaning_weight", k)
            if not weight:
                shifts.append(torch.zeros_like(probs[:, 0]))
                continue
            norms = features[state_name(config.layers_of(k)[-1])].float().norm(dim=-1)
            shifts.append(weight * word_weights(norms, batch))
        return torch.stack(shifts, dim=1) * little


def _layer_normed(names: Iterable[str], features: dict[str, Tensor], normed: dict[str, Tensor]) -> Iterator[Tensor]:
    """These vectors one after the other, LayerNormed."""
    return (normed[name] if name in normed else layer_normed(features[name]) for name in names)


def word_weights(norms: Tensor, batch: TokenBatch) -> Tensor:
    """How much more than others a word weighs in its sentence: log of its tokens' summed norms, minus the mean over words.

    Args:
        norms: (batch, length) of the tokens' states.
        batch: its words and content.

    Returns:
        (batch, length), the same for all tokens of a word

    >>> from hardkuma.batch_hardkuma import prepare
    >>> batch = prepare(HardKumaConfig(), torch.tensor([[5, 6, 7]]), continues=torch.tensor([[False, True, False]]))
    >>> word_weights(torch.ones(1, 3), batch)
    tensor([[ 0.3466,  0.3466, -0.3466]])
    """
    log_norms = batch.same_word.bmm(norms[..., None])[..., 0].clamp_min(1e-12).log()
    firsts = (batch.content & ~batch.continues).to(norms.dtype)
    mean = (log_norms * firsts).sum(-1, keepdim=True) / firsts.sum(-1, keepdim=True).clamp_min(1.0)
    return (log_norms - mean) * batch.content


def _features(config: HardKumaConfig, selector: int, name: str) -> list[str]:
    """The features that one input of a selector stands for: states may be those of several layers."""
    if name == "state":
        return [state_name(layer) for layer in config.layers_of(selector)]
    return [norm_name(config.layers_of(selector)[-1])] if name == "norm" else [name]
