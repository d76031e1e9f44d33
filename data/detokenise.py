"""From a list of words back to a sentence as people write it, keeping where each word is."""

from __future__ import annotations

import re
from collections.abc import Sequence

_CLOSING = re.compile(r"""[.,;:!?)\]}…”»]+|[.!?,]+["”]|''|n['’]t|['’](s|re|ve|ll|d|m|t|em)""", re.IGNORECASE)
_OPENING = frozenset({"(", "[", "{", "``", "“", "«", "$", "£", "€", "¿", "¡"})
_CLITICS = frozenset({"s", "t", "re", "ve", "ll", "d", "m"})
_APOSTROPHES = frozenset("'’´`")
# "@ the door" means at; other words after @ are names of accounts.
_NOT_ACCOUNTS = frozenset(
    {"the", "a", "an", "my", "our", "your", "his", "her", "their", "this", "that", "home", "work", "school"}
)
# Smileys are words although they are made of closing marks.
_SMILEY = re.compile(r"[:;=][-']?[)\]}]+")


def detokenise(words: Sequence[str]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Text and the (start, end) of each word in it. Words are never changed, only the spaces between them.

    No space before closing marks, "'s" and "n't"; none after opening marks, # and @; straight quotes open and close.

    >>> detokenise(["Ana", "(", "aged", "9", ")", "did", "n't", "say", '"', "no", '"', "."])[0]
    'Ana (aged 9) didn\\'t say "no".'
    >>> detokenise(["Rome", "'s", "end"])
    ("Rome's end", ((0, 4), (4, 6), (7, 10)))
    """
    text, offsets = "", []
    open_quotes: set[str] = set()
    glue = True  # nothing stands before the first word
    for i, word in enumerate(words):
        follower = words[i + 1] if i + 1 < len(words) else ""
        glue_next = False
        if word in _APOSTROPHES and i and follower.lower() in _CLITICS:
            glue, glue_next = True, True  # you ' ve
        elif word in _APOSTROPHES and i and word not in open_quotes and words[i - 1][-1:] in "sS":
            glue = True  # the boys ' room
        elif word in ('"', "'"):
            if word in open_quotes:
                open_quotes.discard(word)
                glue = True
            else:
                open_quotes.add(word)
                glue_next = True
        elif (_CLOSING.fullmatch(word) and not _SMILEY.fullmatch(word)) or (word == "%" and words[i - 1][-1:].isdigit()):
            glue = True
        elif word in _OPENING:
            glue_next = True
        elif word in ("@", "#") and (follower[:1].isalnum() or follower[:1] == "_"):
            glue_next = word == "#" or follower.lower() not in _NOT_ACCOUNTS
        start = len(text) + (not glue)
        text += word if glue else f" {word}"
        offsets.append((start, len(text)))
        glue = glue_next
    return text, tuple(offsets)
