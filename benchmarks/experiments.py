"""Repeat any row of docs/experiments.md: train, then measure against gold entity words.

    python benchmarks/experiments.py --data FOLDER --rows default as-written --seeds 0 1 2
    python benchmarks/experiments.py --data FOLDER --list
    python benchmarks/experiments.py --table

FOLDER holds wnut17/, wikigold/ and, for rows that train on them, wikitext2/. A row that is done is not run again; its
model stays in runs/experiments/ROW-SEED. docs/experiments.md says which choices were made on which column.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from hardkuma.attribution.encoder import SentenceEncoder
from hardkuma.attribution.registry import find_method
from hardkuma.common.files import write_atomically
from hardkuma.evaluation.data import labels_of, read_corpus, texts_of
from hardkuma.evaluation.ranking import Ranking, f1_from_counts, f1_of_selection
from hardkuma.modeling_hardkuma import HardKumaModel
from hardkuma.training.recipe import load_recipe

OUTPUT = Path("runs/experiments")
CORPORA = {"WNUT17 dev": "wnut17/dev.conll", "WNUT17 test": "wnut17/test.conll", "wikigold": "wikigold/wikigold.conll"}
REAL = ["wikitext2/valid.txt", "wikitext2/test.txt", "wnut17/train.conll"]
SAMPLE = 800

# From close to the equations as first written, step by step towards the default. `recipe` names a file in recipes/.
PROTOTYPE = {"max_sentences": 1600, "max_steps": 75, "cotraining_epochs": 0}
CONTRASTIVE = {**PROTOTYPE, "epochs": 4}  # the default recipe passes once over its text, which is less than 75 steps
LAST = {"model.selector_layer": -1, "model.selector_inputs": ["state", "input"]}
ROWS: dict[str, dict[str, Any]] = {
    "as-written": {"recipe": "as-written", **PROTOTYPE},
    "as-written, neighbours": {"recipe": "as-written", "batches": "neighbours", **PROTOTYPE},
    "input, random": {"model.view": "input", "batches": "random", **LAST, **CONTRASTIVE},
    "input, neighbours": {"model.view": "input", **LAST, **CONTRASTIVE},
    "reencode, random": {"batches": "random", **LAST, **CONTRASTIVE},
    "reencode, neighbours": {**LAST, **CONTRASTIVE},
    "reencode, neighbours, real text": {"data": REAL, **LAST, **CONTRASTIVE},
    "reencode, layer 4": {**CONTRASTIVE},
    "default": {},
    "default, real text": {"data": REAL},
    "released": {"recipe": "released"},
    "default, no contrastive steps": {"max_steps": 1},
    "default, 25 contrastive steps": {"max_steps": 25},
    "default, last layer": {"model.selector_layer": -1},
    "default, last layer and input": LAST,
    "default, layer 2": {"model.selector_layer": 2},
    "default, 4 passes": {"cotraining_epochs": 4},
    "default, form alone": {"cotraining_weight": 0.001},
    "default, more of the gates": {"cotraining_weight": 0.5},
    "default, rate .1": {"model.target_rate": 0.1},
    "default, rate .3": {"model.target_rate": 0.3},
}


def overrides_of(row: str, seed: int, data: Path, output: Path) -> tuple[str, dict[str, Any]]:
    """The recipe of a row by name, and what it changes."""
    changes = dict(ROWS[row])
    recipe = changes.pop("recipe", "default")
    sources = changes.get("data", load_recipe(recipe).data)
    changes["data"] = [source if source == "bundled" else str(data / Path(source)) for source in sources]
    return recipe, {**changes, "seed": seed, "output": str(output)}


def measure(model: HardKumaModel, data: Path) -> dict[str, dict[str, float]]:
    """Average precision and F1 of word scores, with and without the surface view, on the benchmark's sample."""
    numbers: dict[str, dict[str, float]] = {}
    for name, path in CORPORA.items():
        sentences = read_corpus(data / path).sample(SAMPLE, 0)
        labels = labels_of(sentences)
        texts, words = texts_of(sentences)
        for surface in (False, True):
            method = find_method("gates_surface" if surface else "gates")
            scored = method.scores(SentenceEncoder.from_model(model), texts, words)
            selected = [[int(value) for value in item.selected or []] for item in scored]
            curve = Ranking(labels, [list(item.scores) for item in scored]).curve()
            numbers[f"{name}, surface" if surface else name] = {
                "ap": curve.average_precision(),
                "f1": f1_from_counts(f1_of_selection(labels, selected).sum(0)),
                "best_f1": curve.best_f1(),
            }
    return numbers


def run(row: str, seed: int, data: Path) -> dict[str, Any]:
    """Train and measure one row with one seed, unless it is done."""
    from hardkuma.training.trainer import Trainer

    folder = OUTPUT / f"{row.replace(', ', '-').replace(' ', '_')}-{seed}"
    result = folder / "result.json"
    recipe, changes = overrides_of(row, seed, data, folder)
    if result.is_file():
        known = json.loads(result.read_text())
        if known["changes"] == {key: value for key, value in changes.items() if key != "data"}:
            return known
    started = time.time()
    trainer = Trainer(load_recipe(recipe, changes))
    trainer.run()
    model = HardKumaModel.from_pretrained(trainer.complete()).eval()
    seconds = time.time() - started
    evaluations = [entry for entry in trainer.progress.history if "score" in entry]
    entry = {
        "row": row,
        "seed": seed,
        "changes": {key: value for key, value in changes.items() if key != "data"},
        "seconds": round(seconds),
        "label_free": evaluations[-1]["score"] if evaluations else None,
        "numbers": measure(model, data),
    }
    write_atomically(result, json.dumps(entry, indent=1) + "\n")
    return entry


def table() -> str:
    """All results so far, mean and spread over seeds."""
    known = [json.loads(path.read_text()) for path in sorted(OUTPUT.glob("*/result.json"))]
    columns = [f"{name}{view}" for name in CORPORA for view in ("", ", surface")]
    lines = [f"| row | seeds | {' | '.join(columns)} |", "|---|---:|" + "---:|" * len(columns)]
    for row in ROWS:
        results = [entry["numbers"] for entry in known if entry["row"] == row]
        if not results:
            continue
        cells = [_cell([numbers[column]["ap"] for numbers in results]) for column in columns]
        lines.append(f"| {row} | {len(results)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.3f}".lstrip("0")
    return mean if len(values) == 1 else f"{mean} ± {(max(values) - min(values)) / 2:.3f}".replace("± 0", "± ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), metavar="ROW", default=["default"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--list", action="store_true", help="show the rows and what they change")
    parser.add_argument("--table", action="store_true", help="print what is known and stop")
    options = parser.parse_args()
    if options.list:
        for name, changes in ROWS.items():
            print(f"{name}: {changes}")
        return 0
    if not options.table:
        if options.data is None:
            parser.error("--data FOLDER is needed to run rows")
        for row in options.rows:
            for seed in options.seeds:
                entry = run(row, seed, options.data)
                shown = {name: round(numbers["ap"], 3) for name, numbers in entry["numbers"].items()}
                print(f"{row}, seed {seed}, {entry['seconds']} s: {shown}", flush=True)
    print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
