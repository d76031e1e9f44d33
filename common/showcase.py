"""What cards and commands show: our own sentences, and the names of sources."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
