"""What do meaning and the surface view add, or cost, where capitals say little? Average precision on changed text.

    python benchmarks/robustness.py --data FOLDER [--model CHECKPOINT ...]

Each corpus is measured as it stands, lower-cased and upper-cased; `tests/data/biomedical.conll` and
`tests/data/silent_capitals.conll` (names that are written in lower case) are sentences of our own. "form alone" is the same
gates without the weight of words (`meaning_weight` 0); "adapted" estimates the log-odds anew on the corpus' own unlabelled
text (`hardkuma adapt`).
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hardkuma import HardKumaModel, load_released
from hardkuma.data import LabelledSentence
from hardkuma.data.tokens import token_batches
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.baselines.registry import find_method
from hardkuma.evaluation.corpora import labels_of, read_corpus, texts_of
from hardkuma.evaluation.metrics import Ranking

OURS = Path(__file__).parent.parent / "tests" / "data"
METHODS = ("gates_form", "gates", "gates_surface")
CHANGES: dict[str, Callable[[str], str]] = {"as it stands": str, "lower-cased": str.lower, "upper-cased": str.upper}


def changed(sentences: list[LabelledSentence], change: Callable[[str], str]) -> list[LabelledSentence]:
    """The sentences with their letters changed; the few in which that moves offsets (ß) are left out."""
    pairs = [(sentence, change(sentence.text)) for sentence in sentences]
    return [replace(sentence, text=text) for sentence, text in pairs if len(text) == len(sentence.text)]


def average_precision(model: HardKumaModel, sentences: list[LabelledSentence], name: str) -> float:
    """Of the word scores of one of the benchmark's methods against entity words."""
    texts, words = texts_of(sentences)
    method = find_method(name)
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
    print("| text | form alone | gates | with surface view | adapted to the text |\n|---|---:|---:|---:|---:|")
    worst = 0.0
    ours = {"biomedical (ours)": OURS / "biomedical.conll", "silent capitals (ours)": OURS / "silent_capitals.conll"}
    for name, path in {**files, **ours}.items():
        sample = read_corpus(path).sample(options.sample, 0)
        for how, change in CHANGES.items():
            sentences = changed(sample, change)
            rows = []
            for model in models:
                own = adapted(model, texts_of(sentences)[0])
                values = [average_precision(model, sentences, method) for method in METHODS]
                rows.append((*values, average_precision(own, sentences, "gates_surface")))
            means = [sum(values) / len(rows) for values in zip(*rows, strict=True)]
            _, alone, surface, fitted = means
            worst = max(worst, alone - surface, alone - fitted)
            print(f"| {name}, {how} | " + " | ".join(f"{value:.3f}" for value in means) + " |", flush=True)
    print(f"\nThe surface view was worse than the gates alone by at most {max(worst, 0.0):.3f}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
