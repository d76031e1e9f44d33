"""Writing sentences from frames: fillers, articles, possessives, capitals, and the offsets of the entities."""

from __future__ import annotations

import random
import re
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from .frames import Choice, Frame, Grammar, Range, Slot
from .labelled import LabelledSentence

_FOREIGN = frozenset("56789")  # instances of a slot that have a zone of their own
_WORD = re.compile(r"[@#]?[^\W_]+(?:[-.,&'’/_][^\W_]+)*|['’]s\b|\S")
# Spelled with a vowel but not spoken with one, and the other way round.
_CONSONANT_SOUND = re.compile(r"(?:uni(?!n|mp)|use|usu|eu|one\b|once|u[- ]turn|utopi|ukr|ug)", re.IGNORECASE)
_VOWEL_SOUND = re.compile(r"(?:hour|honest|heir|honou?r)|(?:[AEFHILMNORSX](?:[A-Z]{1,4}\b|-|\d))|8|1[18](?!\d)")


@dataclass
class _Bound:
    """What the slots of one sentence hold so far."""

    fillers: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)  # the fillers themselves
    names: set[str] = field(default_factory=set)  # with their attributes that are entities
    zones: dict[str, frozenset[str]] = field(default_factory=dict)


class Writer:
    """Writes sentences of one frame. Fillers and alternatives are dealt like cards: all of them before any comes again.

    >>> grammar = Grammar()
    >>> grammar.add(["[city : place]", "Lagos ; the Hague", "> [Is it an|It is a(n)] old town, {city}!"], "travel")
    >>> sentence = Writer(grammar, grammar.frames[0], seed=0).write()
    >>> sentence.text, [word for word, entity in zip(sentence.words, sentence.entity_mask) if entity]
    ('Is it an old town, the Hague!', ['Hague'])
    """

    def __init__(self, grammar: Grammar, frame: Frame, seed: int):
        self._grammar, self._frame = grammar, frame
        # Text seeds are hashed with SHA-512, and random() is promised to stay the same: the same sentences everywhere.
        self._random = random.Random(f"{seed} {frame.text}").random
        self._decks: dict[object, list] = {}

    def write(self) -> LabelledSentence:
        pieces = [(text, kind) for text, kind in self._expand(self._frame.parts, _Bound()) if text]
        return _labelled(_finish(pieces, self._frame.lower), self._frame.source)

    def _deal(self, key: object, items: tuple, fitting: Set | None = None) -> Any:
        """The next card of a deck of `items`, or the next one that is `fitting`; a new deck when there is none left."""
        deck = self._decks.setdefault(key, [])
        position = next((i for i, item in enumerate(deck) if fitting is None or item in fitting), None)
        if position is None:
            deck[:] = items
            for i in range(len(deck) - 1, 0, -1):
                j = int(self._random() * (i + 1))
                deck[i], deck[j] = deck[j], deck[i]
            position = next(i for i, item in enumerate(deck) if fitting is None or item in fitting)
        return deck.pop(position)

    def _expand(self, parts: tuple, bound: _Bound) -> list[tuple[str, str | None]]:
        pieces: list[tuple[str, str | None]] = []
        for part in parts:
            if isinstance(part, str):
                pieces.append((part, None))
            elif isinstance(part, Range):
                step = part.step or 1
                number = part.low + step * int(self._random() * ((part.high - part.low) // step + 1))
                pieces.append((f"{number:,}" if part.step else str(number), None))
            elif isinstance(part, Choice):
                pieces += self._expand(self._deal(id(part), part.options), bound)
            else:
                text, kind = self._fill(part, bound)
                article = "the " if kind and text.startswith("the ") else ""
                filled = [(article, None), (text.removeprefix(article), kind)]
                if part.capital:
                    first = 0 if article else 1
                    filled[first] = (filled[first][0][:1].upper() + filled[first][0][1:], filled[first][1])
                pieces += filled
        return pieces

    def _fill(self, slot: Slot, bound: _Bound) -> tuple[str, str | None]:
        pool = self._grammar.pools[slot.pool]
        key = (slot.pool, slot.instance)
        if key not in bound.fillers:
            group = slot.instance if slot.instance in _FOREIGN else ""
            zone = bound.zones.get(group)
            names = pool.names
            free = {f for f in pool.fillers if f[0] not in bound.names and bound.own.isdisjoint(names[f])}
            local = {f for f in free if zone is None or not pool.zones[f] or pool.zones[f] & zone}
            filler = self._deal(slot.pool, pool.fillers, local or free or None)
            bound.fillers[key] = filler
            bound.own.add(filler[0])
            bound.names |= names[filler]
            if zones := pool.zones[filler]:
                bound.zones[group] = (zone & zones or zones) if zone else zones
        return pool.value(bound.fillers[key], slot.attribute, self._frame.place)


def _finish(pieces: list[tuple[str, str | None]], lower: bool) -> list[tuple[str, str | None]]:
    """Plain pieces joined; articles, possessives and the case of the first letter put right."""
    joined: list[tuple[str, str | None]] = []
    for text, kind in pieces:
        if kind is None and joined and joined[-1][1] is None:
            text = joined.pop()[0] + text
        joined.append((text, kind))
    finished = []
    for i, (text, kind) in enumerate(joined):
        if kind is None:
            if i and text.startswith("'s ") and joined[i - 1][0].endswith("s"):
                text = "'" + text[2:]
            text = _articles(text, "".join(following for following, _ in joined[i + 1 :]))
        finished.append((text.lower() if lower else text, kind))
    if not lower:
        for i, (text, kind) in enumerate(finished):
            if match := re.search(r"\w", text):
                at = match.start()
                finished[i] = (text[:at] + text[at].upper() + text[at + 1 :], kind)
                break
    return finished


def _articles(text: str, after: str) -> str:
    def article(match: re.Match[str]) -> str:
        return match[1] + ("n " if starts_with_vowel_sound(text[match.end() :] + after) else " ")

    return re.sub(r"\b([Aa])\(n\) ", article, text)


def starts_with_vowel_sound(text: str) -> bool:
    """Whether "an" goes before the text.

    >>> [starts_with_vowel_sound(text) for text in ("apple", "hour", "MRI scan", "union", "European", "18-year-old")]
    [True, True, True, False, False, True]
    """
    text = text.lstrip("\"'“‘(")
    if _VOWEL_SOUND.match(text):
        return True
    return text[:1].lower() in "aeiou" and not _CONSONANT_SOUND.match(text)


def _labelled(pieces: list[tuple[str, str | None]], source: str) -> LabelledSentence:
    text, offsets, tags = "", [], []
    for piece, kind in pieces:
        for i, match in enumerate(_WORD.finditer(piece)):
            offsets.append((len(text) + match.start(), len(text) + match.end()))
            tags.append("O" if kind is None else f"{'I' if i else 'B'}-{kind}")
        text += piece
    return LabelledSentence(text, tuple(offsets), tuple(tags), source)
