"""`hardkuma search`: passages of text files that answer a question, and the words that carry each match."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.files import hold_output
from .options import add_options, add_selector_option, check_counts

if TYPE_CHECKING:
    from ..apps.search import Match

SUMMARY = "search text files by meaning, with the words that carry each match"
EXAMPLES = """\
examples:
  hardkuma search notes --build notes.txt more.jsonl        index two files in the folder notes
  hardkuma search notes "a question" --build notes.txt      index one, and ask; --build comes last
  hardkuma search notes "how do I renew my passport?"       the nearest passages, with the words that carry each match
  hardkuma search notes --number 20 --format jsonl "..."    for programs
  hardkuma search notes --all "..."                         the nearest passages, however far

A passage is a row of a file; one of more than 100 words is cut between sentences. Words in [brackets] carry the match, by
the check of `hardkuma pair`; brackets of the text itself are written \\[ and \\]. Passages that are no closer than
unrelated texts may be are left out; --all shows them, too. Up to 50,000 passages are searched exactly; more of them by
faiss, where it is installed (pip install 'hardkuma[search]').
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `hardkuma search`."""
    parser.add_argument("index", metavar="INDEX", type=Path, help="folder of the index")
    parser.add_argument("question", nargs="?", metavar="QUESTION", help="what to look for")
    source = parser.add_argument_group("making the index")
    source.add_argument("--build", nargs="+", metavar="FILE", help="index these files: .txt, .jsonl, .csv, ...; - too")
    add_options(source, "input-format", "field", "batch-size", "quiet")
    parser.add_argument("--number", type=int, default=5, metavar="N", help="passages, at most (default: %(default)s)")
    parser.add_argument("--all", action="store_true", help="passages that are no closer than unrelated texts may be, too")
    parser.add_argument(
        "--rate", type=float, default=0.2, help="of the words that may carry a match (default: %(default)s)"
    )
    parser.add_argument("--no-words", action="store_true", help="passages alone, which is faster")
    parser.add_argument("--format", choices=("text", "jsonl"), default="text", help="default: %(default)s")
    add_options(parser, "model")
    add_selector_option(parser)


def check(arguments: argparse.Namespace) -> None:
    """Check values and combinations of options.

    >>> parser = argparse.ArgumentParser()
    >>> add_arguments(parser)
    >>> check(parser.parse_args(["notes"]))
    Traceback (most recent call last):
    ValueError: give a question, or --build FILE to make the index.
    """
    from ..scoring_hardkuma import check_selection

    check_selection(arguments.rate, None)
    check_counts(arguments, "number", "batch_size")
    if arguments.question is None and not arguments.build:
        raise ValueError("give a question, or --build FILE to make the index.")
    if arguments.question is not None and not arguments.question.strip():
        raise ValueError("the question is empty.")
    for option in ("field", "input_format"):
        if getattr(arguments, option) is not None and not arguments.build:
            raise ValueError(f"--{option.replace('_', '-')} belongs to --build, which is not given.")


def run(arguments: argparse.Namespace) -> int:
    """Index, search, or both; 0 when done."""
    with hold_output(arguments.index) if arguments.build else nullcontext():
        return _search(arguments)


def _search(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from ..apps.reading import chance_of
    from ..apps.search import SearchIndex, check_target, read_passages
    from ..common.models import load_model
    from ..data.readers import choose_input_format

    if arguments.build:  # complain before a long pass
        check_target(arguments.index)
        for name in arguments.build:
            try:
                choose_input_format(name, arguments.input_format, arguments.field)
            except FileNotFoundError as error:
                order = (
                    "" if arguments.question else f" (a question goes before --build: search {arguments.index} QUESTION)"
                )
                raise FileNotFoundError(f"{error}{order}") from error
    index = None if arguments.build else SearchIndex.load(arguments.index)
    model = load_model(arguments.model)
    if index is None:
        passages = read_passages(arguments.build, arguments.input_format, arguments.field)
        bar = tqdm(passages, unit=" passages", disable=arguments.quiet or None, leave=False)
        index = SearchIndex.build(model, bar, arguments.batch_size)
        index.save(arguments.index)
        print(f"{arguments.index}: {len(index.passages):,} passages indexed.", file=sys.stderr)
    if arguments.question is not None:
        options = {"rate": arguments.rate, "selector": arguments.selector}
        found = index.search(model, arguments.question, arguments.number, explain=not arguments.no_words, **options)
        chance = -2.0 if arguments.all else chance_of(model)  # less than any cosine
        shown = [match for match in found if match.similarity > chance]
        if not shown:
            limit = f"unrelated texts may have up to {chance:.2f}"
            print(f"hardkuma search: nothing fits well ({limit}); this is the nearest, --all shows more.", file=sys.stderr)
        for match in shown or found[:1]:
            print(_line(match) if arguments.format == "jsonl" else _paragraph(match))
    return 0


def _line(match: Match) -> str:
    fields = {"similarity": match.similarity, "source": match.passage.source, "row": match.passage.row}
    fields |= {"text": match.passage.text}
    if match.pair is not None:
        fields |= {"explained": match.pair["explained"], "words": match.words, "reason": match.pair["reason"]}
    return json.dumps(fields, ensure_ascii=False)


def _paragraph(match: Match) -> str:
    from ..scoring_hardkuma import paint, safe_text, use_colour

    colour = use_colour(sys.stdout)
    clean = safe_text if colour or sys.stdout.isatty() else str
    head = f"{match.similarity:.3f}  {clean(match.passage.source)}, row {match.passage.row}"
    words = [] if match.pair is None else match.pair["b"]["words"]
    shown = [{**word, "probability": float(word["carries"]), "selected": word["carries"]} for word in words]
    text = paint({"text": clean(match.passage.text), "words": shown}, colour)
    reason = "" if match.pair is None or match.pair["explained"] else f"\n  ({match.pair['reason']})"
    return f"{head}\n  {text}{reason}\n"
