"""Unlabelled text from files and from the Hub: one lazy iterator of sentences, whatever the format.

read_texts("news.txt")                      plain text, a sentence or paragraph a line; WikiText's marks understood
read_texts("tweets.jsonl.gz")               JSON lines, field text or sentence; .gz of every format
read_texts("pairs.csv", column="title")     CSV, TSV: a column by name, or by number from 1 in files without a header
read_texts("pairs.tsv:2")                   the same, said with the file: in a list of files each has its own
read_texts("pairs.parquet", column="title") Parquet: a column by name
read_texts("train.conll")                   CoNLL columns, CoNLL-U: the words; their labels are never returned
read_texts("hf:org/name:config:split:column")   a data set of the Hub, streamed; parts may be empty or left out
read_texts("-", format="jsonl")             standard input; text a line unless the format is given
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ..common.formats import COLUMN_FORMATS, INPUT_FORMATS, STANDARD_INPUT
from ..configuration_hardkuma import check_choice
from .columns import HUB_PREFIX, Column, RowText, read_column
from .conll import conll_sentences, conllu_sentences
from .detokenise import detokenise
from .errors import CorpusError
from .lines import bare_suffix, check_file, read_lines
from .sentences import split_sentences as split_into_sentences

FORMATS = INPUT_FORMATS
_FORMAT_BY_SUFFIX = {
    ".txt": "text",
    ".md": "text",
    ".text": "text",
    ".raw": "text",
    ".tokens": "text",
    ".conll": "conll",
    ".iob": "conll",
    ".bio": "conll",
    ".conllu": "conllu",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_HEADING = re.compile(r"\s*(=\s)+.*\S\s+=(\s=)*\s*")
_TOKENISED = re.compile(r"\s[,.](\s|$)")


def read_texts(
    path: str | os.PathLike[str],
    format: str | None = None,
    column: Column = None,
    split_sentences: bool | None = None,
    left_out: Counter[str] | None = None,
) -> Iterator[str]:
    """Texts of a file or Hub data set, one at a time, without labels. Memory stays flat however large the source.

    Args:
        path: a file (plain or .gz), with ":" and a column behind it if there is one to name; or
            "hf:org/name[:config][:split][:column]".
        format: one of FORMATS; by default from the suffix.
        column: field of JSON lines, column of CSV, TSV, Parquet or a Hub data set; by default text or sentence. A number
            counts columns from 1, for CSV and TSV files without a header line.
        split_sentences: whether to split texts into sentences. By default yes, but not in CoNLL files and not in a
            column whose name begins with "sentence", which hold sentences already.
        left_out: counts what is not returned, by what it is: WikiText's headings, and sentences with <unk>.

    >>> import os, tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "wiki.txt")
    >>> _ = open(name, "w").write(" = Lobster = \\n A well @-@ known animal . It is <unk> . It is blue . \\n")
    >>> list(read_texts(name))
    ['A well-known animal.', 'It is blue.']
    """
    path, column = _named_column(os.fspath(path), column)
    name, chosen = path, choose_input_format(path, format, column)
    counts: Counter[str] = Counter() if left_out is None else left_out
    if chosen in ("conll", "conllu"):
        return _usable_texts(name, _conll(name, chosen), split_sentences, counts, undo_marks=False)
    rows = _plain(name, counts) if chosen == "text" else read_column(name, chosen, column)
    return _usable_texts(name, rows, split_sentences, counts)


def _named_column(path: str, column: Column) -> tuple[str, Column]:
    """The file and the column of "pairs.tsv:2"; other paths, and those of files that exist, stay as they are.

    >>> _named_column("pairs.tsv:2", None), _named_column("pairs.tsv", "title"), _named_column("hf:org/name:a", None)
    (('pairs.tsv', '2'), ('pairs.tsv', 'title'), ('hf:org/name:a', None))
    """
    file, mark, named = path.rpartition(":")
    if not mark or path.startswith(HUB_PREFIX) or os.path.exists(path):
        return path, column
    if _FORMAT_BY_SUFFIX.get(bare_suffix(Path(file))) not in COLUMN_FORMATS:
        return path, column
    if column is not None:
        raise ValueError(f"{path} names column {named!r}, and --field (column= in Python) {column!r}: leave one out")
    return file, named


def name_left_out(counts: Counter[str]) -> str:
    """What `read_texts` has left out, for people; "" where that is nothing.

    >>> name_left_out(Counter({"headings": 2, "sentences with <unk>": 1300}))
    'left out: 2 headings, 1,300 sentences with <unk>'
    """
    return "left out: " + ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items())) if counts else ""


def choose_input_format(path: str | os.PathLike[str], format: str | None = None, column: Column = None) -> str:
    """The format given, or that of the suffix, of a file that exists.

    >>> choose_input_format("hf:org/name")
    'hub'
    """
    if format is not None:
        check_choice("format", format, FORMATS)
    name = os.fspath(path)
    if name.startswith(HUB_PREFIX) or format == "hub":
        return "hub"
    file = check_file(path)
    chosen = format or ("text" if name == STANDARD_INPUT else _FORMAT_BY_SUFFIX.get(bare_suffix(file)))
    if chosen is None:
        raise ValueError(
            f"{name}: the suffix {file.suffix!r} names no format; rename it, or say which it is: "
            f"--input-format (format in Python and recipes) is one of {', '.join(FORMATS)}"
        )
    if name == STANDARD_INPUT and chosen == "parquet":
        raise ValueError("Parquet cannot be read from standard input: its index is at its end; give the file.")
    if column is not None and chosen not in COLUMN_FORMATS:
        raise ValueError(
            f"{name}: the format {chosen!r} has no columns, so --field (column= in Python) names none; leave it out"
        )
    return chosen


def _usable_texts(
    source: str, rows: Iterator[RowText], split: bool | None, left_out: Counter[str], undo_marks: bool = True
) -> Iterator[str]:
    """Texts or their sentences, without WikiText's marks; an error about `source` where there are none."""
    read = kept = 0
    for row in rows:
        if not row.text:
            continue
        read += 1
        splits = not row.is_sentence if split is None else split
        for text in split_into_sentences(row.text) if splits else [row.text.strip()]:
            kind = _unusable_kind(text) if undo_marks else None
            if kind is not None:
                left_out[kind] += 1
            elif usable := _without_marks(text) if undo_marks else text:
                kept += 1
                yield usable
    if not kept:
        problem = f"{read} texts read, none usable" if read else "no text found; the file is empty"
        raise CorpusError(source, problem, "give a source with at least one sentence")


