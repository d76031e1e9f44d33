"""What the browser asks: the fields of a form and the settings above it, as JSON of unknown origin."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Query:
    """One question of the page.

    Attributes:
        text: the text, the first of two, or the passages, one a line.
        second: the second text, or the question to the passages.
        selector: the name of a selector; None for the one that the page starts with.
        percent: the share of words to select; None for the model's own decision.
    """

    text: str = ""
    second: str = ""
    selector: str | None = None
    percent: float | None = None

    @classmethod
    def parse(cls, body: bytes) -> Query:
        """The query of a request's body; a ValueError says what is wrong with it.

        >>> Query.parse(b'{"text": "Hi", "percent": 20}')
        Query(text='Hi', second='', selector=None, percent=20.0)
        """
        try:
            values = json.loads(body)
        except (ValueError, RecursionError):
            raise ValueError("The question must be JSON.") from None
        if not isinstance(values, dict):
            raise ValueError(f"The question must be a JSON object, got a {type(values).__name__}.")
        return cls(
            **{field.name: _checked(field.name, values[field.name]) for field in fields(cls) if field.name in values}
        )


def _checked(name: str, value: Any) -> Any:
    if value is None and name in ("selector", "percent"):
        return None
    if name != "percent":
        if not isinstance(value, str):
            raise ValueError(f"{name} must be a text, got a {type(value).__name__}.")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"percent must be a number, got a {type(value).__name__}.")
    return float(value)
