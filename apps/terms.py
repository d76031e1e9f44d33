"""Key phrases of documents, in one pass of the encoder: `find_terms`, `stream_terms`.

A document is read sentence by sentence; candidates are those of candidates.py. With n the words of the document and
L = n^2 / (n^2 + 400^2), which is .1 for an abstract and .8 for a long news text, the score of a phrase is

    gates * cosine * alone^(1/2) * (1 + first / 100)^(-(1 + L) / 2) * often^(L / 2)

    gates     the sum of its words' gates, where that is largest
    cosine    of the phrase with the document: both are sums of what their words mean by themselves (the table of isolated
              tokens), weighed by gates; 1 where the model has no such table
    alone     of all the places where it stands, the share in which it is not inside of a longer phrase
    first     words of the document before it
    often     in how many places it is a candidate

so that place and frequency count for more, the longer the document. The score of a phrase in several documents is the sum.
"""

from __future__ import annotations

import math
import warnings
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from ..data.sentences import join_lines, sentence_spans
from ..scoring_hardkuma import GateModel, ScoredText, check_count, check_options, encodable, score_texts
from ..words_hardkuma import ENGLISH, Span
from .candidates import GatedWords, Key, find_keys, gate_phrases, given_phrases

MAX_WORDS = 4  # of a phrase; longer runs are headlines and lists
LONG = 400.0  # words of a document in which place and frequency count half of what they do at most
EARLY = 100.0  # words in which the weight of a place falls by a half, in long documents
CHUNK = 2048  # sentences that are scored together
VECTORS = 1 << 16  # words whose vectors are kept
KNOWN = 0.1  # share of function words, at least, in text of the model's language
ENOUGH = 40  # words that show the language of a text

Record = dict[str, Any]
_MISSING: Any = object()


def find_terms(
    model: GateModel,
    texts: Iterable[str],
    number: int = 20,
    *,
    candidates: Iterable[Any] | None = None,
    max_words: int = MAX_WORDS,
    diversity: float = 0.0,
    selector: str | None = None,
    batch_size: int = 32,
) -> list[Record]:
    """The key phrases of one document or of all documents of a corpus together, the best first.

    Args:
        model: a HardKumaModel in eval mode, with its tokenizer; or another backend's.
        texts: documents of any length. They are read once, as they come; of each word a few bytes are kept.
        number: how many phrases, at most.
        candidates: for each text what may be a phrase: a spaCy document whose tokens have parts of speech (its noun phrases
            are taken), or a list of spaCy spans, (start, end) or strings. By default runs of words by their gates.
        max_words: of a phrase; longer ones are left out.
        diversity: 0 for the best phrases; towards 1 such as are unlike those before (maximal marginal relevance).
        selector: whose gates; "meaning" by default, or the first.
        batch_size: as in `score_texts`.

    Returns:
        `[{"text", "score", "count", "spread", "example", "places": [{"row", "start", "end"}]}]`: the phrase as it is most
        often written, its score, how often it stands in the texts (however it is written, singular or plural, inside of
        longer phrases too), in how many of them, the sentence in which its gates are largest, and where it stands: the
        number of the text from 0, and characters of it. The score is the sum of the phrase's gates, weighed by how near it
        is to its document and by where and how often it stands there, summed over documents: it ranks phrases, is no
        probability, and may exceed 1.

    >>> from hardkuma import load_released
    >>> terms = find_terms(load_released()[0], ["The kraken is a sea monster.", "No kraken was ever caught. Krakens!"])
    >>> terms[0]["text"], terms[0]["count"], terms[0]["spread"], terms[0]["places"][0]
    ('kraken', 3, 2, {'row': 0, 'start': 4, 'end': 10})
    """
    finder = _Finder(model, number, candidates, max_words, diversity, selector, batch_size)
    phrases: dict[Key, _Phrase] = {}
    corpus = _Places()
    for document in finder.read(texts):
        corpus.add(document.words)
        for key, phrase in finder.rank(document).items():
            if key in phrases:
                phrases[key].add(phrase)
            else:
                phrases[key] = phrase
    return finder.records(phrases, corpus)


def stream_terms(model: GateModel, texts: Iterable[str], number: int = 20, **options: Any) -> Iterator[list[Record]]:
    """What `find_terms` gives of each text by itself, in order and as they come; arguments and options as there.

    >>> from hardkuma import load_released
    >>> texts = ["The kraken is a sea monster.", "", "No kraken was caught."]
    >>> [[term["text"] for term in terms] for terms in stream_terms(load_released()[0], texts, 1)]
    [['kraken'], [], ['kraken']]
    """
    check_options("stream_terms", options, find_terms)
    finder = _Finder(model, number, **options)
    for document in finder.read(texts):
        yield finder.terms(document)


