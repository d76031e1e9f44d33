"""Results of long experiments: kept by their keys, read anew before each write, and never lost to a broken line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardkuma.common.kept_results import KeptResults


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
