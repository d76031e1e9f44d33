"""Key terms of a document or a corpus: the spans that the gates select, with counts, spread and an example each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..data.sentences import split_sentences
from ..scoring_hardkuma import GateModel, ScoredText, check_count, score_texts
from ..words_hardkuma import is_function_word

# Words of a term, at most: longer runs of selected words are headlines and lists.
MAX_WORDS = 4
CHUNK = 512


@dataclass(frozen=True)
class Term:
    """A term of some texts.

    Attributes:
        text: as it is written most often.
        count: how often it stands in the texts, however it is written and whether or not it was selected there.
        spread: in how many of the texts.
        score: the sum of its probabilities where it was selected; terms are sorted by it.
        example: the sentence in which it was most probable.
    """

    text: str
    count: int
    spread: int
    score: float
    example: str


@dataclass
class _Candidate:
    forms: Counter[str] = field(default_factory=Counter)
    score: float = 0.0
    best: float = 0.0
    example: str = ""
    rows: set[int] = field(default_factory=set)
    count: int = 0


Key = tuple[str, ...]  # the words of a term, in lower case


def find_terms(
    model: GateModel,
    texts: Iterable[str],
    number: int = 20,
    *,
    selector: str | None = None,
    rate: float | None = None,
    batch_size: int = 32,
) -> list[Term]:
    """The terms of texts, the best first.

    Args:
        model: a HardKumaModel in eval mode, with its tokenizer.
        texts: documents, paragraphs or sentences; they are read sentence by sentence.
        number: how many terms, at most.
        selector: whose words; "meaning" by default, or the first.
        rate: select this fraction of each sentence's words, instead of by the model's own threshold.
        batch_size: as in `score_texts`.

    >>> from hardkuma import load_released
    >>> terms = find_terms(load_released()[0], ["The kraken is a sea monster.", "No kraken was ever caught. The Kraken!"])
    >>> terms[0].text, terms[0].count, terms[0].spread
    ('kraken', 3, 2)
    """
    if isinstance(texts, str):
        raise ValueError("texts must be a list of texts, got one string; wrap it: [text].")
    scored = (
        sentence
        for chunk in _sentences(texts)
        for sentence in zip(
            [row for row, _ in chunk],
            score_texts(model, [text for _, text in chunk], batch_size=batch_size, selector=selector),
            strict=True,
        )
    )
    return rank_terms(scored, number, rate=rate)


def rank_terms(sentences: Iterable[tuple[int, ScoredText]], number: int = 20, *, rate: float | None = None) -> list[Term]:
    """What `find_terms` gives, from sentences that are scored already, each with the number of its text.

    >>> scored = ScoredText("Bob ran.", [(0, 3), (4, 7)], [0.9, 0.1], windows=1, threshold=0.5)
    >>> [(term.text, term.count, term.spread) for term in rank_terms([(0, scored), (1, scored)])]
    [('Bob', 2, 2)]
    """
    check_count("number", number)
    candidates: defaultdict[Key, _Candidate] = defaultdict(_Candidate)
    lines: list[tuple[int, Key]] = []  # the words of every sentence, with the number of its text
    for row, sentence in sentences:
        lines.append((row, _key(sentence, range(len(sentence.words)))))
        for words in _runs(sentence, sentence.decide(rate=rate)):
            candidate, value = candidates[_key(sentence, words)], max(sentence.probabilities[i] for i in words)
            candidate.forms[sentence.text[sentence.words[words[0]][0] : sentence.words[words[-1]][1]]] += 1
            candidate.score += value
            if value > candidate.best:
                candidate.best, candidate.example = value, sentence.text
    _count(candidates, lines)
    ranked = sorted(candidates.items(), key=lambda item: (-item[1].score, item[0]))[:number]
    return [
        Term(found.forms.most_common(1)[0][0], found.count, len(found.rows), found.score, found.example)
        for _, found in ranked
    ]


def _sentences(texts: Iterable[str]) -> Iterator[list[tuple[int, str]]]:
    """Sentences with the number of their text, some hundred at a time."""
    chunk: list[tuple[int, str]] = []
    for row, text in enumerate(texts):
        chunk += [(row, sentence) for sentence in split_sentences(text)]
        if len(chunk) >= CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _key(sentence: ScoredText, words: Sequence[int]) -> Key:
    return tuple(sentence.text[slice(*sentence.words[i])].casefold() for i in words)


def _runs(sentence: ScoredText, chosen: Sequence[bool]) -> Iterator[range]:
    """Neighbouring selected words, without function words at their ends; those that hold a letter."""
    start = 0
    for i in range(1, len(chosen) + 1):
        joined = i < len(chosen) and chosen[i] and chosen[i - 1] and sentence.joins(i)
        if joined:
            continue
        first, past = start, i
        start = i
        if not chosen[first]:
            continue
        words = [sentence.text[slice(*span)] for span in sentence.words[first:past]]
        while words and is_function_word(words[0]):
            words, first = words[1:], first + 1
        while words and is_function_word(words[-1]):
            words, past = words[:-1], past - 1
        if 0 < len(words) <= MAX_WORDS and any(c.isalpha() for word in words for c in word):
            yield range(first, past)


def _count(candidates: dict[Key, _Candidate], lines: Iterable[tuple[int, Key]]) -> None:
    """How often each candidate stands anywhere, and in which texts."""
    for row, words in lines:
        for first in range(len(words)):
            for size in range(1, MAX_WORDS + 1):
                candidate = candidates.get(words[first : first + size]) if first + size <= len(words) else None
                if candidate is not None:
                    candidate.count += 1
                    candidate.rows.add(row)
