"""`hardkuma benchmark --table keyphrases` and `--table differences`: what people marked, found by us and by others."""

from __future__ import annotations

import argparse
import random
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.arguments import Parser
from .options import add_options, check_counts

if TYPE_CHECKING:
    from ..apps.reading import AnchorModel
    from ..evaluation.baselines.encoder import SentenceEncoder
    from ..evaluation.differences import Method, Pair
    from ..evaluation.keyphrases import Extractor
    from ..modeling_hardkuma import HardKumaModel

EXAMPLES = {
    "keyphrases": """\
examples:
  hardkuma benchmark --table keyphrases --data FOLDER                        every file of marked documents in there
  hardkuma benchmark --table keyphrases --data FOLDER --tagger en_core_web_sm
  hardkuma benchmark --table keyphrases --data inspec.jsonl --methods gates keybert --expensive-sample 20

A file has a document a line: {"text": ..., "keyphrases": [...]}. The table goes to --output.
""",
    "differences": """\
examples:
  hardkuma benchmark --table differences --data FOLDER
  hardkuma benchmark --table differences --data ists.jsonl --methods ours cosine --sample 20

A file has a pair a line: {"text_a", "text_b", "labels_a", "labels_b"}, a label for each word that white space parts. The
table goes to --output.
""",
}
DESCRIPTIONS = {
    "keyphrases": "Key phrases beside what people marked: F1 at 5, 10 and 15, with intervals and speed.",
    "differences": "Words in which two texts differ: Spearman's correlation with people's labels, with intervals.",
}
METHODS = {
    "keyphrases": {"gates": "", "onnx": "", "tagger": "", "keybert": "", "yake": "", "rake": ""},
    "differences": {
        "ours": "`find_differences`",
        "onnx": "`find_differences`, onnxruntime",
        "cosine": "1 - best cosine of states (DiffAlign's rule)",
        "isolated": "1 - best cosine of isolated words",
        "keybert": "KeyBERT's way",
        "leave_one_out": "leave-one-out",
        "shap": "SHAP",
        "lime": "LIME-like",
    },
}


def build_parser(table: str) -> argparse.ArgumentParser:
    """The options of a table.

    >>> build_parser("keyphrases").parse_args(["--table", "keyphrases", "--data", "x"]).expensive_sample
    100
    """
    prog = f"hardkuma benchmark --table {table}"
    parser = Parser(prog=prog, description=DESCRIPTIONS[table], epilog=EXAMPLES[table])
    parser.add_argument("--table", choices=(table,), required=True, help=argparse.SUPPRESS)
    parser.add_argument("--data", required=True, help="file of JSON lines, or folder of such files")
    parser.add_argument("--output", default=f"runs/{table}", help="folder for the table (default: %(default)s)")
    add_options(parser, "model")
    names = list(METHODS[table])
    parser.add_argument("--methods", nargs="+", choices=names, metavar="METHOD", help=f"of: {', '.join(names)}")
    parser.add_argument("--sample", type=int, metavar="N", help="lines of each file (default: all)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of all methods (default: %(default)s)")
    parser.add_argument("--bootstrap", type=int, default=1000, help="draws for the intervals (default: %(default)s)")
    if table == "keyphrases":
        parser.add_argument("--tagger", metavar="NAME", help="spaCy model whose noun phrases are candidates, in a row too")
        parser.add_argument(
            "--expensive-sample", type=int, default=100, metavar="N", help="documents for KeyBERT (default: %(default)s)"
        )
    return parser


def main(table: str, arguments: Sequence[str]) -> int:
    """Measure, print and write the table; returns the exit status."""
    import torch

    from ..common.files import write_atomically
    from ..evaluation.corpora import find_json_lines

    parser = build_parser(table)
    options = parser.parse_args(arguments)
    try:
        check_counts(options, "sample", "expensive_sample", "threads", "bootstrap")
    except ValueError as error:
        parser.error(str(error))
    files = find_json_lines(options.data, table)
    torch.set_num_threads(options.threads)
    shown = (_keyphrases if table == "keyphrases" else _differences)(options, files)
    title, command = {"keyphrases": "Key phrases"}.get(table, "Differences"), shlex.join(arguments)
    text = f"# {title}\n\n`hardkuma benchmark {command}`\n\n{shown}\n"
    file = Path(options.output) / f"{table}.md"
    write_atomically(file, text)
    print(f"{text}\n{file}")
    return 0


# ---- key phrases --------------------------------------------------------------------------------------------------------


