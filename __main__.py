"""The `hardkuma` command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

from . import __version__
from .cli import adapt, benchmark, diff, evaluate_encoder, export, gates, pair, search, terms
from .cli.options import READER_OPTIONS
from .common.arguments import Parser
from .common.files import OutputHeld
from .common.packages import available, require

COMMANDS: Mapping[str, ModuleType] = {
    "gates": gates,
    "pair": pair,
    "diff": diff,
    "search": search,
    "keyphrases": terms,
    "terms": terms,  # what `keyphrases` was called before
    "adapt": adapt,
    "export": export,
    "evaluate-encoder": evaluate_encoder,
}
# Commands that read their own arguments, with the module whose `main` does it. They import what they need to know their
# options, which takes seconds, and `hardkuma --help` should not.
DELEGATED_COMMANDS = {
    "demo": ("start the demonstration page on this machine", ".apps.page.serve"),
    "train": ("train gates on unlabelled text", ".train"),
    "encoder": ("train a sentence encoder by contrast, on unlabelled text or pairs", ".training.encoder.main"),
    "benchmark": (benchmark.SUMMARY, ".cli.benchmark"),
}
# Packages of a command, by the extra that brings them.
NEEDED = {
    "encoder": ("contrast", ("yaml", "accelerate", "datasets", "sentence_transformers")),
}

DESCRIPTION = "Which words carry this sentence's meaning? Learned token gates on sentence encoders, without labels."
EXAMPLES = """\
start here:
  hardkuma gates "Marie Curie moved to Paris in 1891."
  hardkuma pair "A cat sleeps on the mat." "My cat is called Tom."
  hardkuma COMMAND --help          what it does, with examples

exit status: 0 done, 1 the input is at fault (one sentence says how), 2 wrong usage, or another run writes the same output,
130 stopped by Ctrl-C
"""


def build_parser() -> argparse.ArgumentParser:
    """All commands; nothing heavy is imported.

    >>> build_parser().parse_args(["pair", "one text", "another"]).rate
    0.2
    """
    parser = Parser(prog="hardkuma", description=DESCRIPTION, epilog=EXAMPLES)
    parser.add_argument("--version", action="version", version=f"hardkuma {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        summary = command.SUMMARY
        subparser = commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=command.EXAMPLES
        )
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run, check=command.check, usage_error=subparser.error, reject=subparser.reject)
    for name, (summary, _) in DELEGATED_COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    return parser


def delegate(name: str, *arguments: str) -> int:
    """Run a command that reads its own arguments."""
    extra, packages = NEEDED.get(name, ("", ()))
    for package in packages:
        if not available(package):
            require(package, extra)
    run = importlib.import_module(DELEGATED_COMMANDS[name][1], __package__).main
    return run(list(arguments), prog="hardkuma train") if name == "train" else run(list(arguments))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 on success, 1 with one sentence on standard error when the input is at fault."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given and given[0] in DELEGATED_COMMANDS:
            status = delegate(*given)
        else:
            parsed, unknown = build_parser().parse_known_args(given or ["--help"])
            if unknown:  # said by the command, whose help is the one to read
                parsed.reject(unknown)
            try:
                parsed.check(parsed)
            except ValueError as error:
                parsed.usage_error(str(error))
            status = parsed.run(parsed)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep Python from complaining while it closes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OutputHeld as error:
        print(f"hardkuma: {error}", file=sys.stderr)
        return 2
    except (OSError, ValueError, ImportError) as error:
        names = {} if given[0] in DELEGATED_COMMANDS else READER_OPTIONS
        said = error.explain(names) if hasattr(error, "explain") else str(error)  # a CorpusError names options
        print(f"hardkuma: {' '.join(said.split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("hardkuma: stopped.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
