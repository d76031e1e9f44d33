"""A sentence with its words, where they are, and a tag for each. For evaluation only: training never sees one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LabelledSentence:
    """One sentence with word-level labels; every word is `text[start:end]` of its offsets.

    Attributes:
        text: the sentence as a reader would write it.
        offsets: (start, end) of each word in `text`, in order, not overlapping.
        tags: one per word, as in the source; "O" is outside of every entity.
        source: where the sentence comes from: "file, line 12", or the domain of a bundled sentence.

    >>> sentence = LabelledSentence("Ana left Rome.", ((0, 3), (4, 8), (9, 13)), ("B-person", "O", "B-place"))
    >>> sentence.words, sentence.entity_mask
    (('Ana', 'left', 'Rome'), (True, False, True))
    """

    text: str
    offsets: tuple[tuple[int, int], ...]
    tags: tuple[str, ...]
    source: str = ""

    def __post_init__(self) -> None:
        from ..words_hardkuma import check_words  # imports torch, which reading text does not need

        if len(self.offsets) != len(self.tags):
            raise ValueError(f"one tag per word is needed, got {len(self.tags)} tags for {len(self.offsets)} words")
        check_words(self.text, self.offsets)

    @property
    def words(self) -> tuple[str, ...]:
        """The words themselves, in order."""
        return tuple(self.text[start:end] for start, end in self.offsets)

    @property
    def entity_mask(self) -> tuple[bool, ...]:
        """Whether each word is part of an entity: its tag is not "O"."""
        return tuple(tag != "O" for tag in self.tags)
