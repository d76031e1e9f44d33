"""Fields of a dataclass that know their meaning and range: declared once, checked and explained from the declaration."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Rule:
    """What a field means and which values it takes, besides its type: kept in the field's metadata."""

    help: str
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    below: float | None = None
    reason: str = ""  # why the range is what it is, where that is not plain


def setting(default: Any, help: str, **limits: Any) -> Any:
    """A field with its meaning; `limits` are those of `Rule`.

    >>> @dataclass
    ... class Example:
    ...     size: int = setting(3, "how many", at_least=1)
    >>> Example().size, dataclasses.fields(Example)[0].metadata["rule"].at_least
    (3, 1)
    """
    metadata = {"rule": Rule(help, **limits)}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Setting:
    """One field as it was declared: name, type (without `| None`), default, rule."""

    name: str
    kind: Any
    optional: bool
    default: Any
    rule: Rule

    @property
    def wanted(self) -> str:
        """The values that it takes, in words."""
        rule, limits = self.rule, ""
        if rule.below is not None:
            limits = f" in [{rule.at_least:g}, {rule.below:g})"
        elif rule.at_least is not None:
            limits = f" >= {rule.at_least:g}"
        elif rule.above is not None:
            limits = f" > {rule.above:g}"
        if rule.choices:
            words = f"one of {', '.join(rule.choices)}"
        elif get_origin(self.kind) is dict:
            words = "names, each with its value"
        elif get_origin(self.kind) is list:
            words = "a list of texts"
        else:
            words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[self.kind] + limits
        return f"{words}, or null" if self.optional else words

    def check(self, value: Any) -> Any:
        """The value in the field's type; ValueError if it has another type or lies out of range."""
        if value is None and self.optional:
            return None
        value = self._convert(value)
        if not (self._has_type(value) and self._in_range(value)):
            reason = self.rule.reason
            if self.kind is str and not isinstance(value, str):
                reason = "put it in quotes, since YAML takes it for something else than text"
            reason = f": {reason}" if reason else ""
            raise ValueError(f"{self.name} must be {self.wanted}{';' if self.rule.choices else ','} got {value!r}{reason}.")
        return value

    def _convert(self, value: Any) -> Any:
        """What YAML leaves to be done: 1e-3 is text to it, 1 no float; one text stands for a list of one."""
        if self.kind is float and isinstance(value, (str, int)) and not isinstance(value, bool):
            try:
                return float(value)
            except ValueError:
                return value
        if get_origin(self.kind) is list and isinstance(value, str):
            return [value]
        return read_numbers(value) if get_origin(self.kind) is dict else value

    def _has_type(self, value: Any) -> bool:
        if get_origin(self.kind) is list:
            return isinstance(value, list) and all(isinstance(item, str) for item in value)
        if self.kind is float:
            return isinstance(value, float) and math.isfinite(value)
        # To Python, True is an int.
        return isinstance(value, get_origin(self.kind) or self.kind) and isinstance(value, bool) == (self.kind is bool)

    def _in_range(self, value: Any) -> bool:
        rule = self.rule
        return (
            (not rule.choices or value in rule.choices)
            and (rule.at_least is None or value >= rule.at_least)
            and (rule.above is None or value > rule.above)
            and (rule.below is None or value < rule.below)
        )


def settings_of(cls: type) -> tuple[Setting, ...]:
    """The fields of a dataclass that was declared by `setting`s, in order.

    >>> @dataclass
    ... class Example:
    ...     size: int | None = setting(3, "how many", at_least=1)
    >>> settings_of(Example)[0].wanted
    'a whole number >= 1, or null'
    """
    types, settings = get_type_hints(cls), []
    for declared in dataclasses.fields(cls):
        kind = types[declared.name]
        optional = isinstance(kind, UnionType)
        if optional:
            (kind,) = set(get_args(kind)) - {NoneType}
        factory = declared.default_factory
        default = declared.default if factory is dataclasses.MISSING else factory()
        settings.append(Setting(declared.name, kind, optional, default, declared.metadata["rule"]))
    return tuple(settings)


class Settings:
    """Base of dataclasses of `setting`s: every value is checked when the object is made.

    >>> @dataclass
    ... class Example(Settings):
    ...     size: int = setting(3, "how many", at_least=1)
    >>> Example(size=0)
    Traceback (most recent call last):
    ValueError: size must be a whole number >= 1, got 0.
    """

    def __post_init__(self) -> None:
        for key in settings_of(type(self)):
            setattr(self, key.name, key.check(getattr(self, key.name)))

    def as_dict(self) -> dict[str, Any]:
        """Every setting with its value, defaults filled in."""
        return {key.name: getattr(self, key.name) for key in settings_of(type(self))}


def suggest(name: Any, known: Iterable[str]) -> str:
    """What was probably meant by a name that is none of these, or all of these.

    >>> suggest("epoch", ["epochs", "subsets"]), suggest("zzz", ["epochs", "subsets"])
    ("did you mean 'epochs'?", 'known: epochs, subsets.')
    """
    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}."


def read_numbers(value: Any) -> Any:
    """Numbers that YAML takes for text (`1e-3` has no dot) as numbers, inside of lists and dicts too.

    >>> read_numbers({"temperature": "1e-1", "lambda_s": ["5e-1", 1], "view": "reencode"})
    {'temperature': 0.1, 'lambda_s': [0.5, 1], 'view': 'reencode'}
    """
    if isinstance(value, dict):
        return {key: read_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [read_numbers(item) for item in value]
    if isinstance(value, str) and value[-1:].isdigit() and "e" in value.lower():
        try:
            return float(value)
        except ValueError:
            return value
    return value
