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
# Every run of them is read once, from its beginning: time is linear in the text.
_END = re.compile(r"(?<![.!?…؟।])(?P<mark>[.!?…؟।]++)(?P<close>[\"'”’»)\]]*+)(?=\s|$)|(?P<wide>[。！？]+)[」』”）]*")
_BEFORE_WORD = re.compile(r"\s*[\"'“‘«(\[{¿¡\-–—•* ]*")
_LAST_WORD_STARTS = frozenset("([\"“‘'—–")  # or white space
_BRACKET_WIDTH = 200  # a sentence in brackets is no longer
_NOT_SPACE = re.compile(r"\S")
_WORD = re.compile(r"[\w'’]+")
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
        start = read = quotes = 0  # quotes: how many stand between `start` and `read`
        for match in _END.finditer(line):
            quotes, read = quotes + line.count('"', read, match.end()), match.end()
            end = _close_spaced_quote(line, match.end()) if quotes % 2 else match.end()
            if end > start and _is_end(line, start, match, end):
                sentences.append(line[start:end].strip())
                start = read = end
                quotes = 0
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]


# A list or table: these lines are not one paragraph. White space first: an indented line is code, a quotation or an entry.
_NEW_LINE = re.compile(r"\s|[-–—•*+#>|=~]|[\w]{1,3}[.)]\s|\(\w{1,3}\)\s")
_NARROW = 25  # characters; nobody wraps to less
_WRAPPED = 0.6  # a line that was wrapped has at least this share of the longest line's characters


def join_lines(text: str) -> str:
    """The text with the lines of each paragraph joined, where they were wrapped to a width; of the same length.

    A line was wrapped if it is about as long as the longest line of its paragraph (of 25 characters or more), and if what
    follows it is not an entry of a list, indented or in a line by itself. All other line ends stay.

    >>> join_lines("A licence grants the right to\\nuse the software, as it is.\\n\\n- milk\\n- bread")
    'A licence grants the right to use the software, as it is.\\n\\n- milk\\n- bread'
    """
    lines = text.split("\n")
    joined, start = [], 0
    while start < len(lines):
        end = start + 1
        while end < len(lines) and lines[end].strip() and lines[start].strip():
            end += 1
        paragraph = lines[start:end]
        width = max(len(line.rstrip()) for line in paragraph)
        for i, line in enumerate(paragraph):
            following = paragraph[i + 1] if i + 1 < len(paragraph) else ""
            wrapped = width >= _NARROW and len(line.rstrip()) >= _WRAPPED * width
            joins = wrapped and following and not _NEW_LINE.match(following)
            joined += [line.replace("\r", " "), " "] if joins else [line, "\n"]
        start = end
    return "".join(joined[:-1])


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """(start, end) of the sentences of a document, in order; its paragraphs may be wrapped to a width.

    >>> text = "The ferry to the island was cancelled.\\nFog. "
    >>> [text[start:end] for start, end in sentence_spans(text)]
    ['The ferry to the island was cancelled.', 'Fog.']
    """
    whole, end = join_lines(text), 0
    spans = []
    for sentence in split_sentences(whole):
        start = whole.index(sentence, end)
        end = start + len(sentence)
        spans.append((start, end))
    return spans


def _close_spaced_quote(line: str, end: int) -> int:
    """Take along a quote that stands alone after the mark (`. " Then`), where one is open in this sentence."""
    lone = re.match(r'\s+"(?=\s|$)', line[end : end + 4])
    return end + lone.end() if lone else end


def _is_end(line: str, start: int, match: re.Match[str], end: int) -> bool:
    """Whether the mark ends the sentence that begins at `start`; what follows it is looked at from `end` on."""
    if match["wide"] or not _has_word(line, end, len(line)):
        return True
    before_word = _BEFORE_WORD.match(line, end)
    head = before_word.end() if before_word else end
    if head == len(line) or line[head].islower() or _inside_brackets(line, start, match.end()):
        return False
    following = _WORD.match(line, head)
    word_after = following[0].lower() if following else ""
    if match["close"].strip(")]") and _ATTRIBUTION.match(line, head):
        return False  # “Why?” Ana asked.
    mark = match["mark"]
    if mark != ".":
        trailing_off = mark.strip("….") == ""
        return not (trailing_off and word_after.split("'")[0].split("’")[0] == "i")  # Well... I think so
    return _full_stop_ends(line, start, match, head, word_after)


def _full_stop_ends(line: str, start: int, match: re.Match[str], head: int, word_after: str) -> bool:
    """Whether "." ends the sentence, from the word before it and what follows."""
    first = match.start()
    while first > start and line[first - 1] not in _LAST_WORD_STARTS and not line[first - 1].isspace():
        first -= 1
    last_word = line[first : match.start()]
    word = last_word.lower()
    if not last_word:
        return True  # a mark set apart by a space
    if word in _TITLES and not match["close"]:
        return False
    if word in _BEFORE_NUMBER and line[head].isdigit():
        return False
    if last_word.isdigit() and not _has_word(line, start, first):
        return False  # a numbered line
    if word in _MAYBE_LAST or _DOTTED.fullmatch(last_word):
        return word_after in _OPENS_SENTENCE
    if len(last_word) == 1 and last_word.isalpha():
        # An initial, or the last word of "so did I", "vitamin C".
        return word_after in _OPENS_SENTENCE or last_word.islower()
    return True


def _has_word(line: str, start: int, end: int) -> bool:
    """Whether there is anything but white space."""
    return _NOT_SPACE.search(line, start, end) is not None


def _inside_brackets(line: str, start: int, position: int) -> bool:
    opened = line.rfind("(", max(start, position - _BRACKET_WIDTH), position)
    if opened < 0 or line.find(")", opened, position) >= 0 or not _has_word(line, start, opened):
        return False
    return line.find(")", position, opened + _BRACKET_WIDTH) >= 0 and line[opened - 1 : opened] not in (":", ";")
