"""The file of a run that is killed: at any byte, at any moment, and what somebody else leaves in its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hardkuma.cli.writers import ParquetFormat, PartialOutput
from tests.forks import killed_at

SETTINGS = {"rate": 0.1, "file": ["in.txt", 3]}
BLOCKS = [(2, b"one\n[two]\n"), (1, b"three\n"), (3, b"\n" * 3)]
WHOLE = b"<" + b"".join(content for _, content in BLOCKS) + b">"


def write(output: Path, resume: bool) -> None:
    """A whole run, which goes on where an earlier one ended."""
    with PartialOutput(output) as partial:
        done = partial.begin(SETTINGS, resume)
        for number, (rows, content) in enumerate(BLOCKS):
            if sum(rows for rows, _ in BLOCKS[:number]) >= done:
                partial.add(rows, content)
        partial.finish(lambda blocks, stream: stream.writelines([b"<", *blocks, b">"]))


@pytest.fixture
def partial_file(tmp_path: Path) -> bytes:
    """All that a run has written before it puts the output together."""
    with PartialOutput(tmp_path / "other.txt") as partial:
        partial.begin(SETTINGS)
        for block in BLOCKS:
            partial.add(*block)
    content = partial.path.read_bytes()
    partial.path.unlink()
    return content


def test_cut_at_any_byte(partial_file: bytes, tmp_path: Path) -> None:
    output, partial = tmp_path / "out.txt", tmp_path / "out.txt.partial"
    for length in range(len(partial_file) + 1):
        # A power cut may leave what was never written.
        for garbage in (b"", b"\0" * 40, b"3\n") if length > 30 else (b"",):
            partial.write_bytes(partial_file[:length] + garbage)
            write(output, resume=True)
            assert output.read_bytes() == WHOLE and os.listdir(tmp_path) == ["out.txt"], length
            output.unlink()


def test_a_changed_byte_is_noticed(partial_file: bytes, tmp_path: Path) -> None:
    (tmp_path / "out.txt.partial").write_bytes(partial_file.replace(b"three", b"THREE"))
    with PartialOutput(tmp_path / "out.txt") as partial:
        assert partial.begin(SETTINGS, resume=True) == 2, "the block and those behind it are done again"
    write(tmp_path / "out.txt", resume=True)
    assert (tmp_path / "out.txt").read_bytes() == WHOLE


def test_a_block_that_is_lost_before_the_end_is_an_error(tmp_path: Path) -> None:
    with PartialOutput(tmp_path / "out.txt") as partial:
        partial.begin(SETTINGS)
        partial.add(2, b"two rows")
        partial.path.write_bytes(partial.path.read_bytes()[:-1])
        with pytest.raises(OSError, match=r"holds 0 rows of 2: it is damaged; run again with --resume"):
            partial.finish(lambda blocks, stream: stream.writelines(blocks))
    assert os.listdir(tmp_path) == ["out.txt.partial"]


def test_killed_at_any_moment(tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    moment, left = 0, set()
    while killed_at(moment, lambda: write(output, resume=False)):
        files = {path: path.read_bytes() for path in tmp_path.iterdir()}
        left.add(tuple(sorted(path.name for path in files)))
        for resume in (True, False):
            for path, content in files.items():
                if not path.exists():  # it went on from there once already
                    path.write_bytes(content)
            write(output, resume)
            assert output.read_bytes() == WHOLE and os.listdir(tmp_path) == ["out.txt"], (moment, resume)
            output.unlink()
        moment += 1
    names = {name for names in left for name in names}
    assert moment > 50 and names == {".out.txt.lock", "out.txt", "out.txt.partial", "out.txt.joined"}, (
        "it was killed before and at the end"
    )
    assert (".out.txt.lock", "out.txt", "out.txt.partial") in left, "the output was whole, its blocks still there"


@pytest.mark.parametrize("content", [b"my thesis", b"{}\n", b"[1]\n"])
def test_a_file_of_others_is_left_alone(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "out.txt.partial").write_bytes(content)
    with pytest.raises(FileExistsError, match="no run of this command made it: move it away"):
        write(tmp_path / "out.txt", resume=False)
    assert (tmp_path / "out.txt.partial").read_bytes() == content


def test_damaged_settings_are_not_continued(partial_file: bytes, tmp_path: Path) -> None:
    (tmp_path / "out.txt.partial").write_bytes(partial_file.replace(b'"rate":', b'"rate"', 1))
    with pytest.raises(ValueError, match=r"other settings .* start again without --resume"):
        write(tmp_path / "out.txt", resume=True)
    write(tmp_path / "out.txt", resume=False)
    assert (tmp_path / "out.txt").read_bytes() == WHOLE


def test_parquet_blocks_are_row_groups(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    writer = ParquetFormat()
    records = [{"text": name, "words": [], "spans": [], "rate": None, "windows": 1, "reason": "none"} for name in "abc"]
    with open(tmp_path / "out.parquet", "wb") as stream:
        writer.join([writer.block(records[:2]), writer.block(records[2:])], stream)
    assert parquet.read_table(tmp_path / "out.parquet")["text"].to_pylist() == ["a", "b", "c"]
    assert parquet.read_metadata(tmp_path / "out.parquet").num_row_groups == 2
