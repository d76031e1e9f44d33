"""What a run leaves for people: plots, the sections of its card, the record of versions."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..common.files import write_atomically
from ..common.showcase import SHOWCASE, name_sources
from ..common.versions import versions
from ..modeling_hardkuma import HardKumaModel
from ..words_hardkuma import gate_records
from .cotraining import Cotraining
from .criterion import Quality
from .recipe import Recipe


def plot_history(history: Sequence[dict[str, Any]], target_rate: float, folder: Path) -> None:
    """losses.png and rate.png from the log, if it has entries."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = [entry for entry in history if "loss" in entry]
    evaluations = [entry for entry in history if "score" in entry]
    if not steps:
        return
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name in [key for key in steps[0] if key.startswith("loss")]:
        axes.plot([entry["step"] for entry in steps], [entry[name] for entry in steps], label=name.removeprefix("loss/"))
    axes.set(xlabel="step", ylabel="unweighted term", title="Loss and its terms")
    axes.legend()
    _save(figure, folder / "losses.png")
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot([e["step"] for e in steps], [e["rate"] for e in steps], label="selection rate (training)")
    axes.axhline(target_rate, linestyle="--", color="grey", label="target")
    if evaluations:
        axes.plot([e["step"] for e in evaluations], [e["score"] for e in evaluations], marker="o", label="held-out score")
    axes.set(xlabel="step", ylim=(0, 1), title="Selection rate and label-free score")
    axes.legend()
    _save(figure, folder / "rate.png")


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    pyplot.close(figure)
    write_atomically(path, drawn.getvalue())


def show_words(model: HardKumaModel, texts: Sequence[str]) -> list[str]:
    """Each text with its selected words in bold, escaped for Markdown."""
    lines = []
    for text, record in zip(texts, gate_records(model, texts), strict=True):
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
    model: HardKumaModel,
    recipe: Recipe,
    sentences: int,
    quality: Quality | None,
    best_step: int,
    dev: dict[str, float] | None,
    cotraining: Cotraining | None = None,
) -> dict[str, str]:
    """The fields of the card that a run knows."""
    data = name_sources(recipe.data)
    training = (
        f"Trained without labels on {sentences:,} sentences of {data} by the recipe in `recipe.yaml` (seed {recipe.seed}, "
        f"batches of {recipe.batch_size}, {recipe.batches}); the state of step {best_step} was best by the label-free "
        "criterion below."
    )
    if cotraining is not None:
        forms = "; ".join(", ".join(name.replace("_", " ") for name in names) for names in cotraining.selected)
        training += (
            f"\n\nThen the gate head was fitted, in {_times(recipe.cotraining_epochs)} over all text, to those gates and "
            f"to the written form that they had picked out on this text without labels ({forms}); the head itself does "
            "not see form."
        )
    evaluation = "No held-out text was evaluated."
    if quality is not None:
        rate = model.config.target_rate
        evaluation = (
            f"On held-out text of the same source, keeping the {rate:.0%} most probable tokens of each sentence: cosine of "
            f"their re-encoded embedding to the sentence's {quality.sufficiency:.3f} (higher is better), of the others' "
            f"{quality.remainder:.3f} (lower is better). Mean selection probability {quality.rate:.3f}."
        )
    if dev is not None:
        numbers = ", ".join(f"{name} {value:.3f}" for name, value in dev.items())
        evaluation += (
            f"\n\nAgainst the gold entity words of the development file, which took no part in training: {numbers}."
        )
    examples = "Sentences from outside the corpus, hard ones among them; selected words in bold:\n\n"
    examples += "\n".join(f"- {line}" for line in show_words(model, SHOWCASE))
    plots = "\nLosses and selection rate over the run:\n\n![losses](losses.png)\n![rate](rate.png)"
    return {"training": training, "plots": plots, "evaluation": evaluation, "examples": examples}


def _times(number: int) -> str:
    return "one pass" if number == 1 else f"{number} passes"


def write_record(folder: Path, recipe: Recipe, seconds: float, processes: int) -> None:
    """recipe.yaml and run.json (versions, revision, seed, processes, wall time) beside the result."""
    recipe.save(folder / "recipe.yaml")
    record = {"versions": versions(), "seed": recipe.seed, "processes": processes, "seconds": round(seconds, 1)}
    write_atomically(folder / "run.json", json.dumps(record, indent=2) + "\n")
