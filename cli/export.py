"""`hardkuma export`: the gates in formats of others."""

from __future__ import annotations

import argparse
from itertools import chain, islice

from ..common.files import hold_output
from .options import add_options, add_selector_option, check_folder

SUMMARY = "write the gates as a stock token classifier (native) or as ONNX"
EXAMPLES = """\
examples:
  hardkuma export native --output exported                  a stock checkpoint: no custom code, runs in hosted widgets
  hardkuma export onnx --output exported                    model.onnx and model_int8.onnx, for onnxruntime
  hardkuma export native --model runs/default/model --output exported

What an export loses is measured on text and written on its card. The text is the bundled corpus, or yours with --data.
"""
SENTENCES = {"native": 6000, "onnx": 500}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `hardkuma export`."""
    formats = parser.add_subparsers(dest="format", required=True, metavar="FORMAT")
    for name, summary in (("native", "stock token-classification checkpoint"), ("onnx", "ONNX files, fp32 and int8")):
        command = formats.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=EXAMPLES)
        add_options(command, "model")
        command.add_argument("--output", required=True, metavar="FOLDER", help="folder to write")
        command.add_argument("--data", nargs="+", default=[], metavar="FILE", help="text to fit or measure on")
        add_options(command, "input-format", "field")
        command.add_argument(
            "--sentences", type=int, default=SENTENCES[name], metavar="N", help="of them, at most (default: %(default)s)"
        )
        add_options(command, "quiet")
        if name == "native":
            add_selector_option(command, default="entities, or the first")
        if name == "onnx":
            command.add_argument("--rationale", action="store_true", help="add the output rationale_embedding")
            add_selector_option(command, default="all, side by side")
            command.add_argument("--no-int8", action="store_true", help="write fp32 alone")


def check(arguments: argparse.Namespace) -> None:
    """Check values and combinations of options."""
    if arguments.sentences < 2:
        raise ValueError(f"--sentences must be at least 2, got {arguments.sentences}.")
    if arguments.field is not None and not arguments.data:
        raise ValueError("--field names a column of --data, which is not given.")
    if arguments.input_format is not None and not arguments.data:
        raise ValueError("--input-format is the format of --data, which is not given.")


def run(arguments: argparse.Namespace) -> int:
    """Export and say what was measured; 0 when done."""
    check_folder(arguments.output)
    with hold_output(arguments.output):
        return _export(arguments)


def _export(arguments: argparse.Namespace) -> int:
    from ..common.models import load_model
    from ..common.text import name_sources
    from ..data import bundled_texts, read_texts
    from ..data.bundled import BUNDLED_SIZE

    if arguments.data:
        rows = chain.from_iterable(read_texts(name, arguments.input_format, arguments.field) for name in arguments.data)
        texts = list(islice(rows, arguments.sentences))
    else:
        texts = bundled_texts(min(arguments.sentences, BUNDLED_SIZE))
    model = load_model(arguments.model, "cpu")
    source = name_sources(arguments.data)
    if arguments.format == "native":
        from ..apps.export.native import export_native

        agreement = export_native(
            model, arguments.output, texts, source=source, selector=arguments.selector, progress=not arguments.quiet
        )["gates"]
        print(
            f"{arguments.output}: on held-out text AUROC {agreement.auroc:.3f} against the gates' decisions, correlation "
            f"{agreement.pearson:.3f} (Pearson), {agreement.spearman:.3f} (Spearman), "
            f"same decision {agreement.decisions:.1%}"
        )
        return 0
    from ..apps.export.onnx import export_onnx

    report = export_onnx(
        model,
        arguments.output,
        texts,
        rationale=arguments.rationale,
        int8=not arguments.no_int8,
        selector=arguments.selector,
        source=source,
    )
    print(f"{arguments.output}: model.onnx differs from the model by at most {report['fp32']['largest_difference']:.1e}")
    if "int8" in report:
        int8 = report["int8"]
        print(
            f"{arguments.output}: model_int8.onnx runs {int8['speed']:.2f} times as fast, correlation "
            f"{int8['pearson']:.4f}, {int8['decisions_changed']:.2%} of the decisions change"
        )
    return 0
