"""What the page takes: how long a text may be, and which share of its words may be selected."""

from __future__ import annotations

from ...scoring_hardkuma import encodable
from ...words_hardkuma import find_words

# A text of the first limit takes about twelve windows; a document of the second is read sentence by sentence, some two
# thousand of them; of two texts some forty variants are encoded, and leave-one-out encodes one for every word.
MAX_CHARACTERS = 10_000
MAX_CHARACTERS_DOCUMENT = 200_000
MAX_CHARACTERS_COMPARED = 1_000
MAX_WORDS_COMPARED = 150
MAX_PASSAGES = 2_000
MAX_CHARACTERS_PASSAGES = 400_000
WHOLE_FILES = "use `hardkuma search` for whole files"
MAX_BODY = 4_000_000  # bytes of a question as it is sent: every text above fits, in any script
BODY_SECONDS = 30  # that a browser may take to send it
# The encoder runs for one visitor at a time. The longest document takes some seconds, so more would wait in vain.
MAX_WAITING = 16
MAX_SECONDS = 60
RATES = (5, 50)  # per cent, as people think of it; everywhere else a rate is a fraction


def check_text(
    text: str | None,
    limit: int,
    where_else: str = "use `hardkuma gates` for long documents",
    missing: str = "Type or paste a text first.",
) -> str:
    """The text, if it has words to show and fits; else a ValueError that says what to do.

    >>> check_text("x" * 12, 10)
    Traceback (most recent call last):
    ValueError: The text has 12 characters; at most 10 fit here. Shorten it, or use `hardkuma gates` for long documents.
    """
    if not text or not text.strip():
        raise ValueError(missing)
    if len(text) > limit:
        raise ValueError(f"The text has {len(text):,} characters; at most {limit:,} fit here. Shorten it, or {where_else}.")
    return encodable(text)


def check_compared(text: str | None) -> str:
    """`check_text` for a text that is encoded once for every word of it: no more words than people wait for.

    >>> check_compared("Rain again.")
    'Rain again.'
    """
    checked = check_text(text, MAX_CHARACTERS_COMPARED)
    words = len(find_words(checked))
    if words > MAX_WORDS_COMPARED:
        raise ValueError(f"The text has {words} words; at most {MAX_WORDS_COMPARED} can be compared here. Shorten it.")
    return checked


def check_lines(text: str | None) -> str:
    """`check_text` for passages, one a line.

    >>> check_lines("x\\n" * 2001)
    Traceback (most recent call last):
    ValueError: There are 2,001 lines; at most 2,000 fit here. Leave some out, or use `hardkuma search` for whole files.
    """
    checked = check_text(text, MAX_CHARACTERS_PASSAGES, WHOLE_FILES, "Paste some lines to search in, or choose a file.")
    lines = sum(bool(line.strip()) for line in checked.split("\n"))
    if lines > MAX_PASSAGES:
        raise ValueError(f"There are {lines:,} lines; at most {MAX_PASSAGES:,} fit here. Leave some out, or {WHOLE_FILES}.")
    return checked


def as_fraction(percent: float | None) -> float | None:
    """The slider's value as a fraction, kept within its bounds; None, the model's own decision, stays None.

    >>> as_fraction(20), as_fraction(1000), as_fraction(None)
    (0.2, 0.5, None)
    """
    if percent is None:
        return None
    low, high = RATES
    return min(max(percent if percent == percent else low, low), high) / 100
