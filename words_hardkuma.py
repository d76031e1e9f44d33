"""From token gates to words of the original text: character offsets, long texts in windows, selection by rate.

`score_texts` runs the encoder once; `ScoredText.select` decides, at any rate or threshold, without running it again.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from .configuration_hardkuma import HardKumaConfig
from .gates_hardkuma import count_at_rate
from .records_hardkuma import ALL, Record, join_records
from .scoring_hardkuma import GateModel, Part, TextChunk, run_parts
from .surface_hardkuma import Span, check_words, is_function_word
from .windows_hardkuma import AGGREGATES

# What may stand between two selected words of one span. A line break or any other punctuation ends a span.
_BETWEEN = re.compile(r"[^\S\n\r\f\v\x85\u2028\u2029]*(?:&[^\S\n\r\f\v\x85\u2028\u2029]*)?|–")
_AFTER_INITIAL = re.compile(r"\.[^\S\n\r\f\v\x85\u2028\u2029]*")
# Words with a full stop inside of a name, and words that link the parts of one: St. Petersburg, Museum of Modern Art.
_ABBREVIATIONS = re.compile("Capt|Col|Dr|Ft|Gen|Gov|Hon|Lt|Mr|Mrs|Ms|Mt|Prof|Rep|Rev|Sen|Sgt|St")
_LINKS = re.compile("al|bin|da|de|del|den|der|des|di|do|dos|du|el|ibn|la|las|le|los|of|the|ter|van|von|y|zu")


@dataclass(frozen=True)
class ScoredText:
    """A text whose words have their probabilities; nothing is decided yet.

    Attributes:
        text: as it was given.
        words: (start, end) of each word, in order.
        probabilities: one for each word, in [0, 1]: the largest of its tokens'.
        windows: how many times the encoder ran over parts of the text; 1 for a text that fits into it, also if empty.
        threshold: the model's own, which decides where neither rate nor threshold is given.
        unit: what the selector's gates belong to; see `selector_unit` in the configuration.
        scores: one for each word, where another `aggregate` of its tokens' probabilities than the largest was asked for.
    """

    text: str
    words: list[Span]
    probabilities: list[float]
    windows: int
    threshold: float
    unit: str = "token"
    scores: list[float] | None = None

    def decide(self, rate: float | None = None, threshold: float | None = None) -> list[bool]:
        """Which words are selected: the `rate` most probable ones, or those above `threshold`.

        At a rate the earlier of equally probable words comes first. Where the selector is after meaning or names
        (`unit` is "word" or "name"), words of grammar come after all others. Where it is after names, a name is selected
        whole, even if that makes more words than the rate. Where it is after meaning (`unit` is "word") and no word passes
        the model's own threshold, the most probable one is selected: every sentence has words that carry it, but one of
        words of grammar alone, of which none is selected then.

        >>> scored = ScoredText("Marie moved", [(0, 5), (6, 11)], [0.9, 0.2], windows=1, threshold=0.5)
        >>> scored.decide(), scored.decide(threshold=0.1), scored.decide(rate=1.0)
        ([True, False], [True, True], [True, True])
        """
        check_selection(rate, threshold)
        if rate is not None:
            return self._decide_rate(count_at_rate(len(self.words), rate, self.unit))
        if threshold is None and self._is_grammar():
            return [False] * len(self.words)
        bar = self.threshold if threshold is None else threshold
        chosen = [value > bar for value in self.probabilities]
        if threshold is None and self.unit == "word" and not any(chosen):
            return self._decide_rate(min(1, len(self.words)))
        return chosen

    def _decide_rate(self, count: int) -> list[bool]:
        """The best `count` words, in whole names where the selector is after names."""
        grammar_last = self.unit in ("word", "name")
        ranks = [
            (not (grammar_last and is_function_word(self.text[start:end])), value)
            for (start, end), value in zip(self.words, self.probabilities, strict=True)
        ]
        names = self._names() if self.unit == "name" else [[i] for i in range(len(ranks))]
        names.sort(key=lambda name: max(ranks[i] for i in name), reverse=True)
        chosen = [False] * len(ranks)
        for name in names:
            if count <= 0:
                break
            for i in name:
                chosen[i] = True
            count -= len(name)
        return chosen

    def _is_grammar(self) -> bool:
        """Whether a selector that is after meaning has words of grammar before it, and no others."""
        if self.unit != "word" or not self.words:
            return False
        return all(is_function_word(self.text[start:end]) for start, end in self.words)

    def _names(self) -> list[list[int]]:
        """Numbers of the words of each name, in order: neighbours that each have half of the model's threshold, beside at
        least one that passes it, with one or two links (`of`, `van der`) between them or none. Every other word is by
        itself."""
        likely = self.threshold / 2
        names: list[list[int]] = []
        for i, value in enumerate(self.probabilities):
            before = i - 1  # the last word that is no link
            while before > 0 and i - before < 3 and self._is_link(before) and self.joins(before + 1):
                before -= 1
            joins = before >= 0 and self.joins(before + 1) and not self._is_link(i)
            joins = joins and min(value, self.probabilities[before]) > likely
            if joins and max(value, self.probabilities[before]) > self.threshold:
                joined: list[int] = []
                while not joined or joined[0] > before:  # the links are by themselves so far
                    joined = names.pop() + joined
                names.append([*joined, i])
            else:
                names.append([i])
        return names

    def _is_link(self, number: int) -> bool:
        start, end = self.words[number]
        return _LINKS.fullmatch(self.text, start, end) is not None

    def select(self, rate: float | None = None, threshold: float | None = None) -> Record:
        """The record of this text, of plain JSON values; the encoder does not run again.

        Args:
            rate: select this fraction of the words, the most probable ones, but at least one; in (0, 1].
            threshold: select words whose probability exceeds this; in [0, 1]. By default the model's own.

        Returns:
            `{"text", "words": [{"word", "start", "end", "probability", "selected"}],
            "spans": [{"text", "start", "end", "probability"}], "rate", "windows"}`. A span joins selected words that have
            nothing but spaces, an & or an en dash between them (or the full stop of an initial or a title: J. Smith,
            Dr. Smith); its probability is the largest of its words'. "rate" is the fraction of words that are selected, 0.0
            where there are none. Where no word is selected, "reason" says why.

        >>> scored = ScoredText("Marie Curie moved", [(0, 5), (6, 11), (12, 17)], [0.9, 0.8, 0.2], 1, 0.5)
        >>> record = scored.select()
        >>> record["spans"], round(record["rate"], 2)
        ([{'text': 'Marie Curie', 'start': 0, 'end': 11, 'probability': 0.9}], 0.67)
        """
        text, chosen = self.text, self.decide(rate, threshold)
        words = [
            {"word": text[start:end], "start": start, "end": end, "probability": value, "selected": selected}
            for (start, end), value, selected in zip(self.words, self.probabilities, chosen, strict=True)
        ]
        record = {
            "text": text,
            "words": words,
            "spans": self._spans(chosen),
            "rate": sum(chosen) / len(chosen) if chosen else 0.0,
            "windows": self.windows,
        }
        if not any(chosen):
            record["reason"] = self._reason(threshold)
        return record

    def _reason(self, threshold: float | None) -> str:
        """Why no word is selected."""
        if not self.words:
            return "the text has no word"
        if threshold is None and self._is_grammar():
            return "the text has no content word"
        return f"no word is more probable than {self.threshold if threshold is None else threshold:g}"

    def _spans(self, chosen: Sequence[bool]) -> list[dict[str, Any]]:
        spans: list[dict[str, Any]] = []
        before = -2  # number of the last selected word
        for i, selected in enumerate(chosen):
            if not selected:
                continue
            (start, end), value = self.words[i], self.probabilities[i]
            if before == i - 1 and self.joins(i):
                span = spans[-1]
                span["end"], span["probability"] = end, max(span["probability"], value)
            else:
                spans.append({"text": "", "start": start, "end": end, "probability": value})
            before = i
        for span in spans:
            span["text"] = self.text[span["start"] : span["end"]]
        return spans

    def joins(self, number: int) -> bool:
        """Whether this word and the one before it may be of one span: nothing but spaces and the like between them.

        >>> ScoredText("Marie Curie, Paris", [(0, 5), (6, 11), (13, 18)], [0.9] * 3, 1, 0.5).joins(1)
        True
        """
        return self._adjacent(*self.words[number - 1], self.words[number][0])

    def _adjacent(self, start: int, end: int, following: int) -> bool:
        if self.text[end:following] == " " or _BETWEEN.fullmatch(self.text, end, following):
            return True
        initial = end - start == 1 and self.text[start].isupper()
        shortened = initial or _ABBREVIATIONS.fullmatch(self.text, start, end) is not None
        return shortened and _AFTER_INITIAL.fullmatch(self.text, end, following) is not None


def check_selector(config: HardKumaConfig, selector: str | None) -> None:
    """ValueError, with the names that there are, for a selector that a record cannot be asked for.

    >>> check_selector(HardKumaConfig(), "all")
    """
    if selector != ALL:
        config.find_selector(selector)


def check_selection(rate: float | None, threshold: float | None) -> None:
    """Rate and threshold are fractions, and at most one of them is given.

    >>> check_selection(20, None)
    Traceback (most recent call last):
    ValueError: rate must be a fraction in (0, 1], got 20.
    """
    if rate is not None and threshold is not None:
        raise ValueError(f"give rate or threshold, not both; got rate={rate} and threshold={threshold}.")
    if rate is not None and not (_is_number(rate) and 0 < rate <= 1):
        raise ValueError(f"rate must be a fraction in (0, 1], got {rate!r}.")
    if threshold is not None and not (_is_number(threshold) and 0 <= threshold <= 1):
        raise ValueError(f"threshold must be a probability in [0, 1], got {threshold!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_count(name: str, value: Any) -> None:
    """A number of things is a whole number, at least 1.

    >>> check_count("batch_size", 0)
    Traceback (most recent call last):
    ValueError: batch_size must be a whole number >= 1, got 0.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name} must be a whole number >= 1, got {value!r}.")


