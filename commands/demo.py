"""`hardkuma demo`: the Space on this machine."""

from __future__ import annotations

import argparse

from .models import add_model_argument

SUMMARY = "start the demonstration page on this machine"
EXAMPLES = """\
example:
  hardkuma demo --port 7860        then open http://127.0.0.1:7860

It listens on this machine alone. It needs the package gradio: pip install 'hardkuma[space]'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `hardkuma demo`."""
    add_model_argument(parser)
    parser.add_argument("--port", type=int, default=7860, help="default: %(default)s")


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    from ..app import launch

    launch(model=arguments.model, port=arguments.port)
    return 0
