import gzip
from pathlib import Path

import pytest

from hardkuma.data import CorpusError, read_conll, read_texts


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_tabs_and_spaces_read_alike(tmp_path: Path) -> None:
    rows = [("Ana", "B-person"), ("'s", "O"), ("dog", "O"), (".", "O")]
    for separator in ("\t", " "):
        text = "\n".join(separator.join(row) for row in rows) + "\n\n\nWhy\tO\n".replace("\t", separator)
        first, second = read_conll(write(tmp_path, "a.conll", text))
        assert first.text == "Ana's dog."
        assert first.words == ("Ana", "'s", "dog", ".")
        assert first.tags == ("B-person", "O", "O", "O")
        assert second.text == "Why"
        assert second.source.endswith("a.conll, line 7")


def test_docstart_comments_and_the_word_hash(tmp_path: Path) -> None:
    text = "-DOCSTART- O\n\n# a comment of many words\n#comment\n# O\nnews O\n\n# id = 7\nAna I-PER\n#tag O\n"
    sentences = list(read_conll(write(tmp_path, "a.conll", text)))
    assert [s.words for s in sentences] == [("#", "news"), ("Ana", "#tag")]


def test_four_columns_take_the_last_as_tag(tmp_path: Path) -> None:
    (sentence,) = read_conll(write(tmp_path, "a.conll", "U.N. NNP I-NP I-ORG\nacts VBZ I-VP O\n"))
    assert sentence.tags == ("I-ORG", "O")


def test_inconsistent_columns_name_the_line(tmp_path: Path) -> None:
    file = write(tmp_path, "a.conll", "Ana\tB\tO\nsleeps\tO\n")
    with pytest.raises(
        CorpusError, match=r"a\.conll, line 2: 2 columns where lines before have 3.*give every word 3 columns"
    ):
        list(read_conll(file))
    with pytest.raises(CorpusError, match="line 2"):
        list(read_texts(file))


def test_words_without_tags_are_text_but_not_labelled(tmp_path: Path) -> None:
    file = write(tmp_path, "a.conll", "Ana\nsleeps\n")
    assert list(read_texts(file)) == ["Ana sleeps"]
    with pytest.raises(CorpusError, match=r"line 1: the word 'Ana' has no tag; add a tag column"):
        list(read_conll(file))


def test_missing_word_and_empty_file(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="line 2: no word in the first column"):
        list(read_conll(write(tmp_path, "a.conll", "Ana\tO\n\tO\n")))
    with pytest.raises(CorpusError, match="no sentence found"):
        list(read_conll(write(tmp_path, "b.conll", "\n\n")))
    with pytest.raises(FileNotFoundError):
        read_conll(tmp_path / "c.conll")  # at once, not at the first sentence
    with pytest.raises(ValueError, match="format must be one of conll, conllu; got 'json'"):
        read_conll(tmp_path / "a.conll", format="json")


CONLLU = """# sent_id = 1
# text = I can't go to the U.S., du calme!
1\tI\tI\tPRON\t_\t_\t_\t_\t_\t_
2-3\tcan't\t_\t_\t_\t_\t_\t_\t_\t_
2\tca\tcan\tAUX\t_\t_\t_\t_\t_\t_
3\tn't\tnot\tPART\t_\t_\t_\t_\t_\t_
4\tgo\tgo\tVERB\t_\t_\t_\t_\t_\t_
4.1\tgone\tgo\tVERB\t_\t_\t_\t_\t_\t_
5\tto\tto\tADP\t_\t_\t_\t_\t_\t_
6\tthe\tthe\tDET\t_\t_\t_\t_\t_\t_
7\tU.S.\tU.S.\tPROPN\t_\t_\t_\t_\t_\tSpaceAfter=No
8\t,\t,\tPUNCT\t_\t_\t_\t_\t_\t_
9-10\tdu\t_\t_\t_\t_\t_\t_\t_\t_
9\tde\tde\tADP\t_\t_\t_\t_\t_\t_
10\tle\tle\tDET\t_\t_\t_\t_\t_\t_
11\tcalme\tcalme\tNOUN\t_\t_\t_\t_\t_\tSpaceAfter=No
12\t!\t!\tPUNCT\t_\t_\t_\t_\t_\t_
"""


def test_conllu_contractions_and_empty_nodes(tmp_path: Path) -> None:
    (sentence,) = read_conll(write(tmp_path, "a.conllu", CONLLU))
    assert sentence.text == "I can't go to the U.S., du calme!"
    assert sentence.words == ("I", "ca", "n't", "go", "to", "the", "U.S.", ",", "du", "calme", "!")
    assert sentence.tags[1:3] == ("AUX", "PART")
    assert sentence.tags[8] == "ADP+DET"


def test_conllu_without_text_lines_rebuilds_the_same_text(tmp_path: Path) -> None:
    with_text = next(read_conll(write(tmp_path, "a.conllu", CONLLU)))
    bare = "\n".join(line for line in CONLLU.split("\n") if not line.startswith("#"))
    with gzip.open(tmp_path / "b.conllu.gz", "wt") as stream:
        stream.write(bare)
    rebuilt = next(read_conll(tmp_path / "b.conllu.gz"))
    assert (rebuilt.text, rebuilt.offsets, rebuilt.tags) == (with_text.text, with_text.offsets, with_text.tags)


def test_conllu_errors(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"line 1: 2 columns where CoNLL-U has ten.*format='conll'"):
        list(read_conll(write(tmp_path, "a.conllu", "1\tAna\n")))
    with pytest.raises(CorpusError, match="the word 'cannot' is not in '# text' after character 1"):
        list(read_conll(write(tmp_path, "b.conllu", CONLLU.replace("2-3\tcan't", "2-3\tcannot"))))
