"""`hardkuma train`: hands its words on to train.py."""

from __future__ import annotations

from collections.abc import Sequence

SUMMARY = "train gates on unlabelled text"


def main(words: Sequence[str]) -> int:
    """Run train.py."""
    from ..train import main as run

    return run(list(words), prog="hardkuma train")
