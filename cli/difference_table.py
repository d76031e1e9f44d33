"""`hardkuma benchmark --table differences`: the words in which two texts differ, beside what people marked."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.arguments import Parser
from .options import add_options

if TYPE_CHECKING:
    from ..apps.reading import AnchorModel
    from ..evaluation.baselines.encoder import SentenceEncoder
    from ..evaluation.differences import Method, Pair
    from ..modeling_hardkuma import HardKumaModel

EXAMPLES = """\
examples:
  hardkuma benchmark --table differences --data FOLDER
  hardkuma benchmark --table differences --data ists.jsonl --methods ours cosine --sample 20

A file has a pair a line: {"text_a", "text_b", "labels_a", "labels_b"}, a label for each word that white space parts. The
table goes to --output.
"""
METHODS = {
    "ours": "`find_differences`",
    "onnx": "`find_differences`, onnxruntime",
    "cosine": "1 - best cosine of states (DiffAlign's rule)",
    "isolated": "1 - best cosine of isolated words",
    "keybert": "KeyBERT's way",
    "leave_one_out": "leave-one-out",
    "shap": "SHAP",
    "lime": "LIME-like",
}


def build_parser() -> argparse.ArgumentParser:
    """The options of this table.

    >>> build_parser().parse_args(["--table", "differences", "--data", "x"]).bootstrap
    1000
    """
    description = "Spearman's correlation with people's labels over words, with intervals, passes and speed."
    parser = Parser(prog="hardkuma benchmark --table differences", description=description, epilog=EXAMPLES)
    parser.add_argument("--table", choices=("differences",), required=True, help=argparse.SUPPRESS)
    parser.add_argument("--data", required=True, help="file of labelled pairs, or folder of such files")
    parser.add_argument("--output", default="runs/differences", help="folder for the table (default: %(default)s)")
    add_options(parser, "model")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), metavar="METHOD", help=f"of: {', '.join(METHODS)}")
    parser.add_argument("--sample", type=int, metavar="N", help="first pairs of each file (default: all)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of all methods (default: %(default)s)")
    parser.add_argument("--bootstrap", type=int, default=1000, help="draws for the intervals (default: %(default)s)")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure, print and write the table; returns the exit status."""
    import torch

    from ..common.files import write_atomically
    from ..common.models import load_model
    from ..evaluation.baselines.encoder import SentenceEncoder
    from ..evaluation.differences import difference_table, find_pairs, measure_differences
    from ..scoring_hardkuma import check_count

    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        for name in ("sample", "threads", "bootstrap"):
            if getattr(options, name) is not None:
                check_count(f"--{name}", getattr(options, name))
    except ValueError as error:
        parser.error(str(error))
    files = find_pairs(options.data)
    torch.set_num_threads(options.threads)
    model = load_model(options.model)
    encoder = SentenceEncoder.from_model(model)
    able = [name for name in METHODS if name != "onnx" or find_spec("onnxruntime") is not None]
    methods = {METHODS[name]: _method(name, model, encoder) for name in options.methods or able}
    results = list(measure_differences(methods, files, encoder, options.sample))
    command = shlex.join(["hardkuma", "benchmark", *arguments])
    text = f"# Differences\n\n`{command}`\n\n{difference_table(results, options.bootstrap)}\n"
    file = Path(options.output) / "differences.md"
    write_atomically(file, text)
    print(f"{text}\n{file}")
    return 0


def _method(name: str, model: HardKumaModel, encoder: SentenceEncoder) -> Method:
    from ..apps.export.backends import OnnxGates
    from ..evaluation.differences import best_cosine, isolated_words, removal

    if name == "cosine":
        return best_cosine(encoder)
    if name in ("isolated", "keybert"):
        return isolated_words(encoder, whole=name == "keybert")
    if name not in ("ours", "onnx"):
        return removal(encoder, name)
    return our_method(model if name == "ours" else OnnxGates(model))


def our_method(model: AnchorModel) -> Method:
    """`find_differences`, for words that white space parts."""
    from ..apps.differences import find_differences
    from ..evaluation.differences import word_values

    # Once for an encoder, not for each pair: chance, and an export.
    find_differences(model, [("rain", "snow")])

    def method(pairs: Sequence[Pair]) -> list[list[list[float]]]:
        found = find_differences(model, [(a.text, b.text) for a, b in pairs])
        return [
            [
                word_values(
                    text,
                    [(word["start"], word["end"]) for word in item[side]["words"]],
                    [word["differs"] for word in item[side]["words"]],
                )
                for side, text in zip("ab", pair, strict=True)
            ]
            for pair, item in zip(pairs, found, strict=True)
        ]

    return method
