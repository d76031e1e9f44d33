"""Search with reasons: passages by the encoder's own embeddings, and the words of each that carry the match."""

from __future__ import annotations

from .index import Match, Passage, SearchIndex
from .passages import read_passages

__all__ = ["Match", "Passage", "SearchIndex", "read_passages"]
