"""The default recipe, unchanged, on other encoders: what `meaning` is worth on each, beside norm and chance.

    python benchmarks/other_encoders.py --data FOLDER --encoders mine=runs/mine/model other=ORG/NAME

FOLDER holds wnut17/, wikigold/ and stsb/. Each encoder (NAME=FOLDER or Hub id) gets gates of its own on the bundled text,
and a row: its own Spearman's correlation on STS-B test; what words of `meaning`, of largest norm and random words keep
(sufficiency) and take away (comprehensiveness), means over the first 100 sentences of the samples of WNUT17 test and
wikigold; and average precision of `entities` and of its form alone. Embeddings of one encoder lie closer together than
those of another, so the figures of a row are to be compared with each other, and rows by what `meaning` is above norm and
chance.

A row is kept in --output and is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hardkuma.common.files import write_atomically
from hardkuma.configuration_hardkuma import ENTITIES
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.baselines.gates import gate_scores
from hardkuma.evaluation.baselines.states import norm_scores
from hardkuma.evaluation.baselines.trivial import random_scores
from hardkuma.evaluation.baselines.words import WordScores
from hardkuma.evaluation.corpora import labels_of, read_corpus, texts_of
from hardkuma.evaluation.encoder_tasks import STS_FILES, measure_similarity, read_scored_pairs
from hardkuma.evaluation.faithfulness import faithfulness
from hardkuma.evaluation.metrics import Ranking
from hardkuma.modeling_hardkuma import HardKumaModel

CORPORA = ("wnut17/test.conll", "wikigold/wikigold.conll")
SAMPLE, FAITHFULNESS_SAMPLE = 800, 100
METHODS = ("meaning", "norm", "random")
COLUMNS = (
    "STS-B",
    *(f"{method}, {part}" for part in ("suff.", "compr.") for method in METHODS),
    "entities, AP",
    "form alone, AP",
)


def measure(model: HardKumaModel, data: Path) -> dict[str, float]:
    """One row, by column."""
    encoder = SentenceEncoder.from_model(model)
    path, columns = STS_FILES["STS-B"]
    pairs = read_scored_pairs(data / path, columns)
    values: dict[str, list[float]] = {name: [] for name in COLUMNS}
    values["STS-B"] = [measure_similarity(pairs, lambda texts: encoder.encode(texts).numpy()).together]
    for corpus in CORPORA:
        sentences = read_corpus(data / corpus).sample(SAMPLE, 0)
        texts, words = texts_of(sentences)
        for column, form_alone in (("entities, AP", False), ("form alone, AP", True)):
            found = gate_scores(encoder, texts, words, default=ENTITIES, form_alone=form_alone)
            curve = Ranking(labels_of(sentences), [list(one.scores) for one in found]).curve()
            values[column].append(curve.average_precision())
        texts, words = texts[:FAITHFULNESS_SAMPLE], words[:FAITHFULNESS_SAMPLE]
        rankings: dict[str, Sequence[WordScores]] = {
            "meaning": gate_scores(encoder, texts, words),
            "norm": norm_scores(encoder, texts, words, aggregate="sum"),
            "random": random_scores(encoder, texts, words),
        }
        for method, ranking in rankings.items():
            kept = faithfulness(encoder, ranking)
            values[f"{method}, suff."].append(float(np.nanmean(kept.areas(kept.sufficiency))))
            values[f"{method}, compr."].append(float(np.nanmean(kept.areas(kept.comprehensiveness))))
    return {name: statistics.mean(numbers) for name, numbers in values.items()}


def run(name: str, encoder: str, seed: int, data: Path, output: Path) -> dict[str, Any]:
    """Train gates on one encoder and measure them, unless that is done."""
    from hardkuma.training.recipe import load_recipe
    from hardkuma.training.trainer import Trainer

    folder = output / f"{name}-{seed}"
    result = folder / "result.json"
    known = json.loads(result.read_text()) if result.is_file() else {}
    if known.get("encoder") == encoder and set(known["columns"]) == set(COLUMNS):
        return known
    trainer = Trainer(load_recipe("default", {"encoder": encoder, "seed": seed, "output": str(folder)}))
    if not trainer.run():
        raise KeyboardInterrupt
    model = HardKumaModel.from_pretrained(trainer.complete()).eval()
    entry = {"name": name, "encoder": encoder, "seed": seed, "columns": measure(model, data)}
    write_atomically(result, json.dumps(entry, indent=1) + "\n")
    return entry


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--encoders", nargs="+", required=True, metavar="NAME=ENCODER")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/other_encoders"))
    options = parser.parse_args()
    named = [item.partition("=") for item in options.encoders]
    if bad := [name for name, _, encoder in named if not name or not encoder]:
        parser.error(f"--encoders takes NAME=ENCODER, got {bad[0]!r}")
    print(f"| encoder | {' | '.join(COLUMNS)} |\n|---|" + "---:|" * len(COLUMNS))
    for name, _, encoder in named:
        columns = run(name, encoder, options.seed, options.data, options.output)["columns"]
        print(f"| {name} | " + " | ".join(f"{columns[column]:.3f}".lstrip("0") for column in COLUMNS) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
