import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardkuma.data import split_sentences


@pytest.mark.parametrize(
    "marked",
    [
        "He met Mr. Smith at 3 p.m. | The talks failed.",
        "Dr. J. K. Park left the U.S. Army. | She was 40.",
        "They moved to the U.S. | The rest is history.",
        "It rose 3.5 percent in No. 5 and fell. | He said no. | That was it.",
        '"Stop!" Ana said. | "Why?" | Then he left.',
        '"Why?" asked Ana. | Nobody knew.',
        "“It works.” | She smiled.",
        "Well... I think so. | And then… | Nothing.",
        "See e.g. Kim et al. 2020 for details. | Cats, dogs, etc. | The end.",
        "Prices rose (see Fig. 2. It shows more). | Next came spring.",
        "What?! | No way!! | Done.",
        "Take vitamin C. | It helps. | So did I. | We left.",
        "1. Preheat the oven. | Then wait.",
        "She won in 1999. | In 2003 she lost.",
        'He said " yes . " | Then he left . | " No , " she said .',
        "Visit example.com or v2.1.3 today. | Bye.",
        "東京は大きい。| 人が多い！| そう",
        "क्या हाल है। | ठीक है।",
        "smiled :( and left. | Then it rained.",
        "all lower case. stays whole. always",
        "Acme Inc. | The firm grew.",
        "He works at Acme Inc. in Rome. | It rains.",
    ],
)
def test_splits_exactly_at_the_bars(marked: str) -> None:
    expected = [part.strip() for part in marked.split("|")]
    text = marked.replace("| ", "") if "。" in marked else marked.replace(" |", "")
    assert split_sentences(text) == expected


def test_line_ends_always_split() -> None:
    assert split_sentences("A heading\nand a text\n\n") == ["A heading", "and a text"]
    assert split_sentences("  \n ") == []


@pytest.mark.parametrize("piece", ["Mr. ", '. " a ', "(x. ", ".", "1. x. "])
def test_long_lines_without_an_end(piece: str) -> None:
    """Looking back over the whole line at every mark would take minutes."""
    assert " ".join(split_sentences(piece * 50_000)).split() == (piece * 50_000).split()


@given(st.text(alphabet=st.sampled_from("aB. !?…\"'()\n 1。I")))
def test_only_white_space_is_lost(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in sentences)
