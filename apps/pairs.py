"""Which words carry the similarity of two texts? The gates propose, removing words verifies; or the answer is that none do.

One pass over both texts gives, for every word, how far the cosine of the pooled states falls without it, and its gate. The
best words by both are proposed. The first of them are verified by encoding the texts again, without that word alone, and
without all proposed words but that one. The mean of the two falls shares the credit of words that stand for each other:

    fall of word i = ((c(all) - c(without i)) + (c(without the proposed but i) - c(without the proposed))) / 2

In which words the texts differ is in differences.py.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..gate_head_hardkuma import count_at_rate
from ..scoring_hardkuma import ScoredText, check_options, check_selection, score_texts
from .contrasts import NEGATION_KIND, describe_languages, word_value
from .differences import check_pair, differing, join_differences, word_chance
from .reading import AnchorModel, ReadText, SeenText, chance_of, embed_anchors, read_texts

RANDOM_DRAWS = 5
# Without the words that carry it the similarity must be lower by this much than without any draw of as many other words.
# On 200 pairs of STS-B dev all words that are named pass, and 20% of random ones; half of those are below the mean.
LEAST_MARGIN = 0.02
# Words of each side whose fall is measured by removal, and where more are proposed, which is in long texts: the others have
# that of the pooled states.
VERIFIED, VERIFIED_OF_MANY = 6, 3
# A word carries the similarity if its fall is at least this part of what it would be if all words carried the same.
LEAST_SHARE = 0.5
# No link is weaker than this part of the similarity.
LEAST_LINK = 0.05
# How much the gates weigh against the pooled states in a proposal; both are standardised within the text. Chosen on STS-B
# dev and on halves of WikiText-2 valid paragraphs, by how far the cosine falls without the words.
GATE_WEIGHT = 0.5
# Texts above this are taken for the same, or nearly, whatever the order of their words and whether one of them is negated.
SAME_SIMILARITY = 0.7
# What changes the similarity by less than this the encoder hardly sees.
HARDLY_SEEN = 0.1


def explain_pair(model: AnchorModel, a: str, b: str, **options: Any) -> dict[str, Any]:
    """The words on each side that carry the similarity of two texts, or why none is said to; of plain JSON values.

    The similarity is the cosine of the encoder's own embeddings, which is what sentence-transformers gives. The number of
    encodings does not grow with the texts: at most 47 beside the gates' pass over both (as long as `VERIFIED` and
    `RANDOM_DRAWS` are 6 and 5).

    Args:
        model: a HardKumaModel in eval mode, with its tokenizer.
        options: those of `explain_pairs`.

    Options:
        rate (0.2): the fraction of the words of each side, in (0, 1], that the gates select and that may be said to carry
            the similarity. Function words do not, unless no other word does.
        links (10): how many pairs of words to report at most.
        seed (0): for the random words of the faithfulness check.
        batch_size (32), use_surface (True), selector: as in `score_texts`.
        chance: no word is said to carry a similarity up to this one; by default what the encoder gives to unrelated
            sentences (`chance_similarity`, once for each model).

    Returns:
        similarity: the cosine of the two texts.
        chance: the similarity that unrelated texts may have.
        explained: whether words are said to carry the similarity, and the check agrees.
        reason: where not, why.
        notes: sentences about what should make the texts less similar than they are: another order of words, an English
            negation; with the figures, and whether the encoder hardly sees it. And on texts of different languages.
        a, b: records as of `ScoredText.select(rate)` (with the gates' decision as "selected"), whose words also have
            - fall: how far the cosine falls without the word, shared among words that stand for each other (see above);
              positive if the word makes the texts similar.
            - verified: whether that was measured by removing the word; if not, it is estimated from the pooled states.
            - carries: whether it is among the `rate` words with the largest fall, and that is at least half of what each
              would have if all words carried the same.
            - differs: in [0, 1], how much it differs from the other text; see differences.py.
            and the side also "differences": spans of neighbouring words that differ and do not carry (`join_differences`);
            "truncated": whether the encoder, which takes so many tokens and no more, has not seen the end. Words there are
            listed, with a fall of 0.
        links: {"a", "b", "words", "strength"}, two verified words by their numbers and as they are written, strongest
            first: how much further the cosine falls without the one while the other is there. None weaker than a twentieth
            of the similarity.
        faithfulness: what removing all these words does, from one side at a time, compared with the other side as it is
            (without the same words on both sides identical texts would stay identical); mean of both.
            - similarity_without: the cosine by what was removed: the "carrying" words, as many with the "lowest" fall, as
              many of the others at "random" (mean of 5 draws; "best_random" is the one without which it is lowest), and
              the words that the "gates" select (which may be more). None where no word carries.
            - similarity_of_carrying: of these words alone; None where a side has none.
            - faithful: whether the cosine is lower without the carrying words, by at least 0.02, than without the lowest
              ones and than without any of the random draws; None where no word carries, or where there are no others to
              compare with.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> pair = explain_pair(model, "A cat sleeps on the mat.", "My cat is called Tom.")
    >>> [word["word"] for word in pair["a"]["words"] if word["carries"]], pair["faithfulness"]["faithful"]
    (['cat'], True)
    >>> [span["text"] for span in pair["a"]["differences"]]
    ['sleeps on the mat']
    >>> explain_pair(model, "A cat sleeps on the mat.", "Interest rates rose in Germany.")["explained"]
    False
    """
    check_options("explain_pair", options, explain_pairs)
    return explain_pairs(model, [(a, b)], **options)[0]


@torch.inference_mode()
def explain_pairs(
    model: AnchorModel,
    pairs: Sequence[tuple[str, str]],
    *,
    rate: float = 0.2,
    links: int = 10,
    seed: int = 0,
    batch_size: int = 32,
    use_surface: bool = True,
    selector: str | None = None,
    chance: float | None = None,
) -> list[dict[str, Any]]:
    """What `explain_pair` says of each pair. A text that several pairs need, such as the question of a search, is encoded
    once, and all that is encoded shares batches.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> answers = explain_pairs(model, [("my cat", other) for other in ("A cat sleeps.", "Interest rates rose.")])
    >>> [answer["explained"] for answer in answers]
    [True, False]
    """
    for pair in pairs:
        check_pair(pair)
    if rate is None:
        raise ValueError("rate must be a fraction in (0, 1], got None.")
    check_selection(rate, None)
    if isinstance(links, bool) or not isinstance(links, int) or links < 0:
        raise ValueError(f"links must be a whole number >= 0, got {links!r}.")
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    options: dict[str, Any] = {"batch_size": batch_size, "use_surface": use_surface, "selector": selector}
    scored = dict(zip(texts, score_texts(model, texts, **options), strict=True))
    words = [scored[text].words for text in texts]
    read = dict(zip(texts, read_texts(model, texts, words, batch_size), strict=True))
    if chance is None:
        chance = chance_of(model)
    of_words = word_chance(model)
    explanations = [
        _Explanation([scored[text] for text in pair], [read[text] for text in pair], rate, float(chance), of_words)
        for pair in pairs
    ]
    removed = _embed_lists(model, [explanation.removals() for explanation in explanations], batch_size)
    for explanation, vectors in zip(explanations, removed, strict=True):
        explanation.verify(vectors)
    checked = _embed_lists(model, [explanation.checks(seed) for explanation in explanations], batch_size)
    return [explanation.answer(links, vectors) for explanation, vectors in zip(explanations, checked, strict=True)]


@dataclass
class _Side:
    """One text of the pair: what is known of its words, and which of them are chosen."""

    seen: SeenText
    falls: list[float]  # estimated in one pass; then measured, for the verified ones
    differs: list[float]  # from the other text
    proposed: list[int]  # best first
    selected: list[int]  # by the gates
    verified: list[int]
    carrying: list[int]

    def draw_others(self, generator: random.Random) -> list[int]:
        """As many of the other words as carry the similarity, or all where they are fewer."""
        others = sorted(set(range(len(self.falls))) - set(self.carrying))
        return generator.sample(others, min(len(self.carrying), len(others)))

    def named(self) -> list[str]:
        """The words, as they are compared: in lower case."""
        return [self.seen.word(i).replace("’", "'").lower() for i in range(len(self.falls))]


class _Explanation:
    """The way from two texts, read once, to the words that carry their similarity. What must be encoded on the way is named
    by `removals` and `checks`, and its unit vectors are handed to `verify` and `answer`."""

    def __init__(self, scored: Sequence[ScoredText], read: Sequence[ReadText], rate: float, chance: float, of_words: float):
        self.scored, self.rate, self.chance = scored, rate, chance
        self.whole = torch.stack([text.anchor for text in read])
        self.similarity = float(self.whole[0] @ self.whole[1])
        differs = [differing(text, other, of_words) for text, other in (read, read[::-1])]
        self.sides = [_propose(*texts, rate) for texts in zip(scored, read, read[::-1], differs, strict=True)]
        for side in self.sides:
            if self.similarity > self.chance:
                side.verified = side.proposed[: VERIFIED if len(side.proposed) <= VERIFIED else VERIFIED_OF_MANY]
            else:
                side.carrying = []
        self._removed: list[Sequence[Iterable[int]]] = []
        self._negated: list[list[int]] = [[], []]

    def removals(self) -> list[str]:
        """Both texts without each of the best proposals, without all proposals but that, and without all."""
        texts: list[str] = []
        for side in self.sides if self.similarity > self.chance else []:
            texts += [side.seen.without([i]) for i in side.verified]
            texts += [side.seen.without(set(side.proposed) - {i}) for i in side.verified]
            texts.append(side.seen.without(side.proposed))
        return texts

    def verify(self, vectors: Tensor) -> None:
        """Measure the falls of the best proposals, and choose those that carry."""
        if self.similarity <= self.chance:
            return
        of_sides = vectors.split([2 * len(side.verified) + 1 for side in self.sides])
        for side, other, rows in zip(self.sides, self.whole.flip(0), of_sides, strict=True):
            cosines = (rows @ other).tolist()
            number, count = len(side.verified), len(side.carrying)
            for i, alone, last in zip(side.verified, cosines[:number], cosines[number:-1], strict=True):
                side.falls[i] = ((self.similarity - alone) + (last - cosines[-1])) / 2
            measured = sorted(side.verified, key=lambda i: -side.falls[i])
            ranked = [*measured, *side.proposed[number:]]
            side.carrying = [i for i in ranked[:count] if side.falls[i] > self._least(side)]
        self._single = [rows[: len(side.verified)] for side, rows in zip(self.sides, of_sides, strict=True)]

    def _least(self, side: _Side) -> float:
        return LEAST_SHARE * self.similarity / max(len(side.falls), 1)

    def checks(self, seed: int) -> list[str]:
        """The carrying words alone, both texts without them and without others, and a negated text without its negation."""
        texts: list[str] = []
        if any(side.carrying for side in self.sides):
            lowest = [
                set(sorted(range(len(side.falls)), key=side.falls.__getitem__)[: len(side.carrying)]) for side in self.sides
            ]
            generator = random.Random(seed)
            draws = [[side.draw_others(generator) for side in self.sides] for _ in range(RANDOM_DRAWS)]
            carrying = [set(side.carrying) for side in self.sides]
            self._removed = [carrying, lowest, [side.selected for side in self.sides], *draws]
            texts += [side.seen.only(side.carrying) for side in self.sides]
            for removed in self._removed:
                texts += [side.seen.without(chosen) for side, chosen in zip(self.sides, removed, strict=True)]
        negated = [_negations(side.named()) for side in self.sides]
        if bool(negated[0]) != bool(negated[1]) and self.similarity > max(SAME_SIMILARITY, self.chance):
            self._negated = negated
            texts += [side.seen.without(rows) for side, rows in zip(self.sides, negated, strict=True) if rows]
        return texts

    def answer(self, links: int, vectors: Tensor) -> dict[str, Any]:
        """The result, with the vectors of `checks`."""
        negation = vectors[-1] if any(self._negated) else None
        faithfulness = self._faithfulness(vectors if negation is None else vectors[:-1])
        reason = self._reason(faithfulness["faithful"])
        result: dict[str, Any] = {"similarity": self.similarity, "chance": self.chance}
        result |= {"explained": reason is None, "reason": reason, "notes": self._notes(negation)}
        for name, item, side in zip("ab", self.scored, self.sides, strict=True):
            record = {**item.select(rate=self.rate), "truncated": side.seen.truncated}
            for i, word in enumerate(record["words"]):
                fall = side.falls[i] if i < len(side.falls) else 0.0
                word |= {"fall": fall, "verified": i in side.verified, "carries": i in side.carrying}
                word["differs"] = side.differs[i] if i < len(side.differs) else 0.0
            result[name] = {**record, "differences": join_differences(item.text, record["words"], item.language)}
        return {**result, "links": self._links(links), "faithfulness": faithfulness}

    def _links(self, number: int) -> list[dict[str, Any]]:
        """The fall without word i, minus the same fall where word j is missing already."""
        if not all(side.carrying for side in self.sides):
            return []
        first, second = self._single
        strength = self.similarity - (first @ self.whole[1])[:, None] - (second @ self.whole[0])[None] + first @ second.T
        numbers = [(i, j) for i in self.sides[0].verified for j in self.sides[1].verified]
        ranked = sorted(zip(strength.flatten().tolist(), numbers, strict=True), reverse=True)
        # A word that carries nothing by itself matches nothing either.
        able = [{i for i in side.verified if side.falls[i] > self._least(side)} for side in self.sides]
        least = LEAST_LINK * self.similarity
        strong = [(value, i, j) for value, (i, j) in ranked if value > least and i in able[0] and j in able[1]]
        return [
            {"a": i, "b": j, "words": [self.sides[0].seen.word(i), self.sides[1].seen.word(j)], "strength": value}
            for value, i, j in strong[:number]
        ]

    def _faithfulness(self, vectors: Tensor) -> dict[str, Any]:
        """The check by removal of all carrying words, which may fail."""
        if not self._removed:
            return {"similarity_without": None, "similarity_of_carrying": None, "faithful": None}
        carrying, lowest = self._removed[:2]
        pairs = vectors.unflatten(0, (-1, 2))
        of_carrying = float(pairs[0, 0] @ pairs[0, 1])
        # What is left of a against the whole of b, and the other way round: (removals, 2).
        left = (pairs[1:] * self.whole.flip(0)).sum(-1)
        without, of_lowest, of_gates, *of_random = left.mean(-1).tolist()
        similarity = {
            "carrying": without,
            "lowest": of_lowest,
            "random": sum(of_random) / len(of_random),
            "best_random": min(of_random),
            "gates": of_gates,
        }
        return {
            "similarity_without": similarity,
            "similarity_of_carrying": of_carrying if all(carrying) else None,
            "faithful": without + LEAST_MARGIN < min(of_lowest, *of_random) if carrying != lowest else None,
        }

    def _reason(self, faithful: bool | None) -> str | None:
        """Why the similarity is not explained; None where it is."""
        if not all(side.seen.words for side in self.sides):
            return "a text has no word"
        if self.similarity <= self.chance:
            return f"the similarity is {self.similarity:.2f}, and unrelated texts may have up to {self.chance:.2f}"
        if not any(side.carrying for side in self.sides):
            return "no word carries more of the similarity than others do: it is spread over the texts"
        return "other words lower the similarity about as much as these" if faithful is False else None

    def _notes(self, negation: Tensor | None) -> list[str]:
        """What should make these texts less similar than they are, by measurement; other languages or scripts."""
        languages = describe_languages(*(side.seen.named() for side in self.sides))
        notes = [] if languages is None else [languages]
        if self.similarity <= max(SAME_SIMILARITY, self.chance):
            return notes
        words = [side.named() for side in self.sides]
        if words[0] != words[1] and Counter(words[0]) == Counter(words[1]):
            note = f"the texts have the same words in another order, and a similarity of {self.similarity:.2f}"
            notes.append(note + _hardly_seen(1 - self.similarity))
        if negation is not None:
            number = int(bool(self._negated[1]))
            names = ", ".join(words[number][i] for i in self._negated[number])
            without = float(negation @ self.whole[1 - number])
            figures = f"the similarity is {self.similarity:.2f}, {without:.2f} without that"
            hardly = _hardly_seen(without - self.similarity)
            notes.append(f"one text alone is negated ({names}), and {figures}{hardly}")
        return notes


def _hardly_seen(change: float) -> str:
    return ": the encoder hardly sees it" if change < HARDLY_SEEN else ""


def _propose(item: ScoredText, text: ReadText, other: ReadText, differs: list[float], rate: float) -> _Side:
    """The words of one text that may carry its similarity to the other, by the pooled states and the gates."""
    side = text.seen
    falls = _pooled_falls(text.states, side.members(), other.pooled) if side.words else []
    count = count_at_rate(len(side.words), rate) if side.words else 0
    gates = torch.logit(torch.tensor(item.probabilities[: len(side.words)]), eps=1e-6)
    ranks = (_standardised(torch.tensor(falls)) + GATE_WEIGHT * _standardised(gates)).tolist()
    least = LEAST_SHARE * float(text.anchor @ other.anchor) / max(len(falls), 1)
    content = [i for i in range(len(falls)) if not item.language.is_function_word(side.word(i))]
    if not any(falls[i] > least for i in content):  # "I have the same thing."
        content = list(range(len(falls)))
    matched = [i for i in content if differs[i] < 1]  # what the other text contradicts does not make it similar
    proposed = sorted(matched, key=lambda i: -ranks[i])[: max(count, min(2 * count, VERIFIED))]
    selected = [i for i, chosen in enumerate(item.decide(rate=rate)[: len(falls)]) if chosen]
    return _Side(side, falls, differs, proposed, selected, [], proposed[:count])


def _negations(words: Sequence[str]) -> list[int]:
    return [i for i, word in enumerate(words) if word_value(word) == (NEGATION_KIND, 1)]


def _embed_lists(model: AnchorModel, lists: Sequence[Sequence[str]], batch_size: int) -> list[Tensor]:
    """Unit vectors of the texts of each list; a text that stands in several is encoded once."""
    rows = {text: row for row, text in enumerate(dict.fromkeys(text for texts in lists for text in texts))}
    vectors = embed_anchors(model, list(rows), batch_size) if rows else torch.empty(0, 0)
    return [vectors[[rows[text] for text in texts]] for texts in lists]


def _pooled_falls(states: Tensor, members: Tensor, other: Tensor) -> list[float]:
    """How far the cosine of mean states falls without each word's, in one pass: (tokens, dim), (words, tokens), (dim,)."""
    left = (states.sum(0) - members @ states) / (len(states) - members.sum(-1, keepdim=True)).clamp_min(1)
    whole = torch.cosine_similarity(states.mean(0), other, dim=-1)
    return (whole - torch.cosine_similarity(left, other[None], dim=-1)).tolist()


def _standardised(values: Tensor) -> Tensor:
    spread = values.std(correction=0) if len(values) else 1.0
    return (values - values.mean()) / (spread + 1e-6) if len(values) else values
