"""What a selector reads of each word, from one pass of the encoder.

Vectors are LayerNormed token by token (unless `layer_norm` is off) and averaged over the tokens of a word:

    "state"          states of the selector's layers
    "input"          non-contextual input embeddings
    "anchor"         h_i * a / |a|, the last state times the pooled state, dimension by dimension

Scalars are averaged as they are: "norm" (root mean square of the state), "attention" (received and given), "form" (one-hot
class of the word's written form). Measures compare a word w, with tokens i in w, with its sentence. With last states h_i,
their sum s over the sentence and its pooled state a; e_i the pooled state of token i alone between the special tokens of a
text, scaled to length 1 (looked up in the gate head's table); u_w the sum of e_i over w, scaled to length 1; and U the sum
of u_w over the words of the sentence:

    "pool_share"     sum |h_i|, sum cos(h_i, a), |w|, log words        what the word brings into the pool
    "leave_one_out"  sum l({i}), l(w)  with  l(S) = 1 - cos(s - sum_S h_j, s)     what the pool loses without it
    "isolated"       cos(u_w, a), cos(u_w, U), 1 - cos(U - u_w, a)     what it means by itself, and the other words do
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .batch_hardkuma import TokenBatch, Words, tracing
from .configuration_hardkuma import HardKumaConfig, SelectorConfig
from .encoder_hardkuma import Encoded
from .pooling_hardkuma import normalize
from .words_hardkuma import NUM_SURFACE_CLASSES

# How many numbers each measure stands for.
MEASURES = {"pool_share": 4, "leave_one_out": 2, "isolated": 3}
VECTORS, SCALARS = ("state", "input", "anchor"), ("norm", "attention", "form")


def feature_sizes(config: HardKumaConfig, selector: SelectorConfig, input_size: int) -> tuple[int, int]:
    """How many numbers a selector reads of a word as vectors and scalars, and how many as measures."""
    layers = len(selector.layers(config.num_hidden_layers))
    sizes = {"state": layers * config.hidden_size, "input": input_size, "anchor": config.hidden_size}
    sizes |= {"norm": 1, "attention": 2, "form": NUM_SURFACE_CLASSES}
    return sum(sizes.get(name, 0) for name in selector.reads), sum(MEASURES.get(name, 0) for name in selector.reads)


def layer_normed(x: Tensor) -> Tensor:
    """(..., size) vectors with mean 0 and variance 1, fp32.

    >>> layer_normed(torch.tensor([[1.0, 3.0]])).round()
    tensor([[-1.,  1.]])
    """
    # Scale and shift are not learned: W1 follows at once and can do both.
    x = x.float()
    return F.layer_norm(x, x.shape[-1:])


class WordFeatures:
    """What selectors may read of the words of a batch, each computed when first asked for.

    Args:
        encoded: the encoder's pass over the batch, with all layers that are read.
        words: which tokens make up a word.
        isolated: `GateHead.look_up_isolated`, where a selector reads "isolated".
        input_embeddings: of token ids, where a selector reads "input".
    """

    def __init__(
        self,
        config: HardKumaConfig,
        encoded: Encoded,
        batch: TokenBatch,
        words: Words,
        isolated: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
        input_embeddings: Callable[[Tensor], Tensor] | None = None,
    ):
        self.config, self.encoded, self.batch, self.words = config, encoded, batch, words
        self._lookup, self._embeddings = isolated, input_embeddings
        self._known: dict[object, Tensor] = {}

    def vectors(self, selector: SelectorConfig) -> list[Tensor]:
        """Vectors and scalars that this selector reads, (batch, slots, size) each."""
        layers = selector.layers(self.config.num_hidden_layers)
        parts = []
        for group in (VECTORS, SCALARS):
            for name in (name for name in selector.reads if name in group):
                if name == "state":
                    parts += [self._get((name, layer, selector.layer_norm)) for layer in layers]
                elif name == "norm":
                    parts.append(self._get((name, layers[-1])))
                else:
                    parts.append(self._get((name, selector.layer_norm) if name in VECTORS else name))
        return parts

    def measures(self, selector: SelectorConfig) -> Tensor | None:
        """Measures that this selector reads, (batch, slots, numbers); None where it reads none."""
        parts = [self._get(name) for name in selector.reads if name in MEASURES]
        return torch.cat(parts, dim=-1) if parts else None

    def isolated(self) -> Tensor:
        """u_w: (batch, slots, directions) what words mean by themselves, of length 1."""
        if self.batch.input_ids is None or self._lookup is None:
            raise ValueError('a selector reads "isolated" and must know which tokens there are: pass input_ids.')
        if "isolated words" not in self._known:
            vectors, anchor = self._lookup(self.batch.input_ids, self.anchor)
            # The directions of a table that was made are of length 1: a sentence has something in them, or no token.
            if not (tracing() or anchor.is_meta or bool(anchor.any())) and bool(self.anchor.any()):
                raise ValueError(
                    'a selector reads "isolated", but the table of isolated tokens was never made; '
                    "call model.build_isolated_table() before the gates are trained or used."
                )
            self._known["isolated anchor"] = anchor
            self._known["isolated words"] = normalize(self.words.sum(vectors))
        return self._known["isolated words"]

    def _get(self, key: object) -> Tensor:
        if key not in self._known:
            name = key[0] if isinstance(key, tuple) else key
            compute: Callable[..., Tensor] = getattr(self, f"_{name}")
            self._known[key] = compute(*key[1:]) if isinstance(key, tuple) else compute()
        return self._known[key]

    # ---- vectors and scalars ----------------------------------------------------------------------------------------

    def _state(self, layer: int, normed: bool) -> Tensor:
        return self._mean(self.encoded.layers[layer], normed)

    def _input(self, normed: bool) -> Tensor:
        return self._mean(self.input_embeddings(), normed)

    def _anchor(self, normed: bool) -> Tensor:
        return self._mean(self.states * self.anchor, normed)

    def _mean(self, vectors: Tensor, normed: bool) -> Tensor:
        return self.words.mean(layer_normed(vectors) if normed else vectors.float())

    def _norm(self, layer: int) -> Tensor:
        return self.words.mean(self.encoded.layers[layer].float().square().mean(-1, keepdim=True).sqrt())

    def _attention(self) -> Tensor:
        assert self.encoded.attention is not None, "asked for where a selector reads it"
        return self.words.mean(self.encoded.attention.float())

    def _form(self) -> Tensor:
        ids = self.batch.surface_ids
        classes = torch.zeros_like(self.batch.mask, dtype=torch.long) if ids is None else ids
        return self.words.mean(F.one_hot(classes, NUM_SURFACE_CLASSES).float())

    # ---- what is compared -------------------------------------------------------------------------------------------

    @property
    def states(self) -> Tensor:
        """(batch, length, hidden) the last states, fp32."""
        return self.encoded.states.float()

    @property
    def anchor(self) -> Tensor:
        """(batch, 1, hidden) the sentence's pooled state by the first mode, of length 1."""
        return normalize(self.encoded.pooled[..., : self.states.shape[-1]].float())

    @property
    def content(self) -> Tensor:
        """(batch, slots) bool, the words that can be selected."""
        if "content" not in self._known:
            self._known["content"] = self.words.first(self.batch.content)
        return self._known["content"]

    def input_embeddings(self) -> Tensor:
        """(batch, length, size) non-contextual embeddings."""
        if self.batch.inputs_embeds is not None:
            return self.batch.inputs_embeds
        ids = self.batch.input_ids
        assert ids is not None and self._embeddings is not None, "given where a selector reads them"
        return self._embeddings(ids)

    # ---- measures ---------------------------------------------------------------------------------------------------

    def _pool_share(self) -> Tensor:
        states = self.states
        norms = states.norm(dim=-1)
        # (batch, length, hidden) is read and never written. Four times as fast in this order as in the other.
        cosines = self.anchor.bmm(states.transpose(1, 2))[:, 0] / norms.clamp_min(1e-12)
        of_words = self.words.sum(torch.stack([norms, cosines, torch.ones_like(norms)], dim=-1))
        number = self.content.sum(-1).clamp_min(1).to(states.dtype).log()
        return torch.cat([of_words, number[:, None, None].expand_as(of_words[..., :1])], dim=-1)

    def _leave_one_out(self) -> Tensor:
        states, inside = self.states, self.batch.mask.float()
        total = inside[:, None].bmm(states)  # (batch, 1, hidden)
        whole = total.norm(dim=-1).clamp_min(1e-12)
        along = (total / whole[..., None]).bmm(states.transpose(1, 2))[:, 0] * inside
        of_tokens = _lost(along, states.square().sum(-1) * inside, whole)
        sums = self.words.sum(states * inside[..., None])
        of_words = _lost(self.words.sum(along), sums.square().sum(-1), whole)
        return torch.stack([self.words.sum(of_tokens * inside), of_words], dim=-1)

    def _isolated(self) -> Tensor:
        words, content = self.isolated(), self.content.float()
        anchor = self._known["isolated anchor"]
        total = content[:, None].bmm(words)  # U: (batch, 1, size)
        with_anchor = words.bmm(anchor.transpose(1, 2))[..., 0]
        with_total = words.bmm(total.transpose(1, 2))[..., 0]
        size = total.square().sum(-1)
        # A word that is all there is leaves nothing, and nothing has no direction: its cosine counts as 0.
        left = (size - 2 * with_total + words.square().sum(-1)).clamp_min(0.0).sqrt()
        rest = total.bmm(anchor.transpose(1, 2))[..., 0] - with_anchor
        cosine = torch.where(left > 1e-3, rest / left.clamp_min(1e-3), 0.0)
        measures = [with_anchor, with_total * size.clamp_min(1e-12).rsqrt(), 1 - cosine]
        return torch.stack(measures, dim=-1) * content[..., None]


def _lost(along: Tensor, squares: Tensor, whole: Tensor) -> Tensor:
    """1 - cos(s - part, s), accurate where it is small: sin^2 / (1 + cos), by what of the part is perpendicular to s.

    Args:
        along: (batch, parts) length of each part along s.
        squares: (batch, parts) squared length of each part.
        whole: (batch, 1) length of s.
    """
    rest = whole - along
    # Without a word that is all there is nothing is left but rounding, which has no direction: its cosine counts as 0.
    across = torch.maximum((squares - along.square()).clamp_min(0.0), 1e-5 * whole.square() - rest.square())
    left = rest.square() + across
    cosine = rest / left.sqrt()
    return torch.where(cosine > 0, across / (left * (1 + cosine.clamp_min(0.0))), 1 - cosine)
