"""A small corpus with a hostile sentence, written to CoNLL files, and an encoder made by hand."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hardkuma.data import LabelledSentence
from hardkuma.evaluation.baselines import SentenceEncoder
from tests.toy import toy_transformer

SCRIPT = "<script>document.title='broken'</script>"
SENTENCES = [
    [("the", "O"), ("museum", "O"), ("in", "O"), ("Paris", "B-LOC"), ("was", "O"), ("open", "O")],
    [
        ("<script>document.title='broken'</script>", "O"),
        ("met", "O"),
        ("Ana", "B-PER"),
        ("&", "O"),
        ("</dd>", "O"),
        ("b", "O"),
    ],
    [("London", "B-LOC"), ("was", "O"), ("rainy", "O"), (",", "O"), ("New", "B-LOC"), ("York", "I-LOC"), ("open", "O")],
    [("no", "O"), ("names", "O"), ("in", "O"), ("the", "O"), ("river", "O")],
    [("Ana", "B-PER"), ("opened", "O"), ("the", "O"), ("rainy", "O"), ("museum", "O"), ("of", "O"), ("Paris", "B-LOC")],
]
PIECES = "the of in was met a b ana paris london new york rain ##y museum river open ##ed no names script < > / & ,"


def make_encoder() -> SentenceEncoder:
    return toy_transformer(PIECES.split())


def write_conll(path: Path) -> Path:
    path.write_text("\n".join("".join(f"{w}\t{t}\n" for w, t in s) for s in SENTENCES), encoding="utf-8")
    return path


def whitespace_words(text: str) -> list[tuple[int, int]]:
    """Offsets of what stands between white space."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def join_words(words: list[str], tags: list[str]) -> LabelledSentence:
    """Words joined by spaces, as a labelled sentence."""
    text = " ".join(words)
    return LabelledSentence(text, tuple(whitespace_words(text)), tuple(tags))


@pytest.fixture
def encoder() -> SentenceEncoder:
    return make_encoder()


@pytest.fixture
def conll(tmp_path: Path) -> Path:
    return write_conll(tmp_path / "toy.conll")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Real corpora beside the repository, or where HARDKUMA_DATA says."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("HARDKUMA_DATA", beside))
    if not folder.is_dir():
        pytest.skip("the folder of real corpora (../shared/data) is absent")
    return folder