def rank_terms(model: GateModel, text: str, sentences: Sequence[ScoredText], number: int = 20) -> list[Record]:
    """What `find_terms` gives of one document whose sentences, those of `document_sentences`, are scored already.

    >>> from hardkuma import load_released
    >>> text, model = "The kraken is a sea monster.", load_released()[0]
    >>> rank_terms(model, text, score_texts(model, document_sentences(text))) == find_terms(model, [text])
    True
    """
    return _Finder(model, number).terms(_gate(text, sentence_spans(text), sentences))


def document_sentences(text: str) -> list[str]:
    """The sentences of a document as the encoder sees them: without the line ends of wrapped paragraphs.

    >>> document_sentences("The ferry to the island was\\ncancelled. Fog.")
    ['The ferry to the island was cancelled.', 'Fog.']
    """
    whole = encodable(join_lines(text))
    return [whole[start:end] for start, end in sentence_spans(text)]


# ---- documents, read once -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Document:
    """A document with its words.

    Attributes:
        sentences: (start, end) of each.
        firsts: the number of the first word of each sentence.
        phrases: candidates, as numbers of words.
    """

    text: str
    words: GatedWords
    sentences: Sequence[Span]
    firsts: Sequence[int]
    phrases: list[range]


@dataclass
class _Finder:
    """The way from texts to phrases; arguments are those of `find_terms`."""

    model: GateModel
    number: int
    candidates: Iterable[Any] | None = None
    max_words: int = MAX_WORDS
    diversity: float = 0.0
    selector: str | None = None
    batch_size: int = 32

    def __post_init__(self) -> None:
        check_count("number", self.number)
        check_count("max_words", self.max_words)
        if not 0 <= self.diversity <= 1:
            raise ValueError(f"diversity must be in [0, 1], got {self.diversity!r}.")
        self.is_warned = False

    @cached_property
    def meanings(self) -> _Meanings:
        return _Meanings(self.model)

    def read(self, texts: Iterable[str]) -> Iterator[_Document]:
        """Documents with their gates, in order; many sentences are scored together, however few each document has."""
        if isinstance(texts, str):
            raise ValueError("texts must be a list of texts, got one string; wrap it: [text].")
        waiting: list[tuple[str, list[Span], Any]] = []
        sentences: list[str] = []
        paired = ((text, None) for text in texts) if self.candidates is None else _pairs(texts, self.candidates)
        for text, given in paired:
            if not isinstance(text, str):
                raise ValueError(f"a text must be a string, got {type(text).__name__}.")
            waiting.append((text, sentence_spans(text), given))
            sentences += document_sentences(text)
            if len(sentences) >= CHUNK:
                yield from self._score(waiting, sentences)
                waiting, sentences = [], []
        yield from self._score(waiting, sentences)

    def _score(self, waiting: Sequence[tuple[str, list[Span], Any]], sentences: list[str]) -> Iterator[_Document]:
        rows = iter(score_texts(self.model, sentences, selector=self.selector, batch_size=self.batch_size))
        for text, spans, given in waiting:
            document = _gate(text, spans, [next(rows) for _ in spans], given)
            self._check_language(document.words)
            yield document

    def _check_language(self, text: GatedWords) -> None:
        """Say once that a text has few of the function words that the model knows."""
        words = text.words
        known = sum(map(text.language.is_function_word, words))
        if not self.is_warned and len(words) >= ENOUGH and known < KNOWN * len(words):
            self.is_warned = True
            warnings.warn(
                f"{known} of {len(words)} words of a text are function words that the model knows: is it a list? "
                "Phrases are cut by gates and punctuation alone there; candidates= takes those of a tagger.",
                stacklevel=5,
            )

    def terms(self, document: _Document) -> list[Record]:
        """The phrases of one document."""
        places = _Places()
        places.add(document.words)
        return self.records(self.rank(document), places)

    def records(self, phrases: dict[Key, _Phrase], places: _Places) -> list[Record]:
        """The best phrases, and where they stand."""
        best = self._best(phrases)
        found = places.find([key for key, _ in best])
        return [phrase.record(found[key]) for key, phrase in best]

    def rank(self, document: _Document) -> dict[Key, _Phrase]:
        """All candidates of a document with their scores."""
        words, text = document.words, document.text
        found: dict[Key, list[range]] = {}
        for phrase in document.phrases:
            if len(phrase) <= self.max_words:
                found.setdefault(tuple(words.keys[phrase.start : phrase.stop]), []).append(phrase)
        if not found:
            return {}
        counts = Counter(tuple(words.keys[place.start : place.stop]) for place in find_keys(words.keys, words.joins, found))
        best = {
            key: max(places, key=lambda place: sum(words.gates[place.start : place.stop])) for key, places in found.items()
        }
        cosines = self.meanings.cosines(words, list(best.values()))
        length = len(words.words) ** 2 / (len(words.words) ** 2 + LONG**2)
        phrases = {}
        for (key, place), cosine in zip(best.items(), cosines, strict=True):
            own = found[key]
            gates = sum(words.gates[place.start : place.stop])
            early = (1 + own[0].start / EARLY) ** (-(1 + length) / 2)
            alone = len(own) / max(len(own), counts[key])
            sentence = document.sentences[int(np.searchsorted(document.firsts, place.start, side="right")) - 1]
            forms = Counter(" ".join(text[words.spans[p.start][0] : words.spans[p.stop - 1][1]].split()) for p in own)
            score = gates * cosine * math.sqrt(alone) * early * len(own) ** (length / 2)
            phrases[key] = _Phrase(forms, score, gates, " ".join(text[slice(*sentence)].split()))
        return phrases

    def _best(self, phrases: dict[Key, _Phrase]) -> list[tuple[Key, _Phrase]]:
        """The best phrases; with diversity, one after the other, such as are unlike those before."""
        ranked = sorted(phrases.items(), key=lambda item: (-item[1].score, item[0]))
        number, diversity = self.number, self.diversity
        if diversity == 0 or len(ranked) < 2:
            return ranked[:number]
        ranked = ranked[: max(10 * number, 100)]
        alike = self.meanings.similarities([key for key, _ in ranked])
        worth = np.array([phrase.score for _, phrase in ranked]) / max(ranked[0][1].score, 1e-12)
        chosen = [0]
        while len(chosen) < min(number, len(ranked)):
            margin = (1 - diversity) * worth - diversity * alike[:, chosen].max(1)
            margin[chosen] = -math.inf
            chosen.append(int(margin.argmax()))
        return [ranked[i] for i in chosen]