def gate_records(
    model: GateModel,
    texts: Sequence[str],
    *,
    rate: float | None = None,
    threshold: float | None = None,
    batch_size: int = 32,
    use_surface: bool = True,
    selector: str | None = None,
) -> list[Record]:
    """`score_texts` and `ScoredText.select` in one: a record for each text, in order. With `selector="all"` a record has
    the gates of all selectors; see `join_records`.

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> record = gate_records(model, ["Marie Curie moved to Paris."], rate=0.4)[0]
    >>> [word["word"] for word in record["words"]], record["rate"]
    (['Marie', 'Curie', 'moved', 'to', 'Paris'], 0.4)
    """
    options: Any = {"rate": rate, "threshold": threshold, "selector": selector}
    return next(stream_records(model, [texts], batch_size=batch_size, use_surface=use_surface, **options))


@torch.inference_mode()
def stream_records(
    model: GateModel,
    parts: Iterable[Sequence[str]],
    *,
    rate: float | None = None,
    threshold: float | None = None,
    batch_size: int = 32,
    use_surface: bool = True,
    selector: str | None = None,
) -> Iterator[list[Record]]:
    """`gate_records` of one list of texts after the other. A model that works on several batches at once reads later
    lists before it has given back the first, and is not idle between them.

    >>> from hardkuma import load_released
    >>> for records in stream_records(load_released()[0], [["Marie Curie moved to Paris."], ["Rain.", ""]]):
    ...     print(len(records), len(records[0]["words"]))
    1 5
    2 1
    """
    check_selection(rate, threshold)
    names = model.config.names
    chosen = list(range(len(names))) if selector == ALL else [model.config.find_selector(selector)]
    for scored in _score(model, ((texts, None) for texts in parts), batch_size, use_surface, chosen, "max"):
        rows = [[text.select(rate, threshold) for text in texts] for texts in scored]
        if selector == ALL:
            yield [join_records(dict(zip(names, row, strict=True))) for row in zip(*rows, strict=True)]
        else:
            yield rows[0]


