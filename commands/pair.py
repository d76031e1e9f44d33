"""`hardkuma pair`: which words make two texts similar."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from ..rendering.terminal import paint, safe, use_colour
from .options import add_model_argument, add_selector_argument

SUMMARY = "show which words make two texts similar"
EXAMPLES = """\
examples:
  hardkuma pair "A cat sleeps on the mat." "My cat is called Tom."
  hardkuma pair --rate 0.3 --format json "..." "..."      everything that is known, for programs
  hardkuma pair --format html "..." "..." > pair.html

Similarity is the cosine of the encoder's embeddings, as sentence-transformers gives it. Every word is removed in turn, and
the text encoded again: the words without which the cosine falls furthest carry the similarity. As a check they are removed
together, and so are as many random words: the cosine should fall further without the former.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `hardkuma pair`."""
    parser.add_argument("a", metavar="A", help="a text")
    parser.add_argument("b", metavar="B", help="another text")
    add_model_argument(parser)
    parser.add_argument("--rate", type=float, default=0.2, help="fraction of the words of each side (default: %(default)s)")
    parser.add_argument("--format", choices=("text", "json", "html"), default="text", help="default: %(default)s")
    parser.add_argument("--no-surface", action="store_true", help="gates that ignore how words are written")
    add_selector_argument(parser)


def check(arguments: argparse.Namespace) -> None:
    """Refuse a rate that is no fraction."""
    from ..words_hardkuma import check_selection

    check_selection(arguments.rate, None)


def run(arguments: argparse.Namespace) -> int:
    """Explain and print; 0 when done."""
    from ..common.models import load_model
    from ..pairs_hardkuma import explain_pair
    from ..words_hardkuma import encodable

    model = load_model(arguments.model)
    texts = encodable(arguments.a), encodable(arguments.b)
    options = {"use_surface": not arguments.no_surface, "selector": arguments.selector}
    pair = explain_pair(model, *texts, rate=arguments.rate, **options)
    if arguments.format == "json":
        print(json.dumps(pair, ensure_ascii=False))
    elif arguments.format == "html":
        from ..rendering.html import page_foot, page_head, render_pair

        print(page_head("What makes two texts similar") + render_pair(pair) + page_foot(), end="")
    else:
        print(describe(pair, use_colour(sys.stdout), sys.stdout.isatty() or use_colour(sys.stdout)))
    return 0


def describe(pair: Mapping[str, Any], colour: bool, terminal: bool) -> str:
    """What `explain_pair` found, for people."""
    sides = [safe(pair[name]) if terminal else pair[name] for name in "ab"]
    most = max([word["fall"] for side in sides for word in side["words"]], default=0.0)
    lines = [f"similarity {pair['similarity']:.3f}", ""]
    for name, side in zip("AB", sides, strict=True):
        share = [max(word["fall"], 0.0) / most if most > 0 else 0.0 for word in side["words"]]
        words = [
            {**word, "probability": value, "selected": word["carries"]}
            for word, value in zip(side["words"], share, strict=True)
        ]
        cut = "  (the encoder does not see the end)" if side["truncated"] else ""
        lines.append(f"{name}  {paint({**side, 'words': words}, colour)}{cut}")
        carrying = sorted((word for word in side["words"] if word["carries"]), key=lambda word: -word["fall"])
        lines.append(
            "   " + (", ".join(f"{_word(side, word)} {word['fall']:.3f}" for word in carrying) or "no word carries it")
        )
    links = [
        f"{_word(sides[0], sides[0]['words'][link['a']])} - {_word(sides[1], sides[1]['words'][link['b']])}"
        for link in pair["links"][:3]
    ]
    if links:
        lines += ["", f"together: {', '.join(links)}"]
    if not any(word["carries"] for side in sides for word in side["words"]):
        return "\n".join(lines)
    without = pair["faithfulness"]["similarity_without"]
    lines += [
        "",
        f"without one side's words {without['carrying']:.3f}, without as many random ones {without['random']:.3f}",
    ]
    if pair["faithfulness"]["faithful"] is False:
        lines.append("The check fails: these words do not carry the similarity more than others do.")
    return "\n".join(lines)


def _word(side: Mapping[str, Any], word: Mapping[str, Any]) -> str:
    return side["text"][word["start"] : word["end"]]
