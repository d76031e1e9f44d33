"""From gates to an answer: which words are selected. One rule, for tensors and for texts.

By itself a selector of words with a `share` decides like this:

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
threshold takes every word above it. A selector of names takes names whole in every case: neighbours above half of the
model's threshold, of which one passes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .configuration_hardkuma import SelectorConfig
from .words_hardkuma import LINK, NEGATION

LEAST = 2  # words of an answer, where there are so many
DENIED = 3  # how far before a selected word a negation may stand
SHARING = 64  # words of largest gate that share theirs: linear in the length
# 0.1 * 30 is a little more than 3, in single precision a little more than in double; 3 it shall be in both.
BELOW = 1 - 1e-6


@dataclass(frozen=True)
class WordRows:
    """Words as a decision sees them, those of a text in a row; all (batch, words).

    Attributes:
        probs: their gates.
        weights: gates that like words share (`share_gates`); `probs` where nothing is known of what words mean.
        among: bool, the words that can be selected.
        roles: see `word_role`; 0 for a content word.
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
        likely = content & (words.probs > own_threshold / 2)
        runs = _runs(_with_links(likely, words), words.joins)
        # Of a run that nothing passes every word is by itself, and so is every word of no run.
        runs = torch.where(_any_of(runs, words.probs > own_threshold), runs, 0)
        if rate is not None:
            return _best_names(words, content, runs, rate)
        bar = own_threshold if threshold is None else threshold
        chosen = words.among & (words.probs > bar)
        return chosen | _any_of(runs, chosen)
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
        chosen = chosen | _any_of(_runs(_with_links(likely, words), words.joins), chosen)
        chosen = _with_negations(chosen, words)
    return chosen


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
    open_negation = (words.roles == NEGATION) & words.among & ~chosen
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
