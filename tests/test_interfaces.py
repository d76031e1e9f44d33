"""The same answer through every interface: 50 texts, the released head and a model of two selectors."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import hardkuma.common.models
import hardkuma.handler
from hardkuma import (
    GateClassificationPipeline,
    HardKumaConfig,
    HardKumaModel,
    ScoredText,
    TokenGatesPipeline,
    choose_backend,
    continues_batch,
    load_released,
    score_texts,
    surface_batch,
)
from hardkuma.__main__ import main
from hardkuma.apps.page.demo import MAX_CHARACTERS, Demo
from hardkuma.apps.page.html import show_text
from hardkuma.batch_hardkuma import token_roles
from hardkuma.encoder_hardkuma import frame_token_ids, special_token_ids
from hardkuma.evaluation.baselines import METHODS, SentenceEncoder
from hardkuma.scoring_hardkuma import Record, Windows, WordTokens, encodable
from hardkuma.words_hardkuma import WordIndex, find_words
from tests.conftest import SENTENCES, SMALL, several

LONG = "In {year} the engineers of {place} repaired the old bridge, although nobody had asked them to do so. "
TEXTS = [
    # names
    "Marie Curie moved from Warsaw to Paris in 1891.",
    "J. K. Rowling met Simon & Garfunkel at the Royal Albert Hall.",
    "Dr. Angela O'Neil's cousin works for McDonald's in Cork.",
    "the eiffel tower and angela merkel were both in the news on tuesday",
    "Skłodowska-Curie, Müller-Lüdenscheidt and D'Artagnan",
    "Apple fell sharply after the apple harvest failed.",
    "Yesterday Ngũgĩ wa Thiong'o spoke in Nairobi.",
    "Our flight from JFK to LHR was delayed by four hours.",
    # emoji
    "I ❤️ 👨\u200d👩\u200d👧 in 🇫🇷 and 🇧🇷 🙂",
    "🙂",
    "great job 👏🏽👏🏽 Lena!!! 🎉",
    "©️ 2020 Nintendo ™",
    # long, of several windows
    "".join(LONG.format(year=1900 + i, place=place) for i, place in enumerate(["Lyon", "Kobe", "Quito", "Fargo"] * 6)),
    "Kyiv " * 260,
    "very " * 130 + "Tallinn " + "long " * 130,
    "x" * 3000,
    "Nobody - nobody - nobody knew; " * 45 + "Samarkand.",
    # other scripts
    "東京タワーは1958年に建てられた。",
    "北京和上海之间的火车很快。",
    "القاهرة هي عاصمة مصر.",
    "می\u200cخواهم به تهران بروم",
    "Москва и Санкт-Петербург соединены железной дорогой.",
    "ירושלים של זהב, צה״ל",
    "दिल्ली में बहुत गर्मी है।",
    "กรุงเทพมหานครเป็นเมืองหลวง",
    "서울에서 부산까지",
    "Η Αθήνα είναι παλιά πόλη.",
    # nothing, and almost nothing
    "",
    " ",
    "\n\t  \r\n",
    "…",
    "a",
    "Paris",
    "[SEP] [PAD] [CLS] Oslo",
    # writing
    "THE QUICK BROWN FOX JUMPED OVER BARACK OBAMA",
    "NASA and the EU signed a treaty with IBM's lawyers",
    "my iPhone, your eBay account and the mRNA vaccine",
    "It costs $4,500 or 3.14 per m2; call 555-0199 at 10:30.",
    "Version 2.13.0 of 4x4 was built on 2020-02-29",
    "@ana_maria and @Tom met at #Carnival2024 #rio",
    "see https://example.org/a_b?c=1&d=2 or mail jo@example.com",
    "www.example.com/Index.html#Top",
    "New\nYork\r\nLos\u2028Angeles\nSão\tPaulo",
    "line one\n\nLine two, Berlin\n- item: Rome\n* item: Bonn",
    "cafe\u0301 Zu\u0308rich n\u0303andu\u0301 e\u0301",
    "A\u0301\u0302\u0303 stack of marks over Łódź",
    "half \ud83d of a pair in Madrid \udc00",
    "nul \x00 byte, \u200b zero width, \ufeff mark, soft\u00adhyphen in Graz",
    "\u202eright to left\u202c override near Basel",
    "“Don’t!” said Ana — “it’s Bo’s.”",
]
BATCH = 8  # windows of a batch: long and short ones together would be padding for the most part
Shown = tuple[int, int, float, bool]  # start, end, probability, selected
Answers = list[list[Shown] | None]  # None: the interface refuses this text, on purpose


def make_two() -> HardKumaModel:
    """Two selectors that differ in everything, on a tiny encoder of MiniLM's vocabulary."""
    from transformers import BertConfig

    torch.manual_seed(3)
    tokenizer = copy.deepcopy(load_released()[1])
    config = HardKumaConfig(
        encoder_config=BertConfig(**SMALL, vocab_size=len(tokenizer), max_position_embeddings=64),
        special_token_ids=special_token_ids(tokenizer),
        frame_token_ids=frame_token_ids(tokenizer),
        max_seq_length=64,
        selectors={
            "meaning": {
                "reads": ["state", "anchor", "pool_share", "leave_one_out", "isolated"],
                "unit": "word",
                "form_weight": 0.0,
            },
            "entities": {"reads": ["state", "norm"], "layer": [0.0, 0.5], "unit": "name", "form_weight": 0.5},
        },
    )
    model = HardKumaModel(config)
    with torch.no_grad():
        for name, parameter in model.encoder.named_parameters():
            if parameter.ndim == 2 and "norm" not in name.lower():
                parameter.mul_(6.0)  # so that context matters
        for selector in model.gate_head.selectors:
            selector.shapes.weight.mul_(6.0)
        model.gate_head.selectors[0].direct.weight.mul_(0.1)
        model.gate_head.surface_log_odds.normal_(std=2.0)
        model.gate_head.token_roles.copy_(token_roles(tokenizer, len(tokenizer)))
    model.tokenizer = tokenizer
    model.eval().build_isolated_table()
    return model


