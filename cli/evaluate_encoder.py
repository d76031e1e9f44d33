"""`hardkuma evaluate-encoder`: the STS and transfer tables of a sentence encoder."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..common.text import MINILM
from .options import add_options

SUMMARY = "the STS and transfer tables of a sentence encoder"
EXAMPLES = """\
examples:
  hardkuma evaluate-encoder --data DIR                     the embedded MiniLM
  hardkuma evaluate-encoder runs/encoder/model --data DIR  a trained encoder, a checkpoint or a Hub id
  hardkuma evaluate-encoder --data DIR --tasks STS-B TREC  some tasks

DIR holds sts/, stsb/ and transfer/: subset, score and two sentences, or label and one or two sentences, separated by tabs.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command.

    >>> parser = argparse.ArgumentParser()
    >>> add_arguments(parser)
    >>> parser.parse_args(["--data", "corpora"]).encoder == MINILM
    True
    """
    parser.add_argument(
        "encoder", nargs="?", default=MINILM, metavar="FOLDER", help="sentence encoder: folder or Hub id (default: MiniLM)"
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with sts/, stsb/ and transfer/")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="of STS12 ... SICK-R, MR ... MRPC (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the folds (default: %(default)s)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the Markdown tables to this file too")
    add_options(parser, "quiet")


def check(arguments: argparse.Namespace) -> None:
    """A seed below 0 makes no sense."""
    if arguments.seed < 0:
        raise ValueError(f"--seed must be >= 0, got {arguments.seed}.")


def run(arguments: argparse.Namespace) -> int:
    """Encode, measure, print."""
    from ..common.files import write_atomically
    from ..evaluation.baselines.encoder import SentenceEncoder
    from ..evaluation.encoder_tasks import TASKS, encoder_table, evaluate_encoder, read_tasks

    data = read_tasks(arguments.data, arguments.tasks or TASKS)
    encoder, progress = SentenceEncoder.load(arguments.encoder), not arguments.quiet
    result = evaluate_encoder(lambda texts: encoder.encode(texts, progress).numpy(), data, arguments.seed, progress)
    name = str(arguments.encoder).rstrip("/").rpartition("/")[2]
    table = encoder_table(name, result)
    print(table)
    if arguments.output is not None:
        write_atomically(arguments.output, table + "\n")
    return 0
