"""The passages of files: a row each, long ones in several."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...common.formats import STANDARD_INPUT
from ...data.cleaning import count_words
from ...data.readers import read_rows
from ...data.sentences import split_sentences
from ...scoring_hardkuma import encodable
from .index import Passage

# Encoders see the beginning of a text alone; this much they see whole.
MAX_WORDS = 100


def read_passages(
    paths: Iterable[str | os.PathLike[str]], format: str | None = None, column: str | None = None
) -> Iterator[Passage]:
    """Every row of the files that has text, in order; a row of more than 100 words is cut between sentences.

    Half of a surrogate pair, which JSON and names of files can hold and no UTF-8 stream, becomes U+FFFD.

    >>> import tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "two.txt")
    >>> _ = open(name, "w").write("Rain fell.\\n\\nIt was cold.\\n")
    >>> [(passage.text, passage.source, passage.row) for passage in read_passages([name])]
    [('Rain fell.', 'two.txt', 1), ('It was cold.', 'two.txt', 3)]
    """
    for path in paths:
        source = "standard input" if os.fspath(path) == STANDARD_INPUT else Path(path).name
        for row, text in enumerate(read_rows(path, format, column), start=1):
            for piece in cut_passage(encodable(text)):
                yield Passage(piece, encodable(source), row)


def cut_passage(text: str, max_words: int = MAX_WORDS) -> list[str]:
    """Pieces of at most `max_words` words, cut between sentences (a longer sentence stays whole); [] for a blank text.

    >>> cut_passage("It rained. It was cold. We stayed.", max_words=5)
    ['It rained. It was cold.', 'We stayed.']
    """
    if count_words(text) <= max_words:
        return [text.strip()] if text.strip() else []
    pieces: list[str] = []
    size = max_words
    for sentence in split_sentences(text):
        words = count_words(sentence)
        if size + words > max_words:
            pieces.append(sentence)
            size = words
        else:
            pieces[-1] += f" {sentence}"
            size += words
    return pieces
