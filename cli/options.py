"""Options that several commands share."""

from __future__ import annotations

import argparse

from ..common.formats import INPUT_FORMATS


def add_model_argument(parser: argparse._ActionsContainer) -> None:
    """`--model`, by default the released gate head.

    >>> parser = argparse.ArgumentParser()
    >>> add_model_argument(parser)
    >>> parser.parse_args([]).model is None
    True
    """
    parser.add_argument("--model", metavar="FOLDER", help="checkpoint folder or Hub id (default: the released gate head)")


def add_field_argument(parser: argparse._ActionsContainer) -> None:
    """`--field`, the column of a file that holds the text.

    >>> parser = argparse.ArgumentParser()
    >>> add_field_argument(parser)
    >>> parser.parse_args(["--field", "body"]).field
    'body'
    """
    parser.add_argument("--field", metavar="NAME", help="field or column with the text (default: text or sentence)")


def add_input_format_argument(parser: argparse._ActionsContainer) -> None:
    """`--input-format`, for files whose suffix does not say it, and for standard input.

    >>> parser = argparse.ArgumentParser()
    >>> add_input_format_argument(parser)
    >>> parser.parse_args(["--input-format", "tsv"]).input_format
    'tsv'
    """
    parser.add_argument(
        "--input-format",
        choices=INPUT_FORMATS,
        metavar="NAME",
        help=f"of the input: {', '.join(INPUT_FORMATS)} (default: from the suffix)",
    )


def add_batch_size_argument(parser: argparse._ActionsContainer) -> None:
    """`--batch-size`, 32 by default; `check_count` checks it.

    >>> parser = argparse.ArgumentParser()
    >>> add_batch_size_argument(parser)
    >>> parser.parse_args([]).batch_size
    32
    """
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="texts a pass (default: %(default)s)")


def add_backend_argument(parser: argparse._ActionsContainer) -> None:
    """`--backend`, torch by default.

    >>> parser = argparse.ArgumentParser()
    >>> add_backend_argument(parser)
    >>> parser.parse_args(["--backend", "auto"]).backend
    'auto'
    """
    parser.add_argument(
        "--backend",
        choices=("torch", "onnx", "auto"),
        default="torch",
        help="onnx: onnxruntime, in int8 where the processor can; auto: the faster one, by a trial (default: %(default)s)",
    )


def add_quiet_argument(parser: argparse._ActionsContainer) -> None:
    """`--quiet`, for no progress bar (`disable=arguments.quiet or None` of tqdm: none in a log file either).

    >>> parser = argparse.ArgumentParser()
    >>> add_quiet_argument(parser)
    >>> parser.parse_args([]).quiet
    False
    """
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def add_selector_argument(
    parser: argparse._ActionsContainer, default: str = "meaning, or the first", several: bool = False
) -> None:
    """`--selector`, for models with several.

    >>> parser = argparse.ArgumentParser()
    >>> add_selector_argument(parser)
    >>> parser.parse_args(["--selector", "entities"]).selector
    'entities'
    """
    every = "; all for all of them" if several else ""
    parser.add_argument(
        "--selector", metavar="NAME", help=f"which selector, where a model has several{every} (default: {default})"
    )
