"""The spaCy component as a user adds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

spacy = pytest.importorskip("spacy", reason="pip install hardkuma[spacy]")

from hardkuma import HardKumaModel, gate_records, score_texts  # noqa: E402 - the skip comes first
from hardkuma.apps.spacy_component import HardKumaComponent, _disjoint  # noqa: E402
from tests.conftest import SENTENCES  # noqa: E402


@pytest.fixture
def folder(make_model: Callable, tmp_path: Path) -> Path:
    make_model().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def model(folder: Path) -> HardKumaModel:
    return HardKumaModel.from_pretrained(folder).eval()


def pipeline_with(folder: Path, **config: object) -> spacy.Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("hardkuma", config={"model": str(folder), **config})
    return nlp


TEXT = "Marie didn't move to paris-london (in 1891), 🙂  see http://paris.london/marie?curie=1\n\nMr. Curie won."


@pytest.mark.parametrize("options", [{}, {"rate": 0.3}, {"threshold": 0.2}, {"rate": 0.3, "use_surface": False}])
def test_tokens_and_spans_are_those_of_the_record(options: dict, folder: Path, model: HardKumaModel) -> None:
    doc = pipeline_with(folder, **options)(TEXT)
    record = gate_records(model, [TEXT], **options)[0]
    for token in doc:
        touched = [w for w in record["words"] if w["start"] < token.idx + len(token) and w["end"] > token.idx]
        assert token._.gate == max((w["probability"] for w in touched), default=0.0), token.text
        assert token._.rationale == any(w["selected"] for w in touched), token.text
    spans = doc.spans["hardkuma"]
    assert len({(span.start, span.end) for span in spans}) == len(spans)
    for span in spans:
        assert all(token._.rationale for token in span if token._.gate > 0)
        assert span._.gate == max(token._.gate for token in span)
    inside = {token.i for span in spans for token in span}
    assert inside >= {token.i for token in doc if token._.rationale}


def test_pieces_of_a_word_and_words_of_a_token(folder: Path) -> None:
    doc = pipeline_with(folder, rate=1.0)(TEXT)
    gates = {token.text: token._.gate for token in doc}
    assert gates["did"] == gates["n't"] > 0, "one word for us, two tokens for spaCy"
    assert gates["http://paris.london/marie?curie=1"] > 0, "one token for spaCy, several words for us"
    assert gates["("] == gates[","] == 0.0 and not any(token._.rationale for token in doc if token.is_space)


def test_spans_that_share_a_token_are_one() -> None:
    doc = spacy.blank("en")("Fix race condition in std::shared_ptr destructor")
    pieces = [spacy.tokens.Span(doc, *ends, "MEANING") for ends in ((0, 2), (1, 4), (4, 5), (4, 6))]
    found = _disjoint(doc, pieces)
    assert [(span.start, span.end, span.label_) for span in found] == [(0, 4, "MEANING"), (4, 6, "MEANING")]
    doc.set_ents(found)  # which refuses spans that overlap


def test_batches_and_order(folder: Path, model: HardKumaModel) -> None:
    texts = [*SENTENCES, "", "  \n", " ".join(SENTENCES * 4), TEXT] * 3
    nlp = pipeline_with(folder, rate=0.3, batch_size=4)
    docs = list(nlp.pipe(texts, batch_size=5))
    assert [doc.text for doc in docs] == texts
    for doc, record in zip(docs, gate_records(model, texts, rate=0.3), strict=True):
        chosen = {token.i for token in doc if token._.rationale}
        words = [w for w in record["words"] if w["selected"]]
        assert chosen == {
            token.i for token in doc for w in words if w["start"] < token.idx + len(token) and w["end"] > token.idx
        }
    assert not docs[6].spans["hardkuma"] and not docs[7].spans["hardkuma"]


def test_a_document_can_be_annotated_again(folder: Path) -> None:
    doc = pipeline_with(folder, rate=1.0)(SENTENCES[0])
    again = pipeline_with(folder, rate=0.1).get_pipe("hardkuma")(doc)
    assert again is doc and sum(token._.rationale for token in doc) == 1 and len(doc.spans["hardkuma"]) == 1


def test_config_is_saved_and_loaded(folder: Path, tmp_path: Path) -> None:
    nlp = pipeline_with(folder, rate=0.4, spans_key="gates")
    nlp.to_disk(tmp_path / "pipeline")
    again = spacy.load(tmp_path / "pipeline")
    assert again.config["components"]["hardkuma"]["rate"] == 0.4 and isinstance(
        again.get_pipe("hardkuma"), HardKumaComponent
    )
    first, second = nlp(TEXT), again(TEXT)
    assert [token._.gate for token in first] == [token._.gate for token in second]
    assert [span.text for span in first.spans["gates"]] == [span.text for span in second.spans["gates"]] != []
    # Documents keep what was found: as spaCy stores them, and as JSON.
    stored = spacy.tokens.DocBin(docs=[first], store_user_data=True).to_bytes()
    doc = next(spacy.tokens.DocBin().from_bytes(stored).get_docs(again.vocab))
    assert [token._.gate for token in doc] == [token._.gate for token in first]
    assert first.to_json()["spans"]["gates"]


def test_the_released_model_is_the_default() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("hardkuma", config={"rate": 0.4})
    doc = nlp("Marie Curie moved to Paris.")
    assert sum(token._.rationale for token in doc) == 2 and doc[5]._.gate == 0.0


def test_bad_settings(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"rate must be a fraction in \(0, 1\], got 20"):
        pipeline_with(folder, rate=20)
    with pytest.raises(ValueError, match="give one of rate, threshold and keep"):
        pipeline_with(folder, rate=0.2, threshold=0.5)
    with pytest.raises(Exception, match="tresh"):
        pipeline_with(folder, treshold=0.5)


def test_bad_settings_are_refused_when_the_pipe_is_added(folder: Path) -> None:
    with pytest.raises(ValueError, match="batch_size must be a whole number >= 1, got 0"):
        pipeline_with(folder, batch_size=0)
    with pytest.raises(ValueError, match="no selector 'names': this model has 'meaning'"):
        pipeline_with(folder, selector="names")


def test_an_extension_of_somebody_else(folder: Path) -> None:
    nlp = pipeline_with(folder)
    kept = spacy.tokens.Token.remove_extension("gate")
    try:
        assert nlp("marie moved")[0]._.gate > 0, "registered again"
        spacy.tokens.Token.set_extension("gate", getter=lambda token: 0.1, force=True)
        with pytest.raises(ValueError, match=r"Token\._\.gate is an extension with a getter"):
            nlp("marie moved")
    finally:
        spacy.tokens.Token.set_extension("gate", default=kept[0], force=True)


def test_documents_without_spans_say_why(folder: Path) -> None:
    nlp = pipeline_with(folder, threshold=1.0)
    docs = list(nlp.pipe(["…", "", "paris"]))
    assert [list(doc.spans["hardkuma"]) for doc in docs] == [[], [], []]
    assert [doc._.gate_reason for doc in docs] == [
        "the text has no word",
        "the text has no word",
        "no word is more probable than 1",
    ]
    assert pipeline_with(folder, rate=0.5)("paris")._.gate_reason is None


def test_a_selector_by_its_name(make_two: Callable, tmp_path: Path) -> None:
    model = make_two()
    model.save_pretrained(tmp_path / "two")
    for options, name in (({}, "meaning"), ({"selector": "entities"}, "entities")):
        doc = pipeline_with(tmp_path / "two", **options)("marie curie moved to paris")
        expected = score_texts(model, [doc.text], selector=name)[0].probabilities
        assert [token._.gate for token in doc] == pytest.approx(expected, abs=1e-5)


def test_a_span_group_for_each_selector(make_model: Callable, tmp_path: Path) -> None:
    make_model(selectors={"nouns": {}, "verbs": {}}).save_pretrained(tmp_path / "model")
    doc = pipeline_with(tmp_path / "model", selector="all", rate=0.3)(SENTENCES[0])
    model = HardKumaModel.from_pretrained(tmp_path / "model").eval()
    assert set(doc.spans) == {"hardkuma.nouns", "hardkuma.verbs"}
    for name in ("nouns", "verbs"):
        record = gate_records(model, [SENTENCES[0]], rate=0.3, selector=name)[0]
        assert [span.text for span in doc.spans[f"hardkuma.{name}"]] == [span["text"] for span in record["spans"]]
        assert all(token._.rationale for span in doc.spans[f"hardkuma.{name}"] for token in span)


def test_spans_have_the_label_of_their_selector(make_two: Callable, tmp_path: Path) -> None:
    make_two().save_pretrained(tmp_path / "two")
    doc = pipeline_with(tmp_path / "two", selector="all", rate=0.5)(SENTENCES[0])
    labels = {key: {span.label_ for span in group} for key, group in doc.spans.items()}
    assert labels == {"hardkuma.meaning": {"MEANING"}, "hardkuma.entities": {"ENTITY"}} and doc.ents == ()
    for selector, label in ((None, "MEANING"), ("entities", "ENTITY")):
        doc = pipeline_with(tmp_path / "two", selector=selector, rate=0.5)(SENTENCES[0])
        assert {span.label_ for span in doc.spans["hardkuma"]} == {label}


@pytest.mark.parametrize("selector", ["entities", "all"])
def test_entities_can_be_the_documents_own(selector: str, make_two: Callable, tmp_path: Path) -> None:
    make_two().save_pretrained(tmp_path / "two")
    nlp = pipeline_with(tmp_path / "two", selector=selector, rate=0.5, set_ents=True)
    doc = nlp(SENTENCES[0])
    group = doc.spans["hardkuma" if selector == "entities" else "hardkuma.entities"]
    assert [(ent.text, ent.label_) for ent in doc.ents] == [(span.text, "ENTITY") for span in group] != []
    assert nlp.get_pipe("hardkuma")(doc).ents == doc.ents, "annotated again it is the same"
    # What is there already stays; of spans that meet in one token (a URL) the first is taken.
    other = nlp.make_doc(TEXT)
    other.ents = [other.char_span(*span, label="PERSON", alignment_mode="expand") for span in [(0, 5)]]
    found = nlp.get_pipe("hardkuma")(other).ents
    assert [ent.label_ for ent in found if ent.start == 0] == ["PERSON"] and found[-1].label_ == "ENTITY"


def test_entities_need_their_selector(folder: Path) -> None:
    with pytest.raises(ValueError, match="set_ents needs the selector 'entities', got 'meaning'"):
        pipeline_with(folder, set_ents=True)
