from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hardkuma.data import clean
from hardkuma.data.cleaning import count_words, describe_cleaning


def test_each_reason_is_counted() -> None:
    texts = [
        "One two three four.",
        " one  TWO three\tfour. ",
        "Too short.",
        "1 2 3 4 5",
        "",
        "word " * 65,
        "Now five words in one.",
    ]
    counts = Counter[str]()
    assert list(clean(texts, counts=counts)) == ["One two three four.", "Now five words in one."]
    assert counts == {"kept": 2, "too short": 1, "too long": 1, "without letters": 2, "duplicates": 1}
    told = "kept 2 of 7 sentences; dropped 1 too short, 1 too long, 2 without letters, 1 duplicates"
    assert describe_cleaning(counts) == told


def test_bounds_are_inclusive() -> None:
    four, long = "a b c d", " ".join(["w"] * 64)
    assert list(clean([four, long])) == [four, long]
    assert list(clean(["a"], min_words=0)) == ["a"]


def test_it_is_lazy() -> None:
    def texts():  # noqa: ANN202
        yield "One two three four."
        raise AssertionError("read ahead")

    assert next(clean(texts())) == "One two three four."


def test_scripts_without_spaces_have_words() -> None:
    assert count_words("東京は日本の首都です") == 5
    assert count_words("東京 (Tokyo) is big") == 4
    assert count_words("コンピュータ を 買った") == 3, "katakana spells whole words"
    assert list(clean(["東京は日本の首都です。"])) == ["東京は日本の首都です。"]


@given(st.lists(st.text(max_size=40), max_size=20))
def test_summary_adds_up_and_cleaning_twice_changes_nothing(texts: list[str]) -> None:
    counts = Counter[str]()
    once = list(clean(texts, min_words=1, counts=counts))
    assert counts.total() == len(texts) and counts["kept"] == len(once)
    assert list(clean(once, min_words=1)) == once
