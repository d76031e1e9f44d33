"""Which words carry the similarity of two texts: against sentence-transformers, by really removing words."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer

from hardkuma import HardKumaModel, explain_pair
from hardkuma.encoders_hardkuma import resolve_encoder
from hardkuma.pairs_hardkuma import RANDOM_DRAWS, keep_words, remove_words
from hardkuma.surface_hardkuma import find_words
from tests.conftest import SENTENCES

A, B = "A man is playing the guitar on a small stage.", "Someone plays guitar in front of friends 🙂!"


@pytest.fixture(scope="module")
def cosine() -> Callable[[str, str], float]:
    """The cosine that a user of sentence-transformers sees."""
    encoder = SentenceTransformer(resolve_encoder("sentence-transformers/all-MiniLM-L6-v2"))
    return lambda a, b: float(encoder.similarity(*encoder.encode([a, b], convert_to_tensor=True).split(1)))


def spans(side: dict, field: str) -> list[tuple[int, int]]:
    return [(word["start"], word["end"]) for word in side["words"] if word[field]]


def test_every_number_is_that_of_sentence_transformers(minilm: HardKumaModel, cosine: Callable) -> None:
    pair = explain_pair(minilm, A, B, rate=0.3, seed=7)
    assert json.loads(json.dumps(pair, allow_nan=False)) == pair
    assert pair["similarity"] == pytest.approx(cosine(A, B), abs=1e-5)
    records = dict(zip("ab", minilm.gate_records([A, B], rate=0.3), strict=True))
    for name, text in (("a", A), ("b", B)):
        side, record = pair[name], records[name]
        assert [(w["start"], w["end"]) for w in side["words"]] == find_words(text) and not side["truncated"]
        assert [w["selected"] for w in side["words"]] == [w["selected"] for w in record["words"]]
        assert side["spans"] == record["spans"]
        for word in side["words"]:
            left = remove_words(text, [(word["start"], word["end"])])
            without = cosine(left, B) if name == "a" else cosine(A, left)
            assert word["fall"] == pytest.approx(pair["similarity"] - without, abs=1e-5), word["word"]
        ranked = sorted(side["words"], key=lambda word: -word["fall"])
        assert [w["word"] for w in ranked if w["carries"]] == [
            w["word"] for w in ranked[: math.ceil(0.3 * len(ranked))] if w["fall"] > 0
        ]
    check = pair["faithfulness"]
    for field, found in (("carries", "carrying"), ("selected", "gates")):
        left = [remove_words(pair[name]["text"], spans(pair[name], field)) for name in "ab"]
        expected = (cosine(left[0], B) + cosine(A, left[1])) / 2
        assert check["similarity_without"][found] == pytest.approx(expected, abs=1e-5)
    kept = [" ".join(pair[name]["text"][s:e] for s, e in spans(pair[name], "carries")) for name in "ab"]
    assert check["similarity_of_carrying"] == pytest.approx(cosine(*kept), abs=1e-5)
    assert check["faithful"] is True


def test_lowest_and_random_words_are_as_many_as_carry(minilm: HardKumaModel, cosine: Callable) -> None:
    pair = explain_pair(minilm, A, B, rate=0.3, seed=7)
    numbers = [len(spans(pair[name], "carries")) for name in "ab"]
    lowest = []
    for name, number in zip("ab", numbers, strict=True):
        words = sorted(pair[name]["words"], key=lambda word: word["fall"])[:number]
        lowest.append(remove_words(pair[name]["text"], sorted((w["start"], w["end"]) for w in words)))
    one_side = (cosine(lowest[0], B) + cosine(A, lowest[1])) / 2
    assert pair["faithfulness"]["similarity_without"]["lowest"] == pytest.approx(one_side, abs=1e-5)
    dice, found = random.Random(7), []
    for _ in range(RANDOM_DRAWS):
        texts = []
        for name, number in zip("ab", numbers, strict=True):
            chosen = sorted(dice.sample(range(len(pair[name]["words"])), number))
            words = [pair[name]["words"][i] for i in chosen]
            texts.append(remove_words(pair[name]["text"], [(w["start"], w["end"]) for w in words]))
        found.append((cosine(texts[0], B) + cosine(A, texts[1])) / 2)
    assert pair["faithfulness"]["similarity_without"]["random"] == pytest.approx(sum(found) / len(found), abs=1e-5)
    other = explain_pair(minilm, A, B, rate=0.3, seed=8)["faithfulness"]["similarity_without"]
    assert other["random"] != pair["faithfulness"]["similarity_without"]["random"]
    assert explain_pair(minilm, A, B, rate=0.3, seed=7) == pair


def test_identical_texts_and_texts_without_other_words(minilm: HardKumaModel) -> None:
    same = explain_pair(minilm, A, A)
    without = same["faithfulness"]["similarity_without"]
    assert same["similarity"] == pytest.approx(1.0, abs=1e-5) and same["faithfulness"]["faithful"] is True
    assert without["carrying"] < without["random"] < 1 and without["carrying"] < without["lowest"]
    single = explain_pair(minilm, "cat", "dog")
    assert single["faithfulness"]["similarity_without"]["carrying"] < single["similarity"]
    for texts in (("cat", "dog"), ("", "")):
        assert explain_pair(minilm, *texts)["faithfulness"]["faithful"] is None, "nothing to compare with"


def test_links_join_words_that_need_each_other(minilm: HardKumaModel, cosine: Callable) -> None:
    pair = explain_pair(minilm, A, B, links=3)
    names = [(pair["a"]["words"][link["a"]]["word"], pair["b"]["words"][link["b"]]["word"]) for link in pair["links"]]
    assert len(names) == 3 and names[0] == ("guitar", "guitar")
    i, j = find_words(A)[pair["links"][0]["a"]], find_words(B)[pair["links"][0]["b"]]
    both = cosine(A, B) - cosine(remove_words(A, [i]), B) - cosine(A, remove_words(B, [j]))
    assert pair["links"][0]["strength"] == pytest.approx(
        both + cosine(remove_words(A, [i]), remove_words(B, [j])), abs=1e-5
    )
    assert explain_pair(minilm, A, B, links=0)["links"] == []


def test_a_long_text_says_that_its_end_was_not_seen(make_model: Callable) -> None:
    model = make_model()
    long = " ".join(SENTENCES)
    pair = model.explain_pair(long, "nasa !")
    assert pair["a"]["truncated"] and not pair["b"]["truncated"]
    assert [(w["start"], w["end"]) for w in pair["a"]["words"]] == find_words(long) and pair["a"]["windows"] > 1
    seen = model.tokenizer(long, truncation=True, max_length=40, return_offsets_mapping=True)["offset_mapping"][-2][1]
    assert all((word["fall"] == 0.0) == (word["end"] > seen) for word in pair["a"]["words"])
    assert all(word["end"] <= seen for word in pair["a"]["words"] if word["carries"])


@pytest.mark.parametrize("family", ["bert", "hardkuma_static", "qwen3"])
@pytest.mark.parametrize(
    "texts", [("", ""), ("", "paris"), ("!!", "paris in london"), ("marie", "marie"), ("\ud83d paris", "x")]
)
def test_empty_and_wordless_texts(family: str, texts: tuple[str, str], make_model: Callable) -> None:
    pair = explain_pair(make_model(family), *texts)
    json.dumps(pair, allow_nan=False)
    assert [len(pair[name]["words"]) for name in "ab"] == [len(find_words(text)) for text in texts]
    if texts[0] == texts[1] != "":
        assert pair["similarity"] == pytest.approx(1.0, abs=1e-5)


def test_batches_do_not_matter(make_model: Callable) -> None:
    model = make_model()
    small, large = (explain_pair(model, SENTENCES[0], SENTENCES[1], batch_size=size) for size in (1, 64))
    for name in "ab":
        falls = [[word["fall"] for word in pair[name]["words"]] for pair in (small, large)]
        assert falls[0] == pytest.approx(falls[1], abs=1e-5)


@settings(deadline=None)
@given(st.text(alphabet="ab  .\n", max_size=20), st.sets(st.integers(0, 9)))
def test_removing_words(text: str, chosen: set[int]) -> None:
    words = find_words(text)
    gone = [word for i, word in enumerate(words) if i in chosen]
    left = remove_words(text, gone)
    assert left.split() == remove_words(left, []).split()
    letters = "".join(text[s:e] for i, (s, e) in enumerate(words) if i not in chosen)
    assert "".join(c for c in left if c.isalpha()) == "".join(c for c in letters if c.isalpha())
    assert gone or left == text
    # Nothing else is lost, but for a space where there would be two.
    kept = [c for i, c in enumerate(text) if not any(s <= i < e for s, e in gone)]
    assert [c for c in left if not c.isspace()] == [c for c in kept if not c.isspace()]
    assert len(kept) - len(gone) <= len(left) <= len(kept)
    assert keep_words(text, gone).split() == [text[s:e] for s, e in gone]


def test_bad_arguments(make_model: Callable) -> None:
    model = make_model()
    with pytest.raises(ValueError, match=r"b must be a text \(str\), got a list"):
        explain_pair(model, "paris", ["london"])
    for rate in (0, 1.5, None, True):
        with pytest.raises(ValueError, match=r"rate must be a fraction in \(0, 1\]"):
            explain_pair(model, "paris", "london", rate=rate)
    for links in (-1, True, 1.5, None):
        with pytest.raises(ValueError, match="links must be a whole number >= 0"):
            explain_pair(model, "paris", "london", links=links)
    with pytest.raises(ValueError, match="training mode"):
        explain_pair(model.train(), "paris", "london")
    assert torch.is_grad_enabled()