def _unusable_kind(text: str) -> str | None:
    """What makes a text of WikiText no sentence of its language, if anything does."""
    if "<unk>" in text:
        return "sentences with <unk>"
    return "headings" if _HEADING.fullmatch(text) else None


def _without_marks(text: str) -> str:
    """The text as written: WikiText's @-@ @,@ @.@ undone, tokenised punctuation closed up.

    >>> _without_marks("1 @,@ 200 sea @-@ birds ( and more ) .")
    '1,200 sea-birds (and more).'
    """
    text = re.sub(r"\s?@([-,.])@\s?", r"\1", text)
    # No language puts a space before a comma or a full stop; French does before ; : ! and ?
    if _TOKENISED.search(text):
        text = detokenise(text.split())[0]
    return text


def _plain(path: str, left_out: Counter[str]) -> Iterator[RowText]:
    for _, line in read_lines(path):
        if _HEADING.fullmatch(line):
            left_out["headings"] += 1
        elif line.strip():
            yield RowText(line, False)


def _conll(path: str, format: str) -> Iterator[RowText]:
    if format == "conllu":
        for sentence in conllu_sentences(path):
            yield RowText(sentence.text, True)
    else:
        for _, rows in conll_sentences(path):
            yield RowText(detokenise([row[0] for row in rows])[0], True)
