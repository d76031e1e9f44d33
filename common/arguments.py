"""What users ask for by word: a wrong option or name is answered by one line, and options may stand between texts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

Thing = TypeVar("Thing")
# What other programs call our options.
_ELSEWHERE = dict.fromkeys(("--top-n", "--top-k", "--top", "--limit", "--count"), "--number")


class Parser(argparse.ArgumentParser):
    """An argument parser whose help keeps the lines of its examples, and whose errors are one line with the way to help.

    >>> parser = Parser(prog="hardkuma pair")
    >>> for name in ("a", "b", "--rate"):
    ...     _ = parser.add_argument(name)
    >>> parser.parse_args(["one", "--rate", "0.3", "two"])
    Namespace(rate='0.3', a='one', b='two')
    """

    def __init__(self, *arguments: object, **options: object):
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*arguments, **options)  # type: ignore[arg-type] # argparse's own, whatever they are
        self._is_intermixing = False

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse does, but `search INDEX --number 3 QUESTION` is understood too: what argparse calls intermixed, which
        it has for parsers without commands, and not after a `--`."""
        given = list(sys.argv[1:] if args is None else args)
        if self._is_intermixing or self._subparsers is not None or "--" in given:
            return super().parse_known_args(given, namespace)
        self._is_intermixing = True
        try:
            return self.parse_known_intermixed_args(given, namespace)
        finally:
            self._is_intermixing = False

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse does; a word that it does not know is answered by `reject`."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.reject(unknown)
        return parsed

    def reject(self, unknown: Sequence[str]) -> NoReturn:
        """Say which words are not understood, and what was perhaps meant; stop with status 2."""
        options = [option for action in self._actions for option in action.option_strings]
        name = unknown[0].partition("=")[0]
        ours = _ELSEWHERE.get(name.replace("_", "-"))
        hint = _guess(name, options) if ours not in options else f"; did you mean {ours}?"
        self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse does, with what was perhaps meant: of commands and of the choices of an option."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            hint = _guess(str(value), [str(choice) for choice in action.choices or ()])
            raise argparse.ArgumentError(action, f"{error.message}{hint}") from None

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and stop with status 2."""
        end = "" if message.endswith((".", "?")) else "."
        print(f"{self.prog}: {message}{end} See {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def _guess(word: str, known: Sequence[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def find_named(what: str, name: str, known: Mapping[str, Thing]) -> Thing:
    """The thing of that name, or an error that lists them all.

    >>> find_named("colour", "blue", {"red": 1, "green": 2})
    Traceback (most recent call last):
    ValueError: unknown colour 'blue'; known: red, green.
    """
    if name not in known:
        raise ValueError(f"unknown {what} {name!r}; known: {', '.join(known)}.")
    return known[name]
