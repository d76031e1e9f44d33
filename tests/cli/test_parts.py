"""The parts of a long run: whose folder it is, and what an interruption leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardkuma.cli.parts import Parts

SETTINGS = {"rate": 0.1}


def test_a_run_that_was_stopped_in_its_first_moment_is_begun_again(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "out.txt")
    parts.folder.mkdir()
    (parts.folder / ".journal.json.123.tmp").write_text("{")
    parts.begin(SETTINGS, resume=True)
    assert [path.name for path in parts.folder.iterdir()] == ["journal.json"]


def test_half_written_files_are_cleared_away(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "out.txt")
    parts.begin(SETTINGS, resume=False)
    parts.add(0, b"one")
    for name in (".00000001.123.tmp", ".joined.123.tmp"):
        (parts.folder / name).write_bytes(b"tw")
    parts.begin(SETTINGS, resume=True)
    assert parts.finished() == {0} and not list(parts.folder.glob("*.tmp"))


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "out.txt")
    parts.begin(SETTINGS, resume=False)
    parts.add(0, b"one")
    with pytest.raises(OSError, match="part 1 of 2 is missing"):
        parts.close(2, lambda paths, stream: None)
    assert not parts.output.exists()


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_damaged_journal_is_not_continued(content: str, tmp_path: Path) -> None:
    parts = Parts(tmp_path / "out.txt")
    parts.folder.mkdir()
    (parts.folder / "journal.json").write_text(content)
    with pytest.raises(ValueError, match=r"is damaged .* start again without --resume"):
        parts.begin(SETTINGS, resume=True)
