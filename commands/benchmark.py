"""`hardkuma benchmark`: hands its words on to evaluation/command.py."""

from __future__ import annotations

from collections.abc import Sequence

SUMMARY = "compare gates with every method that one would use instead, on labelled corpora"


def main(words: Sequence[str]) -> int:
    """Run the benchmark."""
    from ..evaluation.command import main as run

    return run(words)
