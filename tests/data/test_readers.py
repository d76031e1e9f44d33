"""Texts of every format: which column is read, sentences to train on, rows as they stand, and what is refused."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hardkuma.data import CorpusError, read_texts
from hardkuma.data.readers import count_rows, read_rows


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


WIKITEXT = """ = Lobster =
 
 = = Habitat = =
 
 The lobster , a well @-@ known animal , weighs 1 @.@ 5 kg . It was <unk> by 2 @,@ 000 people . " It is blue . " They left .
"""


def test_wikitext_marks_headings_and_unknown_words(tmp_path: Path) -> None:
    file = write(tmp_path, "wiki.txt", WIKITEXT)
    assert list(read_texts(file)) == [
        "The lobster, a well-known animal, weighs 1.5 kg.",
        '"It is blue."',
        "They left.",
    ]


def test_headings_of_any_length(tmp_path: Path) -> None:
    """A pattern that tries every division of a line into = signs would not come to an end."""
    file = write(tmp_path, "wiki.txt", "= " * 20_000 + "x\n= = A heading = =\n")
    assert [text[-3:] for text in read_texts(file)] == ["= x"]


def test_unsplit_paragraph_with_unknown_word_is_dropped_whole(tmp_path: Path) -> None:
    file = write(tmp_path, "wiki.txt", WIKITEXT + "Two sentences. In one line.\n")
    assert list(read_texts(file, split_sentences=False)) == ["Two sentences. In one line."]


def test_ordinary_text_is_left_alone(tmp_path: Path) -> None:
    lines = ["Pardon ? Non !", "a = b and c = d", "mail me @ home", "1,5 kg - or 2"]
    assert list(read_texts(write(tmp_path, "a.txt", "\n".join(lines)), split_sentences=False)) == lines


def test_gz_of_every_format(tmp_path: Path) -> None:
    contents = {
        "a.txt": "It rained.\n",
        "a.jsonl": '{"text": "It rained."}\n',
        "a.csv": "id,text\n1,It rained.\n",
        "a.tsv": "id\ttext\n1\tIt rained.\n",
        "a.conll": "It\tO\nrained\tO\n.\tO\n",
    }
    for name, content in contents.items():
        with gzip.open(tmp_path / f"{name}.gz", "wt") as stream:
            stream.write(content)
        assert list(read_texts(tmp_path / f"{name}.gz")) == ["It rained."], name


def test_reading_is_lazy_but_checks_at_once(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", '{"text": "First."}\nbroken\n')
    texts = read_texts(file)
    assert next(texts) == "First."  # the broken line has not been looked at
    with pytest.raises(CorpusError, match="line 2"):
        next(texts)
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_texts(tmp_path / "b.txt")
    write(tmp_path, ".hidden", "")
    with pytest.raises(IsADirectoryError, match=r"folder.*such as .*/a\.jsonl"):
        read_texts(tmp_path)


def test_format_by_suffix_or_by_name(tmp_path: Path) -> None:
    file = write(tmp_path, "a.data", "It rained.\n")
    with pytest.raises(ValueError, match=r"suffix '\.data' names no format; .* with --format .*: text, conll"):
        read_texts(file)
    assert list(read_texts(file, format="text")) == ["It rained."]
    with pytest.raises(ValueError, match=r"format must be one of .* got 'pdf'"):
        read_texts(file, format="pdf")
    with pytest.raises(ValueError, match=r"the format 'text' has no columns; leave out --column"):
        read_texts(file, format="text", column="x")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.tsv", "a.conll", "a.conllu"])
def test_empty_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(CorpusError, match=rf"{name}: no text found; the file is empty; give a source"):
        list(read_texts(write(tmp_path, name, "\n")))


def test_file_without_a_usable_text(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="1 texts read, none usable"):
        list(read_texts(write(tmp_path, "a.txt", "only <unk> here\n")))


def test_importing_does_not_import_heavy_packages() -> None:
    heavy = ("datasets", "torch", "transformers")
    code = f"import sys, hardkuma.data; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


# --- rows as they stand


TEXTS = ["One. Two.", "", "Three <unk> , four", ' "quoted", with a comma\t', "ähm 😀 e\u0301", "= Heading ="]


def write_texts(folder: Path, format: str) -> Path:
    path = folder / f"some.{format}"
    if format == "txt":
        path.write_bytes("\r\n".join(TEXTS).encode())
    elif format == "txt.gz":
        path.write_bytes(gzip.compress("".join(f"{text}\n" for text in TEXTS).encode()))
    elif format == "jsonl":
        path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    elif format == "csv":
        with path.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([["id", "text"], *([i, text] for i, text in enumerate(TEXTS))])
    else:
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"id": list(range(len(TEXTS))), "text": TEXTS}), path)
    return path


@pytest.mark.parametrize("format", ["txt", "txt.gz", "jsonl", "csv", "parquet"])
def test_every_row_is_a_text(format: str, tmp_path: Path) -> None:
    path = write_texts(tmp_path, format)
    assert list(read_rows(path)) == TEXTS
    assert count_rows(path) == (None if format in ("txt.gz", "csv") else len(TEXTS))


def test_parquet_is_text_to_train_on_too(tmp_path: Path) -> None:
    assert list(read_texts(write_texts(tmp_path, "parquet"), split_sentences=False))[:1] == ["One. Two."]


def test_missing_values_are_empty_and_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text('{"body": null}\n{"body": "x"}\n')
    assert list(read_rows(path, column="body")) == ["", "x"]
    with pytest.raises(CorpusError, match="no column 'title' among 'body'"):
        list(read_rows(path, column="title"))


def test_a_broken_parquet_file_is_explained(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "some.parquet"
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(CorpusError, match="broken Parquet"):
        list(read_rows(path))


# --- JSON lines


def test_json_fields(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", '{"text": "One. Two.", "title": "T"}\n\n{"text": null, "title": "U"}\n')
    assert list(read_texts(file)) == ["One.", "Two."]
    assert list(read_texts(file, split_sentences=False)) == ["One. Two."]
    assert list(read_texts(file, column="title")) == ["T", "U"]
    sentences = write(tmp_path, "b.jsonl", '{"sentence": "One. Two."}\n"a bare string"\n')
    assert list(read_texts(sentences)) == ["One. Two.", "a bare string"]
    tokens = write(tmp_path, "c.jsonl", json.dumps({"tokens": ["Ana", "'s", "dog", "."], "ner_tags": [1, 0, 0, 0]}))
    assert list(read_texts(tokens)) == ["Ana's dog."]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "cut', r"a\.jsonl, line 2: broken JSON .*one whole JSON object a line"),
        ('{"body": "x"}', r"line 2: no column 'text' or 'sentence' among 'body'; name one of these with --column"),
        ("[1, 2]", "line 2: a JSON list where an object is expected"),
        ("[" * 100_000, r"line 2: broken JSON .*one whole JSON object a line"),
        ('{"text": 5}', "line 2: 'text' holds 5, which is not text"),
    ],
)
def test_json_errors(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        list(read_texts(write(tmp_path, "a.jsonl", f'{{"text": "ok"}}\n{line}\n')))


def test_json_array_gets_a_recipe(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="jq -c"):
        list(read_texts(write(tmp_path, "a.json", '[\n  {"text": "x"}\n]\n')))


# --- CSV and TSV


def test_csv_quotes_and_line_breaks(tmp_path: Path) -> None:
    file = write(tmp_path, "a.csv", 'id,text\n1,"One, ""two""\nthree."\n\n2,Four.\n')
    assert list(read_texts(file, split_sentences=False)) == ['One, "two"\nthree.', "Four."]


def test_tsv_quotes_are_text_unless_a_spreadsheet_wrote_them(tmp_path: Path) -> None:
    rows = ["text\tid", '"u2" is written\t1', '"He said ""hi"" twice"\t2', 'a 5" nail\t3']
    file = write(tmp_path, "a.tsv", "\n".join(rows))
    assert list(read_texts(file)) == ['"u2" is written', 'He said "hi" twice', 'a 5" nail']


def test_csv_holds_whole_documents(tmp_path: Path) -> None:
    usual = csv.field_size_limit()
    file = write(tmp_path, "a.csv", f"id,text\n1,{'word ' * 40_000}\n")
    assert [len(text) for text in read_rows(file)] == [200_000]
    assert csv.field_size_limit() == usual, "it is not ours to change for others"


def test_columns_by_name_and_by_number(tmp_path: Path) -> None:
    file = write(tmp_path, "a.csv", "sentence1,sentence2\nA. B.,C. D.\n")
    assert list(read_texts(file, column="sentence2")) == ["C. D."]
    bare = write(tmp_path, "b.tsv", "x\tFirst row.\ny\tSecond row.\textra\n")
    assert list(read_texts(bare, column=2)) == list(read_texts(bare, column="2")) == ["First row.", "Second row."]
    with pytest.raises(ValueError, match="columns are counted from 1"):
        list(read_texts(bare, column=0))
    with pytest.raises(CorpusError, match="line 1: column 3 asked for, 2 found"):
        list(read_texts(bare, column=3))


def test_csv_errors(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"a\.csv, line 1: no column 'body' among 'id', 'text'; name one of these"):
        list(read_texts(write(tmp_path, "a.csv", "id,text\n1,x\n"), column="body"))
    with pytest.raises(CorpusError, match=r"b\.csv, line 3: 3 columns where the header has 2; quote fields"):
        list(read_texts(write(tmp_path, "b.csv", "id,text\n1,x\n2,y,z\n")))
    with pytest.raises(CorpusError, match=r"c\.csv, lines 2 to 3: broken CSV"):
        list(read_texts(write(tmp_path, "c.csv", 'id,text\n1,"never closed\n2,y\n')))
    with pytest.raises(CorpusError, match=r"d\.csv, line 2: 3 columns where the header has 2; quote fields"):
        list(read_texts(write(tmp_path, "d.csv", "id;text\n1;x;y\n")))


def test_what_separates_the_columns_of_csv_is_found_out(tmp_path: Path) -> None:
    file = write(tmp_path, "a.csv", '\ufeffid;text\n1;"It rained; we left, late."\n2;"Two\nlines, ""said"" he"\n')
    assert list(read_rows(file)) == ["It rained; we left, late.", 'Two\nlines, "said" he']
    assert list(read_rows(write(tmp_path, "b.csv", "id\ttext\n1\tA, b; c.\n"))) == ["A, b; c."]
    assert list(read_rows(write(tmp_path, "c.csv", 'id,"a;b;c",text\n1,x,Rain; snow.\n'))) == ["Rain; snow."]
    assert list(read_rows(write(tmp_path, "d.csv", "text\nIt rained; we left.\n"))) == ["It rained; we left."]
    # Without a header nothing says what separates: commas do, and marks of a text are its own.
    quoted = write(tmp_path, "e.csv", '1,"Rain; snow, sleet; hail"\n')
    assert list(read_rows(quoted, column=2)) == ["Rain; snow, sleet; hail"]
    assert list(read_rows(write(tmp_path, "f.csv", "It rained; we left.\n"), column=1)) == ["It rained; we left."]
    assert list(read_rows(write(tmp_path, "g.csv", ""))) == []


# --- the Hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    calls: list[tuple] = []

    def load_dataset(name: str, config: str | None, split: str, streaming: bool) -> Iterator[dict[str, Any]]:
        calls.append((name, config, split, streaming))
        if name == "no/such":
            raise ValueError("Dataset 'no/such' doesn't exist on the Hub")
        return iter([{"text": "One. Two.", "label": 1}, {"text": None, "label": 0}, {"text": "Three.", "label": 1}])

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return calls


def test_hub_address(hub: list[tuple]) -> None:
    assert list(read_texts("hf:org/name")) == ["One.", "Two.", "Three."]
    assert list(read_texts("hf:org/name:cfg:test:text", split_sentences=False)) == ["One. Two.", "Three."]
    list(read_texts("hf:org/name::validation"))
    assert hub == [
        ("org/name", None, "train", True),
        ("org/name", "cfg", "test", True),
        ("org/name", None, "validation", True),
    ]


def test_hub_errors(hub: list[tuple]) -> None:
    with pytest.raises(ValueError, match=r"'hf:' is not of the form hf:org/name\[:config\]"):
        read_texts("hf:")
    with pytest.raises(CorpusError, match=r"hf:no/such: cannot be loaded .*hf:org/name::test"):
        list(read_texts("hf:no/such"))
    with pytest.raises(CorpusError, match="row 1: no column 'body' among 'text', 'label'"):
        list(read_texts("hf:org/name", column="body"))
    with pytest.raises(CorpusError, match="'label' holds 1, which is not text"):
        list(read_texts("hf:org/name:::label"))


def test_hub_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"the package 'datasets' is needed here .*pip install 'hardkuma\[corpora\]'"):
        list(read_texts("hf:org/name"))


def test_parquet_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "pyarrow.parquet"):  # another test may have imported either
        monkeypatch.setitem(sys.modules, name, None)
    file = write(tmp_path, "a.parquet", "PAR1")
    for read in (lambda: list(read_texts(file)), lambda: count_rows(file)):
        with pytest.raises(ImportError, match=r"the package 'pyarrow' is needed here .*pip install 'hardkuma\[parquet\]'"):
            read()


def test_hub_with_the_real_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "corpus"
    folder.mkdir()
    write(folder, "train.jsonl", '{"text": "One. Two."}\n{"text": "Three."}\n')
    assert list(read_texts("hf:./corpus")) == ["One.", "Two.", "Three."]
