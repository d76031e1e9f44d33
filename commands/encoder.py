"""`hardkuma encoder`: hands its words on to contrast/main.py."""

from __future__ import annotations

from collections.abc import Sequence

SUMMARY = "train a sentence encoder by contrast, on unlabelled text"


def main(words: Sequence[str]) -> int:
    """Run it."""
    from ..common.packages import require

    require("sentence_transformers", "sentence-transformers,train,corpora")
    from ..contrast.main import main as run

    return run(words)
