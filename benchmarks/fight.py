"""Three ways to train `meaning`, and their combinations, at one budget: the table "A fair fight" of docs/experiments.md.

    python benchmarks/fight.py --data FOLDER --seeds 0 1 2       train, measure, print the table
    python benchmarks/fight.py --data FOLDER --tune              settings of the contrastive objective, on dev, seed 0

All entrants have the bundled text, without a label, and as many CPU seconds of one thread (OMP_NUM_THREADS=1) as `removal`
of the default recipe takes: STEPS were set so, and the table shows the seconds. Encoding the text and the table of isolated
tokens come before, once for all. `contrastive` is reported at its last step and at its best, by the label-free criterion on
held-out text. Results are kept in runs/fight, and what is there is not run again.

    removal                 the default recipe
    as written              recipes/as-written.yaml
    contrastive             recipes/contrastive.yaml
    contrastive, removal    the hidden layer that contrastive has found, then fitted by removal
    removal + InfoNCE       removal, where a subset S is also worth, with the sentences' 64 nearest neighbours as negatives,
                            w (InfoNCE(without S) - InfoNCE(S)) / log 65
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from experiments import FAITHFULNESS_COLUMNS, PARTS, REMOVED, areas, sample_of

from hardkuma import HardKumaModel
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.corpora import texts_of
from hardkuma.evaluation.statistics import bootstrap, weighted_mean
from hardkuma.training.loop import load_trained_state
from hardkuma.training.objectives import removal
from hardkuma.training.objectives.base import fresh_selector
from hardkuma.training.recipe import Recipe, load_recipe
from hardkuma.training.run import Run, open_store, start_run
from hardkuma.training.subsets import encode_jobs, random_subsets
from hardkuma.training.words import read_inputs, read_sentences

OUTPUT = Path("runs/fight")
STEPS = {"as written": 2000, "contrastive": 60}  # as many as take what `removal` takes
LOOKS = 4  # evaluations on held-out text
RECIPES = {"removal": "default", "as written": "as-written", "contrastive": "contrastive"}
NEIGHBOURS, TEMPERATURE = 64, 0.1
WEIGHTS = (0.3, 1.0)  # of the InfoNCE term
# The head is the same for all, so that objectives are compared and not what they read; `as written` has its own.
SAME_HEAD = {"selectors.meaning.reads": ["state", "pool_share", "isolated"], "selectors.meaning.unit": "word"}
SMALL = {**SAME_HEAD, "train.batch_size": 32, "train.max_steps": 60}
TUNING: dict[str, dict[str, Any]] = {
    "base": SMALL,
    "batches of 16": {**SMALL, "train.batch_size": 16, "train.max_steps": 120},
    "learning rate .003": {**SMALL, "train.learning_rate": 0.003},
    "tau .1": {**SMALL, "model.temperature": 0.1},
    "tau 1": {**SMALL, "model.temperature": 1.0},
    "rate .3": {**SMALL, "selectors.meaning.target_rate": 0.3},
    "lambda_cmp 2": {**SMALL, "model.lambda_cmp": 2.0},
    "lambda_s 1, no constraint": {**SMALL, "selectors.meaning.lambda_s": 1.0, "model.rate_constraint": "none"},
    "states of tokens alone": {"train.batch_size": 32, "train.max_steps": 60},
}


def recipe_of(entrant: str, seed: int, **changes: Any) -> Recipe:
    values: dict[str, Any] = {"seed": seed, "surface": False, "output": str(OUTPUT), **changes}
    if entrant == "removal":
        values["selectors.entities"] = None
    else:
        steps = values.setdefault("train.max_steps", STEPS[entrant])
        values |= {
            "train.epochs": 10_000,
            "train.evaluate_every": math.ceil(steps / LOOKS),
            "train.checkpoint_every": 10**9,
        }
    return load_recipe(RECIPES[entrant], values)


class Arena:
    """The encoded text and the table of isolated tokens, which all entrants share."""

    def __init__(self) -> None:
        run = start_run(recipe_of("contrastive", 0, **SAME_HEAD), overwrite=True)
        run.fill_isolated_table()
        self.head = {
            name: value for name, value in run.model.gate_head.state_dict().items() if name.startswith("isolated_")
        }

    def enter(self, entrant: str, seed: int, **changes: Any) -> Run:
        recipe = recipe_of(entrant, seed, **changes)
        torch.manual_seed(seed)
        model = HardKumaModel.from_encoder(recipe.encoder, **recipe.config_settings()).eval()
        if model.config.reads("isolated"):
            model.gate_head.load_state_dict(self.head, strict=False)
        run = Run(recipe, model)
        open_store(run)
        return run


def measure(model: HardKumaModel, data: Path, parts: tuple[str, ...] = tuple(PARTS)) -> dict[str, list[float]]:
    """Sufficiency and comprehensiveness of every sentence, by column."""
    encoder = SentenceEncoder.from_model(model.eval())
    found: dict[str, list[float]] = {}
    for part in parts:
        for path in PARTS[part]:
            for name, values in areas(encoder, "gates_meaning", *texts_of(sample_of(data / path)[:REMOVED])).items():
                found.setdefault(f"{part} {name}", []).extend(np.round(values, 5).tolist())
    return found


def fight(arena: Arena, seed: int, data: Path) -> None:
    """Train and measure all entrants with one seed."""
    run = arena.enter("removal", seed)
    seconds = fit(run)
    keep("removal", seed, seconds, "", measure(run.model, data))
    for weight in WEIGHTS:
        seconds = fit_with_neighbours(run, weight)
        keep(f"removal + InfoNCE, w = {weight:g}", seed, seconds, "", measure(run.model, data))
    for entrant in STEPS:
        other = arena.enter(entrant, seed)
        seconds = fit(other)
        fitting = other.objectives[0].fitting
        best, steps = fitting.progress.best_step, fitting.progress.step
        keep(f"{entrant}, best step", seed, seconds, best, measure(other.model, data))
        load_trained_state(other.model, fitting.last)
        keep(f"{entrant}, last step", seed, seconds, steps, measure(other.model, data))
    hidden = other.model.gate_head.selectors[0].hidden.state_dict()

    def begin(model: HardKumaModel, number: int, seed: int) -> Any:
        selector = fresh_selector(model, number, seed)
        selector.hidden.load_state_dict(hidden)
        return selector

    with mock.patch.object(removal, "fresh_selector", begin):
        more = fit(run)
    keep("contrastive, removal", seed, seconds + more, "", measure(run.model, data))


def fit(run: Run) -> float:
    """CPU seconds that the objective takes."""
    started = time.process_time()
    run.objectives[0].fit(run)
    return time.process_time() - started


def fit_with_neighbours(run: Run, weight: float) -> float:
    """The same for removal, where subsets are also worth what tells their sentence from its neighbours."""
    started, settings, seed, model = time.process_time(), run.objectives[0].settings, run.recipe.seed, run.model
    sentences = read_sentences(run.store, run.rows, settings.sentences, seed, model)
    jobs = random_subsets(sentences.tokens, settings.subsets, seed)
    anchors = torch.from_numpy(np.asarray(run.store.anchors()[sentences.rows]))
    nearest = torch.cat([(part @ anchors.T).topk(NEIGHBOURS + 1).indices for part in anchors.split(512)])
    values = torch.zeros(len(jobs))
    for chosen, vectors in encode_jobs(model, sentences.tokens, jobs):
        own = torch.tensor([jobs[job][0] for job in chosen])
        cosines = torch.nn.functional.normalize(vectors, dim=-1) @ anchors[nearest[own]].transpose(1, 2)  # own is nearest
        kept, lost = cosines[..., 0].unbind(-1)
        tells = cosines.div(TEMPERATURE).log_softmax(-1)[..., 0] / math.log(NEIGHBOURS + 1)
        values[chosen] = kept - lost + weight * (tells[:, 0] - tells[:, 1])
    inputs = read_inputs(model, run.store, sentences, 0, False)
    removal.fit_sums(model, 0, inputs, sentences.counts, jobs, values, settings, seed, False)
    return time.process_time() - started


def keep(row: str, seed: int, seconds: float, step: Any, columns: dict[str, list[float]]) -> None:
    entry = {"row": row, "seed": seed, "seconds": round(seconds, 1), "step": step, "columns": columns}
    path = OUTPUT / "results" / f"{row.replace(' ', '-')}-{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entry))
    means = {name: round(float(np.nanmean(values)), 3) for name, values in columns.items()}
    print(f"{row}, seed {seed}, {seconds:.0f} s, step {step}: {means}", flush=True)


def print_table() -> None:
    """Means over seeds, and the paired difference to removal with its 95% interval over sentences."""
    entries = [json.loads(path.read_text()) for path in sorted((OUTPUT / "results").glob("*.json"))]
    of_row = {row: [e for e in entries if e["row"] == row] for row in dict.fromkeys(e["row"] for e in entries)}
    print(f"| row | CPU seconds | step | {' | '.join(FAITHFULNESS_COLUMNS)} |\n|---|---:|---:|" + "---:|" * 4)
    first = of_row.get("removal", [])
    for row, own in sorted(of_row.items(), key=lambda item: (item[0] != "removal", item[0])):
        seconds = statistics.mean(entry["seconds"] for entry in own)
        cells = [f"{seconds:.0f}", ", ".join(str(entry["step"]) for entry in own)]
        for column in FAITHFULNESS_COLUMNS:
            values, base = (np.mean([entry["columns"][column] for entry in some], axis=0) for some in (own, first))
            means = [np.nanmean(entry["columns"][column]) for entry in own]
            cell = f"{np.mean(means):.3f} ± {np.ptp(means) / 2:.3f}"
            if row != "removal":
                gap = bootstrap(lambda w, d=values - base: {"gap": weighted_mean(d, w)}, len(values), samples=5000)["gap"]
                cell += f", {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
            cells.append(cell)
        print(f"| {row} | {' | '.join(cells)} |")


def tune(arena: Arena, data: Path) -> None:
    """Each setting of TUNING, on dev, at its best step and at its last."""
    for name, changes in TUNING.items():
        run = arena.enter("contrastive", 0, **changes)
        seconds = fit(run)
        progress = run.objectives[0].fitting.progress
        means = {key: round(float(np.nanmean(values)), 4) for key, values in measure(run.model, data, ("dev",)).items()}
        print(f"{name}: {seconds:.0f} s, best step {progress.best_step} of {progress.step}, {means}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    arena = Arena()
    if options.tune:
        tune(arena, options.data)
        return 0
    for seed in options.seeds:
        fight(arena, seed, options.data)
    print_table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
