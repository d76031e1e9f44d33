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


def train(words: list[str]) -> int:
    from .train import main as run

    return run(words)


def benchmark(words: list[str]) -> int:
    from .evaluation.command import main as run

    return run(words)


# Commands that read their own arguments; importing them takes seconds, which `--help` should not.
HANDED_ON = {
    "train": (train, "train gates on unlabelled text"),
    "benchmark": (benchmark, "compare gates with every method that one would use instead, on labelled corpora"),
}


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
    for name, (_, text) in HANDED_ON.items():
        commands.add_parser(name, help=f"{text}; see `hardkuma {name} --help`", add_help=False)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 on success, 1 with one sentence on standard error when the input is at fault."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words and words[0] in HANDED_ON:
            return HANDED_ON[words[0]][0](words[1:])
        parsed = build_parser().parse_args(words)
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
