import pytest

from hardkuma.corpora.frames import Grammar
from hardkuma.corpora.writer import Writer, starts_with_vowel_sound


def texts(*lines: str, n: int = 12, seed: int = 0) -> list[str]:
    return [sentence.text for sentence in sentences(*lines, n=n, seed=seed)]


def sentences(*lines: str, n: int = 12, seed: int = 0) -> list:
    grammar = Grammar()
    grammar.add(lines, "file")
    grammar.check()
    writer = Writer(grammar, grammar.frames[0], seed)
    return [writer.write() for _ in range(n)]


def test_every_filler_before_any_comes_again() -> None:
    written = texts("[x]", "a ; b ; c ; d", "> go {x}", n=8)
    assert sorted(written[:4]) == sorted(written[4:]) == ["Go a", "Go b", "Go c", "Go d"]


def test_the_same_slot_is_the_same_filler_and_a_number_another() -> None:
    for text in texts("[x]", "a ; b ; c", "> {x}{x}-{x2}{x3}", n=20):
        same, others = text.lower().split("-")
        assert same[0] == same[1]
        assert len({same[0], *others}) == 3


def test_entities_do_not_repeat_across_pools() -> None:
    cities = ("[city : place] country:place", "Lagos | Nigeria ; Rome | Italy")
    written = texts(*cities, "[country : place]", "Nigeria ; Italy", "> {city} to {country}", n=6)
    assert set(written) == {"Lagos to Italy", "Rome to Nigeria"}


def test_articles() -> None:
    written = texts(
        "[x]", "apple ; union ; hour ; MRI scan ; European ; 8-year-old ; one-off", "> Take a(n) {x} and a(n) old one.", n=7
    )
    assert sorted(written) == sorted(
        f"Take {article} and an old one."
        for article in ("an apple", "a union", "an hour", "an MRI scan", "a European", "an 8-year-old", "a one-off")
    )


@pytest.mark.parametrize(
    ("text", "vowel"),
    [("11 cats", True), ("110 cats", False), ("18th", True), ("unnamed", True), ("user", False), ("unimportant", True)],
)
def test_vowel_sounds(text: str, vowel: bool) -> None:
    assert starts_with_vowel_sound(text) == vowel


def test_article_of_a_name_is_outside_of_the_entity() -> None:
    (sentence,) = sentences("[river : place]", "the Danube", "> {river} is wide; {^river} too, {river.bare}.", n=1)
    assert sentence.text == "The Danube is wide; The Danube too, Danube."
    tagged = [(word, tag) for word, tag in zip(sentence.words, sentence.tags, strict=True) if word[0].isupper()]
    assert tagged == [("The", "O"), ("Danube", "B-place"), ("The", "O"), ("Danube", "B-place"), ("Danube", "B-place")]


def test_titles_keep_their_article() -> None:
    (sentence,) = sentences("[film : work]", "The Salt Road", "> I saw {film}.", n=1)
    assert sentence.tags == ("O", "O", "B-work", "I-work", "I-work", "O")


def test_possessives() -> None:
    assert texts("[x : person]", "Torres", "> {x}'s dog.", n=1) == ["Torres' dog."]
    (sentence,) = sentences("[x : person]", "Ana", "> {x}'s dog.", n=1)
    assert sentence.words == ("Ana", "'s", "dog", ".")


def test_numbers_stay_in_range_and_words_stay_whole() -> None:
    for sentence in sentences(
        "[d]", "Friday ; Monday", "> {2..4}.{1..9} and {1000..3000/500} on {d}s in {1990..1999}", n=40
    ):
        decimal, _, quantity, _, day, _, year = sentence.words
        assert 2 < float(decimal) < 5
        assert quantity in ("1,000", "1,500", "2,000", "2,500", "3,000")
        assert day in ("Fridays", "Mondays")
        assert 1990 <= int(year) <= 1999


def test_lower_case_frames() -> None:
    (sentence,) = sentences("[x : place]", "the Hague", "~ I am in {x} OK", n=1)
    assert sentence.text == "i am in the hague ok"
    assert sentence.tags == ("O", "O", "O", "O", "B-place", "O")


ZONED = (
    "[city : place] zone",
    "Rome | it ; Bari | it ; Osaka | jp ; Kobe | jp",
    "[name : person] zone",
    "Luca | it ; Yuki | jp ; Kim | *",
)


def test_fillers_of_a_sentence_share_a_zone() -> None:
    zones = {"Rome": "it", "Bari": "it", "Osaka": "jp", "Kobe": "jp", "Luca": "it", "Yuki": "jp"}
    for sentence in sentences(*ZONED, "> {city} {city2} {name} {city5}", n=30):
        found = {zones[word] for word in sentence.words[:3] if word in zones}
        assert len(found) == 1
    elsewhere = [zones[s.words[0]] != zones[s.words[3]] for s in sentences(*ZONED, "> {city} {city2} {name} {city5}", n=30)]
    assert any(elsewhere)
    for sentence in sentences(*ZONED, "> {city} {city5} {name5}", n=30):
        assert sentence.words[2] == "Kim" or zones[sentence.words[1]] == zones[sentence.words[2]]


def test_a_small_zone_borrows_from_elsewhere() -> None:
    assert all(len(set(text.split())) == 3 for text in texts(*ZONED, "> {city} {city2} {city3}", n=10))


def test_seeds() -> None:
    lines = ("[x]", "a ; b ; c ; d ; e ; f", "> go {x} {1..99}")
    assert texts(*lines, seed=3) == texts(*lines, seed=3) != texts(*lines, seed=4)
