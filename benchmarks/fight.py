"""Ways to train `meaning` at one budget: the table "A fair fight" of docs/experiments.md.

    python benchmarks/fight.py --data FOLDER --seeds 0 1 2       train, measure, print the table
    python benchmarks/fight.py --data FOLDER --tune              settings of the contrastive objective, on dev, seed 0
    python benchmarks/fight.py --table                           the table, from what has been run

All have the bundled text, without a label, and as many CPU seconds of one thread (OMP_NUM_THREADS=1) as `removal` of the
default recipe takes: STEPS were set so, and the table shows the seconds. Encoding the text and the table of isolated tokens
come before, once for all. Objective contrastive is shown at its last step, and at its best by the label-free criterion on
held-out text. Results are kept in runs/fight, and what is there is not run again.

    removal                     the default recipe
    as-written, contrastive     recipes/as-written.yaml, recipes/contrastive.yaml
    contrastive, then removal   by removal, from the hidden layer that contrastive has found (the budgets of both)
    removal + InfoNCE           by removal, where a subset S of a sentence's words is also worth, with the sentence's 64
                                nearest neighbours as negatives, w (InfoNCE(without S) - InfoNCE(S)) / log 65
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from experiments import FAITHFULNESS_COLUMNS, PARTS, REMOVED, areas, sample_of
from safetensors.torch import load_file, save_file
from torch import Tensor

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
STEPS = {"as-written": 700, "contrastive": 60}  # as many as take what `removal` takes
LOOK_EVERY = {"as-written": 25, "contrastive": 10}  # steps between evaluations on held-out text; these cost time, too
NEIGHBOURS, TEMPERATURE, WEIGHT = 64, 0.1, 0.3
# What tuning began with, on dev at the whole budget; the recipe has what was best there.
BASE = {"selectors.meaning.target_rate": 0.2, "train.learning_rate": 0.001, "train.batch_size": 32}
LARGE = {"train.batch_size": 64, "train.max_steps": STEPS["contrastive"] // 2}
TUNING: dict[str, dict[str, Any]] = {
    "base": {},
    "rate .3": {"selectors.meaning.target_rate": 0.3},
    "learning rate .003": {"train.learning_rate": 0.003},
    "learning rate .003, rate .3": {"train.learning_rate": 0.003, "selectors.meaning.target_rate": 0.3},
    "batches of 64, half of the steps": LARGE,
    "the same, learning rate .003": {**LARGE, "train.learning_rate": 0.003},
    "tau 1": {"model.temperature": 1.0},
    "tau .1": {"model.temperature": 0.1},
    "lambda_cmp 2": {"model.lambda_cmp": 2.0},
    "lambda_s 1, no constraint": {"selectors.meaning.lambda_s": 1.0, "model.rate_constraint": "none"},
    "reads states alone": {"selectors.meaning.reads": ["state"]},
}


def recipe_of(name: str, seed: int, changes: Mapping[str, Any]) -> Recipe:
    values: dict[str, Any] = {"seed": seed, "surface": False, "output": str(OUTPUT), **changes}
    if name == "default":
        values["selectors.entities"] = None
    else:
        given = {"train.max_steps": STEPS[name], "train.evaluate_every": LOOK_EVERY[name]}
        values = {"train.epochs": 10_000, "train.checkpoint_every": 10**9, **given, **values}
    return load_recipe(name, values)


def prepare() -> dict[str, Tensor]:
    """Encode the text into the store that all share; the table of isolated tokens."""
    path = OUTPUT / "table.safetensors"
    run = start_run(recipe_of("contrastive", 0, BASE), overwrite=True)
    if not path.is_file():
        run.fill_isolated_table()
        state = run.model.gate_head.state_dict()
        save_file({name: value for name, value in state.items() if name.startswith("isolated_")}, path)
    return load_file(path)


def enter(name: str, seed: int, table: dict[str, Tensor], changes: Mapping[str, Any]) -> Run:
    """A run of a recipe on the store that is there."""
    recipe = recipe_of(name, seed, changes)
    torch.manual_seed(seed)
    run = Run(recipe, HardKumaModel.from_encoder(recipe.encoder, **recipe.config_settings()).eval())
    if run.model.config.reads("isolated"):
        run.model.gate_head.load_state_dict(table, strict=False)
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


class RemovalFight:
    """Removal by its own functions: subsets are encoded once, and fitted in several ways."""

    def __init__(self, run: Run):
        started, self.run = time.process_time(), run
        self.settings: Any = run.objectives[0].settings
        self.sentences = read_sentences(run.store, run.rows, self.settings.sentences, run.recipe.seed, run.model)
        self.jobs = random_subsets(self.sentences.tokens, self.settings.subsets, run.recipe.seed)
        self.anchors = torch.from_numpy(np.asarray(run.store.anchors()[self.sentences.rows]))
        self.vectors = torch.zeros(len(self.jobs), 2, self.anchors.shape[1])
        for chosen, vectors in encode_jobs(run.model, self.sentences.tokens, self.jobs):
            self.vectors[chosen] = torch.nn.functional.normalize(vectors, dim=-1)
        self.seconds = time.process_time() - started

    def values(self, weight: float) -> Tensor:
        """(jobs,) what subsets are worth: cosines, and what tells their sentence from its neighbours."""
        result = torch.zeros(len(self.jobs))
        for chosen in torch.arange(len(self.jobs)).split(1024):
            own = torch.tensor([self.jobs[job][0] for job in chosen.tolist()])
            nearest = (self.anchors[own] @ self.anchors.T).topk(NEIGHBOURS + 1).indices  # the sentence itself first
            cosines = self.vectors[chosen] @ self.anchors[nearest].transpose(1, 2)
            tells = (cosines / TEMPERATURE).log_softmax(-1)[..., 0] / math.log(NEIGHBOURS + 1)
            kept, lost = (cosines[..., 0] + weight * tells).unbind(-1)
            result[chosen] = kept - lost
        return result

    def fit(self, weight: float = 0.0, hidden: dict[str, Tensor] | None = None) -> float:
        """CPU seconds, those of encoding subsets too; `hidden` is a hidden layer to begin with."""
        started, model, seed = time.process_time(), self.run.model, self.run.recipe.seed

        def begin(model: HardKumaModel, number: int, seed: int) -> Any:
            selector = fresh_selector(model, number, seed)
            if hidden is not None:
                selector.hidden.load_state_dict(hidden)
            return selector

        inputs = read_inputs(model, self.run.store, self.sentences, 0, False)
        with mock.patch.object(removal, "fresh_selector", begin):
            given = (model, 0, inputs, self.sentences.counts, self.jobs, self.values(weight), self.settings, seed, False)
            removal.fit_sums(*given)
        return self.seconds + time.process_time() - started


def fight(table: dict[str, Tensor], seed: int, data: Path) -> None:
    """Train and measure with one seed what is not there yet."""
    run = enter("default", seed, table, {})
    of_removal: RemovalFight | None = None

    def by_removal(row: str, weight: float = 0.0, hidden: dict[str, Tensor] | None = None, before: float = 0.0) -> None:
        nonlocal of_removal
        if not kept_at(row, seed).is_file():
            of_removal = of_removal or RemovalFight(run)
            keep(row, seed, before + of_removal.fit(weight, hidden), None, measure(run.model, data))

    by_removal("removal")
    by_removal("removal + InfoNCE", WEIGHT)
    for name in STEPS:
        row = f"{name}, last step"
        if kept_at(row, seed).is_file():
            continue
        other = enter(name, seed, table, {})
        seconds = fit(other)
        fitting = other.objectives[0].fitting  # type: ignore[attr-defined]
        best, last, columns = fitting.progress.best_step, fitting.progress.step, measure(other.model, data)
        keep(f"{name}, best step", seed, seconds, best, columns)
        load_trained_state(other.model, fitting.last)
        keep(row, seed, seconds, last, columns if best == last else measure(other.model, data))
        if name == "contrastive":
            hidden = other.model.gate_head.selectors[0].hidden.state_dict()
            by_removal("contrastive, then removal", hidden=hidden, before=seconds)


def fit(run: Run) -> float:
    """CPU seconds that the objective takes."""
    started = time.process_time()
    run.objectives[0].fit(run)
    return time.process_time() - started


def kept_at(row: str, seed: int) -> Path:
    return OUTPUT / "results" / f"{row.replace(' ', '-')}-{seed}.json"


def keep(row: str, seed: int, seconds: float, step: int | None, columns: dict[str, list[float]]) -> None:
    entry = {"row": row, "seed": seed, "seconds": round(seconds, 1), "step": step, "columns": columns}
    path = kept_at(row, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entry))
    means = {name: round(float(np.nanmean(values)), 4) for name, values in columns.items()}
    print(f"{row}, seed {seed}, {seconds:.0f} s, step {step}: {means}", flush=True)


def print_table() -> None:
    """Means over seeds, and the paired difference to removal with its 95% interval over sentences."""
    entries = [json.loads(path.read_text()) for path in (OUTPUT / "results").glob("*.json")]
    rows: dict[str, list[dict[str, Any]]] = {}
    for entry in sorted(entries, key=lambda entry: (entry["row"] != "removal", entry["row"], entry["seed"])):
        rows.setdefault(entry["row"], []).append(entry)
    print(f"| | CPU seconds | step | {' | '.join(FAITHFULNESS_COLUMNS)} |\n|---|---:|---:|" + "---:|" * 4)
    for row, own in rows.items():
        steps = ", ".join(str(entry["step"]) for entry in own if entry["step"] is not None)
        cells = [f"{np.mean([entry['seconds'] for entry in own]):.0f}", steps]
        for column in FAITHFULNESS_COLUMNS:
            values, base = (np.mean([entry["columns"][column] for entry in some], 0) for some in (own, rows["removal"]))
            cell = f"{np.nanmean(values):.3f}"
            if row != "removal":
                gap = bootstrap(lambda w, d=values - base: {"gap": weighted_mean(d, w)}, len(values), samples=5000)["gap"]
                cell += f" ({gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}])"
            cells.append(cell.replace("0.", "."))
        print(f"| {row} | {' | '.join(cells)} |")


def tune(table: dict[str, Tensor], data: Path) -> None:
    """Each setting of TUNING on dev, at its best step."""
    for name, changes in TUNING.items():
        run = enter("contrastive", 0, table, {**BASE, **changes})
        seconds = fit(run)
        progress = run.objectives[0].fitting.progress  # type: ignore[attr-defined]
        means = {key: round(float(np.nanmean(values)), 4) for key, values in measure(run.model, data, ("dev",)).items()}
        print(f"{name}: {seconds:.0f} s, best step {progress.best_step} of {progress.step}, {means}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.data is None and not options.table:
        parser.error("--data FOLDER is needed for this")
    if options.tune:
        tune(prepare(), options.data)
        return 0
    if not options.table:
        table = prepare()
        for seed in options.seeds:
            fight(table, seed, options.data)
    print_table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