def _keyphrases(options: argparse.Namespace, files: dict[str, Path]) -> str:
    from ..evaluation.keyphrases import CHOSEN, OTHERS, keyphrase_table, measure_extractor, read_marked

    if options.methods and "tagger" in options.methods and not options.tagger:
        raise ValueError("--methods tagger needs a spaCy model: --tagger NAME.")
    known = {**_our_extractors(options), **OTHERS}
    asked = [known[name] for name in options.methods or METHODS["keyphrases"] if name in known]
    results = []
    for corpus, path in files.items():
        documents, chosen = read_marked(path), CHOSEN.get(corpus, 0)
        if len(documents) > chosen:  # those on which settings were chosen come last, so that no sample is of them
            others = documents[chosen:]
            random.Random(0).shuffle(others)
            documents = [*others, *documents[:chosen]]
        of_corpus = []
        for extractor in (extractor for extractor in asked if not extractor.missing):
            print(f"{corpus}: {extractor.title}", file=sys.stderr)
            sample = documents[: options.sample]
            sample = sample[: options.expensive_sample] if extractor.slow else sample
            of_corpus.append(measure_extractor(extractor, corpus, sample))
        results += of_corpus
        if chosen and options.sample is None and len(documents) > chosen:
            name, rest = f"{corpus} without the {chosen} documents of our choices", len(documents) - chosen
            results += [result.part(name, min(result.number, rest)) for result in of_corpus]
    missing = [f"Left out: {one.title} needs {', '.join(one.missing)}." for one in asked if one.missing]
    return "\n\n".join([keyphrase_table(results, options.bootstrap), *missing])


def _our_extractors(options: argparse.Namespace) -> dict[str, Extractor]:
    """By torch, by onnxruntime, and with the noun phrases of a tagger."""
    from ..apps.export.backends import choose_backend
    from ..apps.terms import stream_terms
    from ..common.models import load_model
    from ..evaluation.keyphrases import Extractor
    from .terms import load_tagger

    model = load_model(options.model, "cpu")

    def extractor(title: str, backend: str, tagger: str | None, *needs: str) -> Extractor:
        loaded: dict[str, Any] = {}

        def extract(texts: Sequence[str], number: int) -> list[list[str]]:
            if not loaded:
                loaded["gates"] = choose_backend(model, backend, log=lambda text: print(text, file=sys.stderr)).gates
                loaded["tagger"] = load_tagger(tagger) if tagger else None
            docs = loaded["tagger"].pipe(texts) if tagger else None
            rows = stream_terms(loaded["gates"], texts, number, candidates=docs)
            return [[term["text"] for term in row] for row in rows]

        return Extractor(title, extract, needs=needs)

    ours = {
        "gates": extractor("HardKuma", "torch", None),
        "onnx": extractor("HardKuma, int8 by onnxruntime", "onnx", None, "onnx", "onnxruntime", "onnxscript"),
    }
    if options.tagger:
        ours["tagger"] = extractor(f"HardKuma, noun phrases of {options.tagger}", "torch", options.tagger, "spacy")
    return ours


# ---- differences --------------------------------------------------------------------------------------------------------


def _differences(options: argparse.Namespace, files: dict[str, Path]) -> str:
    from ..common.models import load_model
    from ..common.packages import available
    from ..evaluation.baselines.encoder import SentenceEncoder
    from ..evaluation.differences import difference_table, measure_differences

    model, titles = load_model(options.model, "cpu"), METHODS["differences"]
    encoder = SentenceEncoder.from_model(model)
    able = [name for name in titles if name != "onnx" or all(map(available, ("onnx", "onnxruntime", "onnxscript")))]
    methods = {titles[name]: _method(name, model, encoder) for name in options.methods or able}
    results = list(measure_differences(methods, files, encoder, options.sample))
    return difference_table(results, options.bootstrap)


def _method(name: str, model: HardKumaModel, encoder: SentenceEncoder) -> Method:
    from ..apps.export.backends import OnnxGates
    from ..evaluation.differences import best_cosine, isolated_words, removal

    if name in ("ours", "onnx"):
        return our_method(model if name == "ours" else OnnxGates(model))
    if name == "cosine":
        return best_cosine(encoder)
    return isolated_words(encoder, name == "keybert") if name in ("isolated", "keybert") else removal(encoder, name)


def our_method(model: AnchorModel) -> Method:
    """`find_differences`, for words that white space parts."""
    from ..apps.differences import find_differences
    from ..evaluation.differences import LabelledText, word_values

    # Once for an encoder, not for each pair: chance, and an export.
    find_differences(model, [("rain", "snow")])

    def side(text: LabelledText, words: Sequence[dict[str, Any]]) -> list[float]:
        spans = [(word["start"], word["end"]) for word in words]
        return word_values(text, spans, [word["differs"] for word in words])

    def method(pairs: Sequence[Pair]) -> list[list[list[float]]]:
        found = find_differences(model, [(a.text, b.text) for a, b in pairs])
        return [
            [side(a, item["a"]["words"]), side(b, item["b"]["words"])] for (a, b), item in zip(pairs, found, strict=True)
        ]

    return method
