"""Checks of arguments that several rooms make; errors name the value and what would be right."""

from __future__ import annotations

from collections.abc import Iterable


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise an error that names the value and the choices, if it is none of them.

    >>> check_choice("format", "pdf", ("text", "jsonl"))
    Traceback (most recent call last):
    ValueError: format must be one of text, jsonl; got 'pdf'.
    """
    choices = list(choices)
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")
