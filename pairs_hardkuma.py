"""Which words carry the similarity of two texts? Answered by removing them and looking how far the cosine falls."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from .gates_hardkuma import count_at_rate
from .surface_hardkuma import Span
from .words_hardkuma import GateModel, check_selection, encodable, score_texts

RANDOM_DRAWS = 10


class PairModel(GateModel, Protocol):
    """What explaining a pair needs of a model beside its gates; a `HardKumaModel` has it."""

    def sentence_features(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        embedding: str = "rationale",
        rate: float | None = None,
    ) -> dict[str, Tensor]:
        """{"embedding": (batch, dim)}."""
        ...


@torch.inference_mode()
def explain_pair(
    model: PairModel,
    a: str,
    b: str,
    *,
    rate: float = 0.2,
    links: int = 10,
    seed: int = 0,
    batch_size: int = 32,
    use_surface: bool = True,
    selector: str | None = None,
) -> dict[str, Any]:
    """The words on each side that carry the similarity of two texts, of plain JSON values.

    The similarity is the cosine of the encoder's own embeddings, which is what sentence-transformers gives. Each word is
    removed from its text in turn and the text encoded again: as many sentences as there are words on both sides.

    Args:
        model: a HardKumaModel in eval mode, with its tokenizer.
        rate: the fraction of the words of each side, in (0, 1], that the gates select and that may be said to carry the
            similarity.
        links: how many pairs of words to report at most.
        seed: for the random words of the faithfulness check.
        batch_size, use_surface, selector: as in `score_texts`.

    Returns:
        similarity: the cosine of the two texts.
        a, b: records as of `ScoredText.select(rate)` (with the gates' decision as "selected"), whose words also have
            - fall: the cosine with the word minus the cosine without it; positive if the word makes the texts similar.
            - carries: whether it is among the `rate` words with the largest fall, and the fall is positive.
            and the side also "truncated": whether the encoder, which takes so many tokens and no more, has not seen the
            end. Words there are listed, with a fall of 0.
        links: {"a", "b", "strength"} with the numbers of two words, strongest first: how much further the cosine falls
            without the one while the other is there. Positive ones only.
        faithfulness: what removing all these words does, from one side at a time, compared with the other side as it is
            (without the same words on both sides identical texts would stay identical); mean of both.
            - similarity_without: the cosine by what was removed: the "carrying" words, as many with the "lowest" fall, as
              many "random" ones (mean of 10 draws), and the words that the "gates" select (which may be more).
            - similarity_of_carrying: of these words alone; None where a side has none.
            - faithful: whether the cosine is lower without the carrying words than without the lowest and random ones;
              None where no word carries, or where there are no others to compare with.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> pair = explain_pair(model, "A cat sleeps on the mat.", "My cat is called Tom.")
    >>> [word["word"] for word in pair["a"]["words"] if word["carries"]], pair["faithfulness"]["faithful"]
    (['cat'], True)
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
    sides = [_SeenText(model, item.text, item.words) for item in scored]
    vectors = _embed(model, [text for side in sides for text in side.variants()], batch_size)
    first, second = vectors[: len(sides[0].words) + 1], vectors[len(sides[0].words) + 1 :]
    # Row and column 0 are the whole texts, the others lack one word each.
    cosines = first @ second.T
    similarity = float(cosines[0, 0])
    falls = [(similarity - cosines[1:, 0]).tolist(), (similarity - cosines[0, 1:]).tolist()]
    carrying = [_top(values, rate) for values in falls]
    result: dict[str, Any] = {"similarity": similarity}
    for name, item, side, values, top in zip("ab", scored, sides, falls, carrying, strict=True):
        result[name] = {**item.select(rate=rate), "truncated": side.truncated}
        for i, word in enumerate(result[name]["words"]):
            word["fall"] = values[i] if i < len(values) else 0.0
            word["carries"] = i in top
    result["links"] = _links(cosines, links)
    gates = [
        {i for i, word in enumerate(result[name]["words"][: len(side.words)]) if word["selected"]}
        for name, side in zip("ab", sides, strict=True)
    ]
    whole = torch.stack([first[0], second[0]])
    result["faithfulness"] = _faithfulness(model, sides, whole, falls, carrying, gates, seed, batch_size)
    return result


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

    def __init__(self, model: PairModel, text: str, words: Sequence[Span]):
        readable = encodable(text)
        encoded = model.tokenizer(readable, truncation=True, max_length=model.max_length, return_offsets_mapping=True)
        whole = model.tokenizer(readable, truncation=False, return_attention_mask=False, verbose=False)
        self.truncated = len(whole["input_ids"]) > len(encoded["input_ids"])
        self.text = text
        if self.truncated:
            self.text = text[: max(end for _, end in encoded["offset_mapping"])]
        self.words = [span for span in words if span[1] <= len(self.text)]

    def without(self, chosen: Iterable[int]) -> str:
        return remove_words(self.text, [self.words[i] for i in sorted(chosen)])

    def only(self, chosen: Iterable[int]) -> str:
        return keep_words(self.text, [self.words[i] for i in sorted(chosen)])

    def variants(self) -> list[str]:
        return [self.text, *(self.without([i]) for i in range(len(self.words)))]


def _embed(model: PairModel, texts: Sequence[str], batch_size: int) -> Tensor:
    """Unit vectors of the encoder's own sentence embeddings, (texts, dim); zeros where there is nothing to embed."""
    readable = [encodable(text) for text in texts]
    encoded = model.tokenizer(readable, truncation=True, max_length=model.max_length)["input_ids"]
    order = sorted(range(len(texts)), key=lambda i: len(encoded[i]))
    vectors: dict[int, Tensor] = {}
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        batch = model.tokenizer.pad({"input_ids": [encoded[i] or [0] for i in rows]}, return_tensors="pt").to(model.device)
        mask = batch["attention_mask"] * torch.tensor([[bool(encoded[i])] for i in rows], device=model.device)
        anchors = model.sentence_features(batch["input_ids"], mask, embedding="anchor")["embedding"].float().cpu()
        vectors.update(zip(rows, anchors, strict=True))
    return torch.nn.functional.normalize(torch.stack([vectors[i] for i in range(len(texts))]), dim=-1)


def _top(falls: Sequence[float], rate: float) -> set[int]:
    ranked = sorted(range(len(falls)), key=lambda i: -falls[i])[: count_at_rate(len(falls), rate)]
    return {i for i in ranked if falls[i] > 0}


def _links(cosines: Tensor, number: int) -> list[dict[str, Any]]:
    # The fall without word i, minus the same fall where word j is missing already.
    strength = cosines[0, 0] - cosines[1:, :1] - cosines[:1, 1:] + cosines[1:, 1:]
    flat = strength.flatten()
    best = flat.topk(min(number, len(flat)))
    width = max(strength.shape[1], 1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [{"a": i // width, "b": i % width, "strength": value} for i, value in pairs if value > 0]


def _faithfulness(
    model: PairModel,
    sides: Sequence[_SeenText],
    whole: Tensor,
    falls: Sequence[Sequence[float]],
    carrying: Sequence[set[int]],
    gates: Sequence[set[int]],
    seed: int,
    batch_size: int,
) -> dict[str, Any]:
    lowest = [
        set(sorted(range(len(row)), key=row.__getitem__)[: len(top)]) for row, top in zip(falls, carrying, strict=True)
    ]
    generator = random.Random(seed)
    draws = [
        [generator.sample(range(len(row)), len(top)) for row, top in zip(falls, carrying, strict=True)]
        for _ in range(RANDOM_DRAWS)
    ]
    texts = [side.only(top) for side, top in zip(sides, carrying, strict=True)]
    for removed in (carrying, lowest, gates, *draws):
        texts += [side.without(chosen) for side, chosen in zip(sides, removed, strict=True)]
    vectors = _embed(model, texts, batch_size).unflatten(0, (-1, 2))
    of_carrying = float(vectors[0, 0] @ vectors[0, 1])
    # What is left of a against the whole of b, and the other way round: (removals, 2).
    left = (vectors[1:] * whole.flip(0)).sum(-1)
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
