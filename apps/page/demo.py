"""What the page computes, and how much it takes: gates and terms, the words that carry a similarity, matches, and the gates
beside other methods."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from ...data.sentences import join_lines
from ...evaluation.baselines import METHODS, SentenceEncoder
from ...handler import BATCH_TOKENS, MAX_TOKENS, RequestError, exceeds
from ...modeling_hardkuma import HardKumaModel
from ...scoring_hardkuma import ALL, Record, ScoredText, encodable, score_selectors, score_texts
from ...words_hardkuma import find_words
from ..pairs import explain_pair
from ..search import Match, Passage, SearchIndex, cut_passage
from ..terms import document_sentences, rank_terms

# A text of the first limit takes about twelve windows; a document of the second is read sentence by sentence, some two
# thousand of them; of two texts some forty variants are encoded, and leave-one-out encodes one for every word.
MAX_CHARACTERS = 10_000
MAX_CHARACTERS_DOCUMENT = 200_000
MAX_CHARACTERS_COMPARED = 1_000
MAX_WORDS_COMPARED = 150
MAX_PASSAGES = 2_000
MAX_CHARACTERS_PASSAGES = 400_000
MAX_TOKENS_LONG = 65_536  # of a document, or of passages: that of 200,000 characters of English, and more
WHOLE_FILES = "use `hardkuma search` for whole files"
RATES = (5, 50)  # per cent, as people think of it; everywhere else a rate is a fraction
KEPT = (30, 95)  # per cent of the meaning
BASELINES = {"attention": "Attention received", "norm": "Norm of the state", "loo_word": "Leave one word out"}
# Answers that are kept, in memory alone. A text or document is encoded once, for every selector and share; pairs, searches
# and comparisons once for each selector, and the former two for each share, since other words are removed then.
REMEMBERED, REMEMBERED_CHARACTERS = 32, 250_000
MATCHES, TERMS = 5, 20


Answer = TypeVar("Answer")


class Remembered(Generic[Answer]):
    """A function whose last answers are kept, but no more than so many, and not of more text than so many characters.

    >>> double = Remembered(lambda text: text * 2, answers=2, characters=10)
    >>> double("a"), double("a" * 12), len(double.known)
    ('aa', 'aaaaaaaaaaaaaaaaaaaaaaaa', 1)
    """

    def __init__(self, function: Callable[..., Answer], answers: int, characters: int) -> None:
        self.function, self.answers, self.characters = function, answers, characters
        self.known: OrderedDict[tuple[Hashable, ...], Answer] = OrderedDict()

    def __call__(self, *arguments: Hashable) -> Answer:
        if arguments in self.known:
            self.known.move_to_end(arguments)
            return self.known[arguments]
        answer = self.known[arguments] = self.function(*arguments)  # an error is not remembered
        while len(self.known) > self.answers or (len(self.known) > 1 and self._size() > self.characters):
            self.known.popitem(last=False)
        return answer

    def _size(self) -> int:
        """An answer is as long as the texts that were asked for, more or less."""
        return sum(len(text) for arguments in self.known for text in arguments if isinstance(text, str))


@dataclass(frozen=True)
class MethodScores:
    """One method's scores of a text.

    Attributes:
        title: the method's name.
        passes: how often the encoder ran.
        seconds: how long it took.
        scored: the words with their shades, from 0 to 1.
        raw: the scores of the words, on the method's own scale.
        missing: how many words are beyond the encoder's length and have no score.
    """

    title: str
    passes: int
    seconds: float
    scored: ScoredText
    raw: list[float]
    missing: int = 0


def shades_by_rank(scores: list[float], shades: list[float]) -> list[float]:
    """The shades, dealt out by rank: the word of the highest score gets the deepest one, and so on.

    Scores of different methods have no common unit, but each ranks the words. With the gates' own shades at every rank
    the methods are shown with equal ink, on the scale of probabilities; what differs is where the ink is.

    >>> shades_by_rank([-3.0, 5.0, 0.0], [0.9, 0.1, 0.4])
    [0.1, 0.9, 0.4]
    """
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    dealt = dict(zip(order, sorted(shades, reverse=True), strict=True))
    return [dealt[i] for i in range(len(scores))]


def _rate_option(rate: float | None) -> dict[str, Any]:
    """The keyword of `explain_pair`, which has a rate of its own where none is asked for."""
    return {} if rate is None else {"rate": rate}


def _join_sentences(text: str, sentences: Sequence[ScoredText]) -> ScoredText:
    """The words of a long text, each as in its sentence alone: what is read together must not outshine the rest."""
    words, probabilities, weights, position, whole = [], [], [], 0, join_lines(text)
    for item in sentences:
        start = whole.index(item.text, position)
        words += [(start + first, start + past) for first, past in item.words]
        probabilities += item.probabilities
        weights += item.weights or []
        position = start + len(item.text)
    windows = sum(item.windows for item in sentences)
    shared = None if sentences[0].weights is None else weights
    return replace(sentences[0], text=text, words=words, probabilities=probabilities, windows=windows, weights=shared)


class Demo:
    """The computations of the page, for one model; the encoder runs here and nowhere else. One call at a time: see
    `handler.Turns`.

    >>> from hardkuma import load_released
    >>> scored = Demo(load_released()[0]).score("Marie Curie moved to Paris.")
    >>> [scored.text[start:end] for start, end in scored.words]
    ['Marie', 'Curie', 'moved', 'to', 'Paris']
    """

    def __init__(self, model: HardKumaModel, selector: str | None = None) -> None:
        # An unknown selector is an error before anything is shown.
        self.names, number = model.config.names, model.config.find_selector(selector)
        self.model, self.selector = model, self.names[number]
        self.encoder = SentenceEncoder.from_model(model)
        model.batch_tokens = BATCH_TOKENS  # who leaves is noticed between batches
        kept = REMEMBERED, REMEMBERED_CHARACTERS
        self._scored = Remembered(self._score_all, *kept)
        self._compared = Remembered(self._compare, *kept)
        self._explained = Remembered(self._explain, *kept)
        self._indexed = Remembered(self._index, *kept)
        self._read = Remembered(self._score_sentences, *kept)
        self._matched = Remembered(self._search, *kept)

    def score(self, text: str, selector: str | None = None) -> ScoredText:
        """One encoding of one text, for the selector that is named, or the one that the page starts with."""
        return self.score_all(text)[self._name(selector)]

    def score_all(self, text: str) -> dict[str, ScoredText]:
        """By the name of every selector; one encoding for all of them."""
        checked = check_text(text, MAX_CHARACTERS, "use the tab Document")
        self._check_tokens(checked, MAX_TOKENS)
        return self._scored(checked)

    def keep(self, text: str, percent: float, selector: str | None = None) -> Record:
        """The record of the fewest words that keep so much of the text's embedding, verified by encoding them."""
        checked = check_text(text, MAX_CHARACTERS, "use the tab Document")
        self._check_tokens(checked, MAX_TOKENS)
        low, high = KEPT
        share = min(max(percent if percent == percent else low, low), high) / 100
        return self.model.gate_records([checked], keep=share, selector=self._name(selector))[0]

    def pair(self, a: str, b: str, percent: float | None = None, selector: str | None = None) -> Record:
        """Which words carry the similarity of two texts."""
        return self._explained(check_compared(a), check_compared(b), as_fraction(percent), selector or self.selector)

    def compare(self, text: str, selector: str | None = None) -> list[MethodScores]:
        """The gates and other methods on one text, the gates first."""
        return self._compared(check_compared(text), selector or self.selector)

    def search(
        self, passages: str, question: str, percent: float | None = None, selector: str | None = None
    ) -> tuple[int, list[Match]]:
        """How many passages there are, one a line or several of a long one, and those nearest to the question."""
        lines = check_lines(passages)
        asked = check_text(question, MAX_CHARACTERS_COMPARED, "ask for less", "Ask a question.")
        self._check_tokens(lines, MAX_TOKENS_LONG)
        return self._matched(lines, asked, as_fraction(percent), selector or self.selector)

    def document(
        self, text: str, percent: float | None = None, selector: str | None = None
    ) -> tuple[dict[str, ScoredText], list[tuple[str, Record]]]:
        """A long text with its words' probabilities, and its key phrases; both sentence by sentence, and both with the name
        of the selector, which may be "all"."""
        checked = check_text(text, MAX_CHARACTERS_DOCUMENT, "use `hardkuma keyphrases`")
        names = list(self.names) if selector == ALL else [self._name(selector)]
        self._check_tokens(checked, MAX_TOKENS_LONG)
        of_selectors = self._read(checked)
        best: dict[str, tuple[str, Record]] = {}
        for name in names:
            for term in rank_terms(self.model, checked, of_selectors[name], TERMS):
                key = term["text"].casefold()
                if key not in best or term["score"] > best[key][1]["score"]:
                    best[key] = name, term
        terms = sorted(best.values(), key=lambda found: -found[1]["score"])[:TERMS]
        return {name: _join_sentences(checked, of_selectors[name]) for name in names}, terms

    def _name(self, selector: str | None) -> str:
        """The selector that is named, or the one that the page starts with; an unknown one is an error."""
        return self.names[self.model.config.find_selector(selector or self.selector)]

    def _check_tokens(self, text: str, most: int) -> None:
        """Characters say little about the work: a row of full stops has a token for each."""
        if exceeds(self.model.tokenizer, [text], most):
            raise RequestError(413, f"The text has more than {most:,} tokens, which is what the encoder reads. Shorten it.")

    def _index(self, lines: str) -> SearchIndex:
        pieces = ((row, piece) for row, line in enumerate(lines.split("\n"), start=1) for piece in cut_passage(line))
        return SearchIndex.build(self.model, (Passage(piece, "", row) for row, piece in pieces))

    def _search(self, lines: str, question: str, rate: float | None, selector: str) -> tuple[int, list[Match]]:
        index, options = self._indexed(lines), _rate_option(rate)
        return len(index.passages), index.search(self.model, question, MATCHES, selector=selector, **options)

    def _score_sentences(self, text: str) -> dict[str, list[ScoredText]]:
        """The sentences of a document, scored by every selector."""
        return score_selectors(self.model, document_sentences(text))

    def _score_all(self, text: str) -> dict[str, ScoredText]:
        return {name: scored[0] for name, scored in score_selectors(self.model, [text]).items()}

    def _score(self, text: str, selector: str) -> ScoredText:
        return score_texts(self.model, [text], selector=selector)[0]

    def _explain(self, a: str, b: str, rate: float | None, selector: str) -> Record:
        return explain_pair(self.model, a, b, selector=selector, **_rate_option(rate))

    def _compare(self, text: str, selector: str) -> list[MethodScores]:
        start = time.perf_counter()
        gates = self._score(text, selector)
        seconds = time.perf_counter() - start
        title = f"HardKuma gates: {selector}" if len(self.names) > 1 else "HardKuma gates"
        results = [MethodScores(title, gates.windows, seconds, gates, gates.probabilities)]
        for name, title in BASELINES.items():
            start = time.perf_counter()
            with self.encoder.counting() as used:
                scores = METHODS[name].scores(self.encoder, [text], [gates.words])[0]
            seconds = time.perf_counter() - start
            shades = shades_by_rank(scores.scores, gates.probabilities)
            scored = ScoredText(scores.text, scores.words, shades, windows=1, threshold=gates.threshold)
            results.append(MethodScores(title, used.forward, seconds, scored, scores.scores, len(scores.missing)))
        return results


