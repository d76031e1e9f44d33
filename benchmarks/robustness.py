"""Is the surface view safe where capitals say little? Average precision with and without it, on changed and foreign text.

    python benchmarks/robustness.py --data FOLDER [--model CHECKPOINT ...]

Each corpus is measured as it stands, lower-cased and upper-cased; `tests/data/biomedical.conll`, sentences of our own, is
the foreign one. "adapted" estimates the log-odds anew on the corpus' own unlabelled text (`hardkuma adapt`).
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hardkuma import HardKumaModel, load_released
from hardkuma.attribution.encoder import SentenceEncoder
from hardkuma.attribution.registry import find_method
from hardkuma.corpora import LabelledSentence
from hardkuma.corpora.tokens import token_batches
from hardkuma.evaluation.data import labels_of, read_corpus, texts_of
from hardkuma.evaluation.ranking import Ranking

OURS = Path(__file__).parent.parent / "tests" / "data" / "biomedical.conll"
CHANGES: dict[str, Callable[[str], str]] = {"as it stands": str, "lower-cased": str.lower, "upper-cased": str.upper}


def changed(sentences: list[LabelledSentence], change: Callable[[str], str]) -> list[LabelledSentence]:
    """The sentences with their letters changed; the few in which that moves offsets (ß) are left out."""
    pairs = [(sentence, change(sentence.text)) for sentence in sentences]
    return [replace(sentence, text=text) for sentence, text in pairs if len(text) == len(sentence.text)]


def average_precision(model: HardKumaModel, sentences: list[LabelledSentence], surface: bool) -> float:
    """Of word scores against entity words."""
    texts, words = texts_of(sentences)
    method = find_method("gates_surface" if surface else "gates")
    scores = method.scores(SentenceEncoder.from_model(model), texts, words)
    return Ranking(labels_of(sentences), [list(item.scores) for item in scores]).curve().average_precision()


def adapted(model: HardKumaModel, texts: list[str]) -> HardKumaModel:
    """A copy whose log-odds come from these texts."""
    other = copy.deepcopy(model)
    other.tokenizer = model.tokenizer
    length = model.config.max_seq_length or min(model.tokenizer.model_max_length, 512)
    other.adapt_surface(token_batches(model.tokenizer, texts, length, shapes=True))
    return other


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--model", nargs="*", default=[], help="checkpoints; their mean is shown (default: the released head)"
    )
    parser.add_argument("--sample", type=int, default=400)
    options = parser.parse_args()
    models = [HardKumaModel.from_pretrained(path).eval() for path in options.model] or [load_released()[0]]
    files = {"WNUT17 dev": options.data / "wnut17/dev.conll", "wikigold": options.data / "wikigold/wikigold.conll"}
    print("| text | gates alone | with surface view | adapted to the text |\n|---|---:|---:|---:|")
    worst = 0.0
    for name, path in {**files, "biomedical (ours)": OURS}.items():
        sample = read_corpus(path).sample(options.sample, 0)
        for how, change in CHANGES.items():
            sentences = changed(sample, change)
            rows = []
            for model in models:
                alone = average_precision(model, sentences, False)
                own = adapted(model, texts_of(sentences)[0])
                rows.append((alone, average_precision(model, sentences, True), average_precision(own, sentences, True)))
            alone, surface, fitted = (sum(values) / len(rows) for values in zip(*rows, strict=True))
            worst = max(worst, alone - surface, alone - fitted)
            print(f"| {name}, {how} | {alone:.3f} | {surface:.3f} | {fitted:.3f} |", flush=True)
    print(f"\nThe surface view was worse than the gates alone by at most {max(worst, 0.0):.3f}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
