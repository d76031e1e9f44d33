"""The `hardkuma` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .commands import adapt, benchmark, demo, export, gates, pair, train

COMMANDS = {"gates": gates, "pair": pair, "adapt": adapt, "export": export}
# Commands that read their own arguments; importing them takes seconds, which `--help` should not.
HANDED_ON = {"demo": demo, "train": train, "benchmark": benchmark}

DESCRIPTION = "Which words carry this sentence's meaning? Learned token gates on sentence encoders, without labels."
EXAMPLES = """\
start here:
  hardkuma gates "Marie Curie moved to Paris in 1891."
  hardkuma pair "A cat sleeps on the mat." "My cat is called Tom."
  hardkuma COMMAND --help          what it does, with examples

exit status: 0 done, 1 the input is at fault (one sentence says how), 2 wrong usage, 130 stopped by Ctrl-C
"""


def build_parser() -> argparse.ArgumentParser:
    """All commands; nothing heavy is imported."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="hardkuma", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=layout)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        summary = module.SUMMARY
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=module.EXAMPLES,
            formatter_class=layout,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, check=module.check, usage_error=command.error)
    for name, module in HANDED_ON.items():
        commands.add_parser(name, help=module.SUMMARY, add_help=False)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 on success, 1 with one sentence on standard error when the input is at fault."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words and words[0] in HANDED_ON:
            status = HANDED_ON[words[0]].main(words[1:])
        else:
            parsed = build_parser().parse_args(words)
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
    except (OSError, ValueError, ImportError) as error:
        print(f"hardkuma: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("hardkuma: stopped.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
