"""Which view trains an encoder best? Arms and paired seeds, by the mean of seven STS tasks: the tables of docs/encoder.md.

    python benchmarks/encoder_arms.py --data FOLDER --output runs/encoder_arms
    python benchmarks/encoder_arms.py --data FOLDER --output runs/encoder_arms --seeds 0 --arms "dropout only" cropping
    python benchmarks/encoder_arms.py --table --plot docs/encoder-arms.svg

FOLDER holds wikitext2/, wnut17/, sts/ and stsb/. Seeds are paired: the same seed gives every arm the same weights of the
reset layers and the same batches. All arms of a seed run before the next seed. It can be stopped at any moment: the same
command passes over finished runs and goes on with an unfinished one from its last checkpoint. Nothing is chosen by STS: the
last step is measured. Results are kept in benchmarks/results/encoder_arms.jsonl; those of other settings, views or, for
arms that ask gates, of another released head are run again, and are not in the table. `--results new.jsonl` runs all anew.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from hardkuma import load_released
from hardkuma.common.files import KeptResults, write_atomically
from hardkuma.common.packages import versions
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.encoder_tasks import STS_FILES, TaskData, evaluate_encoder, read_tasks
from hardkuma.evaluation.report import bar_plot
from hardkuma.training.encoder.recipe import EncoderRecipe
from hardkuma.training.encoder.run import EncoderRun

RESULTS = Path(__file__).with_name("results") / "encoder_arms.jsonl"
# One token (ADD) or word (the others) of every eight tokens goes; a crop leaves three quarters of the words.
EIGHTH, CROP = {"t": 8}, {"rate": 0.25}
ARMS: Mapping[str, dict[str, Any] | None] = {
    "not trained": None,
    "dropout only": {"dropout": None},
    "random drop": {"random_deletion": EIGHTH},
    "ADD naive": {"attention_naive": EIGHTH},
    "ADD rollout": {"attention_rollout": EIGHTH},
    "lowest gates": {"lowest_gates": EIGHTH},
    "cropping": {"cropping": CROP},
    "lowest gates + cropping": {"lowest_gates": EIGHTH, "cropping": CROP},
}
TEXT = ("wikitext2/valid.txt", "wikitext2/test.txt", "wnut17/train.conll")
SETTINGS: dict[str, Any] = {
    "reset_layers": 2,
    "freeze_layers": 4,
    "min_words": 6,
    "max_words": 12,
    "max_tokens": 20,
    "batch_size": 64,
    "max_steps": 300,
    "learning_rate": 3e-5,
    "warmup": 0.1,
    "evaluate_every": 100,
    "checkpoint_every": 50,
}
OTHERS = [arm for arm in ARMS if arm != "dropout only"]
PAIRS = (*((arm, "dropout only") for arm in OTHERS), ("lowest gates", "ADD naive"))


@functools.cache
def head_digest() -> str:
    """Of the released gate head: another head is another experiment."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_released()[0].gate_head.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def asks_gates(arm: str) -> bool:
    return any("gates" in name for name in ARMS.get(arm) or {})


def is_current(entry: Mapping[str, Any]) -> bool:
    """Whether a result is of today's settings, of today's view of its arm and, where that asks gates, of today's head."""
    if entry["settings"] != SETTINGS or entry["arm"] not in ARMS or entry["view"] != ARMS[entry["arm"]]:
        return False
    return not asks_gates(entry["arm"]) or entry.get("head") == head_digest()


