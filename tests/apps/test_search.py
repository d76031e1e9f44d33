"""Search with reasons: the same passages as by hand, folders that are whole or refused, the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hardkuma import HardKumaModel, explain_pair
from hardkuma.__main__ import main
from hardkuma.apps import search
from hardkuma.apps.reading import embed_anchors
from hardkuma.apps.search import Match, Passage, SearchIndex, read_passages

TEXTS = [
    "Rain fell all night and flooded the cellar.",
    "He sold his old car to a neighbour.",
    "She sings in a choir on Mondays.",
    "The cellar was under water after the storm.",
]
QUESTION = "Why is there water in the cellar?"


@pytest.fixture
def folder(minilm: HardKumaModel, tmp_path: Path) -> Path:
    SearchIndex.build(minilm, [Passage(text, "notes.txt", i) for i, text in enumerate(TEXTS, 1)]).save(tmp_path / "index")
    return tmp_path / "index"


def test_nearest_first_with_the_words_that_carry(minilm: HardKumaModel, folder: Path) -> None:
    vectors = embed_anchors(minilm, [QUESTION, *TEXTS])
    cosines = (vectors[1:] @ vectors[0]).tolist()
    matches = SearchIndex.load(folder).search(minilm, QUESTION, number=3)
    order = sorted(range(4), key=lambda i: -cosines[i])[:3]
    assert [match.passage for match in matches] == [Passage(TEXTS[i], "notes.txt", i + 1) for i in order]
    assert [match.similarity for match in matches] == pytest.approx([cosines[i] for i in order], abs=1e-5)
    assert {order[0], order[1]} == {0, 3} and all("cellar" in match.words for match in matches[:2])
    expected = explain_pair(minilm, QUESTION, matches[0].passage.text)
    words = [(word["word"], word["carries"], pytest.approx(word["fall"], abs=1e-5)) for word in expected["b"]["words"]]
    assert matches[0].pair is not None and matches[0].pair["explained"] == expected["explained"]
    assert [(word["word"], word["carries"], word["fall"]) for word in matches[0].pair["b"]["words"]] == words
    assert matches[2].pair is not None and not matches[2].pair["explained"] and matches[2].words == []
    plain = SearchIndex.load(folder).search(minilm, QUESTION, number=9, explain=False)
    assert len(plain) == 4 and plain[0].pair is None and plain[0].words == []


def test_what_is_no_text_is_named(minilm: HardKumaModel, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"got one string; wrap it: \[text\]"):
        SearchIndex.build(minilm, "Rain fell.")
    with pytest.raises(ValueError, match="must be texts or Passage, got a int: 3"):
        SearchIndex.build(minilm, ["Rain fell.", 3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"question must be a text \(str\), got a NoneType"):
        SearchIndex.load(folder).search(minilm, None)  # type: ignore[arg-type]


def test_an_index_is_refused_where_it_is_damaged_or_foreign(
    minilm: HardKumaModel, make_model: Callable, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="made with an encoder whose fingerprint is"):
        SearchIndex.load(folder).search(make_model(), QUESTION)
    with pytest.raises(FileNotFoundError, match=r"is no index .* --build FILE"):
        SearchIndex.load(tmp_path)
    record = (folder / "index.json").read_text()
    for content, complaint in (
        ("{", "cannot be used"),
        ("[]", "cannot be used"),
        ("{}", "'format'"),
        (record.replace("index-1", "index-9"), "its format is 'hardkuma-index-9'"),
        (record.replace('"passages.jsonl"', '"../secret"'), "does not name the files and the encoder of an index"),
        (json.dumps(json.loads(record) | {"digests": {}}), "does not name the files and the encoder of an index"),
        (json.dumps(json.loads(record) | {"encoder": 3}), "does not name the files and the encoder of an index"),
    ):
        (folder / "index.json").write_text(content)
        with pytest.raises(ValueError, match=complaint):
            SearchIndex.load(folder)
    (folder / "index.json").write_text(record)
    whole = (folder / "vectors.npy").read_bytes()
    for name in ("vectors.npy", "passages.jsonl"):
        (folder / name).write_bytes((folder / name).read_bytes()[:-3])
        with pytest.raises(ValueError, match=f"{name} is not what was written"):
            SearchIndex.load(folder)
        (folder / "vectors.npy").write_bytes(whole)


@pytest.mark.parametrize("change", [{"row": "\x1b[2J"}, {"source": 3}, {"text": None}, {"colour": "red"}])
def test_a_passage_is_what_it_says(change: dict[str, object], folder: Path) -> None:
    """A row that is no number went to the terminal as it was."""
    lines = (folder / "passages.jsonl").read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | change)
    (folder / "passages.jsonl").write_text("\n".join(lines) + "\n")
    record = json.loads((folder / "index.json").read_text())
    record["digests"]["passages.jsonl"] = search._digest(folder / "passages.jsonl")
    (folder / "index.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="cannot be used"):
        SearchIndex.load(folder)


def test_a_similarity_is_at_most_one(minilm: HardKumaModel) -> None:
    vectors = search.embed_anchors(minilm, ["x"]).numpy() * np.float32(1 + 1e-6)  # what rounding may leave
    made = SearchIndex([search.Passage("x")], vectors, minilm.encoder_fingerprint())
    assert made.search(minilm, "x", explain=False)[0].similarity == 1.0


def test_an_index_is_refused_when_the_encoders_weights_have_changed(make_model: Callable) -> None:
    model = make_model()
    made = SearchIndex.build(model, TEXTS)
    assert len(made.search(model, QUESTION, explain=False)) == 4
    parameter = next(model.encoder.parameters())
    with torch.no_grad():
        parameter.add_(0.1)
    with pytest.raises(ValueError, match="made with an encoder whose fingerprint is"):
        made.search(model, QUESTION)
    assert len(SearchIndex.build(model, TEXTS).search(model, QUESTION, explain=False)) == 4


def test_a_folder_of_something_else_is_not_overwritten(minilm: HardKumaModel, folder: Path, tmp_path: Path) -> None:
    made = SearchIndex.build(minilm, ["one text"])
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"x")
    with pytest.raises(FileExistsError, match="not an index"):
        made.save(tmp_path / "photos")
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["a.jpg"]
    made.save(folder)  # an index is replaced
    assert [passage.text for passage in SearchIndex.load(folder).passages] == ["one text"]
    with pytest.raises(ValueError, match="no passage to index"):
        SearchIndex.build(minilm, [])


def test_many_passages_are_searched_by_faiss(
    minilm: HardKumaModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(search, "EXACT_LIMIT", 100)
    rows = np.random.default_rng(0).normal(size=(300, 384)).astype("float32")
    monkeypatch.setattr(search, "embed_anchors", lambda model, texts, size=32: embed_rows(rows, texts))
    made = SearchIndex.build(minilm, [str(i) for i in range(300)])
    made.save(tmp_path / "big")
    assert (tmp_path / "big" / "vectors.faiss").is_file()
    again = SearchIndex.load(tmp_path / "big")
    record = json.loads((tmp_path / "big" / "index.json").read_text())
    faiss = search.require("faiss", "search")
    faiss.write_index(faiss.IndexFlatIP(384), str(tmp_path / "big" / "vectors.faiss"))  # of no vector at all
    record["digests"]["vectors.faiss"] = search._digest(tmp_path / "big" / "vectors.faiss")
    (tmp_path / "big" / "index.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="holds 0 vectors of 384 numbers"):
        SearchIndex.load(tmp_path / "big")
    found = [again.search(minilm, str(i), number=1, explain=False)[0] for i in range(50)]
    assert [match.passage.text for match in found] == [str(i) for i in range(50)]
    assert [match.similarity for match in found] == pytest.approx([1.0] * 50, abs=1e-4)


def embed_rows(rows: np.ndarray, texts: list[str]) -> object:
    return torch.nn.functional.normalize(torch.from_numpy(rows[[int(text) for text in texts]]), dim=-1)


def test_long_rows_are_cut_between_sentences(tmp_path: Path) -> None:
    (tmp_path / "long.jsonl").write_text(json.dumps({"body": "This sentence has just six words. " * 40}) + "\n")
    passages = list(read_passages([tmp_path / "long.jsonl"], column="body"))
    assert [len(passage.text.split()) for passage in passages] == [96, 96, 48]
    assert {(passage.source, passage.row) for passage in passages} == {("long.jsonl", 1)}


def test_the_command_refuses_a_folder_of_something_else_before_it_encodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hardkuma.common.models.load_model", lambda *_: pytest.fail("a model was loaded"))
    (tmp_path / "notes.txt").write_text("\n".join(TEXTS))
    for target in (tmp_path, tmp_path / "notes.txt"):
        assert main(["search", str(target), "--build", str(tmp_path / "notes.txt"), "--quiet"]) == 1
        assert f"{target} is not an index (no index.json in it)" in capsys.readouterr().err


def test_what_no_terminal_should_get_is_shown_as_a_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = b"a\x1b[2J\xff.jsonl".decode(errors="surrogateescape")
    (tmp_path / name).write_text('{"text": "The cellar \\ud83d was \\u001b[2J under water."}\n')
    assert main(["search", str(tmp_path / "index"), "--build", str(tmp_path / name), "--quiet"]) == 0
    for words in ([], ["--format", "jsonl"]):
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert main(["search", str(tmp_path / "index"), QUESTION, *words]) == 0
        shown = capsys.readouterr().out
        shown.encode()  # half a character cannot be
        assert "\x1b[2J" not in shown and shown.count("\ufffd") >= 2
        if not words:
            assert "a\ufffd[2J\ufffd.jsonl, row 1" in shown


def test_a_match_shows_itself_in_a_line() -> None:
    side = {"words": [{"word": "rain", "carries": True}, {"word": "fell", "carries": False}]}
    match = Match(Passage("rain fell " * 40), 0.51234, {"explained": True, "b": side})
    assert repr(match) == f"Match(0.512, '{('rain fell ' * 6)[:59]}…', words=['rain'])"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("\n".join(TEXTS))
    folder = str(tmp_path / "index")
    assert main(["search", folder, "--build", str(tmp_path / "notes.txt"), "--quiet"]) == 0
    assert "4 passages indexed" in capsys.readouterr().err
    assert main(["search", folder, QUESTION, "--number", "4", "--all"]) == 0
    shown = capsys.readouterr().out
    assert "[cellar]" in shown and "notes.txt, row 4" in shown and "unrelated texts may have up to" in shown
    assert shown.count("notes.txt, row") == 4
    for words in ([], ["--no-words"]):
        assert main(["search", folder, QUESTION, *words]) == 0
        near = capsys.readouterr()
        assert "cellar" in near.out and "unrelated" not in near.out + near.err and 0 < near.out.count("notes.txt, row") < 4
        assert main(["search", folder, "Why do prime numbers matter?", *words]) == 0
        none = capsys.readouterr()
        assert none.out.count("notes.txt, row") == 1 and "nothing fits well (unrelated texts may have up to" in none.err
        assert none.err.endswith("; this is the nearest, --all shows more.\n")
    assert main(["search", folder, QUESTION, "--format", "jsonl", "--number", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"] in TEXTS and "cellar" in found["words"] and found["explained"] is True
    (tmp_path / "index" / "vectors.npy").write_bytes(b"")
    assert main(["search", folder, QUESTION]) == 1
    assert "vectors.npy is not what was written" in capsys.readouterr().err


def test_questions_and_options_in_any_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("\n".join(TEXTS))
    folder, file = str(tmp_path / "index"), str(tmp_path / "notes.txt")
    assert main(["search", folder, "--number", "1", QUESTION, "--quiet", "--no-words", "--build", file]) == 0
    asked = capsys.readouterr().out
    assert asked.count("notes.txt, row") == 1
    assert main(["search", folder, "--no-words", "--number", "1", QUESTION]) == 0
    assert capsys.readouterr().out == asked
    assert main(["search", folder, "--build", file, QUESTION]) == 1
    assert f"{QUESTION}: no such file" in (said := capsys.readouterr().err) and "a question goes before --build" in said
    assert main(["search", file, QUESTION]) == 1
    assert f"is a file, not an index; make one of it: hardkuma search INDEX --build {file}" in capsys.readouterr().err