@dataclass(frozen=True)
class Case:
    """A model, how a selector of it is asked for, and whose gates are then expected of most interfaces."""

    model: HardKumaModel
    named: dict[str, str]
    selector: str

    @property
    def unit(self) -> str:
        return self.model.config.selectors[self.selector].unit


CASES = {
    "released": lambda: Case(load_released()[0], {}, "meaning"),
    "two": lambda: Case(make_two(), {}, "meaning"),
    "two-entities": lambda: Case(make_two(), {"selector": "entities"}, "entities"),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


@pytest.fixture(scope="module")
def scored(case: Case) -> list[ScoredText]:
    return score_texts(case.model, TEXTS, batch_size=BATCH, selector=case.selector)


@pytest.fixture(scope="module")
def expected(scored: list[ScoredText]) -> Answers:
    """By the model's own threshold."""
    return [shown(item.select()) for item in scored]


@pytest.fixture(params=[{}, {"rate": 0.3}], ids=["own", "rate"])
def options(request: pytest.FixtureRequest) -> dict[str, float]:
    return request.param


@pytest.fixture
def chosen(scored: list[ScoredText], options: dict[str, float]) -> Answers:
    """By the options."""
    return [shown(item.select(**options)) for item in scored]


def shown(record: Record) -> list[Shown]:
    return [(word["start"], word["end"], word["probability"], word["selected"]) for word in record["words"]]


def check(answers: Answers, expected: Answers, refused: Callable[[str], bool] = lambda text: False) -> None:
    assert len(answers) == len(expected) == len(TEXTS)
    for text, found, wanted in zip(TEXTS, answers, expected, strict=True):
        if refused(text):
            assert found is None, f"{text[:60]!r} was to be refused"
            continue
        assert found is not None and wanted is not None
        assert [row[:2] + row[3:] for row in found] == [row[:2] + row[3:] for row in wanted], text[:60]
        assert [row[2] for row in found] == pytest.approx([row[2] for row in wanted], abs=1e-5), text[:60]


def is_half_a_character(text: str) -> bool:
    return re.search("[\ud800-\udfff]", text) is not None


def test_the_texts_are_what_they_should_be(case: Case, scored: list[ScoredText]) -> None:
    assert len(set(TEXTS)) == len(TEXTS) == 50
    assert sorted(item.windows for item in scored)[-4:] >= [2, 2, 2, 3]
    rates = [item.select()["rate"] for item in scored if item.words and item.text != "a"]
    assert (min(rates) > 0 if case.unit == "word" else min(rates) == 0) and max(rates) > 0.3
    if case.unit == "word":
        assert scored[TEXTS.index("a")].select()["reason"] == "the text has no content word"
    if case.unit == "word":
        assert any(item.words and max(item.probabilities) <= item.threshold for item in scored), "one is selected anyway"
    short = [item for item in scored if len(item.text) < 200]
    plain = score_texts(case.model, [item.text for item in short], use_surface=False, selector=case.selector)
    moved = [
        one.probabilities != pytest.approx(other.probabilities, abs=1e-5) for one, other in zip(short, plain, strict=True)
    ]
    if case.unit == "word":
        assert not any(moved), "the weight of its surface view is 0"
    else:
        assert sum(moved) > 30, "the surface view makes a difference, so that an interface without it would be seen"


def test_both_selectors_differ() -> None:
    model = make_two()
    for texts in (TEXTS[:1], TEXTS[20:21]):
        one, other = (score_texts(model, texts, selector=name)[0].probabilities for name in ("meaning", "entities"))
        assert one != pytest.approx(other, abs=0.01)


def test_words_count(case: Case) -> None:
    """Tokens taken one by one give other answers: an interface that does not know words would be seen."""
    inputs = case.model.tokenizer([TEXTS[4]], return_tensors="pt")
    with torch.no_grad():
        one, other = (
            case.model(**inputs, continues=words, selector=case.selector).gate_probs
            for words in (None, torch.zeros_like(inputs["input_ids"]))
        )
    assert not torch.allclose(one, other, atol=1e-3)


def test_records(case: Case, expected: Answers) -> None:
    check([shown(record) for record in case.model.gate_records(TEXTS, batch_size=BATCH, **case.named)], expected)


def test_a_record_without_selected_words_says_why(case: Case) -> None:
    for text in ("", "…", " \n"):
        [record] = case.model.gate_records([text], **case.named)
        assert (record["words"], record["spans"], record["reason"]) == ([], [], "the text has no word")
    [record] = case.model.gate_records(["Paris"], threshold=1.0, **case.named)
    assert record["spans"] == [] and record["reason"] == "no word is more probable than 1"
    assert "reason" not in case.model.gate_records(["Paris"], rate=0.1, **case.named)[0]


def test_the_pipeline_of_gates(case: Case, options: dict[str, float], chosen: Answers) -> None:
    pipe = TokenGatesPipeline(case.model, batch_size=BATCH)
    check([shown(record) for record in pipe(TEXTS, **options, **case.named)], chosen)
    assert [record["reason"] for record in pipe(["", "…"], **options, **case.named)] == ["the text has no word"] * 2


def test_the_pipeline_of_token_classification(case: Case) -> None:
    """By default that of the entities."""
    model, names = case.model, case.model.config.names
    own = case.named.get("selector", "entities" if "entities" in names else names[0])
    # A word by itself: the likelier label. Whole names are what records have.
    expected = [
        [
            (start, end, value, value > item.threshold)
            for (start, end), value in zip(item.words, item.probabilities, strict=True)
        ]
        for item in score_texts(model, TEXTS, batch_size=BATCH, selector=own)
    ]
    classify = GateClassificationPipeline(model, batch_size=BATCH, **case.named)
    answers: Answers = []
    for text, tokens in zip(TEXTS, classify(TEXTS, ignore_labels=[]), strict=True):
        probabilities = [float(t["score"] if t["entity"] == "ENTITY" else 1 - t["score"]) for t in tokens]
        rows: list[Shown] = []
        for start, end in find_words(text):
            inside = [i for i, token in enumerate(tokens) if token["start"] < end and start < token["end"]]
            largest = max((probabilities[i] for i in inside), default=0.0)
            rows.append((start, end, largest, any(tokens[i]["entity"] == "ENTITY" for i in inside)))
        answers.append(rows)
    check(answers, expected)
    # By words: the groups of `max` cover the selected words, and no other.
    for text, groups, words in zip(TEXTS, classify(TEXTS, aggregation_strategy="max"), expected, strict=True):
        covered = [any(g["start"] <= start and end <= g["end"] for g in groups) for start, end, _, _ in words]
        assert covered == [selected for _, _, _, selected in words], text[:60]


def test_the_command(
    case: Case,
    options: dict[str, float],
    chosen: Answers,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardkuma.common.models, "load_model", lambda name=None, device=None: case.model)
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    words = [f"--{name}={value}" for name, value in {**options, **case.named}.items()]
    assert main(["gates", "--file", str(file), "--format", "jsonl", "--batch-size", str(BATCH), *words]) == 0
    check([shown(json.loads(line)) for line in capsys.readouterr().out.split("\n")[:-1]], chosen)


@pytest.mark.parametrize("case", ["released"], indirect=True)  # tracing takes seconds
def test_the_command_and_the_pipeline_by_onnxruntime(
    case: Case,
    expected: Answers,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In fp32, which is the same to rounding. In tests/apps/export, test_backends.py has int8 and the other selector, and
    test_onnx.py the graphs of all selectors, which give what `test_tensors` makes words of."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder = tmp_path_factory.mktemp("onnx")
    monkeypatch.setenv("HF_HOME", str(folder / "cache"))
    monkeypatch.setattr("hardkuma.apps.export.backends.has_int8_instructions", lambda: False)
    monkeypatch.setattr(hardkuma.common.models, "load_model", lambda name=None, device=None: case.model)
    file = folder / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    words = ["--backend", "onnx", "--batch-size", str(BATCH)]
    threads = torch.get_num_threads()
    assert main(["gates", "--file", str(file), "--format", "jsonl", *words]) == 0
    torch.set_num_threads(threads)
    check([shown(json.loads(line)) for line in capsys.readouterr().out.split("\n")[:-1]], expected)
    backend = choose_backend(case.model, "onnx", case.selector)
    assert (backend.name, backend.precision) == ("onnx", "fp32")
    pipe = TokenGatesPipeline(case.model, batch_size=BATCH, backend=backend.gates)
    check([shown(record) for record in pipe(TEXTS)], expected)


def test_spacy(case: Case, expected: Answers) -> None:
    spacy = pytest.importorskip("spacy")
    from hardkuma.apps.spacy_component import HardKumaComponent

    # spaCy keeps texts as UTF-8, which cannot hold half a character.
    docs = list(map(spacy.blank("xx"), map(encodable, TEXTS)))
    assert [doc.text for doc in docs] == list(map(encodable, TEXTS))
    for doc, words in zip(HardKumaComponent(case.model, batch_size=BATCH, **case.named).pipe(docs), expected, strict=True):
        for token in doc:
            touching = [row for row in words if row[0] < token.idx + len(token) and token.idx < row[1]]
            assert token._.gate == pytest.approx(max((row[2] for row in touching), default=0.0), abs=1e-5)
            assert token._.rationale == any(row[3] for row in touching)
        spans = [(span.start_char, span.end_char) for span in doc.spans["hardkuma"]]
        assert all(any(start <= row[0] and row[1] <= end for start, end in spans) for row in words if row[3])
        assert all(any(start <= row[0] < end for row in words if row[3]) for start, end in spans)


def test_the_handler(case: Case, options: dict[str, float], chosen: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardkuma.handler, "pipeline", lambda task, **_: TokenGatesPipeline(case.model, batch_size=BATCH))
    handler = hardkuma.handler.EndpointHandler("folder")
    sent = [text for text in TEXTS if not is_half_a_character(text)]
    answers = iter(handler({"inputs": sent, "parameters": {**options, **case.named}}))
    check([None if is_half_a_character(text) else shown(next(answers)) for text in TEXTS], chosen, is_half_a_character)
    for text in set(TEXTS) - set(sent):
        with pytest.raises(hardkuma.handler.RequestError, match="half of a surrogate pair"):
            handler({"inputs": text})


def test_the_demo(case: Case, scored: list[ScoredText]) -> None:
    demo, found = Demo(case.model, **case.named), []
    assert max(map(len, TEXTS)) <= MAX_CHARACTERS
    for text in TEXTS:
        if text.strip():
            found.append(demo.score(text))
        else:
            found.append(None)
            with pytest.raises(ValueError, match="Type or paste a text first"):
                demo.score(text)
    for options in ({}, {"rate": 0.3}):
        answers = [None if item is None else shown(item.select(**options)) for item in found]
        check(answers, [shown(item.select(**options)) for item in scored], lambda text: not text.strip())
    # The page shows a rate, of which it makes a fraction.
    record = scored[0].select(rate=0.3)
    assert (
        show_text(demo.records(found[0].text, percent=30))[1].count("<td>selected</td>")
        == sum(word["selected"] for word in record["words"])
        > 0
    )


def test_the_benchmark(case: Case, expected: Answers) -> None:
    # The benchmark's rows ask for entities where they are asked for nothing: here the selector is named.
    results = METHODS["gates_surface"].scores(SentenceEncoder.from_model(case.model), TEXTS, selector=case.selector)
    answers: Answers = []
    for result in results:
        rows = zip(result.words, result.scores, result.selected, strict=True)
        answers.append([(start, end, score, selected) for (start, end), score, selected in rows])
    check(answers, expected)


def joined(texts: list[str], case: Case, run: Callable[[dict[str, torch.Tensor]], torch.Tensor]) -> Iterator[Any]:
    """Word probabilities from an interface that takes tensors: windows, word forms and words by our own functions."""
    model = case.model
    windows = Windows.cut(model.tokenizer, [encodable(text) for text in texts], model.max_length)
    values = torch.zeros(len(windows.starts))
    for tokens, inside in windows.batches(BATCH):
        rows = windows.numbers[tokens[:, 0]]
        offsets = torch.stack([windows.starts[tokens], windows.ends[tokens]], -1) * inside[..., None]
        owners = [texts[i] for i in windows.owners[rows].tolist()]
        ids = torch.where(inside, windows.inputs["input_ids"][tokens], 0)
        inputs = {"input_ids": ids, "attention_mask": inside.long(), "surface_ids": surface_batch(owners, offsets)}
        inputs["continues"] = continues_batch(owners, offsets)
        values[tokens[inside]] = run(inputs)[inside]
    words = [find_words(text) for text in texts]
    index = WordIndex(words, [len(text) for text in texts])
    of_words = WordTokens(windows, index).values(values).tolist()
    for text, row, first in zip(texts, words, index.firsts, strict=False):
        found = of_words[first : first + len(row)]
        item = score_texts(model, [text], selector=case.selector)[0]
        assert item.words == row
        yield shown(replace(item, probabilities=found).select())


@torch.no_grad()
def test_tensors(case: Case, expected: Answers) -> None:
    """`model(**inputs, surface_ids=...)`, for whoever keeps the texts and their offsets."""
    for options in ({"selector": case.selector}, {}):
        run = partial(case.model, return_embeddings=False, **options)
        check(list(joined(TEXTS, case, lambda inputs, run=run: of_case(run(**inputs), case))), expected)


def of_case(output: Any, case: Case) -> torch.Tensor:
    """What is asked for alone, or its part of what all selectors give, side by side."""
    probs = output.gate_probs
    return probs if probs.ndim == 2 else probs[:, case.model.config.find_selector(case.selector)]


@torch.no_grad()
def test_sentence_embeddings(case: Case) -> None:
    """What sentence-transformers hands on: of one selector, by its name."""
    inputs = case.model.tokenizer(TEXTS[:8], padding=True, return_tensors="pt")
    tensors = inputs["input_ids"], inputs["attention_mask"]
    for options in ({}, {"rate": 0.3}):
        out = case.model(*tensors, selector=case.selector, **options)
        for embedding in ("rationale", "complement"):
            found = case.model.sentence_features(*tensors, embedding=embedding, **options, **case.named)["embedding"]
            assert torch.allclose(found, out[f"{embedding}_embedding"], atol=1e-5)


# ---- selectors without names: one at a time, the first by default -----------------------------------------------------


@pytest.mark.parametrize("selector", [None, "selector_0", "selector_1"])
def test_every_interface_shows_one_selector(
    selector: str | None,
    make_model: Callable[..., HardKumaModel],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model(selectors=several(2))
    texts = [*SENTENCES, " ".join(SENTENCES)]
    named = {} if selector is None else {"selector": selector}
    words = [f"--{name}={value}" for name, value in named.items()]
    expected = [shown(item.select()) for item in score_texts(model, texts, selector=selector or "selector_0")]
    other = "selector_0" if selector == "selector_1" else "selector_1"
    others = [shown(item.select()) for item in score_texts(model, texts, selector=other)]
    assert [row[2] for row in expected[0]] != pytest.approx([row[2] for row in others[0]], abs=1e-3)
    monkeypatch.setattr(hardkuma.common.models, "load_model", lambda name=None, device=None: model)
    monkeypatch.setattr(hardkuma.handler, "pipeline", lambda task, **_: TokenGatesPipeline(model))

    def same(answers: Answers) -> None:
        for found, wanted in zip(answers, expected, strict=True):
            assert [row[:2] + row[3:] for row in found] == [row[:2] + row[3:] for row in wanted]
            assert [row[2] for row in found] == pytest.approx([row[2] for row in wanted], abs=1e-5)

    same([shown(record) for record in model.gate_records(texts, **named)])
    same([shown(record) for record in TokenGatesPipeline(model, **named)(texts)])
    same([shown(record) for record in hardkuma.handler.EndpointHandler("")({"inputs": texts, "parameters": named})])
    same([shown(Demo(model, **named).score(text).select()) for text in texts])
    tokens = GateClassificationPipeline(model, threshold=0.0, **named)(texts[0], aggregation_strategy="none")
    by_start = {token["start"]: float(token["score"]) for token in tokens}
    assert [by_start[row[0]] for row in expected[0]] == pytest.approx([row[2] for row in expected[0]], abs=1e-5)
    scores = METHODS["gates"].scores(SentenceEncoder.from_model(model), texts, **named)
    assert [item.scores for item in scores] == [pytest.approx([row[2] for row in rows], abs=1e-5) for rows in expected]
    assert main(["gates", "--format", "jsonl", *words, *texts]) == 0
    same([shown(json.loads(line)) for line in capsys.readouterr().out.split("\n")[:-1]])
    assert main(["pair", "--format", "json", *words, texts[0], texts[1]]) == 0
    side = json.loads(capsys.readouterr().out)["a"]
    assert [word["probability"] for word in side["words"]] == pytest.approx([row[2] for row in expected[0]], abs=1e-5)


def test_exports_and_benchmarks_of_one_selector(
    make_model: Callable[..., HardKumaModel],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hardkuma.evaluation.benchmark.report_html", lambda *arguments: "")  # drawing takes longest
    model = make_model(selectors={"meaning": {}, "entities": {}})
    model.save_pretrained(tmp_path / "model")
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(SENTENCES * 4))
    shares = []
    for selector, option in ((0, ["--selector", "meaning"]), (1, [])):  # the entities by default
        out = tmp_path / f"out{selector}"
        options = ["--data", str(data), "--quiet", *option]
        assert main(["export", "native", "--model", str(tmp_path / "model"), "--output", str(out), *options]) == 0
        inputs = model.tokenizer(SENTENCES * 4, padding=True, return_tensors="pt")
        with torch.no_grad():
            probs = model(**inputs).gate_probs[::5, selector]
        selected = float((probs > 0.5).sum() / (probs > 0).sum())
        reported = json.loads((out / "agreement.json").read_text())
        assert reported["gates"]["selected_by_gates"] == pytest.approx(selected, abs=1e-4)
        assert reported["selector"] == model.config.names[selector]
        assert f"(those of its selector `{model.config.names[selector]}`)" in (out / "README.md").read_text()
        shares.append(selected)
    assert shares[0] != shares[1]
    labelled = tmp_path / "x.conll"
    labelled.write_text("marie\tB-PER\ncurie\tI-PER\nmoved\tO\nto\tO\nparis\tB-LOC\n")
    values = []
    for selector, option in (("meaning", ["--selector", "meaning"]), ("entities", ["--selector", "entities"])):
        options = ["--methods", "gates", "--bootstrap", "1", "--quiet", *option]
        where = ["--data", str(labelled), "--model", str(tmp_path / "model"), "--output", str(tmp_path / "runs")]
        assert main(["benchmark", *where, *options]) == 0
        result = json.loads((tmp_path / "runs" / "results" / "x" / "gates.json").read_text())
        expected = score_texts(model, ["marie curie moved to paris"], selector=selector)[0].probabilities
        assert result["settings"]["selector"] == selector
        assert result["examples"][0]["scores"] == pytest.approx(expected, abs=1e-5)
        values.append(expected)
    assert values[0] != pytest.approx(values[1], abs=1e-3)
    capsys.readouterr()


@pytest.mark.parametrize("words", [["gates", "paris"], ["gates", "--output", "{}/out.jsonl", "paris"], ["pair", "a", "b"]])
def test_a_selector_that_is_not_there(
    words: list[str],
    make_model: Callable[..., HardKumaModel],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model()
    monkeypatch.setattr(hardkuma.common.models, "load_model", lambda name=None, device=None: model)
    assert main([*(word.format(tmp_path) for word in words), "--selector", "entities"]) == 1
    assert "no selector 'entities': this model has 'meaning'." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="no selector 'entities': this model has 'meaning'"):
        Demo(model, selector="entities")
