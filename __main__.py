"""The `hardkuma` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .words_hardkuma import WordGate


def paint(text: str, words: Sequence[WordGate], colour: bool) -> str:
    """The text with its words shaded by probability and the selected ones underlined; [brackets] without colours."""
    parts, position = [], 0
    for word in words:
        parts.append(text[position : word.start])
        chosen = text[word.start : word.end]
        if colour:
            # 24 shades of grey are too subtle on dark screens: from the terminal's own background to a strong green.
            shade = int(5 * min(max(word.probability, 0.0), 1.0))
            style = f"48;5;{16 + 6 * shade}" + (";38;5;16" if shade > 2 else "") + (";1;4" if word.selected else "")
            parts.append(f"\033[{style}m{chosen}\033[0m" if shade or word.selected else chosen)
        else:
            parts.append(f"[{chosen}]" if word.selected else chosen)
        position = word.end
    return "".join([*parts, text[position:]])


def use_colour(stream: Any) -> bool:
    """Colours on a terminal only, and never where NO_COLOR is set."""
    return stream.isatty() and "NO_COLOR" not in os.environ


def gates(arguments: argparse.Namespace) -> int:
    from transformers.utils import logging

    from .modeling_hardkuma import HardKumaModel
    from .words_hardkuma import gate_words

    logging.disable_progress_bar()
    model = HardKumaModel.from_pretrained(arguments.model).eval()
    texts = arguments.texts or [line.rstrip("\n") for line in sys.stdin]
    found = gate_words(model, texts, rate=arguments.rate, threshold=arguments.threshold)
    for text, words in zip(texts, found, strict=True):
        print(paint(text, words, use_colour(sys.stdout)))
        if arguments.numbers:
            print("  " + "  ".join(f"{text[w.start : w.end]} {w.probability:.2f}" for w in words))
    return 0


def train(arguments: argparse.Namespace) -> int:
    from .train import main as run_training

    return run_training(arguments.arguments)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hardkuma", description="Which words carry this sentence's meaning? Learned token gates, without labels."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser("gates", help="show which words a trained model selects")
    command.add_argument("texts", nargs="*", metavar="TEXT", help="texts; standard input, a line each, if none is given")
    command.add_argument("--model", required=True, help="checkpoint folder or Hub id")
    command.add_argument("--rate", type=float, help="select this fraction of the words, such as 0.2")
    command.add_argument("--threshold", type=float, help="select words above this probability")
    command.add_argument("--numbers", action="store_true", help="print each word's probability too")
    command.set_defaults(run=gates)
    command = commands.add_parser(
        "train", help="train gates on unlabelled text; see `hardkuma train --help`", add_help=False
    )
    command.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    command.set_defaults(run=train)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 on success, 1 with one sentence on standard error when the input is at fault."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["train"]:  # its keys are the recipe's, not argparse's
        return train(argparse.Namespace(arguments=words[1:]))
    parsed = build_parser().parse_args(words)
    try:
        return parsed.run(parsed)
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep Python from complaining while it closes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, ValueError) as error:
        print(f"hardkuma: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