def _pairs(texts: Iterable[str], candidates: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for text, given in zip_longest(texts, candidates, fillvalue=_MISSING):
        if text is _MISSING or given is _MISSING:
            raise ValueError(
                f"candidates must be one item for each text; there are {'more' if text is _MISSING else 'fewer'}."
            )
        yield text, given


def _gate(text: str, sentences: Sequence[Span], scored: Sequence[ScoredText], given: Any = None) -> _Document:
    """The document whose sentences are these, with its candidates."""
    firsts: list[int] = []
    words: list[str] = []
    spans: list[Span] = []
    gates: list[float] = []
    joins: list[bool] = []
    for row, (offset, _) in zip(scored, sentences, strict=True):
        firsts.append(len(words))
        words += [row.word(i) for i in range(len(row.words))]
        spans += [(offset + start, offset + end) for start, end in row.words]
        gates += row.probabilities
        joins += [i > 0 and row.joins(i) for i in range(len(row.words))]
    gated = GatedWords(words, spans, gates, joins, scored[0].language if scored else ENGLISH)
    if given is None:
        return _Document(text, gated, sentences, firsts, gate_phrases(gated))
    phrases = given_phrases(gated, text, given)
    inside = {i for phrase in phrases for i in phrase[1:]}  # punctuation does not cut what is given
    gated = replace(gated, joins=[joined or i in inside for i, joined in enumerate(joins)])
    return _Document(text, gated, sentences, firsts, phrases)


# ---- scores -------------------------------------------------------------------------------------------------------------


@dataclass
class _Phrase:
    """A candidate of one document or several.

    Attributes:
        forms: how it is written, and how often.
        score: see above; the sum over documents.
        gates: the largest sum of its words' gates.
        example: the sentence of that.
    """

    forms: Counter[str] = field(default_factory=Counter)
    score: float = 0.0
    gates: float = -1.0
    example: str = ""

    def add(self, other: _Phrase) -> None:
        """The same phrase in another document."""
        self.forms += other.forms
        self.score += other.score
        if other.gates > self.gates:
            self.gates, self.example = other.gates, other.example

    def record(self, places: list[dict[str, int]]) -> Record:
        return {
            "text": self.forms.most_common(1)[0][0],
            "score": self.score,
            "count": len(places),
            "spread": len({place["row"] for place in places}),
            "example": self.example,
            "places": places,
        }


class _Meanings:
    """What words mean by themselves: unit vectors of the gate head's table of isolated tokens, where it has one."""

    def __init__(self, model: GateModel):
        self._head, self._tokenizer = model.gate_head, model.tokenizer
        self._known: OrderedDict[str, np.ndarray] = OrderedDict()

    @torch.inference_mode()
    def _vectors(self, words: Sequence[str]) -> np.ndarray | None:
        """(words, directions), or None."""
        if not hasattr(self._head, "isolated_table"):
            return None
        folded = [encodable(word.lower()) for word in words]
        new = [word for word in dict.fromkeys(folded) if word not in self._known]
        if new:
            ids = self._tokenizer(new, add_special_tokens=False, return_attention_mask=False)["input_ids"]
            flat = torch.tensor([i for row in ids for i in row], dtype=torch.long, device=self._head.isolated_table.device)
            rows = torch.arange(len(ids)).repeat_interleave(torch.tensor([len(row) for row in ids]))
            sums = torch.zeros(len(ids), self._head.isolated_table.shape[1])
            sums.index_add_(0, rows, self._head.isolated_rows(flat).cpu())
            self._known.update(zip(new, torch.nn.functional.normalize(sums, dim=-1).numpy(), strict=True))
        result = np.stack([self._known[word] for word in folded])
        while len(self._known) > VECTORS:
            self._known.popitem(last=False)
        return result

    def cosines(self, words: GatedWords, phrases: Sequence[range]) -> list[float]:
        """Of each phrase with its document; never below .01, so that gates decide between phrases that are far off."""
        inside = [i for i, word in enumerate(words.words) if not words.language.is_function_word(word)]
        inside = sorted({*inside, *(i for phrase in phrases for i in phrase)})
        vectors = self._vectors([words.words[i] for i in inside])
        if vectors is None:
            return [1.0] * len(phrases)
        weighed = vectors * np.array([words.gates[i] for i in inside])[:, None]
        row = {number: i for i, number in enumerate(inside)}
        document = _unit(weighed.sum(0))
        sums = np.stack([weighed[row[phrase.start] : row[phrase.stop - 1] + 1].sum(0) for phrase in phrases])
        return [max(0.01, float(value)) for value in _unit(sums) @ document]

    def similarities(self, keys: Sequence[Key]) -> np.ndarray:
        """(phrases, phrases) how alike phrases are: cosines, or the share of common words where there is no table."""
        vectors = self._vectors([word for key in keys for word in key])
        if vectors is None:
            sets = [set(key) for key in keys]
            return np.array([[len(a & b) / len(a | b) for b in sets] for a in sets])
        ends = np.cumsum([len(key) for key in keys])
        units = _unit(np.stack([vectors[end - len(key) : end].sum(0) for key, end in zip(keys, ends, strict=True)]))
        return units @ units.T


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)


# ---- where phrases stand ------------------------------------------------------------------------------------------------


class _Places:
    """The words of many documents, each in one form, in 13 bytes a word: phrases are found in all of them at the end."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._documents: list[tuple[array[int], bytes, array[int], array[int]]] = []

    def add(self, words: GatedWords) -> None:
        """The words of the next document."""
        numbers = array("i", [self._numbers.setdefault(key, len(self._numbers)) for key in words.keys])
        # Characters of a document; 4 bytes as long as it has less than 2 billion.
        starts, ends = (array("I", [span[edge] for span in words.spans]) for edge in (0, 1))
        self._documents.append((numbers, bytes(words.joins), starts, ends))

    def find(self, keys: Sequence[Key]) -> dict[Key, list[dict[str, int]]]:
        """Every place of each of these phrases."""
        coded = {tuple(self._numbers[word] for word in key): key for key in keys}
        places: dict[Key, list[dict[str, int]]] = {key: [] for key in keys}
        for row, (numbers, joins, starts, ends) in enumerate(self._documents):
            for place in find_keys(numbers, joins, coded):
                key = coded[tuple(numbers[place.start : place.stop])]
                places[key].append({"row": row, "start": starts[place.start], "end": ends[place.stop - 1]})
        return places
