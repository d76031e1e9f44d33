"""What an embedding hardly sees, compared as such."""

from __future__ import annotations

import pytest

from hardkuma.apps.contrasts import describe_languages, find_contrasts, find_language, word_value


@pytest.mark.parametrize(
    ("a", "b", "first", "second"),
    [
        ("open at 3 pm", "open at 5 pm", ["3"], ["5"]),
        ("it cost 1,000 euros", "it cost 1000 euros", [], []),
        ("2.5 percent", "2,5 percent", [], []),
        ("three dogs", "3 dogs", [], []),
        ("three dogs", "Two dogs", ["three"], ["Two"]),
        ("17 people died", "people died", [], []),  # nothing to compare it with: the encoder decides
        ("6 of 10", "6 of 12", ["10"], ["12"]),
        ("profits increased", "profits fell", ["increased"], ["fell"]),
        ("shares close higher Friday", "shares close lower Monday", ["higher", "Friday"], ["lower", "Monday"]),
        ("it may rain in May", "it may rain in June", ["May"], ["June"]),
        ("it did not rain", "it rained", ["not"], []),
        ("it didn’t rain", "nobody came", [], []),  # both deny
        ("up and down", "up", [], []),  # this text says both
        ("a cat", "a dog", [], []),
        ("", "", [], []),
        ("no", "", [], []),
    ],
)
def test_what_the_other_text_contradicts(a: str, b: str, first: list[str], second: list[str]) -> None:
    words, others = a.split(), b.split()
    assert [word for word, found in zip(words, find_contrasts(words, others), strict=True) if found] == first
    assert [word for word, found in zip(others, find_contrasts(others, words), strict=True) if found] == second


def test_numbers_of_any_form_have_a_value() -> None:
    assert word_value("1.2.3") == ("number", 123.0) and word_value("C-311") == ("number", 311.0)
    assert word_value("٣") == ("number", 3.0) and word_value("march") is None and word_value("one") is None


def test_languages_and_scripts_are_told_where_words_tell() -> None:
    english, german = (text.split() for text in ("The cat is on the mat", "Die Katze ist auf der Matte"))
    assert find_language(english) == "English" and find_language(german) == "German"
    assert find_language([]) is None and find_language(["!", "1"]) is None
    assert describe_languages(english, english) is None and describe_languages(english, ["Paris"]) is None
    said = describe_languages(["Paris"], ["Прага", "и", "Брно"])
    assert said == "the texts are of different scripts (Latin, Cyrillic), and this encoder may not know both"
