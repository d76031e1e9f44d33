import gzip
import pickle
import tracemalloc
from pathlib import Path

import pytest

from hardkuma.data import lines
from hardkuma.data.lines import CorpusError, bare_suffix, check_file, read_lines


def test_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    # U+2028 and U+0085 separate lines for str.splitlines, but are text here.
    file.write_bytes("\ufeffone\r\ntwo\u2028still\u0085two\n\nlast".encode())
    assert list(read_lines(file)) == [(1, "one"), (2, "two\u2028still\u0085two"), (3, ""), (4, "last")]


def test_gzip_reads_the_same(tmp_path: Path) -> None:
    text = "".join(f"line {i}\n" for i in range(1000))
    (tmp_path / "a.txt").write_text(text)
    with gzip.open(tmp_path / "a.txt.gz", "wt") as stream:
        stream.write(text)
    assert list(read_lines(tmp_path / "a.txt.gz")) == list(read_lines(tmp_path / "a.txt"))
    assert bare_suffix(tmp_path / "a.txt.gz") == ".txt"


def test_broken_gzip_names_the_file(tmp_path: Path) -> None:
    cut = tmp_path / "cut.txt.gz"
    cut.write_bytes(gzip.compress(b"some text\n" * 1000)[:-20])
    with pytest.raises(CorpusError, match=r"cut\.txt\.gz, line \d+: not a whole gzip file"):
        list(read_lines(cut))
    plain = tmp_path / "plain.txt.gz"
    plain.write_text("never compressed\n")
    with pytest.raises(CorpusError, match=r"plain\.txt\.gz, line 1.*rename it"):
        list(read_lines(plain))


def test_bytes_that_are_not_utf8_name_file_line_and_byte(tmp_path: Path) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes(b"fine\ncaf\xe9 noir\n")
    with pytest.raises(
        CorpusError, match=r"latin\.txt, line 2: byte 4 of the line \(0xe9\) is not UTF-8.*iconv -f latin-1"
    ):
        list(read_lines(file))
    wide = tmp_path / "wide.txt"
    wide.write_text("text", encoding="utf-16")
    (tmp_path / "program").write_bytes(b"\x7fELF\0\0\xd0\n")
    with pytest.raises(CorpusError, match=r"program, line 1: a NUL byte: this is no text; give a text file"):
        list(read_lines(tmp_path / "program"))
    with pytest.raises(CorpusError, match=r"line 1: byte 1.*iconv -f utf-16"):
        list(read_lines(wide))


def test_a_line_beyond_the_limit_is_refused_by_name_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE", 1 << 20)
    limit, bomb = 1 << 20, tmp_path / "bomb.txt.gz"
    content = [b"fine", b"x" * (limit - 1), b"x" * limit, b"after", b"x" * (5 * limit), b"last"]
    bomb.write_bytes(gzip.compress(b"\n".join(content)))
    tracemalloc.start()
    read = [(number, len(line)) for number, line in read_lines(bomb)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read == [(1, 4), (2, limit - 1), (3, 0), (4, 5), (5, 0), (6, 4)], "every line in its place"
    assert [m.split(": ", 1)[1] for m in caplog.messages] == ["longer than 1 MB: refused, it counts as empty."] * 2
    assert [m.split(", ")[1].split(":")[0] for m in caplog.messages] == ["line 3", "line 5"]
    assert peak < 4.5 * limit, "never the line as a whole"


def test_folder_and_missing_file_say_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("x")
    with pytest.raises(IsADirectoryError, match=r"a folder, not a file.*b\.txt"):
        check_file(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nothing\.txt: no such file.*hf:org/name"):
        check_file(tmp_path / "nothing.txt")


def test_memory_stays_flat(tmp_path: Path) -> None:
    file = tmp_path / "big.txt"
    file.write_text("word " * 20 + "\n")
    lines = read_lines(file)
    assert next(lines)[0] == 1
    with open(file, "a") as stream:  # lines written after the first was read are seen: nothing was read ahead as a whole
        stream.write("later\n" * 3)
    assert [text for _, text in lines] == ["later"] * 3


def test_error_survives_a_worker_process() -> None:
    error = CorpusError("a.txt, line 1", "problem", "fix {column}")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.location) == (str(error), error.location)