def run(arm: str, seed: int, data: Path, output: Path, tasks: TaskData, keep: bool) -> dict[str, Any]:
    """Train and measure one arm with one seed; an interrupted run goes on."""
    folder, view = output / f"{arm.replace(' + ', '-').replace(' ', '_')}-{seed}", ARMS[arm]
    sources = ["bundled", *(str(data / path) for path in TEXT)]
    settings = {**SETTINGS, "view": view} if view else {**SETTINGS, "max_steps": 0}
    recipe = EncoderRecipe(data=sources, seed=seed, output=str(folder), **settings)
    started, processor = time.time(), time.process_time()
    trained = EncoderRun(recipe, resume=True, quiet=True, overwrite=True)
    if not trained.run():
        raise KeyboardInterrupt
    model = trained.complete()
    training, history = time.process_time() - processor, trained.trainer.state.log_history
    encoder = SentenceEncoder.load(model)
    measured = evaluate_encoder(lambda texts: encoder.encode(texts).numpy(), tasks)
    # Of the last step; an encoder that is not trained has no log.
    last = {key: value for entry in history for key, value in entry.items()}
    entry = {
        "arm": arm,
        "seed": seed,
        "view": view,
        "settings": SETTINGS,
        "head": head_digest() if asks_gates(arm) else None,
        "average": round(100 * statistics.mean(value.together for value in measured.similarity.values()), 4),
        "sts": {name: value.together for name, value in measured.similarity.items()},
        "sts_mean_of_subsets": {name: value.mean for name, value in measured.similarity.items()},
        "alignment": last.get("eval_alignment"),
        "uniformity": last.get("eval_uniformity"),
        "loss": last.get("loss"),
        "processor_seconds": round(training),
        "seconds": round(time.time() - started),
        "versions": versions(),
    }
    if not keep:
        shutil.rmtree(model)
    return entry


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95% interval by Student's t; without bounds for fewer than two values."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, float("nan"), float("nan")
    half = float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def averages(known: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """STS average in points, by arm and seed."""
    found: dict[str, dict[int, float]] = {arm: {} for arm in ARMS}
    for entry in known:
        found[entry["arm"]][entry["seed"]] = entry["average"]
    return {arm: values for arm, values in found.items() if values}


def differences(values: Mapping[str, Mapping[int, float]], arm: str, other: str) -> dict[int, float]:
    """arm - other by seed, of the seeds that both have."""
    one, two = values.get(arm, {}), values.get(other, {})
    return {seed: one[seed] - two[seed] for seed in sorted(set(one) & set(two))}


def table(known: Sequence[Mapping[str, Any]]) -> str:
    """Means with intervals, and paired differences."""
    values = averages(known)
    lines = ["| view | seeds | STS average [95% interval] | each seed |", "|---|---:|---:|---|"]
    for arm, by_seed in values.items():
        each = ", ".join(f"{by_seed[seed]:.2f}" for seed in sorted(by_seed))
        lines.append(f"| {arm} | {len(by_seed)} | {_shown(list(by_seed.values()))} | {each} |")
    lines += ["", "| paired difference of STS averages | seeds | mean [95% interval] | each seed |", "|---|---:|---:|---|"]
    for arm, other in PAIRS:
        if paired := differences(values, arm, other):
            each = ", ".join(f"{value:+.2f}" for value in paired.values())
            lines.append(f"| {arm} - {other} | {len(paired)} | {_shown(list(paired.values()), '+')} | {each} |")
    return "\n".join(lines)


def _shown(values: Sequence[float], sign: str = "") -> str:
    mean, low, high = interval(values)
    bounds = f" [{low:{sign}.2f}, {high:{sign}.2f}]" if len(values) > 1 else ""
    return f"{mean:{sign}.2f}{bounds}"


def plot(known: Sequence[Mapping[str, Any]]) -> str:
    """Paired differences to dropout only, a bar for each seed, as SVG."""
    values = averages(known)
    arms = [arm for arm in OTHERS if arm in values]
    seeds = sorted({seed for by_seed in values.values() for seed in by_seed})
    bars = {
        f"seed {seed}": [differences(values, arm, "dropout only").get(seed, float("nan")) for arm in arms] for seed in seeds
    }
    return bar_plot(arms, bars, "STS average, difference to dropout only (points)", "encoder arms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("runs/encoder_arms"))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), metavar="ARM", default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--keep-models", type=int, nargs="*", default=[0], metavar="SEED", help="seeds whose models stay")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are kept (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print what is known and stop")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the plot of what is known here")
    options = parser.parse_args()
    results = KeptResults(options.results, ["arm", "seed"])
    if not options.table:
        if options.data is None:
            parser.error("--data FOLDER is needed to run arms")
        tasks = read_tasks(options.data, list(STS_FILES))
        for seed in options.seeds:
            for arm in options.arms:
                if any((entry["arm"], entry["seed"]) == (arm, seed) and is_current(entry) for entry in results.entries()):
                    continue
                entry = run(arm, seed, options.data, options.output, tasks, seed in options.keep_models)
                results.put(entry)
                print(f"{arm}, seed {seed}, {entry['seconds']} s: {entry['average']:.2f}", flush=True)
    stored = results.entries()
    known = [entry for entry in stored if is_current(entry)]
    if not known:
        parser.error(f"{options.results} holds no results of these settings ({len(stored)} of others)")
    print(table(known))
    if options.plot is not None:
        write_atomically(options.plot, plot(known))
    return 0


if __name__ == "__main__":
    sys.exit(main())
