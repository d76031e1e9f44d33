import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardkuma.data.detokenise import detokenise


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("Ana 's dog did n't bark .", "Ana's dog didn't bark."),
        ("He said ( twice ) : no , never !", "He said (twice): no, never!"),
        ('She said " yes , " and left .', 'She said "yes," and left.'),
        ('Not " a " but " b " .', 'Not "a" but "b".'),
        ("You should ' ve stayed", "You should've stayed"),
        ("the boys ' room", "the boys' room"),
        ("It costs $ 5 , or 10 % more", "It costs $5, or 10% more"),
        ("so happy :) ;-) !!", "so happy :) ;-)!!"),
        ("@ ana meet me @ the door # now", "@ana meet me @ the door #now"),
        ("`` Go '' , he said", "``Go'', he said"),
        ("Wait ... what ?", "Wait... what?"),
        (", odd start", ", odd start"),
        ("% of it", "% of it"),
    ],
)
def test_spaces(words: str, text: str) -> None:
    assert detokenise(words.split(" "))[0] == text


@given(st.lists(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1), max_size=12))
def test_words_are_where_the_offsets_say(words: list[str]) -> None:
    text, offsets = detokenise(words)
    assert [text[start:end] for start, end in offsets] == words
    assert text == text.strip()
    assert "".join(text.split()) == "".join("".join(words).split())


def test_nothing() -> None:
    assert detokenise([]) == ("", ())
