"""`hardkuma benchmark`: the gates beside every method that one would use instead, on labelled corpora."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.arguments import Parser
from . import tables
from .options import add_options, add_selector_option, check_counts

if TYPE_CHECKING:
    from ..evaluation.benchmark import Checkpoint

SUMMARY = "compare gates with every method that one would use instead, on labelled corpora"
EXAMPLES = """\
examples:
  hardkuma benchmark --data corpora                         the released gates beside every method, on what is in there
  hardkuma benchmark --data my.conll --methods gates_surface capitals keybert
  hardkuma benchmark --data corpora --model a=runs/a/model --model b=runs/b/model
  hardkuma benchmark --data corpora --model none            no gates
  hardkuma benchmark --table keyphrases --help              key phrases beside other extractors
  hardkuma benchmark --table differences --help             words in which two texts differ, beside other methods

Results, a table and an HTML report go to --output. What is done is not done again: add methods or corpora at any time.
"""
MODEL_HELP = (
    "HardKuma checkpoint (default: the released gate head; 'none': no gates); repeat it for seeds of one recipe, or name "
    "recipes to compare them"
)
NO_MODEL = "none"


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the benchmark's arguments to a parser of any command.

    >>> add_arguments(argparse.ArgumentParser()).parse_args(["--data", "corpora"]).sample
    800
    """
    from ..evaluation.baselines.registry import METHODS
    from ..evaluation.faithfulness import REMOVALS

    parser.add_argument(
        "--table", choices=["words", *tables.METHODS], default="words", help="what is measured (default: %(default)s)"
    )
    parser.add_argument("--data", nargs="+", required=True, help="folder with wnut17/ and wikigold/, or CoNLL files")
    parser.add_argument("--output", default="runs/benchmark", help="folder for results (default: %(default)s)")
    parser.add_argument("--model", action="append", default=[], metavar="[NAME=]CHECKPOINT", help=MODEL_HELP)
    add_selector_option(parser, default="each row's own; given, it holds for all rows of gates")
    parser.add_argument("--encoder", help="encoder of the baselines (default: the model's, or MiniLM)")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), metavar="METHOD", help=f"of: {', '.join(METHODS)}")
    parser.add_argument("--corpora", nargs="+", metavar="NAME", help="of those found in --data")
    parser.add_argument("--sample", type=int, default=800, help="sentences per corpus (default: %(default)s)")
    parser.add_argument(
        "--expensive-sample", type=int, default=100, help="for methods of many passes (default: %(default)s)"
    )
    parser.add_argument(
        "--faithfulness-sample",
        type=int,
        default=100,
        help="for sufficiency and comprehensiveness, at most --expensive-sample (default: %(default)s)",
    )
    parser.add_argument(
        "--lower",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure gates, capitals and spaCy on lower-cased text too (default: yes)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of random methods (default: 0 1 2)")
    parser.add_argument("--bootstrap", type=int, default=1000, help="draws for the intervals (default: %(default)s)")
    parser.add_argument("--removal", choices=REMOVALS, default="mask", help="how words are removed (default: %(default)s)")
    parser.add_argument(
        "--card",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="Markdown files or model folders to write the table to",
    )
    parser.add_argument("--again", action="store_true", help="run everything again, even what is done")
    add_options(parser, "quiet")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark from the command line; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    asking = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    asking.add_argument("--table")
    asked = asking.parse_known_args(given)[0].table
    if asked in tables.METHODS:
        return tables.main(asked, given)
    description = "Every method on the same sentences: JSON, Markdown and an HTML report."
    parser = Parser(prog="hardkuma benchmark", description=description, epilog=EXAMPLES)
    options = add_arguments(parser).parse_args(given)
    try:
        check(options)
    except ValueError as error:
        parser.error(str(error))
    return run(options, shlex.join(["hardkuma", "benchmark", *given]))


def check(options: argparse.Namespace) -> None:
    """Check numbers, and that `--model none` is alone."""
    check_counts(options, "sample", "expensive_sample", "faithfulness_sample", "bootstrap")
    if min(options.seeds) < 0:
        raise ValueError(f"--seeds must be >= 0, got {min(options.seeds)}.")
    if NO_MODEL in options.model and len(options.model) > 1:
        raise ValueError(f"--model {NO_MODEL} leaves gates out, and other checkpoints are given; leave one of both out.")


def run(options: argparse.Namespace, command: str) -> int:
    """Run the benchmark with parsed arguments."""
    from ..evaluation.benchmark import run_benchmark
    from ..evaluation.tables import card_table, write_table

    names = ("sample", "seeds", "output", "encoder", "corpora", "expensive_sample", "faithfulness_sample", "bootstrap")
    benchmark = run_benchmark(
        options.data if len(options.data) > 1 else options.data[0],
        options.methods,
        models=find_models(options.model),
        resume=not options.again,
        progress=not options.quiet,
        command=command,
        **{name: getattr(options, name) for name in (*names, "removal", "selector", "lower")},
    )
    for path in options.card:
        write_table(path, card_table(benchmark.results, command))
    print(Path(benchmark.table).read_text(encoding="utf-8"))
    print(f"{benchmark.table}\n{benchmark.report}")
    return 0


def find_models(values: Sequence[str]) -> Mapping[str, Sequence[Checkpoint]]:
    """What `--model` says: checkpoints by recipe name ("" without one), the released head where nothing is said, none where
    it says so.

    >>> find_models(["none"]), find_models(["a=runs/a", "runs/x", "a=runs/b"])
    ({}, {'a': ['runs/a', 'runs/b'], '': ['runs/x']})
    """
    if not values:
        from ..common.models import load_released

        return {"": [load_released()[0]]}
    groups: dict[str, list[str]] = {}
    for value in values if NO_MODEL not in values else []:
        name, _, path = value.rpartition("=") if not Path(value).exists() else ("", "", value)
        groups.setdefault(name, []).append(path)
    return groups
