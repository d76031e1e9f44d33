"""The bundled corpus: its size, its domains, its labels, its language, and that it is the same everywhere."""

import hashlib
import re
from collections import Counter

import pytest

from hardkuma.data import DOMAINS, LabelledSentence, bundled_examples, bundled_texts
from hardkuma.data.bundled import BUNDLED_SIZE
from hardkuma.words_hardkuma import starts_sentence

ENTITY_TYPES = {"person", "organisation", "place", "product", "work", "event"}
# Words before which "an" stands: a vowel that is spoken as one, and the other way round.
CONSONANT_SOUND = re.compile(r"uni(?!n|mp)|use|usu|eu|one\b|once|u[- ]turn|utopi|ukr|ug", re.IGNORECASE)
VOWEL_SOUND = re.compile(r"(?:hour|honest|heir|honou?r)|(?:[AEFHILMNORSX](?:[A-Z]{1,4}\b|-|\d))|8|1[18](?!\d)")


@pytest.fixture(scope="module")
def examples() -> list[LabelledSentence]:
    return bundled_examples()


def test_size_and_distinctness(examples: list[LabelledSentence]) -> None:
    assert len(examples) == BUNDLED_SIZE >= 5_000
    assert len({example.text.casefold() for example in examples}) == len(examples)
    assert [example.text for example in examples] == bundled_texts()


def test_domains_have_equal_parts(examples: list[LabelledSentence]) -> None:
    counts = Counter(example.source for example in examples)
    assert set(counts) == set(DOMAINS)
    assert max(counts.values()) < 1.1 * min(counts.values())


def test_lengths(examples: list[LabelledSentence]) -> None:
    lengths = [len(example.text.split()) for example in examples]
    assert min(lengths) >= 6
    assert max(lengths) <= 40
    assert 15 <= sum(lengths) / len(lengths) <= 18


def test_share_of_entities(examples: list[LabelledSentence]) -> None:
    none = sum(not any(example.entity_mask) for example in examples) / len(examples)
    assert 0.12 <= none <= 0.20
    types = Counter(tag[2:] for example in examples for tag in example.tags if tag.startswith("B-"))
    assert set(types) == ENTITY_TYPES
    assert min(types.values()) >= 300


def test_entities_are_in_every_position(examples: list[LabelledSentence]) -> None:
    thirds = Counter(3 * i // len(e.tags) for e in examples for i, tag in enumerate(e.tags) if tag.startswith("B-"))
    assert min(thirds.values()) > 0.2 * sum(thirds.values())


def test_tags_are_well_formed(examples: list[LabelledSentence]) -> None:
    for example in examples:
        for before, tag in zip(("O", *example.tags), example.tags, strict=False):
            assert not tag.startswith("I-") or before[2:] == tag[2:], example.text


def test_no_name_is_left_unlabelled(examples: list[LabelledSentence]) -> None:
    """Inside of sentences, a capital outside of an entity is a day, a month, the word I, or one of a few others."""
    days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April May June July August"
    allowed = {*days.split(), "September", "October", "November", "December", "I", "DNA", "API", "X-rays", "B", "C"}
    capitals = {
        word.removesuffix("s") if word.endswith("days") else word
        for example in examples
        for word, (start, _), tag in zip(example.words, example.offsets, example.tags, strict=True)
        if tag == "O" and word[0].isupper() and not starts_sentence(example.text.replace(":", "."), start)
    }
    assert capitals <= allowed


def starts_with_vowel_sound(text: str) -> bool:
    text = text.lstrip("\"'“‘(")
    return bool(VOWEL_SOUND.match(text)) or (text[:1].lower() in "aeiou" and not CONSONANT_SOUND.match(text))


def test_articles_agree(examples: list[LabelledSentence]) -> None:
    for example in examples:
        for match in re.finditer(r"\b([Aa]n?) (?=\S)", example.text):
            assert starts_with_vowel_sound(example.text[match.end() :]) == (match[1].lower() == "an"), example.text


@pytest.mark.parametrize(
    "fault",
    [
        r"\b(\w+) \1\b",
        r"\s{2}",
        r" [,.;:!?]",
        r"\.\.",
        r"[{}|\[\]<>^~]",
        r"\ba\(n\)",
        r"^\s|\s$",
        r"[^s]s's",
    ],
)
def test_typography(examples: list[LabelledSentence], fault: str) -> None:
    found = [example.text for example in examples if re.search(fault, example.text, re.IGNORECASE)]
    assert found == []


def test_quotes_are_balanced(examples: list[LabelledSentence]) -> None:
    assert [example.text for example in examples if example.text.count('"') % 2] == []


def test_a_pattern_gives_a_group_of_similar_but_different_sentences(examples: list[LabelledSentence]) -> None:
    courts = [example for example in examples if "must" in example.words and example.source == "law"]
    assert len(courts) >= 10
    assert len({tuple(w for w, e in zip(c.words, c.entity_mask, strict=True) if e) for c in courts}) >= 0.8 * len(courts)


def test_small_samples_have_all_domains() -> None:
    sample = bundled_examples(100)
    assert len(sample) == 100
    assert {example.source for example in sample} == set(DOMAINS)


def test_the_same_on_every_machine() -> None:
    """What the default recipe trains on: a change of a single character changes the gates that it gives."""
    digest = hashlib.sha256("\n".join(bundled_texts()).encode()).hexdigest()
    assert digest[:16] == "fb123cafd0f94802"
    assert hashlib.sha256("\n".join(bundled_texts(500)).encode()).hexdigest()[:16] == "3b43c68b1bdd26c6"
    labels = "\n".join(f"{example.source} {example.offsets} {example.tags}" for example in bundled_examples())
    assert hashlib.sha256(labels.encode()).hexdigest()[:16] == "9cff2c8e9f9eb231"


@pytest.mark.parametrize("n", [0, -1, BUNDLED_SIZE + 1])
def test_too_few_and_too_many(n: int) -> None:
    with pytest.raises(ValueError, match=f"n must be in 1 to {BUNDLED_SIZE}, .*; got {n}"):
        bundled_texts(n)