# ---- limits ------------------------------------------------------------------------------------------------------------


def check_text(
    text: str | None,
    limit: int,
    where_else: str = "use `hardkuma gates` for long documents",
    missing: str = "Type or paste a text first.",
) -> str:
    """The text, if it has words to show and fits; else a ValueError that says what to do.

    >>> check_text("x" * 12, 10)
    Traceback (most recent call last):
    ValueError: The text has 12 characters; at most 10 fit here. Shorten it, or use `hardkuma gates` for long documents.
    """
    if not text or not text.strip():
        raise ValueError(missing)
    if len(text) > limit:
        raise ValueError(f"The text has {len(text):,} characters; at most {limit:,} fit here. Shorten it, or {where_else}.")
    return encodable(text)


def check_compared(text: str | None) -> str:
    """`check_text` for a text that is encoded once for every word of it: no more words than people wait for.

    >>> check_compared("Rain again.")
    'Rain again.'
    """
    checked = check_text(text, MAX_CHARACTERS_COMPARED)
    words = len(find_words(checked))
    if words > MAX_WORDS_COMPARED:
        raise ValueError(f"The text has {words} words; at most {MAX_WORDS_COMPARED} can be compared here. Shorten it.")
    return checked


def check_lines(text: str | None) -> str:
    """`check_text` for passages, one a line.

    >>> check_lines("x\\n" * 2001)
    Traceback (most recent call last):
    ValueError: There are 2,001 lines; at most 2,000 fit here. Leave some out, or use `hardkuma search` for whole files.
    """
    checked = check_text(text, MAX_CHARACTERS_PASSAGES, WHOLE_FILES, "Paste some lines to search in, or choose a file.")
    lines = sum(bool(line.strip()) for line in checked.split("\n"))
    if lines > MAX_PASSAGES:
        raise ValueError(f"There are {lines:,} lines; at most {MAX_PASSAGES:,} fit here. Leave some out, or {WHOLE_FILES}.")
    return checked


def as_fraction(percent: float | None) -> float | None:
    """The slider's value as a fraction, kept within its bounds; None, the model's own decision, stays None.

    >>> as_fraction(20), as_fraction(1000), as_fraction(None)
    (0.2, 0.5, None)
    """
    if percent is None:
        return None
    low, high = RATES
    return min(max(percent if percent == percent else low, low), high) / 100
