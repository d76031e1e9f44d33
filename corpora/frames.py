"""Sentences from frames: text with typed slots and alternatives, so that where the entities are is known by construction.

A frame file holds pools of fillers and frames, one item a line; # begins a comment.

    [city : place] country:place        a pool: its name, the entity type of its fillers (none: plain words), attributes
    Lagos | Nigeria ; Osaka | Japan     fillers, with attributes after |; several on a line with ;
    > [Rain|Snow] fell on {city} for {2..9} days.      a frame
    ~ stuck in {city} again                            a frame written in lower case throughout

Within a frame: [a|b|] chooses one part (or nothing), and nests; {city} takes a filler, the same at every mention; {city2} takes
another one; {city.country} its attribute; {^city} begins with a capital; {2..9} is a number and {100..900/50} one in steps.
"a(n)" becomes a or an. Pools with an attribute `he` (he or she) have {x.him} {x.his} {x.himself} too, and {x_m} and {x_f} are their men
and women. {x.first} and {x.last} are the first and the last word of a name. A filler that begins with "the" keeps it
in running text, outside of the entity; {x.bare} leaves it out. Numbers in steps are quantities and get thousands separators,
others may be years.

Fillers may have a `zone`: parts of the world, or * for all of them. Fillers of one sentence share a zone, so that a town lies in
its country and people are called as people are there. Instances 5 to 9 are from elsewhere: {city5} and {person5} share another one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import CorpusError
from .labelled import LabelledSentence

ENTITY_TYPES = ("person", "organisation", "place", "product", "work", "event")
_PRONOUNS = {
    "he": {"he": "he", "him": "him", "his": "his", "himself": "himself"},
    "she": {"he": "she", "him": "her", "his": "her", "himself": "herself"},
}
_POOL = re.compile(r"\[(?P<name>[a-z_]+)\s*(?::\s*(?P<type>[a-z]+))?\]\s*(?P<attributes>[a-z_:\s]*)")
_SLOT = re.compile(r"(?P<capital>\^)?(?P<pool>[a-z_]+)(?P<instance>\d*)(?:\.(?P<attribute>[a-z_]+))?")
_RANGE = re.compile(r"(?P<low>\d+)\.\.(?P<high>\d+)(?:/(?P<step>\d+))?")
_ZONE, _EVERYWHERE, _FOREIGN = "zone", "*", frozenset("56789")
_WORD = re.compile(r"[@#]?[^\W_]+(?:[-.,&'’/_][^\W_]+)*|['’]s\b|\S")
# Spelled with a vowel but not spoken with one, and the other way round.
_CONSONANT_SOUND = re.compile(r"(?:uni(?!n|mp)|use|usu|eu|one\b|once|u[- ]turn|utopi|ukr|ug)", re.IGNORECASE)
_VOWEL_SOUND = re.compile(r"(?:hour|honest|heir|honou?r)|(?:[AEFHILMNORSX](?:[A-Z]{1,4}\b|-|\d))|8|11\b|18\b")


@dataclass(frozen=True)
class Pool:
    """Fillers of one kind. `columns` are (name, entity type or None); the first one is the filler itself."""

    name: str
    columns: tuple[tuple[str, str | None], ...]
    fillers: tuple[tuple[str, ...], ...]

    def zones(self, filler: tuple[str, ...]) -> frozenset[str]:
        """Zones that a filler belongs to; none where it fits everywhere."""
        found = [
            value for (name, _), value in zip(self.columns, filler, strict=True) if name == _ZONE and value != _EVERYWHERE
        ]
        return frozenset(found[0].split()) if found else frozenset()

    def names(self, filler: tuple[str, ...]) -> set[str]:
        """The filler and those of its attributes that are entities."""
        return {value for i, ((_, kind), value) in enumerate(zip(self.columns, filler, strict=True)) if kind or i == 0}


@dataclass(frozen=True)
class Slot:
    pool: str
    instance: str
    attribute: str
    capital: bool


@dataclass(frozen=True)
class Range:
    low: int
    high: int
    step: int | None


@dataclass(frozen=True)
class Choice:
    options: tuple[tuple, ...]


@dataclass(frozen=True)
class Frame:
    """A parsed frame: a sequence of str, Slot, Range and Choice."""

    parts: tuple
    lower: bool
    source: str  # the domain
    place: str  # file and line, for errors
    text: str  # as written in the file


@dataclass
class Grammar:
    """Pools and frames of one or several files."""

    pools: dict[str, Pool] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)

    def add(self, lines: Iterable[str], source: str) -> None:
        """Read one frame file.

        >>> grammar = Grammar()
        >>> grammar.add(["[city : place]", "Lagos ; Osaka", "> I [love|miss] {city}."], "travel")
        >>> len(grammar.frames), grammar.pools["city"].fillers
        (1, (('Lagos',), ('Osaka',)))
        """
        pool: tuple[str, tuple[tuple[str, str | None], ...], str] | None = None
        fillers: list[tuple[str, ...]] = []

        def close() -> None:
            if pool is not None:
                if not fillers:
                    raise CorpusError(pool[2], f"the pool {pool[0]!r} is empty", "add fillers below it")
                self._add_pool(Pool(pool[0], pool[1], tuple(fillers)))

        for number, line in enumerate(lines, start=1):
            place, line = f"{source}, line {number}", line.strip()
            if not line or line.startswith("#"):
                continue
            if line.startswith("["):
                close()
                name, columns = _parse_header(place, line)
                if name in self.pools:
                    raise CorpusError(place, f"a second pool {name!r}", "give it another name")
                pool, fillers = (name, columns, place), []
            elif line[0] in ">~":
                text = line[1:].strip()
                self.frames.append(Frame(_parse_frame(place, text), line[0] == "~", source, place, text))
            elif pool is None:
                raise CorpusError(place, f"fillers before any pool: {line[:40]!r}", "begin with [name : type]")
            else:
                fillers += [_parse_filler(place, item, len(pool[1])) for item in line.split(";") if item.strip()]
        close()

    def _add_pool(self, pool: Pool) -> None:
        self.pools[pool.name] = pool
        names = [name for name, _ in pool.columns]
        if "he" in names:
            for suffix, pronoun in (("_m", "he"), ("_f", "she")):
                fillers = tuple(filler for filler in pool.fillers if filler[names.index("he")] == pronoun)
                if fillers:
                    self.pools[pool.name + suffix] = Pool(pool.name + suffix, pool.columns, fillers)

    def check(self) -> None:
        """Complain about slots without a pool or attribute.

        >>> grammar = Grammar()
        >>> grammar.add(["> I love {city}."], "travel")
        >>> grammar.check()
        Traceback (most recent call last):
        hardkuma.corpora.errors.CorpusError: travel, line 1: no pool 'city'; define it with [city : type]
        """
        for frame in self.frames:
            for slot in slots(frame.parts):
                if slot.pool not in self.pools:
                    raise CorpusError(frame.place, f"no pool {slot.pool!r}", f"define it with [{slot.pool} : type]")
                _value(self.pools[slot.pool], self.pools[slot.pool].fillers[0], slot.attribute, frame.place)


def slots(parts: tuple) -> Iterator[Slot]:
    """All slots of a frame, those in alternatives too.

    >>> [slot.pool for slot in slots(_parse_frame("", "{a} and [{b}|{c.d}]"))]
    ['a', 'b', 'c']
    """
    for part in parts:
        if isinstance(part, Slot):
            yield part
        elif isinstance(part, Choice):
            for option in part.options:
                yield from slots(option)


# --- reading


def _parse_header(place: str, line: str) -> tuple[str, tuple[tuple[str, str | None], ...]]:
    match = _POOL.fullmatch(line)
    if match is None:
        raise CorpusError(place, f"cannot read {line!r}", "write [name : type] attribute attribute:type")
    columns = [(match["name"], match["type"])]
    for item in match["attributes"].split():
        name, _, kind = item.partition(":")
        columns.append((name, kind or None))
    for _, kind in columns:
        if kind is not None and kind not in ENTITY_TYPES:
            raise CorpusError(place, f"unknown entity type {kind!r}", f"use one of {', '.join(ENTITY_TYPES)}, or none")
    return match["name"], tuple(columns)


def _parse_filler(place: str, item: str, columns: int) -> tuple[str, ...]:
    values = tuple(value.strip() for value in item.split("|"))
    if len(values) != columns:
        raise CorpusError(
            place, f"{len(values)} values in {item.strip()!r}, {columns} columns in its pool", "give every attribute"
        )
    return values


def _parse_frame(place: str, text: str) -> tuple:
    parts, rest = _parse_sequence(place, text, top=True)
    if rest:
        raise CorpusError(place, f"a ] without [ before {rest[:20]!r}", "balance the brackets")
    return parts


def _parse_sequence(place: str, text: str, top: bool) -> tuple[tuple, str]:
    """Parts up to the | or ] that ends them (both are left in the rest), or the end of the text."""
    parts: list = []
    while text:
        mark = re.search(r"[\[\]|{]", text)
        literal = text[: mark.start()] if mark else text
        if literal:
            parts.append(literal)
        text = text[len(literal) :]
        if not text or (text[0] in "|]" and not top):
            break
        if text[0] == "{":
            inside, closed, text = text[1:].partition("}")
            if not closed:
                raise CorpusError(place, f"{{{inside[:20]} is never closed", "add }")
            parts.append(_parse_slot(place, inside))
        elif text[0] == "[":
            options = []
            while text[:1] in ("[", "|"):
                option, text = _parse_sequence(place, text[1:], top=False)
                options.append(option)
            if not text:
                raise CorpusError(place, "a [ is never closed", "add ]")
            parts.append(Choice(tuple(options)))
            text = text[1:]
        else:
            raise CorpusError(place, f"{text[0]} outside of brackets", "put alternatives in [ ]")
    return tuple(parts), text


def _parse_slot(place: str, inside: str) -> Slot | Range:
    if match := _RANGE.fullmatch(inside):
        return Range(int(match["low"]), int(match["high"]), int(match["step"]) if match["step"] else None)
    match = _SLOT.fullmatch(inside)
    if match is None:
        raise CorpusError(place, f"cannot read {{{inside}}}", "write {pool}, {pool2}, {pool.attribute} or {2..9}")
    return Slot(match["pool"], match["instance"], match["attribute"] or "", bool(match["capital"]))


def _value(pool: Pool, filler: tuple[str, ...], attribute: str, place: str) -> tuple[str, str | None]:
    """(text, entity type) of a filler's attribute; "" is the filler itself."""
    names = [name for name, _ in pool.columns]
    text, kind = filler[0], pool.columns[0][1]
    if not attribute:
        return text, kind
    if attribute in names[1:]:
        column = names.index(attribute)
        return filler[column], pool.columns[column][1]
    if attribute == "bare":
        return text.removeprefix("the "), kind
    if attribute in ("first", "last"):
        return text.split()[0 if attribute == "first" else -1], kind
    if "he" in names and attribute in _PRONOUNS["he"]:
        return _PRONOUNS[filler[names.index("he")]][attribute], None
    raise CorpusError(
        place, f"the pool {pool.name!r} has no attribute {attribute!r}", f"use one of {', '.join(names[1:]) or 'none'}"
    )


