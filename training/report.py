"""What a run leaves: the model with its card, plots, log, and the record of versions."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint_hardkuma import staged
from ..common.files import write_atomically
from ..common.packages import versions
from ..common.text import SHOWCASE, name_sources
from ..data.readers import HUB_PREFIX
from ..modeling_hardkuma import HardKumaModel
from ..scoring_hardkuma import gate_records
from .criterion import Quality, selection_quality
from .language import is_english

if TYPE_CHECKING:
    from .objectives.base import Report
    from .recipe import TextRecipe
    from .run import Run


def save_run(run: Run) -> Path:
    """Write `model/`, complete with card, plots, log and record; what the run needed for itself goes. The folder."""
    folder = run.output / "model"
    run.on_main(_save, run, folder)
    if run.recipe.trackers:
        run.accelerator.end_training()
    return folder


def _save(run: Run, folder: Path) -> None:
    model, recipe = run.model.eval(), run.recipe
    reports = [objective.report(run) for objective in run.objectives]
    for report in reports:
        for entry in report.entries:
            run.record(entry)
    qualities = {}
    for number, name in enumerate(model.config.names if len(run.held_out) else []):
        qualities[name] = selection_quality(model, run.store, run.held_out, number)
        run.record({"phase": "saved", "selector": name, **qualities[name].as_dict()})
    run.write_log()
    with staged(folder) as stage:
        run.result.save_pretrained(stage, card=card_sections(run, reports, qualities, _measure_entities(run)))
        write_record(stage, recipe, time.time() - run.started, run.accelerator.num_processes)
        for name in ("log.jsonl", *(plot for report in reports for plot in report.plots)):
            write_atomically(stage / name, (run.output / name).read_bytes())
    for temporary in ("checkpoints", "store"):
        shutil.rmtree(run.output / temporary, ignore_errors=True)


def _measure_entities(run: Run) -> dict[str, float] | None:
    """Against the gold words of the development file, if there is one; parts are measured by their objective."""
    if run.recipe.dev is None or run.model.config.parts:
        return None
    from ..evaluation.measure import entity_numbers

    return entity_numbers(run.model, run.recipe.dev)


def plot_history(history: Sequence[dict[str, Any]], target_rates: Sequence[float], folder: Path) -> list[str]:
    """losses.png and rate.png from the log of a contrastive phase; the names of what was drawn."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = [entry for entry in history if "loss" in entry]
    evaluations = [entry for entry in history if "score" in entry and "phase" not in entry]
    if not steps:
        return []
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name in [key for key in steps[0] if key.startswith("loss")]:
        axes.plot([entry["step"] for entry in steps], [entry[name] for entry in steps], label=name.removeprefix("loss/"))
    axes.set(xlabel="step", ylabel="unweighted term", title="Loss and its terms")
    axes.legend()
    _save_figure(figure, folder / "losses.png")
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot([e["step"] for e in steps], [e["rate"] for e in steps], label="selection rate (training)")
    for rate in sorted(set(target_rates)):
        axes.axhline(rate, linestyle="--", color="grey", label="target")
    if evaluations:
        axes.plot([e["step"] for e in evaluations], [e["score"] for e in evaluations], marker="o", label="held-out score")
    axes.set(xlabel="step", ylim=(0, 1), title="Selection rate and label-free score")
    axes.legend()
    _save_figure(figure, folder / "rate.png")
    return ["losses.png", "rate.png"]