@torch.inference_mode()
def score_texts(
    model: GateModel,
    texts: Sequence[str],
    *,
    words: Sequence[Sequence[Span]] | None = None,
    batch_size: int = 32,
    use_surface: bool = True,
    selector: str | None = None,
    aggregate: str = "max",
) -> list[ScoredText]:
    """Selection probabilities of the words of each text, in order; nothing is cut, and batch-mates do not matter.

    A text longer than the encoder takes runs in windows that overlap by a quarter. A word takes its value from the window
    in which it stands furthest from an edge; if that is a tie (a word longer than the overlap), the largest.

    Args:
        model: a HardKumaModel in eval mode, with its (fast) tokenizer.
        texts: any number of texts of any length.
        words: (start, end) of the words of each text, sorted; by default those that `find_words` sees. A word that no
            token touches has probability 0.
        batch_size: windows per forward pass.
        use_surface: apply the word-shape log-odds that the model holds.
        selector: the name of a selector; "meaning" by default, or the first.
        aggregate: "max", or what `ScoredText.scores` is to hold beside the probabilities: "sum" (the expected number of
            selected tokens of a word), "mean" or "first".

    >>> from hardkuma import HardKumaModel
    >>> model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    >>> scored = score_texts(model, ["Marie Curie moved to Paris.", ""])
    >>> scored[0].words, scored[1].words
    ([(0, 5), (6, 11), (12, 17), (18, 20), (21, 26)], [])
    """
    number = model.config.find_selector(selector)
    return next(_score(model, [(texts, words)], batch_size, use_surface, [number], aggregate))[0]


