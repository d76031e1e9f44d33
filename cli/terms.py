"""`hardkuma terms`: the terms of a document or a corpus, with counts, spread and an example each."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from ..highlight_hardkuma import safe_text
from .options import add_options, add_selector_option

SUMMARY = "list the key terms of a document or a corpus"
EXAMPLES = """\
examples:
  hardkuma terms report.txt                                 the twenty best, with counts and an example sentence each
  hardkuma terms --number 100 --format jsonl tweets.jsonl.gz > terms.jsonl
  hardkuma terms --selector entities report.txt             names

A term is a run of selected words, without function words at its ends; Kraken and kraken are one. `count` is how often it
stands in the file, `rows` in how many of its rows (lines, records). Terms are sorted by the sum of their probabilities.
"""


TERM_WIDTH, EXAMPLE_WIDTH = 40, 200  # characters that people see; --format jsonl has all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `hardkuma terms`."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help=".txt, .jsonl, .csv, .tsv, .parquet, .conll; .gz too; or -"
    )
    add_options(parser, "input-format", "field")
    parser.add_argument("--number", type=int, default=20, metavar="N", help="terms, at most (default: %(default)s)")
    parser.add_argument("--rate", type=float, help="select this fraction of each sentence's words (default: own threshold)")
    parser.add_argument("--format", choices=("text", "jsonl"), default="text", help="default: %(default)s")
    add_options(parser, "model")
    add_selector_option(parser)
    add_options(parser, "batch-size", "quiet")


def check(arguments: argparse.Namespace) -> None:
    """Check numbers.

    >>> check(argparse.Namespace(number=0, rate=None, batch_size=32))
    Traceback (most recent call last):
    ValueError: --number must be a whole number >= 1, got 0.
    """
    from ..scoring_hardkuma import check_count, check_selection

    check_count("--number", arguments.number)
    check_selection(arguments.rate, None)
    check_count("--batch-size", arguments.batch_size)


def run(arguments: argparse.Namespace) -> int:
    """Find and print; 0 when done."""
    from tqdm import tqdm

    from ..apps.terms import find_terms
    from ..common.models import load_model
    from ..data.readers import read_rows
    from ..scoring_hardkuma import encodable

    rows = [read_rows(name, arguments.input_format, arguments.field) for name in arguments.files]
    model = load_model(arguments.model)
    read = Counter[str]()

    def texts() -> Iterator[str]:
        for text in (text for file in rows for text in file):
            read["blank" if not text.strip() else "text"] += 1
            yield encodable(text)

    bar = tqdm(texts(), unit=" rows", disable=arguments.quiet or None, leave=False)
    options = {"selector": arguments.selector, "rate": arguments.rate, "batch_size": arguments.batch_size}
    terms = find_terms(model, bar, arguments.number, **options)
    if arguments.format == "jsonl":
        for term in terms:
            print(json.dumps(asdict(term), ensure_ascii=False))
    elif terms:
        clean = safe_text if sys.stdout.isatty() else str
        lines = [(_cut(term.text, TERM_WIDTH), term, _cut(term.example, EXAMPLE_WIDTH)) for term in terms]
        width = max(len(text) for text, _, _ in lines)
        print(f"{'term':{width}}  {'count':>6} {'rows':>6}  example")
        for text, term, example in lines:
            print(clean(f"{text:{width}}  {term.count:6} {term.spread:6}  {example}"))
    if not terms:
        reason = "no term was found. Try --rate 0.2." if read["text"] else "the input is empty: there is no text in it."
        print(f"hardkuma terms: {reason}", file=sys.stderr)
    return 0


def _cut(text: str, width: int) -> str:
    """One line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
