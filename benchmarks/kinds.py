"""Selectors that part: train recipes/specialise.yaml with several seeds, then measure what docs/experiments.md says.

    python benchmarks/kinds.py --data FOLDER --seeds 0 1 2
    python benchmarks/kinds.py --data FOLDER --meaning trained     with a `meaning` of its own for each seed

FOLDER holds ud-ewt/dev.conllu, whose gold tags measure and nothing else. A seed whose model is in
runs/kinds/MEANING-SEED/model is not trained again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from hardkuma.evaluation.corpora import read_corpus, texts_of
from hardkuma.evaluation.parts import CONTENT_TAGS, Parts, measure_parts, stability_of_parts, union_sufficiency
from hardkuma.modeling_hardkuma import HardKumaModel
from hardkuma.training.recipe import load_recipe

OUTPUT = Path("runs/kinds")
SENTENCES = 100  # of which words are removed, the first of the benchmark's sample


def trained(seed: int, dev: Path, meaning: str, changes: dict[str, object]) -> Path:
    """The folder of a trained model, whose `meaning` is the released one, or trained along."""
    from hardkuma.training.trainer import Trainer

    folder = OUTPUT / f"{meaning}-{seed}"
    if not (folder / "model" / "run.json").is_file():
        changes = {**changes, "meaning": "released" if meaning == "released" else None}
        trainer = Trainer(load_recipe("specialise", {"seed": seed, "output": str(folder), "dev": str(dev), **changes}))
        trainer.run()
        trainer.complete()
    return folder


def held_out_rates(folder: Path, kinds: Parts) -> list[float]:
    """Mean probability of each kind on the held-out text of its own source, from the log."""
    import json

    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    rates = {entry["selector"]: entry["rate"] for entry in entries if entry.get("phase") == "saved"}
    return [rates[name] for name in kinds.names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--meaning", choices=("released", "trained"), default="released")
    parser.add_argument("--kinds", type=int, default=10)
    options = parser.parse_args()
    path = options.data / "ud-ewt/dev.conllu"
    corpus, runs = read_corpus(path), []
    texts, words = texts_of(corpus.sample(SENTENCES))
    for seed in options.seeds:
        folder = trained(seed, path, options.meaning, {"kinds": options.kinds})
        model = HardKumaModel.from_pretrained(folder / "model").eval()
        kinds = measure_parts(model, corpus.sentences)
        runs.append(kinds)
        tags, table = kinds.shares()
        largest = [tags[i] for i in table.argmax(1)]
        off = np.array(held_out_rates(folder, kinds)) / np.array(kinds.targets) - 1
        print(f"seed {seed}: NMI {kinds.information():.3f}, content words {kinds.information(CONTENT_TAGS):.3f}, ", end="")
        print(
            f"mean Spearman {kinds.mean_correlation():.3f}, rates off by {np.abs(off).max():.1%} at most on held-out text"
        )
        print(f"largest parts: {largest}")
        union = union_sufficiency(model, texts, words)
        print("union: " + ", ".join(f"{name} {value:.3f}" for name, value in union.items()))
        print(kinds.describe(), flush=True)
    if len(runs) > 1:
        print("stability: " + ", ".join(f"{name} {value:.3f}" for name, value in stability_of_parts(runs).items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
