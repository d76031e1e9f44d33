"""Command lines: a wrong word is answered by one line, not by a page of usage."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An argument parser whose help keeps the lines of its examples, and whose errors are one line with the way to help.

    >>> Parser(prog="hardkuma pair").format_usage()
    'usage: hardkuma pair [-h]\\n'
    """

    def __init__(self, *arguments: object, **options: object):
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*arguments, **options)  # type: ignore[arg-type] # argparse's own, whatever they are

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and stop with status 2."""
        end = "" if message.endswith((".", "?")) else "."
        print(f"{self.prog}: {message}{end} See {self.prog} --help", file=sys.stderr)
        sys.exit(2)
