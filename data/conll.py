"""Sentences as words with tags: CoNLL columns and CoNLL-U. Evaluation reads the tags; training gets the text alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .lines import CorpusError, bare_suffix, check_file, read_lines

# What the last column of a word line looks like where words are tagged: this tells the word "#" from a comment.
_TAG = re.compile(r"O|[BIESLUM]-.+", re.ASCII)
_CONLLU_COLUMNS = 10
_UPOS = 3
_CONLLU_NUMBER = re.compile(r"[0-9]+([-.][0-9]+)?")
_CLOSING = re.compile(r"""[.,;:!?)\]}…”»]+|[.!?,]+["”]|''|n['’]t|['’](s|re|ve|ll|d|m|t|em)""", re.IGNORECASE)
_OPENING = frozenset({"(", "[", "{", "``", "“", "«", "$", "£", "€", "¿", "¡"})
_CLITICS = frozenset({"s", "t", "re", "ve", "ll", "d", "m"})
_APOSTROPHES = frozenset("'’´`")
# "@ the door" means at; other words after @ are names of accounts.
_NOT_ACCOUNTS = frozenset(
    {"the", "a", "an", "my", "our", "your", "his", "her", "their", "this", "that", "home", "work", "school"}
)
# Smileys are words although they are made of closing marks.
_SMILEY = re.compile(r"[:;=][-']?[)\]}]+")


@dataclass(frozen=True)
class LabelledSentence:
    """One sentence with word-level labels; every word is `text[start:end]` of its offsets.

    Attributes:
        text: the sentence as a reader would write it.
        offsets: (start, end) of each word in `text`, in order, not overlapping.
        tags: one per word, as in the source; "O" is outside of every entity.
        source: where the sentence comes from: "file, line 12", or the domain of a bundled sentence.

    >>> sentence = LabelledSentence("Ana left Rome.", ((0, 3), (4, 8), (9, 13)), ("B-person", "O", "B-place"))
    >>> sentence.words, sentence.entity_mask
    (('Ana', 'left', 'Rome'), (True, False, True))
    """

    text: str
    offsets: tuple[tuple[int, int], ...]
    tags: tuple[str, ...]
    source: str = ""

    def __post_init__(self) -> None:
        from ..words_hardkuma import check_words  # imports torch, which reading text does not need

        if len(self.offsets) != len(self.tags):
            raise ValueError(f"one tag per word is needed, got {len(self.tags)} tags for {len(self.offsets)} words")
        check_words(self.text, self.offsets)

    @property
    def words(self) -> tuple[str, ...]:
        """The words themselves, in order."""
        return tuple(self.text[start:end] for start, end in self.offsets)

    @property
    def entity_mask(self) -> tuple[bool, ...]:
        """Whether each word is part of an entity: its tag is not "O"."""
        return tuple(tag != "O" for tag in self.tags)


def read_conll(path: str | os.PathLike[str]) -> Iterator[LabelledSentence]:
    """Sentences of a CoNLL file (word first, tag last) or CoNLL-U file (tag: universal part of speech), one at a time.

    For evaluation only. The text is detokenised, or taken from CoNLL-U's `# text`; offsets point into it.

    Args:
        path: a file, plain or .gz; it is CoNLL-U if its suffix says so.

    >>> import os, tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "two.conll")
    >>> _ = open(name, "w").write("Ana\\tB-person\\nslept\\tO\\n.\\tO\\n\\nWhy\\tO\\n?\\tO\\n")
    >>> for sentence in read_conll(name):
    ...     print(sentence.text, sentence.offsets, sentence.tags)
    Ana slept. ((0, 3), (4, 9), (9, 10)) ('B-person', 'O', 'O')
    Why? ((0, 3), (3, 4)) ('O', 'O')
    """
    check_file(path)  # at once, not at the first sentence
    return _labelled(os.fspath(path))


def _labelled(path: str) -> Iterator[LabelledSentence]:
    empty = True
    for sentence in conllu_sentences(path) if bare_suffix(path) == ".conllu" else _tagged(path):
        empty = False
        yield sentence
    if empty:
        raise CorpusError(path, "no sentence found", "give a file with a word and a tag on every line")


def _tagged(path: str) -> Iterator[LabelledSentence]:
    for number, rows in conll_sentences(path):
        if len(rows[0]) < 2:
            fix = "add a tag column (word first, tag last), or read it with read_texts(..., format='conll')"
            raise CorpusError(f"{path}, line {number}", f"the word {rows[0][0]!r} has no tag", fix)
        text, offsets = detokenise([row[0] for row in rows])
        yield LabelledSentence(text, offsets, tuple(row[-1] for row in rows), f"{path}, line {number}")


def _columns(line: str) -> list[str]:
    # Not str.split(): words may hold other white space, such as a no-break space.
    return line.rstrip("\t ").split("\t") if "\t" in line else line.strip(" ").split()


def conll_sentences(path: str) -> Iterator[tuple[int, list[list[str]]]]:
    """(line of the first word, rows of columns) of every sentence; comments and -DOCSTART- left out.

    >>> import os, tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "two.conll")
    >>> _ = open(name, "w").write("# a comment\\n# O\\nAna I-PER\\n")
    >>> list(conll_sentences(name))
    [(2, [['#', 'O'], ['Ana', 'I-PER']])]
    """
    width: int | None = None
    first, rows = 0, list[list[str]]()
    for number, line in read_lines(path):
        if not line.strip():
            if rows:
                yield first, rows
            rows = []
            continue
        row = _columns(line)
        if row[0].startswith("-DOCSTART-") or _is_comment(row, width):
            continue
        if width is not None and len(row) != width:
            fix = f"give every word {width} columns, separated by tabs or spaces, and a blank line between sentences"
            problem = f"{len(row)} columns where lines before have {width}: {line!r}"
            raise CorpusError(f"{path}, line {number}", problem, fix)
        if not row[0]:
            raise CorpusError(f"{path}, line {number}", f"no word in the first column: {line!r}", "remove the line")
        width = len(row)
        first = first if rows else number
        rows.append(row)
    if rows:
        yield first, rows


