"""Things found by name; an error lists what is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Thing = TypeVar("Thing")


def find_named(kind: str, name: str, known: Mapping[str, Thing]) -> Thing:
    """The thing of that name, or an error that lists them all.

    >>> find_named("colour", "blue", {"red": 1, "green": 2})
    Traceback (most recent call last):
    ValueError: unknown colour 'blue'; known: red, green.
    """
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(known)}.")
    return known[name]
