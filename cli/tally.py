"""What people should be told at the end of `hardkuma gates`: texts without a word, and that nothing was selected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..scoring_hardkuma import Record


class Tally:
    """How many texts have no word, and in how many nothing was selected: what people should be told at the end.

    >>> tally = Tally()
    >>> _ = tally.add([{"words": [], "spans": [], "reason": "the text has no word"}])
    >>> tally.notes("entities", ["meaning", "entities"])
    ['1 of 1 texts has no word, so there is nothing to select in it.']
    """

    def __init__(self) -> None:
        self.texts = self.wordless = 0
        self.reasons: Counter[str] = Counter()  # of texts with words, none of which is selected

    def add(self, records: Sequence[Record]) -> list[Record]:
        """Count these records, and hand them on."""
        for record in records:
            self.texts += 1
            self.wordless += not record["words"]
            if record["words"] and not record["spans"]:
                self.reasons[record["reason"]] += 1
        return list(records)

    def notes(self, selector: str, names: Sequence[str]) -> list[str]:
        """Sentences for standard error; mostly none.

        Args:
            selector: the one whose gates these are.
            names: of all selectors of the model.
        """
        if not self.texts:
            return ["the input is empty: there is no text to show."]
        notes = []
        if self.wordless:
            verb, them = ("has", "it") if self.wordless == 1 else ("have", "them")
            notes.append(f"{self.wordless} of {self.texts} texts {verb} no word, so there is nothing to select in {them}.")
        unanswered = self.reasons.total()
        if unanswered:
            where = "" if unanswered + self.wordless == self.texts else f" in {unanswered} of {self.texts} texts"
            other = ", or --selector meaning" if "meaning" in names and selector != "meaning" else ""
            joint = ", a" if other else " or a"
            why = "; ".join(reason for reason, _ in self.reasons.most_common())
            notes.append(f"nothing was selected{where}: {why}. Try --rate 0.2{joint} lower --threshold{other}.")
        return notes
