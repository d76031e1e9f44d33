"""Words with tags: CoNLL columns, CoNLL-U, and the text that is made of words."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardkuma.data import CorpusError, LabelledSentence, read_conll, read_texts
from hardkuma.data.conll import detokenise


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
    with pytest.raises(CorpusError, match=r"line 1: 2 columns where CoNLL-U has ten.*conll: .* with --format"):
        list(read_conll(write(tmp_path, "a.conllu", "1\tAna\n")))
    for number in ("x", "x-y", "2-", "²"):
        with pytest.raises(CorpusError, match=rf"line 3: the word's number is '{number}'; number words as 3"):
            list(read_conll(write(tmp_path, "c.conllu", CONLLU.replace("1\tI", f"{number}\tI", 1))))
    with pytest.raises(CorpusError, match="the word 'cannot' is not in '# text' after character 1"):
        list(read_conll(write(tmp_path, "b.conllu", CONLLU.replace("2-3\tcan't", "2-3\tcannot"))))


# --- one sentence


def test_words_and_mask() -> None:
    sentence = LabelledSentence("to Rome", ((0, 2), (3, 7)), ("O", "B-place"))
    assert sentence.words == ("to", "Rome")
    assert sentence.entity_mask == (False, True)


@pytest.mark.parametrize("offsets", [((0, 2), (1, 3)), ((0, 8),), ((2, 2),), ((3, 7), (0, 2))])
def test_bad_offsets(offsets: tuple) -> None:
    with pytest.raises(
        ValueError, match="of a text of 7 characters is empty, outside of it, or before the end of the word before"
    ):
        LabelledSentence("to Rome", offsets, ("O",) * len(offsets))


def test_one_tag_per_word() -> None:
    with pytest.raises(ValueError, match="got 2 tags for 1 words"):
        LabelledSentence("Rome", ((0, 4),), ("O", "O"))


# --- from words to text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("Ana 's dog did n't bark .", "Ana's dog didn't bark."),
        ("He said ( twice ) : no , never !", "He said (twice): no, never!"),
        ('She said " yes , " and left .', 'She said "yes," and left.'),
        ('Not " a " but " b " .', 'Not "a" but "b".'),
        ("You should ' ve stayed", "You should've stayed"),
        ("the boys ' room", "the boys' room"),
        ("It costs $ 5 , or 10 % more", "It costs $5, or 10% more"),
        ("so happy :) ;-) !!", "so happy :) ;-)!!"),
        ("@ ana meet me @ the door # now", "@ana meet me @ the door #now"),
        ("`` Go '' , he said", "``Go'', he said"),
        ("Wait ... what ?", "Wait... what?"),
        (", odd start", ", odd start"),
        ("% of it", "% of it"),
    ],
)
def test_spaces(words: str, text: str) -> None:
    assert detokenise(words.split(" "))[0] == text


@given(st.lists(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1), max_size=12))
def test_words_are_where_the_offsets_say(words: list[str]) -> None:
    text, offsets = detokenise(words)
    assert [text[start:end] for start, end in offsets] == words
    assert text == text.strip()
    assert "".join(text.split()) == "".join("".join(words).split())


def test_nothing() -> None:
    assert detokenise([]) == ("", ())
