"""Rule-based sentence splitting: no model, no language pack, the same result everywhere."""

from __future__ import annotations

import re


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


# Never the end of a sentence: a name, a number or an explanation follows.
_TITLES = _words(
    "mr mrs ms mx dr prof rev fr sr sra hon gen col lt sgt capt cmdr adm maj gov sen rep pres st ste mt ft messrs mme mlle "
    "herr vs v cf eg ie viz al ca approx resp bzw"
)
# An abbreviation only when a number follows: "No. 5" is one, "He said no." is not.
_BEFORE_NUMBER = _words(
    "no nos fig figs eq eqs p pp nr op art sec ch vol vols jan feb mar apr jun jul aug sep sept oct nov dec"
)
# May end a sentence; they do when the next word is one that opens sentences.
_MAYBE_LAST = _words("inc ltd co corp llc plc bros jr etc dept univ assn est ave blvd rd e.g i.e a.m p.m ph.d")
_OPENS_SENTENCE = _words(
    "a after all although an and another as at before both but by despite during each even every finally first for from he "
    "her here his how however i if in instead it its just later many meanwhile more most my no nobody not nothing now on "
    "once one only our perhaps several she since so some soon still such that the their then there these they this those "
    "though to today under until we what when where whether which while who why with yet you your"
)
_ATTRIBUTION = re.compile(
    r"(?:[^\W\d_][\w'’.-]*\s+){1,3}(?:said|says|asked|asks|replied|answered|added|wrote|writes|shouted|whispered|cried|"
    r"insisted|warned|told|explained|admitted|joked|laughed)\b"
)
# Marks that end a sentence, then closing quotes and brackets, then space; scripts without spaces need none.
_END = re.compile(r"(?P<mark>[.!?…؟।]+)(?P<close>[\"'”’»)\]]*)(?=\s|$)|(?P<wide>[。！？]+)[」』”）]*")
_OPENERS = "\"'“‘«([{¿¡-–—•* "
_DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]?")  # U.S, e.g, J


def split_sentences(text: str) -> list[str]:
    """Sentences of a text, in order, stripped; nothing but the white space between them is lost.

    Knows abbreviations, initials, decimals, ellipses, quotations, brackets, and marks set apart by spaces. A line end
    always ends a sentence. A wrong split is rarer than a missed one: where the text is ambiguous it stays whole.

    >>> split_sentences('Dr. J. Park left the U.S. in 1999. It cost $3.5 million... or more. "Why?" he asked. Nobody knew!')
    ['Dr. J. Park left the U.S. in 1999.', 'It cost $3.5 million... or more.', '"Why?" he asked.', 'Nobody knew!']
    """
    sentences = []
    for line in text.splitlines():
        start = 0
        for match in _END.finditer(line):
            end = _close_spaced_quote(line, start, match.end())
            if end > start and _is_end(line, start, match, end):
                sentences.append(line[start:end].strip())
                start = end
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _close_spaced_quote(line: str, start: int, end: int) -> int:
    """Take along a quote that stands alone after the mark (`. " Then`) when one is open in this sentence."""
    lone = re.match(r'\s+"(?=\s|$)', line[end : end + 4])
    return end + lone.end() if lone and line.count('"', start, end) % 2 else end


def _is_end(line: str, start: int, match: re.Match[str], end: int) -> bool:
    rest = line[end:].lstrip()
    if not rest or match["wide"]:
        return True
    head = rest.lstrip(_OPENERS)
    if not head or head[0].islower() or _inside_brackets(line, start, match.end()):
        return False
    following = re.match(r"[\w'’]+", head)
    word_after = following[0].lower() if following else ""
    if match["close"].strip(")]") and _ATTRIBUTION.match(head):
        return False  # “Why?” Ana asked.
    mark = match["mark"]
    if mark != ".":
        trailing_off = mark.strip("….") == ""
        return not (trailing_off and word_after.split("'")[0].split("’")[0] == "i")  # Well... I think so
    sentence = line[start : match.start()]
    last_word = re.split(r"[\s(\[\"“‘'—–]", sentence)[-1]
    return _full_stop_ends(sentence, last_word, head, word_after, bool(match["close"]))


def _full_stop_ends(sentence: str, last_word: str, head: str, word_after: str, closed: bool) -> bool:
    """Whether "." ends the sentence, from the word before it and what follows."""
    word = last_word.lower()
    if not last_word:
        return True  # a mark set apart by a space
    if word in _TITLES and not closed:
        return False
    if word in _BEFORE_NUMBER and head[0].isdigit():
        return False
    if last_word.isdigit() and sentence.strip() == last_word:
        return False  # a numbered line
    if word in _MAYBE_LAST or _DOTTED.fullmatch(last_word):
        return word_after in _OPENS_SENTENCE
    if len(last_word) == 1 and last_word.isalpha():
        # An initial, or the last word of "so did I", "vitamin C".
        return word_after in _OPENS_SENTENCE or last_word.islower()
    return True


def _inside_brackets(line: str, start: int, position: int) -> bool:
    opened = line.rfind("(", start, position)
    if opened < 0 or line.find(")", opened, position) >= 0 or not line[start:opened].strip():
        return False
    return 0 <= line.find(")", position) < opened + 200 and line[opened - 1 : opened] not in (":", ";")
