"""Cost by length, and correlation with information."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from transformers.utils import ModelOutput

from hardkuma.evaluation import cost
from hardkuma.evaluation import informativeness as module
from hardkuma.evaluation.baselines import METHODS, SentenceEncoder, WordScores
from hardkuma.evaluation.baselines.toy import toy_transformer
from hardkuma.evaluation.cost import WORDS, Cost, cost_plot, cost_table, growth, measure_cost, sentence_of
from hardkuma.evaluation.data import Corpus
from hardkuma.evaluation.informativeness import correlate, correlation_plot, correlation_table, tagged_corpus

from .conftest import join_words


@pytest.fixture
def timed() -> SentenceEncoder:
    return toy_transformer(WORDS.split())


@pytest.mark.parametrize("length", [3, 8, 64])
def test_sentences_have_exactly_the_length(timed: SentenceEncoder, length: int) -> None:
    assert len(timed.tokenize([sentence_of(timed, length)])[0]) == length
    assert sentence_of(timed, length, 1) != sentence_of(timed, length, 0)


def test_impossible_lengths_are_named(timed: SentenceEncoder) -> None:
    with pytest.raises(ValueError, match=r"exactly 100 tokens .* at most 64"):
        sentence_of(timed, 100)


class Clock:
    """A clock that goes on by a second for every sentence that the encoder reads, and by a little when looked at."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        self.now = 0.0
        encoder.encoder.register_forward_hook(self._read)

    def _read(self, _module: object, _inputs: object, output: ModelOutput) -> None:
        self.now += len(output.last_hidden_state)

    def perf_counter(self) -> float:
        self.now += 1e-3
        return self.now


def test_passes_by_length(timed: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "time", Clock(timed))
    rows = measure_cost(timed, ["norm", "loo", "self_information_corpus"], [8, 16], sentences=2, repeats=1)
    passes = {(row.method, row.tokens): row.forward for row in rows}
    assert passes["encoder", 8] == passes["norm", 16] == 1
    assert passes["loo", 8] == 1 + 6 and passes["loo", 16] == 1 + 14
    assert passes["self_information_corpus", 8] == 0
    relative = {(row.method, row.tokens): row.relative for row in rows}
    assert relative["encoder", 16] == 1 > relative["self_information_corpus", 16]
    assert relative["loo", 16] == pytest.approx(15, rel=0.01)
    table = cost_table(rows)
    assert "| method | 8 tokens | 16 tokens | passes | times the encoder | growth |" in table
    pytest.importorskip("matplotlib")
    assert "<svg" in cost_plot(rows)


def test_an_exhausted_budget_leaves_out_long_sentences(timed: SentenceEncoder) -> None:
    rows = measure_cost(timed, ["norm"], [8, 16], sentences=1, repeats=1, budget=0.0)
    assert [(row.method, row.tokens) for row in rows] == [("encoder", 8), ("norm", 8)]


def test_growth_is_the_exponent() -> None:
    rows = [Cost("m", "m", n, 3e-6 * n**1.5, 1, 0, 1) for n in (8, 16, 32)]
    assert growth(rows, "m") == pytest.approx(1.5)
    assert math.isnan(growth(rows[:1], "m"))


# ---- informativeness ------------------------------------------------------------------------------------------------


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
        kind = "peer"
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
    monkeypatch.setattr(SentenceEncoder, "load", lambda path: toy_transformer(WORDS.split()))
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
