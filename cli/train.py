"""`hardkuma train`: hands its words on to train.py."""

from __future__ import annotations

from collections.abc import Sequence

from ..common.packages import available, require

SUMMARY = "train gates on unlabelled text"


def main(words: Sequence[str]) -> int:
    """Run train.py."""
    for package in ("accelerate", "matplotlib"):
        if not available(package):
            require(package, "train")
    from ..train import main as run

    return run(list(words), prog="hardkuma train")
