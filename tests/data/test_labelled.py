import pytest

from hardkuma.data import LabelledSentence


def test_words_and_mask() -> None:
    sentence = LabelledSentence("to Rome", ((0, 2), (3, 7)), ("O", "B-place"))
    assert sentence.words == ("to", "Rome")
    assert sentence.entity_mask == (False, True)


@pytest.mark.parametrize("offsets", [((0, 2), (1, 3)), ((0, 8),), ((2, 2),), ((3, 7), (0, 2))])
def test_bad_offsets(offsets: tuple) -> None:
    with pytest.raises(
        ValueError, match="of a text of 7 characters is empty, outside of it, or before the end of the word before"
    ):
        LabelledSentence("to Rome", offsets, ("O",) * len(offsets))


def test_one_tag_per_word() -> None:
    with pytest.raises(ValueError, match="got 2 tags for 1 words"):
        LabelledSentence("Rome", ((0, 4),), ("O", "O"))
