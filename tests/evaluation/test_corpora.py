"""Labelled sentences, corpora and nested samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hardkuma.data import read_conll
from hardkuma.evaluation.corpora import find_corpora, labels_of, read_corpus, slug


def test_words_are_offsets_into_readable_text(tmp_path: Path) -> None:
    path = tmp_path / "x.conll"
    path.write_text("In\tO\nParis\tB-LOC\n,\tO\n\nok\tO\n", encoding="utf-8")
    first, second = read_corpus(path).sentences
    assert (first.text, first.offsets, first.tags) == ("In Paris,", ((0, 2), (3, 8), (8, 9)), ("O", "B-LOC", "O"))
    assert labels_of([first, second]) == [[0, 1, 0], [0]]


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
    with pytest.raises(ValueError, match="no sentence found"):
        read_corpus(tmp_path / "blank.conll")
    assert slug("../../etc/x") == "etc-x"


def test_real_corpora(real_data: Path) -> None:
    corpora = {corpus.name: corpus for corpus in find_corpora(real_data)}
    assert {name: len(corpus.sentences) for name, corpus in corpora.items()} == {
        "wnut17-dev": 1009,
        "wnut17-test": 1287,
        "wikigold": 1696,
    }
    tagged = list(read_conll(real_data / "ud-ewt" / "dev.conllu"))
    assert len(tagged) == 2001
    assert {"PROPN", "NOUN", "PUNCT"} < {tag for sentence in tagged for tag in sentence.tags}


def test_the_digest_is_of_what_was_read(conll: Path) -> None:
    first, again = read_corpus(conll), read_corpus(conll, "other name")
    assert first.digest == again.digest
    again = read_corpus(conll)
    first_one = again.sentences[0]
    again.sentences[0] = replace(first_one, tags=("B-X", *first_one.tags[1:]))
    assert first.digest != again.digest
