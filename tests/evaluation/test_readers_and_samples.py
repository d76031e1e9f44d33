"""CoNLL and CoNLL-U reading, corpora and nested samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardkuma.evaluation._conll import read_conll, read_conllu
from hardkuma.evaluation.data import find_corpora, labels_of, read_corpus, slug


def test_tabs_spaces_and_document_marks(tmp_path: Path) -> None:
    path = tmp_path / "x.conll"
    path.write_text("-DOCSTART-\tO\n\nIn\tO\nNew York\tB-LOC\n\n\n010 X Y I-MISC\nis Z Q O\r\n", encoding="utf-8")
    first, second = read_conll(path)
    assert (first.text, first.words, first.tags) == ("In New_York", [(0, 2), (3, 11)], ["O", "B-LOC"])
    assert (second.text, second.tags) == ("010 is", ["I-MISC", "O"])
    assert labels_of([first, second]) == [[0, 1], [1, 0]]


def test_a_line_without_a_tag_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.conll"
    path.write_text("In O\nalone\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 2 of .* is 'alone'"):
        list(read_conll(path))


def test_conllu_offsets_and_multiword_tokens(tmp_path: Path) -> None:
    rows = [
        "# text = I don't, au  revoir",
        "1\tI\tI\tPRON\t_\t_\t_\t_\t_\t_",
        "2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_",
        "2\tdo\tdo\tAUX\t_\t_\t_\t_\t_\t_",
        "3\tn't\tnot\tPART\t_\t_\t_\t_\t_\t_",
        "4\t,\t,\tPUNCT\t_\t_\t_\t_\t_\t_",
        "4.1\tghost\t_\tVERB\t_\t_\t_\t_\t_\t_",
        "5-6\tau\t_\t_\t_\t_\t_\t_\t_\t_",
        "5\tà\tà\tADP\t_\t_\t_\t_\t_\t_",
        "6\tle\tle\tDET\t_\t_\t_\t_\t_\t_",
        "7\trevoir\trevoir\tNOUN\t_\t_\t_\t_\t_\t_",
    ]
    path = tmp_path / "x.conllu"
    path.write_text("\n".join(rows), encoding="utf-8")  # no empty line at the end
    (sentence,) = read_conllu(path)
    words = [sentence.text[start:end] for start, end in sentence.words]
    assert list(zip(words, sentence.tags, strict=True)) == [
        ("I", "PRON"),
        ("do", "AUX"),
        ("n't", "PART"),
        (",", "PUNCT"),
        ("au", "ADP"),
        ("revoir", "NOUN"),
    ]


def test_samples_nest_and_are_seeded(conll: Path) -> None:
    corpus = read_corpus(conll)
    assert corpus.sample(2) == corpus.sample(4)[:2]
    assert corpus.sample(5, seed=1) != corpus.sample(5, seed=0)
    assert len(corpus.sample(None)) == 5
    assert corpus.counts.words["paris"] == 2


def test_corpora_are_found_or_named(tmp_path: Path, conll: Path) -> None:
    folder = tmp_path / "data"
    (folder / "wnut17").mkdir(parents=True)
    (folder / "wnut17" / "dev.conll").write_text("a\tO\n")
    assert [corpus.name for corpus in find_corpora(folder)] == ["wnut17-dev"]
    assert [corpus.name for corpus in find_corpora([conll, folder])] == ["toy", "wnut17-dev"]
    with pytest.raises(ValueError, match="no corpus 'wikigold'; found: wnut17-dev"):
        find_corpora(folder, ["wikigold"])
    with pytest.raises(FileNotFoundError, match="neither a folder nor a file"):
        find_corpora(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"none of wnut17/dev\.conll"):
        find_corpora(tmp_path / "empty")
    (tmp_path / "blank.conll").write_text("\n")
    with pytest.raises(ValueError, match="holds no sentence"):
        read_corpus(tmp_path / "blank.conll")
    assert slug("../../etc/x") == "etc-x"


def test_real_corpora(real_data: Path) -> None:
    corpora = {corpus.name: corpus for corpus in find_corpora(real_data)}
    assert {name: len(corpus.sentences) for name, corpus in corpora.items()} == {
        "wnut17-dev": 1009,
        "wnut17-test": 1287,
        "wikigold": 1696,
    }
    tagged = list(read_conllu(real_data / "ud-ewt" / "dev.conllu"))
    assert len(tagged) == 2001
    assert {"PROPN", "NOUN", "PUNCT"} < {tag for sentence in tagged for tag in sentence.tags}
