"""Candidates of key phrases: runs of words, by gates alone, by a tagger's parts of speech, or as the user gives them.

By gates alone a candidate is a run of content words. It begins with a gate of at least .2 and
goes on with gates of at least .15: the head of a noun phrase says little by itself (quantum computing
*devices*). It ends at punctuation, function words, numbers, dates, adverbs, and words that their form and their neighbours
show to be verbs. These forms are English; in other languages gates and punctuation alone cut.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..words_hardkuma import ENGLISH, Language, Span, find_words

Key = tuple[str, ...]  # the words of a phrase, each in one form

BEGINS, CONTINUES = 0.2, 0.15  # gates of a phrase's first word, and of the words after it


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


# A word before one of these is a verb (or a preposition): it reviews *the* literature.
_DETERMINERS = _words("a an another any each every her his its my our some the their these this those your")
# And so is a word after one of these: they *review* it.
_SUBJECTS = _words("can cannot could he i it may might must not shall she should there they we which who will would you")
_AUXILIARIES = _words("am are be been being had has have having is was were")
# Before them `-ing` is a gerund with its object, not a noun's modifier: by *using* gates, for *learning* words.
_BEFORE_GERUND = _words(
    "about across after against among and as at before between by during for from in into of on or over than through "
    "toward towards under upon via with within without"
)
_NOT_ADVERBS = _words(
    "ally anomaly assembly belly bully butterfly family fly italy jelly july lily monopoly rally reply supply tally"
)
# Verbs that no ending shows, and that are hardly ever nouns; and words such as `using`, which link phrases.
_VERBS = _words(
    "according based became become becomes began begin begins begun blew bought bring brings brought came caught come "
    "comes drew drove due fell flew fought found gave get gets give given gives go goes gone got grew heard held "
    "including keep keeps kept knew know known knows laid led let made make makes meant met need needs paid put puts ran "
    "said sang saw say says see seem seems seen sent shook show shown shows slept sold spent spoke stole stood struck "
    "swept take taken takes taught tell tells think thinks thought threw told took understood used using want wanted "
    "wants went won wore wrote"
)
_NUMBERS = _words(
    "eight first five four fourth last least less many next nine numerous one second seven several six ten third three "
    "two various"
)
_DATES = _words(
    "april august december february friday january july june march monday november october saturday september sunday "
    "thursday tuesday wednesday"
)
_DAYS = _words("today tomorrow yesterday")


@dataclass(frozen=True)
class GatedWords:
    """The words of a document, in order.

    Attributes:
        words: as they are written.
        spans: (start, end) of each in the document.
        gates: their probabilities.
        joins: whether a word may be of one phrase with the one before it.
        language: what the model knows of its language.
    """

    words: Sequence[str]
    spans: Sequence[Span]
    gates: Sequence[float]
    joins: Sequence[bool]
    language: Language = ENGLISH

    @cached_property
    def keys(self) -> list[str]:
        """The words, each in one form."""
        return [fold_word(word) for word in self.words]

    def runs(self, belongs: Callable[[int], bool]) -> list[range]:
        """Neighbours that belong to a phrase, as numbers of words."""
        found, start = [], 0
        for i in range(len(self.words) + 1):
            if i == len(self.words) or not self.joins[i] or not belongs(i):
                if i > start:
                    found.append(range(start, i))
                start = i if i < len(self.words) and belongs(i) else i + 1
        return found


def gate_phrases(text: GatedWords) -> list[range]:
    """Candidates by gates alone, as numbers of words.

    >>> words = ["We", "study", "deep", "neural", "networks", "daily"]
    >>> text = GatedWords(words, [], [0.2, 0.3, 0.1, 0.5, 0.16, 0.4], [False] + [True] * 5)
    >>> [[words[i] for i in phrase] for phrase in gate_phrases(text)]
    [['neural', 'networks']]
    """
    content = [_is_content(text, i) for i in range(len(text.words))]
    phrases = []
    for run in text.runs(content.__getitem__):
        start = past = run.start
        for i in run:
            if text.gates[i] >= (BEGINS if past == start else CONTINUES):
                past = i + 1
                continue
            phrases.append(range(start, past))
            start = past = i + 1
        phrases.append(range(start, past))
    return [phrase for phrase in phrases if len(phrase) > 1 or (phrase and len(text.words[phrase[0]]) > 1)]


def _is_content(text: GatedWords, number: int) -> bool:
    """Whether a word may be part of a phrase: a noun, a name or an adjective, as far as form and neighbours show."""
    written, is_function = text.words[number], text.language.is_function_word
    word = written.lower()
    if is_function(written) or not _has_letter(written) or (len(word) == 1 and word == written):
        return False
    joined_after = number + 1 < len(text.words) and text.joins[number + 1]
    after = text.words[number + 1] if joined_after else ""
    before = text.words[number - 1] if text.joins[number] else ""
    if word in _VERBS or word in _NUMBERS or word in _DAYS or (word in _DATES and written[0].isupper()):
        return False
    # In lower case: a capital begins the next sentence, after a title without a full stop.
    if after in _DETERMINERS or before.lower() in _SUBJECTS:
        return False
    if "-" in word:
        return True
    if word.endswith("ly") and len(word) > 4:
        return word in _NOT_ADVERBS
    if word.endswith("ed") and len(word) > 3:
        # A participle stands before a noun, after an adjective or a function word: the storm *attained* a speed, but an
        # adaptive *weighted* mean.
        modifies = _has_letter(after) and not is_function(after)
        return (
            modifies
            and before.lower() not in _AUXILIARIES
            and (is_function(before) or not _is_noun(before) or written[0].isupper())
        )
    if word.endswith("ing") and len(word) > 5 and after and not is_function(after):
        return bool(before) and before.lower() not in _BEFORE_GERUND
    return True


_ADJECTIVES = ("able", "al", "ant", "ar", "ary", "ed", "ent", "ful", "ible", "ic", "ing", "ive", "ly", "ous")


def _is_noun(word: str) -> bool:
    """Whether a content word is without the ending of an adjective."""
    return _has_letter(word) and "-" not in word and not word.lower().endswith(_ADJECTIVES)


def _has_letter(word: str) -> bool:
    return any(c.isalpha() for c in word)


# ---- what a tagger knows ------------------------------------------------------------------------------------------------

_NOUNS = ("NOUN", "PROPN")
_NOMINAL = (*_NOUNS, "ADJ")


def noun_phrases(text: GatedWords, doc: Any) -> list[range]:
    """Noun phrases of a tagged spaCy document: nouns, and the adjectives and participles before them, as numbers of words.

    Adjectives at the beginning whose gates do not begin a phrase (a *new* method) are left out. A participle is part of the
    phrase after a determiner or an adjective, or with a hyphen.
    """
    if len(doc) and not any(token.pos_ for token in doc):
        raise ValueError("the spaCy document has no parts of speech; run a pipeline with a tagger, such as en_core_web_sm.")
    starts = [token.idx for token in doc]
    tokens = [doc[max(0, bisect_left(starts, end) - 1)] if starts else None for _, end in text.spans]
    parts = ["" if token is None else token.pos_ for token in tokens]

    def belongs(i: int) -> bool:
        word, token = text.words[i], tokens[i]
        if token is None or not _has_letter(word) or text.language.is_function_word(word):
            return False
        if parts[i] in _NOMINAL:
            return not (word.lower() in _DATES and word[0].isupper())
        participle = "Part" in token.morph.get("VerbForm") or "Ger" in token.morph.get("VerbForm")
        if "-" in word:
            return participle or parts[i] in ("NUM", "ADV", "VERB")
        modifies = i + 1 < len(parts) and text.joins[i + 1] and parts[i + 1] in _NOMINAL
        described = i > 0 and text.joins[i] and (parts[i - 1] in ("DET", "ADJ") or _is_possessive(tokens[i - 1]))
        return participle and modifies and described

    phrases = []
    for run in text.runs(belongs):
        start, past = run.start, run.stop
        while past > start and parts[past - 1] not in _NOUNS:
            past -= 1
        while start < past - 1 and parts[start] not in _NOUNS and text.gates[start] < BEGINS:
            start += 1
        if past > start:
            phrases.append(range(start, past))
    return phrases


def _is_possessive(token: Any) -> bool:
    return token is not None and token.pos_ == "PRON" and "Yes" in token.morph.get("Poss")


# ---- what the user gives ------------------------------------------------------------------------------------------------


def given_phrases(text: GatedWords, document: str, given: Any) -> list[range]:
    """Candidates that somebody else has found, as numbers of words.

    Args:
        given: a spaCy document (its noun phrases), or a list of spaCy spans, of (start, end), or of strings.

    >>> text = GatedWords(["Deep", "networks", "learn"], [(0, 4), (5, 13), (14, 19)], [0.5] * 3, [False, True, True])
    >>> given_phrases(text, "Deep networks learn", [(0, 13)]), given_phrases(text, "Deep networks learn", ["Network"])
    ([range(0, 2)], [range(1, 2)])
    """
    if hasattr(given, "noun_chunks") and not hasattr(given, "start_char"):  # a document; spans have both
        if given.text != document:
            raise ValueError(f"the spaCy document is of another text: {given.text[:40]!r}, not {document[:40]!r}.")
        return noun_phrases(text, given)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(
            f"the candidates of a text are a spaCy document, or a list of spans, (start, end) or strings; got {given!r}."
        )
    items = list(given)
    starts, ends = [start for start, _ in text.spans], [end for _, end in text.spans]
    phrases = set(find_keys(text.keys, None, {fold_words(item) for item in items if isinstance(item, str)}))
    for start, end in (_offsets(item, document) for item in items if not isinstance(item, str)):
        first, past = bisect_right(ends, start), bisect_left(starts, end)
        if past > first:
            phrases.add(range(first, past))
    return sorted(phrases, key=lambda phrase: (phrase.start, phrase.stop))


def _offsets(item: Any, document: str) -> Span:
    """(start, end) of a candidate in the document."""
    if hasattr(item, "start_char"):
        return item.start_char, item.end_char
    try:
        start, end = (int(number) for number in item)
    except (TypeError, ValueError):
        raise ValueError(f"a candidate is a span, (start, end) or a string; got {item!r}.") from None
    if not 0 <= start < end <= len(document):
        raise ValueError(
            f"a candidate is (start, end) inside of its text of {len(document)} characters; got {(start, end)}."
        )
    return start, end


# ---- one phrase, however it is written ----------------------------------------------------------------------------------


def fold_word(word: str) -> str:
    """One form for a word in capitals, in lower case and in the plural.

    >>> [fold_word(word) for word in ("Networks", "studies", "boxes", "class", "analysis", "gas")]
    ['network', 'study', 'box', 'class', 'analysis', 'gas']
    """
    word = word.casefold()
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    return word[:-2] if word.endswith(("ches", "shes", "sses", "xes", "zes")) else word[:-1]


def fold_words(text: str) -> Key:
    """The words of a phrase, each in one form.

    >>> fold_words("Neural Networks")
    ('neural', 'network')
    """
    return tuple(fold_word(text[start:end]) for start, end in find_words(text))


def find_keys(words: Sequence[Any], joins: Sequence[int] | None, keys: Collection[tuple[Any, ...]]) -> Iterator[range]:
    """Where these phrases stand, inside of longer ones too.

    Args:
        words: of a text, each in one form.
        joins: whether a word may be of one phrase with the one before it; by default each may.

    >>> list(find_keys(["deep", "network", "learn"], None, {("network",), ("deep", "network"), ("learn", "deep")}))
    [range(0, 2), range(1, 2)]
    """
    sizes: dict[Any, set[int]] = {}
    for key in keys:
        if key:
            sizes.setdefault(key[0], set()).add(len(key))
    for first, word in enumerate(words):
        for size in sorted(sizes.get(word, ()), reverse=True):
            past = first + size
            if past <= len(words) and tuple(words[first:past]) in keys and (joins is None or all(joins[first + 1 : past])):
                yield range(first, past)
