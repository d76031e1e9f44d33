"""`hardkuma benchmark --table keyphrases`: key phrases beside what people marked, and beside other extractors."""

from __future__ import annotations

import argparse
import random
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.arguments import Parser
from .options import add_options

if TYPE_CHECKING:
    from ..evaluation.keyphrases import Extractor, KeyphraseResult, MarkedDocument

EXAMPLES = """\
examples:
  hardkuma benchmark --table keyphrases --data FOLDER                        every file of marked documents in there
  hardkuma benchmark --table keyphrases --data FOLDER --tagger en_core_web_sm
  hardkuma benchmark --table keyphrases --data inspec.jsonl --methods gates keybert --expensive-sample 20

A file has a document a line: {"text": ..., "keyphrases": [...]}. The table goes to --output.
"""
METHODS = ("gates", "onnx", "tagger", "keybert", "keybert_mmr", "yake", "rake", "positionrank", "topicrank")


def build_parser() -> argparse.ArgumentParser:
    """The options of this table.

    >>> build_parser().parse_args(["--table", "keyphrases", "--data", "x"]).expensive_sample
    100
    """
    description = "Key phrases beside what people marked: F1 at 5, 10 and 15, with intervals, sequences and speed."
    parser = Parser(prog="hardkuma benchmark --table keyphrases", description=description, epilog=EXAMPLES)
    parser.add_argument("--table", choices=("keyphrases",), required=True, help=argparse.SUPPRESS)
    parser.add_argument("--data", required=True, help="file or folder of marked documents")
    parser.add_argument("--output", default="runs/keyphrases", help="folder for the table (default: %(default)s)")
    add_options(parser, "model")
    parser.add_argument(
        "--tagger", metavar="NAME", help="spaCy model whose noun phrases are candidates, in rows of their own"
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="default: all that are installed")
    parser.add_argument("--sample", type=int, metavar="N", help="documents of a file (default: all)")
    parser.add_argument(
        "--expensive-sample", type=int, default=100, metavar="N", help="documents for KeyBERT (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of all methods (default: %(default)s)")
    parser.add_argument("--bootstrap", type=int, default=1000, help="draws for the intervals (default: %(default)s)")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure, print and write the table; returns the exit status."""
    import torch

    from ..common.files import write_atomically
    from ..evaluation.keyphrases import CHOSEN, find_marked, keyphrase_table, read_marked
    from ..scoring_hardkuma import check_count

    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        for name in ("sample", "expensive_sample", "threads", "bootstrap"):
            if getattr(options, name) is not None:
                check_count(f"--{name.replace('_', '-')}", getattr(options, name))
    except ValueError as error:
        parser.error(str(error))
    torch.set_num_threads(options.threads)
    files = find_marked(options.data)
    results: list[KeyphraseResult] = []
    extractors, notes = find_extractors(options)
    for corpus, path in files.items():
        documents = read_marked(path)
        chosen = CHOSEN.get(corpus, 0)
        if len(documents) > chosen:  # those on which settings were chosen come last, so that no sample is of them
            rest = documents[chosen:]
            random.Random(0).shuffle(rest)
            documents = [*rest, *documents[:chosen]]
        results += _measure(corpus, documents[: options.sample], extractors, options.expensive_sample)
        if chosen and options.sample is None and len(documents) > chosen:
            results += [_without_last(result, chosen) for result in results if result.corpus == corpus]
    table = keyphrase_table(results, options.bootstrap)
    command = shlex.join(["hardkuma", "benchmark", *arguments])
    text = "\n\n".join(["# Key phrases", f"`{command}`", table, *notes]) + "\n"
    Path(options.output).mkdir(parents=True, exist_ok=True)
    file = Path(options.output) / "keyphrases.md"
    write_atomically(file, text)
    print(f"{text}\n{file}")
    return 0


def find_extractors(options: argparse.Namespace) -> tuple[list[Extractor], list[str]]:
    """The methods that can run, ours first, and notes on those that are left out."""
    from ..encoder_hardkuma import resolve_encoder
    from ..evaluation.keyphrases import keybert_extractor, rake_extractor, textrank_extractor, yake_extractor

    gates = _gates(options)
    encoder = resolve_encoder("sentence-transformers/all-MiniLM-L6-v2")
    others = {
        "keybert": keybert_extractor(encoder),
        "keybert_mmr": keybert_extractor(encoder, diverse=True),
        "yake": yake_extractor(),
        "rake": rake_extractor(),
    }
    if options.tagger:
        others |= {name: textrank_extractor(options.tagger, name) for name in ("positionrank", "topicrank")}
    wanted = options.methods or METHODS
    chosen = [extractor for name, extractor in (gates | others).items() if name in wanted]
    notes = [
        f"Left out: {extractor.title} needs {', '.join(extractor.missing)}." for extractor in chosen if extractor.missing
    ]
    return [extractor for extractor in chosen if not extractor.missing], notes


def _gates(options: argparse.Namespace) -> dict[str, Extractor]:
    """Ours: by torch, by onnxruntime, and with the noun phrases of a tagger."""
    from ..apps.export.backends import choose_backend
    from ..apps.terms import stream_terms
    from ..common.models import load_model
    from ..data.sentences import sentence_spans
    from ..evaluation.keyphrases import Extractor

    model = load_model(options.model, "cpu")

    def extractor(title: str, backend: str, tagger: str | None, *needs: str) -> Extractor:
        known: dict[str, Any] = {}

        def extract(texts: Sequence[str], number: int) -> tuple[list[list[str]], int | None]:
            if not known:
                known["model"] = choose_backend(model, backend, log=lambda text: print(text, file=sys.stderr)).gates
                known["tagger"] = _tagger(tagger)
            docs = None if tagger is None else known["tagger"].pipe(texts)
            rows: Iterator[list[dict[str, Any]]] = stream_terms(known["model"], texts, number, candidates=docs)
            found = [[term["text"] for term in row] for row in rows]
            return found, sum(len(sentence_spans(text)) for text in texts)

        return Extractor(title, extract, needs=needs)

    found = {
        "gates": extractor("HardKuma", "torch", None),
        "onnx": extractor("HardKuma, int8 by onnxruntime", "onnx", None, "onnx", "onnxruntime", "onnxscript"),
    }
    if options.tagger:
        title = f"HardKuma, noun phrases of {options.tagger}"
        found["tagger"] = extractor(title, "torch", options.tagger, "spacy")
    return found


def _tagger(name: str | None) -> Any:
    from .terms import load_tagger

    return None if name is None else load_tagger(name)


def _measure(
    corpus: str, documents: Sequence[MarkedDocument], extractors: Sequence[Extractor], expensive: int
) -> list[KeyphraseResult]:
    from ..evaluation.keyphrases import measure_extractor

    results = []
    for extractor in extractors:
        print(f"{corpus}: {extractor.title}", file=sys.stderr)
        results.append(measure_extractor(extractor, corpus, documents[:expensive] if extractor.slow else documents))
    return results


def _without_last(result: KeyphraseResult, chosen: int) -> KeyphraseResult:
    """A result without the documents on which settings were chosen, which come last."""
    from dataclasses import replace

    corpus = f"{result.corpus} without the {chosen} documents of our choices"
    kept = min(result.number, max(0, result.number - chosen) or result.number)
    share = kept / result.number
    sequences = None if result.sequences is None else round(result.sequences * share)
    return replace(result, corpus=corpus, hits=result.hits[:kept], seconds=result.seconds * share, sequences=sequences)
