"""A long run that can stop at any moment and go on: finished parts beside the output, joined at the end.

    out.jsonl.parts/journal.json    what the run is: a run with other input or settings must not continue it
    out.jsonl.parts/00000000        the finished parts, each written under another name and then renamed
    out.jsonl                       appears when all parts are there, whole
    .out.jsonl.journal.json         the same journal, and how large the whole file is: `--resume` need not do it again

Parts depend on the input alone, so the file is the same to the byte whether the run was interrupted, and however many
processes shared it. Each is on the disk before it counts as finished.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ..common.files import open_atomically, write_atomically

JOURNAL = "journal.json"


class Parts:
    """The parts of one output file.

    >>> import tempfile
    >>> output = Path(tempfile.mkdtemp()) / "out.txt"
    >>> parts = Parts(output)
    >>> parts.begin({"rate": 0.2}, resume=False)
    >>> parts.add(0, b"one ")
    >>> parts.add(1, b"two")
    >>> parts.close(2, lambda paths, stream: stream.writelines(path.read_bytes() for path in paths))
    >>> output.read_text(), parts.folder.exists()
    ('one two', False)
    """

    def __init__(self, output: Path):
        self.output = output
        self.folder = output.with_name(f"{output.name}.parts")
        self._record = output.with_name(f".{output.name}.{JOURNAL}")

    def is_complete(self, settings: Mapping[str, object]) -> bool:
        """Whether a run with these settings has written the whole output, which nobody has changed since."""
        return not self.folder.exists() and self._record.is_file() and _read_journal(self._record) == self._state(settings)

    def recorded(self) -> dict[str, Any]:
        """The settings of the run whose parts are here, or that wrote the output; empty where there was none."""
        if (self.folder / JOURNAL).is_file():
            return _read_journal(self.folder / JOURNAL)
        state = _read_journal(self._record) if self._record.is_file() else {}
        settings = state.get("settings", {})
        return dict(settings) if isinstance(settings, dict) else {}

    def _state(self, settings: Mapping[str, object]) -> dict[str, object]:
        status = self.output.stat() if self.output.is_file() else None
        return {"settings": dict(settings), "output": [status.st_size, status.st_mtime_ns] if status else None}

    def begin(self, settings: Mapping[str, object], resume: bool) -> None:
        """Make or take over the folder. An earlier run's parts are thrown away, or kept with `resume` if they fit.

        Args:
            settings: plain JSON values on which the bytes of the output depend.
            resume: go on with the parts of a run with the same settings; an error where they differ.
        """
        if self.output.is_dir():
            raise IsADirectoryError(f"{self.output} is a folder; give a file to write.")
        if not self.output.parent.is_dir():
            raise FileNotFoundError(f"{self.output.parent} is not a folder: make it first.")
        journal = self.folder / JOURNAL
        if self.folder.exists():
            self._check_ownership()
            earlier = _read_journal(journal) if resume and journal.is_file() else None
            if earlier == settings:
                for path in self.folder.glob("*.tmp"):
                    path.unlink()
                return
            if earlier is not None:
                changed = sorted(key for key in {*earlier, *settings} if earlier.get(key) != settings.get(key))
                raise ValueError(
                    f"{self.folder} holds a run with other settings ({', '.join(changed)} changed): "
                    "use the same, or start again without --resume."
                )
            shutil.rmtree(self.folder)
        self.folder.mkdir()
        write_atomically(journal, json.dumps(settings, indent=2), durable=True)

    def _check_ownership(self) -> None:
        """A folder that no run has made is not to be thrown away; one that was stopped in its first moment may be."""
        journals = [*self.folder.glob(JOURNAL), *self.folder.glob(f".{JOURNAL}.*.tmp")]
        if any(self.folder.iterdir()) and not journals:
            raise FileExistsError(f"{self.folder} exists, but no run of this command made it (no {JOURNAL}): move it away.")

    def finished(self) -> set[int]:
        """Numbers of the parts that are there."""
        return {int(path.name) for path in self.folder.iterdir() if path.name.isdigit()}

    def add(self, number: int, content: bytes) -> None:
        """Write one part; it is there wholly or not at all."""
        write_atomically(self._path(number), content, durable=True)

    def close(self, count: int, join: Callable[[Iterable[Path], BinaryIO], None]) -> None:
        """Join parts 0 to count - 1 into the output and remove them."""
        missing = set(range(count)) - self.finished()
        if missing:
            raise OSError(f"part {min(missing)} of {count} is missing in {self.folder}: run again with --resume.")
        # In the folder of the parts, so that what an interruption leaves there is cleared away by the next run.
        joined = self.folder / "joined"
        with open_atomically(joined, durable=True) as stream:
            join((self._path(number) for number in range(count)), stream)
        os.replace(joined, self.output)
        settings = _read_journal(self.folder / JOURNAL)
        write_atomically(self._record, json.dumps(self._state(settings), indent=2), durable=True)
        shutil.rmtree(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}"


def _read_journal(path: Path) -> dict[str, object]:
    try:
        journal = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(journal, dict):
            raise ValueError(f"a JSON {type(journal).__name__} where an object is expected")
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): start again without --resume.") from error
    return journal
