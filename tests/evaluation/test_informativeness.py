"""Correlation of word weights with information."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hardkuma.evaluation import informativeness as module
from hardkuma.evaluation.baselines import METHODS, SentenceEncoder, WordScores
from hardkuma.evaluation.baselines.toy import toy_transformer
from hardkuma.evaluation.corpora import Corpus
from hardkuma.evaluation.informativeness import correlate, correlation_plot, correlation_table, tagged_corpus

from .conftest import join_words


def corpus_of(*sentences: list[tuple[str, str]]) -> Corpus:
    return Corpus("toy", [join_words([w for w, _ in s], [t for _, t in s]) for s in sentences])


@pytest.fixture
def corpus() -> Corpus:
    return corpus_of(
        [("the", "DET"), ("museum", "NOUN"), ("of", "ADP"), ("science", "NOUN")],
        [("the", "DET"), ("old", "ADJ"), ("river", "NOUN"), ("runs", "VERB")],
        [("a", "DET"), ("teacher", "NOUN"), ("writes", "VERB"), ("letters", "NOUN")],
    )


def test_perfect_and_reversed_weights(corpus: Corpus, encoder: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wordfreq")
    reverse = {"sign": 1.0}

    def information(encoder: object, texts: list, words: list, **options: object) -> list[WordScores]:
        found = METHODS["self_information"].scores(None, texts, words)
        return [WordScores(r.text, r.words, [reverse["sign"] * 2 * s for s in r.scores]) for r in found]

    class Fake:
        role = "baseline"
        scores = staticmethod(information)

    monkeypatch.setattr(module, "find_method", lambda name: Fake)
    rows = correlate({"m": encoder}, [corpus], ["norm"], by_tag=["toy"], minimum=3, draws=20)
    found = {(row.information, row.tag): row for row in rows}
    assert found["self_information", "all"].pooled.value == 1.0
    assert found["self_information", "all"].within == pytest.approx(1.0)
    assert found["self_information", "all"].words == 12
    assert {tag for _, tag in found} == {"all", "NOUN", "DET"}  # tags of at least 3 words
    assert found["self_information", "NOUN"].words == 5
    reverse["sign"] = -1.0
    again = correlate({"m": encoder}, [corpus], ["norm"], draws=0)
    assert again[0].pooled.value == -1.0


def test_table_and_plot(corpus: Corpus, encoder: SentenceEncoder) -> None:
    pytest.importorskip("wordfreq")
    models = {"before": encoder, "after": encoder}
    with encoder.counting() as used:
        rows = correlate(models, [corpus], ["gates", "norm"], by_tag=["toy"], minimum=3, draws=5)
    assert used.forward == 3  # equal weights are scored once
    assert {row.method for row in rows} == {"norm"}  # a bare encoder has no gates
    table = correlation_table(rows)
    assert "## toy, all words (12 words)" in table and "| norm of the state (max) | after |" in table
    assert "<svg" in correlation_plot(rows, "toy")


def test_treebank_and_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wordfreq")
    (tmp_path / "ud-ewt").mkdir()
    (tmp_path / "wikigold").mkdir()
    rows = "".join(
        f"{i + 1}\t{w}\t_\t{t}\t_\t_\t_\t_\t_\t_\n" for i, (w, t) in enumerate([("the", "DET"), ("river", "NOUN")])
    )
    (tmp_path / "ud-ewt" / "dev.conllu").write_text(f"# text = the river\n{rows}\n")
    (tmp_path / "wikigold" / "wikigold.conll").write_text("the O\nriver O\nruns O\n")
    assert tagged_corpus(tmp_path / "ud-ewt" / "dev.conllu").sentences[0].tags == ("DET", "NOUN")
    monkeypatch.setattr(SentenceEncoder, "load", lambda path: toy_transformer(["the", "river", "runs"]))
    given = ["--before", "x", "--after", "y", "--data", str(tmp_path), "--methods", "norm", "--quiet"]
    assert module.main([*given, "--output", str(tmp_path / "out")]) == 0
    values = json.loads((tmp_path / "out" / "informativeness.json").read_text())
    assert {row["model"] for row in values["rows"]} == {"before", "after"}
    assert (tmp_path / "out" / "ud-ewt-self_information.svg").read_text().startswith("<svg")
    assert module.main([*given, "--model", "third=z", "--corpora", "ud-ewt", "--output", str(tmp_path / "one")]) == 0
    values = json.loads((tmp_path / "one" / "informativeness.json").read_text())
    assert {(row["model"], row["corpus"]) for row in values["rows"]} == {
        (name, "ud-ewt") for name in ("before", "after", "third")
    }
    with pytest.raises(ValueError, match="unknown corpus 'conll'; known: wikigold, ud-ewt"):
        module.main([*given, "--corpora", "conll"])
    with pytest.raises(ValueError, match="unknown tag 'NOUNS'; known: all"):
        module.main([*given, "--tags", "all", "NOUNS"])
    with pytest.raises(SystemExit):
        module.main([*given, "--model", "z"])
