import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardkuma.data import CleanSummary, clean
from hardkuma.data.cleaning import count_words


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
    cleaned = clean(texts)
    assert list(cleaned) == ["One two three four.", "Now five words in one."]
    assert cleaned.summary == CleanSummary(read=7, kept=2, too_short=1, too_long=1, no_letters=2, duplicates=1)
    assert str(cleaned.summary) == (
        "kept 2 of 7 sentences; dropped 1 too short, 1 too long, 2 without letters, 1 duplicates"
    )


def test_bounds_are_inclusive_and_duplicates_can_stay() -> None:
    four, long = "a b c d", " ".join(["w"] * 64)
    assert list(clean([four, long])) == [four, long]
    assert list(clean([four, four], deduplicate=False)) == [four, four]
    assert list(clean(["a"], min_words=0)) == ["a"]


def test_it_is_lazy() -> None:
    def texts():  # noqa: ANN202
        yield "One two three four."
        raise AssertionError("read ahead")

    cleaned = clean(texts())
    assert next(cleaned) == "One two three four."
    assert cleaned.summary.kept == 1


def test_scripts_without_spaces_have_words() -> None:
    assert count_words("東京は日本の首都です") == 5
    assert count_words("東京 (Tokyo) is big") == 4
    assert count_words("コンピュータ を 買った") == 3, "katakana spells whole words"
    assert list(clean(["東京は日本の首都です。"])) == ["東京は日本の首都です。"]


def test_errors() -> None:
    with pytest.raises(ValueError, match="got 5 and 4"):
        clean([], min_words=5, max_words=4)
    with pytest.raises(TypeError, match=r"got one: 'hello'; pass \[text\]"):
        clean("hello")


@given(st.lists(st.text(max_size=40), max_size=20))
def test_summary_adds_up_and_cleaning_twice_changes_nothing(texts: list[str]) -> None:
    cleaned = clean(texts, min_words=1)
    once = list(cleaned)
    s = cleaned.summary
    assert s.read == len(texts) == s.kept + s.too_short + s.too_long + s.no_letters + s.duplicates
    assert list(clean(once, min_words=1)) == once
