"""Which rows the benchmark has, which selector each asks for, and that every table is on one set of sentences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hardkuma import HardKumaModel, score_texts
from hardkuma.cli.benchmark import find_models, main
from hardkuma.common.models import load_released
from hardkuma.encoder_hardkuma import fingerprint
from hardkuma.evaluation.baselines import METHODS, SentenceEncoder, WordScores
from hardkuma.evaluation.baselines.registry import spacy_methods
from hardkuma.evaluation.baselines.spacy_entities import spacy_scores
from hardkuma.evaluation.benchmark import Benchmark, find_contenders, run_benchmark
from hardkuma.evaluation.corpora import labels_of, lower_cased, read_corpus, texts_of
from hardkuma.evaluation.measure import label_metrics
from hardkuma.evaluation.metrics import Ranking
from hardkuma.evaluation.results import MethodResult, faithful_gates, load_result
from hardkuma.evaluation.tables import corpus_tables

from ..apps.spacy_packages import install_pipeline
from ..norms import with_unequal_norms
from .conftest import join_words

QUICK = {"bootstrap": 20, "expensive_sample": 3, "faithfulness_sample": 9, "examples": 2}
WORDS = "marie B-PER\ncurie I-PER\nmoved O\nto O\nparis B-LOC\n\nthe O\nriver O\nruns O\nby O\nlondon B-LOC\n\n"
WORDS += "google B-ORG\nopened O\na O\nschool O\nin O\nberlin B-LOC\n\nthe O\nteam O\nwon O\nin O\n2020 O\n\n"
WORDS += "einstein B-PER\nwrote O\nto O\nnasa B-ORG\n"
BACKOFF = {"entities": {"backoff": 30.0}}  # gates of a random model are near 1/2, where log-odds move little
GATES = ["gates", "gates_sum", "gates_surface", "gates_form", "gates_meaning"]


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.conll"
    path.write_text(WORDS)
    return path


def run(path: Path, methods: list[str], model: HardKumaModel | None, **options: object) -> Benchmark:
    models = [] if model is None else [SentenceEncoder.from_model(model)]
    settings = {"sample": 5, "output": path.parent / "out", "models": models, **QUICK, **options}
    return run_benchmark(path, methods, **settings)


def by_name(done: Benchmark) -> dict[str, MethodResult]:
    return {result.method: result for result in done.results}


def test_rows_of_two_selectors(words: Path, make_two: Callable[..., HardKumaModel]) -> None:
    model = with_unequal_norms(make_two(selectors=BACKOFF))
    done = run(words, [*GATES, "norm"], model)
    rows = by_name(done)
    assert list(rows) == ["encoder", *GATES, "norm"] and not done.notes
    assert [rows[name].selector for name in GATES] == ["entities"] * 4 + ["meaning"]
    assert rows["gates"].title == "HardKuma gates, entities (max)"
    assert rows["gates_surface"].title == "HardKuma gates, entities, surface view (max)"
    assert rows["gates_form"].title == "HardKuma gates, entities, form alone (max)"
    assert rows["gates_meaning"].title == "HardKuma gates, meaning (max)"
    sentences = read_corpus(words).sentences
    texts, spans = texts_of(sentences)
    for name, selector in (("gates", "entities"), ("gates_meaning", "meaning")):
        scored = score_texts(model, texts, words=spans, use_surface=False, selector=selector)
        curve = Ranking(labels_of(sentences), [item.probabilities for item in scored]).curve()
        assert rows[name].value("average_precision") == pytest.approx(curve.average_precision(), abs=1e-6)
    first = [rows[name].examples[0]["scores"] for name in ("gates_form", "gates", "gates_meaning")]
    assert max(map(abs, np.subtract(first[0], first[1]))) > 0.01 < max(map(abs, np.subtract(first[1], first[2])))
    # Names are not to carry the embedding: meaning is compared with the baselines there.
    measured = [name for name, row in rows.items() if row.value("sufficiency") is not None]
    assert measured == ["gates_meaning", "norm"]
    table = next(table for table in corpus_tables(done.results) if table.title == "Faithfulness")
    assert {result.method for result in table.results} == {"gates_meaning", "norm"}
    assert "HardKuma gates, meaning (max) have than the row" in table.note


def test_rows_that_show_the_same_gates_are_left_out(
    words: Path, make_model: Callable[..., HardKumaModel], make_two: Callable[..., HardKumaModel]
) -> None:
    alone = run(words, GATES, make_model())
    assert list(by_name(alone)) == ["encoder", "gates", "gates_sum", "gates_surface"]
    same = "it shows the same gates of this checkpoint as HardKuma gates (max)."
    assert alone.notes == [f"Left out: HardKuma gates, {name} (max); {same}" for name in ("form alone", "meaning")]
    assert all(row.value("sufficiency") is not None for name, row in by_name(alone).items() if name != "encoder")
    unweighed = run(words, ["gates", "gates_form"], make_two())
    assert list(by_name(unweighed)) == ["encoder", "gates"] and len(unweighed.notes) == 1
    # Asked for by itself it is shown.
    assert list(by_name(run(words, ["gates_form"], make_two()))) == ["encoder", "gates_form"]


def test_a_selector_holds_for_all_rows(words: Path, make_two: Callable[..., HardKumaModel]) -> None:
    model = make_two(selectors=BACKOFF)
    rows = by_name(run(words, GATES, model, selector="meaning"))
    assert list(rows) == ["encoder", "gates", "gates_sum", "gates_surface"]
    assert {rows[name].selector for name in rows if name != "encoder"} == {"meaning"}
    assert rows["gates"].title == "HardKuma gates, meaning (max)"
    named = by_name(run(words, GATES, model, selector="entities"))
    assert list(named) == ["encoder", *GATES[:4]] and all(named[name].areas for name in GATES[:4])
    with pytest.raises(ValueError, match="no selector 'nouns'"):
        run(words, ["gates"], model, selector="nouns")


def test_gates_on_another_encoder_are_noted(
    words: Path, make_model: Callable[..., HardKumaModel], encoder: SentenceEncoder
) -> None:
    notes = run(words, ["gates", "norm"], make_model(), encoder=encoder).notes
    assert notes == ["HardKuma gates (max): on another encoder than the baselines, so that faithfulness differs in scale."]
    assert run(words, ["gates", "norm"], make_model()).notes == []


def test_the_released_head_is_the_default(conll: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [released] = find_models([])[""]
    assert fingerprint(released) == fingerprint(load_released()[0])
    words = ["--data", str(conll), "--methods", "gates", "capitals", "--sample", "4", "--bootstrap", "5", "--quiet"]
    assert main([*words, "--output", str(tmp_path / "with")]) == 0
    result = load_result(tmp_path / "with" / "results" / "toy" / "gates.json")
    assert result is not None and result.settings["encoders"] == [fingerprint(released)]
    assert result.value("f1_lower") is not None
    assert main([*words, "--output", str(tmp_path / "without"), "--model", "none", "--no-lower"]) == 0
    made = sorted(path.name for path in (tmp_path / "without" / "results" / "toy").iterdir())
    assert made == ["capitals.json"] and "needs a HardKuma checkpoint (--model)" in capsys.readouterr().out
    capitals = load_result(tmp_path / "without" / "results" / "toy" / "capitals.json")
    assert capitals is not None and capitals.value("f1_lower") is None and capitals.value("f1_own") is not None


def test_spacy_decides_and_does_not_rank(
    conll: Path, tmp_path: Path, encoder: SentenceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("spacy")
    install_pipeline(tmp_path / "site", "toy_places", {"PERSON": ["Ana"], "GPE": ["New York"], "DATE": ["open"]})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    method = next(method for method in spacy_methods() if method.name == "spacy_toy_places")
    monkeypatch.setitem(METHODS, method.name, method)
    row = by_name(run(conll, [method.name, "capitals"], None, encoder=encoder))[method.name]
    # Seven entity words: Ana twice, New York, and Paris twice and London, which it does not know.
    assert row.value("precision_own") == 1.0 and row.value("recall_own") == pytest.approx(4 / 7, abs=1e-6)
    assert row.value("f1_own") == pytest.approx(8 / 11, abs=1e-6) and row.value("f1_lower") == 0.0
    assert row.value("average_precision") is None and row.value("sufficiency") is None and not row.common
    assert row.role == "reference" and row.forward_passes == 0
    table = corpus_tables([row])[0]
    assert [column.name for column in table.columns][:4] == ["f1_own", "f1_lower", "precision_own", "recall_own"]


def test_without_a_spacy_model_a_note_says_so(encoder: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name, method in METHODS.items() if method.function is spacy_scores]:
        monkeypatch.delitem(METHODS, name)
    assert any("python -m spacy download" in note for note in find_contenders(None, encoder, {}, None)[1])
    assert not any("spaCy" in note for note in find_contenders(["norm"], encoder, {}, None)[1])


def test_lower_case(conll: Path, encoder: SentenceEncoder) -> None:
    row = by_name(run(conll, ["capitals"], None, encoder=encoder))["capitals"]
    assert row.value("f1_own") == pytest.approx(10 / 12, abs=1e-6)  # two names begin their sentence
    assert row.value("f1_lower") == 0.0 and row.value("average_precision_lower") == pytest.approx(7 / 31, abs=1e-6)
    sentence = join_words(["In", "İZMIR", "Ana"], ["O", "B-L", "B-P"])
    small = lower_cased(sentence)
    assert small.text == "in İzmir ana" and small.offsets == sentence.offsets and small.tags == sentence.tags


def test_gates_of_an_uncased_encoder_do_not_see_capitals(words: Path, minilm: HardKumaModel) -> None:
    words.write_text(WORDS.replace("paris", "Paris").replace("school", "School"))
    rows = by_name(run(words, ["gates"], minilm, bootstrap=0))
    assert rows["gates"].value("f1_lower") == rows["gates"].value("f1_own") is not None


def test_recall_of_words_that_are_easily_missed(conll: Path, encoder: SentenceEncoder) -> None:
    sentences = [
        join_words(["U2", "met", "ana", "&", "2pac"], ["B-G", "O", "B-P", "O", "B-P"]),
        join_words(["R2D2", "was", "in", "paris"], ["B-P", "O", "O", "B-L"]),
    ]
    chosen = [[True, True, False, False, False], [True, False, False, True]]
    run = [
        WordScores(s.text, list(s.offsets), [float(value) for value in row], row)
        for s, row in zip(sentences, chosen, strict=True)
    ]
    found = {name: interval.value for name, interval in label_metrics(sentences, [run], samples=0).items()}
    assert found["recall_own"] == pytest.approx(3 / 5) and found["precision_own"] == pytest.approx(3 / 4)
    assert found["recall_digits"] == pytest.approx(2 / 3)  # U2 and R2D2 of three
    assert found["recall_lower_case"] == pytest.approx(1 / 3)  # paris, not ana and 2pac
    only = label_metrics(sentences, [run], samples=0, ranked=False)
    assert "average_precision" not in only and only["f1_own"].value == found["f1_own"]
    path = conll.with_name("digits.conll")
    path.write_text("U2\tB-G\nmet\tO\nana\tB-P\n")
    done = run_benchmark(path, ["capitals"], 1, output=conll.parent / "out", encoder=encoder, **QUICK)
    metrics = by_name(done)["capitals"].metrics
    assert metrics["recall_digits"]["words"] == 1 and metrics["recall_lower_case"]["words"] == 1
    note = next(table.note for table in corpus_tables(done.results) if "missed" in table.title)
    assert "1 entity words with a digit and 1 in lower case" in note


def test_every_table_is_on_one_set_of_sentences(words: Path, make_model: Callable[..., HardKumaModel]) -> None:
    done = run(words, ["gates", "norm", "loo", "capitals"], make_model())
    rows = by_name(done)
    tables = {table.title: table for table in corpus_tables(done.results)}
    entities = tables["Entity words"]
    assert {result.method for result in entities.results} == {"encoder", "gates", "norm", "capitals"}
    assert {result.sentences for result in entities.results} == {5} and entities.note.startswith("5 sentences, 25 words")
    both = tables["Entity words, methods of many passes too"]
    assert {result.method for result in both.results} == {"gates", "norm", "loo", "capitals"}
    assert "first 3 of these sentences" in both.note and rows["loo"].sentences == 3
    sentences = read_corpus(words).sample(3)
    texts, spans = texts_of(sentences)
    scored = METHODS["norm"].scores(SentenceEncoder.from_model(make_model()), texts, spans)
    curve = Ranking(labels_of(sentences), [one.scores for one in scored]).curve()
    assert rows["norm"].common["value"] == pytest.approx(curve.average_precision(), abs=1e-6)
    assert rows["norm"].common["value"] != rows["norm"].value("average_precision")
    # Nine were asked for, and no method of many passes has more than three.
    faithful = tables["Faithfulness"]
    assert {len(values) for result in faithful.results for values in result.areas.values()} == {3}
    assert "first 3 sentences" in faithful.note
    shown = done.table.read_text()
    assert all(f"### {title}" in shown and table.note in shown for title, table in tables.items())
    cheap = run(words, ["norm", "capitals"], None, encoder=SentenceEncoder.from_model(make_model()))
    assert "Entity words, methods of many passes too" not in {table.title for table in corpus_tables(cheap.results)}


def test_differences_are_paired(words: Path, make_model: Callable[..., HardKumaModel]) -> None:
    done = run(words, ["norm", "gates", "loo", "random"], make_model())
    rows = by_name(done)
    assert faithful_gates(done.results) is rows["gates"] and rows["gates"].differences == {}
    for name in ("norm", "loo", "random"):
        for metric in ("sufficiency", "comprehensiveness"):
            gap = rows[name].differences[metric]
            assert gap["value"] == pytest.approx(rows["gates"].value(metric) - rows[name].value(metric), abs=2e-6)
            assert gap["low"] <= gap["value"] <= gap["high"]
    stored = load_result(done.folder / "results" / "words" / "loo.json")
    assert stored is not None and stored.differences == rows["loo"].differences
    # Another set of rows, or none of gates: what was stored is not believed.
    again = by_name(run(words, ["norm", "loo"], None, encoder=SentenceEncoder.from_model(make_model())))
    assert again["loo"].differences == {}
