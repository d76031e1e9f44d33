"""Options that several commands share."""

from __future__ import annotations

import argparse


def add_model_argument(parser: argparse._ActionsContainer) -> None:
    """`--model`, by default the released gate head.

    >>> parser = argparse.ArgumentParser()
    >>> add_model_argument(parser)
    >>> parser.parse_args([]).model is None
    True
    """
    parser.add_argument("--model", metavar="FOLDER", help="checkpoint folder or Hub id (default: the released gate head)")


def add_selector_argument(parser: argparse._ActionsContainer) -> None:
    """`--selector`, for models with several.

    >>> parser = argparse.ArgumentParser()
    >>> add_selector_argument(parser)
    >>> parser.parse_args([]).selector
    0
    """
    parser.add_argument(
        "--selector", type=int, default=0, metavar="N", help="which selector, where a model has several (default: 0)"
    )
