"""What the backend onnx costs in quality: its gates beside those of torch, on labelled corpora.

    python benchmarks/backends.py --data FOLDER                  a folder with wnut17/ and wikigold/
    python benchmarks/backends.py --data FOLDER --sample 100     a quick look

Average precision of `entities` (800 sentences of each corpus), sufficiency and comprehensiveness of `meaning` (100 of
each), as `hardkuma benchmark` measures them, and how much the probabilities of the words differ. Exit code 0 means that
none of the three differs by more than .005 on any corpus.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from hardkuma.apps.export.backends import Backend, choose_backend
from hardkuma.common.models import load_model
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.baselines.words import WordScores
from hardkuma.evaluation.corpora import Corpus, find_corpora, labels_of, texts_of
from hardkuma.evaluation.faithfulness import faithfulness
from hardkuma.evaluation.metrics import Ranking
from hardkuma.scoring_hardkuma import score_texts

CORPORA = ("wnut17-dev", "wnut17-test", "wikigold")
ALLOWED = 0.005


class Measured:
    """Numbers of one backend on one corpus, and the probabilities behind them."""

    def __init__(self, backend: Backend, encoder: SentenceEncoder, corpus: Corpus, sample: int, faithful: int):
        sentences = corpus.sample(sample)
        texts, words = texts_of(sentences)
        scores = [
            item.probabilities
            for item in score_texts(backend.gates, texts, words=words, batch_size=64, selector="entities")
        ]
        curve = Ranking(labels_of(sentences), scores).curve()
        texts, words = texts_of(corpus.sample(faithful))
        scored = score_texts(backend.gates, texts, words=words, selector="meaning")
        curves = faithfulness(encoder, [WordScores(item.text, item.words, item.probabilities) for item in scored])
        self.numbers = {
            "average precision": curve.average_precision(),
            "sufficiency": float(np.nanmean(curves.areas(curves.sufficiency))),
            "comprehensiveness": float(np.nanmean(curves.areas(curves.comprehensiveness))),
        }
        self.entities = np.concatenate([np.array(row) for row in scores])
        self.meaning = np.concatenate([np.array(item.probabilities) for item in scored])


def compare(ours: NDArray[np.floating], theirs: NDArray[np.floating], threshold: float) -> list[str]:
    """Mean difference, correlation, and share of decisions that changed."""
    changed = float(((ours > threshold) != (theirs > threshold)).mean())
    return [f"{np.abs(ours - theirs).mean():.4f}", f"{np.corrcoef(ours, theirs)[0, 1]:.4f}", f"{changed:.4f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with wnut17/ and wikigold/")
    parser.add_argument("--model", help="checkpoint folder or Hub id (default: the released gate head)")
    parser.add_argument("--sample", type=int, default=800, help="sentences of a corpus (default: %(default)s)")
    parser.add_argument("--faithfulness-sample", type=int, default=100, help="default: %(default)s")
    options = parser.parse_args()
    model = load_model(options.model, "cpu")
    encoder, threshold = SentenceEncoder.from_model(model), model.config.decision_threshold
    torch_backend, onnx = (choose_backend(model, name, "meaning", log=print) for name in ("torch", "onnx"))
    largest, quality, words = 0.0, [], []
    for corpus in tqdm(find_corpora(options.data, CORPORA), desc="corpora", leave=False):
        sizes = options.sample, options.faithfulness_sample
        ours, theirs = (Measured(backend, encoder, corpus, *sizes) for backend in (onnx, torch_backend))
        for name, value in ours.numbers.items():
            difference = value - theirs.numbers[name]
            largest = max(largest, abs(difference))
            quality.append([corpus.name, name, f"{theirs.numbers[name]:.4f}", f"{value:.4f}", f"{difference:+.4f}"])
        for name, one, other in (
            ("entities", ours.entities, theirs.entities),
            ("meaning", ours.meaning, theirs.meaning),
        ):
            words.append([corpus.name, name, str(len(one)), *compare(one, other, threshold)])
    show_table(["corpus", "measure (higher is better)", "torch", f"onnx {onnx.precision}", "difference"], quality)
    show_table(["corpus", "selector", "words", "mean difference", "Pearson", "decisions changed"], words)
    print(f"largest difference {largest:.4f}; allowed: {ALLOWED}")
    return 0 if largest <= ALLOWED else 1


def show_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table."""
    print("\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)), end="\n\n")


if __name__ == "__main__":
    sys.exit(main())
