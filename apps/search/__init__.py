"""What texts hold: passages that answer a question, with the words that carry each match; key terms."""

from __future__ import annotations

from .index import Match, Passage, SearchIndex, check_target
from .passages import read_passages
from .terms import Term, find_terms, rank_terms

__all__ = ["Match", "Passage", "SearchIndex", "Term", "check_target", "find_terms", "rank_terms", "read_passages"]
