"""A long run that can stop at any moment and go on: finished parts beside the output, joined at the end.

    out.jsonl.parts/journal.json    what the run is: a run with other input or settings must not continue it
    out.jsonl.parts/00000000        the finished parts, each written under another name and then renamed
    out.jsonl                       appears when all parts are there, whole

Parts depend on the input alone, so the file is the same to the byte whether the run was interrupted, and however many
processes shared it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .writers import sync


class Parts:
    """The parts of one output file."""

    def __init__(self, output: Path):
        self.output = output
        self.folder = output.with_name(f"{output.name}.parts")

    def begin(self, settings: dict[str, Any], resume: bool) -> None:
        """Make or take over the folder. An earlier run's parts are thrown away, or kept with `resume` if they fit."""
        if self.output.is_dir():
            raise IsADirectoryError(f"{self.output} is a folder; give a file to write.")
        if not self.output.parent.is_dir():
            raise FileNotFoundError(f"{self.output.parent} is no folder: make it first.")
        journal = self.folder / "journal.json"
        if self.folder.exists():
            if any(self.folder.iterdir()) and not journal.is_file() and not (self.folder / f"{journal.name}.tmp").is_file():
                raise FileExistsError(f"{self.folder} exists and is none of ours (no {journal.name}): move it away.")
            before = _read_journal(journal) if resume and journal.is_file() else None
            if before == settings:
                for path in self.folder.glob("*.tmp"):
                    path.unlink()
                return
            if before is not None:
                changed = sorted(key for key in {*before, *settings} if before.get(key) != settings.get(key))
                raise ValueError(
                    f"{self.folder} holds a run with other settings ({', '.join(changed)} changed): "
                    "use the same, or start again without --resume."
                )
            shutil.rmtree(self.folder)
        self.folder.mkdir()
        self._write(journal, json.dumps(settings, indent=2).encode())

    def finished(self) -> set[int]:
        """Numbers of the parts that are there."""
        return {int(path.name) for path in self.folder.iterdir() if path.name.isdigit()}

    def add(self, number: int, content: bytes) -> None:
        """Write one part; it is there wholly or not at all."""
        self._write(self._path(number), content)

    def close(self, count: int, join: Callable[[Iterable[Path], Path], None]) -> None:
        """Join parts 0 to count - 1 into the output and remove them."""
        missing = set(range(count)) - self.finished()
        if missing:
            raise OSError(f"part {min(missing)} of {count} is missing in {self.folder}: run again with --resume.")
        temporary = self.folder / "joined.tmp"
        join((self._path(number) for number in range(count)), temporary)
        os.replace(temporary, self.output)
        shutil.rmtree(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}"

    def _write(self, path: Path, content: bytes) -> None:
        temporary = path.with_name(f"{path.name}.tmp")
        with open(temporary, "wb") as stream:
            stream.write(content)
            sync(stream)
        os.replace(temporary, path)


def _read_journal(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): start again without --resume.") from error
