"""The readers on real files. They are not part of the project: set HARDKUMA_DATA, or keep them in ../shared/data."""

import os
from pathlib import Path

import pytest

from hardkuma.data import clean, read_conll, read_texts

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("HARDKUMA_DATA", ROOT.parent / "shared" / "data"))

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no corpora in {DATA}; set HARDKUMA_DATA to their folder")


@pytest.mark.parametrize(
    ("name", "sentences", "words"),
    [
        ("wnut17/train.conll", 3394, 62730),
        ("wnut17/dev.conll", 1009, 15733),
        ("wnut17/test.conll", 1287, 23394),
        ("wikigold/wikigold.conll", 1696, 39007),
    ],
)
def test_conll_counts_are_the_published_ones(name: str, sentences: int, words: int) -> None:
    read = list(read_conll(DATA / name))
    assert len(read) == sentences
    assert sum(len(sentence.words) for sentence in read) == words
    assert list(read_texts(DATA / name)) == [sentence.text for sentence in read]


def test_words_are_the_file_s_words() -> None:
    file = DATA / "wnut17/dev.conll"
    expected = [line.split("\t")[0] for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    assert [word for sentence in read_conll(file) for word in sentence.words] == expected


def test_conllu_text_is_the_annotators() -> None:
    file = DATA / "ud-ewt/dev.conllu"
    lines = file.read_text(encoding="utf-8").split("\n")
    expected = [line.removeprefix("# text = ").rstrip() for line in lines if line.startswith("# text = ")]
    assert [sentence.text for sentence in read_conll(file)] == expected == list(read_texts(file))


def test_wikitext_is_free_of_marks() -> None:
    texts = list(read_texts(DATA / "wikitext2/valid.txt"))
    assert len(texts) > 2000
    assert not [text for text in texts if "<unk>" in text or "@-@" in text or " ," in text or text.startswith("=")]
    assert len(list(clean(texts))) > 0.9 * len(texts)


def test_sts_columns_by_number() -> None:
    texts = list(read_texts(DATA / "stsb/sts-dev.csv", format="tsv", column=6, split_sentences=False))
    assert texts[0] == "A man with a hard hat is dancing."
    assert len(texts) == 1500
