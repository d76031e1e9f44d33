"""What is raised about a corpus: always the location, the problem with the value there, and the fix."""

from __future__ import annotations


class CorpusError(ValueError):
    """A corpus that cannot be used as it is. `location` is "file, line 3" or a data set's address.

    >>> str(CorpusError("a.jsonl, line 3", "broken JSON", "repair the line"))
    'a.jsonl, line 3: broken JSON; repair the line'
    """

    def __init__(self, location: str, problem: str, fix: str):
        super().__init__(f"{location}: {problem}; {fix}")
        self.location, self.problem, self.fix = location, problem, fix

    def __reduce__(self) -> tuple:
        # The message has one argument, the constructor three: say how to unpickle (data loader workers do).
        return type(self), (self.location, self.problem, self.fix)


def format_fix(name: str) -> str:
    """How to read a file as another format than its suffix says.

    >>> format_fix("tsv")
    "add --input-format tsv (format='tsv' in Python and recipes)"
    """
    return f"add --input-format {name} (format={name!r} in Python and recipes)"