def _save_figure(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    pyplot.close(figure)
    write_atomically(path, drawn.getvalue())


def show_words(model: HardKumaModel, texts: Sequence[str], selector: str) -> list[str]:
    """Each text with the words in bold that one selector selects, escaped for Markdown."""
    lines = []
    for text, record in zip(texts, gate_records(model, texts, selector=selector), strict=True):
        parts, position = [], 0
        for word in record["words"]:
            parts.append(_escape(text[position : word["start"]]))
            inside = _escape(word["word"])
            parts.append(f"**{inside}**" if word["selected"] else inside)
            position = word["end"]
        lines.append("".join([*parts, _escape(text[position:])]))
    return lines


def _escape(text: str) -> str:
    for character in "\\`*_{}[]<>#|":
        text = text.replace(character, "\\" + character)
    return text


def card_sections(
    run: Run, reports: Sequence[Report], qualities: Mapping[str, Quality], dev: dict[str, float] | None
) -> dict[str, Any]:
    """The fields of the card that a run knows.

    Args:
        qualities: of the gates that are saved, by the name of the selector.
        dev: figures against a labelled file, where the recipe names one.
    """
    without = "without" if run.recipe.label is None else "with"
    about = (
        f"Trained {without} labels on {len(run.rows):,} sentences of {name_sources(run.recipe.data)} by the recipe in "
        f"`recipe.yaml` (seed {run.recipe.seed})."
    )
    return {
        "training": "\n\n".join([about, *(report.paragraph for report in reports)]),
        "plots": _plots([plot for report in reports for plot in report.plots]),
        "evaluation": "\n\n".join(_evaluation(run, reports, qualities, dev)),
        "examples": _examples(run.model),
        "language": _languages(run),
        "datasets": [
            source.removeprefix(HUB_PREFIX).split(":")[0] for source in run.recipe.data if source.startswith(HUB_PREFIX)
        ],
        "results": _results(run, reports, qualities, dev),
    }


def _languages(run: Run) -> list[str]:
    """What the recipe says, or English where that shows."""
    if run.recipe.language is not None:
        return [run.recipe.language]
    return ["en"] if is_english(run.texts, run.recipe.seed) else []


def _results(
    run: Run, reports: Sequence[Report], qualities: Mapping[str, Quality], dev: dict[str, float] | None
) -> list[dict[str, Any]]:
    """What was measured of the gates that are saved, for the card's metadata."""
    held_out: dict[str, float] = {}
    for name, quality in qualities.items():
        at = f"of {name} at rate {run.model.config.selectors[name].target_rate:g}"
        held_out |= {f"sufficiency {at}": quality.sufficiency, f"remainder {at}": quality.remainder}
    for report in reports:
        held_out |= report.metrics
    source = name_sources(run.recipe.data).replace("`", "")
    found = [(f"held-out text of {source}", "held-out", held_out)]
    if dev is not None and run.recipe.dev is not None:
        found.append((Path(run.recipe.dev).name, "development", dev))
    return [
        {"dataset": name, "type": kind, "metrics": {key: round(value, 4) for key, value in metrics.items()}}
        for name, kind, metrics in found
        if metrics
    ]


def _plots(names: Sequence[str]) -> str:
    return "".join(f"\n![{Path(name).stem}]({name})" for name in names)


def _evaluation(
    run: Run, reports: Sequence[Report], qualities: Mapping[str, Quality], dev: dict[str, float] | None
) -> list[str]:
    """Paragraphs."""
    config, paragraphs = run.model.config, ["No held-out text was evaluated."]
    if qualities:
        lines = [
            "On held-out text of the same source, with the gates as they are saved, keeping the most probable words of "
            "each sentence at the target rate: cosine of their re-encoded embedding to the sentence's (sufficiency, higher "
            "is better) and of the others' (remainder, lower is better).\n",
            "| selector | target rate | sufficiency | remainder | mean selection probability |",
            "|---|---:|---:|---:|---:|",
        ]
        for name, quality in qualities.items():
            rate = config.selectors[name].target_rate
            cells = (quality.sufficiency, quality.remainder, quality.rate)
            lines.append(f"| {name} | {rate:g} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")
        paragraphs = ["\n".join(lines)]
    if dev is not None:
        numbers = ", ".join(f"{name} {value:.3f}" for name, value in dev.items())
        paragraphs.append(
            f"Against the gold entity words of the development file, which took no part in training: {numbers}."
        )
    return paragraphs + [report.evaluation for report in reports if report.evaluation]


def _examples(model: HardKumaModel) -> str:
    parts = ["Sentences from outside the corpus, hard ones among them; selected words in bold."]
    for name in model.config.names:
        lines = "\n".join(f"- {line}" for line in show_words(model, SHOWCASE, name))
        parts.append(f"`{name}`:\n\n{lines}" if model.config.num_selectors > 1 else lines)
    return "\n\n".join(parts)


def write_record(folder: Path, recipe: TextRecipe, seconds: float, processes: int) -> None:
    """recipe.yaml and run.json (versions, revision, seed, processes, wall time) beside the result."""
    recipe.save(folder / "recipe.yaml")
    record = {"versions": versions(), "seed": recipe.seed, "processes": processes, "seconds": round(seconds, 1)}
    write_atomically(folder / "run.json", json.dumps(record, indent=2) + "\n")
