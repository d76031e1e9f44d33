"""The objective `form`: what form teaches, what it leaves out, and what it needs of a text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hardkuma.data import bundled_texts
from hardkuma.modeling_hardkuma import HardKumaModel
from hardkuma.training.criterion import mean_rate
from hardkuma.training.objectives import form as module
from hardkuma.training.objectives.form import Form, Vocabulary, _words, count_capitals, word_opinions
from hardkuma.training.run import Run
from hardkuma.training.store import StateStore
from hardkuma.words_hardkuma import SURFACE_CLASSES, find_words, word_classes
from tests.training.conftest import build_store, make_run

ROWS = np.arange(64)  # enough where the rate of these very sentences is meant
TRAIN = {"objective": "form", "epochs": 3}
ENTITIES = {"layer": 4, "target_rate": 0.2, "unit": "name", "reads": ["state"]}


def fresh_model(**config: object) -> HardKumaModel:
    torch.manual_seed(0)
    selectors = {"entities": {**ENTITIES, **config}}
    encoder = "sentence-transformers/all-MiniLM-L6-v2"
    return HardKumaModel.from_encoder(encoder, selectors=selectors, concentration_min=0.1).eval()


def form(run: Run) -> Form:
    (objective,) = run.objectives
    assert isinstance(objective, Form)
    return objective


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    texts = list(bundled_texts())[:400]
    return build_store(fresh_model(), texts, tmp_path_factory.mktemp("store"), "float16")


def opinions(text: str) -> dict[str, float]:
    words = find_words(text)
    classes = torch.tensor(word_classes(text, words))
    no = torch.zeros(len(words), dtype=torch.bool)
    return {text[a:b]: float(value) for (a, b), value in zip(words, word_opinions(classes, no, no), strict=True)}


def test_a_capital_inside_a_sentence_teaches() -> None:
    found = opinions("Yesterday we met Anna in Rome with NATO and @bob near 1901")
    assert found == {
        **dict.fromkeys(("we", "met", "in", "with", "and", "near", "1901"), -1.0),
        **dict.fromkeys(("Anna", "Rome"), 1.0),
        **dict.fromkeys(("Yesterday", "NATO", "@bob"), 0.0),
    }


@pytest.mark.parametrize(
    "text",
    ["The Old Man And The Sea", "THE OLD MAN and THE SEA", "nothing here has a capital letter at all"],
    ids=["title", "shouted", "lower case"],
)
def test_some_sentences_teach_nothing(text: str) -> None:
    assert set(opinions(text).values()) == {0.0}


def test_days_and_months_are_no_names(tmp_path: Path) -> None:
    model = fresh_model()
    store = build_store(model, ["RT Anna said on Friday that Rome is hot in MAY"], tmp_path, None)
    vocabulary = Vocabulary.read(model.tokenizer, model.config.vocab_size)
    words = next(iter(_words(store.read(np.arange(1), model), vocabulary, nouns=False)))
    starts = model.tokenizer.convert_ids_to_tokens(store.tokens([0])["input_ids"][0][words.firsts])
    found = dict(zip(starts, words.opinions.tolist(), strict=True))
    assert found["friday"] == found["may"] == found["rt"] == -1.0
    assert found["rome"] == found["anna"] == 1.0


def test_words_of_a_stored_sentence(tmp_path: Path) -> None:
    model = fresh_model()
    text = 'He said: Paris, "Berlin" or Windows10 and 4,500 in Kathmandu.'
    store = build_store(model, [text], tmp_path, None)
    vocabulary = Vocabulary.read(model.tokenizer, model.config.vocab_size)
    words = next(iter(_words(store.read(np.arange(1), model), vocabulary, nouns=False)))
    ids = store.tokens([0])["input_ids"][0]
    starts = model.tokenizer.convert_ids_to_tokens(ids[words.firsts])
    found = dict(zip(starts, words.opinions.tolist(), strict=True))
    # After a colon or a quotation mark, and with letters and digits: nothing. A thousand's comma does not part a number.
    assert found["paris"] == found["berlin"] == found["windows"] == 0.0
    assert found["4"] == found["said"] == found["or"] == -1.0 and "500" not in starts
    assert found[model.tokenizer.tokenize("Kathmandu")[0]] == 1.0
    assert len(words.types) == len(words.firsts)


def test_learns_names_from_form_but_not_by_form(store: StateStore) -> None:
    run = make_run(fresh_model(), TRAIN, store, np.arange(400))
    assert form(run).fit(run)
    found, report = form(run).outcome, form(run).report(run)
    assert 0 < found.names < found.words and not found.nouns and f"{found.names:,}" in report.paragraph
    assert "goes by" not in report.paragraph and report.entries[0]["words"] == found.words
    run.model.config.selectors["entities"].backoff = 0.5
    assert "it goes by the gates of `meaning`" in form(run).report(run).paragraph
    run.model.config.selectors["entities"].backoff = 0.0
    text = "yesterday the old ferry from stockholm brought anna larsson and her tired dog back to helsinki"
    gates = {w["word"]: w["probability"] for w in run.model.gate_records([text])[0]["words"]}
    names, others = ("stockholm", "anna", "larsson", "helsinki"), ("the", "from", "and", "her", "back", "to")
    assert min(gates[name] for name in names) > max(gates[other] for other in others)
    assert float(mean_rate(run.model, store, np.arange(400))[0]) == pytest.approx(0.2, rel=0.05), "at its target rate"


def test_is_the_same_twice_and_every_setting_makes_a_difference(store: StateStore) -> None:
    weights = []
    for train in (TRAIN, TRAIN, {**TRAIN, "epochs": 2}, {**TRAIN, "learning_rate": 0.01}):
        run = make_run(fresh_model(), train, store, ROWS, seed=3)
        assert form(run).fit(run)
        weights.append(run.model.gate_head.selectors[0].hidden.weight)
    assert torch.equal(*weights[:2]) and not any(torch.equal(weights[0], other) for other in weights[2:])


def check(texts: list[str], **config: object) -> None:
    run = make_run(fresh_model(**config), TRAIN)
    run._labelled = texts, []  # what reading the files would give
    form(run).check(run)


def test_text_without_capitals_is_a_true_error() -> None:
    with pytest.raises(
        ValueError, match=r"without capitals inside of sentences \(no word of it has one\): selectors\.entities \(obj"
    ):
        check(["Rain fell on the old town.", "snow fell on the river."])
    with pytest.raises(ValueError, match=r"leave the selector out \(--selectors.entities null\)"):
        check(["THE OLD MAN AND THE SEA", "She said: Paris"])


def test_few_capitals_are_a_warning_with_their_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """400 sentences gave gates of "The", "on" and "a", and nobody was told."""
    texts = list(bundled_texts())[:400]
    found = count_capitals(texts, 10**6).capitals
    check(texts)
    assert f"warning: {found:,} words of this text have a capital inside a sentence" in capsys.readouterr().err
    monkeypatch.setattr(module, "ENOUGH", found)
    check(texts)
    assert "warning" not in capsys.readouterr().err


def test_capitals_are_counted_as_the_fit_counts_them(store: StateStore) -> None:
    texts = list(bundled_texts())[:400]
    model = fresh_model()
    vocabulary = Vocabulary.read(model.tokenizer, model.config.vocab_size)
    by_tokens = module._count_words(model, store, np.arange(400), vocabulary, nouns=False)[2]
    assert count_capitals(texts, 10**6).capitals == pytest.approx(by_tokens, rel=0.01), "but for words that are cut off"
    assert 7 <= count_capitals(texts, 7).beside < 20, "no further than is asked for"


GERMAN = [
    "Gestern fuhr der alte Zug mit der Lehrerin und ihrem Hund nach Norden.",
    "Im Garten steht ein Baum, und unter dem Baum schläft die Katze der Nachbarin.",
    "Am Abend sprach Angela Merkel mit dem Bürgermeister über die neue Brücke.",
    "Er hat das Buch, die Zeitung und den Brief auf den Tisch gelegt.",
]


def test_capitals_that_mark_nouns_are_found_out(capsys: pytest.CaptureFixture[str]) -> None:
    check(GERMAN * 60)
    said = capsys.readouterr().err
    assert "capitals mark nouns here, as in German, not names" in said and "capital beside another" in said
    check(list(bundled_texts())[:400])
    assert "nouns" not in capsys.readouterr().err
    with pytest.raises(ValueError, match="its script has none"):
        check(["北京是中国的首都。", "我在 Google 工作。"] * 10)


def test_where_capitals_mark_nouns_a_name_is_two_of_them(tmp_path: Path) -> None:
    model = fresh_model()
    store = build_store(model, GERMAN * 25, tmp_path, "float16")
    vocabulary = Vocabulary.read(model.tokenizer, model.config.vocab_size)
    words = next(iter(_words(store.read(np.array([2]), model), vocabulary, nouns=True)))
    starts = model.tokenizer.convert_ids_to_tokens(store.tokens([2])["input_ids"][0][words.firsts])
    found = dict(zip(starts, words.opinions.tolist(), strict=True))
    assert found["angela"] == 1.0 and found["der" if "der" in found else "mit"] == -1.0
    assert [value for value in found.values() if value > 0] == [1.0, 1.0], "and no noun"
    run = make_run(model, TRAIN, store, np.arange(100))
    form(run).nouns = True
    assert form(run).fit(run) and form(run).outcome.nouns and form(run).outcome.names == 50
    assert "two of them side by side" in form(run).report(run).paragraph


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"selectors\.entities reads 'form', which is what objective form fits it to"):
        check(["We met Anna."], reads=["state", "form"])
    with pytest.raises(ValueError, match="objective form trains gates of unit word or name, got unit 'token'"):
        check(["We met Anna."], unit="token")


def test_stored_states_of_an_inner_layer_give_the_same_gates(store: StateStore) -> None:
    model = fresh_model()
    batch = store.fetch(np.arange(8))
    encoded = batch.pop("encoded")
    with torch.no_grad():
        near = model(**batch, encoded=encoded, return_embeddings=False).gate_probs
        exact = model(**batch, return_embeddings=False).gate_probs
    assert torch.allclose(near, exact, atol=2e-3)  # half-precision store
    with pytest.raises(ValueError, match="a selector reads it, but encoded has no 'layer_states'"):
        model(**batch, encoded={"states": encoded["states"]})


def test_every_class_is_decided() -> None:
    """A new class of written form must be given a place here."""
    silent = {"unknown", "initial_start", "capitals", "single_capital", "mixed", "caseless", "handle"}
    no = torch.zeros(3, dtype=torch.bool)
    lower, inside = (SURFACE_CLASSES.index(name) for name in ("lower", "initial_inside"))
    for number, name in enumerate(SURFACE_CLASSES):
        value = float(word_opinions(torch.tensor([inside, lower, number]), no, no)[2])
        assert (value == 0) == (name in silent)
