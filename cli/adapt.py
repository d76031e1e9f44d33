"""`hardkuma adapt`: fit what a model knows of word forms and function words to one's own text, without training."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..common.files import hold_output
from .options import add_options, check_counts, check_folder

SUMMARY = "fit what a model knows of word forms and function words to your own text, without training"
EXAMPLES = """\
example:
  hardkuma adapt --data tweets.jsonl more.txt --output runs/tweets
  hardkuma gates --model runs/tweets "your own sentence"
  hardkuma adapt --function-words --model runs/spanish/model --data spanish.txt --output runs/adapted

In one source capitals mean names, in another whole sentences are in capitals. One pass over your text, without labels,
measures how often the gates of this model open for each form of a word (small, Capital, CAPITALS, digits, @handle, ...).
The gates themselves stay as they are. A form that your text has n times moves n / (n + 100) of the way from the model's
old value to that of your text (form_shrinkage in the configuration): little text changes little.
With --function-words it learns these instead: words that are frequent in your text and whose gates are low, which decisions
put last, and the scripts that your text is written in. `hardkuma train` does that by itself.
"""

FEW_TEXTS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `hardkuma adapt`."""
    add_options(parser, "model")
    parser.add_argument("--data", nargs="+", required=True, metavar="FILE", help="your text, any format that `train` takes")
    add_options(parser, "input-format", "field")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="where the adapted model goes")
    parser.add_argument("--function-words", action="store_true", help="learn function words and scripts, not word forms")
    add_options(parser, "batch-size", "quiet")


def check(arguments: argparse.Namespace) -> None:
    """Check the batch size."""
    check_counts(arguments, "batch_size")


def run(arguments: argparse.Namespace) -> int:
    """Estimate, save and show; 0 when done."""
    check_folder(arguments.output)
    with hold_output(arguments.output):
        return _adapt(arguments)


def _adapt(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from ..common.models import load_model, no_progress_bar
    from ..common.text import name_sources
    from ..data.readers import choose_input_format, name_left_out, read_texts
    from ..data.tokens import token_batches
    from ..training.language import learn_function_words, learn_words, set_language
    from ..training.texts import TextFile
    from ..words_hardkuma import SURFACE_CLASSES

    for name in arguments.data:
        choose_input_format(name, arguments.input_format, arguments.field)
    model = load_model(arguments.model)
    before = model.gate_head.get_buffer("surface_log_odds").clone()
    count, left_out = 0, Counter[str]()

    def texts() -> Iterator[str]:
        nonlocal count
        for name in arguments.data:
            read = read_texts(name, arguments.input_format, arguments.field, left_out=left_out)
            for text in tqdm(read, unit=" texts", disable=arguments.quiet or None, leave=False):
                count += 1
                yield text

    if arguments.function_words:
        read = TextFile(texts())
        known = replace(model.config.language, scripts=learn_words(read, model.tokenizer).scripts)
        set_language(model, known)
        set_language(model, learn_function_words(model, read, batch_size=arguments.batch_size))
    else:
        options: dict[str, Any] = {"shapes": True, "words": True, "language": model.config.language}
        model.adapt_surface(token_batches(model.tokenizer, texts(), model.max_length, arguments.batch_size, **options))
    after = model.gate_head.get_buffer("surface_log_odds")
    if left_out:
        print(f"hardkuma adapt: {name_left_out(left_out)}.", file=sys.stderr)
    if count < FEW_TEXTS:
        print(f"hardkuma adapt: {count} texts are few: values stay close to those before.", file=sys.stderr)
    learned = "function words" if arguments.function_words else "log-odds of word forms"
    training = (
        f"The gates are those of the model that this one was made from. Its {learned} were "
        f"estimated on {count:,} texts of {name_sources(arguments.data)}, without labels, by `hardkuma adapt`."
    )
    with no_progress_bar():
        model.save_pretrained(arguments.output, card={"training": training})
    if arguments.function_words:
        print(f"Saved {arguments.output}. Function words of {count:,} texts:\n\n{model.config.language.function_words}")
        return 0
    print(f"Saved {arguments.output}. Log-odds of the word forms, from {count:,} texts:\n")
    selectors = model.config.names if model.config.num_selectors > 1 else [""]
    _print_table(SURFACE_CLASSES[1:], selectors, before[:, 1:].tolist(), after[:, 1:].tolist())
    return 0


def _print_table(
    names: Sequence[str], selectors: Sequence[str], before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]
) -> None:
    print(f"  {'form':16}{'before':>8}{'now':>8}")
    for i, name in enumerate(names):
        for selector, old, new in zip(selectors, before, after, strict=True):  # a line for each
            print(f"  {name:16}{old[i]:8.2f}{new[i]:8.2f}  {selector}".rstrip())