# --- writing


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
        # Text seeds are hashed with SHA-512: the same sentences on every machine. Only random() is promised to stay the same.
        self._random = random.Random(f"{seed} {frame.text}").random
        self._decks: dict[object, list] = {}

    def write(self) -> LabelledSentence:
        pieces = [(text, kind) for text, kind in self._expand(self._frame.parts, _Bound()) if text]
        return _labelled(_finish(pieces, self._frame.lower), self._frame.source)

    def _deal(self, key: object, items: tuple, fitting: Sequence | None = None) -> Any:
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
            free = [
                filler
                for filler in pool.fillers
                if filler[0] not in bound.names and bound.own.isdisjoint(pool.names(filler))
            ]
            local = [filler for filler in free if zone is None or not (zones := pool.zones(filler)) or zones & zone]
            filler = self._deal(slot.pool, pool.fillers, local or free or pool.fillers)
            bound.fillers[key] = filler
            bound.own.add(filler[0])
            bound.names |= pool.names(filler)
            if zones := pool.zones(filler):
                bound.zones[group] = (zone & zones or zones) if zone else zones
        return _value(pool, bound.fillers[key], slot.attribute, self._frame.place)


def _finish(pieces: list[tuple[str, str | None]], lower: bool) -> list[tuple[str, str | None]]:
    """Articles, possessives and the case of the first letter."""
    finished = []
    for i, (text, kind) in enumerate(pieces):
        if kind is None:
            if i and text.startswith(("'s ", "’s ")) and pieces[i - 1][1] and pieces[i - 1][0].endswith("s"):
                text = text[0] + text[2:]
            after = "".join(following for following, _ in pieces[i + 1 :])
            text = re.sub(r"\b([Aa])\(n\) ", lambda m, t=text: _article(m, t[m.end() :] + after), text)  # noqa: B023
        finished.append((text.lower() if lower else text, kind))
    if not lower:
        for i, (text, kind) in enumerate(finished):
            if match := re.search(r"\w", text):
                at = match.start()
                finished[i] = (text[:at] + text[at].upper() + text[at + 1 :], kind)
                break
    return finished


def _article(match: re.Match[str], after: str) -> str:
    return match[1] + ("n " if starts_with_vowel_sound(after) else " ")


def starts_with_vowel_sound(text: str) -> bool:
    """Whether "an" goes before the text.

    >>> [starts_with_vowel_sound(text) for text in ("apple", "hour", "MRI scan", "union", "European", "18-year-old", "unin...")]
    [True, True, True, False, False, True, True]
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
