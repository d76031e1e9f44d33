"""`hardkuma diff`: which sentences of one text say something else than another, and in which words."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..common.rendering.html import diff_legend, page_foot, page_head, render_change
from .options import READER_OPTIONS, add_options, check_counts

if TYPE_CHECKING:
    from ..apps.reading import AnchorModel

SUMMARY = "show which sentences of a text say something else than another text, and in which words"
EXAMPLES = """\
examples:
  hardkuma diff old.txt new.txt                             sentences of new.txt that old.txt does not have like that
  hardkuma diff --format html old.txt new.txt > diff.html
  hardkuma diff --columns first second pairs.tsv            two columns of one table, row by row
  hardkuma diff --all --format jsonl old.txt new.txt        sentences that say the same too

Sentences find each other by their embeddings, wherever they stand. A word differs where no word of the other sentence means
the same in its place; numbers, days, months, English negations and opposites are compared as such. Differences are in
{braces}, or coloured. One pass of the encoder aligns, a second one compares.
"""
FORMATS = ("text", "jsonl", "html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `hardkuma diff`."""
    parser.add_argument("a", metavar="A", help=".txt, .jsonl, .csv, .tsv, .parquet, .conll; .gz too; or -")
    parser.add_argument("b", metavar="B", nargs="?", help="the text to compare with it; or --columns")
    parser.add_argument("--columns", nargs=2, metavar="NAME", help="compare these two columns of A, row by row")
    add_options(parser, "input-format", "field")
    parser.add_argument("--all", action="store_true", help="list what says the same too")
    parser.add_argument("--format", choices=FORMATS, help="default: text, or that of --output's suffix")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to this file instead of the terminal")
    add_options(parser, "model", "batch-size", "quiet")
    parser.add_argument(
        "--backend",
        choices=("torch", "onnx"),
        default="torch",
        help="onnx: onnxruntime, in int8 where the processor can (default: %(default)s)",
    )


def check(arguments: argparse.Namespace) -> None:
    """Check that there are two texts, and numbers."""
    if arguments.b is None and arguments.columns is None:
        raise ValueError(f"give a second file, or --columns NAME NAME for two columns of {arguments.a}.")
    if arguments.b is not None and arguments.columns is not None:
        raise ValueError(f"--columns are of one file: leave out {arguments.b}, or --columns.")
    if arguments.columns is not None and arguments.field is not None:
        raise ValueError("--field belongs to two files; --columns names both columns.")
    for name in (arguments.a, arguments.b):
        if name is not None and len(name.split()) > 1 and not os.path.exists(name):
            raise ValueError(f"{name!r:.60} is no file; for two texts: hardkuma pair TEXT TEXT")
    if arguments.a == arguments.b == "-":
        raise ValueError("standard input is one text; give a file for the other.")
    check_counts(arguments, "batch_size")
    _choose_format(arguments)


def _choose_format(arguments: argparse.Namespace) -> str:
    from .writers import choose_output_format

    chosen = choose_output_format(arguments.format, arguments.output)
    if chosen not in FORMATS:
        raise ValueError(f"--output {arguments.output}: differences are written as {', '.join(FORMATS)}, not {chosen}.")
    return chosen


def run(arguments: argparse.Namespace) -> int:
    """Compare and print; 0 when done."""
    from tqdm import tqdm

    from ..common.files import open_atomically
    from ..common.models import load_model

    def load() -> AnchorModel:
        model = load_model(arguments.model)
        if arguments.backend == "torch":
            return model
        from ..apps.export.backends import OnnxGates

        return OnnxGates(model, log=lambda said: print(f"hardkuma: {said}", file=sys.stderr))

    compared = _compare(arguments, load)
    bar = tqdm(compared, unit=" sentences", disable=arguments.quiet or arguments.output is None or None, leave=False)
    counts = Counter[str]()
    shown = (item for item in _counted(bar, counts) if arguments.all or item["change"] != "same")
    with nullcontext() if arguments.output is None else open_atomically(arguments.output) as stream:
        for line in _lines(shown, _choose_format(arguments), sys.stdout if stream is None else None):
            if stream is None:
                print(line)
            else:
                stream.write(f"{line}\n".encode())
    listed = ", ".join(f"{number:,} {change}" for change, number in counts.most_common())
    print(f"{sum(counts.values()):,} compared: {listed or 'no sentence'}.", file=sys.stderr)
    return 0


def _compare(arguments: argparse.Namespace, load: Callable[[], AnchorModel]) -> Iterator[dict[str, Any]]:
    from ..apps.diff import compare_pairs, compare_texts
    from ..data.lines import CorpusError
    from ..data.readers import read_kept_rows, read_rows

    options = {"batch_size": arguments.batch_size}
    if arguments.columns is None:
        texts = [list(read_rows(name, arguments.input_format, arguments.field)) for name in (arguments.a, arguments.b)]
        return compare_texts(load(), *texts, **options)
    first, second = arguments.columns
    rows = read_kept_rows(arguments.a, arguments.input_format, first, keep=[second])
    try:
        start = next(rows, None)  # a column that is not there is said before the model is loaded
    except CorpusError as error:
        raise ValueError(error.explain(READER_OPTIONS | {"column": "--columns", "keep": "--columns"})) from error
    whole = [] if start is None else chain([start], rows)
    pairs = ((row.text, str("" if row.kept[second] is None else row.kept[second])) for row in whole)
    return compare_pairs(load(), pairs, **options)


def _counted(items: Iterable[dict[str, Any]], counts: Counter[str]) -> Iterator[dict[str, Any]]:
    for item in items:
        counts[item["change"]] += 1
        yield item


def _lines(items: Iterable[dict[str, Any]], format: str, stream: TextIO | None) -> Iterator[str]:
    """The output; on a stream, coloured if that is wanted there."""
    from ..common.rendering.terminal import paint_change
    from ..scoring_hardkuma import use_colour

    if format == "jsonl":
        yield from (json.dumps(item, ensure_ascii=False) for item in items)
    elif format == "html":
        yield page_head("What differs", diff_legend()).rstrip("\n")
        yield from map(render_change, items)
        yield page_foot().rstrip("\n")
    else:
        colour = stream is not None and use_colour(stream)
        terminal = stream is not None and (stream.isatty() or colour)
        yield from (paint_change(item, colour, terminal) for item in items)
