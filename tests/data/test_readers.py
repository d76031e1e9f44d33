"""Texts to train on, of every format: sentences, WikiText's marks, what is refused."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from hardkuma.data import CorpusError, read_texts


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
    with pytest.raises(ValueError, match=r"suffix '\.data' names no format; .* is one of text, conll"):
        read_texts(file)
    assert list(read_texts(file, format="text")) == ["It rained."]
    with pytest.raises(ValueError, match=r"format must be one of .* got 'pdf'"):
        read_texts(file, format="pdf")
    with pytest.raises(ValueError, match=r"the format 'text' has no columns, so --field .* names none"):
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
