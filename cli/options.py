"""Options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..common.text import INPUT_FORMATS

_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "model": {"metavar": "FOLDER", "help": "checkpoint folder or Hub id (default: the released gate head)"},
    "field": {"metavar": "NAME", "help": "field or column with the text (default: text or sentence)"},
    "input-format": {
        "choices": INPUT_FORMATS,
        "metavar": "NAME",
        "help": f"of the input: {', '.join(INPUT_FORMATS)} (default: from the suffix)",
    },
    "batch-size": {"type": int, "default": 32, "metavar": "N", "help": "texts a pass (default: %(default)s)"},
    # `disable=arguments.quiet or None` of tqdm: no bar in a log file either.
    "quiet": {"action": "store_true", "help": "no progress bar"},
}
# How these options name the parameters of `data.readers`, whose errors advise them.
READER_OPTIONS = {"column": "--field", "format": "--input-format", "keep": "--columns"}


def add_options(parser: argparse._ActionsContainer, *names: str) -> None:
    """Add some of the options model, field, input-format, batch-size and quiet.

    >>> parser = argparse.ArgumentParser()
    >>> add_options(parser, "field", "batch-size")
    >>> parser.parse_args(["--field", "body"])
    Namespace(field='body', batch_size=32)
    """
    for name in names:
        parser.add_argument(f"--{name}", **_OPTIONS[name])


def check_folder(name: str) -> None:
    """Raise NotADirectoryError where a folder to save into is a file: before a long run, not after it."""
    if Path(name).is_file():
        raise NotADirectoryError(f"{name} is a file; give a folder to save into.")


def check_counts(options: argparse.Namespace, *names: str) -> None:
    """ValueError where one of these options, if there is such, is not a whole number of at least 1.

    >>> check_counts(argparse.Namespace(batch_size=0, sample=None), "batch_size", "sample")
    Traceback (most recent call last):
    ValueError: --batch-size must be a whole number >= 1, got 0.
    """
    from ..scoring_hardkuma import check_count

    for name in names:
        if getattr(options, name, None) is not None:
            check_count(f"--{name.replace('_', '-')}", getattr(options, name))


def add_selector_option(
    parser: argparse._ActionsContainer, default: str = "meaning, or the first", several: bool = False
) -> None:
    """`--selector`, for models with several.

    Args:
        default: what help says about it.
        several: whether `all` is understood.

    >>> parser = argparse.ArgumentParser()
    >>> add_selector_option(parser)
    >>> parser.parse_args(["--selector", "entities"]).selector
    'entities'
    """
    every = "; all for all of them" if several else ""
    parser.add_argument(
        "--selector", metavar="NAME", help=f"which selector, where a model has several{every} (default: {default})"
    )
