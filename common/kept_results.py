"""Results of long experiments in one file of JSON lines, which is kept with the code: what was run is not run again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .files import write_atomically


class KeptResults:
    """Results by what identifies them. A result that is put in takes the place of the one with the same keys.

    The file is read anew before it is written, so that several runs beside each other may share it.

    Args:
        path: the file; it need not exist.
        keys: fields whose values together name a result.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "results.jsonl"
    >>> results = KeptResults(path, ["arm", "seed"])
    >>> results.put({"arm": "a", "seed": 1, "average": 3.0})
    >>> results.put({"arm": "a", "seed": 0, "average": 2.0})
    >>> results.put({"arm": "a", "seed": 1, "average": 4.0})
    >>> [entry["average"] for entry in KeptResults(path, ["arm", "seed"]).entries()]
    [2.0, 4.0]
    """

    def __init__(self, path: Path, keys: Sequence[str]):
        self.path, self.keys = path, list(keys)

    def entries(self) -> list[dict[str, Any]]:
        """All results, in the order of their keys."""
        if not self.path.is_file():
            return []
        found = []
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                entry = json.loads(line)
                missing = [key for key in self.keys if key not in entry]
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"{self.path}, line {number}, is not a JSON object: {error}; mend or delete it."
                ) from error
            if missing:
                raise ValueError(f"{self.path}, line {number}, has no {', '.join(missing)}; mend or delete it.")
            found.append(entry)
        return found

    def put(self, entry: dict[str, Any]) -> None:
        """Keep a result."""
        others = [known for known in self.entries() if self._key(known) != self._key(entry)]
        ordered = sorted([*others, entry], key=lambda known: [str(part) for part in self._key(known)])
        write_atomically(self.path, "".join(json.dumps(known) + "\n" for known in ordered))

    def _key(self, entry: dict[str, Any]) -> list[Any]:
        return [entry[key] for key in self.keys]
