"""Which words carry the similarity of two texts? The gates propose, removing words verifies; or the answer is that none do.

One pass over both texts gives, for every word, how far the cosine of the pooled states falls without it, and its gate. The
best words by both are proposed. The first of them are verified by encoding the texts again, without that word alone, and
without all proposed words but that one. The mean of the two falls shares the credit of words that stand for each other:

    fall of word i = ((c(all) - c(without i)) + (c(without the proposed but i) - c(without the proposed))) / 2
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .anchors_hardkuma import AnchorModel, chance_similarity, embed_anchors
from .gates_hardkuma import count_at_rate
from .surface_hardkuma import Span, WordIndex, is_function_word
from .words_hardkuma import ScoredText, check_selection, encodable, score_texts

RANDOM_DRAWS = 3
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
NEGATIONS = frozenset(
    ["not", "no", "never", "nobody", "none", "nothing", "nowhere", "neither", "nor", "cannot", "without", "hardly"]
)
# Texts above this are taken for the same, or nearly, whatever the order of their words and whether one of them is negated.
SAME_SIMILARITY = 0.7


@torch.inference_mode()
def explain_pair(
    model: AnchorModel,
    a: str,
    b: str,
    *,
    rate: float = 0.2,
    links: int = 10,
    seed: int = 0,
    batch_size: int = 32,
    use_surface: bool = True,
    selector: str | None = None,
    chance: float | None = None,
) -> dict[str, Any]:
    """The words on each side that carry the similarity of two texts, or why none is said to; of plain JSON values.

    The similarity is the cosine of the encoder's own embeddings, which is what sentence-transformers gives. The number of
    encodings does not grow with the texts: at most 43 beside the gates' pass over both (as long as `VERIFIED` and
    `RANDOM_DRAWS` are 6 and 3).

    Args:
        model: a HardKumaModel in eval mode, with its tokenizer.
        rate: the fraction of the words of each side, in (0, 1], that the gates select and that may be said to carry the
            similarity. Words of grammar do not, unless there are no others.
        links: how many pairs of words to report at most.
        seed: for the random words of the faithfulness check.
        batch_size, use_surface, selector: as in `score_texts`.
        chance: no word is said to carry a similarity up to this one; by default what the encoder gives to unrelated
            sentences (`chance_similarity`, once for each model).

    Returns:
        similarity: the cosine of the two texts.
        chance: the similarity that unrelated texts may have.
        explained: whether words are said to carry the similarity, and the check agrees.
        reason: where not, why.
        notes: sentences about what the encoder hardly sees in this pair: another order of words, an English negation.
        a, b: records as of `ScoredText.select(rate)` (with the gates' decision as "selected"), whose words also have
            - fall: how far the cosine falls without the word, shared among words that stand for each other (see above);
              positive if the word makes the texts similar.
            - verified: whether that was measured by removing the word; if not, it is estimated from the pooled states.
            - carries: whether it is among the `rate` words with the largest fall, and that is at least half of what each
              would have if all words carried the same.
            and the side also "truncated": whether the encoder, which takes so many tokens and no more, has not seen the
            end. Words there are listed, with a fall of 0.
        links: {"a", "b", "strength"} with the numbers of two verified words, strongest first: how much further the cosine
            falls without the one while the other is there. None weaker than a twentieth of the similarity.
        faithfulness: what removing all these words does, from one side at a time, compared with the other side as it is
            (without the same words on both sides identical texts would stay identical); mean of both.
            - similarity_without: the cosine by what was removed: the "carrying" words, as many with the "lowest" fall, as
              many "random" ones (mean of 3 draws), and the words that the "gates" select (which may be more). None where
              no word carries.
            - similarity_of_carrying: of these words alone; None where a side has none.
            - faithful: whether the cosine is lower without the carrying words than without the lowest and random ones;
              None where no word carries, or where there are no others to compare with.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> pair = explain_pair(model, "A cat sleeps on the mat.", "My cat is called Tom.")
    >>> [word["word"] for word in pair["a"]["words"] if word["carries"]], pair["faithfulness"]["faithful"]
    (['cat'], True)
    >>> explain_pair(model, "A cat sleeps on the mat.", "Interest rates rose in Germany.")["explained"]
    False
    """
    for name, text in (("a", a), ("b", b)):
        if not isinstance(text, str):
            raise ValueError(f"{name} must be a text (str), got a {type(text).__name__}: {text!r:.60}.")
    if rate is None:
        raise ValueError("rate must be a fraction in (0, 1], got None.")
    check_selection(rate, None)
    if isinstance(links, bool) or not isinstance(links, int) or links < 0:
        raise ValueError(f"links must be a whole number >= 0, got {links!r}.")
    scored = score_texts(model, [a, b], batch_size=batch_size, use_surface=use_surface, selector=selector)
    explanation = _Explanation(model, scored, rate, batch_size, _chance_of(model) if chance is None else float(chance))
    explanation.verify()
    result: dict[str, Any] = {"similarity": explanation.similarity, "chance": explanation.chance}
    faithfulness = explanation.faithfulness(seed)
    reason = explanation.reason(faithfulness["faithful"])
    result |= {"explained": reason is None, "reason": reason, "notes": explanation.notes()}
    for name, item, side in zip("ab", scored, explanation.sides, strict=True):
        record = {**item.select(rate=rate), "truncated": side.seen.truncated}
        for i, word in enumerate(record["words"]):
            seen = i < len(side.falls)
            word |= {"fall": side.falls[i] if seen else 0.0, "verified": i in side.verified, "carries": i in side.carrying}
        result[name] = record
    return {**result, "links": explanation.links(links), "faithfulness": faithfulness}


def keep_words(text: str, words: Iterable[Span]) -> str:
    """These words of the text alone, a space between them.

    >>> keep_words("Marie Curie moved (to Paris).", [(6, 11), (22, 27)])
    'Curie Paris'
    """
    return " ".join(text[start:end] for start, end in words)


def remove_words(text: str, words: Iterable[Span]) -> str:
    """The text without these words (sorted), and without a second space where one was. Nothing else is lost.

    >>> remove_words("Marie Curie moved (to Paris).", [(6, 11), (22, 27)])
    'Marie moved (to ).'
    """
    kept, position = "", 0
    for start, end in [*words, (len(text), len(text))]:
        piece = text[position:start]
        doubled = position > 0 and piece[:1].isspace() and (not kept or kept[-1].isspace())
        kept, position = kept + (piece[1:] if doubled else piece), end
    return kept


class _SeenText:
    """One text of the pair, as far as the encoder sees it."""

    def __init__(self, model: AnchorModel, text: str, words: Sequence[Span]):
        readable = encodable(text)
        encoded = model.tokenizer(readable, truncation=True, max_length=model.max_length, return_offsets_mapping=True)
        whole = model.tokenizer(readable, truncation=False, return_attention_mask=False, verbose=False)
        self.truncated = len(whole["input_ids"]) > len(encoded["input_ids"])
        self.text = text
        if self.truncated:
            self.text = text[: max(end for _, end in encoded["offset_mapping"])]
        self.words = [span for span in words if span[1] <= len(self.text)]
        self.input_ids: list[int] = encoded["input_ids"]
        self.offsets: list[Span] = [tuple(span) for span in encoded["offset_mapping"]]

    def without(self, chosen: Iterable[int]) -> str:
        return remove_words(self.text, [self.words[i] for i in sorted(chosen)])

    def only(self, chosen: Iterable[int]) -> str:
        return keep_words(self.text, [self.words[i] for i in sorted(chosen)])

    def word(self, number: int) -> str:
        return self.text[slice(*self.words[number])]

    def members(self) -> Tensor:
        """(words, tokens): 1 where a token touches a word."""
        index = WordIndex([self.words], [len(self.text)])
        starts, ends = torch.tensor([self.offsets]).unbind(-1)
        first, count = index.touched(torch.tensor([0]), starts, ends)
        numbers = torch.arange(len(self.words))[:, None]
        return ((numbers >= first) & (numbers < first + count)).float()


def _chance_of(model: AnchorModel) -> float:
    """`chance_similarity`, computed once for a model as long as nobody trains it or loads other weights into it."""
    key = model.config.encoder_fingerprint
    if key is None:
        return chance_similarity(model)
    if key not in _CHANCES:
        _CHANCES[key] = chance_similarity(model)
    return _CHANCES[key]


_CHANCES: dict[str, float] = {}


@dataclass
class _Side:
    """One text of the pair: what is known of its words, and which of them are chosen."""

    seen: _SeenText
    falls: list[float]  # estimated in one pass; then measured, for the verified ones
    proposed: list[int]  # best first
    selected: list[int]  # by the gates
    verified: list[int]
    carrying: list[int]


class _Explanation:
    """The way from two scored texts to the words that carry their similarity."""

    def __init__(self, model: AnchorModel, scored: Sequence[ScoredText], rate: float, batch_size: int, chance: float):
        self.model, self.batch_size, self.chance = model, batch_size, chance
        seen = [_SeenText(model, item.text, item.words) for item in scored]
        self.whole, pooled = _encode(model, seen)
        self.similarity = float(self.whole[0] @ self.whole[1])
        self.sides: list[_Side] = []
        for side, item, (states, _), (_, other) in zip(seen, scored, pooled, pooled[::-1], strict=True):
            falls = _pooled_falls(states, side.members(), other) if side.words else []
            count = count_at_rate(len(side.words), rate) if side.words else 0
            gates = torch.logit(torch.tensor(item.probabilities[: len(side.words)]), eps=1e-6)
            ranks = (_standardised(torch.tensor(falls)) + GATE_WEIGHT * _standardised(gates)).tolist()
            content = [i for i in range(len(falls)) if not is_function_word(side.word(i))] or list(range(len(falls)))
            proposed = sorted(content, key=lambda i: -ranks[i])[: max(count, min(2 * count, VERIFIED))]
            selected = [i for i, chosen in enumerate(item.decide(rate=rate)[: len(falls)]) if chosen]
            self.sides.append(_Side(side, falls, proposed, selected, [], proposed[:count]))
        if self.similarity <= self.chance:
            for of_side in self.sides:
                of_side.carrying = []

    def _embed(self, texts: Sequence[str]) -> Tensor:
        return embed_anchors(self.model, texts, self.batch_size)

    def verify(self) -> None:
        """Measure the falls of the best proposals, and choose those that carry. One batch for both sides."""
        if self.similarity <= self.chance:
            return
        texts: list[str] = []
        for side in self.sides:
            side.verified = side.proposed[: VERIFIED if len(side.proposed) <= VERIFIED else VERIFIED_OF_MANY]
            texts += [side.seen.without([i]) for i in side.verified]
            texts += [side.seen.without(set(side.proposed) - {i}) for i in side.verified]
            texts.append(side.seen.without(side.proposed))
        vectors = self._embed(texts)
        for side, other, rows in zip(self.sides, self.whole.flip(0), self._rows(vectors), strict=True):
            cosines = (rows @ other).tolist()
            number, count = len(side.verified), len(side.carrying)
            for i, alone, last in zip(side.verified, cosines[:number], cosines[number:-1], strict=True):
                side.falls[i] = ((self.similarity - alone) + (last - cosines[-1])) / 2
            measured = sorted(side.verified, key=lambda i: -side.falls[i])
            ranked = [*measured, *side.proposed[number:]]
            side.carrying = [i for i in ranked[:count] if side.falls[i] > self._least(side)]
        self._single = [rows[: len(side.verified)] for side, rows in zip(self.sides, self._rows(vectors), strict=True)]

    def _least(self, side: _Side) -> float:
        return LEAST_SHARE * self.similarity / max(len(side.falls), 1)

    def _rows(self, vectors: Tensor) -> tuple[Tensor, ...]:
        return vectors.split([2 * len(side.verified) + 1 for side in self.sides])

    def links(self, number: int) -> list[dict[str, Any]]:
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
        return [{"a": i, "b": j, "strength": value} for value, i, j in strong[:number]]

    def faithfulness(self, seed: int) -> dict[str, Any]:
        """The check by removal of all carrying words, which may fail."""
        carrying = [set(side.carrying) for side in self.sides]
        if not any(carrying):
            return {"similarity_without": None, "similarity_of_carrying": None, "faithful": None}
        lowest = [
            set(sorted(range(len(side.falls)), key=side.falls.__getitem__)[: len(side.carrying)]) for side in self.sides
        ]
        generator = random.Random(seed)
        draws = [
            [generator.sample(range(len(side.falls)), len(side.carrying)) for side in self.sides]
            for _ in range(RANDOM_DRAWS)
        ]
        texts = [side.seen.only(side.carrying) for side in self.sides]
        removals: list[Sequence[Iterable[int]]] = [carrying, lowest, [side.selected for side in self.sides], *draws]
        for removed in removals:
            texts += [side.seen.without(chosen) for side, chosen in zip(self.sides, removed, strict=True)]
        vectors = self._embed(texts).unflatten(0, (-1, 2))
        of_carrying = float(vectors[0, 0] @ vectors[0, 1])
        # What is left of a against the whole of b, and the other way round: (removals, 2).
        left = (vectors[1:] * self.whole.flip(0)).sum(-1)
        without, of_lowest, of_gates, *of_random = left.mean(-1).tolist()
        similarity = {
            "carrying": without,
            "lowest": of_lowest,
            "random": sum(of_random) / len(of_random),
            "gates": of_gates,
        }
        return {
            "similarity_without": similarity,
            "similarity_of_carrying": of_carrying if all(carrying) else None,
            "faithful": without < min(similarity["lowest"], similarity["random"]) if carrying != lowest else None,
        }

    def reason(self, faithful: bool | None) -> str | None:
        """Why the similarity is not explained; None where it is."""
        if not all(side.seen.words for side in self.sides):
            return "a text has no word"
        if self.similarity <= self.chance:
            return f"the similarity is {self.similarity:.2f}, and unrelated texts may have up to {self.chance:.2f}"
        if not any(side.carrying for side in self.sides):
            return "no word carries more of the similarity than others do: it is spread over the texts"
        return "other words lower the similarity as much as these" if faithful is False else None

    def notes(self) -> list[str]:
        """What the encoder does not see in this pair, by measurement."""
        if self.similarity <= self.chance:
            return []
        words = [[side.seen.word(i).replace("’", "'").lower() for i in range(len(side.falls))] for side in self.sides]
        notes = []
        if words[0] != words[1] and Counter(words[0]) == Counter(words[1]) and self.similarity > SAME_SIMILARITY:
            notes.append(
                f"the texts have the same words in another order; a similarity of {self.similarity:.2f} says that the "
                "encoder hardly sees it"
            )
        negated = [[i for i, word in enumerate(row) if word in NEGATIONS or word.endswith("n't")] for row in words]
        if bool(negated[0]) != bool(negated[1]) and self.similarity > SAME_SIMILARITY:
            number = int(bool(negated[1]))
            side, names = self.sides[number], ", ".join(words[number][i] for i in negated[number])
            vector = self._embed([side.seen.without(negated[number])])[0]
            without = float(vector @ self.whole[1 - number])
            notes.append(
                f"one text alone is negated ({names}); a similarity of {self.similarity:.2f}, and {without:.2f} without "
                "that, says that the encoder hardly sees it"
            )
        return notes


def _encode(model: AnchorModel, sides: Sequence[_SeenText]) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """(2, dim) unit anchors of both texts, and for each the states of its tokens with their mean."""
    batch = model.tokenizer.pad({"input_ids": [side.input_ids or [0] for side in sides]}, return_tensors="pt")
    mask = batch["attention_mask"] * torch.tensor([[bool(side.input_ids)] for side in sides])
    inputs = {"input_ids": batch["input_ids"], "attention_mask": mask}
    out = model(
        **{name: value.to(model.device) for name, value in inputs.items()}, return_embeddings=False, return_dict=True
    )
    anchors = torch.nn.functional.normalize(out.anchor_embedding.float().cpu(), dim=-1)
    states = out.last_hidden_state.float().cpu()
    rows = [row[seen.bool()] for row, seen in zip(states, mask, strict=True)]
    return anchors, [(row, row.mean(0) if len(row) else states.new_zeros(states.shape[-1])) for row in rows]


def _pooled_falls(states: Tensor, members: Tensor, other: Tensor) -> list[float]:
    """How far the cosine of mean states falls without each word's, in one pass: (tokens, dim), (words, tokens), (dim,)."""
    left = (states.sum(0) - members @ states) / (len(states) - members.sum(-1, keepdim=True)).clamp_min(1)
    whole = torch.cosine_similarity(states.mean(0), other, dim=-1)
    return (whole - torch.cosine_similarity(left, other[None], dim=-1)).tolist()


def _standardised(values: Tensor) -> Tensor:
    spread = values.std(correction=0) if len(values) else 1.0
    return (values - values.mean()) / (spread + 1e-6) if len(values) else values
