"""What the page computes, and how much it takes: gates and terms, the words that carry a similarity, matches, and the gates
beside other methods."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ... import __version__
from ...common.models import RELEASED
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
REMEMBERED, REMEMBERED_CHARACTERS = 128, 1_000_000
MATCHES, TERMS = 5, 20


class Remembered:
    """Calls functions of texts, and keeps their last answers: no more than so many, and not of more text than so many
    characters.

    >>> known = Remembered(answers=2, characters=10)
    >>> known(str.upper, "a"), known(str.upper, "a" * 12), len(known.answers)
    ('A', 'AAAAAAAAAAAA', 1)
    """

    def __init__(self, answers: int, characters: int) -> None:
        self.limits, self.answers = (answers, characters), OrderedDict[tuple[Hashable, ...], Any]()

    def __call__(self, function: Callable[..., Any], *arguments: Hashable) -> Any:
        key = (function.__name__, *arguments)
        if key in self.answers:
            self.answers.move_to_end(key)
            return self.answers[key]
        answer = self.answers[key] = function(*arguments)  # an error is not remembered
        most, characters = self.limits
        while len(self.answers) > most or (len(self.answers) > 1 and self._size() > characters):
            self.answers.popitem(last=False)
        return answer

    def _size(self) -> int:
        """An answer is as long as the texts that were asked for, more or less."""
        return sum(len(text) for _, *arguments in self.answers for text in arguments if isinstance(text, str))


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
        self.known = Remembered(REMEMBERED, REMEMBERED_CHARACTERS)

    def describe(self) -> str:
        """The model's name and its encoder's, for people; of a folder its last two parts."""
        name, encoder = self.model.name_or_path, self.model.config.encoder_name_or_path
        if name and Path(name) == RELEASED:
            shown = f"released head of HardKuma {__version__}"
        else:
            shown = "/".join(Path(name).parts[-2:]) if name else "a model that was not saved"
        return f"{shown} on {encoder}" if encoder else shown

    def score(self, text: str, selector: str | None = None) -> ScoredText:
        """One encoding of one text, for the selector that is named, or the one that the page starts with."""
        return self.score_all(text)[self._name(selector)]

    def score_all(self, text: str) -> dict[str, ScoredText]:
        """By the name of every selector; one encoding for all of them."""
        checked = check_text(text, MAX_CHARACTERS, "use the tab Document")
        self._check_tokens(checked, MAX_TOKENS)
        return self.known(self._score_all, checked)

    def records(
        self, text: str, selector: str | None = None, percent: float | None = None, keep: float | None = None
    ) -> dict[str, Record]:
        """What is selected of one text, by the names of the selectors.

        Args:
            selector: a name, or "all".
            percent: the share of words; None for the model's own decision.
            keep: how much of the text's embedding, in per cent, the fewest words are to keep: verified by encoding them.
        """
        scored = self.score_all(text)
        names = self._names(selector)
        if keep is None:
            return {name: scored[name].select(rate=as_fraction(percent)) for name in names}
        checked, share = scored[names[0]].text, as_fraction(keep, KEPT)
        return {name: self.model.gate_records([checked], keep=share, selector=name)[0] for name in names}

    def pair(self, a: str, b: str, percent: float | None = None, selector: str | None = None) -> Record:
        """Which words carry the similarity of two texts."""
        return self.known(
            self._explain, check_compared(a), check_compared(b), as_fraction(percent), selector or self.selector
        )

    def compare(self, text: str, selector: str | None = None) -> list[MethodScores]:
        """The gates and other methods on one text, the gates first."""
        return self.known(self._compare, check_compared(text), selector or self.selector)

    def search(
        self, passages: str, question: str, percent: float | None = None, selector: str | None = None
    ) -> tuple[int, list[Match]]:
        """How many passages there are, one a line or several of a long one, and those nearest to the question."""
        lines = check_lines(passages)
        asked = check_text(question, MAX_CHARACTERS_COMPARED, "ask for less", "Ask a question.")
        self._check_tokens(lines, MAX_TOKENS_LONG)
        return self.known(self._search, lines, asked, as_fraction(percent), selector or self.selector)

    def document(
        self, text: str, percent: float | None = None, selector: str | None = None
    ) -> tuple[dict[str, Record], list[tuple[str, Record]]]:
        """What is selected of a long text, and its key phrases; both sentence by sentence, and both with the name of the
        selector, which may be "all"."""
        checked = check_text(text, MAX_CHARACTERS_DOCUMENT, "use `hardkuma keyphrases`")
        names = self._names(selector)
        self._check_tokens(checked, MAX_TOKENS_LONG)
        of_selectors = self.known(self._score_sentences, checked)
        best: dict[str, tuple[str, Record]] = {}
        for name in names:
            for term in rank_terms(self.model, checked, of_selectors[name], TERMS):
                key = term["text"].casefold()
                if key not in best or term["score"] > best[key][1]["score"]:
                    best[key] = name, term
        terms = sorted(best.values(), key=lambda found: -found[1]["score"])[:TERMS]
        whole = {name: _join_sentences(checked, of_selectors[name]) for name in names}
        return {name: scored.select(rate=as_fraction(percent)) for name, scored in whole.items()}, terms

    def _name(self, selector: str | None) -> str:
        """The selector that is named, or the one that the page starts with; an unknown one is an error."""
        return self.names[self.model.config.find_selector(selector or self.selector)]

    def _names(self, selector: str | None) -> list[str]:
        """The same for "all", which names them all."""
        return list(self.names) if selector == ALL else [self._name(selector)]

    def _check_tokens(self, text: str, most: int) -> None:
        """Characters say little about the work: a row of full stops has a token for each."""
        if exceeds(self.model.tokenizer, [text], most):
            raise RequestError(413, f"The text has more than {most:,} tokens, which is what the encoder reads. Shorten it.")

    def _index(self, lines: str) -> SearchIndex:
        pieces = ((row, piece) for row, line in enumerate(lines.split("\n"), start=1) for piece in cut_passage(line))
        return SearchIndex.build(self.model, (Passage(piece, "", row) for row, piece in pieces))

    def _search(self, lines: str, question: str, rate: float | None, selector: str) -> tuple[int, list[Match]]:
        index, options = self.known(self._index, lines), _rate_option(rate)
        return len(index.passages), index.search(self.model, question, MATCHES, selector=selector, **options)

    def _score_sentences(self, text: str) -> dict[str, list[ScoredText]]:
        """The sentences of a document, scored by every selector."""
        return score_selectors(self.model, document_sentences(text))

    def _score_all(self, text: str) -> dict[str, ScoredText]:
        return {name: scored[0] for name, scored in score_selectors(self.model, [text]).items()}

    def _explain(self, a: str, b: str, rate: float | None, selector: str) -> Record:
        return explain_pair(self.model, a, b, selector=selector, **_rate_option(rate))

    def _compare(self, text: str, selector: str) -> list[MethodScores]:
        start = time.perf_counter()
        gates = score_texts(self.model, [text], selector=selector)[0]
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


def as_fraction(percent: float | None, bounds: tuple[int, int] = RATES) -> float | None:
    """A slider's value as a fraction, kept within its bounds; None, the model's own decision, stays None.

    >>> as_fraction(20), as_fraction(1000), as_fraction(None)
    (0.2, 0.5, None)
    """
    if percent is None:
        return None
    low, high = bounds
    return min(max(percent if percent == percent else low, low), high) / 100
