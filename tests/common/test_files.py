"""Files that are written whole or not at all; results kept by their keys and never lost to a broken line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hardkuma.common.files import KeptResults, open_atomically, write_atomically


@pytest.mark.parametrize("durable", [False, True])
def test_an_error_leaves_the_old_file_and_nothing_else(durable: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_atomically(path, "old", durable)
    with pytest.raises(KeyError), open_atomically(path, durable) as stream:
        stream.write(b"half a fi")
        raise KeyError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with open_atomically(path) as stream:
        stream.write(b"new")
        stream.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("durable", [False, True])
def test_a_durable_file_is_on_the_disk_before_it_has_its_name(
    durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "a.txt", []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append((os.fstat(descriptor).st_size, path.exists())))
    write_atomically(path, "whole", durable)
    assert synced == ([(5, False)] if durable else []) and path.read_text() == "whole"


def test_two_writers_keep_each_others_results(tmp_path: Path) -> None:
    one, two = (KeptResults(tmp_path / "r.jsonl", ["row", "seed"]) for _ in range(2))
    one.put({"row": "b", "seed": 0, "x": 1})
    two.put({"row": "a", "seed": 1, "x": 2})
    one.put({"row": "a", "seed": 1, "x": 3})
    assert [(entry["row"], entry["x"]) for entry in two.entries()] == [("a", 3), ("b", 1)]


@pytest.mark.parametrize("line", ["{", '{"row": "a"}', "3"])
def test_a_broken_line_is_named_and_the_file_left_alone(tmp_path: Path, line: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"row": "a", "seed": 0}\n' + line + "\n")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"r\.jsonl, line 2"):
        KeptResults(path, ["row", "seed"]).put({"row": "b", "seed": 0})
    assert path.read_bytes() == before
