"""`hardkuma gates` on files: every format, interruption, colours."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hardkuma import HardKumaModel
from hardkuma.__main__ import build_parser, main
from hardkuma.apps.export.backends import Backend
from hardkuma.cli import gates
from hardkuma.cli.writers import PartialOutput
from hardkuma.data.readers import RowText, read_kept_rows
from hardkuma.scoring_hardkuma import gate_records, paint
from tests.conftest import SENTENCES, WORDS
from tests.forks import COMMAND, ForkServer

TEXTS = [*SENTENCES, "", "<script>alert('marie')</script> & paris", "half \ud800 marie"]


@pytest.fixture
def folder(make_model: Callable, tmp_path: Path) -> Path:
    make_model().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def write(path: Path, texts: list[str] = TEXTS) -> str:
    path.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    return str(path)


def expected(folder: Path) -> list[dict]:
    texts = [text.replace("\ud800", "\ufffd") for text in TEXTS]
    return gate_records(HardKumaModel.from_pretrained(folder).eval(), texts, rate=0.3)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "html", "txt"])
def test_formats(
    suffix: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "CHUNK_TEXTS", 2)
    output = tmp_path / f"out.{suffix}"
    words = [
        "gates",
        "--model",
        str(folder),
        "--rate",
        "0.3",
        "--field",
        "body",
        "--output",
        str(output),
    ]
    assert main([*words, "--file", write(tmp_path / "in.jsonl")]) == 0
    shown = capsys.readouterr()
    assert not shown.out and "9/9" in shown.err, "the bar goes to standard error"
    records = expected(folder)
    if suffix == "jsonl":
        found = [json.loads(line) for line in output.read_text().splitlines()]
    elif suffix == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        found = parquet.read_table(output).to_pylist()
        assert parquet.read_metadata(output).num_row_groups == 5
    elif suffix == "txt":
        assert output.read_text() == "".join(paint(record, colour=False) + "\n" for record in records)
        return
    else:
        page = output.read_text()
        assert page.startswith("<!DOCTYPE html>") and page.endswith("</html>\n") and page.count("<figure") == len(TEXTS)
        assert "<script" not in page and TEXTS[-2] in html.unescape(re.sub(r"<[^>]*>", "", page))
        return
    assert [record["text"] for record in found] == [record["text"] for record in records]
    for ours, theirs in zip(found, records, strict=True):
        # Batch-mates differ between the two runs: the last digit may, too.
        assert [word["word"] for word in ours["words"]] == [word["word"] for word in theirs["words"]]
        assert [w["probability"] for w in ours["words"]] == pytest.approx(
            [w["probability"] for w in theirs["words"]], abs=1e-5
        )
        assert all(ours["text"][span["start"] : span["end"]] == span["text"] for span in ours["spans"])
        assert ours["windows"] == theirs["windows"] and ours["rate"] == theirs["rate"]
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "model", output.name], "no other file stays beside the output"


def test_standard_input_and_formats_of_a_pipe(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfmarie curie\r\n\neinstein")))
    assert main(["gates", "--model", str(folder), "--format", "jsonl"]) == 0
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == ["marie curie", "", "einstein"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"marie\ncaf\xe9")))
    assert main(["gates", "--model", str(folder)]) == 1
    assert "standard input, line 2" in capsys.readouterr().err
    assert main(["gates", "--model", str(folder), "--format", "html", "marie"]) == 0
    assert capsys.readouterr().out.count("<figure") == 1


def test_surface_and_threshold_reach_the_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = HardKumaModel.from_pretrained(folder)
    model.gate_head.surface_log_odds[:, 3] = 20.0  # small letters
    model.save_pretrained(folder)
    assert main(["gates", "--model", str(folder), "marie moved"]) == 0
    assert capsys.readouterr().out == "[marie moved]\n"
    assert main(["gates", "--model", str(folder), "--threshold", "1", "marie moved"]) == 0
    assert capsys.readouterr().out == "marie moved\n"
    assert main(["gates", "--model", str(folder), "--no-surface", "--numbers", "marie moved"]) == 0
    assert "1.00" not in capsys.readouterr().out


def test_a_row_of_text_is_a_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["marie\nmoved\r\nto\u2028paris\x85\x0c", "curie"]
    words = ["gates", "--model", str(folder), "--quiet", "--rate", "1", "--field", "body"]
    words += ["--file", write(tmp_path / "in.jsonl", texts)]
    assert main([*words, "--output", str(tmp_path / "out.txt")]) == 0
    shown = (tmp_path / "out.txt").read_text()
    assert shown.splitlines() == ["[marie] [moved]  [to] [paris]  ", "[curie]"] and shown.count("\n") == 2
    assert main(words) == 0 and capsys.readouterr().out == shown
    assert main([*words, "--format", "jsonl"]) == 0, "exact, here"
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.split("\n")[:-1]] == texts


def test_text_says_what_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gates", "--model", str(folder), "--keep", "0.3"]
    long = "marie moved to paris " * 60
    assert main([*words, "--format", "jsonl", "marie moved to paris"]) == 0
    kept = json.loads(capsys.readouterr().out)["kept"]
    assert main([*words, "--numbers", "marie moved to paris", "", long]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0].endswith(f"  (keeps {kept:.2f})") and lines[2] == ""
    assert lines[4].endswith("  (not verified: longer than the encoder takes)")
    assert main([*words[:3], "marie moved to paris"]) == 0
    assert "(keeps" not in capsys.readouterr().out


class Stopped(BaseException):
    """Something that no handler of ours catches."""


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet", "html", "txt"])
def test_resumed_file_is_the_same_to_the_byte(
    suffix: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(gates, "CHUNK_TEXTS", 2)
    file = write(tmp_path / "in.jsonl")
    words = ["gates", "--quiet", "--model", str(folder), "--file", file, "--field", "body", "--output"]
    whole, cut = tmp_path / f"whole.{suffix}", tmp_path / f"cut.{suffix}"
    assert main([*words, str(whole)]) == 0
    add, added = PartialOutput.add, []

    def stop_at_third(self: PartialOutput, rows: int, content: bytes) -> None:
        if len(added) == 2:
            with self.path.open("ab") as stream:
                stream.write(b"[2, 400, 12345]\n" + content[:10])  # as if killed while writing
            raise Stopped
        added.append(rows)
        add(self, rows, content)

    monkeypatch.setattr(PartialOutput, "add", stop_at_third)
    with pytest.raises(Stopped):
        main([*words, str(cut)])
    assert not cut.exists()
    monkeypatch.setattr(PartialOutput, "add", lambda self, rows, content: (added.append(rows), add(self, rows, content)))
    assert main([*words, str(cut), "--resume"]) == 0
    assert added == [2, 2, 2, 2, 1], "what was done is not done again"
    assert cut.read_bytes() == whole.read_bytes()
    assert sorted(os.listdir(tmp_path)) == [cut.name, "in.jsonl", "model", whole.name]


def test_resume_refuses_another_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, output = write(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    words = ["gates", "--quiet", "--model", str(folder), "--file", file, "--field", "body", "--output", str(output)]
    with PartialOutput(output) as partial:
        partial.begin({"rate": 0.1, "file": "another"})
        partial.add(2, b"two rows")
    assert main([*words, "--resume"]) == 1
    assert re.search(r"other settings \(.*file.*rate.*\).*without --resume", capsys.readouterr().err)
    assert main(words) == 0 and len(output.read_text().splitlines()) == len(TEXTS)
    with pytest.raises(SystemExit) as stopped:
        main([*words[:-1], file])
    assert stopped.value.code == 2 and "both --file and --output" in capsys.readouterr().err


def test_resume_refuses_another_encoder(folder: Path, tmp_path: Path) -> None:
    """The configuration and the gate head are the same, and so is the folder: the encoder's weights are not."""
    file, output = write(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    model = HardKumaModel.from_pretrained(folder).eval()
    words = ["gates", "--quiet", "--model", str(folder), "--file", file, "--field", "body", "--output", str(output)]
    options = build_parser().parse_args(words)
    settings = [gates._settings(options, "jsonl", model, Backend("torch", "float32", model))]
    with torch.no_grad():
        next(model.encoder.parameters()).add_(1.0)
    settings += [gates._settings(options, "jsonl", model, Backend("torch", "float32", model))]
    assert {key for key in settings[0] if settings[0][key] != settings[1][key]} == {"model"}


def test_two_runs_do_not_write_one_output(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, output = write(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    words = ["gates", "--quiet", "--model", str(folder), "--file", file, "--field", "body", "--output", str(output)]
    with PartialOutput(output) as partial:
        partial.begin({})
        partial.add(1, b"one")
        assert main(words) == 2
        shown = capsys.readouterr().err
        assert f"{output} is being written by process {os.getpid()} on {socket.gethostname()} since 20" in shown
        assert shown.count("\n") == 1
        partial.finish(lambda blocks, stream: stream.writelines(blocks))
    assert output.read_bytes() == b"one"
    assert main(words) == 0 and len(output.read_text().splitlines()) == len(TEXTS)


def test_a_run_that_fails_at_once_leaves_nothing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, output = write(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    words = ["gates", "--quiet", "--model", str(folder), "--file", file, "--output", str(output)]
    assert main([*words, "--field", "title"]) == 1
    assert "no column 'title'" in capsys.readouterr().err
    assert main([*words, "--field", "body", "--model", str(tmp_path / "none")]) == 1
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "model"]


# `hardkuma` with blocks of 16 texts, so that there are many.
SMALL_BLOCKS = f"import hardkuma.cli.gates as gates; gates.CHUNK_TEXTS = 16; {COMMAND}"


def test_killed_and_resumed_as_a_user_would(folder: Path, forks: ForkServer, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    file = write(tmp_path / "in.jsonl", [" ".join(generator.choice(WORDS, generator.integers(1, 20))) for _ in range(600)])
    words = ["gates", "--quiet", "--model", folder, "--file", file, "--field", "body", "--resume"]
    whole = forks.start(SMALL_BLOCKS, *words, "--output", tmp_path / "whole.jsonl")
    output, partial = tmp_path / "cut.jsonl", tmp_path / "cut.jsonl.partial"
    process = forks.start(SMALL_BLOCKS, *words, "--output", output)
    while process.poll() is None and not (partial.is_file() and partial.read_bytes().count(b"\n[16, ") > 10):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and partial.is_file() and not output.exists()
    done = forks.run(SMALL_BLOCKS, *words, "--output", output)
    assert done.returncode == 0 == whole.wait(), done.stderr + whole.stderr
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("size", "name", "large"), [(60, "in.txt", False), (900, "in.txt", True), (400, "in.txt.gz", True)]
)
def test_auto_exports_for_large_files_alone(
    size: int, name: str, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export takes longer than torch takes for six lines."""
    monkeypatch.setattr(gates, "EXPORT_BYTES", 800)
    asked = []

    def choose(model: object, name: str, selector: object, log: object, make: bool) -> Backend:
        asked.append((name, make))
        raise ValueError("enough seen")

    monkeypatch.setattr("hardkuma.apps.export.backends.choose_backend", choose)
    (tmp_path / name).write_bytes(b"x" * size)
    for output in ([], ["--output", str(tmp_path / "out.jsonl")]):
        assert main(["gates", "--backend", "auto", "--file", str(tmp_path / name), *output]) == 1
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"marie")))
    assert main(["gates", "--backend", "auto", "--file", "-"]) == 1 == main(["gates", "--backend", "auto", "marie"])
    assert asked == [("auto", large)] * 2 + [("auto", False)] * 2


def test_chunks_close_early_for_long_documents() -> None:
    sizes = [len(chunk) for chunk in gates.chunks([RowText("x" * 100, False)] * 10, max_texts=4, max_characters=250)]
    assert sizes == [3, 3, 3, 1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_text_cannot_send_control_sequences_to_a_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    assert main(["gates", "--model", str(folder), "marie \033]0;owned\007 moved"]) == 0
    assert "\033" not in terminal.getvalue() and "\007" not in terminal.getvalue()


# ---- texts in which nothing is selected ---------------------------------------------------------------------------------


@pytest.fixture
def two(make_two: Callable, tmp_path: Path) -> Path:
    make_two().save_pretrained(tmp_path / "two")
    return tmp_path / "two"


def test_nothing_that_passes_the_threshold_is_said_with_what_to_try(
    two: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    high = ["--threshold", "0.9999", "marie moved", "paris"]
    assert main(["gates", "--model", str(two), "--selector", "entities", *high]) == 0
    shown = capsys.readouterr()
    assert shown.out == "marie moved\nparis\n"
    assert shown.err.splitlines()[-1] == (
        "hardkuma gates: nothing was selected: no word is more probable than 0.9999. "
        "Try --rate 0.2, a lower --threshold, or --selector meaning."
    )
    for model in (two, folder):  # the meaning, of several selectors or as the only one
        assert main(["gates", "--model", str(model), *high]) == 0
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.endswith("Try --rate 0.2 or a lower --threshold.") and "--selector" not in said
    # In some texts, beside one without a word.
    assert main(["gates", "--model", str(two), "marie moved", "of the", "…"]) == 0
    shown = capsys.readouterr()
    assert "[" in shown.out.splitlines()[0] and shown.out.splitlines()[1:] == ["of the", "…"]
    assert "nothing was selected in 1 of 3 texts: the text has no content word.\n" in shown.err, "and nothing to be tried"
    # Something is selected everywhere: nothing to be said.
    assert main(["gates", "--model", str(two), "--rate", "0.2", "marie moved", "paris"]) == 0
    assert "hardkuma gates:" not in capsys.readouterr().err
    assert main(["gates", "--model", str(two), "marie moved", "paris"]) == 0
    shown = capsys.readouterr()
    assert all("[" in line for line in shown.out.splitlines()) and "hardkuma gates:" not in shown.err


def test_texts_without_a_word_are_said(two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gates", "--model", str(two), "…", "paris", ""]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert shown.out == "…\n[paris]\n\n"
    assert shown.err.splitlines()[-1] == (
        "hardkuma gates: 2 of 3 texts have no word, so there is nothing to select in them."
    )
    assert main([*words, "--numbers"]) == 0
    assert re.fullmatch(
        r"…\n  \(the text has no word\)\n\[paris\]\n  paris 0\.\d\d\n\n  \(the text has no word\)\n",
        capsys.readouterr().out,
    )
    assert main([*words, "--format", "jsonl"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record.get("reason") for record in records] == ["the text has no word", None, "the text has no word"]
    assert records[0]["words"] == records[0]["spans"] == []
    assert main([*words, "--format", "html"]) == 0
    assert capsys.readouterr().out.count(">no words<") == 2
    assert main(["gates", "--model", str(two), "!"]) == 0
    assert "1 of 1 texts has no word, so there is nothing to select in it." in capsys.readouterr().err
    (tmp_path / "empty.txt").write_text("")
    for output in ([], ["--output", str(tmp_path / "out.jsonl")]):
        assert main(["gates", "--model", str(two), "--quiet", "--file", str(tmp_path / "empty.txt"), *output]) == 0
        assert capsys.readouterr().err.endswith("hardkuma gates: the input is empty: there is no text to show.\n")


def test_reasons_in_files(two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.txt").write_text("marie\n…\n")
    words = ["gates", "--quiet", "--model", str(two), "--threshold", "1", "--file", str(tmp_path / "in.txt"), "--output"]
    assert main([*words, str(tmp_path / "out.html")]) == 0
    assert "0 of 1 words: no word is more probable than 1<" in (tmp_path / "out.html").read_text()
    said = capsys.readouterr().err
    assert "nothing was selected: no word is more probable than 1. Try" in said and "1 of 2 texts has no word" in said
    parquet = pytest.importorskip("pyarrow.parquet")
    assert main([*words, str(tmp_path / "out.parquet")]) == 0
    rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["reason"] for row in rows] == ["no word is more probable than 1", "the text has no word"]


def test_other_columns_come_along(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "CHUNK_TEXTS", 1)  # a dictionary in one block, nothing in the other
    file = tmp_path / "in.csv"
    file.write_text("id,body,when\n7,marie moved,monday\n8,,tuesday\n")
    words = ["gates", "--quiet", "--model", str(folder), "--file", str(file), "--field", "body", "--columns", "id", "when"]
    assert main([*words, "--output", str(tmp_path / "out.jsonl")]) == 0
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(record["id"], record["when"], record["text"]) for record in records] == [
        ("7", "monday", "marie moved"),
        ("8", "tuesday", ""),
    ]
    assert list(records[0])[:3] == ["id", "when", "text"]
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "in.jsonl").write_text('{"body": "marie", "id": {"a": 1}}\n{"body": "paris"}\n')
    words = ["gates", "--quiet", "--model", str(folder), "--file", str(tmp_path / "in.jsonl"), "--field", "body"]
    assert main([*words, "--columns", "id", "--output", str(tmp_path / "out.parquet")]) == 0
    rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["id"] for row in rows] == ['{"a": 1}', None] and [row["text"] for row in rows] == ["marie", "paris"]


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_tables(suffix: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "CHUNK_TEXTS", 2)
    texts = ["marie, moved", "", 'einstein "said"\tit\r\n; paris', "…"]
    rows = [{"body": text, "id": number, "who": None if number else "é, a"} for number, text in enumerate(texts)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = tmp_path / f"out.{suffix}"
    words = ["gates", "--quiet", "--model", str(folder), "--file", str(tmp_path / "in.jsonl"), "--field", "body"]
    assert main([*words, "--rate", "0.5", "--columns", "who", "id", "--output", str(output)]) == 0
    records = gate_records(HardKumaModel.from_pretrained(folder).eval(), texts, rate=0.5)
    with open(output, newline="", encoding="utf-8") as stream:
        found = list(csv.reader(stream, delimiter="," if suffix == "csv" else "\t"))
    shown = [text if suffix == "csv" else re.sub(r"\s", " ", text) for text in texts]  # in TSV a row is a line
    selected = ["; ".join(span["text"] for span in record["spans"]) for record in records]
    assert found[0] == ["who", "id", "text", "words"] and selected[0] and not selected[1]
    assert found[1:] == [
        ["" if number else "é, a", str(number), text, words]
        for number, (text, words) in enumerate(zip(shown, selected, strict=True))
    ]
    again = [(row.text, row.kept["words"]) for row in read_kept_rows(output, keep=["words"])]
    shown = [text.replace("\r\n", "\n") for text in shown]
    assert again == list(zip(shown, selected, strict=True)), "our own reader understands it"


def test_a_table_says_what_is_kept(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["gates", "--model", str(folder), "--keep", "0.3", "--format"]
    assert main([*words, "jsonl", "marie moved to paris"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert main([*words, "csv", "marie moved to paris", ""]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert float(rows[0]["kept"]) == pytest.approx(record["kept"], abs=1e-4) and rows[1]["kept"] == ""
    file = io.TextIOWrapper(io.BytesIO(b"id;text\n7;marie\n"))
    monkeypatch.setattr("sys.stdin", file)
    words = ["gates", "--model", str(folder), "--file", "-", "--input-format", "csv", "--columns", "id", "--format", "csv"]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("id,text,words\n7,marie,")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_what_no_file_can_hold_is_replaced(suffix: str, folder: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "in.jsonl").write_text('{"text": "marie", "id": ["\\ud800", NaN], "\\udc00": "\\ud800"}\n')
    words = ["gates", "--quiet", "--model", str(folder), "--file", str(tmp_path / "in.jsonl"), "--columns", "id"]
    output = tmp_path / f"out.{suffix}"
    assert main([*words, "--output", str(output)]) == 0
    if suffix == "parquet":
        assert json.loads(parquet.read_table(output)["id"][0].as_py()) == ["\ufffd", None]
    else:
        assert json.loads(output.read_text(), parse_constant=pytest.fail)["id"] == ["\ufffd", None]


def test_a_column_that_is_not_there_cannot_be_kept(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.csv").write_text("id,text\n7,marie\n")
    (tmp_path / "in.txt").write_text("marie\n")
    words = ["gates", "--quiet", "--model", str(folder), "--columns", "key", "--format", "jsonl", "--file"]
    assert main([*words, str(tmp_path / "in.csv")]) == 1
    assert "no column 'key' among 'id', 'text'; name one of these with --columns\n" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["gates", "--keep", "id", "Rain."])
    assert "takes a cosine such as 0.8, got 'id'; other columns come along with --columns id" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "in.txt")]) == 1
    assert "the format 'text' has no columns; leave out --columns\n" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--file", "-", "--input-format", "tsv", "--field", "body"], ["-"], ["--file", "-"]])
def test_a_dash_is_standard_input(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"id\tbody\n1\tmarie moved\n" if "--field" in words else b"marie moved\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main(["gates", "--model", str(folder), "--format", "jsonl", *words]) == 0
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == ["marie moved"]


def test_the_format_that_an_error_names_can_be_given(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none").write_text("id\ttext\n1\tmarie moved\n")
    words = ["gates", "--model", str(folder), "--format", "jsonl", "--file", str(tmp_path / "none")]
    assert main(words) == 1
    assert "--input-format" in capsys.readouterr().err
    assert main([*words, "--input-format", "tsv"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "marie moved"


def test_a_complete_file_is_not_done_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.jsonl"
    words = ["gates", "--quiet", "--model", str(folder), "--file", write(tmp_path / "in.jsonl"), "--field", "body"]
    words += ["--output", str(output)]
    assert main([*words, "--resume"]) == 0
    content, calls, score = output.read_bytes(), [], gates._score
    capsys.readouterr()
    monkeypatch.setattr(gates, "_score", lambda *arguments: (calls.append(1), score(*arguments))[1])
    assert main([*words, "--resume"]) == 0
    assert not calls and output.read_bytes() == content and "is complete already" in capsys.readouterr().err
    # Without --resume, or where the input is newer, it is done again.
    assert main(words) == 0 and len(calls) == 1
    os.utime(tmp_path / "in.jsonl", (time.time() + 10, time.time() + 10))
    assert main([*words, "--resume"]) == 0 and len(calls) == 2
    assert output.read_bytes() == content


def test_who_types_is_told_how(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(io.BytesIO(b"marie\n")))
    assert main(["gates", "--model", str(folder)]) == 0
    assert "type a text and press Enter; Ctrl-D ends" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"marie\n")))
    assert main(["gates", "--model", str(folder)]) == 0
    assert "press Enter" not in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "html", "txt"])
def test_all_selectors_in_one_record(suffix: str, make_model: Callable, tmp_path: Path) -> None:
    make_model(selectors={"nouns": {}, "verbs": {}}).save_pretrained(tmp_path / "model")
    model = HardKumaModel.from_pretrained(tmp_path / "model").eval()
    each = {name: gate_records(model, SENTENCES, rate=0.3, selector=name) for name in ("nouns", "verbs")}
    output, source = tmp_path / f"out.{suffix}", write(tmp_path / "in.jsonl", SENTENCES)
    options = ["--model", str(tmp_path / "model"), "--rate", "0.3", "--selector", "all", "--field", "body", "--quiet"]
    assert main(["gates", *options, "--file", source, "--output", str(output)]) == 0
    if suffix == "txt":
        lines = [f"{name}: {paint(records[i], False)}\n" for i in range(len(SENTENCES)) for name, records in each.items()]
        assert output.read_text() == "".join(lines)
        return
    if suffix == "html":
        assert output.read_text().count("<h3>verbs</h3>") == len(SENTENCES)
        return
    if suffix == "jsonl":
        records = [json.loads(line) for line in output.read_text().splitlines()]
    else:
        records = pytest.importorskip("pyarrow.parquet").read_table(output).to_pylist(maps_as_pydicts="strict")
    for i, record in enumerate(records):
        for j, word in enumerate(record["words"]):
            for name, ours in each.items():
                assert word["probabilities"][name] == pytest.approx(ours[i]["words"][j]["probability"], abs=1e-6)
                assert (name in word["selected"]) == ours[i]["words"][j]["selected"]
        spans = [(span["selector"], span["start"]) for span in record["spans"]]
        assert spans == [(name, span["start"]) for name, ours in each.items() for span in ours[i]["spans"]]