def _is_comment(row: Sequence[str], width: int | None) -> bool:
    """A line that begins with # is a comment unless it is like the lines of words: their number of columns, a tag last."""
    if not row[0].startswith("#"):
        return False
    if width is None:
        return len(row) < 2 or not _TAG.fullmatch(row[-1])
    return len(row) != width or (width > 1 and not _TAG.fullmatch(row[-1]))


def conllu_sentences(path: str) -> Iterator[LabelledSentence]:
    """Sentences of a CoNLL-U file with parts of speech as tags; `# text` decides the spaces where it is given.

    A contraction ("don't" = do + n't) is split where its parts spell it; otherwise it is one word, tags joined by "+".
    """
    text: str | None = None
    first, rows = 0, list[list[str]]()
    for number, line in read_lines(path):
        if not line.strip():
            if rows:
                yield _conllu_sentence(path, first, text, rows)
            text, rows = None, []
        elif line.startswith("#"):
            if match := re.match(r"#\s*text\s*=\s*(.*\S)", line):
                text = match[1]
        else:
            row = line.split("\t")
            if len(row) != _CONLLU_COLUMNS:
                fix = "separate the ten columns by tabs; other columns are conll: rename the file, or say so with {format}"
                raise CorpusError(f"{path}, line {number}", f"{len(row)} columns where CoNLL-U has ten", fix)
            if not _CONLLU_NUMBER.fullmatch(row[0]):
                problem = f"the word's number is {row[0]!r}"
                raise CorpusError(f"{path}, line {number}", problem, "number words as 3, contractions as 3-4, nodes as 3.1")
            first = first if rows else number
            rows.append(row)
    if rows:
        yield _conllu_sentence(path, first, text, rows)


def _written_words(rows: list[list[str]]) -> list[tuple[str, str, bool]]:
    """(word, tag, whether a space follows) as written: contractions as above, empty nodes (8.1) left out."""
    words, inside = [], 0
    for i, row in enumerate(rows):
        spaced = "SpaceAfter=No" not in row[9].split("|")
        if "-" in row[0]:
            low, high = (int(part) for part in row[0].split("-"))
            parts = [r for r in rows[i + 1 :] if r[0].isdigit() and low <= int(r[0]) <= high]
            if "".join(r[1] for r in parts) == row[1]:
                words += [(r[1], r[_UPOS], False) for r in parts[:-1]]
                words.append((parts[-1][1], parts[-1][_UPOS], spaced))
            else:
                words.append((row[1], "+".join(r[_UPOS] for r in parts), spaced))
            inside = high
        elif row[0].isdigit() and int(row[0]) > inside:
            words.append((row[1], row[_UPOS], spaced))
    return words


def _conllu_sentence(path: str, first: int, text: str | None, rows: list[list[str]]) -> LabelledSentence:
    words = _written_words(rows)
    if text is None:
        text = "".join(word + " " * spaced for word, _, spaced in words).strip()
    offsets, position = [], 0
    for word, _, _ in words:
        start = text.find(word, position)
        if start < 0:
            problem = f"the word {word!r} is not in '# text' after character {position}"
            raise CorpusError(f"{path}, sentence at line {first}", problem, "repair or remove the '# text' line")
        position = start + len(word)
        offsets.append((start, position))
    return LabelledSentence(text, tuple(offsets), tuple(tag for _, tag, _ in words), f"{path}, line {first}")


def detokenise(words: Sequence[str]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Text and the (start, end) of each word in it. Words are never changed, only the spaces between them.

    No space before closing marks, "'s" and "n't"; none after opening marks, # and @; straight quotes open and close.

    >>> detokenise(["Ana", "(", "aged", "9", ")", "did", "n't", "say", '"', "no", '"', "."])[0]
    'Ana (aged 9) didn\\'t say "no".'
    >>> detokenise(["Rome", "'s", "end"])
    ("Rome's end", ((0, 4), (4, 6), (7, 10)))
    """
    text, offsets = "", []
    open_quotes: set[str] = set()
    glue = True  # nothing stands before the first word
    for i, word in enumerate(words):
        follower = words[i + 1] if i + 1 < len(words) else ""
        glue_next = False
        if word in _APOSTROPHES and i and follower.lower() in _CLITICS:
            glue, glue_next = True, True  # you ' ve
        elif word in _APOSTROPHES and i and word not in open_quotes and words[i - 1][-1:] in "sS":
            glue = True  # the boys ' room
        elif word in ('"', "'"):
            if word in open_quotes:
                open_quotes.discard(word)
                glue = True
            else:
                open_quotes.add(word)
                glue_next = True
        elif (_CLOSING.fullmatch(word) and not _SMILEY.fullmatch(word)) or (word == "%" and words[i - 1][-1:].isdigit()):
            glue = True
        elif word in _OPENING:
            glue_next = True
        elif word in ("@", "#") and (follower[:1].isalnum() or follower[:1] == "_"):
            glue_next = word == "#" or follower.lower() not in _NOT_ACCOUNTS
        start = len(text) + (not glue)
        text += word if glue else f" {word}"
        offsets.append((start, len(text)))
        glue = glue_next
    return text, tuple(offsets)
