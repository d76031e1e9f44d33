"""Checks of arguments that several rooms make; errors name the value and what would be right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

Thing = TypeVar("Thing")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise an error that names the value and the choices, if it is none of them.

    >>> check_choice("format", "pdf", ("text", "jsonl"))
    Traceback (most recent call last):
    ValueError: format must be one of text, jsonl; got 'pdf'.
    """
    choices = list(choices)
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")


def find_named(kind: str, name: str, known: Mapping[str, Thing]) -> Thing:
    """The thing of that name, or an error that lists them all.

    >>> find_named("colour", "blue", {"red": 1, "green": 2})
    Traceback (most recent call last):
    ValueError: unknown colour 'blue'; known: red, green.
    """
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(known)}.")
    return known[name]