@torch.inference_mode()
def score_selectors(
    model: GateModel,
    texts: Sequence[str],
    *,
    words: Sequence[Sequence[Span]] | None = None,
    batch_size: int = 32,
    use_surface: bool = True,
) -> dict[str, list[ScoredText]]:
    """What `score_texts` gives for each of the model's selectors, by its name; the encoder runs once for all of them.

    >>> from hardkuma import load_released
    >>> model, texts = load_released()[0], ["Marie Curie moved to Paris."]
    >>> scores = score_selectors(model, texts)
    >>> {name: [round(p, 1) for p in scored[0].probabilities] for name, scored in scores.items()}
    {'meaning': [0.6, 0.5, 0.2, 0.0, 0.6], 'entities': [0.9, 1.0, 0.1, 0.1, 0.9]}
    """
    names = model.config.names
    scored = next(_score(model, [(texts, words)], batch_size, use_surface, list(range(len(names))), "max"))
    return dict(zip(names, scored, strict=True))


def _score(
    model: GateModel, parts: Iterable[Part], batch_size: int, use_surface: bool, selectors: list[int], aggregate: str
) -> Iterator[list[list[ScoredText]]]:
    """For each part and each of these selectors its texts, in order."""
    if aggregate not in AGGREGATES:
        raise ValueError(f"aggregate must be one of {', '.join(AGGREGATES)}; got {aggregate!r}.")
    checked = (_check_call(model, texts, words, batch_size) for texts, words in parts)
    for chunks in run_parts(model, checked, batch_size, use_surface, selectors):
        results: list[dict[int, ScoredText]] = [{} for _ in selectors]
        for chunk in chunks:
            for known, row in zip(results, _scored_texts(model, chunk, selectors, aggregate), strict=True):
                known.update(zip(chunk.numbers, row, strict=True))
        yield [[known[i] for i in range(len(known))] for known in results]


def _scored_texts(model: GateModel, chunk: TextChunk, selectors: list[int], aggregate: str) -> Iterator[list[ScoredText]]:
    """The texts of a chunk that the model has run on; for each selector."""
    threshold = float(model.config.decision_threshold)
    aggregates = ["max"] if aggregate == "max" else ["max", aggregate]
    spans = list(pairwise(chunk.index.firsts))
    for number, (probabilities, *others) in zip(selectors, chunk.values(aggregates), strict=True):
        unit = model.config.of_selector("selector_unit", number)
        yield [
            ScoredText(
                text,
                words,
                probabilities[first:past],
                windows=count,
                threshold=threshold,
                unit=unit,
                scores=others[0][first:past] if others else None,
            )
            for text, words, (first, past), count in zip(chunk.texts, chunk.words, spans, chunk.counts, strict=True)
        ]


def _check_call(model: GateModel, texts: Sequence[str], words: Sequence[Sequence[Span]] | None, batch_size: int) -> Part:
    if isinstance(texts, str):
        raise ValueError("texts must be a list of texts, got one string; wrap it: [text].")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts must be strings, but number {i} is a {type(text).__name__}: {text!r:.80}.")
    if words is not None:
        if len(words) != len(texts):
            raise ValueError(f"words must have one list for each of the {len(texts)} texts, got {len(words)}.")
        for text, row in zip(texts, words, strict=True):
            check_words(text, row)
    check_count("batch_size", batch_size)
    if model.training:
        raise ValueError("the model is in training mode, whose gates are random; call model.eval() first.")
    if not model.tokenizer.is_fast:
        raise ValueError(f"{type(model.tokenizer).__name__} gives no character offsets; use a fast tokenizer.")
    return texts, words
