"""`hardkuma keyphrases`, also `hardkuma terms`: key phrases of a document or a corpus, with counts and an example each."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import tee
from typing import Any

from .options import add_options, add_selector_option, check_counts

SUMMARY = "list the key phrases of a document or a corpus"
EXAMPLES = """\
examples:
  hardkuma keyphrases report.txt                            the twenty best, with counts and an example sentence each
  hardkuma keyphrases --number 100 --format jsonl tweets.jsonl.gz > phrases.jsonl
  hardkuma keyphrases --each --format jsonl papers.jsonl    a list for each row
  hardkuma keyphrases --tagger en_core_web_sm report.txt    noun phrases of a spaCy model that you have
  hardkuma keyphrases --selector entities report.txt        names

A text file is one document, and its lines are joined where they were wrapped to a width; with --lines, each line is one.
A row of a table is a document. `count` is how often a phrase stands in the input, singular or plural, `rows` in how many
documents. Phrases are sorted by their score; --format jsonl has it, and every place.
`hardkuma terms` is the same command.
"""


TERM_WIDTH, EXAMPLE_WIDTH = 40, 200  # characters that people see; --format jsonl has all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `hardkuma keyphrases`."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help=".txt, .jsonl, .csv, .tsv, .parquet, .conll; .gz too; or -"
    )
    add_options(parser, "input-format", "field")
    parser.add_argument("--lines", action="store_true", help="each line of a text file is a document of its own")
    parser.add_argument("--number", type=int, default=20, metavar="N", help="phrases, at most (default: %(default)s)")
    parser.add_argument("--each", action="store_true", help="a list for each document, not one for all")
    parser.add_argument("--max-words", type=int, default=4, metavar="N", help="of a phrase, at most (default: %(default)s)")
    parser.add_argument(
        "--diversity", type=float, default=0.0, metavar="D", help="0 to 1: how unlike each other (default: %(default)s)"
    )
    parser.add_argument("--tagger", metavar="NAME", help="spaCy model whose noun phrases are the candidates")
    parser.add_argument("--format", choices=("text", "jsonl"), default="text", help="default: %(default)s")
    add_options(parser, "model")
    add_selector_option(parser)
    parser.add_argument("--backend", choices=("torch", "onnx"), default="torch", help="onnx: onnxruntime (default: torch)")
    add_options(parser, "batch-size", "quiet")


def check(arguments: argparse.Namespace) -> None:
    """Check numbers."""
    check_counts(arguments, "number", "max_words", "batch_size")
    if not 0 <= arguments.diversity <= 1:
        raise ValueError(f"--diversity must be in [0, 1], got {arguments.diversity}.")


def run(arguments: argparse.Namespace) -> int:
    """Find and print; 0 when done."""
    from tqdm import tqdm

    from ..apps.terms import find_terms, stream_terms

    documents = _Documents(arguments)
    tagger = load_tagger(arguments.tagger) if arguments.tagger else None
    model = _load_model(arguments)
    texts: Iterator[str] = iter(tqdm(documents, unit=" documents", disable=arguments.quiet or None, leave=False))
    options: dict[str, Any] = {
        "max_words": arguments.max_words,
        "diversity": arguments.diversity,
        "selector": arguments.selector,
        "batch_size": arguments.batch_size,
    }
    if tagger is not None:
        texts, read = tee(texts)
        options["candidates"] = tagger.pipe(read)
    if arguments.each:
        found = False
        for row, terms in enumerate(stream_terms(model, texts, arguments.number, **options)):
            found = found or bool(terms)
            if arguments.format == "jsonl":
                print(json.dumps({"row": row, "terms": terms}, ensure_ascii=False))
            else:
                print(_clean(", ".join(" ".join(term["text"].split()) for term in terms)))
    else:
        terms = find_terms(model, texts, arguments.number, **options)
        found = bool(terms)
        _print(terms, arguments.format)
    if not found:
        reason = "no phrase was found." if documents.filled else "the input is empty: there is no text in it."
        print(f"hardkuma keyphrases: {reason}", file=sys.stderr)
    return 0


class _Documents:
    """The documents of all files, as they are read; `filled` counts those that are not blank."""

    def __init__(self, arguments: argparse.Namespace):
        from ..data.readers import choose_input_format, read_rows

        self.filled = 0
        self._files: list[Iterator[str]] = []
        for name in arguments.files:
            format = choose_input_format(name, arguments.input_format, arguments.field)
            whole = format == "text" and not arguments.lines
            rows = read_rows(name, arguments.input_format, arguments.field)
            self._files.append(_joined(rows) if whole else rows)

    def __iter__(self) -> Iterator[str]:
        from ..scoring_hardkuma import encodable

        for text in (text for file in self._files for text in file):
            self.filled += bool(text.strip())
            yield encodable(text)


def _joined(lines: Iterator[str]) -> Iterator[str]:
    """The lines of a file as one document."""
    yield "\n".join(lines)


def _load_model(arguments: argparse.Namespace) -> Any:
    from ..common.models import load_model

    model = load_model(arguments.model)
    if arguments.backend == "torch":
        return model
    from ..apps.export.backends import choose_backend

    def log(sentence: str) -> None:
        print(f"hardkuma keyphrases: {sentence}", file=sys.stderr)

    return choose_backend(model, arguments.backend, arguments.selector, log).gates


def load_tagger(name: str) -> Any:
    """A spaCy model by its name, with what parts of speech need."""
    from ..common.packages import require

    try:
        return require("spacy", "spacy").load(name, exclude=["ner", "parser", "lemmatizer"])
    except OSError:
        raise OSError(f"--tagger {name}: spaCy has no such model; try `python -m spacy download {name}`.") from None


def _print(terms: list[dict[str, Any]], format: str) -> None:
    if format == "jsonl":
        for term in terms:
            print(json.dumps(term, ensure_ascii=False))
    elif terms:
        lines = [(_cut(term["text"], TERM_WIDTH), term, _cut(term["example"], EXAMPLE_WIDTH)) for term in terms]
        width = max(len(text) for text, _, _ in lines)
        print(f"{'phrase':{width}}  {'count':>6} {'rows':>6}  example")
        for text, term, example in lines:
            print(_clean(f"{text:{width}}  {term['count']:6} {term['spread']:6}  {example}"))


def _clean(line: str) -> str:
    from ..scoring_hardkuma import safe_text

    return safe_text(line) if sys.stdout.isatty() else line


def _cut(text: str, width: int) -> str:
    """One line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
