"""Which words carry the similarity of two texts: against sentence-transformers, by really removing words."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer

from hardkuma import HardKumaModel, explain_pair
from hardkuma.apps.pairs import (
    RANDOM_DRAWS,
    VERIFIED,
    VERIFIED_OF_MANY,
    _Explanation,
    explain_pairs,
)
from hardkuma.apps.reading import chance_similarity
from hardkuma.common.text import keep_words, remove_words
from hardkuma.encoder_hardkuma import fingerprint, resolve_encoder
from hardkuma.words_hardkuma import ENGLISH, find_words
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
    assert pair["explained"] and pair["reason"] is None and pair["chance"] == pytest.approx(chance_similarity(minilm))
    records = dict(zip("ab", minilm.gate_records([A, B], rate=0.3), strict=True))
    for name, text in (("a", A), ("b", B)):
        side, record = pair[name], records[name]
        assert [(w["start"], w["end"]) for w in side["words"]] == find_words(text) and not side["truncated"]
        assert [w["selected"] for w in side["words"]] == [w["selected"] for w in record["words"]]
        assert side["spans"] == record["spans"]
        # In short texts every word that is proposed is verified: alone, and where it is the last of them.
        proposed = spans(side, "verified")
        assert not any(ENGLISH.is_function_word(text[start:end]) for start, end in proposed) and len(proposed) > 2
        for word in side["words"]:
            if not word["verified"]:
                continue
            others = [span for span in proposed if span != (word["start"], word["end"])]
            left = [remove_words(text, removed) for removed in ([(word["start"], word["end"])], others, proposed)]
            alone, last, none = (cosine(text, B if name == "a" else A) for text in left)
            expected = (pair["similarity"] - alone + last - none) / 2
            assert word["fall"] == pytest.approx(expected, abs=1e-5), word["word"]
        ranked = sorted((word for word in side["words"] if word["verified"]), key=lambda word: -word["fall"])
        assert [word["carries"] for word in ranked] == [True] * 3 + [False] * (len(ranked) - 3), "0.3 of 10, of 8"
        assert ranked[3]["fall"] > 0.5 * pair["similarity"] / len(side["words"]), "this one would, were it among them"
        assert not any(word["carries"] for word in side["words"] if not word["verified"])
    check = pair["faithfulness"]
    for field, found in (("carries", "carrying"), ("selected", "gates")):
        left = [remove_words(pair[name]["text"], spans(pair[name], field)) for name in "ab"]
        expected = (cosine(left[0], B) + cosine(A, left[1])) / 2
        assert check["similarity_without"][found] == pytest.approx(expected, abs=1e-5)
    kept = [" ".join(pair[name]["text"][s:e] for s, e in spans(pair[name], "carries")) for name in "ab"]
    assert check["similarity_of_carrying"] == pytest.approx(cosine(*kept), abs=1e-5)
    assert check["faithful"] is True


def test_a_word_that_carries_less_than_half_of_an_equal_share_is_not_named(minilm: HardKumaModel) -> None:
    pair = explain_pair(minilm, A, B, rate=0.6)  # 5 of the 8 words of b
    least = 0.5 * pair["similarity"] / len(pair["b"]["words"])
    ranked = sorted((word for word in pair["b"]["words"] if word["verified"]), key=lambda word: -word["fall"])[:5]
    assert [word["carries"] for word in ranked] == [word["fall"] > least for word in ranked] == [True] * 4 + [False]


@pytest.mark.parametrize(
    "texts",
    [
        ("Interest rates rose sharply in Germany.", "A cat sleeps on the mat."),
        ("The ferry was late again.", "Add two eggs to the dough."),
    ],
)
def test_unrelated_texts_are_not_explained(texts: tuple[str, str], minilm: HardKumaModel) -> None:
    pair = explain_pair(minilm, *texts)
    assert pair["similarity"] < pair["chance"] and pair["explained"] is False and "unrelated texts" in pair["reason"]
    assert not any(word["carries"] for name in "ab" for word in pair[name]["words"])
    assert pair["links"] == [] and pair["faithfulness"]["faithful"] is None and pair["notes"] == []
    # Whoever knows better may say so.
    assert explain_pair(minilm, *texts, chance=-1.0)["reason"] != pair["reason"]


def test_chance_depends_on_the_encoder_and_the_texts(minilm: HardKumaModel, cosine: Callable) -> None:
    texts = ["Rain fell all night.", "He sold his car.", "She sings in a choir."]
    values = torch.tensor([cosine(a, b) for a, b in combinations(texts, 2)])
    assert chance_similarity(minilm, texts) == pytest.approx(float(values.mean() + 3.5 * values.std()), abs=1e-4)
    with pytest.raises(ValueError, match="at least three texts, got 2"):
        chance_similarity(minilm, texts[:2])


def test_chance_follows_the_encoders_weights(make_model: Callable) -> None:
    model = make_model()
    model.config.encoder_fingerprint = fingerprint(model.encoder)  # as of a model that was made of an encoder
    before = explain_pair(model, SENTENCES[0], SENTENCES[1])["chance"]
    assert before == pytest.approx(chance_similarity(model))
    with torch.no_grad():
        for parameter in model.encoder.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    after = explain_pair(model, SENTENCES[0], SENTENCES[1])["chance"]
    assert after == pytest.approx(chance_similarity(model)) and abs(after - before) > 0.01
    # Of the same encoder, another pooling has another chance.
    pooled = make_model(pooling_mode="cls")
    assert explain_pair(pooled, SENTENCES[0], SENTENCES[1])["chance"] == pytest.approx(chance_similarity(pooled))


def test_the_check_can_fail(minilm: HardKumaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    verify = _Explanation.verify

    def choose_badly(self: _Explanation, vectors: torch.Tensor) -> None:
        verify(self, vectors)
        for side in self.sides:
            side.carrying = sorted(range(len(side.falls)), key=side.falls.__getitem__)[1:2]

    monkeypatch.setattr(_Explanation, "verify", choose_badly)
    pair = explain_pair(minilm, A, B)
    assert pair["faithfulness"]["faithful"] is False and pair["explained"] is False
    assert pair["reason"] == "other words lower the similarity about as much as these"


def test_the_check_needs_a_margin(minilm: HardKumaModel) -> None:
    """Without another word this similarity is as low as without the one that is said to carry it: 0.339 against 0.338."""
    noise = explain_pair(minilm, "Aspirin reduces fever.", "Ibuprofen relieves pain and inflammation.")
    assert noise["faithfulness"]["faithful"] is False and noise["explained"] is False
    assert noise["reason"] == "other words lower the similarity about as much as these"
    short = explain_pair(minilm, "my cat", "A cat sleeps.")
    for pair in (noise, short, explain_pair(minilm, A, B), explain_pair(minilm, A, A)):
        without = pair["faithfulness"]["similarity_without"]
        assert without["best_random"] <= without["random"]
        clear = without["carrying"] + 0.02 < min(without["lowest"], without["best_random"])
        assert pair["faithfulness"]["faithful"] == clear == (pair is not noise)


def test_redundant_words_share_their_credit(minilm: HardKumaModel, cosine: Callable) -> None:
    a, b = "The guitar player bought a guitar and a new guitar.", "A guitar."
    pair = explain_pair(minilm, a, b, rate=0.3)
    guitars = [word for word in pair["a"]["words"] if word["word"] == "guitar"]
    alone = [pair["similarity"] - cosine(remove_words(a, [(word["start"], word["end"])]), b) for word in guitars]
    assert len(guitars) == 3 and sum(word["fall"] for word in guitars) > 2 * sum(alone)


def test_what_the_encoder_hardly_sees_is_said_by_its_figures(minilm: HardKumaModel) -> None:
    order = explain_pair(minilm, "The dog bites the man.", "The man bites the dog.")
    assert order["notes"] == [
        f"the texts have the same words in another order, and a similarity of {order['similarity']:.2f}: the encoder "
        "hardly sees it"
    ]
    long = "meeting is {}on Monday in Berlin, and everybody should bring a laptop."
    hardly = explain_pair(minilm, "The " + long.format(""), "The " + long.format("not "))
    assert hardly["notes"] == [
        f"one text alone is negated (not), and the similarity is {hardly['similarity']:.2f}, 1.00 without that: the "
        "encoder hardly sees it"
    ]
    # Where the negation costs much of the similarity, the encoder sees it.
    seen = explain_pair(minilm, "The film was good.", "The film was not good.")
    said = f"one text alone is negated (not), and the similarity is {seen['similarity']:.2f}, 1.00 without that"
    assert seen["similarity"] < 0.9 and seen["notes"] == [said]
    assert explain_pair(minilm, A, A)["notes"] == [] and explain_pair(minilm, A, f"Not {B}")["notes"] == []


def test_the_number_of_encodings_does_not_grow_with_the_texts(minilm: HardKumaModel) -> None:
    rows: list[int] = []
    hook = minilm.encoder.register_forward_hook(lambda *seen: rows.append(len(seen[-1][0])))
    long = " ".join(f"{A} {B}" for _ in range(5))
    first, second = "The tall old man slowly repaired an ancient wooden rowing boat.", "A man repaired a boat."
    explain_pair(minilm, A, B)  # chance is known from here on
    counts = []
    for texts in ((first, f"Nobody said: {first}"), (first, second), (long, f"{long} It rained.")):
        rows.clear()
        explain_pair(minilm, *texts, seed=1)
        counts.append(sum(rows) - 2)  # but for the gates' pass
    hook.remove()
    # Both texts, six of each removed alone and left alone and all removed, the check (four and five draws), the negation.
    assert max(counts) <= 2 + 2 * (2 * VERIFIED + 1) + 2 * (4 + RANDOM_DRAWS) + 1 == 47
    assert counts[2] == 2 + 2 * (2 * VERIFIED_OF_MANY + 1) + 2 * (4 + RANDOM_DRAWS)


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
            others = [word for word in pair[name]["words"] if not word["carries"]]
            words = sorted(dice.sample(others, number), key=lambda word: word["start"])
            texts.append(remove_words(pair[name]["text"], [(w["start"], w["end"]) for w in words]))
        found.append((cosine(texts[0], B) + cosine(A, texts[1])) / 2)
    assert pair["faithfulness"]["similarity_without"]["best_random"] == pytest.approx(min(found), abs=1e-5)
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
    assert names[:2] == [("guitar", "guitar"), ("playing", "plays")]
    i, j = find_words(A)[pair["links"][0]["a"]], find_words(B)[pair["links"][0]["b"]]
    both = cosine(A, B) - cosine(remove_words(A, [i]), B) - cosine(A, remove_words(B, [j]))
    assert pair["links"][0]["strength"] == pytest.approx(
        both + cosine(remove_words(A, [i]), remove_words(B, [j])), abs=1e-5
    )
    assert explain_pair(minilm, A, B, links=0)["links"] == []


def test_a_long_text_says_that_its_end_was_not_seen(make_model: Callable) -> None:
    model = make_model()
    long = " ".join(SENTENCES)
    pair = explain_pair(model, long, "nasa !")
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


def flat(value: object) -> list[object]:
    """All that a nested answer holds, in order."""
    if isinstance(value, dict):
        return [item for name, part in value.items() for item in [name, *flat(part)]]
    return [item for part in value for item in flat(part)] if isinstance(value, list) else [value]


def test_many_pairs_are_each_as_alone_with_fewer_encodings(minilm: HardKumaModel) -> None:
    pairs = [(A, B), (A, "Interest rates rose."), (A, A), ("", B), (A, "A man plays a guitar."), (A, f"Not {A}")]
    rows: list[int] = []
    hook = minilm.encoder.register_forward_hook(lambda *seen: rows.append(len(seen[-1][0])))
    alone = [explain_pair(minilm, *pair) for pair in pairs]
    before = sum(rows)
    rows.clear()
    together = explain_pairs(minilm, pairs, batch_size=16)
    hook.remove()
    assert sum(rows) < 0.8 * before and explain_pairs(minilm, []) == []
    for one, other in zip(alone, together, strict=True):
        for left, right in zip(flat(one), flat(other), strict=True):
            assert left == (pytest.approx(right, abs=1e-5) if isinstance(right, float) else right)


@settings(deadline=None)
@given(st.text(alphabet="ab  .\n", max_size=20), st.sets(st.integers(0, 9)))
def test_removing_words(text: str, chosen: set[int]) -> None:
    words = find_words(text)
    gone = [word for i, word in enumerate(words) if i in chosen]
    left = remove_words(text, gone)
    assert re.search(r"\s\s", text) or not re.search(r"\s\s", left), "one space where a word was between two"
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
    with pytest.raises(TypeError, match=r"^explain_pair\(\) has no option 'link'; did you mean links\?$"):
        explain_pair(model, "paris", "london", link=3)
    for rate in (0, 1.5, None, True):
        with pytest.raises(ValueError, match=r"rate must be a fraction in \(0, 1\]"):
            explain_pair(model, "paris", "london", rate=rate)
    for links in (-1, True, 1.5, None):
        with pytest.raises(ValueError, match="links must be a whole number >= 0"):
            explain_pair(model, "paris", "london", links=links)
    with pytest.raises(ValueError, match="training mode"):
        explain_pair(model.train(), "paris", "london")
    assert torch.is_grad_enabled()
