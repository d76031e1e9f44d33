"""How long does a question to an index take in a process that runs, by the number of passages?

    python benchmarks/search.py --data DATA                      up to 200,000 passages; a minute
    python benchmarks/search.py --data DATA --passages 5000

DATA holds wikitext2/test.txt, whose sentences are the passages that are found. So that an index of any size is soon made,
the others have random vectors: they cost what others would, and are never near. Without words a question costs its own
encoding and one product with all vectors; with them the five nearest passages are explained, which does not depend on the
number of passages. Medians; CPU seconds of the process, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from hardkuma import load_released
from hardkuma.apps.search import SearchIndex
from hardkuma.data import read_texts

QUESTIONS = (
    "Which regiment fought in the battle?",
    "When did the band release its album?",
    "How tall is the bird?",
    "Who wrote the music of the film?",
    "Where does the river flow into the sea?",
)
REAL = 300


def enlarge(index: SearchIndex, number: int) -> SearchIndex:
    """The index with random vectors behind its own."""
    vectors = np.random.default_rng(0).standard_normal((number, index.vectors.shape[1]), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[: len(index.vectors)] = index.vectors
    copies = -(-number // len(index.passages))
    return SearchIndex(([*index.passages] * copies)[:number], vectors, index.encoder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--passages", type=int, nargs="+", default=[1_000, 50_000, 200_000], metavar="N")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, _ = load_released()
    texts = [text for text in read_texts(options.data / "wikitext2" / "test.txt") if 10 <= len(text.split()) <= 40]
    index = SearchIndex.build(model, texts[:REAL])
    index.search(model, QUESTIONS[0])  # what is estimated once for a model
    for number in options.passages:
        larger = enlarge(index, max(number, REAL))
        for words in (False, True):
            times: list[tuple[float, float]] = []
            for question in QUESTIONS:
                started, used = time.perf_counter(), time.process_time()
                larger.search(model, question, explain=words)
                times.append((time.perf_counter() - started, time.process_time() - used))
            seconds, cpu = (statistics.median(column) for column in zip(*times, strict=True))
            print(
                f"{number:9,} passages, {'with' if words else 'no'} words: {seconds:.3f} s, {cpu:.3f} s of CPU", flush=True
            )


if __name__ == "__main__":
    main()
