"""CoNLL columns and CoNLL-U: sentences as words with tags. Evaluation reads the tags; training gets the text alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from ..configuration_hardkuma import check_choice
from .detokenise import detokenise
from .errors import CorpusError, format_fix
from .labelled import LabelledSentence
from .lines import bare_suffix, check_file, read_lines

# What the last column of a word line looks like where words are tagged: this tells the word "#" from a comment.
_TAG = re.compile(r"O|[BIESLUM]-.+", re.ASCII)
_CONLLU_COLUMNS = 10
_UPOS = 3


def read_conll(path: str | os.PathLike[str], format: str | None = None) -> Iterator[LabelledSentence]:
    """Sentences of a CoNLL file (word first, tag last) or CoNLL-U file (tag: universal part of speech), one at a time.

    For evaluation only. The text is detokenised, or taken from CoNLL-U's `# text`; offsets point into it.

    Args:
        path: a file, plain or .gz.
        format: "conll" or "conllu"; by default "conllu" for that suffix and "conll" for every other.

    >>> import os, tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "two.conll")
    >>> _ = open(name, "w").write("Ana\\tB-person\\nslept\\tO\\n.\\tO\\n\\nWhy\\tO\\n?\\tO\\n")
    >>> for sentence in read_conll(name):
    ...     print(sentence.text, sentence.offsets, sentence.tags)
    Ana slept. ((0, 3), (4, 9), (9, 10)) ('B-person', 'O', 'O')
    Why? ((0, 3), (3, 4)) ('O', 'O')
    """
    file = check_file(path)
    chosen = format or ("conllu" if bare_suffix(file) == ".conllu" else "conll")
    check_choice("format", chosen, ("conll", "conllu"))
    return _labelled(os.fspath(path), chosen)


def _labelled(path: str, format: str) -> Iterator[LabelledSentence]:
    empty = True
    for sentence in conllu_sentences(path) if format == "conllu" else _tagged(path):
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
    """A line that begins with # is a comment unless it is shaped like the words: their number of columns, a tag last."""
    if not row[0].startswith("#"):
        return False
    if width is None:
        return len(row) < 2 or not _TAG.fullmatch(row[-1])
    return len(row) != width or (width > 1 and not _TAG.fullmatch(row[-1]))


def conllu_sentences(path: str) -> Iterator[LabelledSentence]:
    """Sentences of a CoNLL-U file with parts of speech as tags; `# text` decides the spaces where it is given.

    A contraction ("don't" = do + n't) is split where its parts spell it; otherwise it is one word, tags joined by "+".

    >>> import os, tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "one.conllu")
    >>> rest = "\\t_" * 6
    >>> _ = open(name, "w").write(f"# text = Go!\\n1\\tGo\\tgo\\tVERB{rest}\\n2\\t!\\t!\\tPUNCT{rest}\\n")
    >>> [(s.text, s.tags) for s in conllu_sentences(name)]
    [('Go!', ('VERB', 'PUNCT'))]
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
                fix = f"separate the ten columns of CoNLL-U by tabs, or {format_fix('conll')} for other columns"
                raise CorpusError(f"{path}, line {number}", f"{len(row)} columns where CoNLL-U has ten", fix)
            first = first if rows else number
            rows.append(row)
    if rows:
        yield _conllu_sentence(path, first, text, rows)


def _surface_words(rows: list[list[str]]) -> list[tuple[str, str, bool]]:
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
    words = _surface_words(rows)
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
