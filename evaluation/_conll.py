"""Reading CoNLL columns and CoNLL-U. The same interface as `hardkuma.corpora.readers.read_conll`, which can replace it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..attribution.words import Span


@dataclass
class TaggedSentence:
    """A sentence with one tag per word.

    Attributes:
        text: the words joined by spaces (CoNLL) or the original text (CoNLL-U).
        words: (start, end) character offsets.
        tags: one per word.
    """

    text: str
    words: list[Span]
    tags: list[str]


def join_words(forms: list[str], tags: list[str]) -> TaggedSentence:
    """Words joined by spaces, with their offsets.

    >>> join_words(["In", "Paris"], ["O", "B-LOC"]).words
    [(0, 2), (3, 8)]
    """
    words, place = [], 0
    for form in forms:
        words.append((place, place + len(form)))
        place += len(form) + 1
    return TaggedSentence(" ".join(forms), words, tags)


def read_conll(path: str | Path) -> Iterator[TaggedSentence]:
    """Sentences of a file with one word per line, its tag in the last column, and empty lines between sentences.

    Columns are separated by tabs if the line has any, else by white space. -DOCSTART- lines are left out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "x.conll"
    ...     _ = path.write_text("In O\\nRome B-LOC\\n\\nok O\\n")
    ...     [sentence.text for sentence in read_conll(path)]
    ['In Rome', 'ok']
    """
    forms: list[str] = []
    tags: list[str] = []
    with open(path, encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            line = line.rstrip("\r\n")
            if not line.strip():
                if forms:
                    yield join_words(forms, tags)
                forms, tags = [], []
                continue
            columns = line.split("\t") if "\t" in line else line.split()
            form, tag = columns[0].strip(), columns[-1].strip()
            if form == "-DOCSTART-":
                continue
            if len(columns) < 2 or not form or not tag:
                raise ValueError(f"line {number} of {path} is {line!r}; a word and its tag expected.")
            # A word with a space inside would come apart again.
            forms.append("_".join(form.split()))
            tags.append(tag)
    if forms:
        yield join_words(forms, tags)


def read_conllu(path: str | Path) -> Iterator[TaggedSentence]:
    """Sentences of a CoNLL-U file with their universal parts of speech; offsets are into the original text.

    A multi-word token is split where its parts are written one after the other ("do" + "n't"); else it is one word with
    the tag of its first part.
    """
    text: str | None = None
    rows: list[list[str]] = []
    with open(path, encoding="utf-8") as lines:
        for line in [*lines, "\n"]:
            line = line.rstrip("\r\n")
            if line.startswith("# text ="):
                text = line.split("=", 1)[1].strip()
            elif line and not line.startswith("#"):
                rows.append(line.split("\t"))
            elif not line and rows:
                yield _align(text, rows, path)
                text, rows = None, []


def _align(text: str | None, rows: list[list[str]], path: str | Path) -> TaggedSentence:
    parts = {row[0]: row for row in rows if row[0].isdigit()}
    pieces: list[tuple[str, str]] = []  # form, tag
    inside: set[str] = set()
    for row in rows:
        if "-" in row[0]:
            first, last = (int(number) for number in row[0].split("-"))
            members = [str(number) for number in range(first, last + 1)]
            inside |= set(members)
            if "".join(parts[member][1] for member in members) == row[1]:
                pieces += [(parts[member][1], parts[member][3]) for member in members]
            else:
                pieces.append((row[1], parts[members[0]][3]))
        elif row[0].isdigit() and row[0] not in inside:
            pieces.append((row[1], row[3]))
    if text is None:
        return join_words([form for form, _ in pieces], [tag for _, tag in pieces])
    words, place = [], 0
    for form, _ in pieces:
        start = text.find(form, place)
        if start < 0:
            raise ValueError(f"the word {form!r} is not in the text {text[:60]!r} of {path}; the file is inconsistent.")
        place = start + len(form)
        words.append((start, place))
    return TaggedSentence(text, words, [tag for _, tag in pieces])
