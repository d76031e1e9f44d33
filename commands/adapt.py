"""`hardkuma adapt`: fit the surface view to one's own text, without training."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from .options import add_model_argument

SUMMARY = "fit a model's view of word shapes to your own text, in one pass without training"
EXAMPLES = """\
example:
  hardkuma adapt --data tweets.jsonl more.txt --output runs/tweets
  hardkuma gates --model runs/tweets "your own sentence"

In one source capitals mean names, in another whole sentences are capitals. One pass over your text, without labels,
measures how often the gates of this model open for each shape of word (small, Capital, CAPITALS, digits, @handle, ...).
The gates themselves stay as they are.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `hardkuma adapt`."""
    add_model_argument(parser)
    parser.add_argument("--data", nargs="+", required=True, metavar="FILE", help="your text, any format that `train` takes")
    parser.add_argument("--field", metavar="NAME", help="field or column with the text (default: text or sentence)")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="where the adapted model goes")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="texts a pass (default: %(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def check(arguments: argparse.Namespace) -> None:
    """Refuse a batch size that is none."""
    from ..words_hardkuma import check_count

    check_count("--batch-size", arguments.batch_size)


def run(arguments: argparse.Namespace) -> int:
    """Estimate, save and show; 0 when done."""
    from tqdm import tqdm

    from ..common.models import load_model
    from ..common.showcase import name_sources
    from ..corpora.readers import choose_format, read_texts
    from ..corpora.tokens import token_batches
    from ..surface_hardkuma import SURFACE_CLASSES

    for name in arguments.data:  # complain before a long pass
        choose_format(name)
    model = load_model(arguments.model)
    before = model.gate_head.surface_log_odds.clone()
    counted = 0

    def texts() -> Iterator[str]:
        nonlocal counted
        for name in arguments.data:
            for text in tqdm(read_texts(name, column=arguments.field), unit=" texts", disable=arguments.quiet, leave=False):
                counted += 1
                yield text

    length = model.max_length
    after = model.adapt_surface(token_batches(model.tokenizer, texts(), length, arguments.batch_size, shapes=True))
    training = (
        "The gates are those of the model that this one was made from. Its surface view (log-odds of word shapes) was "
        f"estimated on {counted:,} texts of {name_sources(arguments.data)}, without labels, by `hardkuma adapt`."
    )
    model.save_pretrained(arguments.output, card={"training": training})
    print(f"Saved {arguments.output}. Log-odds of the word shapes, from {counted:,} texts:\n")
    _print_table(SURFACE_CLASSES[1:], before[:, 1:].tolist(), after[:, 1:].tolist())
    return 0


def _print_table(names: Sequence[str], before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> None:
    print(f"  {'shape':16}{'before':>8}{'now':>8}")
    for place, name in enumerate(names):
        for old, new in zip(before, after, strict=True):  # a line for each selector
            print(f"  {name:16}{old[place]:8.2f}{new[place]:8.2f}")
