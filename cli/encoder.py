"""`hardkuma encoder`: hands its words on to training/encoder/main.py."""

from __future__ import annotations

from collections.abc import Sequence

from ..common.packages import available, require

SUMMARY = "train a sentence encoder by contrast, on unlabelled text"


def main(words: Sequence[str]) -> int:
    """Run it."""
    for package in ("yaml", "accelerate", "datasets", "sentence_transformers"):
        if not available(package):
            require(package, "contrast")
    from ..training.encoder.main import main as run

    return run(words)
