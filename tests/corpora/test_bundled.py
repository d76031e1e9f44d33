import hashlib
import re
from collections import Counter

import pytest

from hardkuma.corpora import DOMAINS, LabelledSentence, bundled_examples, bundled_texts
from hardkuma.corpora.bundled import DEFAULT_SIZE, grammar
from hardkuma.corpora.frames import ENTITY_TYPES, slots
from hardkuma.corpora.writer import starts_with_vowel_sound
from hardkuma.surface_hardkuma import starts_sentence


@pytest.fixture(scope="module")
def examples() -> list[LabelledSentence]:
    return bundled_examples()


def test_size_and_distinctness(examples: list[LabelledSentence]) -> None:
    assert len(examples) == DEFAULT_SIZE >= 5_000
    assert len({example.text.casefold() for example in examples}) == len(examples)
    assert [example.text for example in examples] == bundled_texts()


def test_frames_and_domains(examples: list[LabelledSentence]) -> None:
    frames = Counter(frame.source for frame in grammar().frames)
    assert set(frames) == set(DOMAINS)
    assert sum(frames.values()) >= 400
    assert min(frames.values()) >= 35
    counts = Counter(example.source for example in examples)
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
    assert set(types) == set(ENTITY_TYPES)
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


def test_pronouns_agree_with_the_person(examples: list[LabelledSentence]) -> None:
    """In sentences with one person and no other pronouns than hers or his, they are of one kind."""
    pool = grammar().pools["person"]
    gender = {filler[0]: filler[1] for filler in pool.fillers}
    checked = 0
    for example in examples:
        named = [name for name in gender if name in example.text]
        spoken = example.text[example.text.find(named[0]) :] if len(named) == 1 else ""
        words = set(re.findall(r"\b(?:he|she|him|his|himself|herself)\b", re.sub(r'"[^"]*"', "", spoken)))
        if words and len(named) == 1 and not re.search("defendant|old man", example.text):
            checked += 1
            wrong = words & ({"he", "him", "his", "himself"} if gender[named[0]] == "she" else {"she", "herself"})
            assert not wrong, example.text
    assert checked > 100


def test_every_pool_is_used_and_large_enough() -> None:
    used = {slot.pool.removesuffix("_m").removesuffix("_f") for frame in grammar().frames for slot in slots(frame.parts)}
    for name, pool in grammar().pools.items():
        if not name.endswith(("_m", "_f")):
            assert name in used
            assert len(pool.fillers) >= 5, name
            assert len({filler[0].casefold() for filler in pool.fillers}) == len(pool.fillers), name


def test_a_frame_gives_a_group_of_similar_but_different_sentences(examples: list[LabelledSentence]) -> None:
    courts = [example for example in examples if "must" in example.words and example.source == "law"]
    assert len(courts) >= 10
    assert len({tuple(w for w, e in zip(c.words, c.entity_mask, strict=True) if e) for c in courts}) >= 0.8 * len(courts)


def test_small_samples_have_all_domains() -> None:
    sample = bundled_examples(100)
    assert len(sample) == 100
    assert {example.source for example in sample} == set(DOMAINS)


def test_seeds_give_different_sentences() -> None:
    first, second = set(bundled_texts(400, seed=0)), set(bundled_texts(400, seed=1))
    assert len(first & second) < 40


def test_the_same_on_every_machine() -> None:
    """If the frames were changed on purpose, update the digest; if not, generation has become non-deterministic."""
    digest = hashlib.sha256("\n".join(bundled_texts()).encode()).hexdigest()
    assert digest[:16] == "fb123cafd0f94802"


@pytest.mark.parametrize("n", [0, -1])
def test_too_few(n: int) -> None:
    with pytest.raises(ValueError, match=f"n must be >= 1, got {n}"):
        bundled_texts(n)
