"""`hardkuma pair`: which words make two texts similar, and in which they differ."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from ..common.rendering.html import page_foot, page_head, pair_legend, render_pair
from .options import add_options, add_selector_option

SUMMARY = "show which words make two texts similar, and in which they differ"
EXAMPLES = """\
examples:
  hardkuma pair "A cat sleeps on the mat." "My cat is called Tom."
  hardkuma pair --rate 0.3 --format json "..." "..."      everything that is known, for programs
  hardkuma pair --format html "..." "..." > pair.html

Similarity is the cosine of the encoder's embeddings, as sentence-transformers gives it. The gates propose words, and the
text is encoded again without them: those without which the cosine falls furthest carry the similarity. As a check they are
removed together, and so are as many random words: the cosine must fall further without the former. A similarity that
unrelated texts may have too is not explained. What the encoder hardly sees, order of words and negation, is said.

Words that differ from the other text are in {braces} or another colour; `hardkuma diff` compares whole files.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `hardkuma pair`."""
    parser.add_argument("a", metavar="A", help="a text")
    parser.add_argument("b", metavar="B", help="another text")
    add_options(parser, "model")
    parser.add_argument("--rate", type=float, default=0.2, help="fraction of the words of each side (default: %(default)s)")
    parser.add_argument("--format", choices=("text", "json", "html"), default="text", help="default: %(default)s")
    parser.add_argument("--no-surface", action="store_true", help="gates that ignore how words are written")
    add_selector_option(parser)


def check(arguments: argparse.Namespace) -> None:
    """Check that the rate is a fraction, and that texts are given, not files.

    >>> check(argparse.Namespace(rate=20.0))
    Traceback (most recent call last):
    ValueError: rate must be a fraction in (0, 1], got 20.0.
    """
    from ..scoring_hardkuma import check_selection

    check_selection(arguments.rate, None)
    for text in (arguments.a, arguments.b):
        if Path(text).suffix and os.path.isfile(text):
            raise ValueError(f"{text!r} is a file, and pair takes texts; files: hardkuma diff {arguments.a} {arguments.b}")


def run(arguments: argparse.Namespace) -> int:
    """Explain and print; 0 when done."""
    from ..apps.pairs import explain_pair
    from ..common.models import load_model
    from ..common.rendering.terminal import paint_pair
    from ..scoring_hardkuma import encodable, use_colour

    model = load_model(arguments.model)
    texts = encodable(arguments.a), encodable(arguments.b)
    options = {"use_surface": not arguments.no_surface, "selector": arguments.selector}
    pair = explain_pair(model, *texts, rate=arguments.rate, **options)
    if arguments.format == "json":
        print(json.dumps(pair, ensure_ascii=False))
    elif arguments.format == "html":
        print(page_head("What makes two texts similar", pair_legend()) + render_pair(pair) + page_foot(), end="")
    else:
        colour = use_colour(sys.stdout)
        print(paint_pair(pair, colour, sys.stdout.isatty() or colour))
    return 0
