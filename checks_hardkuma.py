"""Checks of values, of a config or of any call: an error names the value and what would be right."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise an error that names the value and the choices, if it is none of them.

    >>> check_choice("format", "pdf", ("text", "jsonl"))
    Traceback (most recent call last):
    ValueError: format must be one of text, jsonl; got 'pdf'.
    """
    choices = list(choices)
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")


def check_choices(name: str, values: Sequence[Any], choices: Sequence[str]) -> None:
    """The same for one or more values, none of them twice.

    >>> check_choices("formats", ["text", "text"], ("text", "jsonl"))
    Traceback (most recent call last):
    ValueError: formats names something twice: ['text', 'text'].
    """
    if not values:
        raise ValueError(f"{name} must name at least one of {', '.join(choices)}; got none.")
    for value in values:
        check_choice(name, value, choices)
    if len(set(values)) != len(values):
        raise ValueError(f"{name} names something twice: {values!r}.")


def check_whole(name: str, value: Any, minimum: int | None = None) -> None:
    """Raise an error if the value is no integer (a bool is none), or less than the minimum.

    >>> check_whole("size", 1.5, minimum=1)
    Traceback (most recent call last):
    ValueError: size must be a whole number >= 1, got 1.5.
    """
    if not isinstance(value, int) or isinstance(value, bool) or (minimum is not None and value < minimum):
        wanted = "a whole number" if minimum is None else f"a whole number >= {minimum}"
        raise ValueError(f"{name} must be {wanted}, got {value!r}.")


def check_inside(name: str, value: Any, low: float, high: float, *, low_in: bool = False, high_in: bool = False) -> None:
    """Raise an error if the value is no finite number between the bounds, which `low_in` and `high_in` allow themselves.

    >>> check_inside("rate", 20, 0.0, 1.0, high_in=True)
    Traceback (most recent call last):
    ValueError: rate must be in (0, 1], got 20.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    above = number and (value > low or (low_in and value == low))
    below = number and (value < high or (high_in and value == high))
    if not (above and below):
        if math.isinf(low) and math.isinf(high):
            wanted = "a finite number"
        elif math.isinf(high):
            wanted = f"{'>=' if low_in else '>'} {low:g}"
        elif math.isinf(low):
            wanted = f"{'<=' if high_in else '<'} {high:g}"
        else:
            wanted = f"in {'[' if low_in else '('}{low:g}, {high:g}{']' if high_in else ')'}"
        raise ValueError(f"{name} must be {wanted}, got {value!r}.")
