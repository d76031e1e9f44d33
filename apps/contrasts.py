"""What an embedding hardly sees, compared as such: numbers, days, months, opposites, negations; and script and language.

A sentence encoder gives "at 3 pm" and "at 5 pm", "Monday" and "Tuesday", "large" and "small" nearly the same vectors. Such
words have a value of a kind that can be compared: two texts contradict each other in a kind where each of them has a value
that the other one has not. Words are English; digits are everybody's.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from ..words_hardkuma import ENGLISH, NEGATION, script_of

Value = tuple[str, float]  # a kind, and a value of it
NEGATION_KIND = "negation"

# Without "one", which is a pronoun as often.
_ONES = """zero - two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety hundred"
_DAYS = "monday tuesday wednesday thursday friday saturday sunday"
_MONTHS = "january february march april may june july august september october november december"
# Names that are other words too where they have no capital: to march, may.
_AMBIGUOUS = frozenset(["march", "may"])
# On each side of a | words that exclude those on the other side. Forms in -s, -d, -ing, -er and -est are made; irregular
# ones are listed.
_OPPOSITES = """
    increase rise rose risen grow grew grown climb up | decrease fall fell fallen drop dropped decline shrink shrank down
    more | less fewer
    high | low
    big bigger large | small little
    accept approve | reject refuse deny denied denies
    allow permit | forbid forbidden ban banned prohibit
    win won winning | lose lost losing
    buy bought | sell sold
    before | after
    open | close closed
    good better best | bad worse worst
    hot hotter | cold
    true | false
    start begin began begun | end stop stopped finish
    love | hate
    left | right
    north northern | south southern
    east eastern | west western
    first | last
    early earlier earliest | late
    import | export
    agree | disagree
    legal | illegal
    safe | dangerous unsafe
    guilty | innocent
    alive | dead
    same | different
    cheap | expensive
    fast | slow
    strong | weak
    positive | negative
    many | few
    above | below
    include | exclude
    add | remove
    enable | disable
    possible | impossible
    male | female
    men man boy | women woman girl
    inside | outside
    maximum | minimum
    succeed succeeded | fail failed
    once | twice | thrice
    daily | weekly | monthly | yearly
    mild | severe
"""


def _forms(word: str) -> set[str]:
    stem = word.removesuffix("e")
    return {word, f"{word}s", f"{stem}ed", f"{stem}ing", f"{stem}er", f"{stem}est"}


def _named_values() -> dict[str, Value]:
    values: dict[str, Value] = {word: ("number", i) for i, word in enumerate(_ONES.split())}
    values |= {word: ("number", 10 * (i + 2)) for i, word in enumerate(_TENS.split())}
    values |= {word: (NEGATION_KIND, 1) for word in ("hardly", "nowhere")}
    for kind, names in (("day", _DAYS), ("month", _MONTHS)):
        values |= {name: (kind, i) for i, name in enumerate(names.split())}
    for line in _OPPOSITES.strip().splitlines():
        for side, words in enumerate(line.split("|")):
            for word in words.split():
                for form in _forms(word):
                    values.setdefault(form, (line.split()[0], side))
    return values


_VALUES = _named_values()
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def word_value(word: str) -> Value | None:
    """What a word says of a kind that can be compared; None for all other words.

    >>> word_value("1,000"), word_value("Tuesday"), word_value("decreased"), word_value("cat")
    (('number', 1000.0), ('day', 1), ('increase', 1), None)
    """
    if match := _NUMBER.search(word):
        digits = re.sub(r",(?=\d{3}(?!\d))", "", match[0]).replace(",", ".")
        return "number", float(digits) if digits.count(".") < 2 else float(digits.replace(".", ""))
    lower = word.replace("’", "'").lower()
    if lower in _AMBIGUOUS and word == lower:
        return None
    return (NEGATION_KIND, 1) if ENGLISH.word_role(word) == NEGATION else _VALUES.get(lower)


def find_contrasts(words: Sequence[str], others: Sequence[str]) -> list[bool]:
    """Which words of a text another text contradicts: it has a value of that kind, and not this one; nor has this text
    that one. A negation is contradicted by a text that has words and no negation.

    >>> find_contrasts(["open", "at", "3", "pm"], ["open", "at", "5", "pm"])
    [False, False, True, False]
    >>> find_contrasts(["It", "did", "not", "rain"], ["It", "rained"])
    [False, False, True, False]
    """
    values, found, opposed = [word_value(word) for word in words], _by_kind(words), _by_kind(others)
    contradicted = {
        kind for kind in found if kind in opposed and found[kind] - opposed[kind] and opposed[kind] - found[kind]
    }
    if others and NEGATION_KIND not in opposed:
        contradicted.add(NEGATION_KIND)
    return [
        value is not None and value[0] in contradicted and value[1] not in opposed.get(value[0], set()) for value in values
    ]


def _by_kind(words: Sequence[str]) -> Mapping[str, set[float]]:
    kinds: defaultdict[str, set[float]] = defaultdict(set)
    for value in map(word_value, words):
        if value is not None:
            kinds[value[0]].add(value[1])
    return dict(kinds)


# Frequent words of languages that share the Latin script, none of them in two of these lines.
_LANGUAGES = {
    language: frozenset(words.split())
    for language, words in {
        "English": "the of and to is that for with it are from this have be by not his they which you",
        "German": "der das und ist nicht mit ein eine einen dem auf für von zu den sich auch im wird sind",
        "Dutch": "het een van zijn niet dat voor met ook naar wordt deze bij maar werd",
        "French": "le les et est dans une pour pas qui sur avec au du des ce il elle sont",
        "Spanish": "el los las y es por una con para del se como más su lo está fue",
        "Italian": "il gli che è di per una con non della nel sono alla anche più si",
        "Portuguese": "o os não uma com para do da ao dos pelo são mais foi em",
    }.items()
}


def find_language(words: Sequence[str]) -> str | None:
    """The language of a text by its most frequent words, or its script where that is not Latin; None where too few of its
    words tell.

    >>> find_language("Die Katze schläft auf der Matte".split()), find_language("Кошка спит".split())
    ('German', 'Cyrillic')
    >>> find_language(["Paris"]) is None
    True
    """
    script = _find_script(words)
    if script != "Latin":
        return script
    lower = [word.lower() for word in words]
    counts = Counter({language: sum(word in known for word in lower) for language, known in _LANGUAGES.items()})
    (best, count), (_, second) = counts.most_common(2)
    return best if count >= 2 and count > second else None


def _find_script(words: Sequence[str]) -> str | None:
    scripts = Counter(script_of(letter) for word in words for letter in word if letter.isalpha())
    return scripts.most_common(1)[0][0].capitalize() if scripts else None


def describe_languages(words: Sequence[str], others: Sequence[str]) -> str | None:
    """A sentence on texts that are not of one script or language; None where they are, or nothing is known.

    >>> describe_languages("The cat is on the mat".split(), "Die Katze ist auf der Matte".split())
    'the texts are of different languages (English, German), and this encoder may not know both'
    """
    for name, find in (("scripts", _find_script), ("languages", find_language)):
        first, second = find(words), find(others)
        if first != second and None not in (first, second):
            return f"the texts are of different {name} ({first}, {second}), and this encoder may not know both"
    return None
