"""Sentence frames: text with typed slots and alternatives, so that where the entities are is known by construction.

A frame file holds pools of fillers and frames, one item a line; # begins a comment.

    [city : place] country:place        a pool: its name, the entity type of its fillers (none: plain words), attributes
    Lagos | Nigeria ; Osaka | Japan     fillers, with attributes after |; several on a line with ;
    > [Rain|Snow] fell on {city} for {2..9} days.      a frame
    ~ stuck in {city} again                            a frame written in lower case throughout

Within a frame:

- [a|b|] chooses one part, or nothing; choices nest.
- {city} takes a filler, the same at every mention; {city2} takes another one; {city.country} is its attribute.
- {^city} begins with a capital. {2..9} is a number; {100..900/50} is one in steps, with thousands separators.
- "a(n)" becomes a or an.
- Pools with an attribute `he` (he or she) have {x.him} {x.his} {x.himself} too; {x_m} and {x_f} are their men and women.
- {x.first} and {x.last} are the first and last word of a name.
- A filler that begins with "the" keeps it in running text, outside of the entity; {x.bare} leaves it out.

Fillers may have a `zone`: parts of the world, or * for all of them. Fillers of one sentence share a zone, so that a town
lies in its country and people are called as people are there. Instances 5 to 9 are from elsewhere, each with a zone of its
own: {person5} comes from where {city5} is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from .errors import CorpusError

ENTITY_TYPES = ("person", "organisation", "place", "product", "work", "event")
_PRONOUNS = {
    "he": {"he": "he", "him": "him", "his": "his", "himself": "himself"},
    "she": {"he": "she", "him": "her", "his": "her", "himself": "herself"},
}
_POOL = re.compile(r"\[(?P<name>[a-z_]+)\s*(?::\s*(?P<type>[a-z]+))?\]\s*(?P<attributes>[a-z_:\s]*)")
_SLOT = re.compile(r"(?P<capital>\^)?(?P<pool>[a-z_]+)(?P<instance>\d*)(?:\.(?P<attribute>[a-z_]+))?")
_RANGE = re.compile(r"(?P<low>\d+)\.\.(?P<high>\d+)(?:/(?P<step>\d+))?")
_ZONE, _EVERYWHERE = "zone", "*"


@dataclass(frozen=True)
class Pool:
    """Fillers of one kind. `columns` are (name, entity type or None); the first one is the filler itself."""

    name: str
    columns: tuple[tuple[str, str | None], ...]
    fillers: tuple[tuple[str, ...], ...]

    @cached_property
    def zones(self) -> dict[tuple[str, ...], frozenset[str]]:
        """Zones that each filler belongs to; none where it fits everywhere."""
        at = next((i for i, (name, _) in enumerate(self.columns) if name == _ZONE), None)
        return {filler: frozenset(filler[at].split()) - {_EVERYWHERE} if at else frozenset() for filler in self.fillers}

    @cached_property
    def names(self) -> dict[tuple[str, ...], frozenset[str]]:
        """Each filler with those of its attributes that are entities."""
        at = [i for i, (_, kind) in enumerate(self.columns) if kind or i == 0]
        return {filler: frozenset(filler[i] for i in at) for filler in self.fillers}

    def value(self, filler: tuple[str, ...], attribute: str, place: str) -> tuple[str, str | None]:
        """(text, entity type) of a filler's attribute; "" is the filler itself. `place` is for the error."""
        names = [name for name, _ in self.columns]
        text, kind = filler[0], self.columns[0][1]
        if not attribute:
            return text, kind
        if attribute in names[1:]:
            column = names.index(attribute)
            return filler[column], self.columns[column][1]
        if attribute == "bare":
            return text.removeprefix("the "), kind
        if attribute in ("first", "last"):
            return text.split()[0 if attribute == "first" else -1], kind
        if "he" in names and attribute in _PRONOUNS["he"]:
            return _PRONOUNS[filler[names.index("he")]][attribute], None
        known = ", ".join(names[1:]) or "none"
        raise CorpusError(place, f"the pool {self.name!r} has no attribute {attribute!r}", f"use one of: {known}")


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
        """Raise a CorpusError if a slot names no pool, or an attribute that its pool does not have.

        >>> grammar = Grammar()
        >>> grammar.add(["[city : place]", "Lagos ; Osaka", "> I love {city}."], "travel")
        >>> grammar.check()
        """
        for frame in self.frames:
            for slot in slots(frame.parts):
                if slot.pool not in self.pools:
                    raise CorpusError(frame.place, f"no pool {slot.pool!r}", f"define it with [{slot.pool} : type]")
                self.pools[slot.pool].value(self.pools[slot.pool].fillers[0], slot.attribute, frame.place)


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
        problem = f"{len(values)} values in {item.strip()!r}, {columns} columns in its pool"
        raise CorpusError(place, problem, "give every attribute")
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
